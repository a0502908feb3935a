//! One key, step by step: what the model in virtual time does not pin.

use tokio::sync::oneshot::Receiver;

use super::{Ask, Finished, HOLD_MS, Lease, Numbers, SPENT_FOR_MS, WAITING};
use crate::bucket::{Demand, Limit, Reply, Report};
use crate::limiter::{Decision, Outcome, Source};
use crate::store::redis::Message;

/// Longer than anything here takes, in milliseconds.
const PATIENT: u64 = 10_000;
const GENERATION: u64 = 77;

fn limit(capacity: i64, rate: f64) -> Limit {
    Limit::new(capacity, rate).unwrap()
}

struct Key {
    lease: Lease,
    limit: Limit,
    numbers: Numbers,
}

impl Key {
    fn new(limit: Limit) -> Self {
        Self { lease: Lease::new(limit), limit, numbers: Numbers::default() }
    }

    fn ask(&mut self, now: u64, cost: u32) -> Ask {
        self.lease.ask(now, self.limit, cost, || now + PATIENT, &self.numbers)
    }

    /// Asks, and must be decided at once.
    fn decided(&mut self, now: u64, cost: u32) -> (Decision, Option<u64>) {
        match self.ask(now, cost) {
            Ask::Decided { decision, call } => (decision, call),
            other => panic!("not decided at once: {other:?}"),
        }
    }

    /// Asks, and must wait.
    fn waits(&mut self, now: u64, cost: u32) -> (Receiver<Decision>, Option<u64>) {
        match self.ask(now, cost) {
            Ask::Wait { answer, call } => (answer, call),
            other => panic!("does not wait: {other:?}"),
        }
    }

    fn begin(&mut self, now: u64, number: u64, prefetch: u32) -> Message {
        self.lease.begin(now, number, |_| prefetch).expect("a message")
    }

    fn finish(&mut self, now: u64, number: u64, asked_under: Limit, reply: Reply) -> Option<u64> {
        self.lease.finish(now, number, Some(asked_under), Some(reply), &self.numbers).next
    }

    /// One request, granted, with so many tokens leased.
    fn with_stash(limit: Limit, now: u64, prefetched: u32, left: u32) -> Self {
        let mut key = Self::new(limit);
        let (mut answer, call) = key.waits(now, 1);
        let number = call.unwrap();
        key.begin(now, number, prefetched);
        assert_eq!(key.finish(now, number, limit, reply(1, prefetched, left, 0)), None);
        assert_eq!(answer.try_recv().unwrap().outcome, Outcome::Allowed);
        key
    }

    /// One request of this cost, refused for so long.
    fn refused(limit: Limit, now: u64, cost: u32, left: u32, wait_ms: u64) -> Self {
        let mut key = Self::new(limit);
        let (mut answer, call) = key.waits(now, cost);
        let number = call.unwrap();
        key.begin(now, number, 0);
        assert_eq!(key.finish(now, number, limit, reply(0, 0, left, wait_ms)), None);
        assert!(matches!(answer.try_recv().unwrap().outcome, Outcome::Denied { .. }));
        key
    }
}

fn reply(granted: u32, prefetched: u32, tokens: u32, wait_ms: u64) -> Reply {
    Reply { granted, prefetched, generation: GENERATION, stash_known: true, tokens, wait_ms: Some(wait_ms) }
}

fn remaining(decision: Decision) -> u32 {
    decision.quota.expect("a quota").remaining
}

