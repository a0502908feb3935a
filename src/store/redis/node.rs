//! One node as requests see it: its queue, and whether calls to it are let through.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};

use super::QUEUE;
use super::dial::Dialer;
use super::driver::NodeDriver;
use super::eviction::Eviction;
use super::job::Job;
use super::router::Router;
use super::slots::slot;
use crate::clock::Clock;
use crate::config::{self, Address};
use crate::store::Kind;
use crate::store::away::AwayClock;
use crate::store::breaker::State;

/// Where calls to one node are handed over.
#[derive(Debug)]
pub(super) struct Node {
    queue: mpsc::Sender<Job>,
    health: Arc<Health>,
    prefix: String,
}

/// A node as it stands, for operators.
#[derive(Clone, Debug, serde::Serialize)]
pub struct NodeStatus {
    /// Its place in the configuration; of nodes that are not there the first free number behind those.
    pub index: usize,
    /// Host and port, once known.
    pub address: Option<String>,
    /// The connection.
    pub link: Link,
    /// The circuit breaker.
    pub breaker: State,
    /// Why the breaker is not closed.
    pub reason: Option<String>,
    /// What it does when its memory is full, once known: `maxmemory-policy`.
    pub maxmemory_policy: Option<String>,
    /// Whether it may evict buckets; `None` where it does not say.
    pub can_evict: Option<bool>,
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
    /// Where it is, once that is known.
    address: watch::Sender<Option<Address>>,
    /// A [`State`]; all that a call looks at.
    breaker: AtomicU8,
    /// A [`Link`].
    link: AtomicU8,
    reason: Mutex<Option<String>>,
    /// Runs while the breaker is not closed.
    away: AwayClock,
    eviction: Mutex<Option<Eviction>>,
    probe_key: Mutex<ProbeKey>,
}

/// A key that a node holds.
#[derive(Debug)]
struct ProbeKey {
    name: String,
    /// Its slot, where that matters.
    slot: Option<u16>,
}

/// Makes nodes of one kind.
#[derive(Debug)]
pub(super) struct NodeFactory {
    dialer: Dialer,
    settings: config::Store,
    breaker: config::Breaker,
    router: Weak<Router>,
}

impl NodeFactory {
    pub(super) fn new(
        dialer: Dialer,
        settings: &config::Store,
        breaker: config::Breaker,
        router: Weak<Router>,
    ) -> Self {
        Self { dialer, settings: settings.clone(), breaker, router }
    }

    /// A node and its driver.
    pub(super) fn node(&self, index: usize, address: Option<Address>) -> (Node, NodeDriver) {
        let probe_key = ProbeKey { name: format!("{}:probe", self.settings.key_prefix), slot: None };
        let health = Arc::new(Health {
            index,
            address: watch::Sender::new(address),
            breaker: AtomicU8::new(State::Closed as u8),
            link: AtomicU8::new(Link::Starting as u8),
            reason: Mutex::new(None),
            away: AwayClock::new(Clock::monotonic()),
            eviction: Mutex::new(None),
            probe_key: Mutex::new(probe_key),
        });
        let (queue, jobs) = mpsc::channel(QUEUE);
        let (dialer, router) = (self.dialer.clone(), self.router.clone());
        let driver = NodeDriver::new(dialer, &self.settings, self.breaker, jobs, Arc::clone(&health), router);
        (Node { queue, health, prefix: self.settings.key_prefix.clone() }, driver)
    }
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
        let eviction = self.health.eviction.lock().clone();
        NodeStatus {
            index: self.index(),
            address: self.address().map(|address| address.to_string()),
            link: self.health.link(),
            breaker: self.health.breaker(),
            reason: self.health.reason.lock().clone(),
            can_evict: eviction.as_ref().map(Eviction::can_evict),
            maxmemory_policy: eviction.map(|eviction| eviction.policy),
        }
    }

    pub(super) fn index(&self) -> usize {
        self.health.index
    }

    pub(super) fn address(&self) -> Option<Address> {
        self.health.address()
    }

    /// Its address, for people.
    pub(super) fn name(&self) -> String {
        self.health.name()
    }

    /// It is there from now on: the driver connects anew if that is somewhere else.
    pub(super) fn move_to(&self, address: Address) {
        let address = Some(address);
        if self.health.address.send_if_modified(|before| std::mem::replace(before, address.clone()) != address) {
            tracing::info!(node = self.index(), address = self.name(), "the master of the store");
        }
    }

    /// Its probes write to this slot, which it holds.
    pub(super) fn probe_slot(&self, held: u16) {
        let mut probe_key = self.health.probe_key.lock();
        if probe_key.slot != Some(held) {
            let mut names = (0_u32..).map(|n| format!("{}:probe:{{{n}}}", self.prefix));
            if let Some(name) = names.find(|name| slot(name) == held) {
                *probe_key = ProbeKey { name, slot: Some(held) };
            }
        }
    }
}

impl Health {
    pub(super) fn address(&self) -> Option<Address> {
        self.address.borrow().clone()
    }

    /// Its address, for people.
    pub(super) fn name(&self) -> String {
        self.address().map_or_else(|| "unknown".to_owned(), |address| address.to_string())
    }

    /// Follows where it is.
    pub(super) fn watch_address(&self) -> watch::Receiver<Option<Address>> {
        self.address.subscribe()
    }

    /// A key that it holds.
    pub(super) fn probe_key(&self) -> String {
        self.probe_key.lock().name.clone()
    }

    /// Takes note of what it does when its memory is full, and warns once where that costs buckets.
    pub(super) fn set_eviction(&self, eviction: Option<Eviction>) {
        let before = std::mem::replace(&mut *self.eviction.lock(), eviction.clone());
        if let Some(Eviction { policy, max_memory }) = eviction.filter(Eviction::can_evict)
            && !before.is_some_and(|before| before.can_evict())
        {
            let (node, address) = (self.index, self.name());
            tracing::warn!(
                node,
                address,
                "the store may evict buckets, which then start full again: maxmemory is {max_memory}, maxmemory-policy \
                 {policy}; set it to noeviction"
            );
        }
    }

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
        let (node, address) = (self.index, self.name());
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
