//! Decides whether a request may pass: spends a leased token, asks the store, or falls back to the rule's failure policy
//! when the store does not answer in time.

mod demand;
mod fallback;
mod lease;
mod leases;
mod membership;
mod plain;
mod shard;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::bucket::{Call, Demand, Limit, Reply, Report};
use crate::clock::Clock;
use crate::config;
use crate::decision::whole_seconds;
pub use crate::decision::{Decision, Outcome, Quota, Source};
use crate::key::KeyRef;
use crate::rule::FailurePolicy;
use crate::store::memory::MemoryStore;
use crate::store::redis::{self, Driver, Link, NodeStatus, RedisStore};
use fallback::{Fallback, Question};
use leases::{Answer, Leases};
use membership::Membership;
use plain::Plain;

/// A decision made without the store counts as degraded for this long, in milliseconds.
const DEGRADED_FOR_MS: u64 = 5_000;

/// One limit that a request has to pass.
#[derive(Clone, Copy, Debug)]
pub struct Check<'a> {
    /// Who asks; 1–64 characters.
    pub tenant: &'a str,
    /// For which route.
    pub route: &'a Arc<str>,
    /// Capacity and refill.
    pub limit: Limit,
    /// Tokens this request takes, ≥ 1.
    pub cost: u32,
    /// What to do when the store does not answer.
    pub on_store_failure: FailurePolicy,
    /// The rule is only counted; it has a bucket of its own.
    pub shadow: bool,
    /// Sub-buckets that the limit is split into, ≥ 1.
    pub shards: u8,
}

/// How the store stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StoreState {
    /// Buckets live in this process.
    InProcess,
    /// The shared store has not been tried yet.
    Starting,
    /// Connected to the shared store, which answers.
    Connected,
    /// A node of the shared store is away or fails: each rule's failure policy applies to its keys.
    Away,
}

/// Decides over one store.
#[derive(Debug)]
pub struct Limiter {
    buckets: Buckets,
    fallback: Arc<Fallback>,
    membership: Arc<Membership>,
    clock: Clock,
    /// The sub-bucket of sharded rules that this gateway asks first; gateways differ in it.
    first_shard: u8,
    /// When a decision was last made without the store; 0 never.
    last_fallback: AtomicU64,
}

/// Not decided yet: what is known so far of how the store answers.
#[must_use]
#[derive(Debug)]
pub struct Unknown(Option<Answer>);

/// Where the buckets are, and how they are asked.
#[derive(Debug)]
enum Buckets {
    /// In this process.
    Here(MemoryStore),
    /// In the shared store, one call a decision.
    Shared(Plain),
    /// In the shared store, with tokens leased ahead.
    Leased(Arc<Leases>),
}

/// What has to run for a shared store, on a runtime of its own.
#[derive(Debug)]
pub struct Upkeep {
    driver: Driver,
    leases: Option<Arc<Leases>>,
    membership: Arc<Membership>,
    store: Arc<RedisStore>,
}

impl Upkeep {
    /// Runs as long as the process.
    pub async fn run(self) {
        let leases = async {
            match self.leases {
                Some(leases) => leases.keep_up().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.driver.run() => {}
            () = leases => {}
            () = self.membership.beat(&self.store) => {}
        }
    }
}

impl Limiter {
    /// A limiter over the store that the settings name, and what has to run for it if that is a shared one.
    ///
    /// # Errors
    /// When the certificates for TLS to the shared store cannot be used.
    pub fn new(
        store: &config::Store,
        settings: &config::Limiter,
        clock: Clock,
    ) -> Result<(Self, Option<Upkeep>), redis::SetupError> {
        let instances = if store.redis.is_some() { settings.instances } else { 1 };
        let membership = Arc::new(Membership::new(instances, clock.clone()));
        let fallback = Arc::new(Fallback::new(Arc::clone(&membership), settings.max_keys));
        let (buckets, upkeep) = match &store.redis {
            None => (Buckets::Here(MemoryStore::new(settings.max_keys, clock.clone())), None),
            Some(server) => {
                let (shared, driver) = redis::connect(store, settings.breaker, server)?;
                let shared = Arc::new(shared);
                let leases = settings.prefetch.enabled.then(|| {
                    let (shared, fallback) = (Arc::clone(&shared), Arc::clone(&fallback));
                    Arc::new(Leases::new(shared, fallback, store.timeout, settings, clock.clone()))
                });
                let buckets = match &leases {
                    Some(leases) => Buckets::Leased(Arc::clone(leases)),
                    None => Buckets::Shared(Plain::new(
                        Arc::clone(&shared),
                        Arc::clone(&fallback),
                        store.timeout,
                        clock.clone(),
                    )),
                };
                let membership = Arc::clone(&membership);
                (buckets, Some(Upkeep { driver, leases, membership, store: shared }))
            }
        };
        let first_shard = rand::random();
        Ok((Self { buckets, fallback, membership, clock, first_shard, last_fallback: AtomicU64::new(0) }, upkeep))
    }

