use super::*;
use proptest::prelude::*;

const T: u64 = 10_000_000;

fn limit(capacity: i64, rate: f64) -> Limit {
    Limit::new(capacity, rate).unwrap()
}

fn take(bucket: &mut Bucket, now: u64, limit: Limit, cost: u32, count: u32, prefetch: u32) -> Reply {
    bucket.call(now, &Call { limit, demand: &[Demand { cost, count }], prefetch, report: Report::default() })
}

fn give_back(bucket: &mut Bucket, now: u64, limit: Limit, generation: u64, back: u32, demand: &[Demand]) -> Reply {
    let report = Report { generation, back, ..Report::default() };
    bucket.call(now, &Call { limit, demand, prefetch: 0, report })
}

#[test]
fn limits_have_bounds() {
    assert_eq!(Limit::new(0, 1.0), Err(LimitError::Capacity(0.0)));
    assert_eq!(Limit::new(1 << 31, 1.0), Err(LimitError::Capacity(2_147_483_648.0)));
    assert_eq!(Limit::new(5, 0.0), Err(LimitError::Refill(0.0)));
    assert!(Limit::new(5, f64::NAN).is_err() && Limit::new(5, f64::INFINITY).is_err());
    assert!(matches!(Limit::new(100, 1e-6), Err(LimitError::FillTime(..))));
    assert!(Limit::new(1, 1.0 / 31_536_000.0).is_ok());
}

#[test]
fn a_burst_of_the_capacity_then_the_rate() {
    let l = limit(100, 10.0);
    let mut bucket = Bucket::full(l, T);
    assert_eq!(take(&mut bucket, T, l, 1, 150, 0).granted, 100);
    let denied = take(&mut bucket, T + 50, l, 1, 1, 0);
    assert_eq!((denied.granted, denied.tokens, denied.wait_ms), (0, 0, Some(50)));
    assert_eq!(take(&mut bucket, T + 100, l, 1, 1, 0).granted, 1);
    assert_eq!(take(&mut bucket, T + 3_600_000, l, 1, 500, 0).granted, 100);
}

#[test]
fn a_request_that_costs_more_than_the_capacity_never_passes_and_says_so() {
    let l = limit(5, 1.0);
    let mut bucket = Bucket::full(l, T);
    let reply = take(&mut bucket, T, l, 6, 1, 0);
    assert_eq!((reply.granted, reply.wait_ms, reply.tokens), (0, None, 5));
}

#[test]
fn a_clock_that_steps_back_neither_blocks_nor_refills() {
    let l = limit(10, 1.0);
    let mut bucket = Bucket::full(l, 2 * T);
    let mut granted = take(&mut bucket, 2 * T, l, 1, 10, 0).granted;
    for second in 1..=60 {
        granted += take(&mut bucket, 2 * T - 3_600_000 + second * 1000, l, 1, 1, 0).granted;
    }
    assert!((69..=70).contains(&granted), "{granted} in a burst of 10 and 60 s at 1/s");
}

#[test]
fn a_lowered_capacity_applies_to_what_is_in_the_bucket_and_to_what_comes_back() {
    let (before, after) = (limit(1000, 100.0), limit(5, 5.0));
    let mut bucket = Bucket::full(before, T);
    let leased = take(&mut bucket, T, before, 1, 1, 1000);
    let demand = [Demand { cost: 1, count: 500 }];
    let reply = give_back(&mut bucket, T + 10, after, leased.generation, leased.prefetched, &demand);
    assert!(reply.granted <= 5, "{reply:?}");
}

#[test]
fn tokens_of_an_expired_lease_do_not_refill_for_the_time_they_were_out() {
    let l = limit(100, 50.0);
    let start = T + GENERATION_MS - 20;
    let mut bucket = Bucket::full(l, start);
    assert_eq!(take(&mut bucket, start, l, 1, 1, 100).prefetched, 50);
    assert_eq!(take(&mut bucket, start, l, 1, 49, 0).granted, 49);
    // The holder spends its 50 just before the lease ends, and dies without a report.
    let spent_at = start + GENERATION_MS - 110;
    let burst_at = T + 2 * GENERATION_MS;
    let burst = take(&mut bucket, burst_at, l, 1, 100, 0).granted;
    assert!(f64::from(50 + burst) <= 100.0 + 50.0 * (burst_at - spent_at) as f64 / 1000.0, "{burst}");
}

