//! `[store]`: where buckets live, and how to reach it.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use redis::{ConnectionAddr, IntoConnectionInfo};

use super::Secret;

/// Redis's own port.
pub(super) const REDIS_PORT: u16 = 6379;
/// Sentinel's own port.
pub(super) const SENTINEL_PORT: u16 = 26379;

/// `[store]`
#[derive(Clone, Debug)]
pub struct Store {
    /// The shared store; `None` keeps buckets in this process.
    pub redis: Option<Redis>,
    /// The longest a request waits for the store.
    pub timeout: Duration,
    /// First part of every key.
    pub key_prefix: String,
}

/// A Redis, whatever it is made of.
#[derive(Clone, Debug)]
pub struct Redis {
    /// Its servers.
    pub topology: Topology,
    /// What each of them that holds buckets asks for.
    pub login: Login,
    /// TLS to every server, sentinels included; `None`: plain TCP.
    pub tls: Option<StoreTls>,
}

/// `store.topology`
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Topology {
    /// One server.
    Single(Address),
    /// Redis Cluster. Its nodes are asked for all others; not empty.
    Cluster(Vec<Address>),
    /// A master that sentinels know.
    Sentinel {
        /// Not empty.
        sentinels: Vec<Address>,
        /// The name under which they watch the master.
        master_name: String,
        /// What the sentinels themselves ask for.
        login: Login,
    },
}

/// Where a server listens. Displays as `host:port`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// A name, or an address without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            return write!(f, "[{}]:{}", self.host, self.port);
        }
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// What a server asks for before it serves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Login {
    /// `None`: the user `default`. Never without a password.
    pub user: Option<String>,
    /// `None`: nothing is asked for.
    pub password: Option<Secret>,
    /// Number of the database.
    pub database: u32,
}

/// How to verify the servers of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreTls {
    /// PEM certificates that vouch for the servers; `None`: those of the system.
    pub ca_file: Option<PathBuf>,
}

/// `redis[s]://[user:password@]host[:port][/database]`, taken apart.
pub(super) struct Url {
    pub(super) tls: bool,
    pub(super) address: Address,
    pub(super) login: Login,
}

impl Url {
    /// `None` if the text is nothing of the kind.
    pub(super) fn parse(text: &str, default_port: u16) -> Option<Self> {
        let (tls, rest) = match text.strip_prefix("rediss://") {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix("redis://")?),
        };
        // Parameters mean something to other clients; here they would be ignored without a word.
        if rest.contains(['?', '#']) {
            return None;
        }
        let info = format!("redis://{rest}").into_connection_info().ok()?;
        let ConnectionAddr::Tcp(host, port) = info.addr() else { return None };
        let authority = rest.rsplit('@').next().and_then(|rest| rest.split('/').next()).unwrap_or(rest);
        let names_port = authority
            .rsplit_once(':')
            .is_some_and(|(_, port)| !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()));
        let port = if names_port { *port } else { default_port };
        let settings = info.redis_settings();
        let login = Login {
            user: settings.username().map(str::to_owned),
            password: settings.password().map(|password| Secret(password.to_owned())),
            database: settings.db().try_into().ok()?,
        };
        if port == 0 || (login.user.is_some() && login.password.is_none()) {
            return None;
        }
        Some(Self { tls, address: Address { host: host.clone(), port }, login })
    }
}

impl Redis {
    /// The one server at `redis[s]://[user:password@]host[:port][/database]`; the system's certificates vouch for it.
    /// `None` if the text is nothing of the kind.
    pub fn single(url: &str) -> Option<Self> {
        let Url { tls, address, login } = Url::parse(url, REDIS_PORT)?;
        let tls = tls.then_some(StoreTls { ca_file: None });
        Some(Self { topology: Topology::Single(address), login, tls })
    }
}
