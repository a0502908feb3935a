//! The store is well again: every gateway enforces one limit within seconds, without a restart.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::policies::{policies_hold, setup};
use crate::support::{
    Fault, FaultProxy, Gateway, HARDLY, Load, PrivateRedis, Setup, Upstream, connect, eventually, request,
};
use crate::{beside_others, breaker_closed};

/// From the moment the store is well.
const AGAIN_WITHIN: Duration = Duration::from_secs(5);

/// Waits until both gateways take tokens from one bucket.
async fn enforced_by_all(gateways: &[Gateway]) {
    let start = Instant::now();
    let mut n = 0;
    eventually("one bucket for both gateways", AGAIN_WITHIN, || {
        n += 1;
        let tenant = format!("again-{n}-{}", start.elapsed().as_nanos());
        async move {
            let first = gateways[0].get("/orders", &tenant).await;
            let second = gateways[1].get("/orders", &tenant).await;
            let seen = [&first, &second].map(|a| (a.number("X-RateLimit-Limit"), a.number("X-RateLimit-Remaining")));
            (seen == [(20, 19), (20, 18)]).then_some(())
        }
    })
    .await;
    println!("one bucket after {:?}", start.elapsed());
    for gateway in gateways {
        eventually("no longer degraded", Duration::from_secs(10), || async {
            (gateway.metric("sekisho_degraded", &[]).await == 0.0).then_some(())
        })
        .await;
        assert_eq!(gateway.status().await["store"], "connected");
        assert_eq!(gateway.metric("sekisho_store_connected", &[]).await, 1.0);
    }
}

