//! What rules cost where there are 1,000,000 of them: 100,000 tenants with ten routes each. Each alone, for
//! `benches/RESULTS.md`: `scripts/services.sh run cargo test --test rules_changes -- --ignored --nocapture NAME`.

use std::fmt::Write as _;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sekisho::rules::{Mode, Rules, Source};

use super::support::{self, Connection, Database, Setup, Upstream, request};
use super::{LONG, Running, of_database};

const TENANTS: usize = 100_000;
const ROUTES: usize = 10;

/// Sorts and shows p50, p99, p99.9 and the longest.
fn shown(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    format!("p50 {:?}, p99 {:?}, p99.9 {:?}, max {:?} of {}", at(0.5), at(0.99), at(0.999), at(1.0), times.len())
}

fn resident() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let lines = status.lines().filter(|line| line.starts_with("VmRSS") || line.starts_with("VmHWM"));
    lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>().join(", ")
}

fn capacity(rules: &Rules, tenant: usize) -> u32 {
    let (tenant, route) = (format!("tenant-{tenant:06}"), "route-3");
    rules.load().get(&tenant, route, Mode::Enforce).map_or(0, |rule| rule.limit.capacity())
}

/// Asks without pause until it is so.
async fn until(deadline: Duration, mut is_so: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < deadline);
        tokio::time::sleep(Duration::from_micros(50)).await;
    }
    start.elapsed()
}

async fn of_a_million() -> Database {
    let database = Database::create().await;
    database
        .execute(&format!(
            "INSERT INTO rate_limit_rule (tenant_id, route_id, capacity, refill_per_second)
             SELECT 'tenant-' || lpad(t::text, 6, '0'), 'route-' || r, 200, 100
             FROM generate_series(0, {}) t, generate_series(0, {}) r",
            TENANTS - 1,
            ROUTES - 1
        ))
        .await;
    database
}

