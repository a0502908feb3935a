//! HTTP/2 without TLS, by prior knowledge.

use std::net::SocketAddr;

use h2::client::SendRequest;
use http::{HeaderMap, Request, Response};
use tokio::net::TcpStream;

use crate::support::{HARDLY, Setup, Upstream};

async fn open(address: SocketAddr) -> SendRequest<bytes::Bytes> {
    let stream = TcpStream::connect(address).await.unwrap();
    let (sender, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    sender
}

async fn get(sender: &SendRequest<bytes::Bytes>, path: &str, tenant: &str) -> Response<Vec<u8>> {
    let request = Request::get(format!("http://gateway.test{path}")).header("x-api-key", tenant).body(()).unwrap();
    let (response, _) = sender.clone().ready().await.unwrap().send_request(request, true).unwrap();
    let (head, mut body) = response.await.unwrap().into_parts();
    let mut bytes = Vec::new();
    while let Some(chunk) = body.data().await {
        let chunk = chunk.unwrap();
        body.flow_control().release_capacity(chunk.len()).unwrap();
        bytes.extend_from_slice(&chunk);
    }
    Response::from_parts(head, bytes)
}

fn one<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    assert!(headers.get_all(name).iter().count() <= 1, "{name}: {headers:?}");
    headers.get(name).map(|value| value.to_str().unwrap())
}

#[tokio::test]
async fn the_limit_holds_over_http2_on_one_connection() {
    let upstream = Upstream::normal().await;
    let gateway = Setup::new(upstream.address).limit(2, HARDLY).start().await;
    let sender = open(gateway.address).await;
    for (status, remaining) in [(200, "1"), (200, "0"), (429, "0"), (429, "0")] {
        let answer = get(&sender, "/x/../orders", "shop-a").await;
        assert_eq!(answer.status(), status, "{answer:?}");
        assert_eq!(one(answer.headers(), "x-ratelimit-limit"), Some("2"), "{answer:?}");
        assert_eq!(one(answer.headers(), "x-ratelimit-remaining"), Some(remaining), "{answer:?}");
        if status == 429 {
            assert!(one(answer.headers(), "retry-after").is_some(), "{answer:?}");
            let problem: serde_json::Value = serde_json::from_slice(answer.body()).unwrap();
            assert_eq!(problem["status"], 429);
        } else {
            assert_eq!(answer.body(), b"ok\n");
        }
    }
    assert_eq!(get(&sender, "/nowhere", "shop-a").await.status(), 404);
    assert_eq!(upstream.requests(), 2);
}

#[tokio::test]
async fn a_hundred_streams_at_once_share_one_bucket() {
    let upstream = Upstream::normal().await;
    let gateway = Setup::new(upstream.address).limit(10, HARDLY).start().await;
    let sender = open(gateway.address).await;
    let streams: Vec<_> = (0..100)
        .map(|_| {
            let sender = sender.clone();
            tokio::spawn(async move { get(&sender, "/orders", "shop-a").await.status().as_u16() })
        })
        .collect();
    let mut admitted = 0;
    for stream in streams {
        match stream.await.unwrap() {
            200 => admitted += 1,
            status => assert_eq!(status, 429),
        }
    }
    assert_eq!(admitted, 10);
}