fn retry_after(decision: Decision) -> u32 {
    match decision.outcome {
        Outcome::Denied { retry_after } => retry_after.expect("a time"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn those_who_come_during_a_call_share_the_next() {
    let mut key = Key::new(limit(100, 10.0));
    let (_first, call) = key.waits(0, 1);
    let number = call.unwrap();
    key.begin(0, number, 0);
    let waiting: Vec<_> = [2, 2, 5].map(|cost| key.waits(1, cost)).into();
    assert!(waiting.iter().all(|(_, call)| call.is_none()), "one call at a time");
    let next = key.finish(2, number, key.limit, reply(1, 0, 99, 0)).expect("a call for those who wait");
    let demand = [Demand { cost: 2, count: 2 }, Demand { cost: 5, count: 1 }];
    assert_eq!(key.begin(2, next, 0).demand[..], demand);
}

#[test]
fn an_exhausted_key_denies_without_a_call_until_the_hold_is_over() {
    let mut key = Key::refused(limit(100, 10.0), 1000, 1, 0, 100);
    assert_eq!(key.decided(1099, 1).0.source, Source::Hold);
    assert!(key.waits(1100, 1).1.is_some());
}

#[test]
fn a_hold_lasts_at_least_twenty_milliseconds_and_less_for_buckets_that_fill_fast() {
    let mut key = Key::refused(limit(10_000, 1000.0), 0, 1, 0, 1);
    let hold = HOLD_MS as u64;
    assert_eq!(key.decided(hold - 1, 1).0.source, Source::Hold);
    assert!(key.waits(hold, 1).1.is_some());
    let mut key = Key::refused(limit(10, 1000.0), 0, 1, 0, 1);
    assert_eq!(key.decided(2, 1).0.source, Source::Hold);
    assert!(key.waits(3, 1).1.is_some(), "a quarter of 10 ms");
}

#[test]
fn a_hold_lets_cheaper_requests_ask_and_names_dearer_ones_a_longer_wait() {
    let mut key = Key::refused(limit(100, 1.0), 0, 10, 7, 3000);
    assert_eq!(retry_after(key.decided(0, 10).0), 3);
    assert_eq!(retry_after(key.decided(0, 15).0), 8, "five more tokens at one per second");
    let (mut answer, call) = key.waits(0, 5);
    let number = call.unwrap();
    key.begin(0, number, 0);
    key.finish(0, number, key.limit, reply(1, 0, 2, 0));
    assert_eq!(answer.try_recv().unwrap().outcome, Outcome::Allowed);
    assert_eq!(key.decided(1, 10).0.source, Source::Hold, "the grant does not lift it");
}

#[test]
fn those_who_wait_when_the_key_turns_out_exhausted_are_denied_with_it() {
    let mut key = Key::new(limit(10, 1.0));
    let (_first, call) = key.waits(0, 5);
    let number = call.unwrap();
    key.begin(0, number, 0);
    let (mut dear, mut cheap) = (key.waits(0, 6).0, key.waits(0, 4).0);
    let next = key.finish(1, number, key.limit, reply(0, 0, 4, 1000)).expect("a call for the cheap one");
    assert_eq!(retry_after(dear.try_recv().unwrap()), 2);
    assert!(cheap.try_recv().is_err());
    assert_eq!(key.begin(1, next, 0).demand[..], [Demand { cost: 4, count: 1 }]);
}

#[test]
fn a_changed_rule_lifts_the_hold() {
    let mut key = Key::refused(limit(10, 0.1), 0, 1, 0, 10_000);
    assert_eq!(key.decided(1, 1).0.source, Source::Hold);
    key.limit = limit(1000, 100.0);
    let (_answer, call) = key.waits(1, 1);
    assert_eq!(key.begin(1, call.unwrap(), 0).limit, key.limit);
}

#[test]
fn a_changed_rule_gives_the_stash_back_with_the_next_call() {
    let mut key = Key::with_stash(limit(1000, 100.0), 0, 50, 900);
    let spent = key.decided(1, 1).0;
    assert_eq!(spent.source, Source::Lease);
    key.limit = limit(500, 100.0);
    let call = key.waits(2, 1).1.expect("it is not spent under another rule");
    let message = key.begin(2, call, 50);
    let report = Report { generation: GENERATION, used: 1, held: 0, back: 49, owed: 0 };
    assert_eq!((message.report, message.prefetch), (report, 0));
}

#[test]
fn what_is_leased_under_an_older_rule_is_never_spent() {
    let mut key = Key::with_stash(limit(1000, 100.0), 0, 50, 900);
    while key.decided(1, 1).1.is_none() {}
    let call = key.lease.calling.as_ref().unwrap().number;
    key.begin(1, call, 50);
    let old = std::mem::replace(&mut key.limit, limit(500, 100.0));
    let (_waits, none) = key.waits(2, 1);
    assert_eq!(none, None, "a call is out");
    let next = key.finish(3, call, old, reply(0, 50, 850, 0)).unwrap();
    assert_eq!(key.lease.stash(3), 0);
    let message = key.begin(3, next, 0);
    assert_eq!(message.report.used + message.report.held + message.report.back, 0, "left to expire");
}

#[test]
fn whoever_waits_while_tokens_are_leased_gets_one_of_them() {
    let mut key = Key::with_stash(limit(1000, 100.0), 0, 1, 3);
    let call = key.decided(1, 1).1.expect("the stash is low");
    let (mut first, none) = key.waits(2, 1);
    key.begin(2, call, 3);
    let (mut second, none_either) = key.waits(2, 1);
    assert_eq!((none, none_either), (None, None), "a call is out");
    assert_eq!(key.finish(3, call, key.limit, reply(1, 2, 0, 0)), None, "nobody is left to call for");
    assert_eq!(first.try_recv().unwrap().source, Source::Store);
    let second = second.try_recv().unwrap();
    assert_eq!((second.source, second.outcome), (Source::Lease, Outcome::Allowed));
    assert_eq!((key.lease.stash(3), key.lease.used), (1, 1));
}

#[test]
fn a_stash_too_small_for_those_who_wait_goes_back_with_their_call() {
    let mut key = Key::with_stash(limit(1000, 100.0), 0, 50, 900);
    assert_eq!(key.decided(1, 1).0.source, Source::Lease);
    let (_answer, call) = key.waits(1, 60);
    let message = key.begin(1, call.unwrap(), 20);
    let report = Report { generation: GENERATION, used: 1, held: 0, back: 49, owed: 0 };
    assert_eq!((message.report, message.prefetch), (report, 20));
    key.waits(1, 1);
}

#[test]
fn an_idle_stash_goes_back_and_one_in_use_stays() {
    let mut key = Key::with_stash(limit(1000, 100.0), 0, 50, 900);
    assert_eq!(key.decided(150, 1).0.source, Source::Lease);
    assert_eq!(key.lease.give_back(200, 100, &key.numbers), None, "used since");
    let call = key.lease.give_back(300, 200, &key.numbers).unwrap();
    assert_eq!(key.lease.give_back(300, 200, &key.numbers), None, "once");
    let report = Report { generation: GENERATION, used: 1, held: 0, back: 49, owed: 0 };
    assert_eq!(key.begin(300, call, 0).report, report);
    assert_eq!(key.finish(301, call, key.limit, reply(0, 0, 950, 0)), None);
    assert!(!key.lease.stays_listed(301), "nothing is out any more");
}

#[test]
fn an_idle_stash_that_cannot_go_back_is_still_spent() {
    let mut key = Key::with_stash(limit(1000, 100.0), 0, 50, 900);
    let call = key.lease.give_back(300, 200, &key.numbers).unwrap();
    assert_eq!(key.lease.finish(301, call, None, None, &key.numbers), Finished::default(), "the store is away");
    assert_eq!(key.decided(302, 1).0.source, Source::Lease);
    let call = key.lease.give_back(600, 500, &key.numbers).unwrap();
    assert_eq!(key.decided(601, 1).0.source, Source::Lease, "it has not been sent yet");
    let report = Report { generation: GENERATION, used: 2, held: 48, back: 0, owed: 0 };
    assert_eq!(key.begin(602, call, 0).report, report, "in use again, it stays");
}

#[test]
fn a_stash_of_an_older_rule_that_cannot_go_back_is_not_spent() {
    let mut key = Key::with_stash(limit(1000, 100.0), 0, 50, 900);
    key.limit = limit(500, 100.0);
    let call = key.waits(1, 1).1.unwrap();
    assert_eq!(key.lease.finish(2, call, None, None, &key.numbers), Finished::default(), "the store is away");
    let call = key.waits(3, 1).1.unwrap();
    assert_eq!(key.begin(3, call, 50).report.back, 50);
}

#[test]
fn a_stash_ends_a_margin_before_its_generations_do() {
    let mut key = Key::with_stash(limit(1000, 100.0), 0, 50, 900);
    assert_eq!(key.decided(SPENT_FOR_MS, 1).0.source, Source::Lease);
    key.waits(SPENT_FOR_MS + 1, 1);
}

#[test]
fn a_stash_that_the_bucket_does_not_know_is_not_spent() {
    let mut key = Key::with_stash(limit(1000, 100.0), 0, 50, 900);
    while key.decided(1, 1).1.is_none() {}
    let call = key.lease.calling.as_ref().unwrap().number;
    key.begin(1, call, 50);
    key.finish(2, call, key.limit, Reply { stash_known: false, ..reply(0, 7, 900, 0) });
    assert_eq!(key.lease.stash(2), 7, "only what this call leased");
}

#[test]
fn the_reply_to_a_call_that_was_given_up_is_ignored() {
    let mut key = Key::with_stash(limit(1000, 100.0), 0, 50, 900);
    while key.decided(1, 1).1.is_none() {}
    let call = key.lease.calling.as_ref().unwrap().number;
    key.begin(1, call, 50);
    let left = key.lease.stash(1);
    assert_eq!(key.lease.finish(1000, call, Some(key.limit), None, &key.numbers), Finished::default());
    assert_eq!(key.lease.stash(1000), left, "the stash stays as it is");
    assert_eq!(key.finish(1500, call, key.limit, reply(0, 50, 800, 0)), None);
    assert_eq!(key.lease.stash(1500), left);
    assert!(!key.lease.is_out(SPENT_FOR_MS + 1), "and ends with the last call that was answered");
}

#[test]
fn a_call_without_a_reply_leaves_nobody_waiting() {
    let mut key = Key::new(limit(100, 10.0));
    let (mut asked, call) = key.waits(0, 1);
    let number = call.unwrap();
    key.begin(0, number, 0);
    let mut came_meanwhile = key.waits(1, 1).0;
    assert_eq!(key.lease.finish(2, number, Some(key.limit), None, &key.numbers), Finished::default());
    for answer in [&mut asked, &mut came_meanwhile] {
        assert!(matches!(answer.try_recv(), Err(tokio::sync::oneshot::error::TryRecvError::Closed)));
    }
    assert!(key.waits(3, 1).1.is_some(), "the next one calls again");
}

#[test]
fn nobody_waits_for_a_store_that_is_away_not_even_for_a_call_that_was_sent_before() {
    let mut key = Key::with_stash(limit(1000, 100.0), 0, 4, 900);
    let without_waiting = |key: &mut Key, now: u64| key.lease.ask(now, key.limit, 1, || now, &key.numbers);
    for now in 1..=4 {
        let ask = without_waiting(&mut key, now);
        let Ask::Decided { decision, call: None } = ask else { panic!("a token at hand, and no call: {ask:?}") };
        assert_eq!(decision.source, Source::Lease);
    }
    assert!(matches!(without_waiting(&mut key, 5), Ask::Away));
    let call = key.waits(6, 1).1.unwrap();
    key.begin(6, call, 0);
    assert!(matches!(without_waiting(&mut key, 7), Ask::Away));
    assert_eq!(key.finish(8, call, key.limit, reply(1, 0, 899, 0)), None, "nobody waits for another");
}

#[test]
fn whoever_has_left_or_is_late_is_not_asked_for() {
    let mut key = Key::new(limit(100, 10.0));
    let (left, call) = key.waits(0, 1);
    drop(left);
    let _late = key.lease.ask(0, key.limit, 2, || 5, &key.numbers);
    let _waits = key.waits(0, 3);
    assert_eq!(key.begin(5, call.unwrap(), 0).demand[..], [Demand { cost: 3, count: 1 }]);
}

#[test]
fn no_more_wait_for_a_key_than_its_queue_holds() {
    let mut key = Key::new(limit(1_000_000, 10.0));
    let waiting: Vec<_> = (0..WAITING).map(|_| key.waits(0, 1)).collect();
    assert!(matches!(key.ask(0, 1), Ask::Full));
    let call = waiting[0].1.unwrap();
    assert_eq!(key.begin(0, call, 0).demand[..], [Demand { cost: 1, count: WAITING as u32 }]);
    assert!(matches!(key.ask(0, 1), Ask::Wait { .. }), "the next call has room");
}

#[test]
fn a_request_that_costs_more_than_the_capacity_is_denied_for_good() {
    let mut key = Key::new(limit(5, 1.0));
    assert_eq!(key.decided(0, 6).0.outcome, Outcome::Denied { retry_after: None });
}

#[test]
fn remaining_counts_the_bucket_and_the_stash_and_falls_as_tokens_are_spent() {
    let mut key = Key::with_stash(limit(100, 10.0), 0, 40, 50);
    let left: Vec<u32> = (0..20).map(|_| remaining(key.decided(1, 1).0)).collect();
    assert_eq!(left, (70..90).rev().collect::<Vec<_>>());
}

#[test]
fn remaining_is_never_above_the_capacity() {
    // The bucket has refilled what it counts as leased already: more than the capacity together.
    let mut key = Key::with_stash(limit(100, 1000.0), 0, 40, 99);
    assert_eq!(remaining(key.decided(1, 1).0), 100);
    key.limit = limit(10, 1.0);
    let (_answer, call) = key.waits(2, 1);
    let call = call.unwrap();
    key.begin(2, call, 0);
    key.finish(2, call, limit(10, 1.0), reply(0, 0, 0, 1000));
    assert_eq!(remaining(key.decided(3, 1).0), 0);
}

#[test]
fn those_granted_by_one_call_see_remaining_fall_one_after_the_other() {
    let mut key = Key::new(limit(10, 1.0));
    let (first, call) = key.waits(0, 2);
    let answers = [first, key.waits(0, 2).0, key.waits(0, 1).0, key.waits(0, 9).0];
    let number = call.unwrap();
    key.begin(0, number, 0);
    key.finish(1, number, key.limit, reply(3, 0, 5, 4000));
    let left = answers.map(|mut answer| remaining(answer.try_recv().unwrap()));
    assert_eq!(left, [8, 6, 5, 5]);
}

#[test]
fn what_may_be_left_grows_as_the_bucket_refills() {
    let key = Key::refused(limit(100, 10.0), 1000, 1, 0, 100);
    assert_eq!(key.lease.glimpse(1050), 0, "on hold");
    assert_eq!(key.lease.glimpse(2000), 10);
    assert_eq!(key.lease.glimpse(60_000), 100);
    assert_eq!(key.lease.expected(1050), 0, "not on hold, nor leased: what is in the bucket");
    assert_eq!(key.lease.expected(2000), 10);
}
