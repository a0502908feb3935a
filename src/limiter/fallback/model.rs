//! Outages in virtual time: gateways, each with its [`Lease`] and its share of one key, around one [`Bucket`] that does not
//! answer for a while, or loses calls. Every run checks over every window that the fleet admits at most twice
//! `capacity + refill · window`; the figures are in `benches/RESULTS.md`.
//!
//! `SEKISHO_TEST_SEED` and `SEKISHO_TEST_ROUNDS` choose other random rounds, and more.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::oneshot::{Receiver, error::TryRecvError};

use super::{Fallback, Question};
use crate::bucket::{Bucket, Call, Limit, Reply};
use crate::clock::Clock;
use crate::decision::{Decision, Outcome};
use crate::key::KeyRef;
use crate::limiter::lease::{Ask, Lease, Numbers};
use crate::limiter::membership::{Membership, Place};
use crate::store::away::AwayClock;
use crate::store::redis::Message;

/// In microseconds, as everything here.
const SECOND: u64 = 1_000_000;
/// A request waits for the store so long.
const TIMEOUT: u64 = 5_000;
/// A call is given up after this.
const ABANDON: u64 = SECOND;
/// From a gateway to the store, or back.
const WAY: u64 = 250;
/// The longest that a gateway takes to find out that the store is away, and that it answers again.
const NOTICES: u64 = SECOND;
const RECOVERS: u64 = SECOND * 5 / 4;
const STORE_EPOCH: u64 = 10_000 * SECOND;

mod scenes;

#[derive(Debug)]
enum Event {
    Request {
        node: usize,
    },
    /// Whoever waits longer than its time is decided by the share.
    Leave {
        node: usize,
    },
    Store {
        node: usize,
        number: u64,
        message: Message,
    },
    Reply {
        node: usize,
        number: u64,
        under: Limit,
        owed: u32,
        reply: Option<Reply>,
    },
    Away {
        node: usize,
        away: bool,
    },
    GiveBack {
        node: usize,
    },
}

struct Node {
    lease: Lease,
    fallback: Fallback,
    away: AwayClock,
    is_away: bool,
    waiting: Vec<(u64, Receiver<Decision>)>,
    per_s: f64,
    seen: u64,
}

/// What happens in a run.
#[derive(Clone, Debug)]
struct Scene {
    gateways: u32,
    limit: Limit,
    /// When the store does not answer.
    outages: Vec<Range<u64>>,
    /// The chance that a call, or its reply, is lost.
    lost: f64,
    /// The chance that a reply comes later than anybody waits.
    late: f64,
    end: u64,
}

impl Scene {
    /// Nothing fails.
    fn calm(gateways: u32, limit: Limit, end: u64) -> Self {
        Self { gateways, limit, outages: Vec::new(), lost: 0.0, late: 0.0, end }
    }
}

struct World {
    scene: Scene,
    random: SmallRng,
    now: u64,
    millis: Arc<AtomicU64>,
    order: BinaryHeap<Reverse<(u64, usize)>>,
    events: Vec<Option<Event>>,
    numbers: Numbers,
    bucket: Option<Bucket>,
    nodes: Vec<Node>,
    route: Arc<str>,
    admitted: Vec<u64>,
}

impl World {
    fn new(scene: &Scene, seed: u64) -> Self {
        let millis = Arc::<AtomicU64>::default();
        let clock = Clock::manual(Arc::clone(&millis));
        let node = |before| {
            let membership = Arc::new(Membership::new(scene.gateways, clock.clone()));
            membership.answered(Some(Place::new(scene.gateways, before)));
            Node {
                lease: Lease::new(scene.limit),
                fallback: Fallback::new(membership, 64),
                away: AwayClock::new(clock.clone()),
                is_away: false,
                waiting: Vec::new(),
                per_s: 0.0,
                seen: 0,
            }
        };
        let mut world = Self {
            nodes: (0..scene.gateways).map(node).collect(),
            scene: scene.clone(),
            random: SmallRng::seed_from_u64(seed),
            now: 0,
            millis,
            order: BinaryHeap::new(),
            events: Vec::new(),
            numbers: Numbers::default(),
            bucket: None,
            route: "r".into(),
            admitted: Vec::new(),
        };
        for node in 0..world.nodes.len() {
            world.push(0, Event::GiveBack { node });
            for outage in &scene.outages {
                let notices = outage.start + world.random.random_range(TIMEOUT..NOTICES.min(outage.end - outage.start));
                let recovers = outage.end + world.random.random_range(0..RECOVERS);
                world.push(notices, Event::Away { node, away: true });
                world.push(recovers, Event::Away { node, away: false });
            }
        }
        world
    }

