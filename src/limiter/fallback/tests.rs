use super::*;
use crate::clock::Clock;

/// The share of one key on each gateway of a fleet.
struct Fleet {
    gateways: Vec<(Arc<Membership>, Fallback)>,
    limit: Limit,
    route: Arc<str>,
}

impl Fleet {
    fn new(gateways: u32, limit: Limit) -> Self {
        let gateway = |before| {
            let membership = Arc::new(Membership::new(gateways, Clock::manual(Arc::default())));
            membership.answered(Some(Place::new(gateways, before)));
            (Arc::clone(&membership), Fallback::new(membership, 64))
        };
        Self { gateways: (0..gateways).map(gateway).collect(), limit, route: "r".into() }
    }

    fn key(&self) -> KeyRef<'_> {
        KeyRef { tenant: "t", route: &self.route, shadow: false, shard: None }
    }

    fn ask(&self, gateway: usize, cost: u32, expected: Option<u32>, away_ms: u64) -> Decision {
        let Self { limit, .. } = *self;
        let question = Question { key: self.key(), limit, shards: 1, cost, expected, now: away_ms, away_ms };
        self.gateways[gateway].1.decide(&question)
    }

    /// How many requests each gateway admits before it denies one.
    fn flood(&self, cost: u32, expected: Option<u32>, away_ms: u64) -> Vec<u32> {
        let admits =
            |gateway| (0..).find(|_| self.ask(gateway, cost, expected, away_ms).outcome != Outcome::Allowed).unwrap();
        (0..self.gateways.len()).map(admits).collect()
    }

    fn total(&self, cost: u32, expected: Option<u32>, away_ms: u64) -> u32 {
        self.flood(cost, expected, away_ms).into_iter().sum()
    }
}

fn limit(capacity: i64, rate: f64) -> Limit {
    Limit::new(capacity, rate).unwrap()
}

#[test]
fn a_fleet_admits_what_one_bucket_would_to_the_request() {
    for (gateways, capacity, rate, cost) in
        [(1, 20, 10.0, 1), (3, 200, 100.0, 1), (5, 3, 3.0, 1), (20, 7, 0.5, 1), (7, 100, 10.0, 9), (5, 10, 1.0, 10)]
    {
        let fleet = Fleet::new(gateways, limit(capacity, rate));
        let mut admitted = 0;
        for away_ms in (0..60_000).step_by(10) {
            admitted += fleet.total(cost, None, away_ms) * cost;
            let one_bucket = capacity as f64 + rate * away_ms as f64 / 1000.0;
            let (admitted, cost) = (f64::from(admitted), f64::from(cost));
            assert!(admitted <= one_bucket + 1e-6, "{gateways} gateways, {away_ms} ms: {admitted} of {one_bucket}");
            assert!(
                admitted + cost >= one_bucket - 1e-6,
                "{gateways} gateways, {away_ms} ms: {admitted} of {one_bucket}"
            );
        }
    }
}

#[test]
fn gateways_whose_part_is_less_than_a_request_take_turns() {
    let fleet = Fleet::new(5, limit(3, 3.0));
    assert_eq!(fleet.flood(1, None, 0), [0, 0, 1, 1, 1]);
    assert_eq!(fleet.flood(1, None, 334), [0, 1, 0, 0, 0]);
    assert_eq!(fleet.flood(1, None, 668), [1, 0, 0, 0, 0]);
    assert_eq!(fleet.flood(1, None, 1001), [0, 0, 0, 0, 1]);
}

#[test]
fn after_a_rest_a_fleet_admits_a_capacity_at_once_not_one_request_each() {
    let cases = [(5, 50, 1, 50), (3, 100, 7, 14), (3, 100, 10, 10), (5, 3, 1, 3), (20, 7, 1, 7), (7, 10, 10, 1)];
    for (gateways, capacity, cost, most) in cases {
        let fleet = Fleet::new(gateways, limit(capacity, 3.0));
        fleet.total(cost, None, 0);
        for away_ms in (100_011..110_000).step_by(730) {
            let rested = Fleet::new(gateways, fleet.limit);
            rested.total(cost, None, 0);
            let admitted = rested.total(cost, None, away_ms);
            let whole = (capacity as u32).is_multiple_of(cost);
            let range = if whole { most..=most } else { most..=most + 1 };
            assert!(range.contains(&admitted), "{gateways} gateways, {capacity} / {cost}: {admitted}");
        }
    }
}

#[test]
fn a_share_starts_with_its_part_of_what_the_bucket_should_hold() {
    let fleet = Fleet::new(4, limit(100, 0.001));
    assert_eq!(fleet.flood(1, Some(40), 0), [10; 4]);
    let fleet = Fleet::new(4, limit(100, 0.001));
    assert_eq!(fleet.total(1, Some(0), 0), 0);
    let question =
        Question { key: fleet.key(), limit: fleet.limit, shards: 5, cost: 1, expected: Some(4), now: 0, away_ms: 0 };
    let fallback = Fallback::new(Arc::clone(&fleet.gateways[0].0), 64);
    let admits = (0..).find(|_| fallback.decide(&question).outcome != Outcome::Allowed);
    assert_eq!(admits, Some(5), "a quarter of five buckets like this one");
}

