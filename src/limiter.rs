//! Decides whether a request may pass: asks the store, and falls back to the rule's failure policy when the store does
//! not answer in time.

mod fallback;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use crate::bucket;
use crate::bucket::{Call, Demand, Limit, Reply, Report};
use crate::clock::Clock;
use crate::config;
use crate::key::KeyRef;
use crate::rules::FailurePolicy;
use crate::store::memory::MemoryStore;
use crate::store::redis::{self, Driver, Link};
use crate::store::{AnyStore, Store};
use fallback::Fallback;

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
}

/// What was decided, and by what.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// May it pass?
    pub outcome: Outcome,
    /// Who decided.
    pub source: Source,
    /// What the headers say; `None` where no bucket was consulted (`open`, `closed`).
    pub quota: Option<Quota>,
}

/// May the request pass?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It may.
    Allowed,
    /// It may not; `retry_after` is in whole seconds, rounded up, at least 1, and absent where the request costs more
    /// than the capacity and can never pass.
    Denied {
        /// Seconds until an otherwise idle key admits this request.
        retry_after: Option<u32>,
    },
    /// The store does not answer and the rule says `closed`: 503.
    Unavailable,
}

/// Who decided; the `source` label of `sekisho_decisions_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A leased token was at hand.
    Lease,
    /// The store was asked.
    Store,
    /// The key was denied a moment ago and cannot have refilled yet.
    Hold,
    /// This gateway's share, the store being away.
    Local,
    /// The rule lets everything pass while the store is away.
    Open,
    /// The rule lets nothing pass while the store is away.
    Closed,
}

/// The state of the bucket after a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Tokens: the capacity that applied.
    pub capacity: u32,
    /// Whole tokens left, 0 … capacity.
    pub remaining: u32,
    /// Seconds until the bucket is full again, rounded up.
    pub reset: u32,
}

/// How the store stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StoreState {
    /// Buckets live in this process.
    InProcess,
    /// The shared store has not been tried yet.
    Starting,
    /// Connected to the shared store.
    Connected,
    /// The shared store is away: each rule's failure policy applies.
    Away,
}

/// Decides over one store.
#[derive(Debug)]
pub struct Limiter {
    store: AnyStore,
    fallback: Fallback,
    clock: Clock,
    /// When a decision was last made without the store; 0 never.
    last_fallback: AtomicU64,
}

impl Limiter {
    /// A limiter over the store that the settings name, and the driver that has to run for it if that is a shared one.
    /// While a shared store is away, the limiter enforces one share in `instances` of each limit.
    ///
    /// # Errors
    /// When `store.url` is not one of Redis.
    pub fn new(
        store: &config::Store,
        settings: &config::Limiter,
        clock: Clock,
    ) -> Result<(Self, Option<Driver>), ::redis::RedisError> {
        let (store, driver) = match &store.url {
            None => (AnyStore::Memory(MemoryStore::new(settings.max_keys, clock.clone())), None),
            Some(url) => {
                let (store, driver) = redis::connect(store, &url.0)?;
                (AnyStore::Redis(store), Some(driver))
            }
        };
        let fallback = Fallback::new(settings.instances, settings.max_keys, clock.clone());
        Ok((Self { store, fallback, clock, last_fallback: AtomicU64::new(0) }, driver))
    }

    /// Takes the tokens of one request, or says why not. Never waits longer than `store.timeout`.
    pub async fn decide(&self, check: &Check<'_>) -> Decision {
        let demand = [Demand { cost: check.cost, count: 1 }];
        let call = Call { limit: check.limit, demand: &demand, prefetch: 0, report: Report::default() };
        match self.store.call(check.key(), &call).await {
            Ok(reply) => decision(check.limit, &reply, Source::Store),
            Err(_) => self.without_store(check),
        }
    }

    fn without_store(&self, check: &Check<'_>) -> Decision {
        self.last_fallback.store(self.clock.now().max(1), Ordering::Relaxed);
        match check.on_store_failure {
            FailurePolicy::Local => self.fallback.decide(check),
            FailurePolicy::Open => Decision { outcome: Outcome::Allowed, source: Source::Open, quota: None },
            FailurePolicy::Closed => Decision { outcome: Outcome::Unavailable, source: Source::Closed, quota: None },
        }
    }

    /// Whether a decision was made without the store in the last seconds.
    pub fn is_degraded(&self) -> bool {
        let last = self.last_fallback.load(Ordering::Relaxed);
        last > 0 && self.clock.now() < last + DEGRADED_FOR_MS
    }

    /// The store, for `/readyz` and the status page.
    pub fn store_state(&self) -> StoreState {
        match &self.store {
            AnyStore::Memory(_) => StoreState::InProcess,
            AnyStore::Redis(store) => match store.link() {
                Link::Starting => StoreState::Starting,
                Link::Connected => StoreState::Connected,
                Link::Away => StoreState::Away,
            },
        }
    }

    /// Keys tracked in this process, and how many were forgotten for want of room.
    pub fn keys(&self) -> (usize, u64) {
        let (mut tracked, mut forgotten) = self.fallback.keys();
        if let AnyStore::Memory(store) = &self.store {
            tracked += store.len();
            forgotten += store.forgotten();
        }
        (tracked, forgotten)
    }
}

impl<'a> Check<'a> {
    fn key(&self) -> KeyRef<'a> {
        KeyRef { tenant: self.tenant, route: self.route, shadow: self.shadow }
    }
}

/// Reads a bucket's reply to one request.
fn decision(limit: Limit, reply: &Reply, source: Source) -> Decision {
    let capacity = limit.capacity();
    let remaining = reply.tokens.min(capacity);
    let reset = f64::from(capacity - remaining) / limit.refill_per_second();
    let outcome = match reply.granted {
        0 => Outcome::Denied { retry_after: reply.wait_ms.map(whole_seconds) },
        _ => Outcome::Allowed,
    };
    Decision { outcome, source, quota: Some(Quota { capacity, remaining, reset: reset.ceil() as u32 }) }
}

/// Rounded up, at least 1: a client that waits this long is never early. (RFC 9110 §10.2.3 allows whole seconds only.)
fn whole_seconds(wait_ms: u64) -> u32 {
    u32::try_from(wait_ms.div_ceil(1000).max(1)).unwrap_or(u32::MAX)
}
