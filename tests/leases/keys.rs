//! Without prefetch, and with more keys than there is room for.

use std::sync::Arc;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use sekisho::limiter::Outcome;

use crate::cost::calls;
use crate::fleet::{Arrival, Fleet, Setting, Subject, limit, tally};
use crate::judge::{admitted, excess};
use crate::support::{HARDLY, PrivateRedis};
use crate::{alone, traffic};

#[tokio::test]
async fn without_prefetch_each_decision_is_one_store_call() {
    let _alone = alone().await;
    let redis = PrivateRedis::start().await;
    let setting = Setting { prefetch: false, ..Setting::patient(3) };
    let fleet = Fleet::start(&redis.url(), setting).await;
    let arrivals = traffic::steady(&mut SmallRng::seed_from_u64(4), 1.0, 2000.0, 3);
    let served = fleet.play(&Subject::one(200, 100.0), &arrivals).await;
    assert_eq!(calls(&redis).await, served.len() as u64);
    let excess = excess(&served, limit(200, 100.0));
    assert!(excess <= 0.2, "{excess} tokens too many");
}

#[tokio::test]
async fn more_keys_than_there_is_room_for_get_no_token_more() {
    let _alone = alone().await;
    const KEYS: usize = 20_000;
    let redis = PrivateRedis::start().await;
    let setting = Setting { max_keys: 1000, ..Setting::patient(2) };
    let fleet = Fleet::start(&redis.url(), setting).await;
    let subjects: Arc<[Subject]> = (0..KEYS).map(|i| Subject::new(&format!("t{i}"), limit(3, HARDLY))).collect();
    let mut random = SmallRng::seed_from_u64(5);
    // Each four times, in any order.
    let mut order: Vec<usize> = (0..4).flat_map(|_| 0..KEYS).collect();
    order.shuffle(&mut random);
    let arrivals: Vec<Arrival> = order
        .into_iter()
        .enumerate()
        .map(|(i, subject)| traffic::arrival(i as f64 / 20_000.0, random.random_range(0..2), subject, 1))
        .collect();
    let served = fleet.play(&subjects, &arrivals).await;
    let (mut tokens, mut undecided) = (vec![0; KEYS], vec![0; KEYS]);
    for one in &served {
        match one.decision.outcome {
            Outcome::Allowed => tokens[one.subject] += 1,
            // Forgotten while its call was out, there being nothing but such keys.
            Outcome::Unavailable => undecided[one.subject] += 1,
            Outcome::Denied { .. } => {}
        }
    }
    let tally = tally(&served);
    for (tokens, undecided) in tokens.into_iter().zip(undecided) {
        assert!((3 - undecided..=3).contains(&tokens), "{tokens} tokens of 3, {undecided} undecided; {tally}");
    }
    println!("{tally}");
    for gateway in 0..2 {
        let (tracked, forgotten) = fleet.limiter(gateway).keys();
        assert!(tracked <= 1000, "{tracked} keys");
        assert!(forgotten > 0, "what is forgotten too early is counted");
    }
}

#[tokio::test]
async fn hot_keys_that_are_forgotten_for_want_of_room_keep_their_limit() {
    let _alone = alone().await;
    let redis = PrivateRedis::start().await;
    // One key in each part of the ledger: the next one takes its place, leases and all.
    let setting = Setting { max_keys: 64, ..Setting::patient(2) };
    let fleet = Fleet::start(&redis.url(), setting).await;
    let subjects: Arc<[Subject]> = (0..200).map(|i| Subject::new(&format!("t{i}"), limit(50, 20.0))).collect();
    let mut random = SmallRng::seed_from_u64(6);
    let arrivals: Vec<Arrival> = (0..12_000)
        .map(|i| {
            let subject = (f64::from(random.random_range(0..200)) * random.random_range(0.0..1.0)) as usize;
            traffic::arrival(f64::from(i) / 4000.0, random.random_range(0..2), subject, 1)
        })
        .collect();
    let served = fleet.play(&subjects, &arrivals).await;
    let worst = (0..200)
        .map(|subject| excess(served.iter().filter(|one| one.subject == subject), limit(50, 20.0)))
        .fold(f64::NEG_INFINITY, f64::max);
    println!("{} admitted; {}", admitted(&served), tally(&served));
    assert!(worst <= 0.05, "{worst} tokens too many");
    // Nothing of it stays behind.
    let out = || async { (fleet.limiter(0).leased_tokens() + fleet.limiter(1).leased_tokens() == 0).then_some(()) };
    crate::support::eventually("all leases are given back or over", Duration::from_secs(5), out).await;
}
