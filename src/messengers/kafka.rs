//! Kafka: a topic of rule changes that every gateway reads in full, so no group and no committed offsets.
//!
//! With a database, messages are hints, and those from before the start are of no use: reading begins at the end of
//! each partition, and then everything is read from the database. Without one, the (compacted) topic holds the rules,
//! and reading begins at its beginning.

use std::collections::BTreeSet;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::client::ClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::consumer::{Consumer as _, ConsumerContext, StreamConsumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::{Message, Offset, TopicPartitionList};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use super::inbox::Inbox;
use super::{Channel, KEEPALIVE, Retry};
use crate::config::Kafka;
use crate::rules::messages::{check_key, parse, parse_tombstone};

/// For one question to the brokers.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Between two looks at whether the brokers answer and what partitions there are.
const LOOK_EVERY: Duration = KEEPALIVE;

/// Consumes for ever.
#[derive(Debug)]
pub(super) struct Consumer {
    settings: Kafka,
    inbox: Inbox,
}

/// Hears what librdkafka says of itself.
struct Context {
    channel: Arc<Channel>,
    /// Notified when brokers are lost.
    lost: Notify,
}

impl Context {
    fn lost(&self, error: &KafkaError) {
        self.channel.closed(what_broke(error));
        self.lost.notify_one();
    }
}

impl ClientContext for Context {
    /// It has a line for each attempt to connect.
    fn log(&self, _: RDKafkaLogLevel, facility: &str, message: &str) {
        tracing::debug!("librdkafka: {facility}: {message}");
    }

    fn error(&self, error: KafkaError, reason: &str) {
        // The reason has times and addresses in it that differ each time.
        tracing::debug!("librdkafka: {error}: {reason}");
        self.lost(&error);
    }
}

impl ConsumerContext for Context {}

type Client = StreamConsumer<Context>;

/// Ending a consumer takes as long as its connections do: nobody waits for that.
struct Held(Option<Arc<Client>>);

impl Drop for Held {
    fn drop(&mut self) {
        let client = self.0.take();
        std::thread::spawn(move || drop(client));
    }
}

impl Consumer {
    pub(super) fn new(settings: Kafka, inbox: Inbox) -> Self {
        Self { settings, inbox }
    }

    pub(super) async fn run(&self) {
        let mut retry = Retry::default();
        loop {
            let began = Instant::now();
            let why = match self.client() {
                Ok(client) => {
                    let client = Arc::new(client);
                    let _held = Held(Some(Arc::clone(&client)));
                    tokio::select! {
                        why = self.hear(&client) => why,
                        why = self.watch(&client) => why,
                    }
                }
                Err(error) => error.to_string(),
            };
            self.inbox.channel.closed(why);
            retry.pause(began).await;
        }
    }

    fn client(&self) -> Result<Client, KafkaError> {
        let mut config = ClientConfig::new();
        config
            .set("client.id", "sekisho")
            .set("bootstrap.servers", self.settings.brokers.join(","))
            // The library wants one; nobody subscribes by it, and nothing is committed.
            .set("group.id", format!("sekisho-{:016x}", rand::random::<u64>()))
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            // Where the topic was made anew, its first message is news.
            .set("auto.offset.reset", "earliest")
            .set("allow.auto.create.topics", "false")
            .set("socket.keepalive.enable", "true")
            .set("reconnect.backoff.max.ms", "2000")
            .set("queued.max.messages.kbytes", "4096");
        for (name, value) in &self.settings.options {
            config.set(name, &value.0);
        }
        config.create_with_context(Context { channel: Arc::clone(&self.inbox.channel), lost: Notify::new() })
    }

    /// Takes messages; ends when the client is of no use any more.
    async fn hear(&self, client: &Client) -> String {
        loop {
            let message = match client.recv().await {
                Ok(message) => message,
                Err(error @ KafkaError::MessageConsumptionFatal(_)) => return what_broke(&error),
                Err(error) => {
                    client.context().lost(&error);
                    continue;
                }
            };
            let place = format!("kafka {}[{}]@{}", message.topic(), message.partition(), message.offset());
            let (key, value) = (message.key(), message.payload().filter(|value| !value.is_empty()));
            let said = match value {
                Some(value) => parse(value).and_then(|said| check_key(key, &said).map(|()| said)),
                None => parse_tombstone(key).map(|said| vec![said]),
            };
            self.inbox.take(&place, value.or(key).unwrap_or_default(), said).await;
        }
    }

    /// Keeps every partition assigned while brokers answer, and none while they do not: who knows whether the topic is
    /// still there, and the same, when they are back. Then reading begins as at the start.
    async fn watch(&self, client: &Arc<Client>) -> String {
        let mut assigned = BTreeSet::new();
        loop {
            if !self.inbox.channel.state().open
                && let Err(error) = client.unassign()
            {
                return what_broke(&error);
            }
            let (looker, topic) = (Arc::clone(client), self.settings.topic.clone());
            let (was_open, has_database) = (self.inbox.channel.state().open, self.inbox.has_database);
            let known = if was_open { std::mem::take(&mut assigned) } else { BTreeSet::new() };
            let looked = tokio::task::spawn_blocking(move || {
                let new = assign_new(&looker, &topic, &known, has_database);
                (known, new)
            });
            match looked.await {
                Ok((known, Ok(new))) => {
                    assigned = known;
                    assigned.extend(new);
                    if !was_open {
                        self.inbox.opened();
                    }
                }
                Ok((_, Err(why))) => self.inbox.channel.closed(why),
                Err(error) => return error.to_string(),
            }
            // To be told of what is lost already is of no use.
            let lost = async {
                match self.inbox.channel.state().open {
                    true => client.context().lost.notified().await,
                    false => pending().await,
                }
            };
            let _ = timeout(LOOK_EVERY, lost).await;
        }
    }
}

/// Assigns the partitions that are not known yet, and says which those are. Where none is known yet and a database says
/// what is right, what they hold is no news.
fn assign_new(client: &Client, topic: &str, known: &BTreeSet<i32>, has_database: bool) -> Result<Vec<i32>, String> {
    let told = |error: KafkaError| what_broke(&error);
    let metadata = client.fetch_metadata(Some(topic), ANSWER_TIMEOUT).map_err(told)?;
    let Some(found) = metadata.topics().first() else { return Err(format!("topic {topic}: the brokers say nothing")) };
    if let Some(error) = found.error() {
        return Err(format!("topic {topic}: {}", RDKafkaErrorCode::from(error)));
    }
    let new: Vec<i32> = found.partitions().iter().map(|found| found.id()).filter(|id| !known.contains(id)).collect();
    if known.is_empty() && new.is_empty() {
        return Err(format!("topic {topic} has no partitions"));
    }
    let skips = has_database && known.is_empty();
    let mut list = TopicPartitionList::new();
    for id in &new {
        // Asked for here, not left to the first fetch: from now on nothing is missed.
        let offset = match skips {
            true => Offset::Offset(client.fetch_watermarks(topic, *id, ANSWER_TIMEOUT).map_err(told)?.1),
            false => Offset::Beginning,
        };
        list.add_partition_offset(topic, *id, offset).map_err(told)?;
    }
    if !new.is_empty() {
        client.incremental_assign(&list).map_err(told)?;
    }
    Ok(new)
}

/// The same text for the same trouble, however often it is met.
fn what_broke(error: &KafkaError) -> String {
    match error.rdkafka_error_code() {
        Some(RDKafkaErrorCode::AllBrokersDown | RDKafkaErrorCode::BrokerTransportFailure) => {
            "no broker can be reached".to_owned()
        }
        Some(RDKafkaErrorCode::OperationTimedOut) => "the brokers do not answer".to_owned(),
        Some(code) => code.to_string(),
        None => error.to_string(),
    }
}
