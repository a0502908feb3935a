//! The lease protocol under random faults, in virtual time: gateways ([`Lease`]) around one bucket ([`Bucket`]) with
//! delays, lost calls and replies, crashes, requests of different cost, rule changes, a store that comes back empty and a
//! store clock that steps. Every run checks, over every window, that the tokens admitted stay within `capacity + refill ·
//! window` and what the fault allows.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::oneshot;

use super::{Ask, Lease, Numbers};
use crate::bucket::{Bucket, Call, Limit, Reply};
use crate::decision::{Decision, Outcome};
use crate::store::redis::Message;

mod scenes;

/// A request waits for the store so long, in microseconds, as everything here.
const TIMEOUT: u64 = 5_000;
const ABANDON: u64 = 1_000_000;
const STORE_EPOCH: u64 = 10_000_000_000;
const GENERATION: u64 = 2_000_000;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Scene {
    Calm,
    Faults,
    Rule,
    Reset,
    Clock,
}

#[derive(Debug)]
enum Event {
    Request { node: usize, cost: u32 },
    Leave { node: usize, life: u64, waiter: u64 },
    Begin { node: usize, life: u64, number: u64 },
    Store { node: usize, life: u64, number: u64, message: Message },
    Reply { node: usize, life: u64, number: u64, under: Limit, reply: Option<Reply> },
    Rule { node: usize },
    Reset,
    Tick { node: usize },
}

struct Node {
    life: u64,
    lease: Lease,
    limit: Limit,
    waiting: Vec<(u64, u32, oneshot::Receiver<Decision>)>,
    per_s: f64,
    seen: u64,
}

impl Node {
    fn new(life: u64, limit: Limit) -> Self {
        Self { life, lease: Lease::new(limit), limit, waiting: Vec::new(), per_s: 0.0, seen: 0 }
    }
}

struct World {
    random: SmallRng,
    events: BinaryHeap<Reverse<(u64, u64, usize)>>,
    stored: Vec<Option<Event>>,
    numbers: Numbers,
    bucket: Option<Bucket>,
    nodes: Vec<Node>,
    admitted: Vec<(u64, u32)>,
    calls: u64,
    batch: u32,
    lost: f64,
    slow: f64,
}

/// What a run found.
#[derive(Debug)]
struct Found {
    scene: Scene,
    /// Tokens over `capacity + refill · window` in the worst window, and over what the fault allows.
    over: f64,
    allowed: f64,
    /// The same since one second after the rule changed, against the new rule.
    after: f64,
    admitted: u64,
    ideal: u64,
    starved: bool,
    simple: bool,
    /// In more than 50 ms. Smaller buckets lose more: while a lease of half of one is out, unreported, it cannot refill.
    fills_slowly: bool,
    #[allow(dead_code, reason = "shown when a run fails")]
    setting: String,
}

impl World {
    /// Without faults.
    fn new(random: SmallRng, nodes: usize, limit: Limit, batch: u32) -> Self {
        Self {
            random,
            events: BinaryHeap::new(),
            stored: Vec::new(),
            numbers: Numbers::default(),
            bucket: None,
            nodes: (0..nodes).map(|_| Node::new(0, limit)).collect(),
            admitted: Vec::new(),
            calls: 0,
            batch,
            lost: 0.0,
            slow: 0.0,
        }
    }

    /// Requests to come (moment, gateway, cost), and what gateways do of themselves.
    fn send(&mut self, arrivals: &[(u64, usize, u32)]) {
        for &(at, node, cost) in arrivals {
            self.push(at, Event::Request { node, cost });
        }
        for node in 0..self.nodes.len() {
            let first = self.random.random_range(0..100_000);
            self.push(first, Event::Tick { node });
        }
    }

    /// The next event up to `end`.
    fn next(&mut self, end: u64) -> Option<(u64, Event)> {
        while self.events.peek().is_some_and(|Reverse((now, ..))| *now <= end) {
            let Reverse((now, _, index)) = self.events.pop()?;
            if let Some(event) = self.stored[index].take() {
                return Some((now, event));
            }
        }
        None
    }

    fn push(&mut self, at: u64, event: Event) {
        self.stored.push(Some(event));
        self.events.push(Reverse((at, self.stored.len() as u64, self.stored.len() - 1)));
    }

    fn delay(&mut self) -> u64 {
        if self.random.random_bool(self.slow) {
            self.random.random_range(0..3_000_000)
        } else {
            [200, 500, 1000][self.random.random_range(0..3)]
        }
    }

