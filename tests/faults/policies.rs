//! What requests see of a store that is away, hangs or refuses: what each rule says, and never a 500.

use std::time::{Duration, Instant};

use crate::support::{Gateway, PrivateRedis, Response, Setup, Upstream, connect, eventually};

const RULES: &str = r#"[
    {"tenant_id":"local","route_id":"*","capacity":20,"refill_per_second":0.001,"on_store_failure":"local"},
    {"tenant_id":"open","route_id":"*","capacity":2,"refill_per_second":0.001,"on_store_failure":"open"},
    {"tenant_id":"closed","route_id":"*","capacity":1000,"refill_per_second":1000,"on_store_failure":"closed"},
    {"tenant_id":"*","route_id":"*","capacity":20,"refill_per_second":0.001}]"#;

pub(crate) async fn setup(redis: &PrivateRedis) -> (Upstream, Setup) {
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
pub(crate) async fn policies_hold(gateway: &Gateway) {
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
