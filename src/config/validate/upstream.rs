//! `[upstream.NAME]`

use std::collections::BTreeMap;
use std::time::Duration;

use super::value::{Between, Parsed, duration, header, request_target, server, server_name};
use crate::config::fault::{At, Report};
use crate::config::{Balance, HealthCheck, Pool, Upstream, UpstreamTls, file};

/// Checks all upstreams; those that no route uses are fine.
pub(super) fn upstreams(raw: &[(At<String>, file::Upstream)], report: &Report) -> BTreeMap<String, Upstream> {
    let checked = raw.iter().filter_map(|(name, upstream)| {
        if !(1..=64).contains(&name.value.chars().count()) || name.value.contains(char::is_control) {
            report.note(&name.place, "is not a name, allowed are 1 to 64 characters, no control characters");
        }
        Some((name.value.clone(), check(name, upstream, report)?))
    });
    checked.collect()
}

fn check(name: &At<String>, raw: &file::Upstream, report: &Report) -> Option<Upstream> {
    if let Some(builtin) = &raw.builtin {
        for place in &raw.for_servers {
            report.note(place, "is of no use beside builtin, allowed is either builtin or servers");
        }
        return report.parse_at(builtin, |text| match text {
            "echo" => Ok(Upstream::Echo),
            _ => Err(format!("{text:?} is not built in, allowed is \"echo\"")),
        });
    }
    if !raw.has_kind {
        report.note(&name.place.child("servers"), "is missing, allowed are servers or builtin = \"echo\"");
    }
    let health_check = raw.health_check.as_ref().and_then(|check| {
        let interval = report.parse(&check.interval, |text| duration(text, Between::up_to_seconds(3600)));
        let path = report.parse(&check.path, request_target)?;
        Some(HealthCheck { path, interval: interval.unwrap_or(Duration::from_secs(1)) })
    });
    let connect_timeout = report.parse(&raw.connect_timeout, |text| duration(text, Between::up_to_seconds(600)));
    let read_timeout = report.parse(&raw.read_timeout, |text| duration(text, Between::up_to_seconds(86_400)));
    Some(Upstream::Pool(Pool {
        servers: servers(&raw.servers, report),
        balance: report.parse(&raw.balance, balance).unwrap_or(Balance::RoundRobin),
        connect_timeout: connect_timeout.unwrap_or(Duration::from_secs(1)),
        read_timeout: read_timeout.unwrap_or(Duration::from_secs(30)),
        health_check,
        tls: raw.tls_sni.as_ref().and_then(|sni| report.parse(sni, server_name)).map(|sni| UpstreamTls { sni }),
    }))
}

fn servers(raw: &file::Texts, report: &Report) -> Vec<String> {
    let Some(At { value: raw, place }) = raw else { return Vec::new() };
    if raw.is_empty() {
        report.note(place, "is empty, allowed are host:port like [\"10.0.0.1:9001\"]");
    }
    let mut servers: Vec<String> = Vec::with_capacity(raw.len());
    for text in raw {
        let Some(server) = report.parse_at(text, server) else { continue };
        if servers.contains(&server) {
            report.note(&text.place, format!("{server:?} is named twice, allowed is once"));
        }
        servers.push(server);
    }
    servers
}

fn balance(text: &str) -> Parsed<Balance> {
    match (text, text.strip_prefix("hash:")) {
        ("round_robin", _) => Ok(Balance::RoundRobin),
        ("least_conn", _) => Ok(Balance::LeastConn),
        (_, Some(name)) => header(name).map(Balance::Hash),
        _ => Err(format!("{text:?} is not a balance, allowed are \"round_robin\", \"least_conn\", \"hash:<header>\"")),
    }
}
