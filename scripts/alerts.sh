#!/usr/bin/env bash
# Checks what ships for Prometheus and Grafana: alert rules and their tests, the dashboard's JSON and each of its queries.
# Usage: scripts/alerts.sh
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
conf=$(dirname "$here")/conf
dashboard=$conf/grafana/sekisho.json
temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT

"$here/packages.sh" promtool:prometheus jq:jq

promtool check rules "$conf/prometheus/alerts.yml"
promtool test rules "$conf/prometheus/alerts.test.yml"

# Each alert has a scenario in which it fires.
while read -r alert; do
    if ! grep -q "alertname=\"$alert\"" "$conf/prometheus/alerts.test.yml"; then
        echo "alerts.test.yml: no scenario in which $alert fires" >&2
        exit 1
    fi
done < <(sed -n 's/^ *- alert: //p' "$conf/prometheus/alerts.yml")

# What can be imported anywhere: an id of its own would clash, a fixed uid lets links last, each panel takes its data
# source from the variable.
jq --exit-status '
    .id == null and .uid == "sekisho"
    and ([.panels[].id] | length == (unique | length))
    and ([.panels[] | select(.type != "row") | .datasource.uid, .targets[].datasource.uid] | unique == ["${datasource}"])
' "$dashboard" >/dev/null || {
    echo "sekisho.json: id is not null, uid is not \"sekisho\", two panels have one id, or one has another data source" >&2
    exit 1
}

# The queries as recording rules, with a value for each of Grafana's variables.
jq '{groups: [{name: "dashboard", rules: [
    .panels[] | .targets[]?.expr
    | gsub("\\$__rate_interval"; "1m") | gsub("\\$(job|instance)"; ".*")
] | to_entries | map({record: "panel_\(.key)", expr: .value})}]}' "$dashboard" >"$temporary/dashboard.yml"
promtool check rules "$temporary/dashboard.yml"
