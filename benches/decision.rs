//! One decision: `Limiter::decide` beside `governor`'s keyed check, over the same names in the same order.
//!
//! `cargo bench --bench decision [-- KEYS …]`. With `SEKISHO_TEST_REDIS_URL` set, also decisions over a shared store, each
//! from a lease or by a hold: every key is given one beforehand. A figure is the time that one thread needs for one
//! decision: the median of slices, in which all that is compared takes turns, so that what else the machine does meets
//! all alike.

#![allow(clippy::disallowed_methods, reason = "a bench measures real time")]

mod support;

use std::error::Error;
use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use sekisho::bucket::Limit;
use sekisho::clock::Clock;
use sekisho::limiter::{Check, Decision, Limiter, Source, StoreState};
use sekisho::rules::FailurePolicy;
use support::limit;
use tokio::sync::oneshot;
use tokio::task::JoinError;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const KEYS: [u64; 3] = [10, 100_000, 1_000_000];
const THREADS: [usize; 2] = [1, 2];
/// So many that no shard of the ledger is ever full: forgetting keys is not what is measured.
const MAX_KEYS: usize = 4_000_000;

/// Length of the sequence of names; a power of two.
const SEQUENCE: usize = 1 << 20;
/// Decisions measured at a time, and as many before as bring the processor's caches back.
const SLICE: usize = 1 << 14;
const SLICES: usize = 60;

/// Tokens, and tokens per second, that no loop exhausts; and a limit that has admitted its only token long ago.
const PLENTY: u32 = 100_000_000;
const EXHAUSTED_FOR: Duration = Duration::from_secs(1_000_000);

/// Calls made at the same time when keys are given leases; fewer than the store's queue holds.
const TOGETHER: usize = 256;

/// Whose tokens a request takes: tenant and route.
type Name = (Arc<str>, Arc<str>);

/// Makes one decision, for the name at a place of the sequence.
type One = Box<dyn Fn(usize) + Sync>;

/// Which limit the keys have, and so what is measured.
#[derive(Clone, Copy)]
enum Case {
    Allowed,
    Denied,
}

impl Case {
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

    /// What decides without the store.
    fn source(self) -> Source {
        match self {
            Self::Allowed => Source::Lease,
            Self::Denied => Source::Hold,
        }
    }

    /// A cost that makes `keys` keys lease more than all slices spend.
    fn first_cost(self, keys: u64) -> u32 {
        match self {
            Self::Allowed => (200_000_000 / keys as u32).max(40_000),
            Self::Denied => 1,
        }
    }
}

/// Uniformly distributed, so that the processor's cache is as cold as the number of keys makes it. The names lie in
/// memory in the order in which they are used, as the name in a request that has just been read does.
struct Sequence {
    keys: u64,
    numbers: Vec<u64>,
    names: Vec<Name>,
}

impl Sequence {
    fn new(keys: u64) -> Self {
        let mut random = StdRng::seed_from_u64(7);
        let route: Arc<str> = "create-order".into();
        let numbers: Vec<u64> = (0..SEQUENCE).map(|_| random.random_range(0..keys)).collect();
        let names = numbers.iter().map(|&number| name(number, &route)).collect();
        Self { keys, numbers, names }
    }

    /// Each key once.
    fn all(&self) -> impl Iterator<Item = Name> {
        let route: Arc<str> = "create-order".into();
        (0..self.keys).map(move |number| name(number, &route))
    }
}

fn name(number: u64, route: &Arc<str>) -> Name {
    (format!("tenant-{number:07}").into(), Arc::clone(route))
}

fn check(name: &Name, limit: Limit, cost: u32) -> Check<'_> {
    Check {
        tenant: &name.0,
        route: &name.1,
        limit,
        cost,
        on_store_failure: FailurePolicy::Closed,
        shadow: false,
        shards: 1,
    }
}

/// A decision that waits for nothing.
#[allow(clippy::panic, reason = "what would be measured is not what the name says")]
fn decide_now(limiter: &Limiter, name: &Name, limit: Limit) -> Decision {
    let check = check(name, limit, 1);
    match limiter.decide_at_once(&check) {
        Ok(decision) => decision,
        Err(_) => panic!("a decision of this process waits for something"),
    }
}

fn in_process(sequence: &Arc<Sequence>, case: Case) -> One {
    let (limiter, _) = support::limiter(None, &support::key_prefix(), MAX_KEYS, true, Clock::monotonic());
    let (sequence, limit) = (Arc::clone(sequence), case.limit());
    sequence.all().for_each(|name| _ = decide_now(&limiter, &name, limit));
    Box::new(move |i| _ = black_box(decide_now(&limiter, &sequence.names[i], limit)))
}

fn governor_by_name(sequence: &Arc<Sequence>, case: Case) -> One {
    let limiter: DefaultKeyedRateLimiter<Name> = RateLimiter::keyed(case.quota());
    let sequence = Arc::clone(sequence);
    sequence.all().for_each(|name| _ = limiter.check_key(&name));
    Box::new(move |i| _ = black_box(limiter.check_key(&sequence.names[i])))
}