    fn push(&mut self, at: u64, event: Event) {
        self.order.push(Reverse((at, self.events.len())));
        self.events.push(Some(event));
    }

    /// Requests at random moments and gateways, `times` as many as the limit refills.
    fn flood(mut self, times: f64) -> Self {
        let per_second = self.scene.limit.refill_per_second() * times;
        let mut at = 0.0;
        while (at as u64) < self.scene.end {
            let node = self.random.random_range(0..self.nodes.len());
            self.push(at as u64, Event::Request { node });
            at += -(1.0 - self.random.random_range(0.0..1.0_f64)).ln() / per_second * SECOND as f64;
        }
        self
    }

    /// Twice the capacity at once, or twice as many as there are gateways, spread over them.
    fn burst(&mut self, at: u64) {
        for i in 0..2 * self.scene.limit.capacity().max(self.scene.gateways) {
            let node = i as usize % self.nodes.len();
            self.push(at + u64::from(i), Event::Request { node });
        }
    }

    fn run(mut self) -> Self {
        while let Some(Reverse((now, index))) = self.order.pop() {
            if now > self.scene.end {
                break;
            }
            self.now = now;
            self.millis.store(now / 1000, Ordering::Relaxed);
            if let Some(event) = self.events[index].take() {
                self.handle(event);
            }
        }
        self
    }

