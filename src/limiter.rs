//! Decides whether a request may pass: asks the store, and falls back to the rule's failure policy when the store does
//! not answer in time.

pub mod bucket;

use std::sync::Arc;

use crate::limiter::bucket::Limit;
use crate::rules::FailurePolicy;

/// One limit that a request has to pass.
#[derive(Clone, Copy, Debug)]
pub struct Check<'a> {
    /// Who asks; 1–64 bytes.
    pub tenant: &'a str,
    /// For which route.
    pub route: &'a Arc<str>,
    /// Capacity and refill.
    pub limit: Limit,
    /// Tokens this request takes, ≥ 1.
    pub cost: u32,
    /// What to do when the store does not answer.
    pub on_store_failure: FailurePolicy,
    /// By a rule that is only counted: it has a bucket of its own, beside the enforcing rule's.
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

/// Decides over one store.
#[derive(Debug)]
pub struct Limiter {}

impl Limiter {
    /// Takes the tokens of one request, or says why not. Never waits longer than `store.timeout`.
    pub async fn decide(&self, check: &Check<'_>) -> Decision {
        let capacity = check.limit.capacity();
        Decision {
            outcome: Outcome::Allowed,
            source: Source::Store,
            quota: Some(Quota { capacity, remaining: capacity, reset: 0 }),
        }
    }
}
