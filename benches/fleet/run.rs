//! Plays traffic to a fleet in real time, as an open loop: a request is sent when it is due, whatever became of those
//! before it.
//!
//! Three threads: one hands over what is due (a quarter of a millisecond at a time), one decides for all gateways, one
//! drives their connections. So a hop between threads is paid as in the gateway.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use sekisho::clock::Clock;
use sekisho::limiter::{Check, Limiter, Outcome, Source, StoreState, Upkeep};
use sekisho::rules::FailurePolicy;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::{LocalSet, spawn_local};

use crate::support;
use crate::traffic::{Arrival, GATEWAYS, Scene};

/// The shortest sleep of the generator.
const TICK: Duration = Duration::from_micros(250);
/// How often the two runtimes are asked whether they are late, and how late a timer of tokio's may be by design.
const PROBE: Duration = Duration::from_millis(2);
const GRAIN: Duration = Duration::from_millis(1);
/// The longest wait for leases to be given back.
const END: Duration = Duration::from_secs(2);

/// What became of one request; all times since the start of the run, on one clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Served {
    /// Index of its arrival.
    pub(crate) request: usize,
    /// When it was handed to its gateway.
    pub(crate) sent: Duration,
    /// When its gateway knew.
    pub(crate) decided: Duration,
    pub(crate) outcome: Outcome,
    pub(crate) source: Source,
}

/// A run.
pub(crate) struct Played {
    /// In the order of the decisions.
    pub(crate) served: Vec<Served>,
    /// The latest that any of the two runtimes ran what was due.
    pub(crate) lateness: Duration,
}

/// Twenty limiters with a connection each.
pub(crate) struct Fleet {
    limiters: Arc<[Limiter]>,
    upkeep: Runtime,
}

/// Arrivals `first..end` are due.
struct Due {
    first: usize,
    end: usize,
    sent: Duration,
}

/// What the requests of a run share.
struct Play {
    limiters: Arc<[Limiter]>,
    scene: Scene,
    tenants: Vec<String>,
    route: Arc<str>,
    start: Instant,
    served: RefCell<Vec<Served>>,
}

impl Fleet {
    /// Each connected to Redis at `url`.
    pub(crate) fn start(url: &str, prefetch: bool) -> std::io::Result<Self> {
        // One worker thread; it runs while nobody waits for it.
        let upkeep = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let prefix = support::key_prefix();
        let (limiters, made): (Vec<Limiter>, Vec<Option<Upkeep>>) = (0..GATEWAYS)
            .map(|_| support::limiter(Some(url), &prefix, 1_000_000, prefetch, Clock::monotonic()))
            .unzip();
        made.into_iter().flatten().for_each(|needed| drop(upkeep.spawn(needed.run())));
        limiters.iter().for_each(|limiter| support::wait_until(limiter, StoreState::Connected));
        Ok(Self { limiters: limiters.into(), upkeep })
    }

    /// Sends every arrival of the scene.
    pub(crate) fn play(&self, scene: Scene, arrivals: &[Arrival]) -> std::io::Result<Played> {
        let requests = Builder::new_current_thread().enable_all().build()?;
        let lateness = Arc::new(Lateness::default());
        self.upkeep.spawn(Arc::clone(&lateness).watch());
        let play = Rc::new(Play {
            limiters: Arc::clone(&self.limiters),
            scene,
            tenants: (0..scene.tenants()).map(|tenant| format!("tenant-{tenant:06}")).collect(),
            route: "create-order".into(),
            start: Instant::now() + Duration::from_millis(20),
            served: RefCell::new(Vec::with_capacity(arrivals.len())),
        });
        thread::scope(|scope| {
            let (due, from) = unbounded_channel();
            let start = play.start;
            scope.spawn(move || generate(arrivals, start, &due));
            let local = LocalSet::new();
            local.spawn_local(Arc::clone(&lateness).watch());
            requests.block_on(local.run_until(Rc::clone(&play).serve(arrivals, from)));
        });
        lateness.stop.store(true, Ordering::Relaxed);
        Ok(Played {
            served: play.served.take(),
            lateness: Duration::from_nanos(lateness.worst.load(Ordering::Relaxed)),
        })
    }

    /// Gives back what is leased, and ends what runs for the limiters.
    pub(crate) fn end(self) {
        let closed = futures_util::future::join_all(self.limiters.iter().map(|limiter| limiter.close(END)));
        self.upkeep.block_on(closed);
        self.upkeep.shutdown_background();
    }
}

/// Hands over each arrival when it is due.
fn generate(arrivals: &[Arrival], start: Instant, due: &UnboundedSender<Due>) {
    let mut first = 0;
    while first < arrivals.len() {
        let next = start + arrivals[first].at;
        thread::sleep(next.saturating_duration_since(Instant::now()).max(TICK));
        let sent = Instant::now().saturating_duration_since(start);
        let end = first + arrivals[first..].partition_point(|arrival| arrival.at <= sent);
        if end > first && due.send(Due { first, end, sent }).is_err() {
            return;
        }
        first = end;
    }
}

impl Play {
    /// Starts every request as it comes, and waits for the last.
    async fn serve(self: Rc<Self>, arrivals: &[Arrival], mut due: UnboundedReceiver<Due>) {
        while let Some(Due { first, end, sent }) = due.recv().await {
            for (request, &arrival) in (first..end).zip(&arrivals[first..end]) {
                spawn_local(Rc::clone(&self).request(request, arrival, sent));
            }
        }
        while self.served.borrow().len() < arrivals.len() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn request(self: Rc<Self>, request: usize, arrival: Arrival, sent: Duration) {
        let check = Check {
            tenant: &self.tenants[arrival.tenant],
            route: &self.route,
            limit: support::limit(self.scene.capacity, self.scene.rate),
            cost: 1,
            // What the store does not decide is counted as undecided, not by a share.
            on_store_failure: FailurePolicy::Closed,
            shadow: false,
            shards: 1,
        };
        let decision = self.limiters[arrival.gateway].decide(&check).await;
        let decided = Instant::now().saturating_duration_since(self.start);
        let served = Served { request, sent, decided, outcome: decision.outcome, source: decision.source };
        self.served.borrow_mut().push(served);
    }
}

/// How late a runtime runs what is due: the measured part of what may stand between a token taken and its stamp.
#[derive(Default)]
struct Lateness {
    worst: AtomicU64,
    stop: AtomicBool,
}

impl Lateness {
    async fn watch(self: Arc<Self>) {
        while !self.stop.load(Ordering::Relaxed) {
            let due = Instant::now() + PROBE + GRAIN;
            tokio::time::sleep(PROBE).await;
            let late = Instant::now().saturating_duration_since(due).as_nanos() as u64;
            self.worst.fetch_max(late, Ordering::Relaxed);
        }
    }
}