    fn start(&mut self, now: u64, node: usize, number: u64) {
        let life = self.nodes[node].life;
        self.push(now, Event::Begin { node, life, number });
    }

    fn want(&self, node: usize) -> u32 {
        let Node { per_s, limit, .. } = &self.nodes[node];
        let fill = f64::from(limit.capacity()) / limit.refill_per_second();
        let need = per_s * f64::min(0.1, fill / 2.0);
        match need {
            need if need < f64::from(self.batch) / 2.0 => Some(need as u32).filter(|&need| need >= 4).unwrap_or(0),
            need => (need / f64::from(self.batch)).ceil() as u32 * self.batch,
        }
    }

    /// Collects what was decided for those who wait.
    fn collect(&mut self, now: u64, node: usize) {
        let admitted = &mut self.admitted;
        self.nodes[node].waiting.retain_mut(|(_, cost, answer)| match answer.try_recv() {
            Ok(decision) => {
                if decision.outcome == Outcome::Allowed {
                    admitted.push((now, *cost));
                }
                false
            }
            Err(oneshot::error::TryRecvError::Empty) => true,
            Err(oneshot::error::TryRecvError::Closed) => false,
        });
    }

    fn handle(&mut self, now: u64, event: Event, step: i64, new: Limit) {
        match event {
            Event::Request { node, cost } => {
                let until = (now + TIMEOUT).div_ceil(1000);
                let it = &mut self.nodes[node];
                it.per_s = it.per_s * (-((now - it.seen) as f64) / 1e5).exp() + 10.0 * f64::from(cost);
                it.seen = now;
                match it.lease.ask(now / 1000, it.limit, cost, || until, &self.numbers) {
                    Ask::Decided { decision, call } => {
                        if decision.outcome == Outcome::Allowed {
                            self.admitted.push((now, cost));
                        }
                        call.into_iter().for_each(|number| self.start(now, node, number));
                    }
                    Ask::Wait { answer, call } => {
                        let (life, waiter) = (it.life, self.stored.len() as u64);
                        it.waiting.push((waiter, cost, answer));
                        self.push(now + TIMEOUT, Event::Leave { node, life, waiter });
                        call.into_iter().for_each(|number| self.start(now, node, number));
                    }
                    Ask::Full | Ask::Away => {}
                }
            }
            Event::Leave { node, life, waiter } => {
                if self.nodes[node].life == life {
                    self.nodes[node].waiting.retain(|(number, ..)| *number != waiter);
                }
            }
            Event::Begin { node, life, number } => {
                let want = self.want(node);
                if self.nodes[node].life != life {
                    return;
                }
                let Some(message) = self.nodes[node].lease.begin(now / 1000, number, |_| want) else { return };
                let under = message.limit;
                if self.random.random_bool(1.0 - self.lost) {
                    let at = now + self.delay();
                    self.push(at, Event::Store { node, life, number, message });
                }
                self.push(now + ABANDON, Event::Reply { node, life, number, under, reply: None });
            }
            Event::Store { node, life, number, message } => {
                self.calls += 1;
                let there = ((STORE_EPOCH + now) as i64 + step) as u64 / 1000;
                let bucket = self.bucket.get_or_insert_with(|| Bucket::full(message.limit, there));
                let under = message.limit;
                let call = Call {
                    limit: message.limit,
                    demand: &message.demand,
                    prefetch: message.prefetch,
                    report: message.report,
                };
                let reply = Some(bucket.call(there, &call));
                if self.random.random_bool(1.0 - self.lost) {
                    let at = now + self.delay();
                    self.push(at, Event::Reply { node, life, number, under, reply });
                }
            }
            Event::Reply { node, life, number, under, reply } => {
                let it = &mut self.nodes[node];
                if it.life != life {
                    return;
                }
                let next = it.lease.finish(now / 1000, number, Some(under), reply, &self.numbers).next;
                self.collect(now, node);
                next.into_iter().for_each(|number| self.start(now, node, number));
            }
            Event::Rule { node } => self.nodes[node].limit = new,
            Event::Reset => self.bucket = None,
            Event::Tick { node } => {
                let idle_since = (now / 1000).saturating_sub(100);
                let call = self.nodes[node].lease.give_back(now / 1000, idle_since, &self.numbers);
                call.into_iter().for_each(|number| self.start(now, node, number));
                self.push(now + 100_000, Event::Tick { node });
            }
        }
    }
}

