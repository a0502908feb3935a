//! Brings requests into the order of their times.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use super::Request;

/// Requests wait until the log has come so far beyond them, in milliseconds: the longest that most requests take.
const WINDOW_MS: u64 = 60_000;
/// The most that wait. Beyond that the earliest goes on, however short it has waited.
const MOST: usize = 1_000_000;

/// Sorts a stream of requests that is nearly in order: one may be behind a later one by a minute, or 1,000,000 lines.
#[derive(Debug, Default)]
pub struct Sorted {
    waiting: BinaryHeap<Reverse<Waiting>>,
    latest_ms: u64,
    number: u64,
}

/// By its time, and those of one time in the order in which they came.
#[derive(Debug)]
struct Waiting {
    number: u64,
    request: Request,
}

impl Waiting {
    fn place(&self) -> (u64, u64) {
        (self.request.at_ms, self.number)
    }
}

impl Ord for Waiting {
    fn cmp(&self, other: &Self) -> Ordering {
        self.place().cmp(&other.place())
    }
}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.place() == other.place()
    }
}

impl Eq for Waiting {}

impl Sorted {
    /// Takes a request, and hands on those that need not wait any more.
    pub fn push(&mut self, request: Request, each: impl FnMut(&Request)) {
        self.latest_ms = self.latest_ms.max(request.at_ms);
        self.number += 1;
        self.waiting.push(Reverse(Waiting { number: self.number, request }));
        self.hand_on(self.latest_ms.saturating_sub(WINDOW_MS), MOST, each);
    }

    /// Hands on all others.
    pub fn finish(&mut self, each: impl FnMut(&Request)) {
        self.hand_on(u64::MAX, 0, each);
    }

    fn hand_on(&mut self, before_ms: u64, most: usize, mut each: impl FnMut(&Request)) {
        let is_due = |waiting: &BinaryHeap<Reverse<Waiting>>| {
            waiting.len() > most || waiting.peek().is_some_and(|Reverse(first)| first.request.at_ms < before_ms)
        };
        while is_due(&self.waiting)
            && let Some(Reverse(first)) = self.waiting.pop()
        {
            each(&first.request);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::Tenant;

    fn request(at_ms: u64, cost: u32) -> Request {
        Request { at_ms, tenant: Tenant::Plain("a".into()), route: "r".into(), cost, denied: false }
    }

    #[test]
    fn requests_come_out_by_time_and_those_of_one_time_as_they_came() {
        let (mut sorted, mut out) = (Sorted::default(), Vec::new());
        for (at_ms, cost) in [(70_000, 1), (10_000, 2), (70_000, 3), (131_000, 4), (70_500, 5)] {
            sorted.push(request(at_ms, cost), |request| out.push((request.at_ms, request.cost)));
        }
        assert_eq!(out, [(10_000, 2), (70_000, 1), (70_000, 3), (70_500, 5)]);
        sorted.finish(|request| out.push((request.at_ms, request.cost)));
        assert_eq!(out.last(), Some(&(131_000, 4)));
    }
}
