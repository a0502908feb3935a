//! What opens the circuit breaker, what does not, and what it shows.

use std::time::{Duration, Instant};

use crate::support::{Fault, FaultProxy, Gateway, HARDLY, PrivateRedis, Setup, Upstream, connect, eventually};
use crate::{beside_others, breaker, breaker_closed};

/// A gateway that asks the store for each request, through a proxy.
async fn through_a_proxy(redis: &PrivateRedis) -> (Upstream, FaultProxy, Gateway) {
    let upstream = Upstream::normal().await;
    let proxy = FaultProxy::start(&redis.url(), 0).await;
    let setup = Setup::new(upstream.address)
        .redis(&proxy.url())
        .set("store", "timeout", "\"100ms\"")
        .set("limiter.prefetch", "enabled", "false")
        .set("limiter.breaker", "failures_in_a_row", "5")
        .set("limiter.breaker", "minimum_calls", "1000")
        .limit(10_000, HARDLY);
    let gateway = setup.start().await;
    assert_eq!(gateway.get("/orders", "shop-a").await.number("X-RateLimit-Remaining"), 9_999);
    (upstream, proxy, gateway)
}

async fn calls(gateway: &Gateway, result: &str) -> f64 {
    gateway.metric("sekisho_store_calls_total", &[&format!("result=\"{result}\"")]).await
}

async fn local(gateway: &Gateway) -> f64 {
    gateway.metric("sekisho_decisions_total", &["source=\"local\""]).await
}

/// The only node, as the status page shows it.
async fn node(gateway: &Gateway) -> serde_json::Value {
    let status = gateway.status().await;
    assert_eq!(status["store_nodes"].as_array().unwrap().len(), 1, "{status}");
    status["store_nodes"][0].clone()
}

#[tokio::test]
async fn a_store_that_answers_late_opens_it_and_from_then_on_nobody_waits() {
    let _beside = beside_others().await;
    let redis = PrivateRedis::start().await;
    let (_upstream, proxy, gateway) = through_a_proxy(&redis).await;
    proxy.always(Some(Fault::LateReply(Duration::from_millis(400))));
    // One after the other: each waits its time, and is not the store's.
    for n in 1..=5 {
        let start = Instant::now();
        assert_eq!(gateway.get("/orders", "shop-a").await.status, 200);
        assert!(start.elapsed() >= Duration::from_millis(100), "request {n}: {:?}", start.elapsed());
    }
    breaker_closed(&gateway, false).await;
    let rejected = calls(&gateway, "rejected").await;
    let ok = calls(&gateway, "ok").await;
    // Probes find it slow for as long as it is.
    let (start, mut asked) = (Instant::now(), 0.0);
    while start.elapsed() < Duration::from_secs(3) {
        assert_eq!(gateway.get("/orders", "shop-a").await.status, 200);
        assert_ne!(breaker(&gateway).await, "closed");
        asked += 1.0;
    }
    assert_eq!(calls(&gateway, "rejected").await, rejected + asked, "no request waits, for a probe least of all");
    assert_eq!(calls(&gateway, "ok").await, ok);
    let node = node(&gateway).await;
    assert!(node["reason"].as_str().unwrap().contains("100ms"), "{node}");
    proxy.always(None);
    breaker_closed(&gateway, true).await;
    let log = gateway.log();
    assert_eq!(log.matches("the store is away").count(), 1, "once per change: {log}");
    assert_eq!(log.matches("the store answers again").count(), 1, "once per change: {log}");
    assert!(log.contains("5 calls in a row"), "with the reason: {log}");
}

#[tokio::test]
async fn a_reply_that_comes_too_late_for_its_request_is_credited() {
    let _beside = beside_others().await;
    let redis = PrivateRedis::start().await;
    let (_upstream, proxy, gateway) = through_a_proxy(&redis).await;
    proxy.strike(Fault::LateReply(Duration::from_millis(300)));
    assert_eq!(gateway.get("/orders", "shop-a").await.status, 200);
    assert_eq!(local(&gateway).await, 1.0);
    eventually("the late reply is in", Duration::from_secs(5), || async {
        (calls(&gateway, "timeout").await == 1.0).then_some(())
    })
    .await;
    assert_eq!(breaker(&gateway).await, "closed", "one of a few");
    assert_eq!(gateway.get("/orders", "shop-a").await.number("X-RateLimit-Remaining"), 9_997, "booked, once");
    assert_eq!(calls(&gateway, "error").await, 0.0, "its connection is still good");
}

