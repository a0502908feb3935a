//! Changed rules that a topic of Kafka tells of: real gateways, a real broker. Nothing here waits for a refresh.
//!
//! `make test`, or `scripts/services.sh run --with kafka cargo test --features kafka --test rules_kafka`.

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

use std::process::Command;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::producer::{FutureProducer, FutureRecord};
use support::changes::{AT_ONCE, REPLACED, channel, database, enforced, limit_of, open, set_limit};
use support::{Database, Gateway, Setup, Upstream, eventually, free_address, redis_url, unique};

const PAIR: &str = r#"{"tenant_id": "shop-a", "route_id": "*"}"#;
const TIMEOUT: Duration = Duration::from_secs(20);

/// The broker that all tests share.
fn brokers() -> String {
    std::env::var("SEKISHO_TEST_KAFKA_BROKERS").expect("SEKISHO_TEST_KAFKA_BROKERS is not set: run `make test`")
}

/// A topic of the test's own.
struct Topic {
    brokers: String,
    name: String,
    producer: FutureProducer,
}

impl Topic {
    /// One that nobody has created yet.
    fn absent(brokers: &str) -> Self {
        let producer = ClientConfig::new().set("bootstrap.servers", brokers).create().unwrap();
        Self { brokers: brokers.to_owned(), name: format!("rules-{}", unique()), producer }
    }

    async fn create(&self, partitions: i32) {
        let admin: AdminClient<DefaultClientContext> =
            ClientConfig::new().set("bootstrap.servers", &self.brokers).create().unwrap();
        let topic = NewTopic::new(&self.name, partitions, TopicReplication::Fixed(1)).set("cleanup.policy", "compact");
        let options = AdminOptions::new().operation_timeout(Some(TIMEOUT));
        for created in admin.create_topics([&topic], &options).await.unwrap() {
            created.unwrap();
        }
    }

    async fn with_partitions(partitions: i32) -> Self {
        let topic = Self::absent(&brokers());
        topic.create(partitions).await;
        topic
    }

    /// Sends a message; where it went, as `[partition]@offset`.
    async fn send(&self, key: Option<&str>, value: Option<&[u8]>) -> String {
        let record = FutureRecord { payload: value, key, ..FutureRecord::to(&self.name) };
        let sent = self.producer.send(record, TIMEOUT).await.map_err(|(error, _)| error).unwrap();
        format!("{}[{}]@{}", self.name, sent.partition, sent.offset)
    }

    fn tells(&self, setup: Setup) -> Setup {
        setup
            .set("rules.kafka", "brokers", &format!("[{:?}]", self.brokers))
            .set("rules.kafka", "topic", &format!("{:?}", self.name))
            .set("rules.kafka.options", "\"client.rack\"", "\"a\"")
    }
}

fn setup(upstream: &Upstream, database: &Database) -> Setup {
    Setup::new(upstream.address)
        .set("rules", "database_url", &format!("{:?}", database.url))
        .set("rules", "listen", "false")
        .set("rules", "refresh", "\"1h\"")
        .set("limiter", "default_rule", "{ capacity = 77, refill_per_second = 1 }")
}

/// A broker of the test's own on a port of its own, empty whenever it starts.
struct PrivateKafka {
    port: u16,
    dir: Option<String>,
}

impl PrivateKafka {
    const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/services.sh");

    fn absent() -> Self {
        Self { port: free_address().port(), dir: None }
    }

