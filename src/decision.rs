//! What was decided about a request, as a value.

use crate::bucket::{Limit, rounded_up};

/// What was decided, and by what.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq)]
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
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quota {
    /// The limit that applied.
    pub limit: Limit,
    /// Whole tokens left, 0 … capacity.
    pub remaining: u32,
}

impl Quota {
    /// Of a bucket with `left` tokens, which may be a little more than it holds.
    pub fn new(limit: Limit, left: u32) -> Self {
        Self { limit, remaining: left.min(limit.capacity()) }
    }

    /// Seconds until the bucket is full again, rounded up.
    pub fn reset(&self) -> u64 {
        rounded_up(f64::from(self.limit.capacity() - self.remaining) / self.limit.refill_per_second())
    }
}

/// Rounded up, at least 1: a client that waits this long is never early. (RFC 9110 §10.2.3 allows whole seconds only.)
pub fn whole_seconds(wait_ms: u64) -> u32 {
    u32::try_from(wait_ms.div_ceil(1000).max(1)).unwrap_or(u32::MAX)
}