async fn change(database: &Database, rules: &Running, tenant: usize, capacity: usize) -> (Duration, Duration) {
    let sql = format!(
        "UPDATE rate_limit_rule SET capacity = {capacity} WHERE tenant_id = 'tenant-{tenant:06}' AND route_id = 'route-3'"
    );
    let written = Instant::now();
    database.execute(&sql).await;
    let written = written.elapsed();
    let told = Instant::now();
    rules.loader.changes().pair(&format!("tenant-{tenant:06}"), "route-3");
    until(LONG, || self::capacity(rules.loader.rules(), tenant) as usize == capacity).await;
    (written, told.elapsed())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures; alone"]
async fn a_million_rules_in_a_database() {
    let database = of_a_million().await;
    println!("before: {}", resident());
    let start = Instant::now();
    let rules = Running::start(of_database(&database)).await;
    println!("loaded {} in {:?}: {}", rules.loader.rules().status().loaded, start.elapsed(), resident());
    for _ in 0..3 {
        let start = Instant::now();
        assert!(rules.loader.reload().await);
        println!("read again without change in {:?}: {}", start.elapsed(), resident());
    }

    let set = Arc::clone(&rules.loader.rules().load());
    let names: Vec<String> = (0..TENANTS).map(|n| format!("tenant-{:06}", n * 7919 % TENANTS)).collect();
    for route in ["route-3", "no-route"] {
        let start = Instant::now();
        names.iter().for_each(|tenant| _ = black_box(set.resolve(black_box(tenant), route)));
        println!("look-up of {route}, another tenant each time: {:?}", start.elapsed() / TENANTS as u32);
    }
    drop(set);

    let (_, first) = change(&database, &rules, 17, 201).await;
    println!("first change, with a connection to be made: {first:?}");
    let (mut written, mut applied) = (Vec::new(), Vec::new());
    for n in 0..1000 {
        let (write, apply) = change(&database, &rules, n * 97 % TENANTS, 1000 + n).await;
        written.push(write);
        applied.push(apply);
    }
    println!("UPDATE in the database: {}", shown(written));
    println!("from the announcement of one rule to its being in force: {}", shown(applied));

    let reads = || rules.loader.rules().status().reloads[Source::Postgres as usize].ok;
    let (before, start, mut applied) = (reads(), Instant::now(), Vec::new());
    rules.loader.changes().all();
    tokio::time::sleep(Duration::from_millis(100)).await;
    while reads() - before == applied.len() as u64 {
        let n = applied.len();
        applied.push(change(&database, &rules, n * 89 % TENANTS, 5000 + n).await.1);
    }
    println!("the same while all are read, which takes {:?}: {}", start.elapsed(), shown(applied));
    println!("{}", resident());
    let sql = "SELECT seq_scan, idx_scan FROM pg_stat_user_tables WHERE relname = 'rate_limit_rule'";
    tokio::time::sleep(Duration::from_secs(2)).await;
    let row = database.client.query_one(sql, &[]).await.unwrap();
    println!("scans of the table: {} whole, {} by index", row.get::<_, i64>(0), row.get::<_, i64>(1));
    rules.end().await;
}

/// A look-up as a request makes it, on a thread of its own, again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures; alone"]
async fn look_ups_while_rules_are_swapped() {
    let database = of_a_million().await;
    let rules = Running::start(of_database(&database)).await;
    for round in 0..3 {
        for (what, changes) in [("no swaps", 0), ("a swap of one rule every 10 ms", 500)] {
            let stop = Arc::new(AtomicBool::new(false));
            let asking = std::thread::spawn({
                let (stop, loader) = (Arc::clone(&stop), Arc::clone(&rules.loader));
                move || {
                    let mut times = Vec::with_capacity(10_000_000);
                    let mut n = 0;
                    while !stop.load(Ordering::Relaxed) {
                        n = (n + 7919) % TENANTS;
                        let tenant = format!("tenant-{n:06}");
                        let start = Instant::now();
                        black_box(loader.rules().load().resolve(&tenant, "route-3").enforce.limit);
                        times.push(start.elapsed());
                        // As a server that is not at its limit: the processor belongs to others too.
                        std::thread::sleep(Duration::from_micros(20));
                    }
                    times
                }
            });
            let start = Instant::now();
            for n in 0..changes {
                tokio::time::sleep_until((start + Duration::from_millis(10) * n).into()).await;
                change(&database, &rules, (n * 97) as usize % TENANTS, (2000 + 1000 * round + n) as usize).await;
            }
            tokio::time::sleep_until((start + Duration::from_secs(5)).into()).await;
            stop.store(true, Ordering::Relaxed);
            println!("{what}: {}", shown(asking.join().unwrap()));
        }
    }
    rules.end().await;
}

fn file_of_a_million(capacity: usize) -> String {
    let mut json = String::with_capacity(120 * TENANTS * ROUTES);
    for tenant in 0..TENANTS {
        for route in 0..ROUTES {
            let comma = if json.is_empty() { '[' } else { ',' };
            let ids = format!(r#""tenant_id":"tenant-{tenant:06}","route_id":"route-{route}""#);
            writeln!(json, r#"{comma}{{{ids},"capacity":{capacity},"refill_per_second":100}}"#).unwrap();
        }
    }
    json + r#",{"tenant_id":"*","route_id":"*","capacity":2000000000,"refill_per_second":2000000000}]"#
}

/// Whole requests through a gateway at a fixed rate, each from the moment it was due.
async fn requests(target: std::net::SocketAddr, rate: f64, seconds: f64) -> Vec<Duration> {
    const CONNECTIONS: usize = 8;
    let start = Instant::now() + Duration::from_millis(50);
    let workers = (0..CONNECTIONS).map(|worker| {
        tokio::spawn(async move {
            let mut connection = Connection::open(target).await;
            let mut times = Vec::new();
            for n in (worker..(rate * seconds) as usize).step_by(CONNECTIONS) {
                let due = start + Duration::from_secs_f64(n as f64 / rate);
                tokio::time::sleep_until(due.into()).await;
                let tenant = format!("tenant-{:06}", n * 7919 % TENANTS);
                connection.write(&request("GET", "/orders", &[("X-Api-Key", &tenant)])).await;
                assert_eq!(connection.read(false).await.unwrap().status, 200);
                times.push(due.elapsed());
            }
            times
        })
    });
    let mut times = Vec::new();
    for worker in workers.collect::<Vec<_>>() {
        times.append(&mut worker.await.unwrap());
    }
    times
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures; alone"]
async fn requests_while_a_million_rules_are_swapped() {
    let upstream = Upstream::normal().await;
    let setup = Setup::new(upstream.address).set("rules", "refresh", "\"1h\"");
    let gateway = setup.rules(&file_of_a_million(200)).start().await;
    let reads = || async { gateway.metric("sekisho_rules_reloads_total", &["file", "ok"]).await };
    let mut capacity = 200;
    for _ in 0..3 {
        println!("no swaps: {}", shown(requests(gateway.address, 500.0, 8.0).await));
        capacity += 1;
        gateway.write_rules(&file_of_a_million(capacity));
        let before = reads().await;
        let asking = tokio::spawn(requests(gateway.address, 500.0, 8.0));
        tokio::time::sleep(Duration::from_secs(2)).await;
        let start = Instant::now();
        gateway.signal("HUP");
        support::eventually("all rules are swapped", 2 * LONG, || async { (reads().await > before).then_some(()) })
            .await;
        let took = start.elapsed();
        println!("all of them read and swapped in {took:?}: {}", shown(asking.await.unwrap()));
    }
    println!("gateway: {} kB resident, {} kB at most", gateway.memory_kb("VmRSS"), gateway.memory_kb("VmHWM"));
}