#[test]
fn what_was_admitted_without_the_bucket_is_taken_off_it() {
    let l = limit(10, 1.0);
    let mut bucket = Bucket::full(l, T);
    let report = Report { owed: 4, ..Report::default() };
    let demand = [Demand { cost: 1, count: 10 }];
    assert_eq!(bucket.call(T, &Call { limit: l, demand: &demand, prefetch: 0, report }).granted, 6);
    let more = Report { owed: 100, ..Report::default() };
    assert_eq!(
        bucket.call(T, &Call { limit: l, demand: &[], prefetch: 0, report: more }).wait_ms,
        Some(1000),
        "no debt"
    );
}

#[test]
fn big_requests_get_what_the_rate_gives_them() {
    let l = limit(10, 1.0);
    let mut bucket = Bucket::full(l, T);
    assert_eq!(take(&mut bucket, T, l, 1, 10, 0).granted, 10);
    let granted: u32 = (1..=50).map(|second| take(&mut bucket, T + second * 1000, l, 5, 1, 0).granted).sum();
    assert_eq!(granted, 10, "cost 5 at 1/s for 50 s");
}

#[test]
fn a_share_keeps_room_for_one_request_and_exactly_its_part_of_the_rate() {
    let share = limit(200, 100.0).share(20, 1);
    assert_eq!((share.capacity(), share.refill_per_second()), (10, 5.0));
    let small = limit(3, 3.0).share(20, 1);
    assert_eq!((small.capacity(), small.refill_per_second()), (1, 0.15));
    assert_eq!(limit(3, 3.0).share(20, 9).capacity(), 3, "never more than the whole");
}

proptest! {
    /// The bound that everything else rests on, for takes without leases.
    #[test]
    fn no_window_admits_more_than_capacity_and_refill(
        capacity in 1_u32..500, rate in 0.1_f64..500.0,
        arrivals in prop::collection::vec((0_u64..2_000, 1_u32..5, 1_u32..50), 1..200),
    ) {
        let l = limit(i64::from(capacity), rate);
        let mut now = T;
        let mut bucket = Bucket::full(l, now);
        // The bound holds in every window if `admitted - rate * t` never rises more than the capacity above its past.
        let (mut admitted, mut lowest) = (0.0, f64::INFINITY);
        for (pause, cost, count) in arrivals {
            now += pause;
            let drift = admitted - rate * now as f64 / 1000.0;
            lowest = f64::min(lowest, drift);
            let reply = take(&mut bucket, now, l, cost, count, 0);
            admitted += f64::from(reply.granted * cost);
            prop_assert!(admitted - rate * now as f64 / 1000.0 - lowest <= f64::from(capacity) + 1e-3);
        }
    }

    #[test]
    fn a_bucket_never_holds_more_than_its_capacity(
        capacity in 1_u32..500, rate in 0.1_f64..500.0,
        calls in prop::collection::vec((0_u64..3_000, 0_u32..20, 0_u32..200, 0_u32..30, 0_u32..30, 0_u64..3), 1..100),
    ) {
        let l = limit(i64::from(capacity), rate);
        let mut now = T;
        let mut bucket = Bucket::full(l, now);
        for (pause, count, prefetch, used, back, age) in calls {
            now += pause;
            let report = Report { generation: now / GENERATION_MS - age, used, back, ..Report::default() };
            let _ = bucket.call(now, &Call { limit: l, demand: &[Demand { cost: 1, count }], prefetch, report });
            let held = bucket.tokens + f64::from(bucket.lease_a + bucket.lease_b);
            prop_assert!(held <= f64::from(capacity) + 1e-6, "{bucket:?}");
        }
    }
}
