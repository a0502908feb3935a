#!/usr/bin/env bash
# What limiting costs a proxied request: the gateway with limiting off, with buckets in the process, and with buckets in
# Redis without and with leases, before a real upstream (nginx); and what a denied request costs.
#
#   benches/http.sh            the whole comparison, about ten minutes
#
# From the environment: ROUNDS (8) and SECONDS_EACH (6) of wrk, HELD_ROUNDS (4) of oha at half the top rate,
# CONNECTIONS (64), TENANTS (10; their limits are never reached), TARGETS ("off process calls leases denied"),
# SEKISHO_BINARY (default: what `cargo build --release` makes).
#
# The gateway has one thread, on core 0; load, upstream and Redis share core 1. The targets take turns, so that a
# machine that drifts meets all of them; ratios are medians over the rounds, each within its round.
set -euo pipefail

ROUNDS=${ROUNDS:-8}
SECONDS_EACH=${SECONDS_EACH:-6}
HELD_ROUNDS=${HELD_ROUNDS:-4}
CONNECTIONS=${CONNECTIONS:-64}
TENANTS=${TENANTS:-10}
read -ra TARGETS <<<"${TARGETS:-off process calls leases denied}"
GATEWAY_CORE=0
LOAD_CORE=1

HZ=$(getconf CLK_TCK)
# shellcheck source=benches/support/gateways.sh
. "$(dirname "${BASH_SOURCE[0]}")/support/gateways.sh"
UPSTREAM=(taskset -c "$LOAD_CORE") REDIS=(taskset -c "$LOAD_CORE") GATEWAY=(taskset -c "$GATEWAY_CORE")

# Seconds of processor time of process $1, in clock ticks.
ticks() {
    local stat
    stat=$(<"/proc/$1/stat")
    read -ra stat <<<"${stat##*) }"
    echo $((stat[11] + stat[12]))
}

# One run of the load generator in "$@" against a target; a line of: target, requests/s, p50, p99 (ms), seconds of
# processor time per 100,000 requests of gateway and Redis.
measure() {
    local target=$1 tool=$2 gateway redis requests rest
    shift 2
    gateway=$(ticks "${pid[$target]}") redis=$(ticks "$redis_pid")
    timeout $((SECONDS_EACH * 2 + 10)) taskset -c "$LOAD_CORE" "$@" "http://127.0.0.1:${port[$target]}/" >"$dir/out" 2>&1 ||
        die "$tool failed: $(tail -n 3 "$dir/out")"
    gateway=$(($(ticks "${pid[$target]}") - gateway)) redis=$(($(ticks "$redis_pid") - redis))
    read -r requests rest < <("read_$tool" "$target")
    awk -v t="$target" -v n="$requests" -v rest="$rest" -v g="$gateway" -v r="$redis" -v hz="$HZ" \
        'BEGIN { print t, rest, g / hz / n * 1e5, r / hz / n * 1e5 }'
}

# Requests, requests/s, p50 and p99 in ms, out of what wrk printed; another answer than expected ends the run.
read_wrk() {
    awk -v target="$1" '
        function ms(text) { return text * (text ~ /us$/ ? 0.001 : text ~ /ms$/ ? 1 : 1000) }
        / requests in / { n = $1 }
        /^Requests\/sec:/ { rate = $2 }
        $1 == "50%" { p50 = ms($2) }
        $1 == "99%" { p99 = ms($2) }
        /Non-2xx/ { refused = $NF }
        /Socket errors/ { print "socket errors: " $0 > "/dev/stderr" }
        END {
            if (target == "denied" ? refused < n * 0.99 : refused > 0) print target ": " refused " of " n " not 2xx" > "/dev/stderr"
            print n, rate, p50, p99
        }' "$dir/out"
}

# The same of what oha printed as text.
read_oha() {
    awk '
        /Requests\/sec:/ { rate = $2 }
        / 50\.00% in / { p50 = $3 * ($4 == "sec" ? 1000 : $4 == "us" ? 0.001 : 1) }
        / 99\.00% in / { p99 = $3 * ($4 == "sec" ? 1000 : $4 == "us" ? 0.001 : 1) }
        /^ +\[[0-9]+\] [0-9]+ responses/ { n += $2 }
        END { print n, rate, p50, p99 }' "$dir/out"
}

# The median of column $3 of the lines of target $2 in file $1.
median() {
    awk -v target="$2" -v column="$3" '$1 == target { print $column }' "$1" | sort -g |
        awk '{ v[NR] = $1 } END { print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'
}

