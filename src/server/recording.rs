//! What remembers requests, each on a runtime of its own, so that a slow disk or store holds nobody up.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use pingora::server::ShutdownWatch;
use pingora::services::background::BackgroundService;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::access_log::AccessLog;
use crate::config::Settings;
use crate::gateway::Recording;
use crate::limiter::Limiter;
use crate::usage::Usage;

/// What the settings ask for.
pub(super) fn of(settings: &Settings, limiter: &Limiter) -> Recording {
    let (routes, threads) = (&settings.routes, settings.server.threads);
    let usage = settings.usage.enabled.then(|| {
        let store = limiter.shared();
        Arc::new(Usage::new(&settings.usage, routes, threads, &settings.store.key_prefix, store))
    });
    let access_log = settings.access_log.as_ref().map(|log| Arc::new(AccessLog::new(log, routes, threads)));
    Recording { usage, access_log }
}

/// Writes what is not written yet, for the end of the process; takes no longer than `longest` for each of the two.
pub(super) async fn close(recording: &Recording, longest: Duration) {
    if let Some(log) = &recording.access_log {
        let log = Arc::clone(log);
        let _ = timeout(longest, spawn_blocking(move || log.write())).await;
    }
    if let Some(usage) = &recording.usage {
        usage.close(longest).await;
    }
}

/// Collects decisions, and adds them up with those of the fleet.
#[derive(Debug)]
pub(super) struct UsageService(Arc<Usage>);

impl UsageService {
    pub(super) fn new(usage: Arc<Usage>) -> Self {
        Self(usage)
    }
}

#[async_trait]
impl BackgroundService for UsageService {
    /// Ends with the process, not with the first sign of shutdown: requests are still in flight.
    async fn start(&self, _shutdown: ShutdownWatch) {
        self.0.run().await;
    }
}

/// Writes the access log.
#[derive(Debug)]
pub(super) struct AccessLogService(Arc<AccessLog>);

impl AccessLogService {
    pub(super) fn new(log: Arc<AccessLog>) -> Self {
        Self(log)
    }
}

#[async_trait]
impl BackgroundService for AccessLogService {
    /// As above.
    async fn start(&self, _shutdown: ShutdownWatch) {
        self.0.run().await;
    }
}
