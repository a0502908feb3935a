//! TLS listeners.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use openssl::ssl::{SslConnector, SslMethod, SslStream, SslVerifyMode};

use crate::support::{HARDLY, Setup, Upstream, free_address, sekisho, write_certificate};

pub(crate) fn with_tls(setup: Setup, dir: &Path, listen: SocketAddr) -> Setup {
    let path = |name: &str| dir.join(name).display().to_string();
    setup.table(&format!(
        "[[server.tls]]\nlisten = \"{listen}\"\ncertificate = {:?}\nkey = {:?}\n",
        path("cert.pem"),
        path("key.pem")
    ))
}

/// A TLS connection that offers these protocols; whoever signed the certificate.
pub(crate) fn connect(address: SocketAddr, alpn: &[u8]) -> SslStream<TcpStream> {
    let mut connector = SslConnector::builder(SslMethod::tls_client()).unwrap();
    connector.set_verify(SslVerifyMode::NONE);
    connector.set_alpn_protos(alpn).unwrap();
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    connector.build().connect("gateway.test", stream).unwrap()
}

/// What ALPN agreed on, and the first bytes of the answer to an HTTP/1.1 request where that is it.
fn talk(address: SocketAddr, alpn: &[u8]) -> (Option<Vec<u8>>, String) {
    let mut tls = connect(address, alpn);
    let agreed = tls.ssl().selected_alpn_protocol().map(<[u8]>::to_vec);
    let mut answer = vec![0; 4096];
    if agreed.as_deref() == Some(b"h2") {
        return (agreed, String::new());
    }
    tls.write_all(b"GET /orders HTTP/1.1\r\nHost: gateway.test\r\nX-Api-Key: shop-a\r\n\r\n").unwrap();
    let length = tls.read(&mut answer).unwrap();
    (agreed, String::from_utf8_lossy(&answer[..length]).into_owned())
}

#[tokio::test]
async fn a_tls_listener_serves_http1_and_offers_http2() {
    let upstream = Upstream::normal().await;
    let dir = tempfile::tempdir().unwrap();
    write_certificate(dir.path(), "gateway.test");
    let listen = free_address();
    let gateway = with_tls(Setup::new(upstream.address).limit(2, HARDLY), dir.path(), listen).start().await;
    let talking =
        tokio::task::spawn_blocking(move || (talk(listen, b"\x08http/1.1"), talk(listen, b"\x02h2\x08http/1.1")));
    let ((_, answer), (agreed, _)) = talking.await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.to_lowercase().contains("x-ratelimit-remaining: 1"), "{answer}");
    assert_eq!(agreed.as_deref(), Some(&b"h2"[..]));
    assert_eq!(
        gateway.get("/orders", "shop-a").await.number("X-RateLimit-Remaining"),
        0,
        "one bucket for all listeners"
    );
}

#[test]
fn a_missing_or_damaged_certificate_is_named_before_anything_starts() {
    let dir = tempfile::tempdir().unwrap();
    for damage in [None, Some("not a certificate")] {
        if let Some(text) = damage {
            std::fs::write(dir.path().join("cert.pem"), text).unwrap();
            std::fs::write(dir.path().join("key.pem"), text).unwrap();
        }
        let setup = with_tls(Setup::new(free_address()), dir.path(), free_address());
        let config = setup.write(dir.path(), free_address(), free_address());
        for command in ["check", "run"] {
            let run = sekisho(&[command, "-c", config.to_str().unwrap()]);
            let said = format!("{}{}", run.stdout, run.stderr);
            assert_eq!(run.code, Some(1), "{command}: {said}");
            assert!(said.contains("cert.pem"), "{command}: {said}");
            assert!(!said.contains("panicked"), "{said}");
        }
    }
}
