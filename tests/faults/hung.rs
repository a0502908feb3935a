//! Redis stopped under load: a few requests wait for it, then none; the limit holds; nothing grows.

use std::sync::Arc;
use std::time::Duration;

use crate::alone;
use crate::support::{Gateway, Load, PrivateRedis, Report, Setup, Upstream, eventually, request};

const GATEWAYS: usize = 3;
const CAPACITY: u32 = 300;
const RATE: f64 = 100.0;
/// Tenants that share the rest of the load, each far below its limit: their requests need the store.
const OTHERS: u64 = 500;

/// A fifth of the requests are of one tenant, who wants four times its limit.
fn load(gateways: &[Gateway], seconds: u64) -> Load {
    Load {
        targets: gateways.iter().map(|gateway| gateway.address).collect(),
        rate: 2000.0,
        duration: Duration::from_secs(seconds),
        connections: 8,
        request: Arc::new(|n| {
            let tenant = if n % 5 == 0 { "greedy".to_owned() } else { format!("t{}", n % OTHERS) };
            request("GET", "/orders", &[("X-Api-Key", &tenant), ("X-Greedy", if n % 5 == 0 { "1" } else { "0" })])
        }),
    }
}

/// Decisions made without the store: all, those that took no more than 2 ms, and no more than 0.1 ms.
async fn without_store(gateways: &[Gateway]) -> [f64; 3] {
    let mut sums = [0.0; 3];
    for gateway in gateways {
        let name = "sekisho_decision_seconds";
        sums[0] += gateway.metric(&format!("{name}_count"), &["source=\"local\""]).await;
        sums[1] += gateway.metric(&format!("{name}_bucket"), &["source=\"local\"", "le=\"0.002\""]).await;
        sums[2] += gateway.metric(&format!("{name}_bucket"), &["source=\"local\"", "le=\"0.0001\""]).await;
    }
    sums
}

fn sizes(gateways: &[Gateway]) -> Vec<(u64, usize)> {
    gateways.iter().map(|gateway| (gateway.memory_kb("VmRSS"), gateway.descriptors())).collect()
}

/// Runs the load and returns how many requests of the greedy tenant reached the upstream.
async fn greedy(upstream: &Upstream, load: &Load) -> (u64, Report) {
    let before = upstream.marked();
    let report = load.run().await;
    (upstream.marked() - before, report)
}

#[tokio::test]
async fn a_store_that_hangs_makes_a_few_requests_wait_and_the_limit_holds_over_three_gateways() {
    let _alone = alone().await;
    let seconds = std::env::var("SEKISHO_TEST_OUTAGE_SECONDS").map_or(5, |text| text.parse().expect("seconds"));
    let (redis, upstream) = (PrivateRedis::start().await, Upstream::marking("X-Greedy: 1").await);
    let setup = Setup::new(upstream.address).redis(&redis.url()).set("store", "timeout", "\"5ms\"").set(
        "limiter",
        "instances",
        &GATEWAYS.to_string(),
    );
    let gateways = setup.limit(CAPACITY, RATE).start_many(GATEWAYS).await;
    // Everybody is known, and the greedy tenant's bucket is as good as full again: so the store said last.
    load(&gateways, 2).run().await.only(&[200, 429]);
    tokio::time::sleep(Duration::from_secs_f64(f64::from(CAPACITY) / RATE)).await;
    for gateway in &gateways {
        crate::breaker_closed(gateway, true).await;
        eventually("the bucket is nearly full", Duration::from_secs(5), || async {
            let answer = gateway.get("/orders", "greedy").await;
            (answer.number("X-RateLimit-Remaining") + 10 > u64::from(CAPACITY)).then_some(())
        })
        .await;
    }
    let before = without_store(&gateways).await;
    let sizes_before = sizes(&gateways);

    redis.signal("STOP");
    let (admitted, report) = greedy(&upstream, &load(&gateways, seconds)).await;
    report.only(&[200, 429]);
    let after = without_store(&gateways).await;
    let [all, quick, instant] = std::array::from_fn(|i| after[i] - before[i]);
    let expected = f64::from(CAPACITY) + RATE * report.elapsed.as_secs_f64();
    println!(
        "stopped {:?} under {} requests: {all} decided without the store, {} of them took over 2 ms, {instant} at \
         most 0.1 ms; greedy admitted {admitted} of {expected:.0}; memory (kB) and descriptors {sizes_before:?} then {:?}",
        report.elapsed,
        report.offered(),
        all - quick,
        sizes(&gateways),
    );
    assert!(report.offered() as f64 > 1500.0 * seconds as f64, "too little load: {}", report.offered());
    assert!(all > 0.9 * report.offered() as f64, "the store was not stopped: {all}");
    assert!(all - quick <= 100.0, "{} requests waited for the store", all - quick);
    assert!(instant > 0.5 * all, "the median is above 0.1 ms: {instant} of {all}");
    let off = (admitted as f64 - expected) / expected;
    assert!(off.abs() <= 0.15, "admitted {admitted} of {expected:.0}");
    for ((memory_before, open_before), (memory, open)) in sizes_before.into_iter().zip(sizes(&gateways)) {
        assert!(memory < memory_before + 8192, "{memory_before} kB, then {memory} kB");
        assert!(open <= open_before + 16, "{open_before} descriptors, then {open}");
    }

    redis.signal("CONT");
    // On a busy machine calls can be slow for a moment for other reasons.
    eventually("decided by the store again", Duration::from_secs(10), || async {
        let start = without_store(&gateways).await[0];
        let report = load(&gateways, 1).run().await;
        report.only(&[200, 429]);
        let without = without_store(&gateways).await[0] - start;
        (without < 0.05 * report.offered() as f64).then_some(())
    })
    .await;
}
