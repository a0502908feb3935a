//! Memory for a tracked key: how much the process grows by a million keys, and that it grows no further.
//!
//! `cargo bench --bench memory`, each figure in a process of its own. `leases` and `away` have no Redis to ask: a key that
//! was asked for once keeps the same of it either way.

mod support;

use std::io;
use std::process::Command;
use std::sync::Arc;

use sekisho::clock::Clock;
use sekisho::limiter::{Check, Limiter, StoreState};
use sekisho::rules::FailurePolicy;
use support::limit;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const KEYS: u64 = 1_000_000;

/// Nobody listens there.
const NO_REDIS: &str = "redis://127.0.0.1:1";

/// Resident bytes of this process.
fn resident() -> io::Result<f64> {
    let pages = std::fs::read_to_string("/proc/self/statm")?;
    let resident = pages.split(' ').nth(1).and_then(|pages| pages.parse::<f64>().ok());
    Ok(4096.0 * resident.ok_or_else(|| io::Error::other(format!("/proc/self/statm: {pages:?}")))?)
}

/// What keeps the keys, and what the tenants are called.
fn measure(kept: &str, names: &str) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let url = (kept != "in process").then_some(NO_REDIS);
    let (limiter, upkeep) = support::limiter(url, &support::key_prefix(), KEYS as usize, true, Clock::monotonic());
    if let Some(upkeep) = upkeep {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::spawn(move || runtime.block_on(upkeep.run()));
        support::wait_until(&limiter, StoreState::Away);
    }
    let on_store_failure = if kept == "away" { FailurePolicy::Local } else { FailurePolicy::Closed };
    let route: Arc<str> = "create-order".into();
    let before = resident()?;
    let mut grown = Vec::new();
    for millionth in 0..3 {
        for number in millionth * KEYS..(millionth + 1) * KEYS {
            let tenant = match names {
                "short" => format!("tenant-{number:07}"),
                _ => format!("{number:08x}-0000-4000-8000-{number:012x}"),
            };
            runtime.block_on(decide(&limiter, &tenant, &route, on_store_failure));
        }
        grown.push(format!("{:.0}", (resident()? - before) / KEYS as f64));
    }
    println!("| {kept} | {names} | {} | {} |", grown.join(" / "), limiter.keys().0);
    Ok(())
}

async fn decide(limiter: &Limiter, tenant: &str, route: &Arc<str>, on_store_failure: FailurePolicy) {
    let limit = limit(20, 10.0);
    let _ = limiter.decide(&Check { tenant, route, limit, cost: 1, on_store_failure, shadow: false, shards: 1 }).await;
}

fn main() -> io::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [measured, kept, names] = &args[..]
        && measured == "measure"
    {
        return measure(kept, names);
    }
    println!("| kept | tenants | bytes a key after 1 / 2 / 3 million | keys tracked |\n|---|---|---|---|");
    for kept in ["in process", "leases", "away"] {
        for names in ["short", "uuid"] {
            Command::new(std::env::current_exe()?).args(["measure", kept, names]).status()?;
        }
    }
    Ok(())
}
