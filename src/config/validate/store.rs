//! `[store]`

use std::time::Duration;

use super::tls::certificates;
use super::value::{Between, Parsed, duration, file_path, key_prefix};
use crate::config::fault::{At, Report};
use crate::config::file::{self, Text};
use crate::config::store::{REDIS_PORT, SENTINEL_PORT, Url};
use crate::config::{Login, Redis, Secret, Store, StoreTls, Topology};

/// The values of `store.topology`.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Single,
    Cluster,
    Sentinel,
}

/// Checks the section and fills in its defaults.
pub(super) fn store(raw: &file::Store, report: &Report) -> Store {
    let timeout = report.parse(&raw.timeout, |text| duration(text, Between::up_to_seconds(10)));
    Store {
        redis: redis(raw, report),
        timeout: timeout.unwrap_or(Duration::from_millis(5)),
        key_prefix: report.parse(&raw.key_prefix, key_prefix).unwrap_or_else(|| "rl".to_owned()),
    }
}

fn redis(raw: &file::Store, report: &Report) -> Option<Redis> {
    let kind = match &raw.topology {
        None if report.is_at_fault(&raw.place.child("topology")) => return None,
        None => Kind::Single,
        Some(topology) => report.parse_at(topology, kind)?,
    };
    report_needless(raw, kind, report);
    let urls = match kind {
        Kind::Single => vec![(raw.url.as_ref()?, report.parse(&raw.url, |text| url(text, REDIS_PORT))?)],
        Kind::Cluster => nodes(raw, REDIS_PORT, report)?,
        Kind::Sentinel => nodes(raw, SENTINEL_PORT, report)?,
    };
    let ca_file = report.parse(&raw.ca_file, |text| certificates(text).and_then(|_| file_path(text)));
    let (_, first) = urls.first()?;
    let (login, tls) = (first.login.clone(), first.tls.then_some(StoreTls { ca_file }));
    if let (None, Some(ca_file)) = (&tls, &raw.ca_file) {
        report.note(&ca_file.place, "is of no use, allowed with rediss://");
    }
    let (master_name, sentinel_login) = match kind {
        Kind::Sentinel => (master_name(raw, report), sentinel_login(raw, report)),
        Kind::Single | Kind::Cluster => Default::default(),
    };
    let mut addresses = urls.into_iter().map(|(_, url)| url.address);
    let topology = match kind {
        Kind::Single => Topology::Single(addresses.next()?),
        Kind::Cluster => Topology::Cluster(addresses.collect()),
        Kind::Sentinel => {
            Topology::Sentinel { sentinels: addresses.collect(), master_name: master_name?, login: sentinel_login }
        }
    };
    Some(Redis { topology, login, tls })
}

fn kind(topology: &str) -> Parsed<Kind> {
    match topology {
        "single" => Ok(Kind::Single),
        "cluster" => Ok(Kind::Cluster),
        "sentinel" => Ok(Kind::Sentinel),
        _ => Err(format!("{topology:?} is not a topology, allowed are \"single\", \"cluster\", \"sentinel\"")),
    }
}

/// Notes what means something in other topologies only.
fn report_needless(raw: &file::Store, kind: Kind, report: &Report) {
    let needless = |place: Option<&_>, allowed: &str| {
        if let Some(place) = place {
            report.note(place, format!("is of no use, allowed with {allowed}"));
        }
    };
    if kind == Kind::Single {
        needless(raw.nodes_place.as_ref(), "store.topology = \"cluster\" or \"sentinel\"");
    } else {
        needless(raw.url_place.as_ref(), "store.topology = \"single\"; the servers of others stand in store.nodes");
    }
    if kind != Kind::Sentinel {
        for text in [&raw.master_name, &raw.sentinel_user, &raw.sentinel_password] {
            needless(text.as_ref().map(|text| &text.place), "store.topology = \"sentinel\"");
        }
    }
    if kind == Kind::Single && raw.url_place.is_none() {
        needless(raw.ca_file.as_ref().map(|text| &text.place), "rediss://");
    }
}

/// Where a server is. The text may hold a password and is never repeated.
fn url(text: &str, default_port: u16) -> Parsed<Url> {
    Url::parse(text, default_port)
        .ok_or_else(|| "is not the URL of a Redis, allowed is redis[s]://[user:password@]host[:port][/database]".into())
}

type NodeUrl<'a> = (&'a At<String>, Url);

/// The nodes, if each is an URL; that they agree in what they have to is noted otherwise.
fn nodes<'a>(raw: &'a file::Store, default_port: u16, report: &Report) -> Option<Vec<NodeUrl<'a>>> {
    let given = raw.nodes.as_ref().map_or(&[][..], |nodes| &nodes.value);
    if given.is_empty() {
        let at = raw.nodes_place.clone().unwrap_or_else(|| raw.place.child("nodes"));
        report.note(&at, "is missing, allowed are URLs of servers like [\"redis://10.0.0.1\", \"redis://10.0.0.2\"]");
        return None;
    }
    let parse = |node: &'a At<String>| Some((node, report.parse_at(node, |text| url(text, default_port))?));
    let urls: Vec<NodeUrl<'_>> = given.iter().filter_map(parse).collect();
    let (_, first) = urls.first()?;
    for (nth, (node, url)) in urls.iter().enumerate() {
        let what = if url.tls != first.tls {
            "has another scheme than the first node, allowed is one for all"
        } else if url.login != first.login {
            "has another user, password or database than the first node, allowed is one for all"
        } else if default_port == REDIS_PORT && url.login.database != 0 {
            "names a database, allowed is none: a cluster has only number 0"
        } else if urls[..nth].iter().any(|(_, before)| before.address == url.address) {
            "is given twice, allowed is each server once"
        } else {
            continue;
        };
        report.note(&node.place, what);
    }
    (urls.len() == given.len()).then_some(urls)
}

fn master_name(raw: &file::Store, report: &Report) -> Option<String> {
    let Some(name) = &raw.master_name else {
        report.note(&raw.place.child("master_name"), "is missing, but required with store.topology = \"sentinel\"");
        return None;
    };
    report.parse_at(name, |text| match text {
        "" => Err("is empty, allowed is the name under which the sentinels watch the master".to_owned()),
        text => Ok(text.to_owned()),
    })
}

/// What the sentinels ask for; an empty text is none.
fn sentinel_login(raw: &file::Store, report: &Report) -> Login {
    let given = |text: &Text| text.as_ref().map(|text| text.value.clone()).filter(|text| !text.is_empty());
    let (user, password) = (given(&raw.sentinel_user), given(&raw.sentinel_password));
    if let (Some(place), None) = (raw.sentinel_user.as_ref().filter(|_| user.is_some()), &password) {
        report.note(&place.place, "has no password, allowed with store.sentinel_password");
    }
    Login { user, password: password.map(Secret), database: 0 }
}
