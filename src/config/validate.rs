//! Raw shape → settings. Notes every fault of meaning; where there is one, the settings that come out are not used.

mod limiter;
mod messengers;
mod path;
mod recording;
mod route;
mod store;
mod tls;
mod upstream;
mod value;

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use http::HeaderName;

pub(super) use self::limiter::standard_limit;
use self::messengers::messengers;
use self::value::{Between, database_url, duration, file_path, header, listener, network, token_file};
use super::fault::{At, Place, Report};
use super::file::{self, File};
use super::{Admin, ClientTimeouts, Headers, Identity, IdentityMode, Rules, Server, Settings};

const HOUR: u64 = 3600;

/// Judges the whole file. The settings are good only if nothing was noted.
pub(super) fn validate(file: &File, report: &Report) -> Settings {
    let server = server(&file.server, report);
    let has_redis = file.store.url_place.is_some() || file.store.nodes_place.is_some();
    let rules = rules(file.rules.as_ref(), has_redis, report);
    let upstream_names: Vec<&str> = file.upstreams.iter().map(|(name, _)| name.value.as_str()).collect();
    if file.routes.is_empty() {
        report.note(&file.routes_place, "there is no route, allowed are one [[route]] or more");
    }
    let identity = identity(&file.identity, file.rules.as_ref().is_some_and(|rules| rules.has_database), report);
    let settings = Settings {
        server,
        admin: admin(&file.admin, report),
        usage: recording::usage(&file.usage, report),
        access_log: file.access_log.as_ref().and_then(|raw| recording::access_log(raw, &identity.mode, report)),
        identity,
        store: store::store(&file.store, report),
        headers: Headers { ratelimit_draft: file.ratelimit_draft.as_ref().is_some_and(|draft| draft.value) },
        limiter: limiter::limiter(&file.limiter, report),
        rules,
        routes: route::routes(&file.routes, &upstream_names, report),
        upstreams: upstream::upstreams(&file.upstreams, report),
    };
    unique_listeners(file, settings.admin.listen, report);
    settings
}

fn server(raw: &file::Server, report: &Report) -> Server {
    let listen = raw.listen.as_ref().map_or(&[][..], |listen| &listen.value);
    if listen.is_empty() && raw.tls.is_empty() {
        let at = raw.listen.as_ref().map_or_else(|| raw.place.child("listen"), |listen| listen.place.clone());
        report.note(&at, "there is no listener, allowed are addresses like [\"127.0.0.1:8080\"], or [[server.tls]]");
    }
    let threads = report.integer(&raw.threads, 0..=1024).filter(|threads| *threads != 0);
    let grace_period = report.parse(&raw.grace_period, |text| duration(text, Between::zero_to_seconds(HOUR)));
    Server {
        listen: listen.iter().filter_map(|address| report.parse_at(address, listener)).collect(),
        threads: threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from)),
        grace_period: grace_period.unwrap_or(Duration::from_secs(10)),
        client: client_timeouts(raw, report),
        pid_file: path_or(&raw.pid_file, "/run/sekisho/sekisho.pid", report),
        upgrade_socket: path_or(&raw.upgrade_socket, "/run/sekisho/upgrade.sock", report),
        tls: raw.tls.iter().filter_map(|raw| tls::listener(raw, report)).collect(),
    }
}

fn client_timeouts(raw: &file::Server, report: &Report) -> ClientTimeouts {
    let up_to_an_hour = |text: &str| duration(text, Between::up_to_seconds(HOUR));
    // Whole seconds are all that Pingora knows here, and to it 0 means for ever.
    let keepalive = |text: &str| duration(text, Between(Duration::from_secs(1), Duration::from_secs(HOUR)));
    ClientTimeouts {
        header: report.parse(&raw.header_timeout, up_to_an_hour).unwrap_or(Duration::from_secs(10)),
        body: report.parse(&raw.body_timeout, up_to_an_hour).unwrap_or(Duration::from_secs(60)),
        keepalive: report.parse(&raw.keepalive_timeout, keepalive).unwrap_or(Duration::from_secs(60)),
    }
}

fn path_or(raw: &file::Text, default: &str, report: &Report) -> PathBuf {
    report.parse(raw, file_path).unwrap_or_else(|| default.into())
}

