//! What a request pays for being remembered: its decision counted, its line of the access log handed over. What the
//! threads beside it do with that is not measured.

#![allow(clippy::disallowed_methods, reason = "a bench measures real time")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::Criterion;
use http::Method;
use sekisho::access_log::{AccessLog, Charged, Entry};
use sekisho::bucket::Limit;
use sekisho::config::{self, LogTarget};
use sekisho::decision::{Decision, Outcome, Quota, Source};
use sekisho::rules::{ANY, Rule};
use sekisho::usage::{Counted, Usage};
use sekisho::wall;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Fewer than a shard holds: what waits is taken away between two measurements.
const AT_A_TIME: u64 = 8192;

/// Measures `count` calls of `one`, the argument of each counting up, and has `clear` make room in between.
fn measured(count: u64, mut one: impl FnMut(u64), mut clear: impl FnMut()) -> Duration {
    let mut total = Duration::ZERO;
    let mut done = 0;
    while done < count {
        let part = AT_A_TIME.min(count - done);
        let start = Instant::now();
        (done..done + part).for_each(&mut one);
        total += start.elapsed();
        clear();
        done += part;
    }
    total
}

fn handover(criterion: &mut Criterion) {
    let Ok(limit) = Limit::new(200, 100.0) else { return };
    let rule = Rule::new(ANY, "export", limit);
    let route = config::Route {
        id: "export".to_owned(),
        methods: Vec::new(),
        path: "/export".to_owned(),
        host: None,
        upstream: "demo".to_owned(),
        cost: 1,
        limit: true,
    };
    let tenants: Vec<String> = (0..1024).map(|tenant| format!("tenant-{tenant:06}")).collect();
    let tenant = |n: u64| tenants[n as usize % tenants.len()].as_str();
    let mut group = criterion.benchmark_group("handover");

    let usage = Usage::new(&config::Usage::default(), std::slice::from_ref(&route), 2, "rl", None);
    group.bench_function("usage", |bencher| {
        bencher.iter_custom(|count| {
            let one = |n| usage.count(black_box(tenant(n)), 0, black_box(&rule), Counted::Allowed);
            measured(count, one, || drop(usage.top(1)))
        });
    });

    let target = LogTarget::File("/dev/null".into());
    let settings = config::AccessLog { target, sample: 1.0, hash_tenants: false };
    let log = AccessLog::new(&settings, &[route], 2);
    let decision = Decision { outcome: Outcome::Allowed, source: Source::Lease, quota: Some(Quota::new(limit, 7)) };
    group.bench_function("access_log", |bencher| {
        bencher.iter_custom(|count| {
            let one = |n| {
                let charged = Charged { tenant: tenant(n).into(), cost: 1, shadow_denied: false, seconds: 2e-5 };
                log.log(Entry {
                    at_ms: wall::now_ms(),
                    method: Method::GET,
                    route: Some(0),
                    decided: Some((charged, rule.scope(), black_box(decision))),
                    status: 200,
                    seconds: 1e-3,
                });
            };
            measured(count, one, || log.write())
        });
    });
    group.finish();
    assert_eq!(usage.dropped(), 0);
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    handover(&mut criterion);
    criterion.final_summary();
}