    fn brokers(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn start(&mut self) {
        let output = Command::new(Self::SCRIPT)
            .arg("kafka")
            .env_remove("KAFKA_BROKERS")
            .env("SEKISHO_TEST_KAFKA_PORT", self.port.to_string())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        let dir = text.lines().find_map(|line| line.strip_prefix("export SEKISHO_TEST_SERVICES=")).unwrap();
        self.dir = Some(dir.trim_matches('\'').to_owned());
    }

    fn stop(&mut self) {
        if let Some(dir) = self.dir.take() {
            assert!(Command::new(Self::SCRIPT).args(["stop", &dir]).status().unwrap().success());
        }
    }
}

impl Drop for PrivateKafka {
    fn drop(&mut self) {
        self.stop();
    }
}

#[tokio::test]
async fn a_message_in_the_topic_is_heeded_on_every_gateway_at_once_and_garbage_is_named_by_its_offset() {
    let upstream = Upstream::normal().await;
    let (database, topic) = (database().await, Topic::with_partitions(3).await);
    // From before the start, and no news.
    topic.send(None, Some(b"old garbage")).await;
    let gateways = topic.tells(setup(&upstream, &database)).redis(&redis_url()).start_many(3).await;
    open(&gateways, "kafka").await;
    let rule = r#"{"tenant_id": "shop-a", "route_id": "*", "capacity": 1, "refill": "1/s"}"#;
    for (limit, key, value) in [
        (9, None, Some(PAIR)),
        (10, Some(PAIR), Some(rule)),
        (11, Some(PAIR), None),
        (12, Some(PAIR), Some("")),
        (13, None, Some(r#"{"all": true}"#)),
    ] {
        set_limit(&database, limit).await;
        topic.send(key, value.map(str::as_bytes)).await;
        enforced(&gateways, limit, AT_ONCE, &format!("{key:?} {value:?}")).await;
    }
    for (bad, (key, garbage)) in
        [(None, Some(&b"hear ye"[..])), (None, Some(b"\xff\xfe")), (None, None), (Some("shop-a"), None)]
            .into_iter()
            .enumerate()
    {
        let place = topic.send(key, garbage).await;
        for gateway in &gateways {
            eventually("it is counted", AT_ONCE, || async {
                let count = gateway.metric("sekisho_rules_events_total", &["kafka", "\"bad\""]).await;
                (count == bad as f64 + 1.0).then_some(())
            })
            .await;
            let state = channel(gateway, "kafka").await;
            let told = state["last_bad_message"].as_str().unwrap();
            assert!(told.starts_with(&format!("kafka {place}: ")), "{place}: {told}");
        }
    }
    set_limit(&database, 14).await;
    topic.send(None, Some(PAIR.as_bytes())).await;
    enforced(&gateways, 14, AT_ONCE, "a change after garbage").await;
    for gateway in &gateways {
        assert!(!gateway.log().contains("old garbage"));
        assert_eq!(gateway.metric("sekisho_rules_events_total", &["kafka", "\"ok\""]).await, 6.0);
    }
}

#[tokio::test]
async fn a_broker_that_is_away_is_told_once_and_what_changed_meanwhile_is_enforced_when_it_is_back() {
    let upstream = Upstream::normal().await;
    let (database, mut kafka) = (database().await, PrivateKafka::absent());
    let topic = Topic::absent(&kafka.brokers());
    let gateways = topic.tells(setup(&upstream, &database)).start_many(2).await;
    for gateway in &gateways {
        assert_eq!(limit_of(gateway).await, 5, "a broker that is away delays no start");
        eventually("its absence is told", TIMEOUT, || async {
            channel(gateway, "kafka").await["last_error"].as_str().map(str::to_owned)
        })
        .await;
    }
    kafka.start();
    for gateway in &gateways {
        eventually("the missing topic is told", TIMEOUT, || async {
            let state = channel(gateway, "kafka").await;
            state["last_error"].as_str().is_some_and(|why| why.contains(&topic.name)).then_some(())
        })
        .await;
    }
    topic.create(1).await;
    open(&gateways, "kafka").await;
    set_limit(&database, 9).await;
    topic.send(None, Some(PAIR.as_bytes())).await;
    enforced(&gateways, 9, AT_ONCE, "a change").await;

    kafka.stop();
    for gateway in &gateways {
        eventually("the channel is closed", TIMEOUT, || async {
            (channel(gateway, "kafka").await["open"] == false).then_some(())
        })
        .await;
    }
    set_limit(&database, 10).await;
    kafka.start();
    topic.create(1).await;
    enforced(&gateways, 10, REPLACED, "a change while the broker was away").await;
    open(&gateways, "kafka").await;
    set_limit(&database, 11).await;
    topic.send(None, Some(PAIR.as_bytes())).await;
    enforced(&gateways, 11, REPLACED, "a change after it").await;
    for gateway in &gateways {
        let told = gateway.log().matches("no broker can be reached").count();
        assert!((1..=6).contains(&told), "told again and again:\n{}", gateway.log());
    }
}

#[tokio::test]
async fn without_a_database_a_compacted_topic_holds_the_rules() {
    let upstream = Upstream::normal().await;
    let topic = Topic::with_partitions(2).await;
    let rule = |capacity: u32, more: &str| {
        format!(r#"{{"tenant_id": "shop-a", "route_id": "*", "capacity": {capacity}, "refill": "1/s"{more}}}"#)
    };
    let setup = topic.tells(Setup::new(upstream.address).limit(33, 1.0)).set("rules", "refresh", "\"1h\"").set(
        "limiter",
        "default_rule",
        "{ capacity = 77, refill_per_second = 1 }",
    );
    topic.send(Some(PAIR), Some(rule(5, "").as_bytes())).await;
    topic.send(Some(PAIR), Some(rule(9, "").as_bytes())).await;
    let gateways = setup.start_many(2).await;
    enforced(&gateways, 9, REPLACED, "a rule from before the start").await;
    topic.send(Some(PAIR), Some(rule(10, "").as_bytes())).await;
    enforced(&gateways, 10, AT_ONCE, "a changed rule").await;
    topic.send(Some(PAIR), Some(rule(0, "").as_bytes())).await;
    topic.send(Some(PAIR), Some(rule(2, r#", "mode": "shadow""#).as_bytes())).await;
    topic.send(Some(r#"{"tenant_id": "shop-b", "route_id": "*"}"#), Some(rule(1, "").as_bytes())).await;
    topic.send(Some(PAIR), Some(rule(11, "").as_bytes())).await;
    enforced(&gateways, 11, AT_ONCE, "a rule after an invalid one, a shadow rule, and one under another's key").await;
    topic.send(Some(r#"{"tenant_id": "shop-c", "route_id": "*"}"#), None).await;
    let late = setup.start_many(1).await;
    enforced(&late, 11, REPLACED, "a gateway that starts later").await;
    topic.send(Some(PAIR), None).await;
    enforced(&gateways, 33, AT_ONCE, "a deleted rule").await;
    enforced(&late, 33, AT_ONCE, "a deleted rule").await;
    let [gateway] = &late[..] else { unreachable!() };
    assert_eq!(gateway.metric("sekisho_rules_events_total", &["kafka", "\"bad\""]).await, 2.0, "{}", gateway.log());
}
