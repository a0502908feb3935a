//! The buckets as they lie in Redis: keys, lifetimes, damage.

use std::time::Duration;

use redis::aio::MultiplexedConnection;

use crate::support::{Gateway, HARDLY, Setup, Upstream, connect, redis_url};

async fn bucket(setup: &Setup) -> (Gateway, MultiplexedConnection, String) {
    let gateway = setup.start().await;
    (gateway, connect(&redis_url()).await, format!("{}:{{shop-a}}:orders", setup.prefix()))
}

async fn hash_set(redis: &mut MultiplexedConnection, key: &str, fields: &[(&str, &str)]) {
    redis::cmd("HSET").arg(key).arg(fields).query_async::<()>(redis).await.unwrap();
}

fn statuses(answers: &[crate::support::Response]) -> Vec<u16> {
    answers.iter().map(|a| a.status).collect()
}

/// Every request is answered, the limit holds, and the key is not blocked for ever.
async fn heals(damage: &[(&str, &str)]) {
    let upstream = Upstream::normal().await;
    let setup = Setup::new(upstream.address).redis(&redis_url()).limit(3, 2.0);
    let (gateway, mut redis, key) = bucket(&setup).await;
    assert_eq!(gateway.get("/orders", "shop-a").await.status, 200);
    hash_set(&mut redis, &key, damage).await;
    let seen = statuses(&gateway.spend("/orders", "shop-a", 10).await);
    assert!(seen.iter().all(|status| [200, 429].contains(status)), "{damage:?}: {seen:?}");
    let admitted = seen.iter().filter(|status| **status == 200).count();
    assert!(admitted <= 5, "{damage:?} made it unlimited: {seen:?}");
    tokio::time::sleep(Duration::from_millis(1600)).await;
    assert_eq!(gateway.get("/orders", "shop-a").await.status, 200, "{damage:?} blocks for ever");
    let ttl: i64 = redis::cmd("PTTL").arg(&key).query_async(&mut redis).await.unwrap();
    assert!(0 < ttl && ttl <= 4_000, "{damage:?}: PTTL {ttl}");
}

#[tokio::test]
async fn tokens_that_are_no_number_heal() {
    heals(&[("tokens", "abc")]).await;
}

#[tokio::test]
async fn tokens_out_of_range_heal() {
    heals(&[("tokens", "1e300")]).await;
    heals(&[("tokens", "-1e300")]).await;
    heals(&[("tokens", "nan")]).await;
    heals(&[("tokens", "-inf")]).await;
    heals(&[("tokens", "")]).await;
}

#[tokio::test]
async fn a_time_stamp_far_in_the_future_heals() {
    heals(&[("ts", "99999999999999")]).await;
    heals(&[("tokens", "0"), ("ts", "99999999999999")]).await;
}

#[tokio::test]
async fn a_time_stamp_that_is_no_time_heals() {
    heals(&[("ts", "yesterday")]).await;
    heals(&[("ts", "-5")]).await;
    heals(&[("ts", "1e308")]).await;
}

#[tokio::test]
async fn a_string_where_the_hash_should_be_neither_blocks_nor_unlimits() {
    let upstream = Upstream::normal().await;
    let setup = Setup::new(upstream.address).redis(&redis_url()).limit(3, 2.0);
    let (gateway, mut redis, key) = bucket(&setup).await;
    redis::cmd("SET").arg(&key).arg("not a hash").query_async::<()>(&mut redis).await.unwrap();
    let seen = statuses(&gateway.spend("/orders", "shop-a", 20).await);
    assert!(seen.iter().all(|status| [200, 429].contains(status)), "{seen:?}");
    let admitted = seen.iter().filter(|status| **status == 200).count();
    assert!((1..=6).contains(&admitted), "{seen:?}");
    tokio::time::sleep(Duration::from_millis(1600)).await;
    assert_eq!(gateway.get("/orders", "shop-a").await.status, 200);
    assert_eq!(gateway.get("/orders", "shop-b").await.number("X-RateLimit-Remaining"), 2, "others are untouched");
    let named = gateway.log().lines().filter(|line| line.contains("WRONGTYPE") || line.contains(&key)).count();
    assert!(named <= 2, "a damaged key is logged once, not per request: {named} lines");
}