#[test]
fn a_share_refills_only_while_the_store_is_away_and_starts_again_from_its_reply() {
    let fleet = Fleet::new(2, limit(100, 10.0));
    let (key, fallback) = (fleet.key(), &fleet.gateways[0].1);
    let flood = |now, away_ms| {
        let question = Question { key, limit: fleet.limit, shards: 1, cost: 1, expected: None, now, away_ms };
        (0..).find(|_| fallback.decide(&question).outcome != Outcome::Allowed).unwrap()
    };
    assert_eq!(flood(0, 0), 50);
    assert_eq!(flood(9000, 0), 0, "the store answers, only not to this");
    assert_eq!(flood(10_000, 1000), 5, "half of ten a second");
    assert_eq!(fallback.take_owed(key), 50, "the bucket has refilled by the rest");
    fallback.answered(key, 12_000, 20, 0);
    assert_eq!(flood(12_000, 3000), 10, "half of it; that the store was away until then is past");
    fallback.answered(key, 13_000, 0, 10);
    assert_eq!(flood(17_000, 3000), 20, "what the bucket has refilled since");
    assert_eq!(flood(27_000, 3000), 0);
    fallback.answered(key, 28_000, 50, 20);
    assert_eq!(flood(99_000, 3000), 50, "never more than half of its capacity");
}

#[test]
fn what_was_admitted_is_told_once() {
    let fleet = Fleet::new(2, limit(100, 0.001));
    let (key, fallback) = (fleet.key(), &fleet.gateways[0].1);
    assert_eq!(fallback.take_owed(key), 0, "nothing is known of it");
    let admit = |requests| {
        for _ in 0..requests {
            assert_eq!(fleet.ask(0, 2, None, 0).outcome, Outcome::Allowed);
        }
    };
    admit(3);
    assert_eq!(fallback.take_owed(key), 6);
    admit(2);
    fallback.answered(key, 0, 80, 0);
    assert_eq!(fallback.take_owed(key), 4, "admitted while the call was under way");
    fallback.lost(key, 4);
    assert_eq!(fallback.take_owed(key), 4, "told again, since nobody knows whether it was heard");
    fallback.answered(key, 0, 60, 0);
    assert_eq!(fallback.take_owed(key), 0);
    assert_eq!(fleet.flood(1, None, 0)[0], 30, "half of what is left");
}

#[test]
fn what_the_store_granted_too_late_pays_for_what_the_share_admitted() {
    let fleet = Fleet::new(2, limit(100, 0.001));
    let (key, fallback) = (fleet.key(), &fleet.gateways[0].1);
    for _ in 0..3 {
        assert_eq!(fleet.ask(0, 1, None, 0).outcome, Outcome::Allowed);
    }
    fallback.answered(key, 0, 97, 2);
    assert_eq!(fallback.take_owed(key), 1);
    fallback.answered(key, 0, 96, 5);
    assert_eq!(fallback.take_owed(key), 0, "what the share denied meanwhile is lost");
}

#[test]
fn headers_speak_of_the_share() {
    let fleet = Fleet::new(2, limit(20, 1.0));
    for gateway in 0..2 {
        for left in (0..10).rev() {
            let quota = fleet.ask(gateway, 1, None, 0).quota.unwrap();
            assert_eq!((quota.limit.capacity(), quota.remaining), (10, left));
        }
        let denied = fleet.ask(gateway, 1, None, 0);
        assert_eq!(denied.quota.unwrap().remaining, 0);
        let wait = if gateway == 0 { 2 } else { 1 };
        assert_eq!(denied.outcome, Outcome::Denied { retry_after: Some(wait) });
    }
}

#[test]
fn what_costs_more_than_the_limit_holds_never_passes() {
    let fleet = Fleet::new(2, limit(20, 1.0));
    assert_eq!(fleet.ask(0, 21, None, 0).outcome, Outcome::Denied { retry_after: None });
}

#[test]
fn a_changed_rule_and_a_grown_fleet_shrink_the_share_at_once() {
    let mut fleet = Fleet::new(2, limit(100, 0.001));
    assert_eq!(fleet.ask(0, 1, None, 0).outcome, Outcome::Allowed);
    fleet.limit = limit(20, 0.001);
    assert_eq!(fleet.ask(0, 1, None, 0).quota.unwrap().remaining, 9);
    fleet.gateways[0].0.answered(Some(Place::new(10, 0)));
    assert_eq!(fleet.ask(0, 1, None, 0).quota.unwrap().remaining, 1);
}