fn pick<T: Copy>(random: &mut SmallRng, of: &[T]) -> T {
    of[random.random_range(0..of.len())]
}

/// Arrivals at random moments, in phases of different load; and sometimes the moments around a generation's boundary
/// that random traffic seldom hits: one gateway hot, then quiet, then spending its last tokens, another bursting after it.
fn arrivals(
    random: &mut SmallRng,
    end: u64,
    nodes: usize,
    limit: Limit,
    loads: &[f64],
    costs: &[u32],
) -> Vec<(u64, usize, u32)> {
    let rate = limit.refill_per_second();
    let fill = f64::from(limit.capacity()) / rate;
    let (mut all, mut t, mut phase_end, mut phase) = (Vec::new(), 0.0_f64, 0.0_f64, 0);
    let mut load = loads[0];
    while t < end as f64 / 1e6 {
        if t >= phase_end {
            phase += 1;
            load = loads[phase % loads.len()];
            let rest = if load < 1.0 { fill * random.random_range(0.0..1.0) } else { 0.0 };
            phase_end = t + random.random_range(0.2..1.5) + rest;
        }
        t += -(1.0 - random.random_range(0.0..1.0_f64)).ln() / (rate * load + 0.1);
        if random.random_bool(0.001) {
            t += pick(random, &[0.1, 1.0, 3.0, 10.0]);
        }
        let node = if random.random_bool(0.7) { random.random_range(0..nodes) } else { 0 };
        all.push(((t * 1e6) as u64, node, pick(random, costs)));
    }
    all
}

fn edges(random: &mut SmallRng, end: u64, nodes: usize, capacity: u32) -> Vec<(u64, usize, u32)> {
    let mut all = Vec::new();
    for boundary in 2..=end / GENERATION {
        let edge = (boundary * GENERATION) as f64 / 1e6;
        let hot = random.random_range(300.0..700.0);
        let mut moments: Vec<(f64, usize)> = Vec::new();
        let before = (hot * random.random_range(0.05..0.3)) as u32;
        moments.extend((0..before).map(|x| (edge - 2.02 - f64::from(x) / hot, 0)));
        moments.extend((0..capacity / 2).map(|_| (edge - 2.014, 1)));
        moments.extend((0..19).map(|x| (edge - 1.95 + f64::from(x) * 0.09, 0)));
        let last = random.random_range(0.13..0.16);
        moments.extend((0..60).map(|x| (edge - last + f64::from(x) * 1e-4, 0)));
        moments.extend((0..capacity + 20).map(|_| (edge + 0.0005, 1)));
        for (at, node) in moments {
            if at > 0.0 && random.random_bool(0.98) {
                all.push(((at * 1e6) as u64, node % nodes, 1));
            }
        }
    }
    all
}

fn run(seed: u64) -> Found {
    let mut random = SmallRng::seed_from_u64(seed);
    let nodes = pick(&mut random, &[1, 2, 5, 20]);
    let limit = |random: &mut SmallRng, capacities: &[i64]| {
        Limit::new(pick(random, capacities), pick(random, &[1.0, 20.0, 100.0, 1000.0])).unwrap()
    };
    let old = limit(&mut random, &[5, 50, 200, 1000]);
    let scenes = [Scene::Calm, Scene::Calm, Scene::Faults, Scene::Faults, Scene::Rule, Scene::Reset, Scene::Clock];
    let scene = pick(&mut random, &scenes);
    let all_loads: [&[f64]; 7] = [&[0.3], &[0.9], &[1.5], &[10.0], &[0.5, 10.0], &[0.5, 10.0], &[0.9, 5.0]];
    let loads = pick(&mut random, &all_loads);
    let per_s = old.refill_per_second() * loads.iter().copied().fold(0.0, f64::max) + 1.0;
    let end = (f64::min(60.0, 60_000.0 / per_s) * 1e6) as u64;
    let faults = scene == Scene::Faults;
    let (lost, slow, crash) = if faults {
        let lost = pick(&mut random, &[0.0, 0.05, 0.3]);
        (lost, pick(&mut random, &[0.02, 0.2]), pick(&mut random, &[0.0, 0.02, 0.1]))
    } else {
        (0.0, 0.0, 0.0)
    };
    let batch = pick(&mut random, &[5, 50, 200]);
    let simple = random.random_bool(0.6);
    let costs: Vec<u32> = if simple { vec![1] } else { vec![1, 1, 2, 5.min(old.capacity())] };
    let at = (end as f64 * random.random_range(0.3..0.6)) as u64;
    let new = if scene == Scene::Rule { limit(&mut random, &[5, 50, 200, 1000]) } else { old };
    let step = if scene == Scene::Clock { pick(&mut random, &[-3600.0, -30.0, -1.0, 0.5, 5.0, 60.0]) } else { 0.0 };

    let mut all = arrivals(&mut random, end, nodes, old, loads, &costs);
    let with_edges = random.random_bool(0.3);
    if with_edges {
        all.extend(edges(&mut random, end, nodes, old.capacity()));
        all.sort_unstable();
    }
    let mut world = World { lost, slow, ..World::new(random, nodes, old, batch) };
    world.send(&all);
    if scene == Scene::Rule {
        for node in 0..nodes {
            let late = world.random.random_range(0..1_000_000);
            world.push(at + late, Event::Rule { node });
        }
    }
    if scene == Scene::Reset {
        world.push(at, Event::Reset);
    }
    while let Some((now, event)) = world.next(end) {
        if let Event::Tick { node } = event
            && world.random.random_bool(crash * 0.1)
        {
            world.nodes[node] = Node::new(world.nodes[node].life + 1, world.nodes[node].limit);
        }
        let step = if now >= at { (step * 1e6) as i64 } else { 0 };
        world.handle(now, event, step, new);
    }
    judge(world, scene, (old, new), at, end, step, &all, simple && !with_edges)
}

