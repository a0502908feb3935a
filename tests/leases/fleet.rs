//! Limiters as gateways run them, in this process, so that every decision is stamped at both ends by one clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sekisho::bucket::Limit;
use sekisho::clock::Clock;
use sekisho::config;
use sekisho::limiter::{Check, Decision, Limiter, Outcome, Source, StoreState};
use sekisho::rule::{ANY, FailurePolicy, Mode, Rule};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::unbounded_channel;
use tokio::task::{JoinHandle, LocalSet, spawn_local};

use crate::support::{eventually, unique};

/// How often requests that are due are handed over.
const TICK: Duration = Duration::from_micros(200);

/// How a fleet is set up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub(crate) gateways: usize,
    pub(crate) timeout: Duration,
    pub(crate) batch: u32,
    pub(crate) prefetch: bool,
    pub(crate) max_keys: usize,
}

impl Setting {
    /// With a store timeout that a busy machine does not run into by accident.
    pub(crate) fn patient(gateways: usize) -> Self {
        Self { gateways, timeout: Duration::from_millis(500), batch: 50, prefetch: true, max_keys: 100_000 }
    }
}

/// Whose bucket is asked, under which limit; the limit may change while the fleet plays.
#[derive(Debug)]
pub(crate) struct Subject {
    pub(crate) tenant: String,
    pub(crate) limit: Mutex<Limit>,
    pub(crate) shards: u8,
}

impl Subject {
    pub(crate) fn new(tenant: &str, limit: Limit) -> Self {
        Self { tenant: tenant.to_owned(), limit: Mutex::new(limit), shards: 1 }
    }

    /// The only one of a fleet.
    pub(crate) fn one(capacity: i64, rate: f64) -> Arc<[Self]> {
        [Self::new("shop-a", limit(capacity, rate))].into()
    }
}

pub(crate) fn limit(capacity: i64, rate: f64) -> Limit {
    Limit::new(capacity, rate).unwrap()
}

/// One request to come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    /// Since the start.
    pub(crate) at: Duration,
    pub(crate) gateway: usize,
    /// Index of its subject.
    pub(crate) subject: usize,
    pub(crate) cost: u32,
}

/// What became of it; times in seconds since the start, on one clock. Its tokens were spent somewhere between the two.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Served {
    pub(crate) subject: usize,
    pub(crate) cost: u32,
    pub(crate) sent: f64,
    pub(crate) decided: f64,
    pub(crate) decision: Decision,
}

/// Limiters on one Redis; their upkeep ends when this is dropped, without giving anything back.
pub(crate) struct Fleet {
    pub(crate) setting: Setting,
    pub(crate) prefix: String,
    gateways: Arc<[Gateway]>,
    route: Arc<str>,
    upkeep: Option<Runtime>,
}

struct Gateway {
    limiter: Limiter,
    upkeep: JoinHandle<()>,
    dead: AtomicBool,
}

impl Fleet {
    /// Connected to Redis at `url`.
    pub(crate) async fn start(url: &str, setting: Setting) -> Self {
        let upkeep = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let prefix = unique();
        let gateways: Arc<[Gateway]> = (0..setting.gateways)
            .map(|_| {
                let (limiter, of_limiter) = limiter(url, &prefix, setting);
                let upkeep = upkeep.spawn(of_limiter.unwrap().run());
                Gateway { limiter, upkeep, dead: AtomicBool::new(false) }
            })
            .collect();
        for gateway in &*gateways {
            eventually("a limiter is connected", Duration::from_secs(10), || async {
                (gateway.limiter.store_state() == StoreState::Connected).then_some(())
            })
            .await;
        }
        Self { setting, prefix, gateways, route: "orders".into(), upkeep: Some(upkeep) }
    }

    pub(crate) fn limiter(&self, gateway: usize) -> &Limiter {
        &self.gateways[gateway].limiter
    }

    /// A gateway dies: no more requests reach it, nothing is given back.
    pub(crate) fn kill(&self, gateway: usize) {
        self.killer(gateway)();
    }

    /// The same, for later.
    pub(crate) fn killer(&self, gateway: usize) -> impl FnOnce() + Send + use<> {
        let gateways = Arc::clone(&self.gateways);
        move || {
            gateways[gateway].dead.store(true, Ordering::SeqCst);
            gateways[gateway].upkeep.abort();
        }
    }

    /// One decision of one gateway.
    pub(crate) async fn ask(&self, gateway: usize, subject: &Subject, cost: u32) -> Decision {
        decide(&self.gateways[gateway], &self.route, subject, cost).await
    }

