//! The heaviest of very many, in bounded memory: Space-Saving (Metwally, Agrawal, El Abbadi 2005), with the least
//! removed many at a time, as in "A High-Performance Algorithm for Identifying Frequent Items in Data Streams"
//! (Anderson et al. 2017).
//!
//! After `n` events a sketch that keeps `k` counters shows every key that had more than `n / k` of them, and no count is
//! too high by more than `n / k`; none is too low. While there are fewer than `2 k` keys, every count is exact.

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use std::hash::Hash;

/// How often something came, at most; it came at least `count - error` times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Estimate {
    pub(super) count: u64,
    pub(super) error: u64,
}

/// Counters of the heaviest.
#[derive(Debug)]
pub(super) struct Sketch<K> {
    counters: HashMap<K, Estimate, RandomState>,
    /// Kept when there are twice as many.
    keep: usize,
    /// What a key that has no counter may have had.
    floor: u64,
}

impl<K: Hash + Eq> Sketch<K> {
    pub(super) fn new(keep: usize) -> Self {
        Self { counters: HashMap::default(), keep: keep.max(1), floor: 0 }
    }

    /// Counts `events` more of a key.
    pub(super) fn add(&mut self, key: K, events: u64) {
        let floor = self.floor;
        self.counters.entry(key).or_insert(Estimate { count: floor, error: floor }).count += events;
        if self.counters.len() >= 2 * self.keep {
            self.prune();
        }
    }

    /// What is known of a key, be it counted or not.
    pub(super) fn get(&self, key: &K) -> Estimate {
        self.counters.get(key).copied().unwrap_or(Estimate { count: self.floor, error: self.floor })
    }

    /// The keys with a counter.
    pub(super) fn keys(&self) -> impl Iterator<Item = &K> {
        self.counters.keys()
    }

    /// Takes the lesser half away. Each count that stays is no less than the floor, and all of them together are no more
    /// than all events: so the floor is never above `n / k`.
    fn prune(&mut self) {
        let mut counts: Vec<u64> = self.counters.values().map(|estimate| estimate.count).collect();
        let (_, &mut floor, _) = counts.select_nth_unstable_by(self.keep, |one, other| other.cmp(one));
        self.floor = floor;
        // Of those that are equal as many stay as there is room for.
        let mut room = self.keep - counts.iter().filter(|&&count| count > floor).count();
        self.counters.retain(|_, estimate| {
            let stays = estimate.count > floor || (estimate.count == floor && room > 0);
            if stays && estimate.count == floor {
                room -= 1;
            }
            stays
        });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::{prop, prop_assert, proptest};

    use super::*;

    proptest! {
        #[test]
        fn no_count_is_too_low_nor_too_high_by_more_than_n_over_k_and_no_heavy_key_is_missing(
            events in prop::collection::vec((0_u32..400, 1_u64..20), 0..3000),
            heavy in prop::collection::vec(400_u32..404, 0..600),
            keep in 1_usize..40,
        ) {
            let mut sketch = Sketch::new(keep);
            let mut truth: HashMap<u32, u64> = HashMap::new();
            for (key, weight) in events.into_iter().chain(heavy.into_iter().map(|key| (key, 3))) {
                sketch.add(key, weight);
                *truth.entry(key).or_default() += weight;
                prop_assert!(sketch.counters.len() < 2 * keep);
            }
            let n: u64 = truth.values().sum();
            let bound = n / keep as u64;
            for (key, &real) in &truth {
                let Estimate { count, error } = sketch.get(key);
                prop_assert!(error <= bound && count - error <= real && real <= count, "{key}: {count}±{error}, {real}");
                prop_assert!(real <= bound || sketch.counters.contains_key(key));
            }
        }
    }

    #[test]
    fn few_keys_are_counted_exactly() {
        let mut sketch = Sketch::new(10);
        for round in 0..100_u64 {
            (0..19_u64).for_each(|key| sketch.add(key, key + round % 2));
        }
        assert_eq!(sketch.get(&7), Estimate { count: 750, error: 0 });
        assert_eq!(sketch.get(&99), Estimate::default());
    }
}
