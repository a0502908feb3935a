//! This gateway's share of a limit, while the shared store is away.

use crate::bucket::{Call, Demand, Report};
use crate::clock::Clock;
use crate::decision::{Decision, Source};
use crate::limiter::{Check, decision};
use crate::store::memory::MemoryStore;

/// Buckets of this gateway's share.
#[derive(Debug)]
pub(super) struct Fallback {
    buckets: MemoryStore,
    instances: u32,
}

impl Fallback {
    pub(super) fn new(instances: u32, max_keys: usize, clock: Clock) -> Self {
        Self { buckets: MemoryStore::new(max_keys, clock), instances }
    }

    /// Decides by the share: one in `instances` of capacity and refill. The capacity is never less than what one request
    /// costs: shares that admit nobody, on every gateway, would deny all of a small limit. So all gateways together
    /// admit the limit's rate, after a first burst of at most `instances` requests.
    ///
    /// `news` is what the store reported for the bucket since the last decision here: the share then starts with its part
    /// of those tokens. A store that is late now and then does not give an exhausted key a second bucket.
    pub(super) fn decide(&self, check: &Check<'_>, news: Option<u32>) -> Decision {
        let limit = check.limit.share(self.instances, check.cost);
        if let Some(tokens) = news {
            self.buckets.lower(check.key(None), limit, f64::from(tokens) / f64::from(self.instances));
        }
        let demand = [Demand { cost: check.cost, count: 1 }];
        let call = Call { limit, demand: &demand, prefetch: 0, report: Report::default() };
        let reply = self.buckets.call_now(check.key(None), &call);
        decision(limit, &reply, Source::Local)
    }

    pub(super) fn keys(&self) -> (usize, u64) {
        (self.buckets.len(), self.buckets.forgotten())
    }
}
