//! Which server of a pool gets a request.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Waker};

use http::header::{HOST, HeaderName};
use http::{HeaderMap, HeaderValue};
use pingora::lb::health_check::HttpHealthCheck;
use pingora::lb::selection::{BackendIter, BackendSelection, Consistent, RoundRobin};
use pingora::lb::{Backend, Backends, LoadBalancer};
use pingora::server::ShutdownWatch;
use pingora::upstreams::peer::HttpPeer;

use super::discovery::{Discovery, Load};
use crate::config::{self, Balance};

/// Bound on the steps along a hash ring, where one server has many points.
const RING_STEPS: usize = 512;
/// Bound on the turns per server: requests that choose at the same time skip each other's turns.
const TURNS: usize = 16;

/// A server chosen for a request.
#[derive(Debug)]
pub struct Choice {
    /// Where it is.
    pub address: SocketAddr,
    /// Counts the request as in flight until dropped; only where that is what the choice goes by.
    pub in_flight: Option<InFlight>,
}

/// One request in flight, until dropped.
#[derive(Debug)]
pub struct InFlight(Arc<AtomicUsize>);

impl InFlight {
    /// Counts one more.
    pub fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The servers of a pool, and how one is chosen.
pub(super) enum Balancer {
    RoundRobin { servers: LoadBalancer<RoundRobin>, turn: AtomicUsize },
    LeastConn { servers: LoadBalancer<RoundRobin>, turn: AtomicUsize },
    Hash { servers: LoadBalancer<Consistent>, header: HeaderName },
}

impl std::fmt::Debug for Balancer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::RoundRobin { .. } => "RoundRobin",
            Self::LeastConn { .. } => "LeastConn",
            Self::Hash { .. } => "Hash",
        })
    }
}

impl Balancer {
    /// Resolves the servers, blocking.
    pub(super) fn new(name: &str, settings: &config::Pool, template: &HttpPeer) -> Result<Self, String> {
        Ok(match &settings.balance {
            Balance::RoundRobin => {
                Self::RoundRobin { servers: servers(name, settings, template)?, turn: AtomicUsize::new(0) }
            }
            Balance::LeastConn => {
                Self::LeastConn { servers: servers(name, settings, template)?, turn: AtomicUsize::new(0) }
            }
            Balance::Hash(header) => Self::Hash { servers: servers(name, settings, template)?, header: header.clone() },
        })
    }

    pub(super) fn choose(&self, headers: &HeaderMap, avoid: Option<SocketAddr>) -> Option<Choice> {
        let accept = |server: &Backend, healthy: bool| healthy && server.as_inet().copied() != avoid;
        let server = match self {
            Self::RoundRobin { servers, turn } => {
                // Not Pingora's, which keeps a set of the servers it has tried, and hashes and copies each.
                let all = servers.backends().get_backend();
                let server = (0..TURNS * all.len()).find_map(|_| {
                    let server = all.iter().nth(turn.fetch_add(1, Ordering::Relaxed) % all.len())?;
                    accept(server, servers.backends().ready(server)).then_some(server)
                })?;
                return Some(Choice { address: *server.as_inet()?, in_flight: None });
            }
            Self::Hash { servers, header } => {
                let key = headers.get(header).map_or(&b""[..], HeaderValue::as_bytes);
                servers.select_with(key, RING_STEPS, accept)?
            }
            Self::LeastConn { servers, turn } => {
                let all = servers.backends().get_backend();
                // Equally loaded servers take turns.
                let first = turn.fetch_add(1, Ordering::Relaxed).checked_rem(all.len())?;
                let (address, load) = all
                    .iter()
                    .cycle()
                    .skip(first)
                    .take(all.len())
                    .filter(|server| accept(server, servers.backends().ready(server)))
                    .filter_map(|server| Some((server.as_inet()?, server.ext.get::<Load>()?)))
                    .min_by_key(|(_, load)| load.load(Ordering::Relaxed))?;
                return Some(Choice { address: *address, in_flight: Some(InFlight::new(load)) });
            }
        };
        Some(Choice { address: *server.as_inet()?, in_flight: None })
    }

    /// Looks names up again and checks health, until the shutdown.
    pub(super) async fn keep_up(&self, shutdown: ShutdownWatch) {
        match self {
            Self::RoundRobin { servers, .. } | Self::LeastConn { servers, .. } => servers.run(shutdown, None).await,
            Self::Hash { servers, .. } => servers.run(shutdown, None).await,
        }
    }
}

fn servers<S>(name: &str, settings: &config::Pool, template: &HttpPeer) -> Result<LoadBalancer<S>, String>
where
    S: BackendSelection + 'static,
    S::Iter: BackendIter,
{
    let discovery = Discovery::new(name, &settings.servers, settings.balance == Balance::LeastConn);
    let update_frequency = discovery.frequency();
    let mut servers = LoadBalancer::<S>::from_backends(Backends::new(Box::new(discovery)));
    servers.update_frequency = update_frequency;
    if let Some(check) = &settings.health_check {
        servers.set_health_check(Box::new(health_check(settings, check, template).map_err(|error| error.to_string())?));
        servers.health_check_frequency = Some(check.interval);
        servers.parallel_health_check = true;
    }
    // The first discovery answers at once, with the addresses found above: no runtime is needed to poll it.
    let _ = pin!(servers.update()).as_mut().poll(&mut Context::from_waker(Waker::noop()));
    Ok(servers)
}

/// A GET over a connection of its own; 200 is healthy.
fn health_check(
    settings: &config::Pool,
    check: &config::HealthCheck,
    template: &HttpPeer,
) -> pingora::Result<HttpHealthCheck> {
    let host = match &settings.tls {
        Some(tls) => tls.sni.as_str(),
        None => settings.servers.first().map_or("localhost", String::as_str),
    };
    let mut health_check = HttpHealthCheck::new("localhost", false);
    health_check.req.insert_header(HOST, host)?;
    health_check.req.insert_header("User-Agent", "sekisho-health-check")?;
    health_check.req.set_raw_path(check.path.as_bytes())?;
    health_check.peer_template = template.clone();
    health_check.backend_summary_callback = Some(Box::new(|server| server.addr.to_string()));
    Ok(health_check)
}
