//! The upstreams: pools of servers with balancing, health checks and addresses that are looked up again and again.

mod balance;
mod discovery;

use std::collections::{BTreeMap, HashMap};
use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::HeaderMap;
use pingora::server::ShutdownWatch;
use pingora::services::ServiceReadyNotifier;
use pingora::services::background::BackgroundService;
use pingora::upstreams::peer::HttpPeer;
use tokio::task::JoinSet;

use self::balance::Balancer;
pub use self::balance::{Choice, InFlight};
use crate::telemetry::Seldom;
use crate::{config, metrics};

/// How long an unused connection to a server is kept for the next request.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// How often the log is told of failed attempts at one upstream, at most.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// Where a route sends its requests.
#[derive(Clone, Debug)]
pub enum Upstream {
    /// Answered inside this process.
    Echo,
    /// Real servers.
    Pool(Arc<Pool>),
}

/// An upstream that cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// The health check's request cannot be built.
    #[error("upstream \"{upstream}\": health_check: {reason}")]
    HealthCheck {
        /// Its name.
        upstream: String,
        /// What is wrong.
        reason: String,
    },
}

/// All upstreams by name.
#[derive(Debug)]
pub struct Upstreams {
    by_name: HashMap<String, Upstream>,
}

impl Upstreams {
    /// Sets up all upstreams and resolves their servers, blocking: to be called before any runtime exists. A name that
    /// does not resolve is logged and left out until it does. The second value keeps addresses and health up to date and
    /// has to be run as a background service.
    ///
    /// # Errors
    /// See [`UpstreamError`].
    pub fn new(settings: &BTreeMap<String, config::Upstream>) -> Result<(Self, Upkeep), UpstreamError> {
        let mut by_name = HashMap::with_capacity(settings.len());
        let mut pools = Vec::new();
        for (name, upstream) in settings {
            let upstream = match upstream {
                config::Upstream::Echo => Upstream::Echo,
                config::Upstream::Pool(pool) => {
                    let pool = Arc::new(Pool::new(name, pool)?);
                    pools.push(Arc::clone(&pool));
                    Upstream::Pool(pool)
                }
            };
            by_name.insert(name.clone(), upstream);
        }
        Ok((Self { by_name }, Upkeep { pools }))
    }

    /// The upstream of this name.
    pub fn get(&self, name: &str) -> Option<&Upstream> {
        self.by_name.get(name)
    }
}

/// Servers that are interchangeable.
#[derive(Debug)]
pub struct Pool {
    name: Arc<str>,
    balancer: Balancer,
    /// Everything about a peer but its address.
    template: HttpPeer,
    told: Seldom,
}

impl Pool {
    fn new(name: &str, settings: &config::Pool) -> Result<Self, UpstreamError> {
        let template = template(settings);
        let balancer = Balancer::new(name, settings, &template)
            .map_err(|reason| UpstreamError::HealthCheck { upstream: name.to_owned(), reason })?;
        Ok(Self { name: name.into(), balancer, template, told: Seldom::new(TELL_EVERY) })
    }

    /// Counts a failed attempt, and tells of it now and then: while a server is down there is one for each request.
    pub fn failed(&self, kind: &str, error: &dyn Display) {
        metrics::upstream_failure(&self.name, kind);
        if let Some(failed) = self.told.tell() {
            tracing::warn!(upstream = &*self.name, failed, kind, %error, "attempts at an upstream failed");
        }
    }

    /// A healthy server for a request, other than `avoid`; `None` when there is none.
    pub fn choose(&self, headers: &HeaderMap, avoid: Option<SocketAddr>) -> Option<Choice> {
        self.balancer.choose(headers, avoid)
    }

    /// How to reach a server of this pool.
    pub fn peer(&self, address: SocketAddr) -> Box<HttpPeer> {
        let mut peer = Box::new(self.template.clone());
        peer._address = address.into();
        peer
    }
}

/// A peer with every timeout set: Pingora's own default is to wait for ever.
fn template(settings: &config::Pool) -> HttpPeer {
    let sni = settings.tls.as_ref().map_or_else(String::new, |tls| tls.sni.clone());
    // The address is a placeholder; a name here would be resolved on the spot, blocking.
    let mut peer = HttpPeer::new(SocketAddr::from(([0, 0, 0, 0], 0)), settings.tls.is_some(), sni);
    let options = &mut peer.options;
    options.connection_timeout = Some(settings.connect_timeout);
    options.total_connection_timeout = Some(settings.connect_timeout);
    options.read_timeout = Some(settings.read_timeout);
    options.write_timeout = Some(settings.read_timeout);
    options.idle_timeout = Some(IDLE_TIMEOUT);
    peer
}

/// Keeps addresses and health of all pools up to date.
#[derive(Debug)]
pub struct Upkeep {
    pools: Vec<Arc<Pool>>,
}

