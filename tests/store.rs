//! One matrix of tests over both stores: what holds for buckets in this process holds for buckets in Redis.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

use std::sync::Arc;
use std::time::Duration;

use sekisho::bucket::{Call, Demand, Limit, Reply, Report};
use sekisho::clock::Clock;
use sekisho::config;
use sekisho::key::KeyRef;
use sekisho::store::memory::MemoryStore;
use sekisho::store::redis::{self, Alive, Driver, Link, RedisStore};
use sekisho::store::{Store, StoreError};

enum AnyStore {
    Memory(MemoryStore),
    Redis(RedisStore),
}

impl AnyStore {
    async fn call(&self, key: KeyRef<'_>, call: &Call<'_>) -> Result<Reply, StoreError> {
        match self {
            Self::Memory(store) => store.call(key, call).await,
            Self::Redis(store) => store.call(key, call).await,
        }
    }
}

fn memory() -> AnyStore {
    AnyStore::Memory(MemoryStore::new(10_000, Clock::monotonic()))
}

fn redis_settings(url: &str) -> config::Store {
    config::Store {
        redis: config::Redis::single(url),
        timeout: Duration::from_secs(2),
        key_prefix: format!("store-{}-{}", std::process::id(), rand::random::<u32>()),
    }
}

fn connect(settings: &config::Store) -> (RedisStore, Driver) {
    redis::connect(settings, config::Breaker::default(), settings.redis.as_ref().unwrap()).unwrap()
}

fn url() -> String {
    std::env::var("SEKISHO_TEST_REDIS_URL").expect("a Redis at SEKISHO_TEST_REDIS_URL: run through `make test`")
}

async fn shared() -> AnyStore {
    AnyStore::Redis(in_redis().await)
}

/// A store in Redis, connected; its driver runs on the current runtime.
async fn in_redis() -> RedisStore {
    let url = url();
    let (store, driver) = connect(&redis_settings(&url));
    tokio::spawn(driver.run());
    let connected = async {
        while store.link() != Link::Connected {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), connected).await.expect("Redis answers");
    store
}

async fn take(store: &AnyStore, tenant: &str, limit: Limit, cost: u32, count: u32) -> Reply {
    let route: Arc<str> = "route".into();
    let demand = [Demand { cost, count }];
    let call = Call { limit, demand: &demand, prefetch: 0, report: Report::default() };
    store.call(KeyRef { tenant, route: &route, shadow: false, shard: None }, &call).await.unwrap()
}

fn slow(capacity: i64) -> Limit {
    Limit::new(capacity, 0.001).unwrap()
}

