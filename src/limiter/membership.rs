//! How many gateways share the limits, and which of them this one is: what each is told when it says, once a second, that
//! it is alive. Only the shares of an outage depend on it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::Clock;
use crate::store::redis::RedisStore;

/// From one beat to the next, jittered by a tenth to either side.
const BEAT_EVERY: Duration = Duration::from_secs(1);
/// A beat that is not answered by then is none.
const BEAT_TIMEOUT: Duration = Duration::from_secs(1);
/// The number falls only when every beat has been answered for so long, and each answer was lower: after the store has
/// hung, the first to beat finds everybody else expired.
const FALLS_AFTER_MS: u64 = 5_000;

/// The place of one gateway among those alive: `before` of `live`, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    live: u32,
    before: u32,
}

impl Place {
    /// Of `live` gateways (at least 1) `before` come first.
    pub(super) fn new(live: u32, before: u32) -> Self {
        let live = live.max(1);
        Self { live, before: before.min(live - 1) }
    }

    /// Gateways alive, at least 1.
    pub(super) fn live(self) -> u32 {
        self.live
    }

    /// This gateway's part of a number that all share.
    pub(super) fn part(self, whole: f64) -> f64 {
        whole / f64::from(self.live)
    }

    /// Tokens of a request that costs `cost` that a share need not have yet: none for the first gateway, and more for each
    /// that comes after.
    pub(super) fn early(self, cost: u32) -> f64 {
        f64::from(cost) * f64::from(self.before) / f64::from(self.live)
    }
}

/// What this gateway knows of the fleet.
#[derive(Debug)]
pub(super) struct Membership {
    /// Tells this process from all others, as long as it lives.
    id: String,
    left: AtomicBool,
    /// The place, in one word.
    place: AtomicU64,
    count: Mutex<Count>,
    clock: Clock,
}

impl Membership {
    /// `instances` gateways, until more beat or the store has said for a while that there are fewer; which of them this is
    /// is drawn until it is known.
    pub(super) fn new(instances: u32, clock: Clock) -> Self {
        let place = Place::new(instances, rand::random_range(0..instances.max(1)));
        Self {
            id: format!("{:032x}", rand::random::<u128>()),
            left: AtomicBool::new(false),
            place: AtomicU64::new(packed(place)),
            count: Mutex::new(Count::new(place.live)),
            clock,
        }
    }

    /// As of the last answered beat; kept while the store is away.
    pub(super) fn place(&self) -> Place {
        let packed = self.place.load(Ordering::Relaxed);
        Place { live: (packed >> 32) as u32, before: packed as u32 }
    }

    /// Beats until this gateway leaves, or as long as it is polled.
    pub(super) async fn beat(&self, store: &RedisStore) {
        while !self.left.load(Ordering::Relaxed) {
            let answer = tokio::time::timeout(BEAT_TIMEOUT, store.heartbeat(&self.id)).await;
            self.answered(answer.ok().and_then(Result::ok).map(|alive| Place::new(alive.gateways, alive.before)));
            tokio::time::sleep(BEAT_EVERY.mul_f64(rand::random_range(0.9..1.1))).await;
        }
        std::future::pending().await
    }

    /// Leaves, and beats no more: the others need not wait until this gateway expires. They take over its part of the
    /// limits a few seconds later, when it has long admitted its last request.
    pub(super) async fn leave(&self, store: &RedisStore) {
        self.left.store(true, Ordering::Relaxed);
        if let Err(error) = store.leave(&self.id).await {
            tracing::debug!(%error, "the others will find out that this gateway has left");
        }
    }

    /// Learns from one beat; `None` if it was not answered.
    pub(super) fn answered(&self, answer: Option<Place>) {
        let live = self.count.lock().answered(self.clock.now(), answer.map(Place::live));
        let before = self.place();
        let place = Place::new(live, answer.map_or(before.before, |place| place.before));
        self.place.store(packed(place), Ordering::Relaxed);
        if live != before.live {
            tracing::info!(live, "gateways alive, {} before", before.live);
        }
    }
}

fn packed(place: Place) -> u64 {
    u64::from(place.live) << 32 | u64::from(place.before)
}

/// How many are alive, from one answer to the next: rises at once, falls slowly. Pure; time in milliseconds.
#[derive(Debug)]
struct Count {
    live: u32,
    /// Since when all answers have been lower, and the highest of them.
    lower: Option<(u64, u32)>,
}

impl Count {
    fn new(live: u32) -> Self {
        Self { live, lower: None }
    }

    fn answered(&mut self, now: u64, answer: Option<u32>) -> u32 {
        self.lower = match answer.map(|live| live.max(1)) {
            None => None,
            Some(live) if live >= self.live => {
                self.live = live;
                None
            }
            Some(live) => match self.lower {
                None => Some((now, live)),
                Some((since, highest)) if now - since < FALLS_AFTER_MS => Some((since, live.max(highest))),
                Some((_, highest)) => {
                    self.live = live.max(highest);
                    None
                }
            },
        };
        self.live
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn answers(count: &mut Count, answers: &[(u64, Option<u32>)]) -> Vec<u32> {
        answers.iter().map(|&(now, answer)| count.answered(now, answer)).collect()
    }

    #[test]
    fn rises_at_once() {
        let mut count = Count::new(1);
        assert_eq!(answers(&mut count, &[(0, Some(3)), (1000, Some(20))]), [3, 20]);
    }

    #[test]
    fn falls_to_the_highest_of_five_seconds_of_lower_answers() {
        let mut count = Count::new(20);
        let lower = [(0, Some(17)), (1000, Some(19)), (3000, Some(18)), (4999, Some(18)), (5000, Some(18))];
        assert_eq!(answers(&mut count, &lower), [20, 20, 20, 20, 19]);
        assert_eq!(answers(&mut count, &[(6000, Some(18)), (11_000, Some(18))]), [19, 18]);
    }

    #[test]
    fn an_outage_or_one_answer_that_is_not_lower_starts_the_five_seconds_again() {
        for other in [None, Some(20)] {
            let mut count = Count::new(20);
            let mixed = [(0, Some(1)), (4000, other), (5000, Some(1)), (9999, Some(1)), (10_000, Some(1))];
            assert_eq!(answers(&mut count, &mixed), [20, 20, 20, 20, 1]);
        }
    }

    #[test]
    fn the_first_to_beat_after_the_store_has_hung_does_not_think_itself_alone() {
        let mut count = Count::new(20);
        let beats = [(0, None), (1000, None), (60_000, Some(1)), (60_900, Some(12)), (61_900, Some(20))];
        assert_eq!(answers(&mut count, &beats), [20; 5]);
    }

    #[test]
    fn never_less_than_one_gateway() {
        let mut count = Count::new(2);
        assert_eq!(answers(&mut count, &[(0, Some(0)), (5000, Some(0))]), [2, 1]);
        assert_eq!(Place::new(0, 7), Place { live: 1, before: 0 });
    }

    #[test]
    fn the_last_known_place_is_kept_while_nothing_answers() {
        let membership = Membership::new(5, Clock::manual(Arc::default()));
        assert_eq!(membership.place().live(), 5, "the configuration's, until more is known");
        membership.answered(Some(Place::new(8, 3)));
        membership.answered(None);
        assert_eq!(membership.place(), Place::new(8, 3));
    }
}