#[async_trait]
impl BackgroundService for Upkeep {
    async fn start_with_ready_notifier(&self, shutdown: ShutdownWatch, ready: ServiceReadyNotifier) {
        // Addresses were resolved before the start: nobody has to wait for the first round.
        ready.notify_ready();
        let mut pools = JoinSet::new();
        for pool in &self.pools {
            let (pool, shutdown) = (Arc::clone(pool), shutdown.clone());
            pools.spawn(async move { pool.balancer.keep_up(shutdown).await });
        }
        while let Some(ended) = pools.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "the upkeep of an upstream ended");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Balance, UpstreamTls};

    fn pool(servers: &[&str], balance: Balance) -> Pool {
        Pool::new("orders", &settings(servers, balance)).unwrap()
    }

    fn settings(servers: &[&str], balance: Balance) -> config::Pool {
        config::Pool {
            servers: servers.iter().map(|&server| server.to_owned()).collect(),
            balance,
            connect_timeout: Duration::from_secs(1),
            read_timeout: Duration::from_secs(30),
            health_check: None,
            tls: None,
        }
    }

    fn port(choice: Option<&Choice>) -> u16 {
        choice.unwrap().address.port()
    }

    const THREE: [&str; 3] = ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"];

    #[test]
    fn round_robin_takes_servers_in_turn_and_never_the_one_to_avoid() {
        let pool = pool(&THREE, Balance::RoundRobin);
        let headers = HeaderMap::new();
        let mut seen: Vec<u16> = (0..6).map(|_| port(pool.choose(&headers, None).as_ref())).collect();
        seen.sort_unstable();
        assert_eq!(seen, [1, 1, 2, 2, 3, 3]);
        let avoid = SocketAddr::from(([127, 0, 0, 1], 2));
        for _ in 0..6 {
            assert_ne!(port(pool.choose(&headers, Some(avoid)).as_ref()), 2);
        }
    }

    #[test]
    fn the_only_server_is_not_chosen_when_it_is_the_one_to_avoid() {
        for balance in [Balance::RoundRobin, Balance::LeastConn, Balance::Hash(http::header::HOST)] {
            let pool = pool(&["127.0.0.1:1"], balance);
            let only = SocketAddr::from(([127, 0, 0, 1], 1));
            assert!(pool.choose(&HeaderMap::new(), None).is_some());
            assert!(pool.choose(&HeaderMap::new(), Some(only)).is_none());
        }
    }

    #[test]
    fn a_hash_sends_one_value_to_one_server_and_many_values_to_all() {
        let pool = pool(&THREE, Balance::Hash(http::header::AUTHORIZATION));
        let at = |value: &str| {
            let headers = HeaderMap::from_iter([(http::header::AUTHORIZATION, value.parse().unwrap())]);
            port(pool.choose(&headers, None).as_ref())
        };
        let servers: std::collections::BTreeSet<u16> = (0..100).map(|n| at(&format!("user-{n}"))).collect();
        assert_eq!(servers.len(), 3);
        assert!((0..10).all(|_| at("user-1") == at("user-1")));
        let without = || port(pool.choose(&HeaderMap::new(), None).as_ref());
        assert_eq!(without(), without());
    }

    #[test]
    fn least_conn_takes_the_server_with_the_fewest_requests_in_flight() {
        let pool = pool(&THREE, Balance::LeastConn);
        let headers = HeaderMap::new();
        let mut held: Vec<Choice> = (0..3).map(|_| pool.choose(&headers, None).unwrap()).collect();
        let mut ports: Vec<u16> = held.iter().map(|choice| port(Some(choice))).collect();
        ports.sort_unstable();
        assert_eq!(ports, [1, 2, 3]);
        let freed = port(held.pop().as_ref());
        for _ in 0..5 {
            assert_eq!(port(pool.choose(&headers, None).as_ref()), freed);
        }
    }

    #[test]
    fn an_unknown_name_is_an_empty_pool_and_no_panic() {
        for balance in [Balance::RoundRobin, Balance::LeastConn, Balance::Hash(http::header::HOST)] {
            let pool = pool(&["no-such-host.invalid:80"], balance);
            assert!(pool.choose(&HeaderMap::new(), None).is_none());
        }
    }

    #[test]
    fn a_peer_has_every_timeout_and_verifies_its_certificate() {
        let mut settings = settings(&["127.0.0.1:1"], Balance::RoundRobin);
        settings.tls = Some(UpstreamTls { sni: "orders.internal".to_owned() });
        let peer = Pool::new("orders", &settings).unwrap().peer(SocketAddr::from(([127, 0, 0, 1], 1)));
        let options = &peer.options;
        assert!(peer.is_tls() && options.verify_cert && options.verify_hostname);
        assert_eq!(peer.sni, "orders.internal");
        for timeout in [
            options.connection_timeout,
            options.total_connection_timeout,
            options.read_timeout,
            options.write_timeout,
            options.idle_timeout,
        ] {
            assert!(timeout.is_some());
        }
    }

    #[tokio::test]
    async fn a_server_that_fails_its_health_check_is_not_chosen() {
        // A port that was free a moment ago refuses connections.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let mut settings = settings(&[&address.to_string()], Balance::RoundRobin);
        settings.health_check =
            Some(config::HealthCheck { path: "/healthz".to_owned(), interval: Duration::from_millis(20) });
        let pool = Arc::new(Pool::new("orders", &settings).unwrap());
        assert!(pool.choose(&HeaderMap::new(), None).is_some());
        let (stop, shutdown) = tokio::sync::watch::channel(false);
        let upkeep = tokio::spawn({
            let pool = Arc::clone(&pool);
            async move { pool.balancer.keep_up(shutdown).await }
        });
        tokio::time::timeout(Duration::from_secs(10), async {
            while pool.choose(&HeaderMap::new(), None).is_some() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await
        .unwrap();
        stop.send(true).unwrap();
        upkeep.await.unwrap();
    }
}
