use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use proptest::prelude::{any, prop_assert, proptest};

use super::{SHORTEST, environment, faults, good, with};
use crate::bucket::Limit;
use crate::config::{
    Address, Balance, Fault, IdentityMode, LogTarget, Login, Secret, StoreTls, Topology, Upstream, load, load_str,
};
use crate::rule::FailurePolicy;

const SHIPPED: &str = include_str!("../../../conf/sekisho.toml");

#[test]
fn shipped_file_loads_and_limits_in_this_process() {
    let settings = load(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/conf/sekisho.toml"))).unwrap();
    assert!(settings.store.redis.is_none());
    assert_eq!(settings.rules.file.as_deref(), Some(Path::new("conf/rules.json")));
    let route = settings.routes.iter().find(|route| route.id == "create-order").unwrap();
    assert_eq!((route.path.as_str(), route.methods.as_slice()), ("/orders", &[http::Method::POST][..]));
    assert!(matches!(settings.upstreams[&route.upstream], Upstream::Echo));
    assert!(settings.routes.iter().any(|route| !route.limit));
}

#[test]
fn commented_out_lines_of_the_shipped_file_are_valid_settings() {
    let text: String = SHIPPED
        .lines()
        .map(|line| match line.strip_prefix("# ") {
            Some(rest) if rest.starts_with('[') || rest.split_once(" = ").is_some_and(|(key, _)| is_key(key)) => rest,
            _ => line,
        })
        .filter(|line| {
            !line.starts_with("certificate") && !line.starts_with("key =") && !line.starts_with("token_file")
        })
        .map(|line| format!("{line}\n"))
        .collect();
    let faults = load_str("t", &text, &|_| Some("postgres://u:p@h/d".to_owned())).unwrap_err();
    let keys: Vec<&str> = faults.iter().map(|fault| fault.key.as_str()).collect();
    // The two lines left out above, `keys_file` beside `mode = "direct"`, and a URL where the password goes.
    assert_eq!(
        keys,
        ["server.tls[1].certificate", "server.tls[1].key", "identity.keys_file", "store.url"],
        "{faults:?}"
    );
}

/// The topologies of the store that the shipped file describes, each from its `topology` to the next line that is none.
#[test]
fn topologies_of_the_shipped_file_are_valid_settings() {
    let lines: Vec<&str> = SHIPPED.lines().map(|line| line.strip_prefix("#   ").unwrap_or_default()).collect();
    let described: Vec<String> =
        lines.split(|line| line.is_empty()).filter(|lines| !lines.is_empty()).map(|lines| lines.join("\n")).collect();
    assert_eq!(described.len(), 2);
    for text in described {
        let text = with(&format!("[store]\n{text}\n"));
        assert!(load_str("t", &text, &|_| Some("s3cret".to_owned())).unwrap().store.redis.is_some());
    }
}

fn is_key(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_lowercase() || c == '_')
}

