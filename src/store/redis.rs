//! Buckets in Redis, shared by all gateways. Each node of it has a bounded queue, a circuit breaker and a driver of its
//! own, so that one that is slow or away slows only its keys. A driver owns the connection and sends everything that
//! has gathered in one pipeline: Redis's cost per decision falls as load rises, and a call outlives the request that
//! caused it.
//!
//! Everything that waits is bounded, and what exceeds a bound goes to the rule's failure policy at once:
//!
//! | what | bound |
//! |---|---|
//! | calls queued for a node's driver | [`QUEUE`] |
//! | calls gathered for the next pipeline, and in each | [`BATCH`] |
//! | pipelines on their way to a node | [`PIPELINES`] |
//! | calls under way for one key | 1 |
//! | requests that wait for one key | `WAITING` in `limiter/lease.rs` |
//! | keys, and buckets of the fallback | `limiter.max_keys` each |
//! | time a request waits | `store.timeout` |
//! | time a call is waited for, before it is given up with its connection | [`ABANDON`] |

mod cluster;
mod connection;
mod dial;
mod driver;
mod eviction;
mod flight;
mod job;
mod node;
mod reply;
mod router;
mod script;
mod sentinel;
mod side;
mod slots;
mod subscribe;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::sync::oneshot;

use crate::bucket::{Call, Reply};
use crate::config::{self, Topology};
use crate::key::{Key, KeyRef};
use crate::store::{Kind, Store, StoreError};

use cluster::ClusterWatch;
use dial::Dialer;
pub use driver::Driver;
use driver::Drivers;
pub use job::{Alive, Message, Work};
use job::{Beat, Job, Task};
use node::NodeFactory;
pub use node::{Link, NodeStatus};
use router::{Router, Routes};
use sentinel::SentinelWatch;
pub use side::{SideError, SideLine};
pub(crate) use subscribe::{Subscription, Subscriptions};

/// Calls that may wait for a node's driver.
const QUEUE: usize = 16_384;
/// Calls in one pipeline.
const BATCH: usize = 256;
/// Pipelines on their way to a node at once: while one is answered, the next already travels.
const PIPELINES: usize = 2;
/// A reply that takes longer is abandoned, and the connection with it: it may swallow everything.
const ABANDON: Duration = Duration::from_secs(1);
/// A gateway is alive for so long after its heartbeat.
const ALIVE_FOR: Duration = Duration::from_secs(5);

/// The requests' side of the shared store.
#[derive(Debug)]
pub struct RedisStore {
    router: Arc<Router>,
    dialer: Dialer,
    timeout: Duration,
}

