//! Changed rules: read alone from a real PostgreSQL, or told where there is none; held back where they go too far.
//!
//! Needs the services: `make test`, or `scripts/services.sh run cargo test --test rules_changes`.

// A test fails by panicking and measures with the wall clock; not every test crate uses all of `support`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    dead_code,
    unused_imports
)]

#[path = "support/mod.rs"]
mod support;

#[path = "rules_changes/bucket.rs"]
mod bucket;
#[path = "rules_changes/database.rs"]
mod database;
#[path = "rules_changes/figures.rs"]
mod figures;
#[path = "rules_changes/held_back.rs"]
mod held_back;
#[path = "rules_changes/told.rs"]
mod told;

use std::sync::Arc;
use std::time::Duration;

use sekisho::bucket::Limit;
use sekisho::config::{self, IdentityMode, Secret};
use sekisho::rules::{Loader, Mode, Rule, Source};
use support::Database;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

/// Far longer than any change takes.
const LONG: Duration = Duration::from_secs(20);

/// Rules that are kept up to date, as in a gateway.
struct Running {
    loader: Arc<Loader>,
    hangup: Arc<Notify>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Running {
    /// With a refresh that does not come by itself.
    async fn start(settings: config::Rules) -> Self {
        let default_rule = Rule::new("*", "*", Limit::new(77, 1.0).unwrap());
        Self::run(Loader::new(&settings, &default_rule, &IdentityMode::Direct, &[])).await
    }

    async fn run(loader: Loader) -> Self {
        let loader = Arc::new(loader);
        loader.start().await.unwrap();
        let (stop, stopped) = watch::channel(false);
        let hangup = Arc::new(Notify::new());
        let task = tokio::spawn({
            let (loader, hangup) = (Arc::clone(&loader), Arc::clone(&hangup));
            async move { loader.run(&hangup, stopped).await }
        });
        Self { loader, hangup, stop, task }
    }

    fn capacity(&self, tenant: &str) -> Option<u32> {
        self.capacity_of(tenant, Mode::Enforce)
    }

    fn capacity_of(&self, tenant: &str, mode: Mode) -> Option<u32> {
        self.loader.rules().load().get(tenant, "*", mode).map(|rule| rule.limit.capacity())
    }

    async fn becomes(&self, tenant: &str, capacity: Option<u32>) {
        let what = format!("{tenant} has {capacity:?}: {:?}", self.loader.rules().status());
        support::eventually(&what, LONG, || async { (self.capacity(tenant) == capacity).then_some(()) }).await;
    }

    /// Announces a change and waits until it was looked at.
    async fn changed(&self, tenant: &str) {
        let reads = || self.loader.rules().status().reloads[Source::Postgres as usize];
        let before = reads();
        self.loader.changes().pair(tenant, "*");
        support::eventually("the change is read", LONG, || async { (reads() != before).then_some(()) }).await;
    }

    fn last_error(&self) -> Option<String> {
        self.loader.rules().status().last_error
    }

    async fn end(self) {
        self.stop.send(true).unwrap();
        tokio::time::timeout(LONG, self.task).await.unwrap().unwrap();
    }
}

/// Refreshed once an hour.
fn of_database(database: &Database) -> config::Rules {
    let refresh = Duration::from_secs(3600);
    config::Rules { database_url: Some(Secret(database.url.clone())), refresh, ..Default::default() }
}

fn insert(tenant: &str, capacity: i64) -> String {
    let columns = "tenant_id, route_id, capacity, refill_per_second";
    format!("INSERT INTO rate_limit_rule ({columns}) VALUES ('{tenant}', '*', {capacity}, 1);")
}

fn update(tenant: &str, capacity: i64) -> String {
    format!("UPDATE rate_limit_rule SET capacity = {capacity} WHERE tenant_id = '{tenant}';")
}

fn json(tenant: &str, capacity: i64) -> String {
    format!(r#"{{"tenant_id": "{tenant}", "route_id": "*", "capacity": {capacity}, "refill_per_second": 1}}"#)
}