/// Waits until no gateway lets calls through to the store.
async fn away(gateways: &[Gateway]) {
    for (n, gateway) in gateways.iter().enumerate() {
        eventually("the store is away", AGAIN_WITHIN, || async {
            assert_eq!(gateway.get("/orders", &format!("away-{n}")).await.number("X-RateLimit-Limit"), 10);
            (gateway.status().await["store"] == "away").then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn a_store_that_is_absent_at_start_is_used_when_it_comes() {
    let _beside = beside_others().await;
    let mut redis = PrivateRedis::absent();
    let (_upstream, setup) = setup(&redis).await;
    let gateways = setup.start_many(2).await;
    policies_hold(&gateways[0]).await;
    redis.restart().await;
    enforced_by_all(&gateways).await;
}

#[tokio::test]
async fn a_killed_store_is_enforced_again_after_its_restart() {
    let _beside = beside_others().await;
    let mut redis = PrivateRedis::start().await;
    let (_upstream, setup) = setup(&redis).await;
    let gateways = setup.start_many(2).await;
    enforced_by_all(&gateways).await;
    redis.kill();
    assert_eq!(gateways[0].get("/orders", "open").await.status, 200);
    away(&gateways[..1]).await;
    redis.restart().await;
    enforced_by_all(&gateways).await;
}

#[tokio::test]
async fn a_stopped_store_is_enforced_again_when_it_goes_on() {
    let _beside = beside_others().await;
    let redis = PrivateRedis::start().await;
    let (_upstream, setup) = setup(&redis).await;
    let gateways = setup.start_many(2).await;
    // Shorter and longer than a connection is kept that does not answer.
    for stopped in [Duration::from_millis(300), Duration::from_secs(3)] {
        enforced_by_all(&gateways).await;
        redis.signal("STOP");
        let start = Instant::now();
        let mut n = 0;
        while start.elapsed() < stopped {
            n += 1;
            assert!(matches!(gateways[n % 2].get("/orders", "stopped").await.status, 200 | 429));
        }
        redis.signal("CONT");
    }
    enforced_by_all(&gateways).await;
}

#[tokio::test]
async fn killed_connections_are_replaced() {
    let _beside = beside_others().await;
    let redis = PrivateRedis::start().await;
    let (_upstream, setup) = setup(&redis).await;
    let gateways = setup.start_many(2).await;
    let mut admin = connect(&redis.url()).await;
    for round in 0..3 {
        redis::cmd("CLIENT")
            .arg(&["KILL", "TYPE", "normal", "SKIPME", "yes"])
            .query_async::<i64>(&mut admin)
            .await
            .unwrap();
        assert_eq!(gateways[0].get("/orders", &format!("killed-{round}")).await.status, 200);
        enforced_by_all(&gateways).await;
    }
}

#[tokio::test]
async fn a_connection_that_swallows_everything_is_replaced() {
    let _beside = beside_others().await;
    let redis = PrivateRedis::start().await;
    let (_upstream, setup) = setup(&redis).await;
    let proxy = FaultProxy::start(&redis.url(), 0).await;
    let gateways = setup.redis(&proxy.url()).start_many(2).await;
    enforced_by_all(&gateways).await;
    // Those connections are never good again; others are.
    proxy.strike(Fault::LoseRequest);
    for gateway in &gateways {
        assert_eq!(gateway.get("/orders", "swallowed").await.number("X-RateLimit-Limit"), 10);
    }
    enforced_by_all(&gateways).await;
    // Nor are those that are opened meanwhile.
    proxy.swallow(true);
    away(&gateways).await;
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(2) {
        assert!(matches!(gateways[0].get("/orders", "swallowed").await.status, 200 | 429));
    }
    proxy.swallow(false);
    enforced_by_all(&gateways).await;
}

async fn replica_of(redis: &PrivateRedis, arguments: &[String; 2]) {
    redis::cmd("REPLICAOF").arg(arguments).exec_async(&mut connect(&redis.url()).await).await.unwrap();
}

#[tokio::test]
async fn a_master_that_is_demoted_is_away_until_it_is_one_again() {
    let _beside = beside_others().await;
    let (redis, other) = (PrivateRedis::start().await, PrivateRedis::start().await);
    let (_upstream, setup) = setup(&redis).await;
    let gateways = setup.start_many(2).await;
    enforced_by_all(&gateways).await;
    let other = other.url().replace("redis://", "");
    let (host, port) = other.split_once(':').unwrap();
    replica_of(&redis, &[host.to_owned(), port.to_owned()]).await;
    away(&gateways).await;
    eventually("the reason", AGAIN_WITHIN, || async {
        let status = gateways[0].status().await;
        let node = &status["store_nodes"][0];
        (node["breaker"] == "open" && node["reason"].as_str()?.contains("READONLY")).then_some(())
    })
    .await;
    policies_hold(&gateways[0]).await;
    replica_of(&redis, &["NO".to_owned(), "ONE".to_owned()]).await;
    enforced_by_all(&gateways).await;
}

#[tokio::test]
async fn behind_an_address_that_moves_the_new_master_is_found_when_the_old_is_demoted() {
    let _beside = beside_others().await;
    let (old, new) = (PrivateRedis::start().await, PrivateRedis::start().await);
    let (_upstream, setup) = setup(&old).await;
    let address = FaultProxy::start(&old.url(), 0).await;
    let gateways = setup.redis(&address.url()).start_many(2).await;
    enforced_by_all(&gateways).await;
    // Open connections stay with the old one, which refuses writes.
    address.retarget(&new.url());
    let master = new.url().replace("redis://", "");
    let (host, port) = master.split_once(':').unwrap();
    replica_of(&old, &[host.to_owned(), port.to_owned()]).await;
    enforced_by_all(&gateways).await;
    let keys: i64 = redis::cmd("DBSIZE").query_async(&mut connect(&new.url()).await).await.unwrap();
    assert!(keys > 0, "no bucket in the new master");
}

#[tokio::test]
async fn a_script_cache_lost_again_and_again_is_nothing_a_request_notices() {
    let _beside = beside_others().await;
    const CAPACITY: u32 = 300;
    let (redis, upstream) = (PrivateRedis::start().await, Upstream::normal().await);
    let mut admin = connect(&redis.url()).await;
    let flushing = tokio::spawn(async move {
        loop {
            redis::cmd("SCRIPT").arg("FLUSH").exec_async(&mut admin).await.unwrap();
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    // Without leases each request has to find its script; with them a few tokens may lie where nobody asks at the end.
    for (prefetch, least) in [("false", CAPACITY), ("true", CAPACITY - 10)] {
        let setup = Setup::new(upstream.address).redis(&redis.url()).set("limiter.prefetch", "enabled", prefetch).set(
            "limiter",
            "instances",
            "2",
        );
        let gateways = setup.limit(CAPACITY, HARDLY).start_many(2).await;
        let load = Load {
            targets: gateways.iter().map(|gateway| gateway.address).collect(),
            rate: 200.0,
            duration: Duration::from_secs(3),
            connections: 4,
            request: Arc::new(|_| request("GET", "/orders", &[("X-Api-Key", "shop-a")])),
        };
        let report = load.run().await;
        report.only(&[200, 429]);
        let admitted = report.count(200);
        assert!((u64::from(least)..=u64::from(CAPACITY)).contains(&admitted), "prefetch {prefetch}: {report:?}");
        for gateway in &gateways {
            assert_eq!(gateway.metric("sekisho_decisions_total", &["source=\"local\""]).await, 0.0);
            breaker_closed(gateway, true).await;
        }
    }
    flushing.abort();
}
