//! A circuit breaker: after too many failed or slow calls nobody waits for the node any more, until probes show that it
//! is well. Pure: no clock, no I/O; time comes as milliseconds of a clock that never steps.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::config;

/// The window is counted in so many slices; the oldest is forgotten as a new one begins.
const SLICES: usize = 10;
/// How far the time it stays open varies to either side, so that gateways do not all probe at once.
const JITTER: f64 = 0.25;

/// What a breaker lets through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Every call.
    Closed,
    /// Probes only.
    HalfOpen,
    /// Nothing.
    Open,
}

/// Why a breaker opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Opened {
    /// `failures_in_a_row`
    #[error("{0} calls in a row failed or were slow")]
    InARow(u32),
    /// `failure_rate`
    #[error("{failures} of the last {calls} calls failed or were slow")]
    Rate {
        /// Failed or slow calls in the window.
        failures: u32,
        /// All calls in the window.
        calls: u32,
    },
}

/// Judges the calls to one node.
#[derive(Debug)]
pub struct Breaker {
    settings: config::Breaker,
    phase: Phase,
    window: Window,
    in_a_row: u32,
    random: SmallRng,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Closed,
    HalfOpen { succeeded: u32 },
    Open { until: u64 },
}

impl Breaker {
    /// Closed. `seed` decides the jitter.
    pub fn new(settings: config::Breaker, seed: u64) -> Self {
        Self {
            settings,
            phase: Phase::Closed,
            window: Window::new((settings.window.as_millis() as u64 / SLICES as u64).max(1)),
            in_a_row: 0,
            random: SmallRng::seed_from_u64(seed),
        }
    }

    /// What it lets through.
    pub fn state(&self) -> State {
        match self.phase {
            Phase::Closed => State::Closed,
            Phase::HalfOpen { .. } => State::HalfOpen,
            Phase::Open { .. } => State::Open,
        }
    }

    /// Counts a call, `failed` if it failed or was slow. Returns why the breaker opened, if it did. A call that comes
    /// back while it is not closed says nothing new.
    pub fn call(&mut self, now: u64, failed: bool) -> Option<Opened> {
        let Phase::Closed = self.phase else { return None };
        self.in_a_row = if failed { self.in_a_row + 1 } else { 0 };
        self.window.count(now, failed);
        let Window { calls, failures, .. } = self.window;
        let why = if self.in_a_row >= self.settings.failures_in_a_row {
            Opened::InARow(self.in_a_row)
        } else if calls >= self.settings.minimum_calls
            && f64::from(failures) >= self.settings.failure_rate * f64::from(calls)
        {
            Opened::Rate { failures, calls }
        } else {
            return None;
        };
        self.open(now);
        Some(why)
    }

    /// Opens it, or keeps it open for another while.
    pub fn open(&mut self, now: u64) {
        let open_for = self.settings.open_for.as_millis() as f64 * self.random.random_range(1.0 - JITTER..1.0 + JITTER);
        self.phase = Phase::Open { until: now + open_for.round() as u64 };
    }

    /// When an open breaker may be probed.
    pub fn probe_at(&self) -> Option<u64> {
        match self.phase {
            Phase::Open { until } => Some(until),
            Phase::Closed | Phase::HalfOpen { .. } => None,
        }
    }

    /// Lets probes through, if it is not closed.
    pub fn half_open(&mut self) {
        if !matches!(self.phase, Phase::Closed) {
            self.phase = Phase::HalfOpen { succeeded: 0 };
        }
    }

    /// Counts a probe: enough that succeed close the breaker, one that fails opens it again.
    pub fn probe(&mut self, now: u64, failed: bool) {
        let Phase::HalfOpen { succeeded } = &mut self.phase else { return };
        if failed {
            return self.open(now);
        }
        *succeeded += 1;
        if *succeeded >= self.settings.probes {
            self.phase = Phase::Closed;
            self.in_a_row = 0;
            self.window = Window::new(self.window.slice_ms);
        }
    }
}

/// Calls and failures of the last `SLICES` slices of time.
#[derive(Clone, Copy, Debug)]
struct Window {
    slice_ms: u64,
    /// Counts its slices since time 0.
    newest: u64,
    slices: [(u32, u32); SLICES],
    /// The sums over the slices.
    calls: u32,
    failures: u32,
}

impl Window {
    fn new(slice_ms: u64) -> Self {
        Self { slice_ms, newest: 0, slices: [(0, 0); SLICES], calls: 0, failures: 0 }
    }

