//! `rules.listen`, `rules.listen_url`, `rules.redis_channel`, `[rules.kafka]`

use super::value::{Parsed, database_url, server};
use crate::config::fault::Report;
use crate::config::{Kafka, Listen, Messengers, Secret, file};

/// Checks them; `database` is where rules come from, and `has_redis` says whether the store is one.
pub(super) fn messengers(raw: &file::Rules, database: Option<&Secret>, has_redis: bool, report: &Report) -> Messengers {
    let is_on = raw.listen.as_ref().is_none_or(|listen| listen.value);
    if !raw.has_database {
        if let Some(listen) = raw.listen.as_ref().filter(|listen| listen.value) {
            report.note(&listen.place, "is of no use, allowed with rules.database_url");
        }
        if let Some(url) = &raw.listen_url {
            report.note(&url.place, "is of no use, allowed with rules.database_url");
        }
    } else if let (Some(url), false) = (&raw.listen_url, is_on) {
        report.note(&url.place, "is of no use, allowed with rules.listen = true");
    }
    let listen_url = report.parse(&raw.listen_url, database_url);
    let (setting, url) = match listen_url {
        Some(url) => ("rules.listen_url", Some(url)),
        None => ("rules.database_url", database.cloned()),
    };
    if let (Some(channel), false) = (&raw.redis_channel, has_redis) {
        report.note(&channel.place, "is of no use, allowed where the store is a Redis");
    }
    Messengers {
        listen: url.filter(|_| is_on).map(|url| Listen { url, setting }),
        redis_channel: report.parse(&raw.redis_channel, channel),
        kafka: raw.kafka.as_ref().and_then(|raw| kafka(raw, report)),
    }
}

fn channel(text: &str) -> Parsed<String> {
    if (1..=256).contains(&text.len()) && !text.chars().any(char::is_control) {
        return Ok(text.to_owned());
    }
    Err(format!("{text:?} is not a channel, allowed are 1 to 256 bytes without control characters"))
}

fn kafka(raw: &file::Kafka, report: &Report) -> Option<Kafka> {
    if cfg!(not(feature = "kafka")) {
        report.note(&raw.place, "this program was built without Kafka, allowed after cargo build --features kafka");
        return None;
    }
    let brokers = raw.brokers.as_ref()?;
    if brokers.value.is_empty() {
        report.note(&brokers.place, "is empty, allowed are brokers like [\"10.0.0.1:9092\"]");
    }
    let brokers: Vec<String> = brokers.value.iter().filter_map(|broker| report.parse_at(broker, server)).collect();
    let topic = report.parse(&raw.topic, topic)?;
    let options = raw
        .options
        .iter()
        .filter(|(name, text)| is_option(name, text, report))
        .map(|(name, text)| (name.clone(), Secret(text.value.clone())));
    Some(Kafka { brokers, topic, options: options.collect() })
}

fn topic(text: &str) -> Parsed<String> {
    let fits = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    if (1..=249).contains(&text.len()) && text.bytes().all(fits) && text != "." && text != ".." {
        return Ok(text.to_owned());
    }
    Err(format!("{text:?} is not a topic, allowed are 1 to 249 of A-Z a-z 0-9 . _ -"))
}

/// What the gateway itself decides.
const OURS: [&str; 4] = ["bootstrap.servers", "metadata.broker.list", "group.id", "enable.auto.commit"];

fn is_option(name: &str, text: &crate::config::fault::At<String>, report: &Report) -> bool {
    let what = if OURS.contains(&name) {
        "is set by the gateway, allowed are other settings of librdkafka".to_owned()
    } else {
        match judge(name, &text.value) {
            Ok(()) => return true,
            Err(what) => what,
        }
    };
    report.note(&text.place, what);
    false
}

/// Whether librdkafka takes it. Its words may repeat the value, so they are told of names only.
#[cfg(feature = "kafka")]
fn judge(name: &str, value: &str) -> Parsed<()> {
    use rdkafka::error::KafkaError;
    use rdkafka::types::RDKafkaConfRes;
    let mut config = rdkafka::ClientConfig::new();
    match config.set(name, value).create_native_config() {
        Ok(_) => Ok(()),
        Err(KafkaError::ClientConfig(RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN, ..)) => {
            Err("is no setting of librdkafka, allowed are those of its CONFIGURATION.md".to_owned())
        }
        Err(_) => Err("has a value that librdkafka does not take, see its CONFIGURATION.md".to_owned()),
    }
}

#[cfg(not(feature = "kafka"))]
fn judge(_: &str, _: &str) -> Parsed<()> {
    Ok(())
}
