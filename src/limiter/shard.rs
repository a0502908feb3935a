//! Sharded rules: one limit split into sub-buckets on different nodes of the store. The sum never exceeds the whole; a
//! request may be denied although a sub-bucket that was not asked had tokens.

use crate::bucket::Limit;
use crate::decision::{Decision, Outcome, Quota};
use crate::limiter::{Buckets, Check, Limiter};

impl Limiter {
    /// Asks this gateway's own sub-bucket, and before it denies one other: the one that was last seen fullest.
    pub(super) async fn ask_sharded(&self, check: &Check<'_>, shards: u8) -> Option<Decision> {
        let own = self.first_shard % shards;
        let mut decision = self.ask(check.key(Some(own)), check.limit.part(shards, own), check.cost).await?;
        if let Outcome::Denied { retry_after } = decision.outcome
            && let Some(other) = self.fullest(check, shards, own)
            && let Some(second) = self.ask(check.key(Some(other)), check.limit.part(shards, other), check.cost).await
        {
            decision = Decision { outcome: sooner(second.outcome, retry_after), ..second };
        }
        let quota = decision.quota.map(|quota| of_the_whole(quota, check.limit, shards));
        Some(Decision { quota, ..decision })
    }

    /// The sub-bucket other than `own` that was last seen fullest (one never asked counts as full); `None` if all are
    /// known to be empty.
    fn fullest(&self, check: &Check<'_>, shards: u8, own: u8) -> Option<u8> {
        let others = (1..shards).map(|step| (own + step) % shards);
        let Buckets::Leased(leases) = &self.buckets else {
            return Some((own + 1 + rand::random_range(0..shards - 1)) % shards);
        };
        let seen = |shard: u8| {
            let part = check.limit.part(shards, shard);
            leases.glimpse(check.key(Some(shard))).unwrap_or_else(|| part.capacity())
        };
        others
            .map(|shard| (seen(shard), shard))
            .max()
            .filter(|&(tokens, _)| tokens >= check.cost)
            .map(|(_, shard)| shard)
    }
}

/// The second outcome; if both denied, the shorter wait.
fn sooner(second: Outcome, first_wait: Option<u32>) -> Outcome {
    match second {
        Outcome::Denied { retry_after } => {
            Outcome::Denied { retry_after: retry_after.into_iter().chain(first_wait).min() }
        }
        other => other,
    }
}

/// An estimate for the whole limit from one sub-bucket: as if all were like it.
fn of_the_whole(part: Quota, limit: Limit, shards: u8) -> Quota {
    Quota::new(limit, part.remaining.saturating_mul(u32::from(shards)))
}
