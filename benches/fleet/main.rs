//! A fleet of twenty limiters on one real Redis: does the limit hold, what does it cost, how long does a decision take.
//!
//! `make bench-fleet`, or with a Redis of one's own (its database is emptied!):
//! `SEKISHO_TEST_REDIS_URL=redis://127.0.0.1:6379 cargo bench --bench fleet -- --help`

#![allow(clippy::disallowed_methods, reason = "a bench measures real time")]

mod figures;
mod run;
mod store;
#[path = "../support/mod.rs"]
mod support;
mod traffic;

use std::error::Error;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use figures::Figures;
use run::Fleet;
use store::Observer;
use traffic::{Scene, Shape};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// p99 of a decision, the store included, that `--find-rate` keeps under.
const TARGET: Duration = Duration::from_millis(2);
/// Where `--find-rate` starts, how much it adds at first, and when two rates are close enough; requests per second.
const FIRST_RATE: f64 = 10_000.0;
const PRECISION: f64 = 2_000.0;
/// No machine that this runs on gets further; requests per second.
const LAST_RATE: f64 = 400_000.0;

/// Plays every shape of traffic to twenty limiters on the Redis at SEKISHO_TEST_REDIS_URL, whose database is emptied.
#[derive(Parser)]
struct Arguments {
    /// Only these shapes
    #[arg(long)]
    shape: Vec<Shape>,
    /// Only scenes that offer at least so many requests per second
    #[arg(long, default_value_t = 0.0)]
    at_least: f64,
    #[arg(long, value_enum, default_value_t = Prefetch::Both)]
    prefetch: Prefetch,
    /// How long each shape lasts; the one of many tenants lasts four times as long
    #[arg(long, default_value_t = 2.5)]
    seconds: f64,
    /// Instead: the highest rate of the many tenants at which p99 of a decision stays under 2 ms
    #[arg(long)]
    find_rate: bool,
    /// What `cargo bench` passes
    #[arg(long, hide = true)]
    bench: bool,
}

/// Leases, or one store call per decision.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Prefetch {
    On,
    Off,
    Both,
}

impl Prefetch {
    fn each(self) -> &'static [bool] {
        match self {
            Self::On => &[true],
            Self::Off => &[false],
            Self::Both => &[true, false],
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    let url = std::env::var("SEKISHO_TEST_REDIS_URL")
        .map_err(|_| "SEKISHO_TEST_REDIS_URL is not set: run `make bench-fleet`")?;
    let mut bench = Bench { observer: Observer::new(&url)?, url };
    if arguments.find_rate {
        return arguments.prefetch.each().iter().try_for_each(|&prefetch| bench.find_rate(prefetch, arguments.seconds));
    }
    let chosen = |scene: &Scene| {
        (arguments.shape.is_empty() || arguments.shape.contains(&scene.shape)) && scene.offered >= arguments.at_least
    };
    println!("{HEAD}");
    for scene in traffic::scenes().into_iter().filter(chosen) {
        for &prefetch in arguments.prefetch.each() {
            let seconds = if scene.shape == Shape::Tenants { 4.0 * arguments.seconds } else { arguments.seconds };
            let figures = bench.play(scene, seconds, prefetch)?;
            println!("{}", row(scene, prefetch, &figures));
        }
    }
    println!("{FOOT}");
    Ok(())
}

struct Bench {
    url: String,
    observer: Observer,
}

impl Bench {
    fn play(&mut self, scene: Scene, seconds: f64, prefetch: bool) -> Result<Figures, Box<dyn Error>> {
        let arrivals = scene.arrivals(seconds);
        let fleet = Fleet::start(&self.url, prefetch)?;
        self.observer.reset()?;
        let before = self.observer.counters()?;
        let played = fleet.play(scene, &arrivals)?;
        let after = self.observer.counters()?;
        fleet.end();
        Ok(Figures::new(scene, &arrivals, &played, before, after))
    }

    /// Raises the rate by half until the target is missed, then halves the distance between the two.
    fn find_rate(&mut self, prefetch: bool, seconds: f64) -> Result<(), Box<dyn Error>> {
        println!("\nprefetch {}: p99 of a decision at each rate\n", on_off(prefetch));
        println!("| offered/s | p99 ms since due | p99 ms since sent | undecided % | generator lag p99 ms | |");
        println!("|---|---|---|---|---|---|");
        let (mut good, mut bad) = (0.0, None);
        let mut rate = FIRST_RATE;
        while rate < LAST_RATE && bad.is_none_or(|bad| bad - good > PRECISION) {
            if self.keeps_target(rate, prefetch, seconds)? {
                good = rate;
            } else {
                bad = Some(rate);
            }
            rate = bad.map_or(good * 1.5, |bad| (good + bad) / 2.0);
        }
        println!("\nprefetch {}: p99 stays under {} ms up to {good:.0} decisions/s", on_off(prefetch), ms(TARGET));
        Ok(())
    }

    /// The better of two tries: another process may have taken the processor.
    fn keeps_target(&mut self, rate: f64, prefetch: bool, seconds: f64) -> Result<bool, Box<dyn Error>> {
        for _ in 0..2 {
            let figures = self.play(traffic::tenants(rate), seconds, prefetch)?;
            let undecided = percent(figures.undecided as f64 / figures.offered as f64);
            let kept = figures.since_due[1] < TARGET && undecided < 0.1;
            let (due, sent, lag) = (ms(figures.since_due[1]), ms(figures.since_sent[1]), ms(figures.generator_lag));
            println!(
                "| {rate:.0} | {due} | {sent} | {undecided:.2} | {lag} | {} |",
                if kept { "kept" } else { "missed" }
            );
            if kept {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

const HEAD: &str = "\
| shape | capacity, rate/s | offered/s | prefetch | offered | admitted | admitted / central | worst overshoot (allowance), \
tokens | undecided % | by lease / hold % | store calls per decision | ms since due p50 / p99 / p99.9 | ms since sent \
p50 / p99 / p99.9 | Redis µs per decision | generator lag p99 ms |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|";

const FOOT: &str = "
Central: one bucket over the same requests at the moments they were sent. Overshoot: tokens beyond capacity + rate · \
window, over the worst of all windows. Allowance: rate · (store timeout + measured scheduling delay).";

fn row(scene: Scene, prefetch: bool, figures: &Figures) -> String {
    let Scene { shape, capacity, rate, offered } = scene;
    format!(
        "| {} | {capacity}, {rate} | {offered} | {} | {} | {} | {:.4} | {:.1} ({:.1}) | {:.2} | {:.1} / {:.1} | {:.4} | {} | {} | {:.1} | {} |",
        shape.name(),
        on_off(prefetch),
        figures.offered,
        figures.admitted,
        figures.admitted as f64 / figures.central as f64,
        figures.overshoot,
        figures.allowance,
        percent(figures.undecided as f64 / figures.offered as f64),
        percent(figures.by_lease),
        percent(figures.by_hold),
        figures.calls,
        figures.since_due.map(ms).join(" / "),
        figures.since_sent.map(ms).join(" / "),
        figures.redis_cpu,
        ms(figures.generator_lag),
    )
}

fn on_off(prefetch: bool) -> &'static str {
    if prefetch { "on" } else { "off" }
}

fn percent(share: f64) -> f64 {
    100.0 * share
}

fn ms(time: Duration) -> String {
    format!("{:.2}", time.as_secs_f64() * 1e3)
}
