//! What runs beside the proxy, each on a runtime of its own.

use async_trait::async_trait;
use parking_lot::Mutex;
use pingora::server::ShutdownWatch;
use pingora::services::background::BackgroundService;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

use crate::rules::Loader;
use crate::store::redis::Driver;

/// Keeps rules and keys up to date: every `rules.refresh`, and on SIGHUP.
#[derive(Debug)]
pub(super) struct RulesService {
    loader: Loader,
    hangup: Notify,
}

impl RulesService {
    pub(super) fn new(loader: Loader) -> Self {
        Self { loader, hangup: Notify::new() }
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
        }
    }
}

/// Talks to the shared store.
#[derive(Debug)]
pub(super) struct StoreService {
    driver: Mutex<Option<Driver>>,
}

impl StoreService {
    pub(super) fn new(driver: Driver) -> Self {
        Self { driver: Mutex::new(Some(driver)) }
    }
}

#[async_trait]
impl BackgroundService for StoreService {
    /// Ends with the process, not with the first sign of shutdown: requests that are still in flight need the store.
    async fn start(&self, _shutdown: ShutdownWatch) {
        let driver = self.driver.lock().take();
        if let Some(driver) = driver {
            driver.run().await;
        }
    }
}
