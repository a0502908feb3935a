//! What a run comes to.

use std::time::Duration;

use sekisho::limiter::{Outcome, Source};

use crate::run::{Played, Served};
use crate::store::Counters;
use crate::support::STORE_TIMEOUT;
use crate::traffic::{Arrival, Scene};

/// One row of the table.
pub(crate) struct Figures {
    pub(crate) offered: usize,
    pub(crate) admitted: usize,
    /// Decisions that neither the store nor a lease nor a hold made in time.
    pub(crate) undecided: usize,
    /// Shares of decisions.
    pub(crate) by_lease: f64,
    pub(crate) by_hold: f64,
    /// What one bucket in the middle would have admitted.
    pub(crate) central: usize,
    /// Tokens beyond `capacity + rate · window`, in the worst window of the worst tenant.
    pub(crate) overshoot: f64,
    /// What of that the time between a token taken and its stamp explains: rate · (timeout + scheduling delay).
    pub(crate) allowance: f64,
    /// Store calls per decision.
    pub(crate) calls: f64,
    /// Redis's processor time per decision, in microseconds.
    pub(crate) redis_cpu: f64,
    /// p50, p99 and p99.9 since a request was due, and since it was sent.
    pub(crate) since_due: [Duration; 3],
    pub(crate) since_sent: [Duration; 3],
    /// p99 of how late the generator sent.
    pub(crate) generator_lag: Duration,
}

impl Figures {
    pub(crate) fn new(scene: Scene, arrivals: &[Arrival], played: &Played, before: Counters, after: Counters) -> Self {
        let offered = arrivals.len();
        let served = &played.served;
        let share = |source| served.iter().filter(|one| one.source == source).count() as f64 / offered as f64;
        let quantiles = |time: &dyn Fn(&Served) -> Duration| quantiles(served.iter().map(time).collect());
        let due = |one: &Served| arrivals[one.request].at;
        // A decision that took longer than the store may shows how late its thread was.
        let longest = served.iter().map(|one| one.decided.saturating_sub(one.sent)).max().unwrap_or_default();
        let delay = played.lateness.max(longest.saturating_sub(STORE_TIMEOUT));
        Self {
            offered,
            admitted: served.iter().filter(|one| one.outcome == Outcome::Allowed).count(),
            undecided: served.iter().filter(|one| one.outcome == Outcome::Unavailable).count(),
            by_lease: share(Source::Lease),
            by_hold: share(Source::Hold),
            central: central(scene, arrivals, served),
            overshoot: overshoot(scene, arrivals, served),
            allowance: scene.rate * (STORE_TIMEOUT + delay).as_secs_f64(),
            calls: after.calls as f64 / offered as f64,
            redis_cpu: (after.cpu - before.cpu) * 1e6 / offered as f64,
            since_due: quantiles(&|one| one.decided.saturating_sub(due(one))),
            since_sent: quantiles(&|one| one.decided.saturating_sub(one.sent)),
            generator_lag: quantiles(&|one| one.sent.saturating_sub(due(one)))[1],
        }
    }
}

/// What one bucket for each tenant would have admitted of the same requests at the moments they were sent.
fn central(scene: Scene, arrivals: &[Arrival], served: &[Served]) -> usize {
    let mut sent: Vec<(usize, f64)> = served.iter().map(|one| (one.request, one.sent.as_secs_f64())).collect();
    sent.sort_unstable_by_key(|&(request, _)| request);
    let capacity = f64::from(scene.capacity);
    let mut buckets = vec![(capacity, 0.0); scene.tenants()];
    sent.iter()
        .filter(|&&(request, now)| {
            let (tokens, at) = &mut buckets[arrivals[request].tenant];
            *tokens = capacity.min(*tokens + (now - *at) * scene.rate);
            *at = now;
            let admitted = *tokens >= 1.0;
            *tokens -= f64::from(u8::from(admitted));
            admitted
        })
        .count()
}

/// The most tokens that any tenant got in any window beyond `capacity + rate · window`. One pass: the n-th admission at
/// time t ends the worst of all windows that started where `n − rate · t` was lowest.
fn overshoot(scene: Scene, arrivals: &[Arrival], served: &[Served]) -> f64 {
    let mut admitted: Vec<(f64, usize)> = served
        .iter()
        .filter(|one| one.outcome == Outcome::Allowed)
        .map(|one| (one.decided.as_secs_f64(), arrivals[one.request].tenant))
        .collect();
    admitted.sort_unstable_by(|one, other| one.0.total_cmp(&other.0));
    let mut tenants = vec![(0.0, f64::INFINITY); scene.tenants()];
    let mut worst = 0.0_f64;
    for (now, tenant) in admitted {
        let (before, lowest) = &mut tenants[tenant];
        *lowest = lowest.min(*before - scene.rate * now);
        *before += 1.0;
        worst = worst.max(*before - scene.rate * now - *lowest - f64::from(scene.capacity));
    }
    worst
}

/// p50, p99 and p99.9.
fn quantiles(mut times: Vec<Duration>) -> [Duration; 3] {
    times.sort_unstable();
    let last = times.len().saturating_sub(1);
    [0.5, 0.99, 0.999].map(|share| times.get((last as f64 * share).round() as usize).copied().unwrap_or_default())
}
