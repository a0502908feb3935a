//! Leases of real gateways.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::alone;
use crate::support::{
    Connection, Fault, FaultProxy, Gateway, HARDLY, Load, PrivateRedis, Setup, Upstream, connect, eventually, request,
};

const CLOSED: (&str, &str, &str) = ("limiter", "on_store_failure", "\"closed\"");

fn load(gateways: &[Gateway], rate: f64, seconds: u64, connections: usize) -> Load {
    Load {
        targets: gateways.iter().map(|gateway| gateway.address).collect(),
        rate,
        duration: Duration::from_secs(seconds),
        connections,
        request: Arc::new(|_| request("GET", "/orders", &[("X-Api-Key", "shop-a")])),
    }
}

/// The fields of the only bucket.
async fn bucket(redis: &PrivateRedis, setup: &Setup) -> BTreeMap<String, f64> {
    let key = format!("{}:{{shop-a}}:orders", setup.prefix());
    redis::cmd("HGETALL").arg(key).query_async(&mut connect(&redis.url()).await).await.unwrap()
}

#[tokio::test]
async fn a_lost_reply_is_never_asked_for_again() {
    let _alone = alone().await;
    let (upstream, redis) = (Upstream::normal().await, PrivateRedis::start().await);
    for prefetch in ["true", "false"] {
        let proxy = FaultProxy::start(&redis.url(), 0).await;
        let setup = Setup::new(upstream.address)
            .redis(&proxy.url())
            .set(CLOSED.0, CLOSED.1, CLOSED.2)
            .set("store", "timeout", "\"50ms\"")
            .set("limiter.prefetch", "enabled", prefetch)
            .limit(500, HARDLY);
        let gateway = setup.start().await;
        let asked = AtomicU64::new(0);
        let ask = || async {
            asked.fetch_add(1, Ordering::SeqCst);
            gateway.get("/orders", "shop-a").await.status
        };
        let mut answered = 0;
        for fault in [Fault::LoseReply, Fault::HangUp, Fault::LoseReply] {
            assert_eq!(ask().await, 200);
            let before = proxy.struck();
            proxy.strike(fault);
            assert_eq!(ask().await, 503, "{fault:?}");
            assert_eq!(proxy.struck(), before + 1);
            // It gives up the connection and opens another: a call repeated on it would be booked by now.
            eventually("the store answers again", Duration::from_secs(5), || async {
                let status = ask().await;
                assert!(matches!(status, 200 | 503), "{status}");
                (status == 200).then_some(())
            })
            .await;
            answered += 2;
            let spent = 500 - bucket(&redis, &setup).await["tokens"].floor() as u64;
            let asked = asked.load(Ordering::SeqCst);
            // What was lost on the way back was booked, and that once.
            assert!((answered + 1..=asked).contains(&spent), "{fault:?}, prefetch {prefetch}: {spent} of {asked}");
        }
    }
}

#[tokio::test]
async fn replies_lost_under_load_admit_nothing_twice() {
    let _alone = alone().await;
    let (upstream, redis) = (Upstream::normal().await, PrivateRedis::start().await);
    let proxy = FaultProxy::start(&redis.url(), 0).await;
    let setup = Setup::new(upstream.address)
        .redis(&proxy.url())
        .set(CLOSED.0, CLOSED.1, CLOSED.2)
        .set("store", "timeout", "\"20ms\"")
        .limit(600, HARDLY);
    let gateways = setup.start_many(2).await;
    let losing = tokio::spawn({
        let proxy = proxy.clone();
        async move {
            for fault in [Fault::LoseReply, Fault::HangUp].into_iter().cycle() {
                tokio::time::sleep(Duration::from_millis(250)).await;
                proxy.strike(fault);
            }
        }
    });
    let report = load(&gateways, 600.0, 3, 4).run().await;
    losing.abort();
    report.only(&[200, 429, 503]);
    assert!(proxy.struck() >= 4 && report.count(503) > 0, "{} faults, {report:?}", proxy.struck());
    assert!(report.count(200) <= 600, "{report:?}");
    assert!(report.count(200) >= 300, "lost leases end, but most are not lost: {report:?}");
    assert_eq!(upstream.requests(), report.count(200), "what the upstream saw is what was admitted");
}

/// The library that gives a process another clock.
fn faketime() -> String {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/packages.sh");
    assert!(Command::new(script).arg("faketime:faketime").status().unwrap().success());
    let folders = std::fs::read_dir("/usr/lib").unwrap().map(|entry| entry.unwrap().path());
    folders
        .map(|folder| folder.join("faketime/libfaketimeMT.so.1"))
        .find(|library| library.exists())
        .expect("libfaketime")
        .display()
        .to_string()
}

