//! `rules.listen`, `rules.redis_channel`, `[rules.kafka]`: who tells that rules have changed.

use std::collections::BTreeMap;

use super::Secret;

/// Who tells that rules have changed; nobody, by default.
#[derive(Clone, Debug, Default)]
pub struct Messengers {
    /// PostgreSQL.
    pub listen: Option<Listen>,
    /// A channel of the store.
    pub redis_channel: Option<String>,
    /// A topic of Kafka.
    pub kafka: Option<Kafka>,
}

/// Where to `LISTEN`.
#[derive(Clone, Debug)]
pub struct Listen {
    /// A direct connection to the primary.
    pub url: Secret,
    /// The setting it comes from: `rules.listen_url` or `rules.database_url`.
    pub setting: &'static str,
}

/// `[rules.kafka]`
#[derive(Clone, Debug)]
pub struct Kafka {
    /// `host:port`, at least one.
    pub brokers: Vec<String>,
    /// The topic of rule changes.
    pub topic: String,
    /// Further settings of librdkafka, such as `security.protocol`.
    pub options: BTreeMap<String, Secret>,
}
