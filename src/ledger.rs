//! A bounded map from bucket to what this process knows of it, sharded so that two threads seldom meet. Memory is
//! bounded whatever keys arrive: at the bound, a new key takes the place of one that can be forgotten at least loss.

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use parking_lot::Mutex;

use crate::key::{Key, KeyRef};

const SHARDS: usize = 64;

/// Entries looked at to find one to forget.
const CANDIDATES: usize = 16;

/// What is kept for a key.
pub trait Keep {
    /// What would be lost by forgetting this at `now` (milliseconds): 0 nothing, 1 all.
    fn loss(&self, now: u64) -> f64;
}

/// The map.
#[derive(Debug)]
pub struct Ledger<V> {
    shards: Box<[Mutex<Shard<V>>]>,
    hasher: RandomState,
    len: AtomicUsize,
    forgotten: AtomicU64,
}

#[derive(Debug)]
struct Shard<V> {
    index: HashTable<u32>,
    slots: Vec<(Key, V)>,
    bound: usize,
    hand: usize,
}

impl<V: Keep> Ledger<V> {
    /// An empty map of at most `max_keys` keys (at least one a shard).
    pub fn new(max_keys: usize) -> Self {
        let bound = (max_keys / SHARDS).clamp(1, u32::MAX as usize);
        let shard = || Mutex::new(Shard { index: HashTable::new(), slots: Vec::new(), bound, hand: 0 });
        Self {
            shards: (0..SHARDS).map(|_| shard()).collect(),
            hasher: RandomState::default(),
            len: AtomicUsize::new(0),
            forgotten: AtomicU64::new(0),
        }
    }

    /// Runs `f` on what is kept for `key`, made by `new` when nothing is. `now` is in milliseconds. Only keys of the
    /// same shard wait for `f`.
    pub fn with<R>(&self, key: KeyRef<'_>, now: u64, new: impl FnOnce() -> V, f: impl FnOnce(&mut V) -> R) -> R {
        let hash = self.hash(key);
        let mut shard = self.shard(hash).lock();
        let Shard { index, slots, bound, hand } = &mut *shard;
        if let Some(&slot) = index.find(hash, |&slot| slots[slot as usize].0.as_ref() == key) {
            return f(&mut slots[slot as usize].1);
        }
        let slot = if slots.len() < *bound {
            slots.push((key.to_key(), new()));
            self.len.fetch_add(1, Ordering::Relaxed);
            slots.len() - 1
        } else {
            let slot = least_loss(slots, hand, now);
            let (old, value) = &slots[slot];
            if value.loss(now) > 0.0 {
                self.forgotten.fetch_add(1, Ordering::Relaxed);
            }
            let old = self.hasher.hash_one(old.as_ref());
            if let Ok(entry) = index.find_entry(old, |&other| other as usize == slot) {
                entry.remove();
            }
            slots[slot] = (key.to_key(), new());
            slot
        };
        index.insert_unique(hash, slot as u32, |&slot| self.hasher.hash_one(slots[slot as usize].0.as_ref()));
        f(&mut slots[slot].1)
    }

    /// Runs `f` on what is kept for `key`, if anything is.
    pub fn find<R>(&self, key: KeyRef<'_>, f: impl FnOnce(&mut V) -> R) -> Option<R> {
        let hash = self.hash(key);
        let mut shard = self.shard(hash).lock();
        let Shard { index, slots, .. } = &mut *shard;
        let slot = *index.find(hash, |&slot| slots[slot as usize].0.as_ref() == key)?;
        Some(f(&mut slots[slot as usize].1))
    }

    /// The key's hash, as long as this map lives.
    pub fn hash(&self, key: KeyRef<'_>) -> u64 {
        self.hasher.hash_one(key)
    }

    /// The table uses the lowest and the topmost bits of the hash; the shard is taken from between.
    fn shard(&self, hash: u64) -> &Mutex<Shard<V>> {
        &self.shards[(hash >> 40) as usize % SHARDS]
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

/// The slot, of the next few under the hand, that is forgotten at least loss.
fn least_loss<V: Keep>(slots: &[(Key, V)], hand: &mut usize, now: u64) -> usize {
    let mut best = (f64::INFINITY, *hand);
    for _ in 0..CANDIDATES.min(slots.len()) {
        *hand = (*hand + 1) % slots.len();
        let loss = slots[*hand].1.loss(now);
        if loss < best.0 {
            best = (loss, *hand);
        }
        if loss <= 0.0 {
            break;
        }
    }
    best.1
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
    fn never_holds_more_keys_than_its_bound() {
        let ledger = Ledger::new(1024);
        for i in 0..100_000 {
            touch(&ledger, &format!("t{i}"), 0.5);
        }
        assert_eq!(ledger.len(), 1024);
        assert!(ledger.forgotten() > 0, "what was lost is counted");
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
