#!/usr/bin/env bash
# What limiting costs a proxied request in instructions of the gateway, which no noise of the machine changes: callgrind
# counts them while curl sends one request after another over one connection, the kernel's own not among them.
#
#   benches/instructions.sh            totals, and the functions that differ from the first target
#
# From the environment: REQUESTS (3000), TARGETS ("off process leases"), TOP (25) functions a target, CALLGRIND (options,
# such as --toggle-collect=…), SEKISHO_BINARY (default: what `cargo build --release` makes). Names need
# CARGO_PROFILE_RELEASE_DEBUG=1.
set -euo pipefail

REQUESTS=${REQUESTS:-3000}
TOP=${TOP:-25}
read -ra TARGETS <<<"${TARGETS:-off process leases}"
# Some fifty times slower, a key is asked for as much less often: so that a lease is as large as it is without callgrind.
HORIZON=1s

# shellcheck source=benches/support/gateways.sh
. "$(dirname "${BASH_SOURCE[0]}")/support/gateways.sh"
read -ra options <<<"${CALLGRIND:-}"

load() {
    curl -sSf -H 'X-Api-Key: tenant-1' "http://127.0.0.1:${port[$1]}/?[1-$2]" -o /dev/null
}

# Instructions of each function itself, a request: a line of number and name. What was called before the count began
# would stand there with all that it has called since.
functions() {
    sed -i '/^calls=0 /,+1d' "$dir/$1.callgrind.1"
    callgrind_annotate --auto=no --threshold=100 --show-percs=no "$dir/$1.callgrind.1" | awk -v n="$REQUESTS" '
        $1 ~ /^[0-9,]+$/ && $2 != "PROGRAM" {
            gsub(",", "", $1)
            count = $1
            sub(/^ *[0-9]+ +[^ ]*:/, "")
            sub(/ \[[^\]]*\]$/, "")
            sub(/::h[0-9a-f]{16}/, "")
            by[$0] += count
        }
        END { for (name in by) print by[name] / n, name }'
}

"$root/scripts/packages.sh" nginx:nginx-light valgrind:valgrind curl:curl
if [[ -z ${SEKISHO_BINARY:-} ]]; then
    (cd "$root" && cargo build --release --locked >&2)
fi
binary=${SEKISHO_BINARY:-${CARGO_TARGET_DIR:-$root/target}/release/sekisho}
start_upstream
start_redis
for target in "${TARGETS[@]}"; do
    GATEWAY=(valgrind --quiet --tool=callgrind --callgrind-out-file="$dir/$target.callgrind" "${options[@]}")
    start_gateway "$target"
    load "$target" 500
    callgrind_control --zero "${pid[$target]}" >/dev/null
    load "$target" "$REQUESTS"
    callgrind_control --dump "${pid[$target]}" >/dev/null
    functions "$target" >"$dir/$target.functions"
done

printf '\nInstructions a request, %s requests over one connection:\n\n| target | instructions | ratio |\n|---|---|---|\n' "$REQUESTS"
for target in "${TARGETS[@]}"; do
    awk -v target="$target" '
        FNR == NR { base += $1; next }
        { mine += $1 }
        END { printf "| %s | %.0f | %.3f |\n", target, mine, mine / base }' \
        "$dir/${TARGETS[0]}.functions" "$dir/$target.functions"
done
for target in "${TARGETS[@]:1}"; do
    printf '\n%s less %s, by function:\n\n' "$target" "${TARGETS[0]}"
    awk '
        { count = $1; sub(/^[^ ]+ /, "") }
        FNR == NR { more[$0] -= count; next }
        { more[$0] += count }
        END { for (name in more) printf "%8.1f  %s\n", more[name], name }' "$dir/${TARGETS[0]}.functions" "$dir/$target.functions" |
        sort -k1,1gr | head -n "$TOP" || true
done