#[tokio::test]
async fn errors_of_the_node_open_it_and_it_closes_when_they_end() {
    let _beside = beside_others().await;
    let redis = PrivateRedis::start().await;
    for (n, (answer, name)) in [
        ("-CLUSTERDOWN The cluster is down\r\n", "CLUSTERDOWN"),
        ("-OOM command not allowed when used memory > 'maxmemory'.\r\n", "OOM"),
        ("-BUSY Redis is busy running a script.\r\n", "BUSY"),
        ("-NOREPLICAS Not enough good replicas to write.\r\n", "NOREPLICAS"),
        ("-LOADING Redis is loading the dataset in memory\r\n", "LOADING"),
        ("+what is this\r\n", "cannot be read"),
    ]
    .into_iter()
    .enumerate()
    {
        let (_upstream, proxy, gateway) = through_a_proxy(&redis).await;
        proxy.always(Some(Fault::Answer(answer)));
        for _ in 0..5 {
            assert_eq!(breaker(&gateway).await, "closed", "{name}");
            assert_eq!(gateway.get("/orders", "shop-a").await.status, 200, "{name}");
        }
        breaker_closed(&gateway, false).await;
        let node = node(&gateway).await;
        assert_eq!((&node["index"], &node["address"]), (&0.into(), &proxy.address.to_string().into()));
        assert!(node["reason"].as_str().is_some_and(|reason| reason.contains(name)), "{name}: {node}");
        assert_eq!(gateway.status().await["store"], "away");
        assert_eq!(calls(&gateway, "error").await, 5.0, "{name}");
        assert_eq!(gateway.metric("sekisho_degraded", &[]).await, 1.0);
        proxy.always(None);
        breaker_closed(&gateway, true).await;
        assert_eq!(gateway.status().await["store"], "connected", "{n}");
        assert!(self::node(&gateway).await["reason"].is_null());
    }
}

#[tokio::test]
async fn errors_of_one_key_do_not_open_it_for_the_others() {
    let _beside = beside_others().await;
    let redis = PrivateRedis::start().await;
    let (_upstream, proxy, gateway) = through_a_proxy(&redis).await;
    for answer in [
        "-ERR user_script:12: attempt to compare nil with number\r\n",
        "-MOVED 3999 127.0.0.1:6381\r\n",
        "-ASK 3999 127.0.0.1:6381\r\n",
    ] {
        for _ in 0..30 {
            proxy.strike(Fault::Answer(answer));
            assert_eq!(gateway.get("/orders", "shop-b").await.status, 200, "by this gateway's share");
        }
        assert_eq!(breaker(&gateway).await, "closed", "{answer}");
    }
    assert_eq!(local(&gateway).await, 90.0);
    assert_eq!(gateway.get("/orders", "shop-a").await.number("X-RateLimit-Remaining"), 9_998);
    assert_eq!(gateway.log().matches("on_store_failure applies").count(), 1, "named once: {}", gateway.log());
}

#[tokio::test]
async fn a_script_that_is_not_cached_is_no_failure() {
    let _beside = beside_others().await;
    let redis = PrivateRedis::start().await;
    let (_upstream, proxy, gateway) = through_a_proxy(&redis).await;
    for n in 0..30 {
        proxy.strike(Fault::Answer("-NOSCRIPT No matching script.\r\n"));
        assert_eq!(gateway.get("/orders", "shop-a").await.number("X-RateLimit-Remaining"), 9_998 - n);
    }
    assert_eq!(breaker(&gateway).await, "closed");
}

#[tokio::test]
async fn a_call_that_is_lost_with_its_connection_is_an_error_and_one_that_was_not_sent_is_rejected() {
    let _beside = beside_others().await;
    let mut redis = PrivateRedis::start().await;
    let (_upstream, proxy, gateway) = through_a_proxy(&redis).await;
    proxy.strike(Fault::HangUp);
    assert_eq!(gateway.get("/orders", "shop-a").await.status, 200);
    assert_eq!((calls(&gateway, "error").await, calls(&gateway, "rejected").await), (1.0, 0.0));
    redis.kill();
    breaker_closed(&gateway, false).await;
    assert_eq!(gateway.get("/orders", "shop-a").await.status, 200);
    assert_eq!((calls(&gateway, "error").await, calls(&gateway, "rejected").await), (1.0, 1.0));
}
