//! What arrives where and when.

use std::time::{Duration, SystemTime};

use rand::RngExt;
use rand::rngs::SmallRng;

use crate::fleet::Arrival;

/// Seconds of a lease generation on Redis's clock.
const GENERATION: f64 = 2.0;

/// Poisson arrivals of one token each for subject 0.
pub(crate) fn steady(random: &mut SmallRng, seconds: f64, per_second: f64, gateways: usize) -> Vec<Arrival> {
    spread(random, seconds, per_second, |random, _| Some(random.random_range(0..gateways)))
}

/// Poisson arrivals, at the gateway that `to` says for the moment, if any.
pub(crate) fn spread(
    random: &mut SmallRng,
    seconds: f64,
    per_second: f64,
    to: impl Fn(&mut SmallRng, f64) -> Option<usize>,
) -> Vec<Arrival> {
    let (mut all, mut now) = (Vec::new(), 0.0);
    loop {
        now += gap(random, per_second);
        if now >= seconds {
            return all;
        }
        if let Some(gateway) = to(random, now) {
            all.push(arrival(now, gateway, 0, 1));
        }
    }
}

/// Phases of different load, in turn, as multiples of the refill; a third of all requests goes to one gateway; now and
/// then a pause. At random sizes of `costs`.
pub(crate) fn phases(
    random: &mut SmallRng,
    seconds: f64,
    (capacity, rate): (f64, f64),
    loads: &[f64],
    costs: &[u32],
    gateways: usize,
    subject: usize,
) -> Vec<Arrival> {
    let (mut all, mut now, mut phase_end, mut phase) = (Vec::new(), 0.0, 0.0, 0);
    let mut load = loads[0];
    while now < seconds {
        if now >= phase_end {
            phase += 1;
            load = loads[phase % loads.len()];
            let rest = if load < 1.0 { (capacity / rate).min(seconds) * random.random_range(0.0..1.0) } else { 0.0 };
            phase_end = now + random.random_range(0.2..1.5) + rest;
        }
        now += gap(random, rate * load + 0.1);
        if random.random_bool(0.001) {
            now += [0.1, 0.5, 1.0, 2.2][random.random_range(0..4)];
        }
        if now >= seconds {
            break;
        }
        let gateway = if random.random_bool(0.7) { random.random_range(0..gateways) } else { 0 };
        all.push(arrival(now, gateway, subject, costs[random.random_range(0..costs.len())]));
    }
    all
}

/// The moments around a generation's boundary that random traffic seldom hits: one gateway hot, then quiet, then
/// spending its last tokens as its lease ends, another bursting after the boundary.
pub(crate) fn edges(
    random: &mut SmallRng,
    seconds: f64,
    gateways: usize,
    capacity: u32,
    subject: usize,
) -> Vec<Arrival> {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
    let first = GENERATION - since % GENERATION;
    let mut all = Vec::new();
    let mut edge = first + GENERATION;
    while edge < seconds {
        let hot: f64 = random.random_range(300.0..700.0);
        let before = (hot * random.random_range(0.05..0.3)) as u32;
        let mut moments: Vec<(f64, usize)> = (0..before).map(|x| (edge - 2.02 - f64::from(x) / hot, 0)).collect();
        moments.extend((0..capacity / 2).map(|_| (edge - 2.014, 1)));
        moments.extend((0..19).map(|x| (edge - 1.95 + f64::from(x) * 0.09, 0)));
        let last: f64 = random.random_range(0.13..0.16);
        moments.extend((0..60).map(|x| (edge - last + f64::from(x) * 1e-4, 0)));
        moments.extend((0..capacity + 20).map(|_| (edge + 0.0005, 1)));
        all.extend(
            moments.iter().filter(|(at, _)| *at > 0.0).map(|&(at, node)| arrival(at, node % gateways, subject, 1)),
        );
        edge += GENERATION;
    }
    all
}

/// Again and again: quiet until the bucket is full, then a stream that gateways lease for and the bucket keeps up with,
/// then more than the capacity at once, everywhere: spent from what is leased and from the bucket at the same time.
pub(crate) fn bursts(
    random: &mut SmallRng,
    seconds: f64,
    (capacity, rate): (f64, f64),
    gateways: usize,
    subject: usize,
) -> Vec<Arrival> {
    let (mut all, mut now) = (Vec::new(), 0.0);
    loop {
        let at = now + random.random_range(0.5..0.8);
        if at >= seconds {
            return all;
        }
        let load = rate * random.random_range(0.4..0.7);
        while now < at {
            all.push(arrival(now, random.random_range(0..gateways), subject, 1));
            now += gap(random, load);
        }
        // The second and third wave spend what was leased to serve the first.
        for wave in [at, at + 0.004, at + 0.008] {
            all.extend((0..capacity as usize).map(|i| arrival(wave, i % gateways, subject, 1)));
        }
        now = at + 1.1 * capacity / rate;
    }
}

/// Merges the traffic of several subjects.
pub(crate) fn merged(parts: impl IntoIterator<Item = Vec<Arrival>>) -> Vec<Arrival> {
    let mut all: Vec<Arrival> = parts.into_iter().flatten().collect();
    all.sort_by_key(|arrival| arrival.at);
    all
}

/// So many requests at one moment.
pub(crate) fn burst(at: f64, count: usize, gateways: &[usize]) -> Vec<Arrival> {
    (0..count).map(|i| arrival(at, gateways[i % gateways.len()], 0, 1)).collect()
}

pub(crate) fn arrival(at: f64, gateway: usize, subject: usize, cost: u32) -> Arrival {
    Arrival { at: Duration::from_secs_f64(at), gateway, subject, cost }
}

fn gap(random: &mut SmallRng, per_second: f64) -> f64 {
    -(1.0 - random.random_range(0.0..1.0_f64)).ln() / per_second
}
