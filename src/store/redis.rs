//! Buckets in Redis, shared by all gateways. Requests hand their calls over a bounded queue to one [`Driver`] with a
//! runtime of its own, which owns the connection and sends everything that has gathered in one pipeline: Redis's cost
//! per decision falls as load rises, and a call outlives the request that caused it.

mod driver;
mod script;

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use crate::bucket::{Call, Limit, Reply, Report};
use crate::config;
use crate::key::{Key, KeyRef};
use crate::metrics;
use crate::store::{Kind, Store, StoreError};

pub use driver::Driver;

/// Calls that may wait for the driver; what exceeds this is refused at once.
const QUEUE: usize = 16_384;

/// The requests' side of the shared store.
#[derive(Debug)]
pub struct RedisStore {
    queue: mpsc::Sender<Job>,
    timeout: Duration,
    link: Arc<LinkCell>,
}

impl RedisStore {
    /// The connection now.
    pub fn link(&self) -> Link {
        self.link.get()
    }
}

/// The connection to Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// Not tried yet.
    Starting,
    /// There is one.
    Connected,
    /// There is none.
    Away,
}

/// A [`Link`] that the driver sets and everybody reads.
#[derive(Debug)]
struct LinkCell(AtomicU8);

impl LinkCell {
    fn get(&self) -> Link {
        [Link::Starting, Link::Connected, Link::Away][usize::from(self.0.load(Ordering::Relaxed))]
    }

    /// Returns what it was before.
    fn set(&self, link: Link) -> Link {
        let before = self.get();
        self.0.store(link as u8, Ordering::Relaxed);
        metrics::STORE_CONNECTED.set(i64::from(link == Link::Connected));
        before
    }
}

/// One call on its way, and where its answer goes.
#[derive(Debug)]
struct Job {
    key: Key,
    limit: Limit,
    demand: Vec<crate::bucket::Demand>,
    prefetch: u32,
    report: Report,
    answer: oneshot::Sender<Result<Reply, StoreError>>,
}

/// The store and the driver that has to run for it.
///
/// # Errors
/// When the URL is not one of Redis.
pub fn connect(settings: &config::Store, url: &str) -> Result<(RedisStore, Driver), ::redis::RedisError> {
    let (queue, jobs) = mpsc::channel(QUEUE);
    let link = Arc::new(LinkCell(AtomicU8::new(Link::Starting as u8)));
    let driver = Driver::new(url, settings.key_prefix.clone(), jobs, Arc::clone(&link))?;
    Ok((RedisStore { queue, timeout: settings.timeout, link }, driver))
}

impl Store for RedisStore {
    async fn call(&self, key: KeyRef<'_>, call: &Call<'_>) -> Result<Reply, StoreError> {
        let timer = metrics::STORE_CALL_SECONDS.start_timer();
        let (answer, reply) = oneshot::channel();
        let job = Job {
            key: key.to_key(),
            limit: call.limit,
            demand: call.demand.to_vec(),
            prefetch: call.prefetch,
            report: call.report,
            answer,
        };
        let result = match self.queue.try_send(job) {
            Err(mpsc::error::TrySendError::Full(_)) => Err(Kind::Overloaded.into()),
            Err(mpsc::error::TrySendError::Closed(_)) => Err(Kind::Disconnected.into()),
            Ok(()) => match tokio::time::timeout(self.timeout, reply).await {
                Ok(Ok(result)) => result,
                Ok(Err(_)) => Err(Kind::Disconnected.into()),
                Err(_) => Err(Kind::Timeout.into()),
            },
        };
        let outcome = match &result {
            Ok(_) => metrics::StoreCall::Ok,
            Err(error) if error.is_timeout() => metrics::StoreCall::Timeout,
            Err(error) if error.is_rejected() => metrics::StoreCall::Rejected,
            Err(_) => metrics::StoreCall::Error,
        };
        metrics::store_call(outcome);
        match outcome {
            metrics::StoreCall::Rejected => drop(timer.stop_and_discard()),
            _ => timer.observe_duration(),
        }
        result
    }
}