/// The store cannot be reached as its settings say.
#[derive(Debug, thiserror::Error)]
#[error("store.ca_file: {0}")]
pub struct SetupError(#[from] openssl::error::ErrorStack);

/// The store and the driver that has to run for it.
///
/// # Errors
/// When the certificates for TLS cannot be used.
pub fn connect(
    settings: &config::Store,
    breaker: config::Breaker,
    server: &config::Redis,
) -> Result<(RedisStore, Driver), SetupError> {
    let dialer = Dialer::new(&server.login, server.tls.as_ref())?;
    let (router, news) = Router::new(Routes::unknown(), settings.key_prefix.clone());
    let router = Arc::new(router);
    let watched_by = Arc::downgrade(&router);
    let factory = NodeFactory::new(dialer.clone(), settings, breaker, watched_by.clone());
    let beside = dialer.clone();
    let driver = match &server.topology {
        Topology::Single(address) => {
            let (node, driver) = factory.node(0, Some(address.clone()));
            router.publish(Routes::one(node));
            Drivers::Single(Box::new(driver))
        }
        Topology::Cluster(seeds) => {
            Drivers::Cluster(Box::new(ClusterWatch::new(seeds.clone(), dialer, factory, watched_by, news)))
        }
        Topology::Sentinel { sentinels, master_name, login } => {
            let (node, driver) = factory.node(0, None);
            router.publish(Routes::one(node));
            let dialer = Dialer::new(login, server.tls.as_ref())?;
            let watch = SentinelWatch::new(sentinels.clone(), master_name.clone(), dialer, watched_by);
            Drivers::Sentinel(Box::new(driver), watch)
        }
    };
    Ok((RedisStore { router, dialer: beside, timeout: settings.timeout }, Driver::new(driver)))
}

impl RedisStore {
    /// Each node as it stands.
    pub fn nodes(&self) -> Vec<NodeStatus> {
        self.router.routes().nodes.iter().map(|node| node.status()).collect()
    }

    /// The store as a whole: [`Link::Starting`] while a node has not been tried, then [`Link::Connected`] while calls for
    /// every key are let through.
    pub fn link(&self) -> Link {
        self.router.link()
    }

    /// Milliseconds that the node of `key` has been away in total, which is while its breaker is not closed.
    pub fn away_ms(&self, key: KeyRef<'_>) -> u64 {
        self.router.away_ms(key)
    }

    /// Whether calls for `key` are let through: its node is not known to be away or to fail.
    pub fn lets_through(&self, key: KeyRef<'_>) -> bool {
        self.router.lets_through(key)
    }

    /// Connections of their own to the same nodes, for what no request waits for.
    pub fn side_line(&self) -> SideLine {
        SideLine::new(Arc::downgrade(&self.router), self.dialer.clone())
    }

    /// Sends a call on its way. Its reply comes to [`Work::finish`], at once where the node is known to be away or to
    /// fail, or too much waits for it.
    pub fn submit(&self, work: Box<dyn Work>) {
        self.send(Task::Bucket(work));
    }

    /// Says that the gateway `id` is alive. Returns who is, this one among them. May take as long as the store
    /// takes to answer or to be given up, about a second; no request waits for it.
    ///
    /// # Errors
    /// When there is no answer.
    pub fn heartbeat(&self, id: &str) -> impl Future<Output = Result<Alive, StoreError>> + Send + use<> {
        self.beat(id, false)
    }

    /// Says that the gateway `id` leaves. Returns who is alive without it.
    ///
    /// # Errors
    /// When there is no answer.
    pub fn leave(&self, id: &str) -> impl Future<Output = Result<Alive, StoreError>> + Send + use<> {
        self.beat(id, true)
    }

    fn beat(&self, id: &str, leaves: bool) -> impl Future<Output = Result<Alive, StoreError>> + Send + use<> {
        let (answer, alive) = oneshot::channel();
        self.send(Task::Beat(Beat { id: id.to_owned(), leaves, answer }));
        async { alive.await.unwrap_or_else(|_| Err(Kind::Lost.into())) }
    }

    fn send(&self, task: Task) {
        self.router.send(Job::new(task, self.timeout));
    }
}

impl Store for RedisStore {
    async fn call(&self, key: KeyRef<'_>, call: &Call<'_>) -> Result<Reply, StoreError> {
        let (answer, reply) = oneshot::channel();
        let message = Message {
            limit: call.limit,
            demand: SmallVec::from_slice(call.demand),
            prefetch: call.prefetch,
            report: call.report,
        };
        self.submit(Box::new(Plain { key: key.to_key(), message: Some(message), answer }));
        match tokio::time::timeout(self.timeout, reply).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(Kind::Lost.into()),
            Err(_) => Err(Kind::Timeout.into()),
        }
    }
}

/// A call that somebody waits for.
#[derive(Debug)]
struct Plain {
    key: Key,
    message: Option<Message>,
    answer: oneshot::Sender<Result<Reply, StoreError>>,
}

impl Work for Plain {
    fn key(&self) -> &Key {
        &self.key
    }

    fn begin(&mut self) -> Option<Message> {
        // What is granted to somebody who has left would be lost.
        self.message.take().filter(|_| !self.answer.is_closed())
    }

    fn finish(self: Box<Self>, result: Result<Reply, StoreError>) {
        let _ = self.answer.send(result);
    }
}
