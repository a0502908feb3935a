//! A bounded map from bucket to what this process knows of it, sharded so that two threads seldom meet. Memory is
//! bounded whatever keys arrive: at the bound, a new key takes the place of one that can be forgotten at least loss.

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use parking_lot::Mutex;

use crate::key::{Key, KeyRef};

/// Two threads meet in a shard with a chance of one in this many at most …
const MOST_SHARDS: usize = 128;
/// … but a shard is not smaller than this, so that there is a choice of what to forget.
const SMALLEST_SHARD: usize = 256;

/// Entries looked at to find one to forget.
const CANDIDATES: usize = 16;

/// What is kept for a key.
pub trait Keep {
    /// What would be lost by forgetting this at `now` (milliseconds): 0 nothing; of two, the greater is kept.
    fn loss(&self, now: u64) -> f64;
}

/// The map.
#[derive(Debug)]
pub struct Ledger<V> {
    shards: Box<[Shard<V>]>,
    hasher: RandomState,
    len: AtomicUsize,
    forgotten: AtomicU64,
}

/// On cache lines of its own: threads that use neighbours must not meet.
#[derive(Debug)]
#[repr(align(128))]
struct Shard<V>(Mutex<Entries<V>>);

#[derive(Debug)]
struct Entries<V> {
    table: HashTable<(Key, V)>,
    bound: usize,
    hand: usize,
}

impl<V: Keep> Ledger<V> {
    /// An empty map of at most `max_keys` keys.
    pub fn new(max_keys: usize) -> Self {
        let (shards, bound) = split(max_keys);
        let shard = || Shard(Mutex::new(Entries { table: HashTable::new(), bound, hand: 0 }));
        Self {
            shards: (0..shards).map(|_| shard()).collect(),
            hasher: RandomState::default(),
            len: AtomicUsize::new(0),
            forgotten: AtomicU64::new(0),
        }
    }

    /// Runs `f` on what is kept for `key`, made by `new` when nothing is. `now` is in milliseconds. Only keys of the
    /// same shard wait for `f`.
    pub fn with<R>(&self, key: KeyRef<'_>, now: u64, new: impl FnOnce() -> V, f: impl FnOnce(&mut V) -> R) -> R {
        let hash = self.hash(key);
        let mut entries = self.shard(hash).0.lock();
        let Entries { table, bound, hand } = &mut *entries;
        if let Some((_, value)) = table.find_mut(hash, |(known, _)| known.as_ref() == key) {
            return f(value);
        }
        if table.len() < *bound {
            self.len.fetch_add(1, Ordering::Relaxed);
        } else if let Some(index) = least_loss(table, hand, now)
            && let Ok(entry) = table.get_bucket_entry(index)
        {
            let ((_, value), _) = entry.remove();
            if value.loss(now) > 0.0 {
                self.forgotten.fetch_add(1, Ordering::Relaxed);
            }
        }
        match table.entry(hash, |_| false, |(known, _)| self.hash(known.as_ref())) {
            Entry::Vacant(entry) => f(&mut entry.insert((key.to_key(), new())).into_mut().1),
            Entry::Occupied(entry) => f(&mut entry.into_mut().1),
        }
    }

    /// Runs `f` on what is kept for `key`, if anything is.
    pub fn find<R>(&self, key: KeyRef<'_>, f: impl FnOnce(&mut V) -> R) -> Option<R> {
        let hash = self.hash(key);
        let mut entries = self.shard(hash).0.lock();
        entries.table.find_mut(hash, |(known, _)| known.as_ref() == key).map(|(_, value)| f(value))
    }

    /// The key's hash, as long as this map lives.
    pub fn hash(&self, key: KeyRef<'_>) -> u64 {
        self.hasher.hash_one(key)
    }

    /// The table uses the lowest and the topmost bits of the hash; the shard is taken from between.
    fn shard(&self, hash: u64) -> &Shard<V> {
        &self.shards[(hash >> 32) as u16 as usize % self.shards.len()]
    }

