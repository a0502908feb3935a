//! What the limit headers say, and on which answers.

use std::time::Duration;

use crate::support::{
    Behaviour, Connection, HARDLY, Response, Setup, Upstream, free_address, redis_url, request, send,
};

fn stamped(response: &Response, limit: u64) {
    assert_eq!(response.number("X-RateLimit-Limit"), limit, "{response:?}");
    assert!(response.number("X-RateLimit-Remaining") <= limit, "{response:?}");
}

async fn waiting_as_long_as_told_is_enough(setup: Setup) {
    // One token each 1 s, 2 s, 1/3 s and 3 s.
    let rules: Vec<String> = (0..50)
        .map(|i| {
            let refill = ["1", "0.5", "3", "0.333333"][i % 4];
            let capacity = 1 + i % 3;
            format!(r#"{{"tenant_id":"t{i}","route_id":"*","capacity":{capacity},"refill_per_second":{refill}}}"#)
        })
        .collect();
    let gateway = std::sync::Arc::new(setup.rules(&format!("[{}]", rules.join(","))).start().await);
    let waits: Vec<_> = (0..50)
        .map(|i| {
            let gateway = gateway.clone();
            tokio::spawn(async move {
                let tenant = format!("t{i}");
                for _ in 0..20 {
                    let answer = gateway.get("/orders", &tenant).await;
                    if answer.status == 200 {
                        continue;
                    }
                    assert_eq!(answer.status, 429);
                    let wait = answer.number("Retry-After");
                    assert!((1..=4).contains(&wait), "Retry-After: {wait}");
                    tokio::time::sleep(Duration::from_secs(wait)).await;
                    let again = gateway.get("/orders", &tenant).await;
                    assert_eq!(again.status, 200, "after waiting {wait} s: {again:?}");
                    return;
                }
                panic!("{tenant} was never denied");
            })
        })
        .collect();
    for wait in waits {
        wait.await.unwrap();
    }
}

#[tokio::test]
async fn retry_after_is_honest_with_redis() {
    let upstream = Upstream::normal().await;
    waiting_as_long_as_told_is_enough(Setup::new(upstream.address).redis(&redis_url())).await;
}

#[tokio::test]
async fn retry_after_is_honest_in_process() {
    let upstream = Upstream::normal().await;
    waiting_as_long_as_told_is_enough(Setup::new(upstream.address)).await;
}

#[tokio::test]
async fn remaining_counts_down_to_zero_and_stays_there() {
    let upstream = Upstream::normal().await;
    for setup in [Setup::new(upstream.address), Setup::new(upstream.address).redis(&redis_url())] {
        let gateway = setup.limit(20, HARDLY).start().await;
        let remaining: Vec<u64> = gateway
            .spend("/orders", "shop-a", 25)
            .await
            .iter()
            .map(|answer| {
                stamped(answer, 20);
                answer.number("X-RateLimit-Remaining")
            })
            .collect();
        let expected: Vec<u64> = (0..20).rev().chain([0; 5]).collect();
        assert_eq!(remaining, expected);
    }
}

#[tokio::test]
async fn remaining_stays_sane_over_a_mixed_run() {
    let upstream = Upstream::normal().await;
    let gateway = Setup::new(upstream.address).redis(&redis_url()).limit(10, 50.0).start().await;
    let mut connection = crate::support::Connection::open(gateway.address).await;
    let mut seen = std::collections::BTreeSet::new();
    for n in 0..200u64 {
        let tenant = ["a", "b", "c"][n as usize % 3];
        let answer = connection.get("/orders", &[("X-Api-Key", tenant)]).await.unwrap();
        stamped(&answer, 10);
        seen.insert(answer.number("X-RateLimit-Remaining"));
        if n % 40 == 39 {
            tokio::time::sleep(Duration::from_millis(60)).await;
        }
    }
    assert!(seen.len() > 3, "it never moves: {seen:?}");
}

#[tokio::test]
async fn headers_are_on_every_answer_whoever_wrote_it_and_once() {
    let upstream = Upstream::normal().await;
    let refused = free_address();
    let gateway = Setup::new(upstream.address)
        .redis(&redis_url())
        .limit(50, HARDLY)
        .set("upstream.main", "read_timeout", "\"300ms\"")
        .table(&format!(
            "[[route]]\nid = \"down\"\npath = \"/down\"\nupstream = \"down\"\n[upstream.down]\nservers = [\"{refused}\"]\n"
        ))
        .start()
        .await;
    let cases = [
        (Behaviour::Normal, "/orders", 200),
        (Behaviour::OwnLimitHeaders, "/orders", 200),
        (Behaviour::Slow(Duration::from_secs(3)), "/orders", 504),
        (Behaviour::CloseEarly, "/orders", 502),
        (Behaviour::Garbage, "/orders", 502),
        (Behaviour::Normal, "/down", 502),
    ];
    for (i, (behaviour, path, status)) in cases.into_iter().enumerate() {
        let what = format!("{behaviour:?} {path}");
        upstream.behave(behaviour);
        let answer = gateway.ask("POST", path, &format!("tenant-{i}")).await;
        assert_eq!(answer.status, status, "{what}: {answer:?}");
        stamped(&answer, 50);
        assert_eq!(answer.number("X-RateLimit-Remaining"), 49, "{what}: the token stays spent, once");
        if status != 200 {
            assert_eq!(answer.header("Content-Type"), Some("application/problem+json"), "{what}: {answer:?}");
            assert!(!answer.text().contains("127.0.0.1"), "{what} leaks an address: {}", answer.text());
        }
    }
    upstream.behave(Behaviour::Normal);
    let denied = gateway.spend("/orders", "shop-a", 51).await.pop().unwrap();
    assert_eq!(denied.status, 429);
    stamped(&denied, 50);
}

#[tokio::test]
async fn an_interim_response_carries_no_limit_headers_and_the_answer_after_it_does() {
    let upstream = Upstream::start(Behaviour::EarlyHints).await;
    let gateway = Setup::new(upstream.address).set("headers", "ratelimit_draft", "true").limit(9, HARDLY).start().await;
    let mut connection = Connection::open(gateway.address).await;
    let hints = connection.get("/orders", &[("X-Api-Key", "shop-a")]).await.unwrap();
    assert_eq!(hints.status, 103);
    assert_eq!(hints.headers, [("Link".to_owned(), "</a.css>".to_owned())]);
    let answer = connection.read(false).await.unwrap();
    assert_eq!(answer.status, 200);
    stamped(&answer, 9);
}

#[tokio::test]
async fn a_head_request_counts_and_is_stamped() {
    let upstream = Upstream::normal().await;
    let gateway = Setup::new(upstream.address).limit(2, HARDLY).start().await;
    for expected in [(200, 1), (200, 0), (429, 0)] {
        let answer = gateway.ask("HEAD", "/orders", "shop-a").await;
        assert_eq!((answer.status, answer.number("X-RateLimit-Remaining")), expected);
        assert!(answer.body.is_empty());
    }
}

#[tokio::test]
async fn the_draft_headers_are_sent_only_when_asked_for() {
    let upstream = Upstream::normal().await;
    let plain = Setup::new(upstream.address).limit(5, 1.0);
    let off = plain.clone().start().await.get("/orders", "shop-a").await;
    assert!(off.header("RateLimit").is_none() && off.header("RateLimit-Policy").is_none(), "{off:?}");
    let on = plain.set("headers", "ratelimit_draft", "true").start().await.get("/orders", "shop-a").await;
    assert!(on.header("RateLimit-Policy").is_some_and(|v| v.contains("q=5")), "{on:?}");
    assert!(on.header("RateLimit").is_some_and(|v| v.contains("r=4")), "{on:?}");
}

#[tokio::test]
async fn answers_that_consulted_no_bucket_carry_no_limit_headers_and_spend_nothing() {
    let upstream = Upstream::normal().await;
    let gateway = Setup::new(upstream.address)
        .limit(5, HARDLY)
        .table("[[route]]\nid = \"free\"\npath = \"/free\"\nupstream = \"main\"\nlimit = false\n")
        .start()
        .await;
    let no_key = send(gateway.address, &request("GET", "/orders", &[])).await;
    let no_route = gateway.get("/nothing-here", "shop-a").await;
    let exempt = send(gateway.address, &request("GET", "/free", &[])).await;
    for (answer, status) in [(no_key, 401), (no_route, 404), (exempt, 200)] {
        assert_eq!(answer.status, status);
        assert!(answer.header("X-RateLimit-Limit").is_none(), "{answer:?}");
        assert!(answer.header("X-RateLimit-Remaining").is_none(), "{answer:?}");
        if status != 200 {
            assert_eq!(answer.header("Content-Type"), Some("application/problem+json"), "{answer:?}");
            assert_eq!(answer.json()["status"], status);
        }
    }
    assert_eq!(upstream.requests(), 1);
    assert_eq!(gateway.get("/orders", "shop-a").await.number("X-RateLimit-Remaining"), 4);
}

#[tokio::test]
async fn a_request_that_costs_more_than_the_capacity_is_told_not_to_come_back() {
    let upstream = Upstream::normal().await;
    let gateway = Setup::new(upstream.address)
        .limit(3, 1.0)
        .table("[[route]]\nid = \"export\"\npath = \"/export\"\nupstream = \"main\"\ncost = 10\n")
        .start()
        .await;
    let answer = gateway.get("/export", "shop-a").await;
    assert_eq!(answer.status, 429, "{answer:?}");
    assert!(answer.header("Retry-After").is_none(), "{answer:?}");
}

#[tokio::test]
async fn cost_takes_that_many_tokens() {
    let upstream = Upstream::normal().await;
    for setup in [Setup::new(upstream.address), Setup::new(upstream.address).redis(&redis_url())] {
        let gateway = setup
            .limit(10, HARDLY)
            .table("[[route]]\nid = \"export\"\npath = \"/export\"\nupstream = \"main\"\ncost = 4\n")
            .start()
            .await;
        let seen: Vec<_> = gateway
            .spend("/export", "shop-a", 3)
            .await
            .iter()
            .map(|a| (a.status, a.number("X-RateLimit-Remaining")))
            .collect();
        assert_eq!(seen, [(200, 6), (200, 2), (429, 2)]);
    }
}
