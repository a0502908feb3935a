#!/usr/bin/env bash
# Installs Debian packages whose command is missing; starts none of the services they bring.
# Usage: scripts/packages.sh COMMAND:PACKAGE...
set -euo pipefail

missing=()
for wanted in "$@"; do
    if ! command -v "${wanted%%:*}" >/dev/null; then
        missing+=("${wanted#*:}")
    fi
done
if ((${#missing[@]} == 0)); then
    exit 0
fi

if ! command -v apt-get >/dev/null; then
    echo "${0##*/}: needed but not found: ${missing[*]} (Debian's names); no apt-get here, please install them by hand" >&2
    exit 1
fi
as_root=()
if ((EUID != 0)); then
    if ! command -v sudo >/dev/null; then
        echo "${0##*/}: needed but not installed: ${missing[*]}; run as root: apt-get install ${missing[*]}" >&2
        exit 1
    fi
    as_root=(sudo)
fi

# A package's own service must not come up beside the throw-away ones: the policy layer of invoke-rc.d says no while
# apt runs, unless the machine has a policy already.
policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy ]]; then
    "${as_root[@]}" sh -c "printf '#!/bin/sh\nexit 101\n' >$policy && chmod 755 $policy"
    # shellcheck disable=SC2064 # expanded now: both are final
    trap "${as_root[*]} rm -f $policy" EXIT
fi

echo "installing: ${missing[*]}" >&2
"${as_root[@]}" apt-get update -qq >&2
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2
