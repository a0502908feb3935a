//! Clients that insist, send bodies nobody wants, or leave.

use std::time::{Duration, Instant};

use crate::support::{Behaviour, Connection, HARDLY, Setup, Upstream, request};

#[tokio::test]
async fn ten_thousand_denials_cost_no_connection() {
    let upstream = Upstream::normal().await;
    let gateway = Setup::new(upstream.address).limit(1, HARDLY).start().await;
    assert_eq!(gateway.get("/orders", "shop-a").await.status, 200);
    let address = gateway.address;
    let clients: Vec<_> = (0..10)
        .map(|_| {
            tokio::spawn(async move {
                let mut connection = Connection::open(address).await;
                for n in 0..1000 {
                    let answer = connection
                        .get("/orders", &[("X-Api-Key", "shop-a")])
                        .await
                        .unwrap_or_else(|e| panic!("after {n} denials: {e}"));
                    assert_eq!(answer.status, 429);
                    assert!(!answer.closes());
                }
            })
        })
        .collect();
    for client in clients {
        client.await.unwrap();
    }
    assert_eq!(upstream.requests(), 1);
}

#[tokio::test]
async fn a_large_body_for_a_denied_key_gets_its_429_promptly() {
    let upstream = Upstream::normal().await;
    let gateway = Setup::new(upstream.address).limit(1, HARDLY).start().await;
    assert_eq!(gateway.get("/orders", "shop-a").await.status, 200);
    const SIZE: usize = 10 * 1024 * 1024;
    let mut connection = Connection::open(gateway.address).await;
    let head = request("POST", "/orders", &[("X-Api-Key", "shop-a"), ("Content-Length", &SIZE.to_string())]);
    let start = Instant::now();
    connection.write(&head).await;
    connection.write(&[b'a'; 64 * 1024]).await;
    let answer = connection.read(false).await.unwrap();
    assert_eq!(answer.status, 429);
    assert!(start.elapsed() < Duration::from_secs(2), "after {:?}", start.elapsed());
    if !answer.closes() {
        let mut sent = 64 * 1024;
        while sent < SIZE {
            assert!(connection.try_write(&[b'a'; 64 * 1024]).await, "it promised to keep the connection");
            sent += 64 * 1024;
        }
        assert_eq!(connection.get("/orders", &[("X-Api-Key", "shop-b")]).await.unwrap().status, 200);
    }
    assert_eq!(gateway.get("/orders", "shop-c").await.status, 200, "the next one on a new connection");
}

#[tokio::test]
async fn who_asks_before_sending_a_body_is_told_no_without_sending_it() {
    let upstream = Upstream::normal().await;
    let gateway = Setup::new(upstream.address).limit(1, HARDLY).start().await;
    assert_eq!(gateway.get("/orders", "shop-a").await.status, 200);
    let mut connection = Connection::open(gateway.address).await;
    let headers = [("X-Api-Key", "shop-a"), ("Content-Length", "10"), ("Expect", "100-continue")];
    connection.write(&request("POST", "/orders", &headers)).await;
    let answer = connection.read(false).await.unwrap();
    assert_eq!(answer.status, 429, "not 100: {answer:?}");
    if !answer.closes() {
        connection.write(b"0123456789").await;
        assert_eq!(connection.get("/orders", &[("X-Api-Key", "shop-b")]).await.unwrap().status, 200);
    }
}

#[tokio::test]
async fn who_asks_before_sending_a_body_is_told_to_go_on() {
    let upstream = Upstream::normal().await;
    let gateway = Setup::new(upstream.address).limit(5, HARDLY).start().await;
    let headers = [("X-Api-Key", "shop-a"), ("Content-Length", "10"), ("Expect", "100-continue")];
    let mut connection = Connection::open(gateway.address).await;
    for _ in 0..3 {
        connection.write(&request("POST", "/orders", &headers)).await;
        let go_on = connection.read(false).await.unwrap();
        assert_eq!((go_on.status, go_on.headers.len()), (100, 0), "{go_on:?}");
        connection.write(b"0123456789").await;
        let answer = connection.read(false).await.unwrap();
        assert!(answer.status == 200 && !answer.closes(), "asking first costs no connection: {answer:?}");
    }
}

#[tokio::test]
async fn a_client_of_http_1_0_gets_no_chunks() {
    let upstream = Upstream::start(Behaviour::UntilClose).await;
    let gateway = Setup::new(upstream.address).limit(5, HARDLY).start().await;
    for keep_alive in ["", "Connection: keep-alive\r\n"] {
        let mut connection = Connection::open(gateway.address).await;
        connection.write(format!("GET /orders HTTP/1.0\r\nX-Api-Key: shop-a\r\n{keep_alive}\r\n").as_bytes()).await;
        let answer = connection.read(false).await.unwrap();
        assert_eq!((answer.status, answer.header("Transfer-Encoding")), (200, None), "{answer:?}");
        assert_eq!(answer.text(), "ok\n", "whole, to the end of the connection");
        assert!(answer.closes(), "{answer:?}");
    }
}