    /// Takes the tokens of one request, or says why not. Never waits longer than `store.timeout`.
    pub async fn decide(&self, check: &Check<'_>) -> Decision {
        match self.decide_at_once(check) {
            Ok(decision) => decision,
            Err(unknown) => self.find_out(check, unknown).await,
        }
    }

    /// The first half of [`decide`](Self::decide): what this process knows, without the cost of a future.
    ///
    /// # Errors
    /// The store has to be asked: go on with [`find_out`](Self::find_out).
    #[inline]
    pub fn decide_at_once(&self, check: &Check<'_>) -> Result<Decision, Unknown> {
        match (check.shards, &self.buckets) {
            // Splitting spreads a bucket over the nodes of a store; here it would only cost.
            (_, Buckets::Here(store)) => Ok(here(store, check.key(None), check.limit, check.cost)),
            (0 | 1, Buckets::Leased(leases)) => {
                leases.ask(check.key(None), check.limit, check.cost).map_err(|answer| Unknown(Some(answer)))
            }
            _ => Err(Unknown(None)),
        }
    }

    /// The second half: waits for the store, or does without.
    pub async fn find_out(&self, check: &Check<'_>, unknown: Unknown) -> Decision {
        let decision = match (unknown.0, &self.buckets) {
            (Some(answer), Buckets::Leased(leases)) => leases.answer(answer).await,
            _ if check.shards > 1 => self.ask_sharded(check, check.shards).await,
            _ => self.ask(check.key(None), check.limit, check.cost).await,
        };
        decision.unwrap_or_else(|| self.without_store(check))
    }

    /// Asks one bucket; `None` if the store gave no answer in time.
    async fn ask(&self, key: KeyRef<'_>, limit: Limit, cost: u32) -> Option<Decision> {
        match &self.buckets {
            Buckets::Here(store) => Some(here(store, key, limit, cost)),
            Buckets::Shared(plain) => plain.decide(key, limit, cost).await,
            Buckets::Leased(leases) => match leases.ask(key, limit, cost) {
                Ok(decision) => Some(decision),
                Err(answer) => leases.answer(answer).await,
            },
        }
    }

    /// Gives leased tokens back, so that nobody has to wait for their leases to end, and leaves the fleet. For the end of
    /// the process, when nothing more is to be decided; takes no longer than `longest` for each of the two.
    pub async fn close(&self, longest: Duration) {
        let store = match &self.buckets {
            Buckets::Here(_) => return,
            Buckets::Shared(plain) => plain.store(),
            Buckets::Leased(leases) => {
                leases.close(longest).await;
                leases.store()
            }
        };
        let _ = tokio::time::timeout(longest, self.membership.leave(store)).await;
    }

    fn without_store(&self, check: &Check<'_>) -> Decision {
        self.last_fallback.store(self.clock.now().max(1), Ordering::Relaxed);
        match check.on_store_failure {
            FailurePolicy::Local => self.by_share(check),
            FailurePolicy::Open => Decision { outcome: Outcome::Allowed, source: Source::Open, quota: None },
            FailurePolicy::Closed => Decision { outcome: Outcome::Unavailable, source: Source::Closed, quota: None },
        }
    }

