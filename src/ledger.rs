//! A bounded map from bucket to what this process knows of it, sharded so that two threads seldom meet. Memory is
//! bounded whatever keys arrive: at the bound, a new key takes the place of one that can be forgotten at least loss.

mod index;
mod slots;
#[cfg(test)]
mod tests;

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use foldhash::fast::RandomState;
use parking_lot::{Mutex, MutexGuard};

use crate::key::{Key, KeyRef};
use index::Index;
use slots::Slots;

/// Two threads meet in a shard with a chance of one in this many at most …
const MOST_SHARDS: usize = 128;
/// … but a shard is not smaller than this, so that there is a choice of what to forget.
const SMALLEST_SHARD: usize = Index::room(256);

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
    /// The most keys that a shard holds.
    bound: usize,
    hasher: RandomState,
    len: AtomicUsize,
    forgotten: AtomicU64,
}

/// On cache lines of its own: threads that use neighbours must not meet. Lock and all that a look-up reads of the shard
/// itself are one line, which has to come from another processor if that used the shard last.
#[derive(Debug)]
#[repr(align(128))]
struct Shard<V>(Mutex<Entries<V>>);

/// The index moves when it grows, the entries do not.
#[derive(Debug)]
struct Entries<V> {
    index: Index,
    slots: Slots<Entry<V>>,
}

/// At the start of a cache line: it would lie on one more.
#[derive(Debug)]
#[repr(align(64))]
struct Entry<V> {
    key: Key,
    value: V,
}

impl<V: Keep> Ledger<V> {
    /// An empty map of at most `max_keys` keys.
    pub fn new(max_keys: usize) -> Self {
        let (shards, bound) = split(max_keys);
        let empty = || Shard(Mutex::new(Entries { index: Index::default(), slots: Slots::new() }));
        Self {
            shards: (0..shards).map(|_| empty()).collect(),
            bound,
            hasher: RandomState::default(),
            len: AtomicUsize::new(0),
            forgotten: AtomicU64::new(0),
        }
    }

    /// Runs `f` on what is kept for `key`, made by `new` when nothing is. `now` is in milliseconds. Only keys of the
    /// same shard wait for `f`.
    #[inline(always)] // Else key and result are copied by way of memory, which takes as long as the look-up.
    pub fn with<R>(&self, key: KeyRef<'_>, now: u64, new: impl FnOnce() -> V, f: impl FnOnce(&mut V) -> R) -> R {
        let hash = self.hash(key);
        let mut entries = self.entries(hash);
        let slot = match entries.find(hash, key) {
            Some(slot) => slot,
            None => self.add(&mut entries, hash, Entry { key: key.to_key(), value: new() }, now),
        };
        f(&mut entries.slots[slot].value)
    }

    /// Runs `f` on what is kept for `key`, if anything is.
    pub fn find<R>(&self, key: KeyRef<'_>, f: impl FnOnce(&mut V) -> R) -> Option<R> {
        let hash = self.hash(key);
        let mut entries = self.entries(hash);
        let slot = entries.find(hash, key)?;
        Some(f(&mut entries.slots[slot].value))
    }

    /// The key's hash, as long as this map lives.
    pub fn hash(&self, key: KeyRef<'_>) -> u64 {
        self.hasher.hash_one(key)
    }

    /// The shard is taken from the upper half of the hash, the index has the lower.
    fn entries(&self, hash: u64) -> MutexGuard<'_, Entries<V>> {
        self.shards[scaled(hash, self.shards.len())].0.lock()
    }

    /// Puts an entry where there is room, or in the place of the one that is forgotten at least loss.
    #[cold]
    fn add(&self, entries: &mut Entries<V>, hash: u64, entry: Entry<V>, now: u64) -> u32 {
        let Entries { index, slots } = entries;
        let slot = if slots.len() < self.bound {
            self.len.fetch_add(1, Ordering::Relaxed);
            slots.push(entry)
        } else {
            let slot = least_loss(slots, hash, now);
            let Entry { key, value } = std::mem::replace(&mut slots[slot], entry);
            if value.loss(now) > 0.0 {
                self.forgotten.fetch_add(1, Ordering::Relaxed);
            }
            index.remove(self.hash(key.as_ref()) as u32, slot);
            slot
        };
        index.insert(hash as u32, slot);
        slot
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

impl<V> Entries<V> {
    fn find(&self, hash: u64, key: KeyRef<'_>) -> Option<u32> {
        self.index.find(hash as u32, |slot| self.slots[slot].key.as_ref() == key)
    }
}

/// How many shards, of how many keys each. An index doubles when it is full, so shards are made to end just below that.
fn split(max_keys: usize) -> (usize, usize) {
    let mut full = SMALLEST_SHARD;
    while max_keys.div_ceil(full) > MOST_SHARDS {
        full *= 2;
    }
    let shards = max_keys.div_ceil(full).max(1);
    (shards, (max_keys / shards).max(1))
}

/// Of a few entries, side by side at a place that the new key's hash picks, the one that is forgotten at least loss.
fn least_loss<V: Keep>(slots: &Slots<Entry<V>>, hash: u64, now: u64) -> u32 {
    let first = scaled(hash << 16, slots.len());
    let (mut best, mut least) = (first as u32, f64::INFINITY);
    for step in 0..CANDIDATES.min(slots.len()) {
        let slot = ((first + step) % slots.len()) as u32;
        let loss = slots[slot].value.loss(now);
        if loss < least {
            (best, least) = (slot, loss);
        }
        if loss <= 0.0 {
            break;
        }
    }
    best
}

/// A number below `below` from the topmost 32 bits of a hash, without a division.
fn scaled(hash: u64, below: usize) -> usize {
    (((hash >> 32) * below as u64) >> 32) as usize
}
