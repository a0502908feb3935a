//! Time as milliseconds of a clock that never steps, injected so that tests own it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// A monotonic clock in milliseconds.
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    Monotonic(Instant),
    Manual(Arc<AtomicU64>),
}

impl Clock {
    /// The operating system's monotonic clock, starting near 0 now.
    #[allow(clippy::disallowed_methods, reason = "the one place that reads it for decisions")]
    pub fn monotonic() -> Self {
        Self(Source::Monotonic(Instant::now()))
    }

    /// A clock that stands still until somebody sets `now`.
    pub fn manual(now: Arc<AtomicU64>) -> Self {
        Self(Source::Manual(now))
    }

    /// Milliseconds.
    pub fn now(&self) -> u64 {
        match &self.0 {
            Source::Monotonic(start) => {
                let elapsed = start.elapsed();
                elapsed.as_secs() * 1000 + u64::from(elapsed.subsec_millis())
            }
            Source::Manual(now) => now.load(Ordering::Relaxed),
        }
    }
}