#[test]
fn shortest_file_gets_the_documented_defaults() {
    let settings = good(SHORTEST);
    assert!(settings.server.threads >= 1);
    assert_eq!(settings.server.grace_period, Duration::from_secs(10));
    let client = settings.server.client;
    assert_eq!([client.header, client.body, client.keepalive].map(|limit| limit.as_secs()), [10, 60, 60]);
    assert_eq!(settings.server.pid_file, Path::new("/run/sekisho/sekisho.pid"));
    assert_eq!(settings.server.upgrade_socket, Path::new("/run/sekisho/upgrade.sock"));
    assert_eq!(settings.admin.listen, "127.0.0.1:9180".parse().unwrap());
    assert_eq!(settings.identity.header, "x-api-key");
    assert_eq!((settings.identity.mode, settings.identity.ipv6_prefix), (IdentityMode::Direct, 64));
    assert_eq!((settings.store.timeout, settings.store.key_prefix.as_str()), (Duration::from_millis(5), "rl"));
    assert!(!settings.headers.ratelimit_draft);
    let limiter = settings.limiter;
    assert_eq!(limiter.default_rule.limit, Limit::new(20, 10.0).unwrap());
    assert_eq!((limiter.max_keys, limiter.instances), (1_000_000, 1));
    assert_eq!(limiter.on_store_failure, FailurePolicy::Local);
    let (prefetch, breaker) = (limiter.prefetch, limiter.breaker);
    assert_eq!((prefetch.batch, prefetch.horizon, prefetch.enabled), (50, Duration::from_millis(100), true));
    assert_eq!((breaker.window, breaker.open_for), (Duration::from_secs(10), Duration::from_secs(1)));
    assert_eq!((breaker.minimum_calls, breaker.failures_in_a_row, breaker.probes), (20, 10, 3));
    assert_eq!(breaker.failure_rate, 0.5);
    assert_eq!((settings.rules.file, settings.rules.refresh), (None, Duration::from_secs(30)));
    let route = &settings.routes[0];
    assert_eq!((route.cost, route.limit, route.methods.len(), route.host.as_deref()), (1, true, 0, None));
}

#[test]
fn tenants_in_the_access_log_are_hashed_where_keys_are_secrets() {
    let hashes = |identity: &str| {
        let settings = good(&with(&format!("{identity}\n[access_log]\npath = \"a.log\"\n")));
        let log = settings.access_log.unwrap();
        assert_eq!((log.target, log.sample), (LogTarget::File("a.log".into()), 1.0));
        log.hash_tenants
    };
    assert!(!hashes(""));
    assert!(hashes("[identity]\nmode = \"registered\"\nkeys_file = \"k.json\""));
    let settings = good(SHORTEST);
    let usage = settings.usage;
    assert!(settings.access_log.is_none() && usage.enabled && usage.shared && usage.max_series == 10_000);
}

#[test]
fn values_given_are_the_values_used() {
    let settings = good(&with(
        r#"threads = 3
grace_period = "0s"
header_timeout = "5s"
body_timeout = "20s"
keepalive_timeout = "1.5s"
[identity]
mode = "registered"
keys_file = "k.json"
trusted_proxies = ["10.1.2.3/8", "::1"]
[store]
url = "redis://:${PASSWORD}@${HOST}:${PORT:-6379}/1"
timeout = "1.5s"
key_prefix = "${EMPTY:-a}${EMPTY}${NOPE:-b}${NOPE:-}"
[limiter]
default_rule = { capacity = 5, refill = "60/min", cost = 2, on_store_failure = "closed" }
[rules]
database_url = "postgres://u:${PASSWORD}@h/d"
snapshot = "s.json"
[usage]
enabled = false
shared = false
max_series = 500
[access_log]
path = "-"
sample = 0.5
hash_tenants = false
[[route]]
id = "second"
methods = ["GET"]
path = "/first/{a}/{*rest}"
host = "API.Example.com"
upstream = "pool"
cost = 3
[upstream.pool]
servers = ["a:1", "[::1]:2"]
balance = "hash:X-User"
connect_timeout = "2m"
health_check = { path = "/up" }
tls = { sni = "a" }
"#,
    ));
    assert_eq!((settings.server.threads, settings.server.grace_period), (3, Duration::ZERO));
    let client = settings.server.client;
    assert_eq!([client.header, client.body].map(|limit| limit.as_secs()), [5, 20]);
    assert_eq!((client.keepalive, client.keepalive_seconds()), (Duration::from_millis(1500), 2));
    assert_eq!(settings.identity.mode, IdentityMode::Registered { keys_file: Some("k.json".into()) });
    let networks: Vec<String> = settings.identity.trusted_proxies.iter().map(ToString::to_string).collect();
    assert_eq!(networks, ["10.0.0.0/8", "::1/128"]);
    let redis = settings.store.redis.as_ref().unwrap();
    assert_eq!(redis.topology, Topology::Single(address("127.0.0.1", 6379)));
    assert_eq!(redis.login, login(None, Some("s3cret"), 1));
    assert_eq!(redis.tls, None);
    assert_eq!((settings.store.timeout, settings.store.key_prefix.as_str()), (Duration::from_millis(1500), "ab"));
    let rule = &settings.limiter.default_rule;
    assert_eq!((rule.limit, rule.cost.map(u32::from)), (Limit::new(5, 1.0).unwrap(), Some(2)));
    assert_eq!(rule.on_store_failure, Some(FailurePolicy::Closed));
    assert_eq!(settings.rules.database_url, Some(Secret("postgres://u:s3cret@h/d".to_owned())));
    let usage = settings.usage;
    assert_eq!((usage.enabled, usage.shared, usage.max_series), (false, false, 500));
    let log = settings.access_log.as_ref().unwrap();
    assert_eq!((&log.target, log.sample, log.hash_tenants), (&LogTarget::Stdout, 0.5, false));
    let route = &settings.routes[1];
    assert_eq!((route.host.as_deref(), route.cost), (Some("api.example.com"), 3));
    let Upstream::Pool(pool) = &settings.upstreams["pool"] else { panic!("not a pool") };
    assert_eq!(pool.servers, ["a:1", "[::1]:2"]);
    assert_eq!(pool.balance, Balance::Hash("x-user".parse().unwrap()));
    assert_eq!((pool.connect_timeout, pool.read_timeout), (Duration::from_secs(120), Duration::from_secs(30)));
    assert_eq!(pool.health_check.as_ref().map(|check| check.interval), Some(Duration::from_secs(1)));
    assert_eq!(pool.tls.as_ref().map(|tls| tls.sni.as_str()), Some("a"));
}