# The same, each value divided by that of the first target in the same round; $3 names columns, such as 5 or 5+6.
median_ratio() {
    awk -v target="$2" -v first="${TARGETS[0]}" -v columns="$3" '
        function sum(  i, n, each, total) {
            n = split(columns, each, "+")
            for (i = 1; i <= n; i++) total += $each[i]
            return total
        }
        $1 == first { base[++a] = sum() }
        $1 == target { mine[++b] = sum() }
        END { for (i = 1; i <= b; i++) print mine[i] / base[i] }' "$1" | sort -g |
        awk '{ v[NR] = $1 } END { printf "%.3f", NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'
}

# Shares of the decisions of a target by what made them, from its metrics.
sources() {
    fetch "${admin[$1]}" /metrics | tr -d '\r' | awk '
        /^sekisho_decisions_total/ && match($0, /source="[a-z]+"/) {
            by[substr($0, RSTART + 8, RLENGTH - 9)] += $2
            all += $2
        }
        END { for (source in by) if (by[source] > 0) printf "%s %.1f %% ", source, 100 * by[source] / all }'
}

"$root/scripts/packages.sh" nginx:nginx-light wrk:wrk taskset:util-linux
if [[ -z ${SEKISHO_BINARY:-} ]]; then
    (cd "$root" && cargo build --release --locked >&2)
fi
binary=${SEKISHO_BINARY:-${CARGO_TARGET_DIR:-$root/target}/release/sekisho}
cat >"$dir/tenants.lua" <<END
local requests, at = {}, 0
function init()
    for i = 1, $TENANTS do requests[i] = wrk.format("GET", nil, { ["X-Api-Key"] = "tenant-" .. i }) end
end
function request()
    at = at % $TENANTS + 1
    return requests[at]
end
END
start_upstream
start_redis
for target in "${TARGETS[@]}"; do
    start_gateway "$target"
done

wrk=(wrk -t1 "-c$CONNECTIONS" "-d${SECONDS_EACH}s" --latency -s "$dir/tenants.lua")
: >"$dir/wrk.data"
: >"$dir/oha.data"
for target in "${TARGETS[@]}"; do # warm caches, connections and buckets
    timeout 20 taskset -c "$LOAD_CORE" wrk -t1 "-c$CONNECTIONS" -d1s -s "$dir/tenants.lua" \
        "http://127.0.0.1:${port[$target]}/" >/dev/null
done
for ((round = 1; round <= ROUNDS; round++)); do
    for target in "${TARGETS[@]}"; do
        measure "$target" wrk "${wrk[@]}" | tee -a "$dir/wrk.data" >&2
    done
done
# oha holds a rate, which wrk does not: the same for all, half of what the first target reached.
held=$(awk -v top="$(median "$dir/wrk.data" "${TARGETS[0]}" 2)" 'BEGIN { printf "%d", top / 2 }')
if ! command -v oha >/dev/null; then
    echo "oha is not installed (cargo install --locked oha): no latency at half the top rate" >&2
    HELD_ROUNDS=0
fi
for ((round = 1; round <= HELD_ROUNDS; round++)); do
    for target in "${TARGETS[@]}"; do
        measure "$target" oha oha --no-tui -c "$CONNECTIONS" -z "${SECONDS_EACH}s" -q "$held" --latency-correction \
            -H 'X-Api-Key: tenant-1' | tee -a "$dir/oha.data" >&2
    done
done

cat <<END

Gateway with 1 thread on core $GATEWAY_CORE; wrk with $CONNECTIONS connections and $TENANTS tenants, nginx and Redis on core $LOAD_CORE.
Medians of $ROUNDS alternating rounds of $SECONDS_EACH s (oha: $HELD_ROUNDS rounds at $held requests/s held, corrected for queueing).
CPU: seconds of processor time per 100,000 requests; ratios are to "${TARGETS[0]}" in the same round.

| target | req/s | p50 / p99 ms | gateway CPU | ratio | Redis CPU | gateway + Redis ratio | p50 / p99 ms at half the rate | decided by |
|---|---|---|---|---|---|---|---|---|
END
for target in "${TARGETS[@]}"; do
    latency=–
    if ((HELD_ROUNDS > 0)); then
        latency="$(median "$dir/oha.data" "$target" 3) / $(median "$dir/oha.data" "$target" 4)"
    fi
    w=$dir/wrk.data
    printf '| %s | %.0f | %.2f / %.2f | %.3f | %s | %.3f | %s | %s | %s |\n' "$target" "$(median "$w" "$target" 2)" \
        "$(median "$w" "$target" 3)" "$(median "$w" "$target" 4)" "$(median "$w" "$target" 5)" \
        "$(median_ratio "$w" "$target" 5)" "$(median "$w" "$target" 6)" \
        "$(median_ratio "$w" "$target" 5+6)" "$latency" "$(sources "$target")"
done