    fn key(route: &Arc<str>) -> KeyRef<'_> {
        KeyRef { tenant: "t", route, shadow: false, shard: None }
    }

    fn strikes(&mut self) -> bool {
        let lost = self.scene.lost;
        self.scene.outages.iter().any(|outage| outage.contains(&self.now)) || self.random.random_bool(lost)
    }

    fn decide_by_share(&mut self, node: usize) {
        let it = &self.nodes[node];
        let question = Question {
            key: Self::key(&self.route),
            limit: self.scene.limit,
            shards: 1,
            cost: 1,
            expected: Some(it.lease.expected(self.now / 1000)),
            now: self.now / 1000,
            away_ms: it.away.total_ms(),
        };
        if it.fallback.decide(&question).outcome == Outcome::Allowed {
            self.admitted.push(self.now);
        }
    }

    /// Collects what was decided for those who wait.
    fn collect(&mut self, node: usize) {
        let (now, mut to_share) = (self.now, 0);
        let admitted = &mut self.admitted;
        self.nodes[node].waiting.retain_mut(|(until, answer)| match answer.try_recv() {
            Ok(decision) => {
                admitted.extend((decision.outcome == Outcome::Allowed).then_some(now));
                false
            }
            Err(TryRecvError::Empty) if now < *until => true,
            Err(_) => {
                to_share += 1;
                false
            }
        });
        (0..to_share).for_each(|_| self.decide_by_share(node));
    }

    fn start(&mut self, node: usize, number: Option<u64>) {
        let (Some(number), now) = (number, self.now) else { return };
        let it = &mut self.nodes[node];
        if it.is_away {
            it.lease.finish(now / 1000, number, None, None, &self.numbers);
            return self.collect(node);
        }
        let capacity = f64::from(self.scene.limit.capacity());
        let need = it.per_s * f64::min(0.1, capacity / self.scene.limit.refill_per_second() / 2.0);
        let want = if need < 25.0 { Some(need as u32).filter(|&need| need >= 4).unwrap_or(0) } else { need as u32 };
        let Some(mut message) = it.lease.begin(now / 1000, number, |_| want.div_ceil(50) * 50) else { return };
        message.report.owed = it.fallback.take_owed(Self::key(&self.route));
        let (under, owed) = (message.limit, message.report.owed);
        if self.strikes() {
            self.push(now + ABANDON, Event::Reply { node, number, under, owed, reply: None });
        } else {
            self.push(now + WAY, Event::Store { node, number, message });
        }
    }

    fn handle(&mut self, event: Event) {
        let now = self.now;
        match event {
            Event::Request { node } => {
                let it = &mut self.nodes[node];
                it.per_s = it.per_s * (-((now - it.seen) as f64) / 1e5).exp() + 10.0;
                it.seen = now;
                let until = now + TIMEOUT;
                let patience = if it.is_away { now / 1000 } else { until.div_ceil(1000) };
                match it.lease.ask(now / 1000, self.scene.limit, 1, || patience, &self.numbers) {
                    Ask::Decided { decision, call } => {
                        self.admitted.extend((decision.outcome == Outcome::Allowed).then_some(now));
                        self.start(node, call);
                    }
                    Ask::Wait { answer, call } => {
                        it.waiting.push((until, answer));
                        self.push(until, Event::Leave { node });
                        self.start(node, call);
                    }
                    Ask::Full | Ask::Away => self.decide_by_share(node),
                }
            }
            Event::Leave { node } => self.collect(node),
            Event::Store { node, number, message } => {
                let there = (STORE_EPOCH + now) / 1000;
                let Message { limit, demand, prefetch, report } = &message;
                let bucket = self.bucket.get_or_insert_with(|| Bucket::full(*limit, there));
                let call = Call { limit: *limit, demand, prefetch: *prefetch, report: *report };
                let (under, owed, reply) = (*limit, report.owed, bucket.call(there, &call));
                let (after, reply) = match self.strikes() {
                    true => (ABANDON, None),
                    false if self.random.random_bool(self.scene.late) => (20_000, Some(reply)),
                    false => (WAY, Some(reply)),
                };
                self.push(now + after, Event::Reply { node, number, under, owed, reply });
            }
            Event::Reply { node, number, under, owed, reply } => {
                let it = &mut self.nodes[node];
                let finished = it.lease.finish(now / 1000, number, Some(under), reply, &self.numbers);
                match reply {
                    Some(reply) => {
                        it.fallback.answered(Self::key(&self.route), now / 1000, reply.tokens, finished.in_vain);
                    }
                    None => it.fallback.lost(Self::key(&self.route), owed),
                }
                self.collect(node);
                self.start(node, finished.next);
            }
            Event::Away { node, away } => {
                self.nodes[node].is_away = away;
                self.nodes[node].away.set(away);
            }
            Event::GiveBack { node } => {
                let idle_since = (now / 1000).saturating_sub(100);
                let call = self.nodes[node].lease.give_back(now / 1000, idle_since, &self.numbers);
                self.start(node, call);
                self.push(now + 50_000, Event::GiveBack { node });
            }
        }
    }

    /// Requests admitted in the worst window beyond `times` what the limit admits.
    fn over(&self, times: f64) -> f64 {
        let (capacity, rate) = (f64::from(self.scene.limit.capacity()), self.scene.limit.refill_per_second());
        let (mut lowest, mut worst) = (f64::INFINITY, f64::NEG_INFINITY);
        for (before, &at) in self.admitted.iter().enumerate() {
            let level = before as f64 - times * rate * at as f64 / SECOND as f64;
            lowest = f64::min(lowest, level);
            worst = f64::max(worst, level + 1.0 - lowest);
        }
        worst - times * capacity
    }

    /// What was admitted in the worst window, as a multiple of `capacity + refill · window`.
    fn worst(&self) -> f64 {
        (0..2000)
            .map(|percent| f64::from(percent) / 100.0)
            .find(|&times| self.over(times) <= 0.0)
            .unwrap_or(f64::INFINITY)
    }

    /// Admitted from `from` to `to`, as a part of `capacity + refill · (to − from)`.
    fn share_of_limit(&self, Range { start, end }: Range<u64>) -> f64 {
        let admitted = self.admitted.iter().filter(|&&at| (start..end).contains(&at)).count();
        let refilled = self.scene.limit.refill_per_second() * (end - start) as f64 / SECOND as f64;
        admitted as f64 / (f64::from(self.scene.limit.capacity()) + refilled)
    }
}
