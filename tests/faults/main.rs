//! What the gateway depends on fails: Redis killed, stopped, demoted, full, slow, forgetful, behind a network that loses
//! and cuts. Real gateways, real Redis. One test at a time where it measures, so that they do not disturb each other.
//!
//! Needs the services: `make test`, or `scripts/services.sh run cargo test --test faults`.
//!
//! `SEKISHO_TEST_OUTAGE_SECONDS` prolongs the outages under load.

// A test fails by panicking and measures with the wall clock; not every test crate uses all of `support`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    dead_code,
    unused_imports
)]

#[path = "../support/mod.rs"]
mod support;

mod breaker;
mod cluster;
mod hung;
mod membership;
mod outage;
mod policies;
mod recovery;
mod secured;
mod sentinel;

use std::time::Duration;

use support::{Gateway, eventually};
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

static TURN: RwLock<()> = RwLock::const_new(());

/// For a test that measures.
async fn alone() -> RwLockWriteGuard<'static, ()> {
    TURN.write().await
}

/// For one that does not mind others beside it.
async fn beside_others() -> RwLockReadGuard<'static, ()> {
    TURN.read().await
}

/// The breaker of the only node.
async fn breaker(gateway: &Gateway) -> &'static str {
    let state = gateway.metric("sekisho_breaker_state", &["node=\"0\""]).await;
    ["closed", "half_open", "open"][state as usize]
}

/// Waits until the breaker is closed, or is not.
async fn breaker_closed(gateway: &Gateway, closed: bool) {
    eventually(&format!("breaker closed: {closed}"), Duration::from_secs(5), || async {
        ((breaker(gateway).await == "closed") == closed).then_some(())
    })
    .await;
}

/// Decisions of a gateway that were made without the store.
async fn local(gateway: &Gateway) -> f64 {
    gateway.metric("sekisho_decisions_total", &["source=\"local\""]).await
}

/// Waits until a request of this tenant is decided by the store, and says how long that took.
async fn decided_by_the_store(gateway: &Gateway, tenant: &str, within: Duration) -> Duration {
    let start = std::time::Instant::now();
    eventually(&format!("the store decides for {tenant}"), within, || async {
        let before = local(gateway).await;
        gateway.get("/orders", tenant).await;
        (local(gateway).await == before).then_some(())
    })
    .await;
    start.elapsed()
}
