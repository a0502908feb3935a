//! Where the servers of a pool are: names are resolved at the start, blocking, and again in the background. A name that
//! cannot be resolved keeps the addresses it had.

use std::collections::{BTreeSet, HashMap};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use pingora::lb::Backend;
use pingora::lb::discovery::ServiceDiscovery;

/// How often names are looked up again.
const FREQUENCY: Duration = Duration::from_secs(10);
/// The longest wait for an answer about one name.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

/// Requests in flight at one address, attached to its [`Backend`].
pub(super) type Load = Arc<AtomicUsize>;

/// The servers of one pool.
pub(super) struct Discovery {
    upstream: String,
    servers: Vec<Server>,
    /// Whether the addresses found at the start were handed out.
    started: AtomicBool,
    /// Requests in flight by address, where they are counted at all.
    loads: Option<Mutex<HashMap<SocketAddr, Load>>>,
}

struct Server {
    /// `host:port`
    name: String,
    /// Whether it is a name that has to be looked up.
    lookup: bool,
    addresses: Mutex<Vec<SocketAddr>>,
}

impl Discovery {
    /// Resolves the servers, blocking. `counted`: each gets a [`Load`].
    pub(super) fn new(upstream: &str, servers: &[String], counted: bool) -> Self {
        let resolve = |name: &String| {
            let literal = name.parse::<SocketAddr>().ok();
            let addresses = match literal {
                Some(address) => vec![address],
                None => match name.to_socket_addrs() {
                    Ok(addresses) => addresses.collect(),
                    Err(error) => {
                        tracing::warn!(upstream, server = name, %error, "could not resolve a server");
                        Vec::new()
                    }
                },
            };
            Server { name: name.clone(), lookup: literal.is_none(), addresses: Mutex::new(addresses) }
        };
        Self {
            upstream: upstream.to_owned(),
            servers: servers.iter().map(resolve).collect(),
            started: AtomicBool::new(false),
            loads: counted.then(Mutex::default),
        }
    }

    /// How often there is something to discover; `None` when all servers are addresses.
    pub(super) fn frequency(&self) -> Option<Duration> {
        self.servers.iter().any(|server| server.lookup).then_some(FREQUENCY)
    }

    async fn look_up(&self, server: &Server) {
        let lookup = tokio::time::timeout(LOOKUP_TIMEOUT, tokio::net::lookup_host(&server.name)).await;
        let reason = match lookup {
            Ok(Ok(addresses)) => {
                let addresses: Vec<SocketAddr> = addresses.collect();
                if !addresses.is_empty() {
                    *server.addresses.lock() = addresses;
                    return;
                }
                "it has no addresses".to_owned()
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer in time".to_owned(),
        };
        let kept = server.addresses.lock().len();
        tracing::warn!(upstream = self.upstream, server = server.name, reason, kept, "could not resolve a server");
    }

    fn backends(&self) -> BTreeSet<Backend> {
        let addresses: BTreeSet<SocketAddr> =
            self.servers.iter().flat_map(|server| server.addresses.lock().clone()).collect();
        let mut loads = self.loads.as_ref().map(Mutex::lock);
        if let Some(loads) = &mut loads {
            loads.retain(|address, _| addresses.contains(address));
        }
        let backend = |address: SocketAddr| {
            let mut ext = http::Extensions::new();
            if let Some(loads) = &mut loads {
                ext.insert(Arc::clone(loads.entry(address).or_default()));
            }
            Backend { addr: address.into(), weight: 1, ext }
        };
        addresses.into_iter().map(backend).collect()
    }
}

#[async_trait]
impl ServiceDiscovery for Discovery {
    async fn discover(&self) -> pingora::Result<(BTreeSet<Backend>, HashMap<u64, bool>)> {
        if self.started.swap(true, Ordering::Relaxed) {
            for server in self.servers.iter().filter(|server| server.lookup) {
                self.look_up(server).await;
            }
        }
        Ok((self.backends(), HashMap::new()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(discovery: &Discovery) -> Vec<String> {
        discovery.backends().iter().map(|backend| backend.addr.to_string()).collect()
    }

    #[tokio::test]
    async fn a_name_that_no_longer_resolves_keeps_its_addresses() {
        let mut discovery = Discovery::new("orders", &["localhost:80".to_owned()], false);
        assert_eq!(discovery.frequency(), Some(FREQUENCY));
        let before = addresses(&discovery);
        assert!(!before.is_empty());
        discovery.servers[0].name = "no-such-host.invalid:80".to_owned();
        for _ in 0..2 {
            discovery.discover().await.unwrap();
        }
        assert_eq!(addresses(&discovery), before);
    }

    #[tokio::test]
    async fn a_name_that_resolves_later_is_found() {
        let mut discovery = Discovery::new("orders", &["no-such-host.invalid:80".to_owned()], false);
        assert!(addresses(&discovery).is_empty());
        discovery.servers[0].name = "localhost:80".to_owned();
        assert!(discovery.discover().await.unwrap().0.is_empty(), "the first answer is the one from the start");
        assert!(!discovery.discover().await.unwrap().0.is_empty());
    }

    #[test]
    fn addresses_need_no_look_up_and_count_once() {
        let servers = ["127.0.0.1:80", "[::1]:80"].map(str::to_owned);
        let discovery = Discovery::new("orders", &servers, false);
        assert_eq!(discovery.frequency(), None);
        assert_eq!(addresses(&discovery), ["127.0.0.1:80", "[::1]:80"]);
    }

    #[test]
    fn a_server_keeps_its_count_of_requests_when_others_come_and_go() {
        let discovery = Discovery::new("orders", &["127.0.0.1:1".to_owned()], true);
        let load = |discovery: &Discovery| discovery.backends().first().unwrap().ext.get::<Load>().unwrap().clone();
        load(&discovery).fetch_add(3, Ordering::Relaxed);
        discovery.servers[0].addresses.lock().push(SocketAddr::from(([127, 0, 0, 1], 2)));
        assert_eq!(load(&discovery).load(Ordering::Relaxed), 3);
    }
}
