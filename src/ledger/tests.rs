use std::collections::HashMap;
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;

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
fn a_shard_at_its_bound_nearly_fills_its_index() {
    for max_keys in [1_000_000, 100_000, 3_000_000, 12_345] {
        let (shards, bound) = split(max_keys);
        let places = (bound * 8 / 7).next_power_of_two();
        assert!(bound <= Index::room(places) && shards * bound <= max_keys && shards <= MOST_SHARDS, "{shards} shards");
        assert!(shards * places <= max_keys * 8 / 7 * 3 / 2, "{max_keys}: {shards} shards of {places} places");
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

/// Against a plain map that never forgets: what is found for a key is what was last stored for it or, if it had to make
/// room, nothing; never another key's. Every key that made room is counted, and every other is found.
#[test]
fn agrees_with_a_plain_map_but_for_the_keys_it_counts_as_forgotten() {
    for (max_keys, keys) in [(1, 5), (100, 90), (300, 1000), (5000, 6000), (20_000, 15_000)] {
        let ledger = Ledger::new(max_keys);
        let mut random = StdRng::seed_from_u64(max_keys as u64);
        let mut stored: HashMap<u32, f64> = HashMap::new();
        let mut inserted = 0;
        for step in 1..=60_000 {
            let key = random.random_range(0..keys);
            let before = touch(&ledger, &format!("t{key}"), f64::from(step));
            let known = stored.insert(key, f64::from(step));
            assert!(before == 0.0 || Some(before) == known, "t{key} is said to hold {before}, not {known:?}");
            inserted += u64::from(before == 0.0);
        }
        let route: Arc<str> = "r".into();
        let find = |key: &u32| {
            let tenant = &format!("t{key}");
            ledger.find(KeyRef { tenant, route: &route, shadow: false, shard: None }, |kept| kept.0)
        };
        let found: Vec<_> = stored.iter().filter_map(|(key, value)| Some((find(key)?, *value))).collect();
        assert!(found.iter().all(|(found, stored)| found == stored));
        assert_eq!(found.len(), ledger.len());
        assert_eq!(ledger.forgotten(), inserted - found.len() as u64);
        assert!(found.len() <= max_keys && (max_keys < keys as usize) == (ledger.forgotten() > 0), "{max_keys}");
    }
}

#[test]
fn entries_stay_where_they_are_while_more_come() {
    let mut slots = Slots::new();
    let addresses: Vec<usize> = (0..10_000u32)
        .map(|item| {
            assert_eq!(slots.push(item), item);
            &raw const slots[item] as usize
        })
        .collect();
    assert_eq!(slots.len(), addresses.len());
    for (item, address) in (0..).zip(addresses) {
        assert_eq!((slots[item], &raw const slots[item] as usize), (item, address));
    }
}

#[test]
fn what_a_look_up_reads_of_a_shard_is_one_cache_line() {
    assert!(size_of::<Mutex<Entries<Spent>>>() <= 64);
}
