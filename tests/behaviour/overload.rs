//! Too many clients, slow ones, idle ones, and ones that leave: nobody else notices.

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpStream;

use crate::support::{
    Behaviour, Connection, FaultProxy, Gateway, HARDLY, Setup, Upstream, eventually, free_address, redis_url, request,
    write_certificate,
};
use crate::tls::{connect, with_tls};

const KEY: (&str, &str) = ("X-Api-Key", "shop-a");

/// Lines that say that something is wrong.
fn complaints(gateway: &Gateway) -> Vec<String> {
    gateway
        .log()
        .lines()
        .filter(|line| line.contains(" ERROR ") || line.contains(" WARN "))
        .map(str::to_owned)
        .collect()
}

async fn few_descriptors(gateway: &Gateway, most: usize) {
    eventually(&format!("at most {most} descriptors"), Duration::from_secs(10), || async {
        (gateway.descriptors() <= most).then_some(())
    })
    .await;
}

/// Sends bytes with a pause between them, until the gateway closes.
async fn drip(connection: &mut Connection, bytes: &[u8]) -> Duration {
    let start = Instant::now();
    for byte in bytes.iter().cycle() {
        // A closed connection shows when it is written to once more.
        if !connection.try_write(&[*byte]).await {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(15), "it may drip for ever");
        tokio::time::sleep(Duration::from_millis(40)).await;
    }
    start.elapsed()
}

#[tokio::test]
async fn a_head_that_comes_byte_by_byte_for_ever_is_cut_off() {
    let upstream = Upstream::normal().await;
    let gateway = Setup::new(upstream.address)
        .set("server", "header_timeout", "\"500ms\"")
        .set("server", "keepalive_timeout", "\"1s\"")
        .limit(100, HARDLY)
        .start()
        .await;
    let least = Duration::from_millis(400);
    for start in ["", "P", "GET /orders HTTP/1.1\r\nHost: gateway.test\r\nX-Long: "] {
        let mut connection = Connection::open(gateway.address).await;
        connection.write(start.as_bytes()).await;
        let drops = if start == "P" { "RI * HTTP/2.0" } else { "a" };
        let took = drip(&mut connection, drops.as_bytes()).await;
        assert!(took > least && took < Duration::from_secs(5), "{start:?}: {took:?}");
    }
    let mut reused = Connection::open(gateway.address).await;
    assert_eq!(reused.get("/orders", &[KEY]).await.unwrap().status, 200);
    let took = drip(&mut reused, b"GET /orders?").await;
    assert!(took > least && took < Duration::from_secs(6), "after a good request: {took:?}");
    assert_eq!(upstream.requests(), 1);
    assert_eq!(complaints(&gateway), [] as [String; 0], "nothing that a client does is worth a line each");
}

