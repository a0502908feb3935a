//! Exact scenes of the bound.

use std::sync::Arc;
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::SmallRng;
use sekisho::limiter::Outcome;

use crate::fleet::{Fleet, Setting, Subject, limit, tally};
use crate::judge::{GRAIN, admitted, excess};
use crate::random::every_key_is_decided_again;
use crate::support::{Fault, FaultProxy, PrivateRedis};
use crate::{alone, traffic};

#[tokio::test]
async fn after_two_generations_the_leases_of_a_gateway_that_was_killed_are_available_again() {
    let _alone = alone().await;
    let redis = PrivateRedis::start().await;
    let fleet = Fleet::start(&redis.url(), Setting::patient(3)).await;
    let subjects = Subject::one(400, 2000.0);
    let limit = *subjects[0].limit.lock();
    // Hot on the one that will die; its last call renews all it has, and then nobody asks for two generations.
    let mut arrivals = traffic::steady(&mut SmallRng::seed_from_u64(1), 0.5, 1000.0, 1);
    arrivals.extend(traffic::burst(0.6, 500, &[1, 2]));
    // Two generations after it died, and the time to fill.
    arrivals.extend(traffic::burst(0.5 + 4.0 + 0.2, 800, &[1, 2]));
    let die = fleet.killer(0);
    let dying = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(510)).await;
        die();
    });
    let served = fleet.play(&subjects, &arrivals).await;
    dying.await.unwrap();
    let leased = fleet.limiter(0).leased_tokens();
    let of = |from: f64, to: f64| admitted(served.iter().filter(|one| (from..to).contains(&one.sent)));
    let (before, after) = (of(0.55, 4.0), of(4.0, 9.0));
    println!("{}; right after the death {before}, after two generations {after}; leased {leased}", tally(&served));
    assert!(before < 400, "it died with leases out, or this test shows nothing: {before}");
    assert!(after >= 400, "the whole capacity again: {after}");
    let excess = excess(&served, limit);
    assert!(excess <= 2.0 * GRAIN * 2000.0, "{excess} tokens too many");
}

#[tokio::test]
async fn a_connection_that_breaks_with_calls_under_way_leaves_no_key_waiting_for_them() {
    let _alone = alone().await;
    let redis = PrivateRedis::start().await;
    let proxy = FaultProxy::start(&redis.url(), 0).await;
    let setting = Setting { timeout: Duration::from_millis(50), ..Setting::patient(1) };
    let fleet = Fleet::start(&proxy.url(), setting).await;
    let subjects: Arc<[Subject]> = (0..400).map(|i| Subject::new(&format!("t{i}"), limit(1_000_000, 1000.0))).collect();
    for fault in [Fault::Reset, Fault::HangUp, Fault::LoseReply] {
        // Several pipelines are on their way when it happens.
        let mut arrivals = Vec::new();
        for i in 0..4000 {
            arrivals.push(traffic::arrival(f64::from(i) / 8000.0, 0, i as usize % 400, 1));
        }
        let striking = tokio::spawn({
            let proxy = proxy.clone();
            async move {
                tokio::time::sleep(Duration::from_millis(250)).await;
                proxy.strike(fault);
            }
        });
        let served = fleet.play(&subjects, &arrivals).await;
        striking.await.unwrap();
        let lost = served.iter().filter(|one| one.decision.outcome == Outcome::Unavailable).count();
        assert!(lost > 0, "{fault:?} did not happen");
        every_key_is_decided_again(&fleet, &subjects).await;
    }
}

#[tokio::test]
async fn a_store_that_swallows_everything_for_a_while_costs_no_token_twice() {
    let _alone = alone().await;
    let redis = PrivateRedis::start().await;
    let proxy = FaultProxy::start(&redis.url(), 0).await;
    let setting = Setting { timeout: Duration::from_millis(50), ..Setting::patient(3) };
    let fleet = Fleet::start(&proxy.url(), setting).await;
    let subjects = Subject::one(300, 200.0);
    let arrivals = traffic::steady(&mut SmallRng::seed_from_u64(2), 4.5, 1000.0, 3);
    let swallowing = tokio::spawn({
        let proxy = proxy.clone();
        async move {
            tokio::time::sleep(Duration::from_millis(800)).await;
            proxy.swallow(true);
            tokio::time::sleep(Duration::from_millis(1000)).await;
            proxy.swallow(false);
        }
    });
    let served = fleet.play(&subjects, &arrivals).await;
    swallowing.await.unwrap();
    let excess = excess(&served, limit(300, 200.0));
    assert!(excess <= 2.0 * GRAIN * 200.0, "{excess} tokens too many: {}", tally(&served));
    let late = admitted(served.iter().filter(|one| one.sent > 3.5));
    assert!(late >= 100, "it is enforced by the store again: {late} in the last second at 200/s; {}", tally(&served));
}
