//! The end of the process: as soon as nothing is in flight, not only when the grace period is over.

use std::process::exit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use pingora::server::{ShutdownSignal, ShutdownSignalWatch, ShutdownWatch, UnixShutdownSignalWatch};
use pingora::services::background::BackgroundService;
use tokio::time::{Instant, sleep};

use super::recording;
use crate::gateway::Recording;
use crate::limiter::Limiter;

const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Nothing must have been in flight for this long: a connection accepted before the listeners closed may only now send
/// its request.
const QUIET_FOR: Duration = Duration::from_millis(200);

/// The longest that leased tokens take to go back, and what is remembered of requests to be written.
const CLOSE_FOR: Duration = Duration::from_millis(500);

/// How long clients are told to ask elsewhere before the listeners close.
const FAREWELL: Duration = Duration::from_millis(500);

/// The signal to stop. Pingora then closes every connection that waits for its next request, which may be on its way:
/// so each answer says `Connection: close` for a moment before, and readiness is red.
#[derive(Debug)]
pub(super) struct Farewell {
    draining: Arc<AtomicBool>,
    longest: Duration,
}

impl Farewell {
    /// `draining` turns true with the signal.
    pub(super) fn new(draining: Arc<AtomicBool>, grace_period: Duration) -> Self {
        Self { draining, longest: FAREWELL.min(grace_period) }
    }
}

#[async_trait]
impl ShutdownSignalWatch for Farewell {
    async fn recv(&self) -> ShutdownSignal {
        let signal = UnixShutdownSignalWatch.recv().await;
        self.draining.store(true, Ordering::Relaxed);
        // In an upgrade the new process waits for the sockets, and Pingora itself goes on accepting for a while.
        if matches!(signal, ShutdownSignal::GracefulTerminate) {
            sleep(self.longest).await;
        }
        signal
    }
}

/// Waits for the shutdown, then for the last request.
#[derive(Debug)]
pub(super) struct Drain {
    in_flight: Arc<AtomicUsize>,
    limiter: Arc<Limiter>,
    recording: Recording,
    grace_period: Duration,
}

impl Drain {
    pub(super) fn new(
        in_flight: Arc<AtomicUsize>,
        limiter: Arc<Limiter>,
        recording: Recording,
        grace_period: Duration,
    ) -> Self {
        Self { in_flight, limiter, recording, grace_period }
    }
}

#[async_trait]
impl BackgroundService for Drain {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        if shutdown.wait_for(|stop| *stop).await.is_err() {
            return;
        }
        let begun = Instant::now();
        let mut busy_at = begun;
        while busy_at.elapsed() < QUIET_FOR && begun.elapsed() < self.grace_period {
            sleep(LOOK_EVERY).await;
            if self.in_flight.load(Ordering::Relaxed) > 0 {
                busy_at = Instant::now();
            }
        }
        let left = self.in_flight.load(Ordering::Relaxed);
        match left {
            0 => tracing::info!("nothing in flight any more: stopping"),
            _ => tracing::warn!(left, "the grace period is over: stopping"),
        }
        self.limiter.close(CLOSE_FOR).await;
        recording::close(&self.recording, CLOSE_FOR).await;
        // Pingora would sleep through the whole grace period.
        exit(0);
    }
}