/// A TLS connection that agreed on a protocol, and then waits for the gateway to close; how long that took.
fn silent_after_tls(address: SocketAddr, alpn: &[u8], bytes: &[u8]) -> Duration {
    let mut tls = connect(address, alpn);
    let start = Instant::now();
    tls.write_all(bytes).unwrap();
    let mut answer = Vec::new();
    let end = tls.read_to_end(&mut answer);
    assert!(
        !matches!(end, Err(ref error) if error.kind() == std::io::ErrorKind::WouldBlock),
        "{alpn:?}: it stays open"
    );
    start.elapsed()
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_tls_the_same_limits_hold() {
    let upstream = Upstream::normal().await;
    let (dir, listen) = (tempfile::tempdir().unwrap(), free_address());
    write_certificate(dir.path(), "gateway.test");
    let setup = Setup::new(upstream.address)
        .set("server", "header_timeout", "\"500ms\"")
        .set("server", "keepalive_timeout", "\"1s\"")
        .limit(100, HARDLY);
    let _gateway = with_tls(setup, dir.path(), listen).start().await;
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00";
    for (alpn, bytes) in [
        (&b"\x02h2"[..], &b""[..]),
        (b"\x02h2", b"PRI * HTT"),
        (b"\x02h2", preface),
        (b"\x08http/1.1", b""),
        (b"\x08http/1.1", b"GET /orders HTTP/1.1\r\nHost: ga"),
    ] {
        let took = silent_after_tls(listen, alpn, bytes);
        assert!(took > Duration::from_millis(400) && took < Duration::from_secs(5), "{alpn:?} {bytes:?}: {took:?}");
    }
}

#[tokio::test]
async fn a_slow_answer_has_nothing_to_do_with_header_timeout() {
    let upstream = Upstream::start(Behaviour::Slow(Duration::from_millis(900))).await;
    let gateway = Setup::new(upstream.address)
        .set("server", "header_timeout", "\"200ms\"")
        .set("server", "body_timeout", "\"300ms\"")
        .set("server", "keepalive_timeout", "\"1s\"")
        .limit(100, HARDLY)
        .start()
        .await;
    let mut connection = Connection::open(gateway.address).await;
    for _ in 0..3 {
        assert_eq!(connection.get("/orders", &[KEY]).await.unwrap().status, 200);
    }
}

#[tokio::test]
async fn a_connection_without_a_request_is_closed_after_keepalive_timeout() {
    let upstream = Upstream::normal().await;
    let gateway = Setup::new(upstream.address)
        .set("server", "keepalive_timeout", "\"1s\"")
        .set("server", "header_timeout", "\"200ms\"")
        .limit(100, HARDLY)
        .start()
        .await;
    for headers in [None, Some(&[KEY][..]), Some(&[KEY, ("Connection", "keep-alive")])] {
        let mut connection = Connection::open(gateway.address).await;
        if let Some(headers) = headers {
            assert_eq!(connection.get("/orders", headers).await.unwrap().status, 200);
        }
        let start = Instant::now();
        assert_eq!(connection.read_to_end().await, b"");
        let took = start.elapsed();
        assert!(took > Duration::from_millis(800) && took < Duration::from_secs(5), "{headers:?}: {took:?}");
    }
    assert_eq!(complaints(&gateway), [] as [String; 0]);
}

#[tokio::test]
async fn a_body_that_stops_is_the_clients_fault_not_the_upstreams() {
    let upstream = Upstream::normal().await;
    let gateway =
        Setup::new(upstream.address).set("server", "body_timeout", "\"300ms\"").limit(100, HARDLY).start().await;
    let mut connection = Connection::open(gateway.address).await;
    connection.write(&request("POST", "/orders", &[KEY, ("Content-Length", "1000")])).await;
    connection.write(b"not all of it").await;
    let answer = connection.read(false).await.unwrap();
    assert!(answer.status == 408 && answer.closes(), "{answer:?}");
    assert_eq!(answer.number("X-RateLimit-Remaining"), 99, "stamped like any other");
    // What else comes of the body is read first.
    eventually("it is counted", Duration::from_secs(5), || async {
        (gateway.metric("sekisho_requests_total", &["code=\"408\""]).await == 1.0).then_some(())
    })
    .await;
    assert_eq!(gateway.metric("sekisho_upstream_failures_total", &[]).await, 0.0);
    assert_eq!(complaints(&gateway), [] as [String; 0]);
}

#[tokio::test]
async fn an_upload_that_takes_longer_than_read_timeout_is_no_failure_of_the_upstream() {
    let upstream = Upstream::normal().await;
    let gateway =
        Setup::new(upstream.address).set("upstream.main", "read_timeout", "\"500ms\"").limit(100, HARDLY).start().await;
    let mut connection = Connection::open(gateway.address).await;
    connection.write(&request("POST", "/orders", &[KEY, ("Content-Length", "30")])).await;
    for _ in 0..30 {
        connection.write(b"a").await;
        tokio::time::sleep(Duration::from_millis(40)).await;
    }
    assert_eq!(connection.read(false).await.unwrap().status, 200);
    // One that pauses for longer than that is not, and it could not have answered.
    connection.write(&request("POST", "/orders", &[KEY, ("Content-Length", "30")])).await;
    assert_eq!(connection.read(false).await.unwrap().status, 408);
    assert_eq!(gateway.metric("sekisho_upstream_failures_total", &[]).await, 0.0);
    assert_eq!(complaints(&gateway), [] as [String; 0]);
}

#[tokio::test]
async fn an_upstream_that_is_down_does_not_fill_the_log() {
    let gateway = Setup::new(free_address()).limit(1000, HARDLY).start().await;
    for answer in gateway.spend("/orders", "shop-a", 1).await {
        assert_eq!(answer.status, 502);
    }
    for _ in 0..100 {
        assert_eq!(gateway.get("/orders", "shop-a").await.status, 502);
    }
    let told = complaints(&gateway);
    assert!((1..=3).contains(&told.len()) && told[0].contains("main"), "{told:?}");
    assert!(gateway.metric("sekisho_upstream_failures_total", &["upstream=\"main\""]).await >= 101.0);
}

/// Connections that do nothing.
async fn idle(address: SocketAddr, count: usize) -> Vec<TcpStream> {
    let mut connections = Vec::with_capacity(count);
    for _ in 0..count {
        connections.push(TcpStream::connect(address).await.unwrap());
    }
    connections
}

#[tokio::test]
async fn more_connections_than_descriptors_leave_those_that_are_served_alone() {
    let upstream = Upstream::normal().await;
    let (dir, tls) = (tempfile::tempdir().unwrap(), free_address());
    write_certificate(dir.path(), "gateway.test");
    let setup = Setup::new(upstream.address).descriptors(1000).limit(1_000_000, 1_000_000.0);
    let gateway = with_tls(setup, dir.path(), tls).start().await;
    let mut served = Connection::open(gateway.address).await;
    assert_eq!(served.get("/orders", &[KEY]).await.unwrap().status, 200);
    let before = gateway.descriptors();
    for (address, refused) in [(gateway.address, 500.0), (tls, 1000.0)] {
        let crowd = idle(address, 1000).await;
        eventually("about half of them are refused", Duration::from_secs(10), || async {
            (gateway.metric("sekisho_connections_refused_total", &[]).await >= refused).then_some(())
        })
        .await;
        for _ in 0..100 {
            assert_eq!(served.get("/orders", &[KEY]).await.unwrap().status, 200);
        }
        few_descriptors(&gateway, 510).await;
        let mut refused = Connection::open(gateway.address).await;
        let answer = refused.read(false).await.unwrap();
        assert!(answer.status == 503 && answer.closes() && answer.number("Retry-After") == 1, "{answer:?}");

        drop(crowd);
        few_descriptors(&gateway, before + 5).await;
        assert_eq!(gateway.get("/orders", "shop-b").await.status, 200, "there is room again");
    }
    assert!(gateway.log().contains("client connections were refused"), "{}", gateway.log());
    let told = complaints(&gateway);
    assert!(told.len() <= 6, "not one for each: {told:#?}");
}

#[tokio::test]
async fn descriptors_that_run_out_in_a_burst_come_back() {
    let upstream = Upstream::normal().await;
    // So few that a burst takes them all before the first connection is looked at.
    let gateway = Setup::new(upstream.address).descriptors(100).limit(1_000_000, 1_000_000.0).start().await;
    let mut served = Connection::open(gateway.address).await;
    assert_eq!(served.get("/orders", &[KEY]).await.unwrap().status, 200);
    for _ in 0..3 {
        let crowd = idle(gateway.address, 300).await;
        for _ in 0..20 {
            assert_eq!(served.get("/orders", &[KEY]).await.unwrap().status, 200);
        }
        drop(crowd);
        eventually("a new client is served", Duration::from_secs(10), || async {
            let mut connection = Connection::open(gateway.address).await;
            let answer = connection.get("/orders", &[("X-Api-Key", "shop-b")]).await;
            answer.is_ok_and(|answer| answer.status == 200).then_some(())
        })
        .await;
    }
    assert!(complaints(&gateway).len() <= 6, "{:#?}", complaints(&gateway));
}

#[tokio::test]
async fn as_many_busy_clients_as_there_is_room_for_all_reach_the_upstream() {
    let upstream = Upstream::start(Behaviour::Slow(Duration::from_millis(300))).await;
    let gateway = Setup::new(upstream.address).descriptors(200).limit(1_000_000, 1_000_000.0).start().await;
    let mut clients = Vec::new();
    for _ in 0..50 {
        clients.push(Connection::open(gateway.address).await);
    }
    // All of them at once, once they are in: each takes one more descriptor.
    let asking = clients
        .into_iter()
        .map(|mut client| tokio::spawn(async move { client.get("/orders", &[KEY]).await.map(|answer| answer.status) }));
    for answer in asking.collect::<Vec<_>>() {
        assert_eq!(answer.await.unwrap(), Ok(200));
    }
}

#[tokio::test]
async fn thousands_of_idle_connections_cost_little_memory_and_nobody_else() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).unwrap();
    // The gateway gives half of its descriptors to clients.
    let count = 10_000.min(limit.maximum.unwrap_or(1 << 20) as usize / 2 - 200);
    let upstream = Upstream::normal().await;
    let gateway = Setup::new(upstream.address).limit(1_000_000, 1_000_000.0).start().await;
    assert_eq!(gateway.get("/orders", "shop-a").await.status, 200);
    let (memory, descriptors) = (gateway.memory_kb("VmRSS"), gateway.descriptors());
    let mut crowd = Vec::with_capacity(count);
    let mut served = Connection::open(gateway.address).await;
    for n in 0..count {
        let mut connection = Connection::open(gateway.address).await;
        // Half of them have been served before.
        if n % 2 == 0 {
            assert_eq!(connection.get("/orders", &[("X-Api-Key", "crowd")]).await.unwrap().status, 200);
        }
        crowd.push(connection);
    }
    let start = Instant::now();
    for _ in 0..200 {
        assert_eq!(served.get("/orders", &[KEY]).await.unwrap().status, 200);
    }
    println!("{count} idle connections: 200 requests of another client in {:?}", start.elapsed());
    let each = (gateway.memory_kb("VmRSS") - memory) * 1024 / count as u64;
    println!("{each} bytes each");
    assert!(each < 24 << 10, "{each} bytes each");
    drop(crowd);
    few_descriptors(&gateway, descriptors + 5).await;
    assert_eq!(complaints(&gateway), [] as [String; 0]);
}