    fn count(&mut self, now: u64, failed: bool) {
        let slice = now / self.slice_ms;
        if slice > self.newest {
            for passed in (self.newest + 1..=slice).take(SLICES) {
                let forgotten = std::mem::take(&mut self.slices[passed as usize % SLICES]);
                self.calls -= forgotten.0;
                self.failures -= forgotten.1;
            }
            self.newest = slice;
        }
        let newest = &mut self.slices[self.newest as usize % SLICES];
        for (count, total, by) in
            [(&mut newest.0, &mut self.calls, 1), (&mut newest.1, &mut self.failures, u32::from(failed))]
        {
            *count += by;
            *total += by;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn breaker() -> Breaker {
        Breaker::new(config::Breaker::default(), 7)
    }

    /// Counts calls from `from` on, one each millisecond, in turn as `pattern` says; returns when and why it opened.
    fn play(breaker: &mut Breaker, from: u64, calls: u64, pattern: &[bool]) -> Option<(u64, Opened)> {
        (0..calls).find_map(|i| {
            let failed = pattern[i as usize % pattern.len()];
            Some((i, breaker.call(from + i, failed)?))
        })
    }

    #[test]
    fn failures_in_a_row_open_it_at_once_however_few_calls_there_were() {
        let mut breaker = breaker();
        assert_eq!(play(&mut breaker, 0, 100, &[true]), Some((9, Opened::InARow(10))));
        assert_eq!(breaker.state(), State::Open);
    }

    #[test]
    fn one_success_starts_the_row_again() {
        let mut breaker = breaker();
        let nine_of_ten = [true, true, true, true, true, true, true, true, true, false];
        let opened = play(&mut breaker, 0, 100, &nine_of_ten);
        assert_eq!(
            opened,
            Some((19, Opened::Rate { failures: 18, calls: 20 })),
            "by the rate, at the minimum of calls"
        );
    }

    #[test]
    fn the_share_of_failures_in_the_window_opens_it_from_half_on() {
        assert_eq!(play(&mut breaker(), 0, 10_000, &[false, false, true]), None, "a third");
        let half = play(&mut breaker(), 0, 10_000, &[false, true]);
        assert_eq!(half, Some((19, Opened::Rate { failures: 10, calls: 20 })));
    }

    #[test]
    fn what_is_older_than_the_window_is_forgotten() {
        let mut breaker = breaker();
        assert_eq!(play(&mut breaker, 0, 18, &[true, true, false]), None, "12 of 18, below the minimum");
        assert_eq!(breaker.call(11_000, true), None);
        assert_eq!(play(&mut breaker, 11_001, 18, &[false]), None);
        assert_eq!(breaker.call(11_100, false), None, "1 of 20 in the window");
        let mut breaker = self::breaker();
        assert_eq!(play(&mut breaker, 0, 18, &[true, true, false]), None);
        assert_eq!(breaker.call(u64::from(u32::MAX) * 1000, true), None, "after a very long time");
    }

    #[test]
    fn a_window_shorter_than_its_slices_is_one() {
        let settings = config::Breaker { window: Duration::from_millis(3), ..breaker().settings };
        assert_eq!(play(&mut Breaker::new(settings, 1), 0, 5, &[true]), None);
    }

    #[test]
    fn it_stays_open_about_as_long_as_it_is_told() {
        let mut times = Vec::new();
        let mut breaker = breaker();
        for _ in 0..100 {
            breaker.open(5000);
            times.push(breaker.probe_at().unwrap());
        }
        assert!(times.iter().all(|time| (5750..=6250).contains(time)), "{times:?}");
        assert!(times.iter().min() < Some(&5900) && times.iter().max() > Some(&6100), "jittered: {times:?}");
    }

    #[test]
    fn so_many_probes_close_it_and_one_that_fails_opens_it_again() {
        let mut breaker = breaker();
        play(&mut breaker, 0, 10, &[true]);
        breaker.half_open();
        assert_eq!((breaker.state(), breaker.probe_at()), (State::HalfOpen, None));
        breaker.probe(2000, false);
        breaker.probe(2001, false);
        breaker.probe(2002, true);
        assert_eq!(breaker.state(), State::Open);
        assert!(breaker.probe_at() >= Some(2002 + 750));
        breaker.half_open();
        for now in 4000..4003 {
            assert_eq!(breaker.state(), State::HalfOpen, "the successes before the failure do not count");
            breaker.probe(now, false);
        }
        assert_eq!(breaker.state(), State::Closed);
        assert_eq!(play(&mut breaker, 4003, 9, &[true]), None, "it starts anew");
        assert_eq!(breaker.call(4020, true), Some(Opened::InARow(10)));
    }

    #[test]
    fn calls_that_come_back_late_say_nothing_while_it_is_not_closed() {
        let mut breaker = breaker();
        breaker.open(0);
        assert_eq!(play(&mut breaker, 0, 50, &[true]), None);
        breaker.half_open();
        assert_eq!(play(&mut breaker, 0, 50, &[true]), None);
        assert_eq!(breaker.state(), State::HalfOpen);
    }

    #[test]
    fn a_closed_breaker_is_not_half_opened() {
        let mut breaker = breaker();
        breaker.half_open();
        assert_eq!(breaker.state(), State::Closed);
    }
}
