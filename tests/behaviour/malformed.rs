//! Heads and bodies that a well-behaved client never sends, written byte by byte.

use crate::support::{Connection, Gateway, HARDLY, Setup, Upstream, request};

async fn gateway(upstream: &Upstream) -> Gateway {
    Setup::new(upstream.address).limit(1000, HARDLY).start().await
}

/// The status of the first answer; `None` when the gateway just closed.
async fn status(gateway: &Gateway, bytes: &[u8]) -> Option<u16> {
    let mut connection = Connection::open(gateway.address).await;
    connection.write(bytes).await;
    connection.read(false).await.ok().map(|answer| answer.status)
}

async fn still_serves(gateway: &Gateway) {
    assert_eq!(gateway.get("/orders", "bystander").await.status, 200, "the gateway serves others");
}

#[tokio::test]
async fn ambiguous_or_malformed_heads_get_400_and_reach_nobody() {
    let upstream = Upstream::normal().await;
    let gateway = gateway(&upstream).await;
    let key = "X-Api-Key: shop-a\r\n";
    let cases = [
        (
            "Content-Length and Transfer-Encoding",
            format!(
                "POST /orders HTTP/1.1\r\nHost: a\r\n{key}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
            ),
        ),
        (
            "Transfer-Encoding and Content-Length",
            format!(
                "POST /orders HTTP/1.1\r\nHost: a\r\n{key}transfer-encoding: chunked\r\ncontent-length: 0\r\n\r\n0\r\n\r\n"
            ),
        ),
        (
            "Transfer-Encoding and a Content-Length with a space before its colon",
            format!(
                "POST /orders HTTP/1.1\r\nHost: a\r\n{key}Content-Length : 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
            ),
        ),
        (
            "a Transfer-Encoding that is not chunked",
            format!("POST /orders HTTP/1.1\r\nHost: a\r\n{key}Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"),
        ),
        (
            "a header continued on the next line",
            format!("GET /orders HTTP/1.1\r\nHost: a\r\n{key}X-Long: a\r\n b\r\n\r\n"),
        ),
        ("two Hosts", format!("GET /orders HTTP/1.1\r\nHost: a\r\nHost: b\r\n{key}\r\n")),
        ("no Host", format!("GET /orders HTTP/1.1\r\n{key}\r\n")),
        (
            "two Content-Lengths",
            format!("POST /orders HTTP/1.1\r\nHost: a\r\n{key}Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd"),
        ),
        (
            "the same Content-Length twice",
            format!("POST /orders HTTP/1.1\r\nHost: a\r\n{key}Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc"),
        ),
        (
            "a list for Content-Length",
            format!("POST /orders HTTP/1.1\r\nHost: a\r\n{key}Content-Length: 3, 3\r\n\r\nabc"),
        ),
        ("a Host with a space", format!("GET /orders HTTP/1.1\r\nHost: a b\r\n{key}\r\n")),
        ("a Host with a path", format!("GET /orders HTTP/1.1\r\nHost: a/b\r\n{key}\r\n")),
        ("a Host with a port that is none", format!("GET /orders HTTP/1.1\r\nHost: a:b\r\n{key}\r\n")),
        ("a negative Content-Length", format!("POST /orders HTTP/1.1\r\nHost: a\r\n{key}Content-Length: -1\r\n\r\n")),
        ("a signed Content-Length", format!("POST /orders HTTP/1.1\r\nHost: a\r\n{key}Content-Length: +3\r\n\r\nabc")),
        ("a text for Content-Length", format!("POST /orders HTTP/1.1\r\nHost: a\r\n{key}Content-Length: x\r\n\r\n")),
        ("a space before the colon", format!("POST /orders HTTP/1.1\r\nHost: a\r\n{key}Content-Length : 3\r\n\r\nabc")),
        ("a line without a colon", format!("GET /orders HTTP/1.1\r\nHost: a\r\n{key}nonsense\r\n\r\n")),
        ("no version", format!("GET /orders\r\nHost: a\r\n{key}\r\n")),
        ("not HTTP", "hello there, this is no HTTP\r\n\r\n".to_owned()),
        ("a NUL in a header", format!("GET /orders HTTP/1.1\r\nHost: a\r\n{key}X: a\0b\r\n\r\n")),
        ("300 headers", {
            let many: String = (0..300).map(|n| format!("X-Header-{n}: {n}\r\n")).collect();
            format!("GET /orders HTTP/1.1\r\nHost: a\r\n{key}{many}\r\n")
        }),
    ];
    for (what, bytes) in cases {
        let status = status(&gateway, bytes.as_bytes()).await;
        assert_eq!(status, Some(400), "{what}");
        assert_eq!(upstream.requests(), 0, "{what} reached the upstream");
    }
    let answer = status(&gateway, b"hello\r\n\r\n").await;
    assert_eq!(answer, Some(400), "fewer bytes than the preface of HTTP/2");
    let hello = status(&gateway, b"\x16\x03\x01\x02\x00\x01 hello\r\n\r\n").await;
    assert!(matches!(hello, None | Some(400)), "TLS on a plain listener: {hello:?}");
    still_serves(&gateway).await;
}

