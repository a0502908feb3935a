//! One node as requests see it: its queue, and whether calls to it are let through.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use parking_lot::Mutex;
use redis::{ConnectionAddr, RedisResult};
use tokio::sync::mpsc;

use super::driver::NodeDriver;
use super::job::Job;
use super::{QUEUE, connection};
use crate::clock::Clock;
use crate::config;
use crate::metrics;
use crate::store::Kind;
use crate::store::away::AwayClock;
use crate::store::breaker::State;

/// Where calls to one node are handed over.
#[derive(Debug)]
pub(super) struct Node {
    queue: mpsc::Sender<Job>,
    health: Arc<Health>,
}

/// A node as it stands, for operators.
#[derive(Clone, Debug, serde::Serialize)]
pub struct NodeStatus {
    /// Its place in the configuration.
    pub index: usize,
    /// Host and port.
    pub address: String,
    /// The connection.
    pub link: Link,
    /// The circuit breaker.
    pub breaker: State,
    /// Why the breaker is not closed.
    pub reason: Option<String>,
}

/// The connection to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Link {
    /// Not tried yet.
    Starting,
    /// There is one.
    Connected,
    /// There is none.
    Away,
}

/// What a node's driver knows of it and everybody reads.
#[derive(Debug)]
pub(super) struct Health {
    index: usize,
    address: String,
    /// A [`State`]; all that a call looks at.
    breaker: AtomicU8,
    /// A [`Link`].
    link: AtomicU8,
    reason: Mutex<Option<String>>,
    /// Runs while the breaker is not closed.
    away: AwayClock,
}

/// A node and its driver.
///
/// # Errors
/// When the URL is not one of Redis.
pub(super) fn new(
    index: usize,
    url: &str,
    settings: &config::Store,
    breaker: config::Breaker,
) -> RedisResult<(Node, NodeDriver)> {
    let client = connection::client(url)?;
    let address = match client.get_connection_info().addr() {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => format!("{host}:{port}"),
        ConnectionAddr::Unix(path) => path.display().to_string(),
        _ => String::new(),
    };
    let health = Arc::new(Health {
        index,
        address,
        breaker: AtomicU8::new(State::Closed as u8),
        link: AtomicU8::new(Link::Starting as u8),
        reason: Mutex::new(None),
        away: AwayClock::new(Clock::monotonic()),
    });
    metrics::breaker_state(index, State::Closed);
    let (queue, jobs) = mpsc::channel(QUEUE);
    let driver = NodeDriver::new(client, settings, breaker, jobs, Arc::clone(&health));
    Ok((Node { queue, health }, driver))
}

impl Node {
    /// Whether calls are handed to the driver.
    pub(super) fn lets_through(&self) -> bool {
        self.health.breaker() == State::Closed
    }

    /// Hands a job to the driver, or answers it at once where nothing is let through.
    pub(super) fn send(&self, job: Job) {
        if !self.lets_through() {
            return job.finish(Err(Kind::Away.into()));
        }
        match self.queue.try_send(job) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(job)) => job.finish(Err(Kind::Overloaded.into())),
            Err(mpsc::error::TrySendError::Closed(job)) => job.finish(Err(Kind::Away.into())),
        }
    }

    /// The connection; one that no call is let through to is none.
    pub(super) fn link(&self) -> Link {
        match (self.health.link(), self.health.breaker()) {
            (Link::Connected, State::HalfOpen | State::Open) => Link::Away,
            (link, State::Closed | State::HalfOpen | State::Open) => link,
        }
    }

    /// Milliseconds that calls to it were not let through, in total.
    pub(super) fn away_ms(&self) -> u64 {
        self.health.away.total_ms()
    }

    pub(super) fn status(&self) -> NodeStatus {
        let Health { index, address, reason, .. } = &*self.health;
        NodeStatus {
            index: *index,
            address: address.clone(),
            link: self.health.link(),
            breaker: self.health.breaker(),
            reason: reason.lock().clone(),
        }
    }
}

impl Health {
    fn breaker(&self) -> State {
        [State::Closed, State::HalfOpen, State::Open][usize::from(self.breaker.load(Ordering::Relaxed))]
    }

    fn link(&self) -> Link {
        [Link::Starting, Link::Connected, Link::Away][usize::from(self.link.load(Ordering::Relaxed))]
    }

    pub(super) fn set_link(&self, link: Link) {
        self.link.store(link as u8, Ordering::Relaxed);
    }

    /// Says what the breaker does now. `why` it is not closed; nothing new without it.
    pub(super) fn set_breaker(&self, state: State, why: Option<String>) {
        let before = self.breaker();
        self.breaker.store(state as u8, Ordering::Relaxed);
        self.away.set(state != State::Closed);
        metrics::breaker_state(self.index, state);
        let (node, address) = (self.index, &self.address);
        match (before, state) {
            (State::Closed, State::Closed) => {}
            (_, State::Closed) => tracing::info!(node, address, "the store answers again"),
            (State::Closed, _) => {
                let why = why.as_deref().unwrap_or_default();
                tracing::warn!(node, address, "the store is away, each rule's on_store_failure applies: {why}");
            }
            _ => tracing::debug!(node, address, ?state, why, "the store is still away"),
        }
        match state {
            State::Closed => *self.reason.lock() = None,
            _ if why.is_some() => *self.reason.lock() = why,
            _ => {}
        }
    }
}
