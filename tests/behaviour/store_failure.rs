//! Redis away, hanging, forgetful, late: what requests see of it.

use std::time::{Duration, Instant};

use crate::support::{HARDLY, PrivateRedis, Response, Setup, Upstream, connect, eventually};

const RULES: &str = r#"[
    {"tenant_id":"local","route_id":"*","capacity":20,"refill_per_second":0.001,"on_store_failure":"local"},
    {"tenant_id":"open","route_id":"*","capacity":2,"refill_per_second":0.001,"on_store_failure":"open"},
    {"tenant_id":"closed","route_id":"*","capacity":1000,"refill_per_second":1000,"on_store_failure":"closed"},
    {"tenant_id":"*","route_id":"*","capacity":20,"refill_per_second":0.001}]"#;

async fn setup(redis: &PrivateRedis) -> (Upstream, Setup) {
    let upstream = Upstream::normal().await;
    let setup = Setup::new(upstream.address)
        .redis(&redis.url())
        .set("store", "timeout", "\"20ms\"")
        .set("limiter", "instances", "2")
        .rules(RULES);
    (upstream, setup)
}

fn no_limit_headers(answer: &Response) {
    assert!(answer.header("X-RateLimit-Limit").is_none(), "{answer:?}");
    assert!(answer.header("X-RateLimit-Remaining").is_none(), "{answer:?}");
}

/// What each policy promises while the store is away; the tenants are fresh.
async fn policies_hold(gateway: &crate::support::Gateway) {
    for answer in gateway.spend("/orders", "open", 10).await {
        assert_eq!(answer.status, 200, "open: {answer:?}");
        no_limit_headers(&answer);
    }
    for answer in gateway.spend("/orders", "closed", 10).await {
        assert_eq!(answer.status, 503, "closed: {answer:?}");
        assert_eq!(answer.header("Retry-After"), Some("1"));
        assert_eq!(answer.header("Content-Type"), Some("application/problem+json"));
        no_limit_headers(&answer);
    }
    // One of two gateways: half of 20.
    for tenant in ["local", "local-by-default"] {
        let answers = gateway.spend("/orders", tenant, 15).await;
        for (n, answer) in answers.iter().enumerate() {
            assert_eq!(answer.status, if n < 10 { 200 } else { 429 }, "{tenant}, request {n}: {answer:?}");
            assert_eq!(answer.number("X-RateLimit-Limit"), 10, "headers from the share");
            assert_eq!(answer.number("X-RateLimit-Remaining"), 9u64.saturating_sub(n as u64));
        }
        assert!(answers[14].number("Retry-After") >= 1);
    }
    let metrics = gateway.metrics().await;
    for source in ["open", "closed", "local"] {
        assert!(
            gateway.metric("sekisho_decisions_total", &[&format!("source=\"{source}\"")]).await >= 10.0,
            "{metrics}"
        );
    }
    assert_eq!(gateway.metric("sekisho_degraded", &[]).await, 1.0, "{metrics}");
}

#[tokio::test]
async fn a_killed_store_is_what_each_rule_says_and_never_a_500() {
    let mut redis = PrivateRedis::start().await;
    let (_upstream, setup) = setup(&redis).await;
    let gateway = setup.start().await;
    assert_eq!(gateway.get("/orders", "before").await.number("X-RateLimit-Limit"), 20);
    redis.kill();
    policies_hold(&gateway).await;
}

#[tokio::test]
async fn a_hanging_store_is_what_each_rule_says_within_its_timeout() {
    let redis = PrivateRedis::start().await;
    let (_upstream, setup) = setup(&redis).await;
    let gateway = setup.start().await;
    assert_eq!(gateway.get("/orders", "before").await.status, 200);
    redis.signal("STOP");
    let start = Instant::now();
    policies_hold(&gateway).await;
    assert!(start.elapsed() < Duration::from_secs(5), "50 requests took {:?}", start.elapsed());
    redis.signal("CONT");
}

#[tokio::test]
async fn a_store_that_is_absent_at_start_is_used_when_it_comes() {
    let mut redis = PrivateRedis::absent();
    let (_upstream, setup) = setup(&redis).await;
    let gateways = setup.start_many(2).await;
    policies_hold(&gateways[0]).await;
    redis.restart().await;
    enforced_by_all(&gateways).await;
    no_longer_degraded(&gateways).await;
}

/// Waits until both gateways take tokens from one bucket again.
async fn enforced_by_all(gateways: &[crate::support::Gateway]) {
    let mut n = 0;
    eventually("one bucket for both gateways", Duration::from_secs(8), || {
        n += 1;
        let tenant = format!("again-{n}");
        async move {
            let first = gateways[0].get("/orders", &tenant).await;
            let second = gateways[1].get("/orders", &tenant).await;
            let seen = [&first, &second].map(|a| (a.number("X-RateLimit-Limit"), a.number("X-RateLimit-Remaining")));
            (seen == [(20, 19), (20, 18)]).then_some(())
        }
    })
    .await;
}

async fn no_longer_degraded(gateways: &[crate::support::Gateway]) {
    for gateway in gateways {
        eventually("no longer degraded", Duration::from_secs(10), || async {
            (gateway.metric("sekisho_degraded", &[]).await == 0.0).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn a_restarted_store_is_enforced_again_within_seconds() {
    let mut redis = PrivateRedis::start().await;
    let (_upstream, setup) = setup(&redis).await;
    let gateways = setup.start_many(2).await;
    enforced_by_all(&gateways).await;
    redis.kill();
    assert_eq!(gateways[0].get("/orders", "open").await.status, 200);
    redis.restart().await;
    enforced_by_all(&gateways).await;
    no_longer_degraded(&gateways).await;
}

#[tokio::test]
async fn killed_connections_are_replaced() {
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
async fn a_lost_script_cache_is_nothing_a_request_notices() {
    let redis = PrivateRedis::start().await;
    let (_upstream, setup) = setup(&redis).await;
    let gateway = setup.set("store", "timeout", "\"500ms\"").limit(10, HARDLY).start().await;
    let mut admin = connect(&redis.url()).await;
    for n in 0..10 {
        redis::cmd("SCRIPT").arg("FLUSH").query_async::<()>(&mut admin).await.unwrap();
        let answer = gateway.get("/orders", "shop-a").await;
        assert_eq!((answer.status, answer.number("X-RateLimit-Remaining")), (200, 9 - n));
    }
    assert_eq!(gateway.metric("sekisho_decisions_total", &["source=\"local\""]).await, 0.0);
}

#[tokio::test]
async fn a_store_that_refuses_commands_is_a_failure_like_any_other() {
    let redis = PrivateRedis::start().await;
    let (_upstream, setup) = setup(&redis).await;
    let gateway = setup.start().await;
    let mut admin = connect(&redis.url()).await;
    assert_eq!(gateway.get("/orders", "before").await.status, 200);
    // Writes fail with OOM from now on.
    redis::cmd("CONFIG").arg(&["SET", "maxmemory", "1"]).query_async::<()>(&mut admin).await.unwrap();
    policies_hold(&gateway).await;
    redis::cmd("CONFIG").arg(&["SET", "maxmemory", "0"]).query_async::<()>(&mut admin).await.unwrap();
    eventually("decided by the store again", Duration::from_secs(8), || async {
        let answer = gateway.get("/orders", "closed").await;
        (answer.status == 200).then_some(())
    })
    .await;
}
