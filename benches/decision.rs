//! One decision, no network: `Limiter::decide` with buckets in this process, beside `governor`'s keyed check, both over
//! the same names in the same order.
//!
//! With `SEKISHO_TEST_REDIS_URL` set, also decisions over a shared store, where those served from leases or by a hold
//! cost no round trip; the shares of each are printed, so that a figure is never taken for another.

#![allow(clippy::disallowed_methods, reason = "a bench measures real time")]

mod support;

use std::cell::{Cell, LazyCell};
use std::hint::black_box;
use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, LazyLock};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use sekisho::bucket::Limit;
use sekisho::limiter::{Check, Limiter, Outcome, Source};
use sekisho::rules::FailurePolicy;
use support::limit;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const KEYS: [usize; 3] = [10, 100_000, 1_000_000];
const THREADS: [usize; 2] = [1, 2];
/// So many that no shard of the ledger is ever full: forgetting keys is not what is measured.
const MAX_KEYS: usize = 4_000_000;

/// Length of the sequence of names; a power of two.
const SEQUENCE: usize = 1 << 20;

/// Tokens, and tokens per second, that no loop exhausts; and a limit that has admitted its only token long ago.
const PLENTY: u32 = 100_000_000;
const EXHAUSTED_FOR: Duration = Duration::from_secs(1_000_000);

/// Whose tokens a request takes: tenant and route.
type Name = (Arc<str>, Arc<str>);

/// Which limit the keys have, and so what is measured.
#[derive(Clone, Copy)]
enum Case {
    Allowed,
    Denied,
}

impl Case {
    const ALL: [Self; 2] = [Self::Allowed, Self::Denied];

    fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
        }
    }

    fn limit(self) -> Limit {
        match self {
            Self::Allowed => limit(PLENTY, f64::from(PLENTY)),
            Self::Denied => limit(1, EXHAUSTED_FOR.as_secs_f64().recip()),
        }
    }

    fn quota(self) -> Quota {
        match self {
            Self::Allowed => Quota::per_second(NonZeroU32::new(PLENTY).unwrap_or(NonZeroU32::MIN)),
            Self::Denied => Quota::with_period(EXHAUSTED_FOR).unwrap_or(Quota::per_hour(NonZeroU32::MIN)),
        }
    }
}

/// Uniformly distributed, so that the processor's cache is as cold as the number of keys makes it. The names lie in
/// memory in the order in which they are used, as the name in a request that has just been read does.
struct Sequence {
    numbers: Vec<u64>,
    names: Vec<Name>,
}

impl Sequence {
    fn new(keys: usize) -> Self {
        let mut random = StdRng::seed_from_u64(7);
        let route: Arc<str> = "create-order".into();
        let numbers: Vec<u64> = (0..SEQUENCE).map(|_| random.random_range(0..keys as u64)).collect();
        let names = numbers.iter().map(|&number| name(number, &route)).collect();
        Self { numbers, names }
    }
}

fn name(number: u64, route: &Arc<str>) -> Name {
    (format!("tenant-{number:07}").into(), Arc::clone(route))
}

/// Times `iterations` of `one` on each of `threads` threads, from `first` on, each at its own place in the sequence.
fn on_threads(threads: usize, first: usize, iterations: usize, one: &(impl Fn(usize) + Sync)) -> Duration {
    let repeat = |first: usize| {
        let start = Instant::now();
        for i in first..first + iterations {
            one(i & (SEQUENCE - 1));
        }
        start.elapsed()
    };
    if threads == 1 {
        return repeat(first);
    }
    let barrier = Barrier::new(threads);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let (repeat, barrier) = (&repeat, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    repeat(first + thread * SEQUENCE / threads)
                })
            })
            .collect();
        workers.into_iter().filter_map(|worker| worker.join().ok()).max().unwrap_or_default()
    })
}

/// Benches `one` on what `make` makes, for each number of threads; a figure is the time that one thread needs for one
/// decision. Nothing is made for a bench that was not asked for.
fn bench<L: Sync>(
    group: &mut BenchmarkGroup<'_, WallTime>,
    who: &str,
    keys: usize,
    make: impl FnOnce() -> L,
    one: impl Fn(&L, usize) + Sync,
) {
    let limiter = LazyCell::new(make);
    // Samples go on where the last one ended: from the start again, they would find its keys in the processor's cache.
    let place = Cell::new(0);
    for threads in THREADS {
        let id = BenchmarkId::new(format!("{who}/{threads}-thread"), keys);
        group.bench_function(id, |bencher| {
            let limiter: &L = &limiter;
            bencher.iter_custom(|iterations| {
                let first = place.replace(place.get() + iterations as usize);
                on_threads(threads, first, iterations as usize, &|i| one(limiter, i))
            });
        });
    }
}