#[tokio::test]
async fn a_body_for_an_allowed_key_arrives_whole() {
    let upstream = Upstream::normal().await;
    let gateway = Setup::new(upstream.address).limit(10, HARDLY).start().await;
    let mut connection = Connection::open(gateway.address).await;
    let size = 1024 * 1024;
    for _ in 0..2 {
        let length = size.to_string();
        connection.write(&request("POST", "/orders", &[("X-Api-Key", "shop-a"), ("Content-Length", &length)])).await;
        connection.write(&vec![b'a'; size]).await;
        assert_eq!(connection.read(false).await.unwrap().status, 200);
        connection
            .write(&request("POST", "/orders", &[("X-Api-Key", "shop-a"), ("Transfer-Encoding", "chunked")]))
            .await;
        connection.write(b"5\r\nhello\r\n0\r\n\r\n").await;
        assert_eq!(connection.read(false).await.unwrap().status, 200);
    }
    assert_eq!(upstream.requests(), 4);
}

#[tokio::test]
async fn a_clients_mistakes_do_not_fill_the_log() {
    let upstream = Upstream::normal().await;
    let gateway = Setup::new(upstream.address).limit(1000, HARDLY).start().await;
    let lines = gateway.log().lines().count();
    let mut bytes = request("POST", "/orders", &[("X-Api-Key", "shop-a"), ("Transfer-Encoding", "chunked")]);
    bytes.extend_from_slice(b"no size\r\n");
    for _ in 0..50 {
        assert_eq!(crate::support::send(gateway.address, &bytes).await.status, 400);
    }
    assert!(gateway.log().lines().count() < lines + 5, "{}", gateway.log());
}

#[tokio::test]
async fn clients_that_leave_harm_nobody_else() {
    let upstream = Upstream::start(Behaviour::Slow(Duration::from_millis(100))).await;
    let gateway = Setup::new(upstream.address)
        .set("upstream.main", "health_check", "{ path = \"/healthz\", interval = \"200ms\" }")
        .limit(1_000_000, 1_000_000.0)
        .start()
        .await;
    let address = gateway.address;
    let bystander = tokio::spawn(async move {
        let mut connection = Connection::open(address).await;
        let mut served = 0;
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(4) {
            let answer = connection.get("/orders", &[("X-Api-Key", "bystander")]).await.unwrap();
            assert_eq!(answer.status, 200, "{answer:?}");
            served += 1;
        }
        served
    });
    for round in 0..20 {
        let leaving: Vec<_> = (0..64)
            .map(|n| {
                tokio::spawn(async move {
                    let mut connection = Connection::open(address).await;
                    match (n + round) % 3 {
                        // While the upstream is thinking.
                        0 => connection.write(&request("GET", "/orders", &[("X-Api-Key", "leaver")])).await,
                        // Within the body.
                        1 => {
                            let headers = [("X-Api-Key", "leaver"), ("Content-Length", "1000")];
                            connection.write(&request("POST", "/orders", &headers)).await;
                            connection.write(b"not all of it").await;
                        }
                        // Within the head.
                        _ => connection.write(b"GET /orders HTTP/1.1\r\nHost: ga").await,
                    }
                    tokio::time::sleep(Duration::from_millis(30)).await;
                })
            })
            .collect();
        for one in leaving {
            one.await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(bystander.await.unwrap() > 10);
    assert_eq!(gateway.get("/orders", "shop-a").await.status, 200);
    assert_eq!(gateway.metric("sekisho_upstream_failures_total", &[]).await, 0.0, "{}", gateway.metrics().await);
}

#[tokio::test]
async fn a_request_shorter_than_the_preface_of_http2_is_answered() {
    let upstream = Upstream::normal().await;
    let gateway = Setup::new(upstream.address).limit(1, HARDLY).start().await;
    let start = Instant::now();
    for check in ["GET / HTTP/1.0\r\n\r\n", "OPTIONS / HTTP/1.0\r\n\r\n", "PUT / HTTP/1.0\r\n\r\n"] {
        assert_eq!(crate::support::send(gateway.address, check.as_bytes()).await.status, 404, "{check:?}");
    }
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_request_that_comes_byte_by_byte_is_answered() {
    let upstream = Upstream::normal().await;
    let gateway = Setup::new(upstream.address).limit(5, HARDLY).start().await;
    let mut connection = Connection::open(gateway.address).await;
    for method in ["POST", "PUT", "GET"] {
        for byte in request(method, "/orders", &[("X-Api-Key", "shop-a"), ("Content-Length", "0")]) {
            connection.write(&[byte]).await;
        }
        assert_eq!(connection.read(false).await.unwrap().status, 200);
    }
}