#[tokio::test]
async fn a_bucket_is_a_hash_of_tokens_and_milliseconds() {
    let upstream = Upstream::normal().await;
    let setup = Setup::new(upstream.address).redis(&redis_url()).limit(5, HARDLY);
    let (gateway, mut redis, key) = bucket(&setup).await;
    gateway.spend("/orders", "shop-a", 2).await;
    let (tokens, ts): (f64, f64) =
        redis::cmd("HMGET").arg(&key).arg("tokens").arg("ts").query_async(&mut redis).await.unwrap();
    let (seconds, _): (f64, f64) = redis::cmd("TIME").query_async(&mut redis).await.unwrap();
    assert!((2.9..=3.1).contains(&tokens), "{tokens}");
    assert!((ts / 1000.0 - seconds).abs() < 5.0, "ts {ts} is not milliseconds on Redis's clock {seconds}");
}

#[tokio::test]
async fn every_key_expires_within_twice_its_fill_time() {
    let upstream = Upstream::normal().await;
    let setup = Setup::new(upstream.address).redis(&redis_url()).rules(
        r#"[{"tenant_id":"fast","route_id":"*","capacity":5,"refill_per_second":100},
            {"tenant_id":"slow","route_id":"*","capacity":50,"refill_per_second":1},
            {"tenant_id":"daily","route_id":"*","capacity":10,"refill":"10/day"},
            {"tenant_id":"yearly","route_id":"*","capacity":1,"refill_per_second":0.00000004},
            {"tenant_id":"large","route_id":"*","capacity":2147483647,"refill_per_second":2147483647}]"#,
    );
    let gateway = setup.start().await;
    for tenant in ["fast", "slow", "daily", "yearly", "large", "default"] {
        gateway.spend("/orders", tenant, 12).await;
    }
    let mut redis = connect(&redis_url()).await;
    let keys: Vec<String> =
        redis::cmd("KEYS").arg(format!("{}*", setup.prefix())).query_async(&mut redis).await.unwrap();
    assert!(keys.len() >= 6, "{keys:?}");
    for key in keys {
        let ttl: i64 = redis::cmd("PTTL").arg(&key).query_async(&mut redis).await.unwrap();
        let bound = match key.split(['{', '}']).nth(1) {
            Some("slow") => 100_000,
            Some("daily") => 2 * 86_400_000,
            Some("yearly") => 2 * 25_000_000_000,
            None if key.ends_with(":gateways") => 5_000,
            _ => 4_000,
        };
        assert!(0 < ttl && ttl <= bound, "{key}: PTTL {ttl}, at most {bound}");
    }
}

#[tokio::test]
async fn the_most_specific_rule_applies_and_wildcards_are_no_shared_pot() {
    let upstream = Upstream::normal().await;
    let gateway = Setup::new(upstream.address)
        .redis(&redis_url())
        .route("export", "/export")
        .set("limiter", "default_rule", "{ capacity = 20, refill_per_second = 10 }")
        .rules(
            r#"[{"tenant_id":"shop-a","route_id":"orders","capacity":3,"refill_per_second":0.001},
                {"tenant_id":"shop-a","route_id":"*","capacity":4,"refill_per_second":0.001},
                {"tenant_id":"*","route_id":"export","capacity":5,"refill_per_second":0.001}]"#,
        )
        .start()
        .await;
    for (tenant, path, limit) in [
        ("shop-a", "/orders", 3),
        ("shop-a", "/export", 4),
        ("shop-b", "/export", 5),
        ("shop-c", "/export", 5),
        ("shop-b", "/orders", 20),
    ] {
        let answer = gateway.get(path, tenant).await;
        assert_eq!(answer.number("X-RateLimit-Limit"), limit, "{tenant} {path}");
        assert_eq!(answer.number("X-RateLimit-Remaining"), limit - 1, "{tenant} {path} has a bucket of its own");
    }
}

#[tokio::test]
async fn gateways_on_one_redis_share_one_bucket() {
    let upstream = Upstream::normal().await;
    let gateways = Setup::new(upstream.address).redis(&redis_url()).limit(6, HARDLY).start_many(3).await;
    let mut remaining = Vec::new();
    for round in 0..3 {
        for gateway in &gateways {
            let answer = gateway.get("/orders", "shop-a").await;
            assert_eq!(answer.status, if round < 2 { 200 } else { 429 });
            remaining.push(answer.number("X-RateLimit-Remaining"));
        }
    }
    assert_eq!(remaining, [5, 4, 3, 2, 1, 0, 0, 0, 0]);
}