#[allow(clippy::too_many_arguments, reason = "all that a run was made of")]
fn judge(
    world: World,
    scene: Scene,
    (old, new): (Limit, Limit),
    at: u64,
    end: u64,
    step: f64,
    arrivals: &[(u64, usize, u32)],
    simple: bool,
) -> Found {
    let capacity = f64::from(old.capacity().max(new.capacity()));
    let rate = f64::max(old.refill_per_second(), new.refill_per_second());
    // Half of the capacity is the most that is ever leased.
    let allowed = rate * TIMEOUT as f64 / 1e6
        + match scene {
            Scene::Reset => capacity + capacity / 2.0,
            Scene::Clock => capacity / 2.0 + if step > 0.0 { f64::min(capacity, rate * step) } else { 0.0 },
            Scene::Calm | Scene::Faults | Scene::Rule => 0.0,
        };
    let worst = |capacity: f64, rate: f64, since: u64| {
        let (mut lowest, mut worst, mut total) = (f64::INFINITY, f64::NEG_INFINITY, 0.0);
        for &(t, cost) in world.admitted.iter().filter(|(t, _)| *t >= since) {
            lowest = f64::min(lowest, total - rate * t as f64 / 1e6);
            total += f64::from(cost);
            worst = f64::max(worst, total - rate * t as f64 / 1e6 - lowest - capacity);
        }
        worst
    };
    let calm_from = (at + 2 * GENERATION + 2_000_000).max((end as f64 * 0.7) as u64);
    let (mut tokens, mut ts, mut ideal, mut late_ideal) = (f64::from(old.capacity()), 0, 0_u64, 0_u64);
    for &(t, _, cost) in arrivals.iter().filter(|(t, ..)| *t <= end) {
        let limit = if t < at { old } else { new };
        let refilled = tokens + (t - ts) as f64 / 1e6 * limit.refill_per_second();
        (tokens, ts) = (refilled.min(f64::from(limit.capacity())), t);
        if tokens >= f64::from(cost) {
            tokens -= f64::from(cost);
            ideal += u64::from(cost);
            late_ideal += if t > calm_from { u64::from(cost) } else { 0 };
        }
    }
    let after = match scene {
        Scene::Rule => {
            let rate = new.refill_per_second();
            worst(f64::from(new.capacity()), rate, at + 1_050_000) - rate * TIMEOUT as f64 / 1e6
        }
        _ => 0.0,
    };
    let sum =
        |since: u64| world.admitted.iter().filter(|(t, _)| *t > since).map(|(_, cost)| u64::from(*cost)).sum::<u64>();
    let recovers = matches!(scene, Scene::Reset | Scene::Clock | Scene::Rule);
    Found {
        scene,
        over: worst(capacity, rate, 0),
        allowed,
        after,
        admitted: sum(0),
        ideal,
        starved: recovers && late_ideal > 60 && sum(calm_from) < late_ideal / 2,
        simple,
        fills_slowly: f64::from(old.capacity()) > old.refill_per_second() * 0.05,
        setting: format!("{} gateways, {old:?} then {new:?}", world.nodes.len()),
    }
}