    /// Keys tracked now.
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Whether no key is tracked.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many keys were forgotten though something was lost by it.
    pub fn forgotten(&self) -> u64 {
        self.forgotten.load(Ordering::Relaxed)
    }
}

/// How many shards, of how many keys each. A table doubles when it is 7/8 full, so shards are made to end just below that:
/// half of the memory would lie idle otherwise.
fn split(max_keys: usize) -> (usize, usize) {
    let mut full = SMALLEST_SHARD * 7 / 8;
    while max_keys.div_ceil(full) > MOST_SHARDS {
        full *= 2;
    }
    let shards = max_keys.div_ceil(full).max(1);
    (shards, (max_keys / shards).max(1))
}

/// The entry, of the next few under the hand, that is forgotten at least loss.
fn least_loss<V: Keep>(table: &HashTable<(Key, V)>, hand: &mut usize, now: u64) -> Option<usize> {
    let buckets = table.num_buckets();
    let (mut best, mut seen) = (None, 0);
    for _ in 0..buckets {
        *hand = (*hand + 1) % buckets;
        let Some((_, value)) = table.get_bucket(*hand) else { continue };
        let loss = value.loss(now);
        if best.is_none_or(|(least, _)| loss < least) {
            best = Some((loss, *hand));
        }
        seen += 1;
        if loss <= 0.0 || seen == CANDIDATES {
            break;
        }
    }
    best.map(|(_, index)| index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    struct Spent(f64);

    impl Keep for Spent {
        fn loss(&self, _now: u64) -> f64 {
            self.0
        }
    }

    fn touch(ledger: &Ledger<Spent>, tenant: &str, spent: f64) -> f64 {
        let route: Arc<str> = "r".into();
        ledger.with(
            KeyRef { tenant, route: &route, shadow: false, shard: None },
            0,
            || Spent(0.0),
            |kept| {
                let before = kept.0;
                kept.0 = spent;
                before
            },
        )
    }

    #[test]
    fn keeps_what_was_stored_for_each_key() {
        let ledger = Ledger::new(100_000);
        for i in 0..1000 {
            touch(&ledger, &format!("t{i}"), f64::from(i));
        }
        for i in 0..1000 {
            assert_eq!(touch(&ledger, &format!("t{i}"), 0.0), f64::from(i));
        }
        assert_eq!((ledger.len(), ledger.forgotten()), (1000, 0));
    }

    #[test]
    fn never_holds_more_keys_than_its_bound_and_nearly_as_many() {
        for max_keys in [1, 20, 1000, 10_000] {
            let ledger = Ledger::new(max_keys);
            for i in 0..60_000 {
                touch(&ledger, &format!("t{i}"), 0.5);
            }
            assert!((max_keys * 9 / 10..=max_keys).contains(&ledger.len()), "{} of {max_keys}", ledger.len());
            assert!(ledger.forgotten() > 0, "what was lost is counted");
        }
    }

    #[test]
    fn a_shard_at_its_bound_nearly_fills_its_table() {
        for max_keys in [1_000_000, 100_000, 3_000_000, 12_345] {
            let (shards, bound) = split(max_keys);
            let buckets = (bound * 8 / 7).next_power_of_two();
            assert!(shards * bound <= max_keys && shards <= MOST_SHARDS, "{shards} shards");
            assert!(shards * buckets <= max_keys * 8 / 7 * 3 / 2, "{max_keys}: {shards} shards of {buckets} buckets");
        }
    }

    #[test]
    fn an_exhausted_key_outlives_a_flood_of_new_ones() {
        let ledger = Ledger::new(6400);
        touch(&ledger, "exhausted", 1.0);
        for i in 0..200_000 {
            touch(&ledger, &format!("t{i}"), 0.05);
        }
        assert_eq!(touch(&ledger, "exhausted", 1.0), 1.0);
    }
}
