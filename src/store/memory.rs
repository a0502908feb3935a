//! Buckets in this process, for one gateway alone.

use crate::bucket::{Bucket, Call, Limit, Reply};
use crate::clock::Clock;
use crate::key::KeyRef;
use crate::ledger::{Keep, Ledger};
use crate::store::{Store, StoreError};

/// A bounded number of buckets. When a new one finds no room, the fullest of a few others is forgotten, and starts full
/// when it is asked for again.
#[derive(Debug)]
pub struct MemoryStore {
    ledger: Ledger<Kept>,
    clock: Clock,
}

#[derive(Debug)]
struct Kept {
    bucket: Bucket,
    limit: Limit,
}

impl Keep for Kept {
    fn loss(&self, now: u64) -> f64 {
        self.bucket.used_share(now, self.limit)
    }
}

impl MemoryStore {
    /// Room for `max_keys` buckets.
    pub fn new(max_keys: usize, clock: Clock) -> Self {
        Self { ledger: Ledger::new(max_keys), clock }
    }

    /// Books `call` at once.
    #[inline]
    pub fn call_now(&self, key: KeyRef<'_>, call: &Call<'_>) -> Reply {
        let now = self.clock.now();
        let new = || Kept { bucket: Bucket::full(call.limit, now), limit: call.limit };
        self.ledger.with(key, now, new, |kept| {
            kept.limit = call.limit;
            kept.bucket.call(now, call)
        })
    }

    /// Buckets held now.
    pub fn len(&self) -> usize {
        self.ledger.len()
    }

    /// Whether no bucket is held.
    pub fn is_empty(&self) -> bool {
        self.ledger.is_empty()
    }

    /// Buckets that were forgotten for want of room before they were full again.
    pub fn forgotten(&self) -> u64 {
        self.ledger.forgotten()
    }
}

impl Store for MemoryStore {
    async fn call(&self, key: KeyRef<'_>, call: &Call<'_>) -> Result<Reply, StoreError> {
        Ok(self.call_now(key, call))
    }
}