/// No address is listened on twice, the default of `admin.listen` included.
fn unique_listeners(file: &File, admin: SocketAddr, report: &Report) {
    let plain = file.server.listen.iter().flat_map(|listen| &listen.value);
    let tls = file.server.tls.iter().filter_map(|tls| tls.listen.as_ref());
    let servers = plain.chain(tls).filter_map(|At { value, place }| Some((value.parse().ok()?, place.clone())));
    let mut first: HashMap<SocketAddr, Place> = HashMap::new();
    for (address, place) in servers.chain([(admin, admin_listen(&file.admin))]) {
        match first.get(&address) {
            Some(Place { line, key }) => {
                let what = format!("\"{address}\" is the address of {key} in line {line} too, allowed is one listener");
                report.note(&place, what);
            }
            None => drop(first.insert(address, place)),
        }
    }
}

fn admin_listen(raw: &file::Admin) -> Place {
    raw.listen.as_ref().map_or_else(|| raw.place.child("listen"), |listen| listen.place.clone())
}

fn admin(raw: &file::Admin, report: &Report) -> Admin {
    let listen = report.parse(&raw.listen, listener);
    let token = report.parse(&raw.token_file, token_file);
    let listen = listen.unwrap_or(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9180));
    let has_token = raw.token_file.is_some() || report.is_at_fault(&raw.place.child("token_file"));
    if !listen.ip().to_canonical().is_loopback() && !has_token {
        report.note(
            &admin_listen(raw),
            format!("\"{listen}\" is not a loopback address, allowed only where admin.token_file is set"),
        );
    }
    Admin { listen, token }
}

fn identity(raw: &file::Identity, has_database: bool, report: &Report) -> Identity {
    let keys_file = report.parse(&raw.keys_file, file_path);
    let is_registered = report.parse(&raw.mode, |mode| match mode {
        "direct" => Ok(false),
        "registered" => Ok(true),
        _ => Err(format!("{mode:?} is not a mode, allowed are \"direct\", \"registered\"")),
    });
    let is_registered = is_registered.unwrap_or(false);
    let has_keys = has_database || raw.keys_file.is_some() || report.is_at_fault(&raw.place.child("keys_file"));
    match (&raw.mode, &raw.keys_file) {
        (Some(mode), _) if is_registered && !has_keys => {
            let what = "\"registered\" needs known keys, allowed with identity.keys_file or rules.database_url";
            report.note(&mode.place, what);
        }
        (_, Some(keys_file)) if !is_registered && !report.is_at_fault(&raw.place.child("mode")) => {
            report.note(&keys_file.place, "is of no use, allowed with identity.mode = \"registered\"");
        }
        _ => {}
    }
    let mode = if is_registered { IdentityMode::Registered { keys_file } } else { IdentityMode::Direct };
    let proxies = raw.trusted_proxies.iter().flat_map(|proxies| &proxies.value);
    Identity {
        header: report.parse(&raw.header, header).unwrap_or(HeaderName::from_static("x-api-key")),
        mode,
        trusted_proxies: proxies.filter_map(|proxy| report.parse_at(proxy, network)).collect(),
        ipv6_prefix: report.integer(&raw.ipv6_prefix, 1..=128).unwrap_or(64),
    }
}

fn rules(raw: Option<&file::Rules>, has_redis: bool, report: &Report) -> Rules {
    let default = Rules::default();
    let Some(raw) = raw else { return default };
    if !raw.has_source {
        let what = "is missing, allowed are file, database_url, kafka or several of them, or no [rules] at all";
        report.note(&raw.place.child("file"), what);
    }
    if let (Some(snapshot), false) = (&raw.snapshot, raw.has_database) {
        report.note(&snapshot.place, "is of no use, allowed with rules.database_url");
    }
    let refresh = report.parse(&raw.refresh, |text| duration(text, Between::up_to_seconds(24 * HOUR)));
    let database_url = report.parse(&raw.database_url, database_url);
    Rules {
        file: report.parse(&raw.file, file_path),
        messengers: messengers(raw, database_url.as_ref(), has_redis, report),
        database_url,
        refresh: refresh.unwrap_or(default.refresh),
        snapshot: report.parse(&raw.snapshot, file_path),
        tests: report.parse(&raw.tests, file_path),
        allow_mass_delete: raw.allow_mass_delete.as_ref().is_some_and(|at| at.value),
    }
}
