//! What several gateways admit together while the store is away, by their shares, and at the seams of an outage.

use std::sync::Arc;
use std::time::Duration;

use crate::membership::live;
use crate::support::{Gateway, HARDLY, Load, PrivateRedis, Report, Setup, Upstream, request};
use crate::{alone, breaker_closed};

/// One tenant asks all gateways.
async fn flood(gateways: &[Gateway], rate: f64, seconds: u64) -> Report {
    let load = Load {
        targets: gateways.iter().map(|gateway| gateway.address).collect(),
        rate,
        duration: Duration::from_secs(seconds),
        connections: 2,
        request: Arc::new(|_| request("GET", "/orders", &[("X-Api-Key", "shop-a")])),
    };
    let report = load.run().await;
    report.only(&[200, 429]);
    report
}

async fn gateways(setup: &Setup, count: usize) -> Vec<Gateway> {
    let gateways = setup.start_many(count).await;
    live(&gateways, count as u64, Duration::from_secs(3)).await;
    gateways
}

async fn breakers_closed(gateways: &[Gateway], closed: bool) {
    for gateway in gateways {
        breaker_closed(gateway, closed).await;
    }
}

#[tokio::test]
async fn without_the_store_a_fleet_admits_about_the_limit_together() {
    let _alone = alone().await;
    let seconds = std::env::var("SEKISHO_TEST_OUTAGE_SECONDS").map_or(5, |text| text.parse().expect("seconds"));
    let upstream = Upstream::normal().await;
    // The second: a gateway's share is less than one request.
    for (count, capacity, rate) in [(3, 60, 30.0), (5, 3, 3.0)] {
        let mut redis = PrivateRedis::start().await;
        let setup = Setup::new(upstream.address).redis(&redis.url()).limit(capacity, rate);
        let gateways = gateways(&setup, count).await;
        redis.kill();
        breakers_closed(&gateways, false).await;
        let before = upstream.requests();
        let report = flood(&gateways, f64::max(10.0 * rate, 100.0), seconds).await;
        let admitted = (upstream.requests() - before) as f64;
        let limit = f64::from(capacity) + rate * report.elapsed.as_secs_f64();
        println!(
            "{count} gateways, {capacity}, {rate}/s, {:?} without the store: {admitted} of {limit:.1}",
            report.elapsed
        );
        assert!(admitted <= limit + 1.0, "{admitted} of {limit}");
        assert!(admitted >= 0.85 * limit - 1.0, "{admitted} of {limit}");
    }
}

#[tokio::test]
async fn what_is_spent_before_in_and_after_an_outage_is_spent_once() {
    let _alone = alone().await;
    let upstream = Upstream::normal().await;
    for prefetch in ["true", "false"] {
        // Spent before the first outage, or within it.
        for first in ["before", "within"] {
            let redis = PrivateRedis::start().await;
            let setup = Setup::new(upstream.address)
                .redis(&redis.url())
                .set("store", "timeout", "\"20ms\"")
                .set("limiter.prefetch", "enabled", prefetch)
                .limit(90, HARDLY);
            let gateways = gateways(&setup, 3).await;
            let before = upstream.requests();
            let mut spent = Vec::new();
            if first == "before" {
                flood(&gateways, 300.0, 1).await;
                spent.push(upstream.requests() - before);
            }
            for _ in 0..2 {
                redis.signal("STOP");
                flood(&gateways, 300.0, 1).await;
                breakers_closed(&gateways, false).await;
                spent.push(upstream.requests() - before);
                redis.signal("CONT");
                breakers_closed(&gateways, true).await;
                flood(&gateways, 300.0, 1).await;
                spent.push(upstream.requests() - before);
            }
            println!("prefetch {prefetch}, spent {first} the outage: {spent:?} of 90");
            assert!(spent[0] >= 80, "{spent:?}: the first second brings what there is");
            // Those who meet the store first may take what the others have not told it of yet. Without leases a gateway
            // keeps nothing of a bucket until a call is lost: once it takes the bucket for full.
            let most = if (prefetch, first) == ("false", "before") { 180 } else { 110 };
            assert!(spent.last() <= Some(&most), "{spent:?}: nothing of it a second time");
        }
    }
}
