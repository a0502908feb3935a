//! How many tokens to lease ahead: from the rate at which a key spends, as an estimator sees it. It only sizes leases;
//! accounting is exact and elsewhere, since the estimator (a count-min sketch) over-counts where keys collide.

use std::time::Duration;

use parking_lot::Mutex;
use pingora_limits::rate::{PROPORTIONAL_RATE_ESTIMATE_CALC_FN, Rate};

use crate::bucket::Limit;
use crate::config::Prefetch;

/// The estimator looks back over one to two of these.
const WINDOW: Duration = Duration::from_millis(200);
/// Rows of the sketch, and counters in each: small enough for the cache. A key's estimate is too high by about
/// `e / COUNTERS` of all tokens spent in a window: at 50,000 tokens per second by one token.
const ROWS: usize = 2;
const COUNTERS: usize = 32_768;
/// A lease smaller than this is not worth its accounting.
const SMALLEST: u32 = 4;

/// Estimates demand. Fed once per call with the tokens spent since the last, not once per request.
pub(super) struct Demand {
    /// Behind a lock, which is hardly ever contended (calls are few, and made by one thread): pingora-limits 0.9.1 wipes
    /// its windows or panics when two threads turn them at once.
    rate: Mutex<Rate>,
    batch: u32,
    horizon: f64,
}

impl std::fmt::Debug for Demand {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Demand").field("batch", &self.batch).field("horizon", &self.horizon).finish_non_exhaustive()
    }
}

impl Demand {
    pub(super) fn new(settings: Prefetch) -> Self {
        Self {
            rate: Mutex::new(Rate::new_with_estimator_config(WINDOW, ROWS, COUNTERS)),
            batch: settings.batch,
            horizon: settings.horizon.as_secs_f64(),
        }
    }

    /// Counts `spent` tokens of a key and returns its rate, in tokens per second.
    pub(super) fn observe(&self, key: u64, spent: u32) -> f64 {
        let rate = self.rate.lock();
        rate.observe(&key, spent as isize);
        rate.rate_with(&key, PROPORTIONAL_RATE_ESTIMATE_CALC_FN)
    }

    /// The lease for a key that spends at `rate` tokens per second: what it needs within the horizon, or within half the
    /// time its bucket takes to fill, whichever is shorter. Whole batches for a hot key, exactly the need of a warm one,
    /// nothing for a cold one.
    pub(super) fn lease(&self, rate: f64, limit: Limit) -> u32 {
        let fill = f64::from(limit.capacity()) / limit.refill_per_second();
        let need = rate * self.horizon.min(fill / 2.0);
        if need >= f64::from(self.batch) / 2.0 {
            let batches = (need / f64::from(self.batch)).ceil();
            (batches * f64::from(self.batch)).min(f64::from(Limit::MAX)) as u32
        } else {
            Some(need as u32).filter(|&need| need >= SMALLEST).unwrap_or(0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demand() -> Demand {
        Demand::new(Prefetch { batch: 50, horizon: Duration::from_millis(100), enabled: true })
    }

    #[test]
    fn hot_keys_lease_whole_batches_warm_ones_their_need_and_cold_ones_nothing() {
        let limit = Limit::new(10_000, 1000.0).unwrap();
        let lease = |rate| demand().lease(rate, limit);
        assert_eq!([lease(10.0), lease(39.0), lease(40.0), lease(240.0)], [0, 0, 4, 24]);
        assert_eq!([lease(250.0), lease(500.0), lease(501.0), lease(5000.0)], [50, 50, 100, 500]);
    }

    #[test]
    fn a_bucket_that_fills_fast_is_leased_for_half_its_fill_time_only() {
        let limit = Limit::new(20, 1000.0).unwrap();
        assert_eq!(demand().lease(1000.0, limit), 10, "20 tokens fill in 20 ms; 10 ms at 1000/s");
    }

    #[test]
    fn a_key_is_estimated_by_its_own_tokens() {
        let demand = demand();
        for other in 0..10_000 {
            demand.observe(other, 1);
        }
        let rate = demand.observe(77_777, 100);
        assert!((250.0..=520.0).contains(&rate), "{rate} tokens per second");
    }
}
