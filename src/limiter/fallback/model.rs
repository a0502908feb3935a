//! Outages in virtual time: gateways, each with its [`Lease`] and its share of one key, around one [`Bucket`] that does not
//! answer for a while, or loses calls. Every run checks over every window that the fleet admits at most twice
//! `capacity + refill · window`; the figures are in `benches/RESULTS.md`.

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
                match it.lease.ask(now / 1000, self.scene.limit, 1, until.div_ceil(1000), &self.numbers) {
                    Ask::Decided { decision, call } => {
                        self.admitted.extend((decision.outcome == Outcome::Allowed).then_some(now));
                        self.start(node, call);
                    }
                    Ask::Wait { answer, call } => {
                        it.waiting.push((until, answer));
                        self.push(until, Event::Leave { node });
                        self.start(node, call);
                    }
                    Ask::Full => self.decide_by_share(node),
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

    /// What was admitted in the worst window, as a multiple of `capacity + refill · window`.
    fn worst(&self) -> f64 {
        let (capacity, rate) = (f64::from(self.scene.limit.capacity()), self.scene.limit.refill_per_second());
        let exceeds = |factor: f64| {
            let mut lowest = f64::INFINITY;
            self.admitted.iter().enumerate().any(|(before, &at)| {
                let refilled = factor * rate * at as f64 / SECOND as f64;
                lowest = lowest.min(before as f64 - refilled);
                (before + 1) as f64 - refilled - lowest > factor * capacity
            })
        };
        let (mut low, mut high) = (0.0, 16.0);
        while high - low > 0.001 {
            let middle = (low + high) / 2.0;
            if exceeds(middle) { low = middle } else { high = middle }
        }
        high
    }

    /// Admitted from `from` to `to`, as a part of `capacity + refill · (to − from)`.
    fn share_of_limit(&self, Range { start, end }: Range<u64>) -> f64 {
        let admitted = self.admitted.iter().filter(|&&at| (start..end).contains(&at)).count();
        let refilled = self.scene.limit.refill_per_second() * (end - start) as f64 / SECOND as f64;
        admitted as f64 / (f64::from(self.scene.limit.capacity()) + refilled)
    }
}

fn limit(capacity: i64, rate: f64) -> Limit {
    Limit::new(capacity, rate).unwrap()
}

const LIMITS: [(i64, f64); 3] = [(200, 100.0), (20, 50.0), (3, 3.0)];

fn scenes() -> impl Iterator<Item = (u32, Limit)> {
    LIMITS.into_iter().flat_map(|(capacity, rate)| [3, 20].map(|gateways| (gateways, limit(capacity, rate))))
}

/// Twice the limit in any window is the most that is ever admitted.
#[track_caller]
fn at_most_twice(world: &World, what: &str) {
    let (all, worst) = (world.share_of_limit(0..world.scene.end), world.worst());
    let Scene { gateways, limit, .. } = world.scene;
    println!("| {gateways} | {}, {} | {what} | {all:.2} | {worst:.2} |", limit.capacity(), limit.refill_per_second());
    assert!(worst <= 2.0, "{what}: {worst} in {:?}", world.scene);
}

#[test]
fn an_outage_under_a_flood_admits_about_the_limit() {
    for (gateways, limit) in scenes() {
        for seconds in [1, 10, 60] {
            let outage = 5 * SECOND..(5 + seconds) * SECOND;
            let end = outage.end + 10 * SECOND;
            let world = World::new(&Scene { outages: vec![outage], ..Scene::calm(gateways, limit, end) }, seconds);
            let world = world.flood(10.0).run();
            at_most_twice(&world, &format!("{seconds} s"));
            let all = world.share_of_limit(0..end);
            // Asked hardly more than once in the time in which the limit fills, a gateway misses some of its turns.
            let least = if limit.capacity() < gateways { 0.75 } else { 0.95 };
            assert!((least..=1.06).contains(&all), "{:?}: {all}", world.scene);
        }
    }
}

#[test]
fn a_key_that_has_rested_has_its_burst_in_an_outage_too() {
    for (gateways, limit) in scenes() {
        let fills = (f64::from(limit.capacity()) / limit.refill_per_second() * SECOND as f64) as u64;
        let begins = 2 * SECOND + fills;
        let outages = vec![begins..begins + 20 * SECOND];
        let scene = Scene { outages, ..Scene::calm(gateways, limit, begins + 20 * SECOND) };
        let mut world = World::new(&scene, 1);
        world.burst(SECOND);
        let asked = begins + 2 * SECOND;
        world.burst(asked);
        let world = world.run();
        at_most_twice(&world, "after a rest");
        let burst = world.admitted.iter().filter(|&&at| at >= asked).count() as f64;
        assert!(burst >= 0.95 * f64::from(limit.capacity()) - 1.0, "{scene:?}: {burst}");
    }
}

#[test]
fn what_is_spent_before_in_and_after_outages_is_not_spent_again() {
    for (gateways, limit) in scenes() {
        for seconds in [1, 10] {
            let begins = |i| 2 * SECOND + i * (seconds + 2) * SECOND;
            let outages: Vec<_> = (0..5).map(|i| begins(i)..begins(i) + seconds * SECOND).collect();
            let end = begins(5) + 2 * SECOND;
            let mut world =
                World::new(&Scene { outages: outages.clone(), ..Scene::calm(gateways, limit, end) }, seconds);
            for Range { start, end } in outages {
                for at in [start - 10_000, start + 2_000, (start + end) / 2, end - 10_000, end + RECOVERS + 10_000] {
                    world.burst(at);
                }
            }
            at_most_twice(&world.run(), &format!("5 × {seconds} s, bursts"));
        }
    }
}

#[test]
fn calls_lost_or_late_one_by_one_bring_no_second_limit() {
    for (gateways, limit) in scenes() {
        for (what, lost, late) in [("30 % lost", 0.163, 0.0), ("30 % late", 0.0, 0.3)] {
            let world = World::new(&Scene { lost, late, ..Scene::calm(gateways, limit, 60 * SECOND) }, 3);
            at_most_twice(&world.flood(10.0).run(), what);
        }
    }
}

#[test]
fn no_window_admits_more_than_twice_the_limit_whatever_happens() {
    let first = std::env::var("SEKISHO_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    for seed in (0..100).map(|round| u64::wrapping_add(first, round)) {
        let mut random = SmallRng::seed_from_u64(seed);
        let gateways = random.random_range(1..25);
        let limit = limit(random.random_range(1..300), random.random_range(0.5..200.0));
        let (mut outages, mut end) = (Vec::new(), 0);
        for _ in 0..random.random_range(1..8) {
            let start = end + random.random_range(SECOND / 10..5 * SECOND);
            end = start + random.random_range(SECOND / 10..8 * SECOND);
            outages.push(start..end);
        }
        let (lost, late) = (random.random_range(0.0..0.2), random.random_range(0.0..0.3));
        let scene = Scene { outages, lost, late, ..Scene::calm(gateways, limit, end + 3 * SECOND) };
        let mut world = World::new(&scene, seed).flood(random.random_range(0.1..20.0));
        for _ in 0..random.random_range(0..20) {
            world.burst(random.random_range(0..scene.end));
        }
        at_most_twice(&world.run(), &format!("SEKISHO_TEST_SEED={seed}"));
    }
}