fn address(host: &str, port: u16) -> Address {
    Address { host: host.to_owned(), port }
}

fn login(user: Option<&str>, password: Option<&str>, database: u32) -> Login {
    Login { user: user.map(str::to_owned), password: password.map(|text| Secret(text.to_owned())), database }
}

#[test]
fn store_is_one_server_a_cluster_or_what_sentinels_name() {
    let store = |text: &str| good(&with(&format!("[store]\n{text}"))).store.redis.unwrap();
    let single = store("url = \"rediss://me:p%40ss@[::1]/3\"\n");
    assert_eq!(single.topology, Topology::Single(address("::1", 6379)));
    assert_eq!(single.login, login(Some("me"), Some("p@ss"), 3));
    assert_eq!(single.tls, Some(StoreTls { ca_file: None }));

    let nodes = "nodes = [\"redis://:${PASSWORD}@10.0.0.1:7000\", \"redis://:s3cret@b\"]\n";
    let cluster = store(&format!("topology = \"cluster\"\n{nodes}"));
    assert_eq!(cluster.topology, Topology::Cluster(vec![address("10.0.0.1", 7000), address("b", 6379)]));
    assert_eq!((cluster.login, cluster.tls), (login(None, Some("s3cret"), 0), None));

    let nodes = "nodes = [\"redis://:s3cret@a/2\", \"redis://:s3cret@[::1]:26380/2\"]\n";
    let sentinel = store(&format!("topology = \"sentinel\"\nmaster_name = \"main\"\nsentinel_user = \"\"\n{nodes}"));
    let sentinels = vec![address("a", 26379), address("::1", 26380)];
    let expected = Topology::Sentinel { sentinels, master_name: "main".to_owned(), login: login(None, None, 0) };
    assert_eq!((sentinel.topology, sentinel.login), (expected, login(None, Some("s3cret"), 2)));
}

#[test]
fn admin_beyond_loopback_needs_the_token_that_its_file_holds() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "  t0ken ").unwrap();
    let admin = format!("[admin]\nlisten = \"0.0.0.0:9180\"\ntoken_file = {:?}\n", file.path());
    assert_eq!(good(&with(&admin)).admin.token, Some(Secret("t0ken".to_owned())));
}