fn governor_by_number(sequence: &Arc<Sequence>, case: Case) -> One {
    let limiter: DefaultKeyedRateLimiter<u64> = RateLimiter::keyed(case.quota());
    let sequence = Arc::clone(sequence);
    (0..sequence.keys).for_each(|number| _ = limiter.check_key(&number));
    Box::new(move |i| _ = black_box(limiter.check_key(&sequence.numbers[i])))
}

/// Every key with a lease, or on hold. Its clock stands still, since a lease ends after two seconds; a real one is read
/// beside it, so that this costs what it costs. The store's driver is stopped when all is granted.
fn over_redis(url: &str, sequence: &Arc<Sequence>, case: Case) -> Result<One, Box<dyn Error>> {
    let clock = Clock::manual(Arc::new(AtomicU64::new(1_000_000)));
    let (limiter, upkeep) = support::limiter(Some(url), &support::key_prefix(), MAX_KEYS, true, clock);
    let (limiter, upkeep) = (Arc::new(limiter), upkeep.ok_or("no driver")?);
    let (stop, stopped) = oneshot::channel::<()>();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build();
    let drivers = runtime()?;
    let driver = std::thread::spawn(move || {
        drivers.block_on(async {
            tokio::select! {
                () = upkeep.run() => {}
                _ = stopped => {}
            }
        });
    });
    support::wait_until(&limiter, StoreState::Connected);

    let (limit, first_cost) = (case.limit(), case.first_cost(sequence.keys));
    let callers = runtime()?;
    let decide_together = |names: &[Name], cost: u32| {
        callers.block_on(async {
            let calls = names.iter().cloned().map(|name| {
                let limiter = Arc::clone(&limiter);
                tokio::spawn(async move { limiter.decide(&check(&name, limit, cost)).await.source })
            });
            let mut sources = Vec::with_capacity(names.len());
            for call in calls.collect::<Vec<_>>() {
                sources.push(call.await?);
            }
            Ok::<_, JoinError>(sources)
        })
    };
    for names in sequence.all().collect::<Vec<_>>().chunks(TOGETHER) {
        let mut rounds = 0;
        loop {
            decide_together(names, first_cost)?;
            if decide_together(names, 1)?.into_iter().all(|source| source == case.source()) {
                break;
            }
            rounds += 1;
            assert!(rounds < 100, "keys stay without a lease or hold");
        }
    }
    stop.send(()).map_err(|()| "the driver has ended")?;
    driver.join().map_err(|_| "the driver panicked")?;

    let (sequence, real) = (Arc::clone(sequence), Clock::monotonic());
    Ok(Box::new(move |i| {
        black_box(real.tick());
        if let Case::Denied = case {
            black_box(real.now());
        }
        let decision = decide_now(&limiter, &sequence.names[i], limit);
        assert!(black_box(decision).source == case.source(), "not what the name says");
    }))
}

/// Nanoseconds for one decision of one thread, of a slice on each of `threads` threads, each at its own place.
fn slice(threads: usize, number: usize, one: &One) -> f64 {
    let barrier = Barrier::new(threads);
    let run = |thread: usize| {
        let first = number * 2 * SLICE + thread * SEQUENCE / threads;
        let place = |i: usize| (first + i) & (SEQUENCE - 1);
        (0..SLICE).for_each(|i| one(place(i)));
        barrier.wait();
        let start = Instant::now();
        (SLICE..2 * SLICE).for_each(|i| one(place(i)));
        start.elapsed().as_nanos() as f64 / SLICE as f64
    };
    std::thread::scope(|scope| {
        let run = &run;
        let others: Vec<_> = (1..threads).map(|thread| scope.spawn(move || run(thread))).collect();
        let first = run(0);
        others.into_iter().filter_map(|other| other.join().ok()).fold(first, f64::max)
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::var("SEKISHO_TEST_REDIS_URL").ok();
    let asked: Vec<u64> = std::env::args().filter_map(|arg| arg.parse().ok()).collect();
    println!("| keys | limit | threads | who | ns, median | lower quartile | fastest |\n|---|---|---|---|---|---|---|");
    for keys in KEYS.into_iter().filter(|keys| asked.is_empty() || asked.contains(keys)) {
        let sequence = Arc::new(Sequence::new(keys));
        for case in [Case::Allowed, Case::Denied] {
            let mut compared = vec![
                ("in process", in_process(&sequence, case)),
                ("governor, names", governor_by_name(&sequence, case)),
                ("governor, u64", governor_by_number(&sequence, case)),
            ];
            if let Some(url) = &url {
                compared.insert(1, ("lease or hold", over_redis(url, &sequence, case)?));
            }
            for threads in THREADS {
                let mut times = vec![Vec::with_capacity(SLICES); compared.len()];
                for number in 0..SLICES {
                    for ((_, one), times) in compared.iter().zip(&mut times) {
                        times.push(slice(threads, number, one));
                    }
                }
                for ((who, _), mut times) in compared.iter().zip(times) {
                    times.sort_by(f64::total_cmp);
                    let [median, quartile, fastest] = [times[SLICES / 2], times[SLICES / 4], times[0]];
                    let case = case.name();
                    println!("| {keys} | {case} | {threads} | {who} | {median:.0} | {quartile:.0} | {fastest:.0} |");
                }
            }
        }
    }
    Ok(())
}