fn check(name: &Name, limit: Limit) -> Check<'_> {
    Check {
        tenant: &name.0,
        route: &name.1,
        limit,
        cost: 1,
        on_store_failure: FailurePolicy::Closed,
        shadow: false,
        shards: 1,
    }
}

/// With buckets in this process every decision is ready at once, so nothing but the decision is measured.
#[allow(clippy::panic, reason = "what would be measured is not what the name says")]
fn decide_now(limiter: &Limiter, name: &Name, limit: Limit) -> Outcome {
    let check = check(name, limit);
    match pin!(limiter.decide(&check)).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(decision) => decision.outcome,
        Poll::Pending => panic!("a decision of this process waits for something"),
    }
}

fn in_process(criterion: &mut Criterion) {
    let route: Arc<str> = "create-order".into();
    for keys in KEYS {
        let sequence = LazyLock::new(|| Sequence::new(keys));
        let all = || (0..keys as u64).map(|number| name(number, &route));
        for case in Case::ALL {
            let (limit, quota) = (case.limit(), case.quota());
            let mut group = criterion.benchmark_group(format!("decision/{}", case.name()));
            let sekisho = || {
                let limiter = limiter(None, MAX_KEYS);
                all().for_each(|name| _ = decide_now(&limiter, &name, limit));
                limiter
            };
            bench(&mut group, "sekisho", keys, sekisho, |limiter, i| {
                _ = black_box(decide_now(limiter, &sequence.names[i], limit));
            });
            let by_name = || {
                let limiter: DefaultKeyedRateLimiter<Name> = RateLimiter::keyed(quota);
                all().for_each(|name| _ = limiter.check_key(&name));
                limiter
            };
            bench(&mut group, "governor-names", keys, by_name, |limiter, i| {
                _ = black_box(limiter.check_key(&sequence.names[i]));
            });
            let by_number = || {
                let limiter: DefaultKeyedRateLimiter<u64> = RateLimiter::keyed(quota);
                (0..keys as u64).for_each(|number| _ = limiter.check_key(&number));
                limiter
            };
            bench(&mut group, "governor-u64", keys, by_number, |limiter, i| {
                _ = black_box(limiter.check_key(&sequence.numbers[i]));
            });
            group.finish();
        }
    }
}

/// Decisions over Redis, one after the other on one thread: what is not served from a lease or by a hold waits for a
/// round trip, so only the shares printed tell what was measured.
fn over_redis(criterion: &mut Criterion, url: &str) {
    let Ok(requests) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
    let mut group = criterion.benchmark_group("decision/redis");
    for keys in [10, 100_000] {
        let sequence = Sequence::new(keys);
        for case in Case::ALL {
            let limiter = limiter(Some(url), MAX_KEYS);
            let by_source: [AtomicU64; 3] = Default::default();
            let place = AtomicU64::new(0);
            group.bench_function(BenchmarkId::new(case.name(), keys), |bencher| {
                bencher.iter_custom(|iterations| {
                    let first = place.fetch_add(iterations, Ordering::Relaxed);
                    requests.block_on(tokio::task::unconstrained(async {
                        let start = Instant::now();
                        for i in first..first + iterations {
                            let name = &sequence.names[i as usize & (SEQUENCE - 1)];
                            let decision = limiter.decide(&check(name, case.limit())).await;
                            let source = match decision.source {
                                Source::Lease => 0,
                                Source::Hold => 1,
                                _ => 2,
                            };
                            by_source[source].fetch_add(1, Ordering::Relaxed);
                        }
                        start.elapsed()
                    }))
                });
            });
            let counts = by_source.map(AtomicU64::into_inner);
            let [lease, hold, rest] = counts.map(|count| 100.0 * count as f64 / counts.iter().sum::<u64>() as f64);
            println!("    of these: {lease:.2} % by lease, {hold:.2} % by hold, {rest:.2} % asked the store");
        }
    }
    group.finish();
}

/// A limiter, connected; what has to run for it has a thread of its own.
#[allow(clippy::expect_used, reason = "nothing can be measured without")]
fn limiter(url: Option<&str>, max_keys: usize) -> Limiter {
    let (limiter, upkeep) = support::limiter(url, &support::key_prefix(), max_keys, true);
    if let Some(upkeep) = upkeep {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        std::thread::spawn(move || runtime.block_on(upkeep.run()));
        support::wait_until_connected(&limiter);
    }
    limiter
}

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(700))
        .configure_from_args();
    in_process(&mut criterion);
    if let Ok(url) = std::env::var("SEKISHO_TEST_REDIS_URL") {
        over_redis(&mut criterion, &url);
    }
    criterion.final_summary();
}
