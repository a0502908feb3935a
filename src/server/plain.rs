//! Client connections, told apart by their first bytes where they are plain: HTTP/1.1, or HTTP/2 by prior knowledge.
//!
//! Pingora's own look waits for as many bytes as the preface of HTTP/2 has, for ever: a shorter request (health checks
//! send such) would get no answer, and idle connections would never be closed.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use pingora::apps::{HttpServerOptions, ServerApp};
use pingora::protocols::Stream;
use pingora::protocols::l4::stream::Stream as PlainStream;
use pingora::server::ShutdownWatch;
use pingora::server::configuration::ServerConf;
use pingora_proxy::{HttpProxy, http_proxy};
use tokio::io::AsyncReadExt;
use tokio::time::timeout;

use crate::gateway::Gateway;

/// A client connection is closed when nothing comes for this long; Pingora's default for HTTP/2 is never.
const IDLE: Duration = Duration::from_secs(60);

/// [RFC 9113 section 3.4](https://www.rfc-editor.org/rfc/rfc9113#section-3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Hands connections to the proxy that speaks their protocol.
pub(super) struct Connections {
    /// And HTTP/2 where TLS has agreed on it.
    http1: Arc<HttpProxy<Gateway>>,
    http2: Arc<HttpProxy<Gateway>>,
}

impl Connections {
    pub(super) fn new(conf: &Arc<ServerConf>, gateway: Gateway) -> Self {
        let proxy = |gateway, h2c| {
            let mut options = HttpServerOptions::default();
            options.h2c = h2c;
            options.h2_idle_timeout = Some(IDLE);
            let mut proxy = http_proxy(conf, gateway);
            proxy.server_options = Some(options);
            Arc::new(proxy)
        };
        Self { http1: proxy(gateway.clone(), false), http2: proxy(gateway, true) }
    }
}

#[async_trait]
impl ServerApp for Connections {
    async fn process_new(self: &Arc<Self>, connection: Stream, shutdown: &ShutdownWatch) -> Option<Stream> {
        if !connection.as_any().is::<PlainStream>() {
            return self.http1.process_new(connection, shutdown).await;
        }
        let mut plain = connection.into_any().downcast::<PlainStream>().ok()?;
        match begins_http2(&mut plain).await? {
            false => self.http1.process_new(plain, shutdown).await,
            true => self.http2.process_new(plain, shutdown).await,
        }
    }

    async fn cleanup(&self) {
        self.http1.cleanup().await;
        self.http2.cleanup().await;
    }
}

/// Whether what comes begins with the preface of HTTP/2, decided by the first byte that tells; nothing is taken away.
/// `None` when nothing comes.
async fn begins_http2(connection: &mut PlainStream) -> Option<bool> {
    let mut seen = [0; PREFACE.len()];
    let mut length = 0;
    while length < PREFACE.len() && PREFACE.starts_with(&seen[..length]) {
        match timeout(IDLE, connection.read(&mut seen[length..])).await {
            Ok(Ok(more)) if more > 0 => length += more,
            _ if length > 0 => break,
            _ => return None,
        }
    }
    connection.rewind(&seen[..length]);
    Some(seen[..length] == *PREFACE)
}
