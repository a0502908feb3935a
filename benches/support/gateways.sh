# Sourced by the benches that proxy: an upstream (nginx), Redis and one gateway per target, all on free loopback ports,
# ended when the script ends. The command words in UPSTREAM, REDIS and GATEWAY come before each program's own.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
declare -A port admin pid
UPSTREAM=() REDIS=() GATEWAY=()
started=()
services=''
dir=$(mktemp -d "${TMPDIR:-/tmp}/sekisho-http.XXXXXX")

clean_up() {
    local one
    for one in "${started[@]}"; do
        kill -s INT "$one" 2>/dev/null || true
    done
    for one in "${started[@]}"; do
        timeout 5 tail --pid="$one" -f /dev/null || kill -s KILL "$one" 2>/dev/null || true
    done
    if [[ -n $services ]]; then
        "$root/scripts/services.sh" stop "$services" || true
    fi
    rm -rf "$dir"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

die() {
    echo "${0##*/}: $*" >&2
    exit 1
}

free_port() {
    local candidate
    while :; do
        candidate=$((20000 + RANDOM % 12000))
        if ! (exec 3<>"/dev/tcp/127.0.0.1/$candidate") 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
}

# The body of GET $2 from port $1.
fetch() {
    (
        exec 3<>"/dev/tcp/127.0.0.1/$1"
        printf 'GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' "$2" >&3
        timeout 2 cat <&3
    ) 2>/dev/null || true
}

wait_until_ready() {
    for _ in {1..300}; do
        if [[ $(fetch "$1" "$2") == 'HTTP/1.1 200'* ]]; then
            return
        fi
        sleep 0.1
    done
    die "$3 does not answer: $(tail -n 3 "$dir/$3.log")"
}

start_upstream() {
    upstream=$(free_port)
    cat >"$dir/nginx.conf" <<END
daemon off;
master_process off;
pid $dir/nginx.pid;
error_log $dir/nginx.log;
events { worker_connections 1024; }
http {
    access_log off;
    keepalive_requests 1000000000;
    client_body_temp_path $dir/body;
    proxy_temp_path $dir/proxy;
    fastcgi_temp_path $dir/fastcgi;
    uwsgi_temp_path $dir/uwsgi;
    scgi_temp_path $dir/scgi;
    server {
        listen 127.0.0.1:$upstream backlog=1024;
        location / { default_type text/plain; return 200 "ok\n"; }
    }
}
END
    "${UPSTREAM[@]}" nginx -p "$dir" -e "$dir/nginx.log" -c "$dir/nginx.conf" &
    started+=($!)
    wait_until_ready "$upstream" / nginx
}

start_redis() {
    eval "$("${REDIS[@]}" "$root/scripts/services.sh" start redis)"
    services=$SEKISHO_TEST_SERVICES
    redis_pid=$(cat "$services/redis.pid")
}

# One gateway for each target; those that have no load sleep.
start_gateway() {
    local target=$1 limit=true store='' enabled=true
    local rule=${RULE:-'"capacity": 2000000000, "refill_per_second": 2000000000'}
    case $target in
    off) limit=false ;;
    process) ;;
    calls) store="url = \"$SEKISHO_TEST_REDIS_URL\"" enabled=false ;;
    leases) store="url = \"$SEKISHO_TEST_REDIS_URL\"" ;;
    denied) store="url = \"$SEKISHO_TEST_REDIS_URL\"" rule='"capacity": 1, "refill": "1/day"' ;;
    *) die "no target $target" ;;
    esac
    port[$target]=$(free_port)
    admin[$target]=$(free_port)
    echo "[{\"tenant_id\": \"*\", \"route_id\": \"*\", $rule}]" >"$dir/$target.json"
    cat >"$dir/$target.toml" <<END
[server]
listen = ["127.0.0.1:${port[$target]}"]
threads = 1
pid_file = "$dir/$target.pid"
upgrade_socket = "$dir/$target.sock"
[admin]
listen = "127.0.0.1:${admin[$target]}"
[store]
$store
key_prefix = "$target"
[limiter.prefetch]
enabled = $enabled
horizon = "${HORIZON:-100ms}"
[rules]
file = "$dir/$target.json"
[[route]]
id = "bench"
path = "/"
upstream = "real"
limit = $limit
[upstream.real]
servers = ["127.0.0.1:$upstream"]
END
    "${GATEWAY[@]}" "$binary" run -c "$dir/$target.toml" 2>"$dir/$target.log" &
    pid[$target]=$!
    started+=("${pid[$target]}")
    wait_until_ready "${admin[$target]}" /readyz "$target"
}
