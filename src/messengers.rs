//! Who tells that rules have changed: PostgreSQL's `NOTIFY`, a channel of Redis, a topic of Kafka.
//!
//! Each messenger keeps a connection of its own and tries again for ever. Whatever was said while nobody listened is
//! made good by reading everything anew after each connection; `rules.refresh` goes on beside all of them. What counts
//! is what the database says: where there is one, messages only say where to look.
//!
//! | module | its one purpose |
//! |---|---|
//! | [`channel`] | how a messenger stands: for the log, the status and the metrics |
//! | `inbox` | from a message to [`Changes`] |
//! | `postgres`, `redis`, `kafka` | the messengers |

pub mod channel;
mod inbox;
#[cfg(feature = "kafka")]
mod kafka;
mod postgres;
mod redis;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

pub use self::channel::Channel;
use self::inbox::Inbox;
use crate::config;
use crate::rules::Source;
use crate::rules::change::Changes;
use crate::store::redis::SetupError;

/// The pause after a first failure; doubled with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// How often a connection is asked whether it still is one, and how long it may take to answer: one that swallows
/// everything is replaced after the sum of both.
const KEEPALIVE: Duration = Duration::from_secs(3);

/// All messengers of a gateway.
#[derive(Debug)]
pub struct Messengers {
    postgres: Option<postgres::Listener>,
    redis: Option<redis::Subscriber>,
    #[cfg(feature = "kafka")]
    kafka: Option<kafka::Consumer>,
    channels: Vec<Arc<Channel>>,
}

impl Messengers {
    /// Those that the settings name; they leave what they hear in `changes`.
    ///
    /// # Errors
    /// When the certificates for Redis cannot be used.
    pub fn new(
        rules: &config::Rules,
        store: Option<&config::Redis>,
        changes: &Arc<Changes>,
    ) -> Result<Self, SetupError> {
        let mut channels = Vec::new();
        let mut inbox = |source: Source| {
            let channel = Arc::new(Channel::new(source.name()));
            channels.push(Arc::clone(&channel));
            Inbox::new(Arc::clone(changes), channel, source, rules.database_url.is_some())
        };
        let settings = &rules.messengers;
        let postgres =
            settings.listen.as_ref().map(|listen| postgres::Listener::new(listen.clone(), inbox(Source::Postgres)));
        let redis = match (&settings.redis_channel, store) {
            (Some(channel), Some(store)) => Some(redis::Subscriber::new(store, channel, inbox(Source::Redis))?),
            _ => None,
        };
        #[cfg(feature = "kafka")]
        let kafka = settings.kafka.as_ref().map(|kafka| kafka::Consumer::new(kafka.clone(), inbox(Source::Kafka)));
        Ok(Self {
            postgres,
            redis,
            #[cfg(feature = "kafka")]
            kafka,
            channels,
        })
    }

    /// How each of them stands.
    pub fn channels(&self) -> &[Arc<Channel>] {
        &self.channels
    }

    /// Listens until it is dropped.
    pub async fn run(&self) {
        let postgres = async {
            if let Some(listener) = &self.postgres {
                listener.run().await;
            }
        };
        let redis = async {
            if let Some(subscriber) = &self.redis {
                subscriber.run().await;
            }
        };
        let kafka = async {
            #[cfg(feature = "kafka")]
            if let Some(consumer) = &self.kafka {
                consumer.run().await;
            }
        };
        tokio::join!(postgres, redis, kafka);
        std::future::pending().await
    }
}

/// When to try again.
#[derive(Debug, Default)]
struct Retry {
    failures: u32,
}

impl Retry {
    /// Waits after an attempt that began then, with jitter: the connections of a whole fleet break at once.
    async fn pause(&mut self, began: Instant) {
        self.failures = if began.elapsed() > LONGEST_PAUSE { 0 } else { self.failures.saturating_add(1) };
        let longest = FIRST_PAUSE.saturating_mul(1 << self.failures.min(16)).min(LONGEST_PAUSE);
        sleep(longest.mul_f64(rand::random_range(0.5..=1.0))).await;
    }
}
