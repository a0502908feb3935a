//! Validated settings: what the rest of the program sees of the configuration file. Everything here is in range and
//! refers only to things that exist; `validate` is the one place that makes it so.

mod environment;
mod fault;
mod file;
mod load;
mod messengers;
mod reader;
mod recording;
mod store;
#[cfg(test)]
mod tests;
mod validate;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use http::{HeaderName, Method};
use ipnet::IpNet;

pub use self::fault::Fault;
pub use self::load::{load, load_str};
pub use self::messengers::{Kafka, Listen, Messengers};
pub use self::recording::{AccessLog, LogTarget, Usage};
pub use self::store::{Address, Login, Redis, Store, StoreTls, Topology};
use crate::rule::{ANY, FailurePolicy, Rule};

/// The whole configuration, validated.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `[server]`
    pub server: Server,
    /// `[admin]`
    pub admin: Admin,
    /// `[identity]`
    pub identity: Identity,
    /// `[store]`
    pub store: Store,
    /// `[headers]`
    pub headers: Headers,
    /// `[limiter]`
    pub limiter: Limiter,
    /// `[rules]`
    pub rules: Rules,
    /// `[usage]`
    pub usage: Usage,
    /// `[access_log]`; `None`: there is none.
    pub access_log: Option<AccessLog>,
    /// `[[route]]`, in the order of the file; ids are unique.
    pub routes: Vec<Route>,
    /// `[upstream.NAME]`
    pub upstreams: BTreeMap<String, Upstream>,
}

/// `[server]`: listeners, threads and shutdown.
#[derive(Clone, Debug)]
pub struct Server {
    /// Plain HTTP/1.1 (and h2c) listeners.
    pub listen: Vec<SocketAddr>,
    /// Worker threads of the proxy; never 0 here.
    pub threads: usize,
    /// The longest drain on SIGTERM or SIGQUIT.
    pub grace_period: Duration,
    /// `header_timeout`, `body_timeout`, `keepalive_timeout`
    pub client: ClientTimeouts,
    /// Written when running as a daemon.
    pub pid_file: PathBuf,
    /// Where a new process takes over the listening sockets of this one.
    pub upgrade_socket: PathBuf,
    /// `[[server.tls]]`
    pub tls: Vec<TlsListener>,
}

/// How long a client may take: whoever is slower must not hold a connection for ever.
#[derive(Clone, Copy, Debug)]
pub struct ClientTimeouts {
    /// For the whole head of a request.
    pub header: Duration,
    /// The longest pause within the body of a request, or in taking the answer.
    pub body: Duration,
    /// Without a request, before its connection is closed; at least a second.
    pub keepalive: Duration,
}

impl ClientTimeouts {
    /// Pingora counts keep-alive in whole seconds.
    pub fn keepalive_seconds(&self) -> u64 {
        self.keepalive.as_secs_f64().ceil() as u64
    }
}

/// `[[server.tls]]`: one TLS listener, HTTP/1.1 and HTTP/2 by ALPN.
#[derive(Clone, Debug)]
pub struct TlsListener {
    /// Address to listen on.
    pub listen: SocketAddr,
    /// PEM chain.
    pub certificate: PathBuf,
    /// PEM key.
    pub key: PathBuf,
}

/// `[admin]`
#[derive(Clone, Debug)]
pub struct Admin {
    /// Loopback, unless `token` is set.
    pub listen: SocketAddr,
    /// The bearer token read from `token_file`.
    pub token: Option<Secret>,
}

/// A value that must not appear in logs or errors.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("\"…\"")
    }
}

/// `[identity]`: who is asking.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The header that carries the API key.
    pub header: HeaderName,
    /// What the header's value means.
    pub mode: IdentityMode,
    /// Peers whose `X-Forwarded-For` is believed, walked right to left.
    pub trusted_proxies: Vec<IpNet>,
    /// One IPv6 client is one prefix of this length, 1 … 128.
    pub ipv6_prefix: u8,
}

/// `identity.mode`
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IdentityMode {
    /// The header's value is the tenant id.
    Direct,
    /// The value is a secret, looked up by its SHA-256 in `keys_file`, or in table `api_key` of the rules database when
    /// `keys_file` is absent.
    Registered {
        /// JSON file of keys.
        keys_file: Option<PathBuf>,
    },
}

/// `[headers]`
#[derive(Clone, Copy, Debug)]
pub struct Headers {
    /// Also send `RateLimit-Policy` and `RateLimit` (IETF draft).
    pub ratelimit_draft: bool,
}

/// `[limiter]`
#[derive(Clone, Debug)]
pub struct Limiter {
    /// Applies where no rule does; its ids are both `*`.
    pub default_rule: Rule,
    /// Bound on keys tracked in this process.
    pub max_keys: usize,
    /// Gateways that share the limit, until live membership is known; ≥ 1.
    pub instances: u32,
    /// What to do when the store does not answer, where the rule does not say.
    pub on_store_failure: FailurePolicy,
    /// `[limiter.prefetch]`
    pub prefetch: Prefetch,
    /// `[limiter.breaker]`
    pub breaker: Breaker,
}

