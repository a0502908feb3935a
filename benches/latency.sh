#!/usr/bin/env bash
# What limiting adds to a request's latency at a held rate: the gateway without a limit and with leases take turns, before
# a real upstream (nginx), for short rounds, so that what disturbs the machine meets both.
#
#   benches/latency.sh         p50, p99 and p99.9 of each, over all rounds and as the median of rounds
#
# From the environment: RATE (10000 requests/s), ROUNDS (40) of SECONDS_EACH (2), CONNECTIONS (64), TARGETS ("off leases").
# The first 0.3 s of each round, in which connections are made, do not count. Needs oha (cargo install --locked oha).
set -euo pipefail

RATE=${RATE:-10000}
ROUNDS=${ROUNDS:-40}
SECONDS_EACH=${SECONDS_EACH:-2}
CONNECTIONS=${CONNECTIONS:-64}
read -ra TARGETS <<<"${TARGETS:-off leases}"
GATEWAY_CORE=0
LOAD_CORE=1

# shellcheck source=benches/support/gateways.sh
. "$(dirname "${BASH_SOURCE[0]}")/support/gateways.sh"
UPSTREAM=(taskset -c "$LOAD_CORE") REDIS=(taskset -c "$LOAD_CORE") GATEWAY=(taskset -c "$GATEWAY_CORE")

command -v oha >/dev/null || die 'oha is not installed: cargo install --locked oha'
"$root/scripts/packages.sh" nginx:nginx-light taskset:util-linux
if [[ -z ${SEKISHO_BINARY:-} ]]; then
    (cd "$root" && cargo build --release --locked >&2)
fi
binary=${SEKISHO_BINARY:-${CARGO_TARGET_DIR:-$root/target}/release/sekisho}
start_upstream
start_redis
for target in "${TARGETS[@]}"; do
    start_gateway "$target"
    : >"$dir/$target.all"
done

# Milliseconds at the given parts (0.5 0.99 …) of the numbers in a file.
percentiles() {
    local file=$1
    shift
    sort -g "$file" | awk -v parts="$*" '
        { v[NR] = $1 }
        END { n = split(parts, part, " "); for (i = 1; i <= n; i++) printf "%.2f ", v[int((NR - 1) * part[i]) + 1] }'
}

for ((round = 0; round <= ROUNDS; round++)); do
    for target in "${TARGETS[@]}"; do
        timeout $((SECONDS_EACH * 2 + 10)) taskset -c "$LOAD_CORE" oha --no-tui -c "$CONNECTIONS" -z "${SECONDS_EACH}s" -q "$RATE" \
            --latency-correction --output-format csv -H 'X-Api-Key: tenant-1' "http://127.0.0.1:${port[$target]}/" >"$dir/csv"
        # request-start, DNS, DNS+dialup, Response-delay, request-duration, bytes, status
        awk -F, 'NR > 1 && $1 > 0.3 { if ($NF != 200) exit 1; print $5 * 1000 }' "$dir/csv" >"$dir/one" ||
            die "$target: another answer than 200"
        if ((round > 0)); then # the first warms
            cat "$dir/one" >>"$dir/$target.all"
            percentiles "$dir/one" 0.5 0.99 >>"$dir/$target.rounds"
            echo >>"$dir/$target.rounds"
        fi
    done
done

echo "$RATE requests/s held over $CONNECTIONS connections, $ROUNDS alternating rounds of $SECONDS_EACH s, first 0.3 s of each left out; ms"
echo '| target | p50 / p99 / p99.9 of all | median round: p50 / p99 |'
echo '|---|---|---|'
for target in "${TARGETS[@]}"; do
    for column in 1 2; do
        awk -v c="$column" '{ print $c }' "$dir/$target.rounds" >"$dir/column.$column"
    done
    echo "| $target | $(percentiles "$dir/$target.all" 0.5 0.99 0.999) | $(percentiles "$dir/column.1" 0.5)/ $(percentiles "$dir/column.2" 0.5)|"
done