#[tokio::test]
async fn gateways_whose_clocks_are_wrong_share_the_limit_all_the_same() {
    let _alone = alone().await;
    let (upstream, redis) = (Upstream::normal().await, PrivateRedis::start().await);
    let setup = Setup::new(upstream.address).redis(&redis.url()).limit(100, 50.0);
    let library = faketime();
    let mut gateways = setup.start_many(1).await;
    for offset in ["-5s", "+60s"] {
        let shifted = setup.clone().env("LD_PRELOAD", &library).env("FAKETIME", offset);
        gateways.push(shifted.env("FAKETIME_DONT_FAKE_MONOTONIC", "1").start().await);
    }
    let clocks: Vec<String> = gateways.iter().map(|gateway| first_time(&gateway.log())).collect();
    assert!(clocks[1] < clocks[0] && clocks[0] < clocks[2], "their clocks differ: {clocks:?}");
    let report = load(&gateways, 600.0, 3, 4).run().await;
    report.only(&[200, 429]);
    let (admitted, bound) = (report.count(200) as f64, 100.0 + 50.0 * report.elapsed.as_secs_f64());
    println!("admitted {admitted} of {bound:.0}");
    assert!(admitted <= bound, "{admitted} of {bound}");
    assert!(admitted >= 0.97 * bound, "{admitted} of {bound}");
}

/// The first time that a log states.
fn first_time(log: &str) -> String {
    let times = log.split(|c: char| c.is_whitespace() || c == '"').filter(|word| word.starts_with("20"));
    times.map(str::to_owned).find(|word| word.contains('T')).unwrap_or_else(|| panic!("no time: {log}"))
}

#[tokio::test]
async fn a_small_limit_over_many_gateways_is_used_up_and_not_exceeded() {
    let _alone = alone().await;
    let (upstream, redis) = (Upstream::normal().await, PrivateRedis::start().await);
    let setup = Setup::new(upstream.address).redis(&redis.url()).set("limiter.prefetch", "batch", "50").limit(3, 3.0);
    let gateways = setup.start_many(5).await;
    let report = load(&gateways, 100.0, 6, 2).run().await;
    report.only(&[200, 429]);
    let (admitted, bound) = (report.count(200) as f64, 3.0 + 3.0 * report.elapsed.as_secs_f64());
    println!("admitted {admitted} of {bound:.1}");
    assert!(admitted <= bound, "{admitted} of {bound}");
    assert!(admitted >= 0.95 * (bound - 1.0), "{admitted} of {bound}");
}

#[tokio::test]
async fn a_gateway_that_stops_under_load_fails_no_request_and_gives_its_leases_back() {
    let _alone = alone().await;
    let (upstream, redis) = (Upstream::normal().await, PrivateRedis::start().await);
    let setup =
        Setup::new(upstream.address).redis(&redis.url()).set("server", "grace_period", "\"10s\"").limit(30_000, HARDLY);
    let mut gateways = setup.start_many(2).await;
    let stop = Arc::new(AtomicBool::new(false));
    let workers: Vec<_> =
        (0..16).map(|_| tokio::spawn(clients(gateways[0].address, gateways[1].address, Arc::clone(&stop)))).collect();
    eventually("tokens are leased", Duration::from_secs(5), || async {
        let out = gateways[0].metric("sekisho_lease_tokens", &[]).await;
        (out > 0.0 && upstream.requests() > 500).then_some(())
    })
    .await;
    let stopping = gateways.remove(0);
    let start = Instant::now();
    stopping.signal("TERM");
    let mut stopping = stopping;
    let status = stopping.ended(Duration::from_secs(12)).await.expect("it ends when nothing is in flight any more");
    assert!(status.success(), "{status}");
    println!("stopped after {:?}", start.elapsed());
    tokio::time::sleep(Duration::from_millis(300)).await;
    stop.store(true, Ordering::SeqCst);
    let mut admitted = 0;
    for worker in workers {
        admitted += worker.await.unwrap();
    }
    assert_eq!(upstream.requests(), admitted);
    // The other gives back what lies idle.
    let back = eventually("all leases are back", Duration::from_secs(3), || async {
        let bucket = bucket(&redis, &setup).await;
        (!bucket.contains_key("lease_a") && !bucket.contains_key("lease_b")).then_some(bucket)
    })
    .await;
    assert_eq!(back["tokens"].floor() as u64, 30_000 - admitted, "each token is spent or back: {back:?}");
}

