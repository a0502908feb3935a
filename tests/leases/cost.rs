//! What leases admit without faults, and what they cost Redis by its own count.

use rand::SeedableRng;
use rand::rngs::SmallRng;

use crate::fleet::{Arrival, Fleet, Served, Setting, Subject, limit, tally};
use crate::judge::{GRAIN, admitted, central, excess};
use crate::support::{PrivateRedis, connect};
use crate::{alone, traffic};

/// Calls for buckets that Redis has executed: each reads its bucket once.
pub(crate) async fn calls(redis: &PrivateRedis) -> u64 {
    let text: String =
        redis::cmd("INFO").arg("commandstats").query_async(&mut connect(&redis.url()).await).await.unwrap();
    let count = text.lines().find_map(|line| line.strip_prefix("cmdstat_hmget:calls="));
    count.and_then(|rest| rest.split(',').next()?.parse().ok()).unwrap_or(0)
}

struct Played {
    served: Vec<Served>,
    /// Script calls per request.
    calls: f64,
    /// Admitted, or leased at the end, against one central bucket.
    ratio: f64,
}

/// One key of a fleet of its own on a Redis of its own. The bound always holds.
async fn play(gateways: usize, capacity: i64, rate: f64, arrivals: &[Arrival]) -> Played {
    play_warm(gateways, capacity, rate, &[], arrivals).await
}

/// The same, measured after other traffic; the ratio then means something only if that leaves the bucket full.
async fn play_warm(gateways: usize, capacity: i64, rate: f64, before: &[Arrival], arrivals: &[Arrival]) -> Played {
    let redis = PrivateRedis::start().await;
    let fleet = Fleet::start(&redis.url(), Setting::patient(gateways)).await;
    let subject = Subject::one(capacity, rate);
    let warm = fleet.play(&subject, before).await.len();
    let calls_before = calls(&redis).await;
    if warm > 0 {
        println!("{:.4} calls per request while it gets hot", calls_before as f64 / warm as f64);
    }
    let served = fleet.play(&subject, arrivals).await;
    // Leased when the traffic ends: not lost, and one of the next would have got it.
    let left: u64 = (0..gateways).map(|gateway| fleet.limiter(gateway).leased_tokens()).sum();
    let limit = limit(capacity, rate);
    let calls = (calls(&redis).await - calls_before) as f64 / served.len() as f64;
    let central = central(&served, limit);
    let ratio = (admitted(&served) + left).min(central) as f64 / central as f64;
    println!("{calls:.4} calls per request, {ratio:.4} of {central} ({left} left); {}", tally(&served));
    let excess = excess(&served, limit);
    assert!(excess <= 2.0 * GRAIN * rate, "{excess} tokens too many");
    Played { served, calls, ratio }
}

fn random() -> SmallRng {
    SmallRng::seed_from_u64(7)
}

#[tokio::test]
async fn a_steadily_hot_key_costs_redis_next_to_nothing() {
    let _alone = alone().await;
    for (gateways, most) in [(20, 0.03), (2, 0.02)] {
        let before = traffic::steady(&mut random(), 1.0, 10_000.0, gateways);
        let arrivals = traffic::steady(&mut random(), 1.5, 10_000.0, gateways);
        let played = play_warm(gateways, 40_000, 20_000.0, &before, &arrivals).await;
        assert!(played.calls <= most, "{gateways} gateways: {} calls per request", played.calls);
        assert!(played.ratio >= 0.995, "{gateways} gateways: {} of one central bucket", played.ratio);
    }
}

#[tokio::test]
async fn a_key_flooded_at_twenty_times_its_limit_costs_redis_little() {
    let _alone = alone().await;
    let before = traffic::steady(&mut random(), 1.0, 2000.0, 20);
    let arrivals = traffic::steady(&mut random(), 2.0, 2000.0, 20);
    let played = play_warm(20, 200, 100.0, &before, &arrivals).await;
    assert!(played.calls <= 0.4, "{} calls per request", played.calls);
    // From the first request on, with the burst.
    let played = play(20, 200, 100.0, &before).await;
    assert!(played.ratio >= 0.995, "{} of one central bucket", played.ratio);
}

#[tokio::test]
async fn nearly_all_that_one_central_bucket_admits_is_admitted() {
    let _alone = alone().await;
    // Any gateway alike, a little below the limit.
    let uniform = traffic::steady(&mut random(), 1.5, 900.0, 20);
    // Most on a few.
    let weights: Vec<f64> = (1..=20).map(|i| f64::from(i).powf(-1.2)).collect();
    let total: f64 = weights.iter().sum();
    let zipf = traffic::spread(&mut random(), 2.0, 3000.0, |random, _| {
        let mut at = rand::RngExt::random_range(random, 0.0..total);
        weights.iter().position(|weight| {
            at -= weight;
            at < 0.0
        })
    });
    // A sticky balancer that moves the tenant to another gateway every half second.
    let hop = traffic::spread(&mut random(), 2.0, 900.0, |_, now| Some((now / 0.5) as usize % 20));
    // A second without traffic, half a second with.
    let on_off = traffic::spread(&mut random(), 2.0, 3000.0, |random, now| {
        (now % 1.5 >= 1.0).then(|| rand::RngExt::random_range(random, 0..20))
    });
    // One request on each gateway, time for the bucket to fill, then a burst everywhere.
    let mut trickle = (0..20).map(|i| traffic::arrival(0.01 * i as f64 + 0.001, i, 0, 1)).collect::<Vec<_>>();
    trickle.extend(
        traffic::steady(&mut random(), 1.5, 3000.0, 20)
            .into_iter()
            .map(|one| Arrival { at: one.at + std::time::Duration::from_millis(2600), ..one }),
    );
    let shapes = [("uniform", uniform), ("zipf", zipf), ("hop", hop), ("on-off", on_off), ("trickle-burst", trickle)];
    for (name, arrivals) in shapes {
        print!("{name}: ");
        let played = play(20, 2000, 1000.0, &arrivals).await;
        assert!(played.ratio >= 0.995, "{name}: {} of one central bucket; {}", played.ratio, tally(&played.served));
    }
}
