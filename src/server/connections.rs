//! Client connections: refused where there is no room, told apart by their first bytes where they are plain (HTTP/1.1,
//! or HTTP/2 by prior knowledge), and closed where a client is too slow.
//!
//! Pingora's own look waits for as many bytes as the preface of HTTP/2 has, for ever: a shorter request (health checks
//! send such) would get no answer, and idle connections would never be closed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use pingora::apps::{HttpServerApp, HttpServerOptions, ReusedHttpStream, ServerApp};
use pingora::protocols::http::ServerSession;
use pingora::protocols::http::v2::server::H2Options;
use pingora::protocols::l4::stream::Stream as PlainStream;
use pingora::protocols::{ALPN, Stream};
use pingora::server::ShutdownWatch;
use pingora::server::configuration::ServerConf;
use pingora_proxy::{HttpProxy, http_proxy};
use tokio::io::AsyncReadExt;
use tokio::time::timeout;

use super::room::{self, Room};
use crate::config::ClientTimeouts;
use crate::gateway::{Gateway, head};

/// [RFC 9113 section 3.4](https://www.rfc-editor.org/rfc/rfc9113#section-3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Hands connections to the proxy that speaks their protocol.
pub(super) struct Connections {
    /// And HTTP/2 where TLS has agreed on it.
    http1: Arc<HttpProxy<Gateway>>,
    http2: Arc<HttpProxy<Gateway>>,
    limits: ClientTimeouts,
    room: Room,
}

impl Connections {
    pub(super) fn new(conf: &Arc<ServerConf>, gateway: Gateway, limits: ClientTimeouts, room: Room) -> Self {
        let proxy = |gateway, h2c| {
            let mut options = HttpServerOptions::default();
            options.h2c = h2c;
            // Pingora's default is never.
            options.h2_idle_timeout = Some(limits.keepalive);
            let mut proxy = http_proxy(conf, gateway);
            proxy.server_options = Some(options);
            Arc::new(proxy)
        };
        Self { http1: proxy(gateway.clone(), false), http2: proxy(gateway, true), limits, room }
    }

    /// Serves one request after the other; the first has begun where its first byte is there.
    async fn serve_http1(&self, connection: Stream, has_begun: bool, shutdown: &ShutdownWatch) {
        // Where no first byte tells when a request begins, the wait for it counts too.
        let next = self.limits.keepalive + self.limits.header;
        let mut limit = if has_begun { self.limits.header } else { next };
        let mut session = ServerSession::new_http1(connection);
        session.set_keepalive((!*shutdown.borrow()).then(|| self.limits.keepalive_seconds()));
        loop {
            let served = head::within(limit, self.http1.process_new_http(session, shutdown)).await;
            let Some((connection, settings)) = served.flatten().map(ReusedHttpStream::consume) else { return };
            session = ServerSession::new_http1(connection);
            if let Some(settings) = settings {
                settings.apply_to_session(&mut session);
            }
            limit = next;
        }
    }

    /// Serves all requests of a connection, the first of which has to come in time: after TLS, Pingora waits for the
    /// preface for ever.
    async fn serve_http2(&self, proxy: &Arc<HttpProxy<Gateway>>, connection: Stream, shutdown: &ShutdownWatch) {
        let proxy = Arc::new(Http2 { proxy: Arc::clone(proxy), has_begun: AtomicBool::new(false) });
        let has_begun = || proxy.has_begun.load(Ordering::Relaxed);
        let limit = self.limits.keepalive + self.limits.header;
        head::begun_within(limit, has_begun, proxy.process_new(connection, shutdown)).await;
    }

    /// Whether what comes begins with the preface of HTTP/2, decided by the first byte that tells; nothing is taken
    /// away. `None` when too little comes in time.
    async fn begins_http2(&self, connection: &mut PlainStream) -> Option<bool> {
        let mut seen = [0; PREFACE.len()];
        let mut length = timeout(self.limits.keepalive, connection.read(&mut seen)).await.ok()?.ok()?;
        let rest = async {
            while length > 0 && length < PREFACE.len() && PREFACE.starts_with(&seen[..length]) {
                match connection.read(&mut seen[length..]).await {
                    Ok(more) if more > 0 => length += more,
                    _ => return None,
                }
            }
            (length > 0).then_some(length)
        };
        let length = timeout(self.limits.header, rest).await.ok()??;
        connection.rewind(&seen[..length]);
        Some(seen[..length] == *PREFACE)
    }
}

/// One connection of HTTP/2.
struct Http2 {
    proxy: Arc<HttpProxy<Gateway>>,
    /// Has there been a request?
    has_begun: AtomicBool,
}

#[async_trait]
impl HttpServerApp for Http2 {
    async fn process_new_http(
        self: &Arc<Self>,
        session: ServerSession,
        shutdown: &ShutdownWatch,
    ) -> Option<ReusedHttpStream> {
        self.has_begun.store(true, Ordering::Relaxed);
        self.proxy.process_new_http(session, shutdown).await
    }

    fn h2_options(&self) -> Option<H2Options> {
        self.proxy.h2_options()
    }

    fn server_options(&self) -> Option<&HttpServerOptions> {
        self.proxy.server_options()
    }
}

#[async_trait]
impl ServerApp for Connections {
    /// To the end of the connection: there is no next time for it.
    async fn process_new(self: &Arc<Self>, connection: Stream, shutdown: &ShutdownWatch) -> Option<Stream> {
        if !connection.as_any().is::<PlainStream>() {
            match connection.selected_alpn_proto() {
                Some(ALPN::H2) => self.serve_http2(&self.http1, connection, shutdown).await,
                _ => self.serve_http1(connection, false, shutdown).await,
            }
            return None;
        }
        let mut plain = connection.into_any().downcast::<PlainStream>().ok()?;
        if !self.room.admits(&plain) {
            room::refuse(&mut plain).await;
            return None;
        }
        match self.begins_http2(&mut plain).await? {
            false => self.serve_http1(plain, true, shutdown).await,
            true => self.serve_http2(&self.http2, plain, shutdown).await,
        }
        None
    }

    async fn cleanup(&self) {
        self.http1.cleanup().await;
        self.http2.cleanup().await;
    }
}
