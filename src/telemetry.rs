//! The log: lines on stderr; `RUST_LOG` chooses what is told (default `info`).

mod throttle;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use tracing_subscriber::filter::{EnvFilter, FilterExt, LevelFilter};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use self::throttle::Throttle;

/// Never more than this of Pingora's own log: below it stand whole request heads, API keys included.
const QUIET: [&str; 3] = ["pingora_core", "pingora_http", "pingora_load_balancing"];

/// Nothing at all of these, which would fill the log. The connectors say at level ERROR that a connection from the pool
/// was not free yet: with several workers many times a second. The proxy has a line for each client that leaves, and for
/// each try at a server that is down; [`gateway`](crate::gateway) tells what matters.
const SILENT: [&str; 2] = ["pingora_core::connectors", "pingora_proxy"];

/// Starts logging. A second call changes nothing.
pub fn init() {
    let chosen = EnvFilter::builder().with_default_directive(LevelFilter::INFO.into()).from_env_lossy();
    let quiet = QUIET.iter().map(|target| format!("{target}=warn"));
    let silent = SILENT.iter().map(|target| format!("{target}=off"));
    let filter =
        quiet.chain(silent).filter_map(|directive| directive.parse().ok()).fold(chosen, EnvFilter::add_directive);
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let _ = tracing_subscriber::registry().with(lines.with_filter(filter.and(Throttle::default()))).try_init();
}

/// Something that may happen very often, and is told at most once in a while.
#[derive(Debug)]
pub struct Seldom {
    started: Instant,
    every: Duration,
    /// Milliseconds after `started`.
    next: AtomicU64,
    untold: AtomicU64,
}

impl Seldom {
    /// Told at most once in `every`.
    pub fn new(every: Duration) -> Self {
        Self { started: Instant::now(), every, next: AtomicU64::new(0), untold: AtomicU64::new(0) }
    }

    /// Call each time it happens. `Some` when it is to be told: how often it has happened since it was told last.
    pub fn tell(&self) -> Option<u64> {
        self.untold.fetch_add(1, Ordering::Relaxed);
        let now = self.started.elapsed();
        let (next, after) = (self.next.load(Ordering::Relaxed), (now + self.every).as_millis() as u64);
        let is_due = now.as_millis() as u64 >= next
            && self.next.compare_exchange(next, after, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        is_due.then(|| self.untold.swap(0, Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_happens_often_is_told_at_once_and_then_seldom_with_its_number() {
        let seldom = Seldom::new(Duration::from_secs(10));
        assert_eq!(seldom.tell(), Some(1));
        for _ in 0..5 {
            assert_eq!(seldom.tell(), None);
        }
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!([seldom.tell(), seldom.tell()], [Some(6), None]);
    }
}
