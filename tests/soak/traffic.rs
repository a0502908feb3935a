//! Steady traffic: on each route two hot tenants far over their limit, and a crowd that asks once in a while.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinHandle;

use crate::support::{Connection, Gateway, request};

const ROUTES: [&str; 3] = ["local", "open", "closed"];
const HOT: [&str; 2] = ["hot-a", "hot-b"];
/// Keep-alive connections to each gateway.
const CONNECTIONS: usize = 16;
/// More than a gateway keeps track of.
const CROWD: u32 = 1_000_000;

/// What came back.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// By route, tenant (hot ones, else "crowd") and status.
    answers: BTreeMap<(&'static str, &'static str, u16), u64>,
    /// Requests without a whole answer, by what went wrong.
    broken: Vec<String>,
    /// How long answers took, in microseconds.
    took: Vec<u32>,
}

impl Tally {
    /// What each hot tenant was admitted on a route.
    pub(crate) fn admitted(&self, route: &str) -> Vec<(&'static str, u64)> {
        HOT.map(|hot| (hot, self.answers.get(&(find(route), hot, 200)).copied().unwrap_or(0))).into()
    }

    /// Fails the test unless every request on a route was answered with one of these.
    pub(crate) fn only(&self, route: &str, allowed: &[u16]) {
        let bad: Vec<_> =
            self.answers.iter().filter(|((on, _, status), _)| *on == route && !allowed.contains(status)).collect();
        let broken = &self.broken[..self.broken.len().min(3)];
        assert!(bad.is_empty() && broken.is_empty(), "{route}: only {allowed:?} expected, also {bad:?}, {broken:?}");
    }

    fn add(&mut self, other: Self) {
        for (key, count) in other.answers {
            *self.answers.entry(key).or_default() += count;
        }
        self.broken.extend(other.broken);
        self.took.extend(other.took);
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut took = self.took.clone();
        took.sort_unstable();
        let at = |share: f64| took[((took.len() - 1) as f64 * share) as usize];
        write!(f, "{} answers, in microseconds ", took.len())?;
        write!(f, "p50 {} p99 {} p99.9 {} longest {}", at(0.5), at(0.99), at(0.999), at(1.0))
    }
}

fn find(route: &str) -> &'static str {
    ROUTES.into_iter().find(|one| *one == route).expect("a route")
}

/// Traffic under way.
pub(crate) struct Traffic {
    workers: Vec<JoinHandle<Tally>>,
    stop: Arc<AtomicBool>,
}

impl Traffic {
    /// So many requests per second over all gateways; sent late rather than not at all when the machine is busy.
    pub(crate) fn start(gateways: &[Gateway], rate: f64, seed: u64) -> Self {
        let (stop, next, start) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)), Instant::now());
        let worker = |target: SocketAddr, number: u64| {
            let (stop, next) = (Arc::clone(&stop), Arc::clone(&next));
            let random = SmallRng::seed_from_u64(seed.wrapping_add(number));
            let due = move || start + Duration::from_secs_f64(next.fetch_add(1, Ordering::Relaxed) as f64 / rate);
            tokio::spawn(work(target, random, due, stop))
        };
        let targets = gateways.iter().flat_map(|gateway| [gateway.address; CONNECTIONS]);
        let workers = targets.zip(0..).map(|(target, number)| worker(target, number)).collect();
        Self { workers, stop }
    }

    pub(crate) async fn stop(self) -> Tally {
        self.stop.store(true, Ordering::Relaxed);
        let mut total = Tally::default();
        for worker in self.workers {
            total.add(worker.await.unwrap());
        }
        total
    }
}

async fn work(target: SocketAddr, mut random: SmallRng, due: impl Fn() -> Instant, stop: Arc<AtomicBool>) -> Tally {
    let mut tally = Tally::default();
    let mut kept: Option<Connection> = None;
    while !stop.load(Ordering::Relaxed) {
        tokio::time::sleep_until(due().into()).await;
        let route = ROUTES[random.random_range(0..ROUTES.len())];
        let (tenant, kind) = match random.random_range(0..5) {
            0 => (format!("crowd-{}", random.random_range(0..CROWD)), "crowd"),
            drawn => (HOT[drawn % 2].to_owned(), HOT[drawn % 2]),
        };
        let sent = Instant::now();
        let mut connection = match kept.take() {
            Some(connection) => connection,
            None => Connection::open(target).await,
        };
        connection.write(&request("GET", &format!("/{route}"), &[("X-Api-Key", &tenant)])).await;
        match connection.read(false).await {
            Ok(answer) => {
                tally.took.push(sent.elapsed().as_micros() as u32);
                *tally.answers.entry((route, kind, answer.status)).or_default() += 1;
                if !answer.closes() {
                    kept = Some(connection);
                }
            }
            Err(broken) => tally.broken.push(broken),
        }
    }
    tally
}