impl Default for Limiter {
    /// What applies where the file says nothing.
    fn default() -> Self {
        Self {
            default_rule: Rule::new(ANY, ANY, validate::standard_limit()),
            max_keys: 1_000_000,
            instances: 1,
            on_store_failure: FailurePolicy::Local,
            prefetch: Prefetch { batch: 50, horizon: Duration::from_millis(100), enabled: true },
            breaker: Breaker::default(),
        }
    }
}

/// `[limiter.prefetch]`
#[derive(Clone, Copy, Debug)]
pub struct Prefetch {
    /// Hot keys lease in groups of this many tokens.
    pub batch: u32,
    /// How far ahead of a key's own request rate to lease.
    pub horizon: Duration,
    /// `false`: one store round trip per decision.
    pub enabled: bool,
}

/// `[limiter.breaker]`
#[derive(Clone, Copy, Debug)]
pub struct Breaker {
    /// Calls of this much time are judged together.
    pub window: Duration,
    /// Fewer calls than this in the window never open it.
    pub minimum_calls: u32,
    /// Share of failed or slow calls in the window that opens it, 0 < x ≤ 1.
    pub failure_rate: f64,
    /// So many failures in a row open it at once.
    pub failures_in_a_row: u32,
    /// How long it stays open, before jitter.
    pub open_for: Duration,
    /// Calls let through half-open.
    pub probes: u32,
}

impl Default for Breaker {
    fn default() -> Self {
        Self {
            window: Duration::from_secs(10),
            minimum_calls: 20,
            failure_rate: 0.5,
            failures_in_a_row: 10,
            open_for: Duration::from_secs(1),
            probes: 3,
        }
    }
}

/// `[rules]`
#[derive(Clone, Debug)]
pub struct Rules {
    /// JSON file; with a database, only the rules to start from when neither database nor snapshot can be had.
    pub file: Option<PathBuf>,
    /// PostgreSQL.
    pub database_url: Option<Secret>,
    /// Full re-read.
    pub refresh: Duration,
    /// Last good rules, used at start when the database is away.
    pub snapshot: Option<PathBuf>,
    /// Expectations that rules have to meet before they come into force.
    pub tests: Option<PathBuf>,
    /// More than half of all rules may go at once.
    pub allow_mass_delete: bool,
    /// Who tells of changes.
    pub messengers: Messengers,
}

impl Default for Rules {
    /// No source.
    fn default() -> Self {
        Self {
            file: None,
            database_url: None,
            refresh: Duration::from_secs(30),
            snapshot: None,
            tests: None,
            allow_mass_delete: false,
            messengers: Messengers::default(),
        }
    }
}

/// `[[route]]`
#[derive(Clone, Debug)]
pub struct Route {
    /// 1–64 characters, unique.
    pub id: String,
    /// Empty: any.
    pub methods: Vec<Method>,
    /// Normalised path pattern: literals, `{param}`, `{*rest}` at the end.
    pub path: String,
    /// Lower-case host without port; `None`: any.
    pub host: Option<String>,
    /// A key of `Settings::upstreams`.
    pub upstream: String,
    /// Tokens that one request takes, where the rule does not say; ≥ 1.
    pub cost: u32,
    /// `false`: exempt, no key asked for, no bucket consulted.
    pub limit: bool,
}

/// `[upstream.NAME]`
#[derive(Clone, Debug)]
pub enum Upstream {
    /// `builtin = "echo"`: answers inside this process.
    Echo,
    /// Servers to balance over.
    Pool(Pool),
}

/// An upstream of real servers.
#[derive(Clone, Debug)]
pub struct Pool {
    /// `host:port`, each a name or an address (`[::1]:80` for IPv6); not empty, unique.
    pub servers: Vec<String>,
    /// How one is chosen.
    pub balance: Balance,
    /// Longest wait for a connection (TCP and TLS).
    pub connect_timeout: Duration,
    /// Longest wait for each read of the answer.
    pub read_timeout: Duration,
    /// Active health check.
    pub health_check: Option<HealthCheck>,
    /// TLS to the servers.
    pub tls: Option<UpstreamTls>,
}

/// `balance`
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Balance {
    /// In turn.
    RoundRobin,
    /// The server with the fewest requests in flight.
    LeastConn,
    /// Consistent hash of this request header; requests without it hash alike.
    Hash(HeaderName),
}

/// `health_check`
#[derive(Clone, Debug)]
pub struct HealthCheck {
    /// Path asked with GET; 200 is healthy.
    pub path: String,
    /// Between two checks.
    pub interval: Duration,
}

/// `tls` of an upstream.
#[derive(Clone, Debug)]
pub struct UpstreamTls {
    /// Server name sent and verified.
    pub sni: String,
}
