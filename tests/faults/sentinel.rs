//! Sentinels that put another master in the place of one that is lost, or that is to go.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::{HARDLY, Load, RedisSentinel, Setup, Upstream, connect, eventually, request};
use crate::{alone, decided_by_the_store, local};

/// More than a test spends.
const CAPACITY: u32 = 30_000;
/// From the promotion.
const FOLLOWED_WITHIN: Duration = Duration::from_secs(3);

fn setup(upstream: &Upstream, redis: &RedisSentinel) -> Setup {
    Setup::new(upstream.address)
        .redis_nodes("sentinel", &redis.urls())
        .set("store", "master_name", &format!("{:?}", RedisSentinel::MASTER))
        .set("limiter.prefetch", "enabled", "false")
        .limit(CAPACITY, HARDLY)
}

/// Runs load on two gateways while `fail` takes the master away.
async fn followed(setup: Setup, redis: &RedisSentinel, fail: impl AsyncFnOnce()) {
    let gateways = setup.start_many(2).await;
    for gateway in &gateways {
        assert_eq!(gateway.get("/orders", "before").await.status, 200);
        assert_eq!(local(gateway).await, 0.0);
    }
    let load = Load {
        targets: gateways.iter().map(|gateway| gateway.address).collect(),
        rate: 200.0,
        duration: Duration::from_secs(8),
        connections: 4,
        request: Arc::new(|n| request("GET", "/orders", &[("X-Api-Key", &format!("t{}", n % 20))])),
    };
    let running = tokio::spawn(async move { load.run().await });
    tokio::time::sleep(Duration::from_millis(500)).await;
    fail().await;
    redis.promoted().await;
    let promoted = Instant::now();
    let address = redis.servers[1].address.to_string();
    for gateway in &gateways {
        eventually("the gateway follows", FOLLOWED_WITHIN, || async {
            (gateway.status().await["store_nodes"][0]["address"] == address.as_str()).then_some(())
        })
        .await;
        decided_by_the_store(gateway, "after", FOLLOWED_WITHIN).await;
    }
    println!("followed {:?} after the promotion", promoted.elapsed());
    running.await.unwrap().only(&[200]);
    let [first, second] = &gateways[..] else { panic!("two") };
    let left = |answer: crate::support::Response| answer.number("X-RateLimit-Remaining");
    let (one, two) = (left(first.get("/orders", "both").await), left(second.get("/orders", "both").await));
    assert_eq!((one, two), (u64::from(CAPACITY) - 1, u64::from(CAPACITY) - 2), "one bucket for both");
    for gateway in &gateways {
        let status = gateway.status().await;
        assert_eq!(status["store"], "connected", "{status}");
        assert_eq!(status["store_nodes"][0]["address"], address.as_str(), "{status}");
        assert_eq!(gateway.metric("sekisho_breaker_state", &["node=\"0\""]).await, 0.0);
    }
}

#[tokio::test]
async fn a_master_that_is_killed_under_load_is_replaced_by_the_one_that_sentinels_name() {
    let _alone = alone().await;
    let (upstream, redis) = (Upstream::normal().await, RedisSentinel::start(None).await);
    followed(setup(&upstream, &redis), &redis, async || redis.servers[0].signal("KILL")).await;
}

#[tokio::test]
async fn a_master_that_is_demoted_under_load_is_left_though_it_still_answers() {
    let _alone = alone().await;
    let (upstream, redis) = (Upstream::normal().await, RedisSentinel::start(Some("s3cret")).await);
    let own = RedisSentinel::sentinel_password("s3cret");
    let setup = setup(&upstream, &redis).set("store", "sentinel_password", &format!("{own:?}"));
    followed(setup, &redis, async || {
        let mut sentinel = connect(&redis.sentinel_url(0)).await;
        redis::cmd("SENTINEL").arg("FAILOVER").arg(RedisSentinel::MASTER).exec_async(&mut sentinel).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_name_that_no_sentinel_knows_is_named() {
    let (upstream, redis) = (Upstream::normal().await, RedisSentinel::start(None).await);
    let gateway = setup(&upstream, &redis).set("store", "master_name", "\"other\"").start().await;
    gateway.logged("watches no master named \"other\"").await;
    assert_eq!((gateway.get("/orders", "shop-a").await.status, local(&gateway).await), (200, 1.0));
}