macro_rules! over_both_stores {
    ($($(#[$doc:meta])* async fn $name:ident($store:ident: &AnyStore) $body:block)*) => {$(
        mod $name {
            use super::*;

            $(#[$doc])*
            async fn check($store: &AnyStore) $body

            #[tokio::test]
            async fn in_memory() {
                check(&memory()).await;
            }

            #[tokio::test]
            async fn in_redis() {
                check(&shared().await).await;
            }
        }
    )*};
}

over_both_stores! {
    async fn a_new_bucket_is_full_and_grants_its_capacity_once(store: &AnyStore) {
        assert_eq!(take(store, "a", slow(10), 1, 15).await.granted, 10);
        let denied = take(store, "a", slow(10), 1, 1).await;
        assert_eq!((denied.granted, denied.tokens), (0, 0));
        let wait = denied.wait_ms.unwrap();
        assert!((990_000..=1_000_000).contains(&wait), "{wait} ms until one token at 0.001/s");
    }

    async fn the_longest_prefix_that_fits_is_granted(store: &AnyStore) {
        let route: Arc<str> = "route".into();
        let demand = [Demand { cost: 2, count: 3 }, Demand { cost: 5, count: 2 }, Demand { cost: 1, count: 1 }];
        let call = Call { limit: slow(12), demand: &demand, prefetch: 0, report: Report::default() };
        let reply = store.call(KeyRef { tenant: "a", route: &route, shadow: false, shard: None }, &call).await.unwrap();
        assert_eq!((reply.granted, reply.tokens), (4, 1), "2 + 2 + 2 + 5 of 12; the next 5 does not fit");
    }

    async fn tenants_routes_and_shadow_rules_have_buckets_of_their_own(store: &AnyStore) {
        assert_eq!(take(store, "a", slow(1), 1, 1).await.granted, 1);
        assert_eq!(take(store, "b", slow(1), 1, 1).await.granted, 1);
        assert_eq!(take(store, "a", slow(1), 1, 1).await.granted, 0);
        let call = Call { limit: slow(1), demand: &[Demand { cost: 1, count: 1 }], prefetch: 0, report: Report::default() };
        let (route, other): (Arc<str>, Arc<str>) = ("route".into(), "other".into());
        for key in [KeyRef { tenant: "a", route: &other, shadow: false, shard: None }, KeyRef { tenant: "a", route: &route, shadow: true, shard: None }] {
            assert_eq!(store.call(key, &call).await.unwrap().granted, 1);
        }
    }

    async fn a_bucket_refills_at_its_rate(store: &AnyStore) {
        let fast = Limit::new(50, 200.0).unwrap();
        assert_eq!(take(store, "a", fast, 50, 1).await.granted, 1);
        let denied = take(store, "a", fast, 20, 1).await;
        assert_eq!(denied.granted, 0);
        tokio::time::sleep(Duration::from_millis(denied.wait_ms.unwrap())).await;
        assert_eq!(take(store, "a", fast, 20, 1).await.granted, 1, "after the wait it named");
    }

    async fn a_changed_rule_applies_to_the_next_call_and_keeps_the_bucket(store: &AnyStore) {
        assert_eq!(take(store, "a", slow(100), 1, 10).await.tokens, 90);
        assert_eq!(take(store, "a", slow(20), 1, 1).await.tokens, 19, "clamped to the lowered capacity");
        assert_eq!(take(store, "a", slow(100), 1, 1).await.tokens, 18, "a raised capacity brings no tokens of itself");
        let fast = Limit::new(100, 1_000_000.0).unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert_eq!(take(store, "a", fast, 100, 1).await.granted, 1, "refills at the new rate");
    }

    async fn any_tenant_id_is_one_bucket(store: &AnyStore) {
        for tenant in ["}a{", "a:b", "{", "%7B", "é", "a b", "*"] {
            assert_eq!(take(store, tenant, slow(1), 1, 2).await.granted, 1, "{tenant}");
        }
    }
}

#[tokio::test]
async fn calls_are_refused_at_once_while_redis_is_away() {
    // A port that was free a moment ago, and nobody listens on.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("redis://127.0.0.1:{port}");
    let (store, driver) = connect(&redis_settings(&url));
    tokio::spawn(driver.run());
    let route: Arc<str> = "route".into();
    let call = Call { limit: slow(5), demand: &[Demand { cost: 1, count: 1 }], prefetch: 0, report: Report::default() };
    let error = store.call(KeyRef { tenant: "a", route: &route, shadow: false, shard: None }, &call).await.unwrap_err();
    assert!(error.is_rejected(), "{error}");
}

#[tokio::test]
async fn gateways_that_beat_are_counted_until_they_leave() {
    let store = in_redis().await;
    let alive = |gateways, before| Alive { gateways, before };
    assert_eq!(store.heartbeat("a").await.unwrap(), alive(1, 0));
    assert_eq!(store.heartbeat("b").await.unwrap(), alive(2, 1));
    assert_eq!(store.heartbeat("a").await.unwrap(), alive(2, 0), "each once");
    // A script is as good by its text as by its hash.
    let client = ::redis::Client::open(url()).unwrap();
    let mut redis = client.get_multiplexed_async_connection().await.unwrap();
    ::redis::cmd("SCRIPT").arg("FLUSH").exec_async(&mut redis).await.unwrap();
    assert_eq!(store.leave("a").await.unwrap(), alive(1, 0));
    assert_eq!(store.heartbeat("b").await.unwrap(), alive(1, 0));
}

/// The script with a clock of its own, as `SEKISHO_TEST_REDIS_URL` runs it.
async fn beat_at(redis: &mut ::redis::aio::MultiplexedConnection, key: &str, id: &str, now: u64) -> u32 {
    let script = include_str!("../scripts/redis/heartbeat.lua");
    let clocked = script.replace("redis.call('TIME')", "{ KEYS[2], KEYS[3] }");
    assert_ne!(script, clocked);
    let (seconds, micros) = (now / 1000, now % 1000 * 1000);
    let mut command = ::redis::cmd("EVAL");
    command.arg(clocked).arg(3).arg(key).arg(seconds).arg(micros).arg(id).arg(5000);
    let (alive, _before): (u32, u32) = command.query_async(redis).await.unwrap();
    alive
}

#[tokio::test]
async fn a_gateway_that_does_not_beat_is_alive_for_five_seconds() {
    let client = ::redis::Client::open(url()).unwrap();
    let mut redis = client.get_multiplexed_async_connection().await.unwrap();
    let key = format!("beats-{}-{}", std::process::id(), rand::random::<u32>());
    let start = 1_800_000_000_000;
    assert_eq!(beat_at(&mut redis, &key, "dies", start).await, 1);
    assert_eq!(beat_at(&mut redis, &key, "lives", start + 5000).await, 2);
    assert_eq!(beat_at(&mut redis, &key, "lives", start + 5001).await, 1);
    let left: i64 = ::redis::cmd("PTTL").arg(&key).query_async(&mut redis).await.unwrap();
    assert!((1..=5000).contains(&left), "{left}");
    // The clock steps back: what was written before does not stay for ever.
    assert_eq!(beat_at(&mut redis, &key, "another", start - 60_000).await, 1);
    // Something else has the name.
    ::redis::cmd("SET").arg(&key).arg("x").exec_async(&mut redis).await.unwrap();
    assert_eq!(beat_at(&mut redis, &key, "lives", start).await, 1);
}

#[tokio::test]
async fn what_exceeds_the_queue_is_refused_at_once() {
    // Accepts, and never says a word: the first calls wait for it.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let (store, _driver) = connect(&redis_settings(&url));
    let queued: Vec<_> = (0..16_384).map(|_| store.heartbeat("a")).collect();
    let error = store.heartbeat("a").await.unwrap_err();
    assert!(error.is_rejected(), "{error}");
    drop(queued);
}

#[tokio::test]
async fn a_node_shows_its_address_and_no_secret() {
    let url = "redis://user:hunter2@127.0.0.1:1/3";
    let (store, driver) = connect(&redis_settings(url));
    let node = store.nodes().remove(0);
    assert_eq!((node.index, node.address.as_deref(), node.link), (0, Some("127.0.0.1:1"), Link::Starting));
    for text in [format!("{store:?}"), format!("{driver:?}"), format!("{node:?}")] {
        assert!(!text.contains("hunter2"), "{text}");
    }
}