#[test]
fn certificate_and_its_key_make_a_tls_listener_and_another_key_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let (key, other) = (new_key(), new_key());
    std::fs::write(path("cert.pem"), certificate(&key)).unwrap();
    std::fs::write(path("key.pem"), key.private_key_to_pem_pkcs8().unwrap()).unwrap();
    std::fs::write(path("other.pem"), other.private_key_to_pem_pkcs8().unwrap()).unwrap();
    let tls = |key: &str| {
        let (certificate, key) = (path("cert.pem"), path(key));
        with(&format!("[[server.tls]]\nlisten = \"127.0.0.1:8443\"\ncertificate = {certificate:?}\nkey = {key:?}\n"))
    };
    assert_eq!(good(&tls("key.pem")).server.tls.len(), 1);
    let what = format!(
        "t:13: server.tls[1].key: file {:?} is not the key of the certificate, allowed is only that",
        path("other.pem")
    );
    assert_eq!(faults(&tls("other.pem")), [what]);
    let what = format!(
        "t:13: server.tls[1].key: file {:?} holds no private key, allowed is one in PEM without passphrase",
        path("cert.pem")
    );
    assert_eq!(faults(&tls("cert.pem")), [what]);
}

fn new_key() -> openssl::pkey::PKey<openssl::pkey::Private> {
    let group = openssl::ec::EcGroup::from_curve_name(openssl::nid::Nid::X9_62_PRIME256V1).unwrap();
    openssl::pkey::PKey::from_ec_key(openssl::ec::EcKey::generate(&group).unwrap()).unwrap()
}

fn certificate(key: &openssl::pkey::PKey<openssl::pkey::Private>) -> Vec<u8> {
    let mut builder = openssl::x509::X509::builder().unwrap();
    builder.set_pubkey(key).unwrap();
    let days = |days| openssl::asn1::Asn1Time::days_from_now(days).unwrap();
    builder.set_not_before(&days(0)).unwrap();
    builder.set_not_after(&days(1)).unwrap();
    builder.sign(key, openssl::hash::MessageDigest::sha256()).unwrap();
    builder.build().to_pem().unwrap()
}

#[test]
fn file_that_cannot_be_read_is_one_fault_with_its_name() {
    let faults = load(Path::new("/no/such.toml")).unwrap_err();
    let text: Vec<String> = faults.iter().map(Fault::to_string).collect();
    assert_eq!(text, ["/no/such.toml: cannot be read: No such file or directory (os error 2)"]);
}

#[test]
fn file_that_is_not_utf8_names_the_line() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"[server]\nlisten = \"\xff\"\n").unwrap();
    let faults = load(file.path()).unwrap_err();
    assert_eq!(faults[0].to_string(), format!("{}:2: is not UTF-8, allowed is TOML", file.path().display()));
}

proptest! {
    /// Characters deleted, doubled or changed anywhere: settings or faults come out, each fault in a line of the file.
    #[test]
    fn mutated_file_never_panics(edits in proptest::collection::vec((any::<u16>(), 0..3u8, any::<char>()), 1..8)) {
        let mut text: Vec<char> = SHIPPED.chars().collect();
        for (position, edit, character) in edits {
            let position = usize::from(position) % text.len();
            match edit {
                0 => drop(text.remove(position)),
                1 => text.insert(position, text[position]),
                _ => text[position] = character,
            }
        }
        let text: String = text.into_iter().collect();
        if let Err(faults) = load_str("t", &text, &environment) {
            prop_assert!(!faults.is_empty());
            let lines = 1 + text.matches('\n').count();
            prop_assert!(faults.iter().all(|fault| fault.line.is_some_and(|line| (1..=lines).contains(&line))));
        }
    }
}
