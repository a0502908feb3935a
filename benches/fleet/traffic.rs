//! What arrives where and when: the shapes of traffic that the protocol of leases is judged by.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Gateways that share each limit.
pub(crate) const GATEWAYS: usize = 20;

/// Tenants of [`Shape::Tenants`], and the exponent of how unequal they are.
const TENANTS: usize = 100_000;
const EXPONENT: f64 = 1.1;

/// How requests are spread over time, gateways and tenants. All but the last are one tenant's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Shape {
    /// Any gateway, alike.
    Uniform,
    /// Any gateway, the i-th weighted with i^-1.2.
    Zipf,
    /// A sticky balancer that moves the tenant to another gateway every half second.
    Hop,
    /// Any gateway; a second with traffic, half a second without (the other way round the first time).
    OnOff,
    /// One request on each gateway, a pause in which the bucket fills, then a burst everywhere.
    TrickleBurst,
    /// 100,000 tenants, the i-th weighted with i^-1.1, on any gateway.
    Tenants,
}

impl Shape {
    /// Its name in tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Zipf => "zipf",
            Self::Hop => "hop",
            Self::OnOff => "on-off",
            Self::TrickleBurst => "trickle-burst",
            Self::Tenants => "100,000 tenants",
        }
    }
}

/// One shape at one limit and one offered rate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scene {
    pub(crate) shape: Shape,
    /// Tokens.
    pub(crate) capacity: u32,
    /// Tokens per second.
    pub(crate) rate: f64,
    /// Requests per second.
    pub(crate) offered: f64,
}

/// The scenes of the model, each limit with traffic below and above it, and the one of many tenants.
pub(crate) fn scenes() -> Vec<Scene> {
    use Shape::{Hop, OnOff, TrickleBurst, Uniform, Zipf};
    let mut scenes = Vec::new();
    for (capacity, rate, loads) in
        [(200, 100.0, [95.0, 2_000.0]), (2_000, 1_000.0, [900.0, 3_000.0]), (40_000, 20_000.0, [10_000.0, 30_000.0])]
    {
        for shape in [Uniform, Zipf, Hop, OnOff, TrickleBurst] {
            scenes.extend(loads.map(|offered| Scene { shape, capacity, rate, offered }));
        }
    }
    scenes.push(tenants(50_000.0));
    scenes
}

/// Many tenants, each with the same limit.
pub(crate) fn tenants(offered: f64) -> Scene {
    Scene { shape: Shape::Tenants, capacity: 200, rate: 100.0, offered }
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    /// Since the start of the run.
    pub(crate) at: Duration,
    pub(crate) gateway: usize,
    pub(crate) tenant: usize,
}

impl Scene {
    /// How many tenants share the traffic.
    pub(crate) fn tenants(&self) -> usize {
        if self.shape == Shape::Tenants { TENANTS } else { 1 }
    }

    /// `seconds` of traffic (after the lead-in of a burst), as a Poisson process, the same each time.
    pub(crate) fn arrivals(&self, seconds: f64) -> Vec<Arrival> {
        let mut random = StdRng::seed_from_u64(7);
        let (mut arrivals, mut now, mut end) = (Vec::new(), 0.0, seconds);
        if self.shape == Shape::TrickleBurst {
            arrivals.extend((0..GATEWAYS).map(|gateway| arrival(0.01 * gateway as f64 + 0.001, gateway, 0)));
            now = 2.0 + 1.2 * f64::from(self.capacity) / self.rate;
            end += now;
        }
        let gateways = Weighted::zipf(GATEWAYS, 1.2);
        let tenants = Weighted::zipf(self.tenants(), EXPONENT);
        loop {
            now -= (1.0 - random.random::<f64>()).ln() / self.offered;
            if self.shape == Shape::OnOff && now % 1.5 < 1.0 {
                now += 1.0 - now % 1.5;
            }
            if now >= end {
                return arrivals;
            }
            let gateway = match self.shape {
                Shape::Zipf => gateways.draw(&mut random),
                Shape::Hop => (now / 0.5) as usize % GATEWAYS,
                _ => random.random_range(0..GATEWAYS),
            };
            arrivals.push(arrival(now, gateway, tenants.draw(&mut random)));
        }
    }
}

fn arrival(seconds: f64, gateway: usize, tenant: usize) -> Arrival {
    Arrival { at: Duration::from_secs_f64(seconds), gateway, tenant }
}

/// Indexes drawn with weights, by their running sums.
struct Weighted(Vec<f64>);

impl Weighted {
    fn zipf(count: usize, exponent: f64) -> Self {
        let weights = (1..=count).map(|i| (i as f64).powf(-exponent));
        Self(weights.scan(0.0, |sum, weight| (*sum += weight, Some(*sum)).1).collect())
    }

    fn draw(&self, random: &mut StdRng) -> usize {
        let total = self.0.last().copied().unwrap_or_default();
        let at = random.random::<f64>() * total;
        self.0.partition_point(|&sum| sum <= at).min(self.0.len() - 1)
    }
}