    /// Sends every request when it is due, and waits for the last decision.
    pub(crate) async fn play(&self, subjects: &Arc<[Subject]>, arrivals: &[Arrival]) -> Vec<Served> {
        let (due, mut arriving) = unbounded_channel();
        let start = Instant::now() + Duration::from_millis(20);
        let (served, mut results) = unbounded_channel();
        let serve = async {
            while let Some(arrived) = arriving.recv().await {
                let arrived: Vec<Arrival> = arrived;
                for arrival in arrived {
                    let (gateways, route) = (Arc::clone(&self.gateways), Arc::clone(&self.route));
                    let (subjects, served) = (Arc::clone(subjects), served.clone());
                    spawn_local(async move {
                        let gateway = &gateways[arrival.gateway];
                        if gateway.dead.load(Ordering::SeqCst) {
                            return;
                        }
                        let sent = start.elapsed().as_secs_f64();
                        let decision = decide(gateway, &route, &subjects[arrival.subject], arrival.cost).await;
                        let decided = start.elapsed().as_secs_f64();
                        let Arrival { subject, cost, .. } = arrival;
                        let _ = served.send(Served { subject, cost, sent, decided, decision });
                    });
                }
            }
            drop(served);
            let mut all = Vec::with_capacity(arrivals.len());
            while let Some(one) = results.recv().await {
                all.push(one);
            }
            all
        };
        let to_send = arrivals.to_vec();
        let generator = thread::spawn(move || generate(&to_send, start, |arrived| due.send(arrived).is_ok()));
        let all = LocalSet::new().run_until(serve).await;
        generator.join().unwrap();
        all
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        if let Some(upkeep) = self.upkeep.take() {
            upkeep.shutdown_background();
        }
    }
}

async fn decide(gateway: &Gateway, route: &Arc<str>, subject: &Subject, cost: u32) -> Decision {
    let limit = *subject.limit.lock();
    let check = Check {
        tenant: &subject.tenant,
        route,
        limit,
        cost,
        // What the store does not decide is admitted by nobody.
        on_store_failure: FailurePolicy::Closed,
        shadow: false,
        shards: subject.shards,
    };
    gateway.limiter.decide(&check).await
}

/// Hands over what is due.
fn generate(arrivals: &[Arrival], start: Instant, mut hand_over: impl FnMut(Vec<Arrival>) -> bool) {
    let mut rest = arrivals;
    while let Some(next) = rest.first() {
        thread::sleep((start + next.at).saturating_duration_since(Instant::now()).max(TICK));
        let now = Instant::now().saturating_duration_since(start);
        let (due, later) = rest.split_at(rest.partition_point(|arrival| arrival.at <= now));
        if !due.is_empty() && !hand_over(due.to_vec()) {
            return;
        }
        rest = later;
    }
}

fn limiter(url: &str, prefix: &str, setting: Setting) -> (Limiter, Option<sekisho::limiter::Upkeep>) {
    let any: Arc<str> = ANY.into();
    let settings = config::Limiter {
        default_rule: Rule {
            tenant_id: Arc::clone(&any),
            route_id: any,
            limit: limit(20, 10.0),
            cost: None,
            on_store_failure: None,
            shards: 1,
            mode: Mode::Enforce,
            enabled: true,
            comment: None,
        },
        max_keys: setting.max_keys,
        instances: setting.gateways as u32,
        on_store_failure: FailurePolicy::Closed,
        prefetch: config::Prefetch {
            batch: setting.batch,
            horizon: Duration::from_millis(100),
            enabled: setting.prefetch,
        },
        breaker: config::Breaker::default(),
    };
    let store =
        config::Store { redis: config::Redis::single(url), timeout: setting.timeout, key_prefix: prefix.to_owned() };
    Limiter::new(&store, &settings, Clock::monotonic()).unwrap()
}

/// Requests per outcome and source, for messages.
pub(crate) fn tally(served: &[Served]) -> String {
    let count = |test: &dyn Fn(&Decision) -> bool| served.iter().filter(|one| test(&one.decision)).count();
    let of = |source: Source| count(&|decision| decision.source == source);
    format!(
        "{} requests, {} allowed; by lease {}, store {}, hold {}, without the store {}",
        served.len(),
        count(&|decision| decision.outcome == Outcome::Allowed),
        of(Source::Lease),
        of(Source::Store),
        of(Source::Hold),
        count(&|decision| decision.outcome == Outcome::Unavailable),
    )
}