    /// By this gateway's share, which goes on from what the store last said, and is told to the store when it answers.
    fn by_share(&self, check: &Check<'_>) -> Decision {
        let &Check { limit, cost, .. } = check;
        let shards = check.shards.max(1);
        let key = check.key((shards > 1).then(|| self.first_shard % shards));
        let (away_ms, expected) = match &self.buckets {
            Buckets::Here(_) => (0, None),
            Buckets::Shared(plain) => (plain.store().away_ms(key), None),
            Buckets::Leased(leases) => (leases.store().away_ms(key), leases.expected(key)),
        };
        self.fallback.decide(&Question { key, limit, shards, cost, expected, now: self.clock.now(), away_ms })
    }

    /// Gateways that share the limits, as far as is known; at least 1.
    pub fn gateways_live(&self) -> u32 {
        self.membership.place().live()
    }

    /// Whether a decision was made without the store in the last seconds, or would be now.
    pub fn is_degraded(&self) -> bool {
        if self.store_state() == StoreState::Away {
            return true;
        }
        let last = self.last_fallback.load(Ordering::Relaxed);
        last > 0 && self.clock.now() < last + DEGRADED_FOR_MS
    }

    /// The store, for `/readyz` and the status page.
    pub fn store_state(&self) -> StoreState {
        match self.shared().map(RedisStore::link) {
            None => StoreState::InProcess,
            Some(Link::Starting) => StoreState::Starting,
            Some(Link::Connected) => StoreState::Connected,
            Some(Link::Away) => StoreState::Away,
        }
    }

    /// Each node of the shared store, for the status page.
    pub fn store_nodes(&self) -> Vec<NodeStatus> {
        self.shared().map(RedisStore::nodes).unwrap_or_default()
    }

    /// The shared store, if there is one.
    pub fn shared(&self) -> Option<&RedisStore> {
        match &self.buckets {
            Buckets::Here(_) => None,
            Buckets::Shared(plain) => Some(plain.store()),
            Buckets::Leased(leases) => Some(leases.store()),
        }
    }

    /// Keys tracked in this process, and how many were forgotten for want of room.
    pub fn keys(&self) -> (usize, u64) {
        let (tracked, forgotten) = match &self.buckets {
            Buckets::Here(store) => (store.len(), store.forgotten()),
            Buckets::Shared(_) => (0, 0),
            Buckets::Leased(leases) => leases.keys(),
        };
        let fallback = self.fallback.keys();
        (tracked + fallback.0, forgotten + fallback.1)
    }

    /// Leased tokens that this gateway may spend without asking.
    pub fn leased_tokens(&self) -> u64 {
        match &self.buckets {
            Buckets::Leased(leases) => leases.tokens(),
            Buckets::Here(_) | Buckets::Shared(_) => 0,
        }
    }
}

impl<'a> Check<'a> {
    fn key(&self, shard: Option<u8>) -> KeyRef<'a> {
        KeyRef { tenant: self.tenant, route: self.route, shadow: self.shadow, shard }
    }
}

/// Asks a bucket of this process.
#[inline]
fn here(store: &MemoryStore, key: KeyRef<'_>, limit: Limit, cost: u32) -> Decision {
    let demand = [Demand { cost, count: 1 }];
    let call = Call { limit, demand: &demand, prefetch: 0, report: Report::default() };
    decision(limit, &store.call_now(key, &call), Source::Store)
}

/// Reads a bucket's reply to one request.
fn decision(limit: Limit, reply: &Reply, source: Source) -> Decision {
    let outcome = match reply.granted {
        0 => Outcome::Denied { retry_after: reply.wait_ms.map(whole_seconds) },
        _ => Outcome::Allowed,
    };
    Decision { outcome, source, quota: Some(Quota::new(limit, reply.tokens)) }
}
