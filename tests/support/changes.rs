//! Changes of rules and when they are enforced.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Database, Gateway, eventually};

pub(crate) const SCHEMA: &str = include_str!("../../conf/schema.sql");

/// From the change to its being enforced.
pub(crate) const AT_ONCE: Duration = Duration::from_secs(1);
/// For a connection to be found dead, and replaced.
pub(crate) const REPLACED: Duration = Duration::from_secs(20);

/// A database with the shipped schema, and one rule: 5 for shop-a.
pub(crate) async fn database() -> Database {
    let database = Database::create().await;
    database.execute(SCHEMA).await;
    database
        .execute("INSERT INTO rate_limit_rule (tenant_id, route_id, capacity, refill_per_second) VALUES ('shop-a', '*', 5, 1)")
        .await;
    database
}

pub(crate) async fn limit_of(gateway: &Gateway) -> u64 {
    gateway.get("/orders", "shop-a").await.number("X-RateLimit-Limit")
}

pub(crate) async fn set_limit(database: &Database, limit: u64) {
    database.execute(&format!("UPDATE rate_limit_rule SET capacity = {limit}")).await;
}

pub(crate) async fn channel(gateway: &Gateway, name: &str) -> Value {
    gateway.status().await["rules"]["channels"][name].clone()
}

/// Waits until the channel is open, and whatever was read because it opened is in force.
pub(crate) async fn open(gateways: &[Gateway], name: &str) {
    for gateway in gateways {
        eventually("the channel is open", REPLACED, || async {
            (gateway.metric("sekisho_rules_channel_open", &[name]).await == 1.0
                && gateway.metric("sekisho_rules_reloads_total", &["\"ok\""]).await >= 2.0)
                .then_some(())
        })
        .await;
    }
}

/// Waits until every gateway enforces this limit.
pub(crate) async fn enforced(gateways: &[Gateway], limit: u64, within: Duration, what: &str) {
    let changed = Instant::now();
    for gateway in gateways {
        eventually(what, within, || async { (limit_of(gateway).await == limit).then_some(()) }).await;
    }
    println!("{what}: enforced on {} gateways after {:?}", gateways.len(), changed.elapsed());
    assert!(changed.elapsed() < within, "{what}: {:?}", changed.elapsed());
}
