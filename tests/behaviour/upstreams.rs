//! Upstreams that break off, lie, hang or are not there.

use std::time::{Duration, Instant};

use crate::support::{Behaviour, Connection, HARDLY, Setup, Upstream, free_address, request};

#[tokio::test]
async fn a_post_is_not_repeated_after_the_upstream_broke_off() {
    let upstream = Upstream::start(Behaviour::CloseEarly).await;
    let gateway = Setup::new(upstream.address).limit(10, HARDLY).start().await;
    let mut bytes = request("POST", "/orders", &[("X-Api-Key", "shop-a"), ("Content-Length", "5")]);
    bytes.extend_from_slice(b"hello");
    let answer = crate::support::send(gateway.address, &bytes).await;
    assert_eq!(answer.status, 502, "{answer:?}");
    assert_eq!(upstream.requests(), 1);
    assert_eq!(answer.number("X-RateLimit-Remaining"), 9);
}

#[tokio::test]
async fn a_post_over_a_reused_connection_is_not_repeated_either() {
    let upstream = Upstream::normal().await;
    let gateway = Setup::new(upstream.address).limit(10, HARDLY).start().await;
    assert_eq!(gateway.get("/orders", "shop-a").await.status, 200, "leaves an upstream connection to reuse");
    upstream.behave(Behaviour::CloseEarly);
    let mut bytes = request("POST", "/orders", &[("X-Api-Key", "shop-a"), ("Content-Length", "5")]);
    bytes.extend_from_slice(b"hello");
    assert_eq!(crate::support::send(gateway.address, &bytes).await.status, 502);
    assert_eq!(upstream.requests(), 2);
}

#[tokio::test]
async fn a_get_is_tried_at_most_twice_and_charged_once() {
    let upstream = Upstream::start(Behaviour::CloseEarly).await;
    let gateway = Setup::new(upstream.address).limit(10, HARDLY).start().await;
    let answer = gateway.get("/orders", "shop-a").await;
    assert_eq!(answer.status, 502);
    assert_eq!(answer.number("X-RateLimit-Remaining"), 9);
    assert!((1..=2).contains(&upstream.requests()), "{} tries", upstream.requests());
}

#[tokio::test]
async fn a_server_that_refuses_is_passed_over_for_one_that_does_not() {
    let upstream = Upstream::normal().await;
    let refused = free_address();
    let gateway = Setup::new(upstream.address)
        .set("upstream.main", "servers", &format!("[\"{refused}\", \"{}\"]", upstream.address))
        .limit(100, HARDLY)
        .start()
        .await;
    for n in 0..20 {
        let answer = gateway.ask("POST", "/orders", "shop-a").await;
        assert_eq!(answer.status, 200, "request {n}: not connecting is safe to retry, whatever the method");
    }
    assert_eq!(upstream.requests(), 20);
}

#[tokio::test]
async fn a_server_that_fails_its_health_check_is_left_alone() {
    let upstream = Upstream::normal().await;
    let sick = Upstream::start(Behaviour::Garbage).await;
    let gateway = Setup::new(upstream.address)
        .set("upstream.main", "servers", &format!("[\"{}\", \"{}\"]", sick.address, upstream.address))
        .set("upstream.main", "health_check", "{ path = \"/healthz\", interval = \"100ms\" }")
        .limit(1000, HARDLY)
        .start()
        .await;
    crate::support::eventually("ten good answers in a row", Duration::from_secs(10), || async {
        for answer in gateway.spend("/orders", "shop-a", 10).await {
            if answer.status != 200 {
                return None;
            }
        }
        Some(())
    })
    .await;
}

#[tokio::test]
async fn a_short_body_is_not_passed_off_as_whole() {
    let upstream = Upstream::start(Behaviour::PromisesTooMuch).await;
    let gateway = Setup::new(upstream.address).limit(10, HARDLY).start().await;
    let mut connection = Connection::open(gateway.address).await;
    match connection.get("/orders", &[("X-Api-Key", "shop-a")]).await {
        Ok(answer) => assert_eq!(answer.status, 502, "{answer:?}"),
        Err(e) => assert!(e.contains("closed after"), "{e}"),
    }
    upstream.behave(Behaviour::Normal);
    assert_eq!(gateway.get("/orders", "shop-a").await.status, 200);
}

#[tokio::test]
async fn what_an_upstream_sends_beyond_its_body_reaches_nobody() {
    let upstream = Upstream::start(Behaviour::SendsTooMuch).await;
    let gateway = Setup::new(upstream.address).limit(100, HARDLY).start().await;
    for n in 0..20 {
        let tenant = format!("shop-{n}");
        let answer = gateway.get("/orders", &tenant).await;
        assert!(answer.status == 200 && answer.body == b"ok\n" || answer.status == 502, "{answer:?}");
        assert!(!format!("{answer:?}").contains("smuggled"), "{answer:?}");
    }
}

#[tokio::test]
async fn a_slow_upstream_is_given_up_after_read_timeout() {
    let upstream = Upstream::start(Behaviour::Slow(Duration::from_secs(10))).await;
    let gateway =
        Setup::new(upstream.address).set("upstream.main", "read_timeout", "\"300ms\"").limit(10, HARDLY).start().await;
    let start = Instant::now();
    let answer = gateway.ask("POST", "/orders", "shop-a").await;
    assert_eq!(answer.status, 504);
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    assert_eq!(upstream.requests(), 1, "a POST that may have been carried out is not repeated");
}

#[tokio::test]
async fn an_upstream_name_that_does_not_resolve_is_a_502_not_a_crash() {
    let upstream = Upstream::normal().await;
    let gateway = Setup::new(upstream.address)
        .table(
            "[[route]]\nid = \"lost\"\npath = \"/lost\"\nupstream = \"lost\"\n\
             [upstream.lost]\nservers = [\"no-such-host.invalid:80\"]\n",
        )
        .limit(10, HARDLY)
        .start()
        .await;
    let answer = gateway.get("/lost", "shop-a").await;
    assert!(matches!(answer.status, 502..=504), "{answer:?}");
    assert_eq!(gateway.get("/orders", "shop-a").await.status, 200);
}

#[tokio::test]
async fn failures_are_counted_by_upstream() {
    let upstream = Upstream::start(Behaviour::CloseEarly).await;
    let gateway = Setup::new(upstream.address).limit(10, HARDLY).start().await;
    gateway.ask("POST", "/orders", "shop-a").await;
    assert!(gateway.metric("sekisho_upstream_failures_total", &["upstream=\"main\""]).await >= 1.0);
    assert_eq!(gateway.metric("sekisho_requests_total", &["route=\"orders\"", "code=\"502\""]).await, 1.0);
}

#[tokio::test]
async fn reusing_connections_of_an_upstream_is_nothing_to_log() {
    let upstream = Upstream::normal().await;
    let gateway =
        Setup::new(upstream.address).set("server", "threads", "2").limit(1_000_000, 1_000_000.0).start().await;
    let clients: Vec<_> = (0..8)
        .map(|_| {
            let address = gateway.address;
            tokio::spawn(async move {
                let mut connection = Connection::open(address).await;
                for _ in 0..500 {
                    assert_eq!(connection.get("/orders", &[("X-Api-Key", "shop-a")]).await.unwrap().status, 200);
                }
            })
        })
        .collect();
    for client in clients {
        client.await.unwrap();
    }
    assert!(!gateway.log().contains("reusable"), "{}", gateway.log());
}