#[tokio::test]
async fn clients_that_leave_in_any_phase_leave_nothing_behind() {
    let upstream = Upstream::start(Behaviour::Slow(Duration::from_millis(100))).await;
    let store = FaultProxy::start(&redis_url(), 1).await;
    let mut gateway = Setup::new(upstream.address)
        .redis(&store.url())
        .set("server", "grace_period", "\"20s\"")
        .set("limiter", "prefetch", "{ enabled = false }")
        .limit(1000, HARDLY)
        .start()
        .await;
    assert_eq!(gateway.get("/orders", "shop-a").await.number("X-RateLimit-Remaining"), 999);
    let before = gateway.descriptors();
    let whole = request("GET", "/orders", &[KEY]);
    let mut body = request("POST", "/orders", &[KEY, ("Content-Length", "1000")]);
    body.extend_from_slice(b"not all of it");
    let leave = |bytes: Vec<u8>, after: u64| {
        let address = gateway.address;
        async move {
            let leaving = (0..30).map(|_| {
                let bytes = bytes.clone();
                tokio::spawn(async move {
                    let mut connection = Connection::open(address).await;
                    connection.write(&bytes).await;
                    tokio::time::sleep(Duration::from_millis(after)).await;
                })
            });
            for left in leaving.collect::<Vec<_>>() {
                left.await.unwrap();
            }
        }
    };
    leave(Vec::new(), 5).await;
    leave(b"GET /orders HTTP/1.1\r\nHost: ga".to_vec(), 5).await;
    leave(body, 20).await;
    leave(whole.clone(), 40).await;
    upstream.behave(Behaviour::Large);
    leave(whole.clone(), 40).await;
    upstream.behave(Behaviour::Normal);
    few_descriptors(&gateway, before + 20).await;
    let spent = 999 - gateway.get("/orders", "shop-a").await.number("X-RateLimit-Remaining");
    assert!((1..=91).contains(&spent), "one token for each whole head at most: {spent}");

    // While the store is thinking, for as long as it may.
    store.swallow(true);
    leave(whole, 20).await;
    assert_eq!(gateway.get("/orders", "shop-b").await.status, 200, "by this gateway's share");
    store.swallow(false);
    few_descriptors(&gateway, before + 20).await;
    assert_eq!(gateway.metric("sekisho_upstream_failures_total", &[]).await, 0.0);
    let errors: Vec<_> = complaints(&gateway).into_iter().filter(|line| !line.contains("store")).collect();
    assert_eq!(errors, [] as [String; 0]);
    eventually("they are counted", Duration::from_secs(5), || async {
        (gateway.metric("sekisho_requests_total", &["code=\"499\""]).await >= 30.0).then_some(())
    })
    .await;
    gateway.signal("TERM");
    gateway.ended(Duration::from_secs(5)).await.expect("nothing is in flight any more");
    assert!(gateway.log().contains("nothing in flight"), "{}", gateway.log());
}
