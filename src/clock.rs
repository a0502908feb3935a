//! Time as milliseconds of a clock that never steps, injected so that tests own it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::time::{ClockId, clock_gettime};

/// A monotonic clock in milliseconds.
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    /// Counts from this moment of the system's clock.
    Monotonic(u64),
    Manual(Arc<AtomicU64>),
}

impl Clock {
    /// The operating system's monotonic clock, starting near 0 now.
    pub fn monotonic() -> Self {
        Self(Source::Monotonic(milliseconds(ClockId::Monotonic)))
    }

    /// A clock that stands still until somebody sets `now`.
    pub fn manual(now: Arc<AtomicU64>) -> Self {
        Self(Source::Manual(now))
    }

    /// Milliseconds.
    pub fn now(&self) -> u64 {
        self.read(ClockId::Monotonic)
    }

    /// Milliseconds as of the system's last tick: up to 10 ms ago, for a fraction of the price.
    pub fn tick(&self) -> u64 {
        self.read(ClockId::MonotonicCoarse)
    }

    fn read(&self, clock: ClockId) -> u64 {
        match &self.0 {
            Source::Monotonic(start) => milliseconds(clock).saturating_sub(*start),
            Source::Manual(now) => now.load(Ordering::Relaxed),
        }
    }
}

fn milliseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tick_is_not_long_ago() {
        let clock = Clock::monotonic();
        while clock.tick() == 0 {}
        let (before, tick, after) = (clock.now(), clock.tick(), clock.now());
        assert!(before <= tick + 11 && tick <= after, "{before}, {tick}, {after}");
    }
}