/// Asks the first gateway until it says that it closes, then the second. Returns how many were admitted; any failed
/// request fails the test.
async fn clients(first: SocketAddr, second: SocketAddr, stop: Arc<AtomicBool>) -> u64 {
    let mut connection = Connection::open(first).await;
    let mut admitted = 0;
    while !stop.load(Ordering::SeqCst) {
        let answer = connection.get("/orders", &[("X-Api-Key", "shop-a")]).await;
        let answer = answer.unwrap_or_else(|error| panic!("a request failed: {error}"));
        assert_eq!(answer.status, 200);
        admitted += 1;
        if answer.closes() {
            connection = Connection::open(second).await;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    admitted
}

#[tokio::test]
async fn remaining_falls_as_leased_tokens_are_spent() {
    let _alone = alone().await;
    let (upstream, redis) = (Upstream::normal().await, PrivateRedis::start().await);
    let gateways = Setup::new(upstream.address).redis(&redis.url()).limit(900, HARDLY).start_many(3).await;
    // One alone: exact.
    for (spent, answer) in gateways[0].spend("/orders", "shop-a", 300).await.iter().enumerate() {
        assert_eq!(answer.number("X-RateLimit-Remaining"), 899 - spent as u64);
        assert_eq!(answer.number("X-RateLimit-Limit"), 900);
    }
    let by_lease = gateways[0].metric("sekisho_decisions_total", &["source=\"lease\""]).await;
    assert!(by_lease > 100.0, "leases were used: {by_lease}");
    // All three: each sees it fall to none, and asks long enough to spend what it has leased.
    let all = futures_util::future::join_all(gateways.iter().map(|gateway| gateway.spend("/orders", "shop-a", 600)));
    let mut admitted = 0;
    for answers in all.await {
        let mut last = 600;
        for answer in answers {
            let remaining = answer.number("X-RateLimit-Remaining");
            assert!(remaining <= last, "{remaining} after {last}");
            last = remaining;
            admitted += u64::from(answer.status == 200);
        }
    }
    assert!((500..=600).contains(&admitted), "{admitted} of the 600 left");
}

#[tokio::test]
async fn whoever_waits_as_long_as_retry_after_says_is_admitted() {
    let _alone = alone().await;
    let (upstream, redis) = (Upstream::normal().await, PrivateRedis::start().await);
    let limits = [(3, 3.0), (20, 10.0), (100, 100.0), (5, 0.7), (200, 1000.0), (1, 0.9), (60, 25.0), (2, 0.5)];
    let rules: Vec<String> = limits
        .iter()
        .enumerate()
        .map(|(i, (capacity, refill))| {
            format!(r#"{{"tenant_id":"t{i}","route_id":"*","capacity":{capacity},"refill_per_second":{refill}}}"#)
        })
        .collect();
    let setup = Setup::new(upstream.address).redis(&redis.url()).rules(&format!("[{}]", rules.join(",")));
    let gateways = setup.start_many(3).await;
    let asking = (0..limits.len()).map(|i| {
        let gateways = &gateways;
        async move {
            let tenant = format!("t{i}");
            let mut connections = Vec::new();
            for gateway in gateways {
                connections.push(Connection::open(gateway.address).await);
            }
            for round in 0..2 {
                // Hot on all three, so that each has leases out when the last one denies.
                let denied = 'hot: loop {
                    for (at, connection) in connections.iter_mut().enumerate() {
                        let answer = connection.get("/orders", &[("X-Api-Key", &tenant)]).await.unwrap();
                        if answer.status == 429 && at == round {
                            break 'hot answer;
                        }
                    }
                };
                let wait = denied.number("Retry-After");
                assert!(wait >= 1);
                tokio::time::sleep(Duration::from_secs(wait)).await;
                let answer = connections[round].get("/orders", &[("X-Api-Key", &tenant)]).await.unwrap();
                assert_eq!(answer.status, 200, "{:?} after waiting {wait} s: {answer:?}", limits[i]);
            }
        }
    });
    futures_util::future::join_all(asking).await;
}

#[tokio::test]
async fn keys_that_are_forgotten_for_want_of_room_are_counted() {
    let _alone = alone().await;
    let (upstream, redis) = (Upstream::normal().await, PrivateRedis::start().await);
    let setup = Setup::new(upstream.address).redis(&redis.url()).set("limiter", "max_keys", "1000").limit(1, HARDLY);
    let gateways = setup.start_many(1).await;
    let mut load = load(&gateways, 2000.0, 3, 16);
    // Each twice, so that it is known to be exhausted when it is forgotten.
    load.request = Arc::new(|n| request("GET", "/orders", &[("X-Api-Key", &format!("t{}", n / 2))]));
    let report = load.run().await;
    report.only(&[200, 429]);
    assert!(report.offered() > 3000, "too little load to say anything: {}", report.offered());
    let (tracked, forgotten) = (
        gateways[0].metric("sekisho_keys_tracked", &[]).await,
        gateways[0].metric("sekisho_keys_forgotten", &[]).await,
    );
    assert!(tracked <= 1000.0 && forgotten > 0.0, "{tracked} tracked, {forgotten} forgotten");
    assert_eq!(report.count(200), report.offered().div_ceil(2), "each key got its token, and no more");
}
