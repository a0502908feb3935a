//! Limiters for the benches, made as the gateway makes them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sekisho::bucket::Limit;
use sekisho::clock::Clock;
use sekisho::config;
use sekisho::limiter::{Limiter, StoreState, Upkeep};
use sekisho::rules::{ANY, FailurePolicy, Mode, Rule};

/// `store.timeout`, as it is by default.
pub(crate) const STORE_TIMEOUT: Duration = Duration::from_millis(5);

/// So many tokens, refilled at so many per second.
#[allow(clippy::expect_used, reason = "constants of the benches")]
pub(crate) fn limit(capacity: u32, refill_per_second: f64) -> Limit {
    Limit::new(capacity.into(), refill_per_second).expect("a valid limit")
}

/// A limiter over Redis at `url`, or over buckets in this process, with the default settings but for what is given.
#[allow(clippy::expect_used, reason = "nothing can be measured without")]
pub(crate) fn limiter(
    url: Option<&str>,
    key_prefix: &str,
    max_keys: usize,
    prefetch: bool,
    clock: Clock,
) -> (Limiter, Option<Upkeep>) {
    let any: Arc<str> = ANY.into();
    let default_rule = Rule {
        tenant_id: Arc::clone(&any),
        route_id: any,
        limit: limit(20, 10.0),
        cost: None,
        on_store_failure: None,
        shards: 1,
        mode: Mode::Enforce,
        enabled: true,
        comment: None,
    };
    let settings = config::Limiter {
        default_rule,
        max_keys,
        instances: 1,
        on_store_failure: FailurePolicy::Closed,
        prefetch: config::Prefetch { batch: 50, horizon: Duration::from_millis(100), enabled: prefetch },
        // Never opens: benches offer more than a busy machine answers in time.
        breaker: config::Breaker { minimum_calls: u32::MAX, failures_in_a_row: u32::MAX, ..config::Breaker::default() },
    };
    let store = config::Store {
        redis: url.and_then(config::Redis::single),
        timeout: STORE_TIMEOUT,
        key_prefix: key_prefix.to_owned(),
    };
    Limiter::new(&store, &settings, clock).expect("a limiter")
}

/// Waits until its upkeep has found the store to be so.
#[allow(clippy::disallowed_methods, reason = "a bench may block its own thread")]
pub(crate) fn wait_until(limiter: &Limiter, state: StoreState) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while limiter.store_state() != state {
        assert!(Instant::now() < deadline, "the store is not {state:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A name for keys that no other run uses.
pub(crate) fn key_prefix() -> String {
    format!("bench-{:08x}", rand::random::<u32>())
}
