//! The lease protocol held to its guarantees against a real Redis: no window admits more than `capacity + refill ·
//! window`, whatever fails; nearly all that one central bucket would admit is admitted; a hot key costs Redis next to
//! nothing. One test at a time, so that they do not disturb each other.
//!
//! Needs the services: `make test`, or `scripts/services.sh run cargo test --test leases`.
//!
//! `SEKISHO_TEST_SEED` and `SEKISHO_TEST_ROUNDS` repeat and prolong the random rounds.

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

mod bound;
mod cost;
mod fleet;
mod judge;
mod keys;
mod process;
mod random;
mod shards;
mod traffic;

use tokio::sync::{Mutex, MutexGuard};

async fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::const_new(());
    TURN.lock().await
}