#[tokio::test]
async fn unusual_paths_are_answered_without_a_fault() {
    let upstream = Upstream::normal().await;
    let gateway = gateway(&upstream).await;
    let with_path = |path: &[u8]| {
        let mut bytes = b"GET ".to_vec();
        bytes.extend_from_slice(path);
        bytes.extend_from_slice(b" HTTP/1.1\r\nHost: a\r\nX-Api-Key: shop-a\r\n\r\n");
        bytes
    };
    let long = [b"/".as_slice(), &b"a".repeat(64 * 1024)].concat();
    let deep = b"/a".repeat(32 * 1024);
    let dots = [b"/..".repeat(10_000).as_slice(), b"/nowhere"].concat();
    let cases: &[(&str, &[u8])] = &[
        ("64 KB", &long),
        ("32 K segments", &deep),
        ("10,000 dot segments", &dots),
        ("not UTF-8", b"/\xff\xfe/orders"),
        ("encoded, not UTF-8", b"/%ff%fe/orders"),
        ("a bad escape", b"/%zz"),
        ("half an escape", b"/orders%2"),
        ("an encoded NUL", b"/%00"),
        ("no slash", b"orders"),
        ("an asterisk", b"*"),
    ];
    for (what, path) in cases {
        let status = status(&gateway, &with_path(path)).await;
        assert!(matches!(status, Some(400 | 404 | 414)), "{what}: {status:?}");
        still_serves(&gateway).await;
    }
    assert_eq!(upstream.heads().iter().filter(|head| !head.starts_with("GET /orders ")).count(), 0);
}

#[tokio::test]
async fn a_long_query_is_forwarded_or_refused_never_cut() {
    let upstream = Upstream::normal().await;
    let gateway = gateway(&upstream).await;
    let path = format!("/orders?q={}", "a".repeat(30_000));
    let answer = gateway.get(&path, "shop-a").await;
    match answer.status {
        200 => assert!(upstream.heads()[0].starts_with(&format!("GET {path} "))),
        other => assert!(matches!(other, 400 | 414 | 431), "{answer:?}"),
    }
}

#[tokio::test]
async fn garbage_after_a_good_request_does_not_spoil_it() {
    let upstream = Upstream::normal().await;
    let gateway = gateway(&upstream).await;
    let good = request("GET", "/orders", &[("X-Api-Key", "shop-a")]);
    let mut connection = Connection::open(gateway.address).await;
    connection.write(&[good.as_slice(), b"\x00\xffgarbage\r\n\r\n"].concat()).await;
    assert_eq!(connection.read(false).await.unwrap().status, 200);
    let rest = connection.read_to_end().await;
    assert!(rest.is_empty() || rest.starts_with(b"HTTP/1.1 400 "), "{:?}", String::from_utf8_lossy(&rest));
    assert_eq!(upstream.requests(), 1);
    still_serves(&gateway).await;
}

#[tokio::test]
async fn a_request_hidden_in_a_body_is_not_served() {
    let upstream = Upstream::normal().await;
    let gateway = gateway(&upstream).await;
    let hidden = "GET /orders HTTP/1.1\r\nHost: a\r\nX-Api-Key: victim\r\n\r\n";
    let length = hidden.len();
    let bytes = format!("POST /orders HTTP/1.1\r\nHost: a\r\nX-Api-Key: a\r\nContent-Length: {length}\r\n\r\n{hidden}");
    let mut connection = Connection::open(gateway.address).await;
    connection.write(bytes.as_bytes()).await;
    assert_eq!(connection.read(false).await.unwrap().status, 200);
    still_serves(&gateway).await;
    assert_eq!(upstream.requests(), 2, "the two that were sent");
    assert_eq!(gateway.get("/orders", "victim").await.number("X-RateLimit-Remaining"), 999);
}

#[tokio::test]
async fn connect_and_unknown_methods_are_no_way_around_the_limit() {
    let upstream = Upstream::normal().await;
    let gateway = gateway(&upstream).await;
    let connect = b"CONNECT 127.0.0.1:1 HTTP/1.1\r\nHost: 127.0.0.1:1\r\nX-Api-Key: shop-a\r\n\r\n";
    let refused = status(&gateway, connect).await;
    assert!(matches!(refused, Some(400 | 404 | 405)), "{refused:?}");
    assert_eq!(upstream.requests(), 0);
    let before = gateway.get("/orders", "shop-a").await.number("X-RateLimit-Remaining");
    let odd = gateway.ask("BREW", "/orders", "shop-a").await;
    if odd.status == 200 {
        assert_eq!(odd.number("X-RateLimit-Remaining"), before - 1, "any method costs a token");
    } else {
        assert!(matches!(odd.status, 400 | 404 | 405 | 501), "{odd:?}");
    }
    still_serves(&gateway).await;
}
