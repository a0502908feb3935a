//! What runs beside the proxy, each on a runtime of its own.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use pingora::server::ShutdownWatch;
use pingora::services::background::BackgroundService;
use tokio::net::TcpStream;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::limiter::Upkeep;
use crate::messengers::Messengers;
use crate::rules::Loader;

/// Keeps rules and keys up to date: every `rules.refresh`, on SIGHUP, and when a messenger tells of a change.
#[derive(Debug)]
pub(super) struct RulesService {
    loader: Loader,
    messengers: Messengers,
    hangup: Notify,
}

impl RulesService {
    pub(super) fn new(loader: Loader, messengers: Messengers) -> Self {
        Self { loader, messengers, hangup: Notify::new() }
    }

    async fn forward_hangups(&self) {
        match signal(SignalKind::hangup()) {
            Ok(mut hangups) => {
                while hangups.recv().await.is_some() {
                    self.hangup.notify_one();
                }
            }
            Err(error) => tracing::error!(%error, "SIGHUP will not reload the rules"),
        }
        std::future::pending().await
    }
}

#[async_trait]
impl BackgroundService for RulesService {
    async fn start(&self, shutdown: ShutdownWatch) {
        tokio::select! {
            () = self.loader.run(&self.hangup, shutdown) => {}
            () = self.forward_hangups() => {}
            () = self.messengers.run() => {}
        }
    }
}

/// Talks to the shared store.
#[derive(Debug)]
pub(super) struct StoreService {
    upkeep: Mutex<Option<Upkeep>>,
}

impl StoreService {
    pub(super) fn new(upkeep: Upkeep) -> Self {
        Self { upkeep: Mutex::new(Some(upkeep)) }
    }
}

#[async_trait]
impl BackgroundService for StoreService {
    /// Ends with the process, not with the first sign of shutdown: requests that are still in flight need the store.
    async fn start(&self, _shutdown: ShutdownWatch) {
        let upkeep = self.upkeep.lock().take();
        if let Some(upkeep) = upkeep {
            upkeep.run().await;
        }
    }
}

/// Finds out when clients can connect: Pingora binds listeners in tasks of their own and tells nobody.
#[derive(Debug)]
pub(super) struct ListeningService {
    addresses: Vec<SocketAddr>,
    listening: Arc<AtomicBool>,
}

impl ListeningService {
    /// Sets `listening` once all of `addresses` take connections.
    pub(super) fn new(addresses: Vec<SocketAddr>, listening: Arc<AtomicBool>) -> Self {
        Self { addresses, listening }
    }
}

#[async_trait]
impl BackgroundService for ListeningService {
    async fn start(&self, _shutdown: ShutdownWatch) {
        const LOOK_EVERY: Duration = Duration::from_millis(5);
        for address in &self.addresses {
            while TcpStream::connect(address).await.is_err() {
                sleep(LOOK_EVERY).await;
            }
        }
        self.listening.store(true, Ordering::Relaxed);
    }
}
