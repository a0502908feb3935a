//! What a run comes to: the worst window, and what one central bucket would have admitted.

use sekisho::bucket::Limit;
use sekisho::limiter::Outcome;

use crate::fleet::Served;

/// Redis's clock has milliseconds: two moments of it are this much further apart, or less, than they say, in seconds.
pub(crate) const GRAIN: f64 = 0.001;

/// Tokens admitted beyond `capacity + refill · window`, in the worst window: the most that were *surely* spent within
/// it, since sent after its start and decided before its end. So nothing is allowed for slow calls or a busy machine.
pub(crate) fn excess<'a>(served: impl IntoIterator<Item = &'a Served>, limit: Limit) -> f64 {
    let (capacity, rate) = (f64::from(limit.capacity()), limit.refill_per_second());
    let mut admitted: Vec<&Served> =
        served.into_iter().filter(|one| one.decision.outcome == Outcome::Allowed).collect();
    let mut starts: Vec<f64> = admitted.iter().map(|one| one.sent).collect();
    starts.sort_unstable_by(f64::total_cmp);
    admitted.sort_unstable_by(|one, other| one.decided.total_cmp(&other.decided));
    // For each possible start: the tokens of the windows from there to now, plus `rate · start`.
    let mut windows = PrefixMax::new(starts.iter().map(|start| rate * start));
    let up_to = |moment: f64| starts.partition_point(|&start| start <= moment);
    let mut worst = f64::NEG_INFINITY;
    for one in admitted {
        windows.add(up_to(one.sent), f64::from(one.cost));
        worst = worst.max(windows.max(up_to(one.decided)) - rate * one.decided - capacity);
    }
    worst
}

/// The same by the moments of decision alone: this includes how long decisions took.
pub(crate) fn excess_as_seen<'a>(served: impl IntoIterator<Item = &'a Served>, limit: Limit) -> f64 {
    let as_seen: Vec<Served> = served.into_iter().map(|one| Served { sent: one.decided, ..*one }).collect();
    excess(&as_seen, limit)
}

/// Tokens admitted.
pub(crate) fn admitted<'a>(served: impl IntoIterator<Item = &'a Served>) -> u64 {
    served.into_iter().filter(|one| one.decision.outcome == Outcome::Allowed).map(|one| u64::from(one.cost)).sum()
}

/// Tokens that one bucket in the middle would have admitted of the same requests at the moments they were sent.
pub(crate) fn central<'a>(served: impl IntoIterator<Item = &'a Served>, limit: Limit) -> u64 {
    let mut sent: Vec<(f64, u32)> = served.into_iter().map(|one| (one.sent, one.cost)).collect();
    sent.sort_unstable_by(|one, other| one.0.total_cmp(&other.0));
    let capacity = f64::from(limit.capacity());
    let (mut tokens, mut at, mut admitted) = (capacity, 0.0, 0);
    for (now, cost) in sent {
        tokens = capacity.min(tokens + (now - at) * limit.refill_per_second());
        at = now;
        if tokens >= f64::from(cost) {
            tokens -= f64::from(cost);
            admitted += u64::from(cost);
        }
    }
    admitted
}

/// Numbers that are raised, and whose maximum is asked, over the first so many.
struct PrefixMax {
    leaves: usize,
    /// The maximum under each node, without what was added above it.
    max: Vec<f64>,
    added: Vec<f64>,
}

impl PrefixMax {
    fn new(values: impl ExactSizeIterator<Item = f64>) -> Self {
        let leaves = values.len().next_power_of_two();
        let mut max = vec![f64::NEG_INFINITY; 2 * leaves];
        for (i, value) in values.enumerate() {
            max[leaves + i] = value;
        }
        for node in (1..leaves).rev() {
            max[node] = max[2 * node].max(max[2 * node + 1]);
        }
        Self { leaves, max, added: vec![0.0; 2 * leaves] }
    }

    fn add(&mut self, first: usize, value: f64) {
        self.add_under(1, self.leaves, first, value);
    }

    fn add_under(&mut self, node: usize, width: usize, first: usize, value: f64) {
        if first == 0 {
        } else if first >= width {
            self.max[node] += value;
            self.added[node] += value;
        } else {
            let half = width / 2;
            self.add_under(2 * node, half, first.min(half), value);
            self.add_under(2 * node + 1, half, first.saturating_sub(half), value);
            self.max[node] = self.max[2 * node].max(self.max[2 * node + 1]) + self.added[node];
        }
    }

    fn max(&self, first: usize) -> f64 {
        self.max_under(1, self.leaves, first)
    }

    fn max_under(&self, node: usize, width: usize, first: usize) -> f64 {
        if first == 0 {
            f64::NEG_INFINITY
        } else if first >= width {
            self.max[node]
        } else {
            let half = width / 2;
            let left = self.max_under(2 * node, half, first.min(half));
            left.max(self.max_under(2 * node + 1, half, first.saturating_sub(half))) + self.added[node]
        }
    }
}

mod tests {
    use sekisho::limiter::{Decision, Source};

    use super::*;
    use crate::fleet::limit;

    fn allowed(sent: f64, decided: f64) -> Served {
        let decision = Decision { outcome: Outcome::Allowed, source: Source::Store, quota: None };
        Served { subject: 0, cost: 1, sent, decided, decision }
    }

    #[test]
    fn the_worst_window_is_found_wherever_it_is() {
        // 3 at once after a quiet time, where 2 and a little fit.
        let served: Vec<Served> = [0.0, 1.0, 5.0, 5.1, 5.2, 9.0].map(|t| allowed(t, t + 0.001)).into();
        let found = excess(&served, limit(2, 1.0));
        assert!((found - (3.0 - 2.0 - 0.201)).abs() < 1e-9, "{found}");
        // The same three, if the first may have been spent long before.
        let mut served = served;
        served[2].sent = 3.0;
        let found = excess(&served, limit(2, 1.0));
        assert!(found <= 0.0, "{found}");
    }
}
