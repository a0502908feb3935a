//! Buckets in Redis, shared by all gateways. Requests hand their calls over a bounded queue to one [`Driver`] with a
//! runtime of its own, which owns the connection and sends everything that has gathered in one pipeline: Redis's cost
//! per decision falls as load rises, and a call outlives the request that caused it.

mod dial;
mod driver;
mod script;
mod slots;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use smallvec::SmallVec;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::bucket::{Call, Demand, Limit, Reply, Report};
use crate::config::{self, Topology};
use crate::key::{Key, KeyRef};
use crate::metrics;
use crate::store::{Kind, Store, StoreError};

use dial::Dialer;
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

/// One call for one key, on its way.
pub trait Work: fmt::Debug + Send {
    /// The bucket.
    fn key(&self) -> &Key;

    /// What to call, decided when the call is about to be sent; `None` if there is no more reason to.
    fn begin(&mut self) -> Option<Message>;

    /// Takes the reply.
    fn finish(self: Box<Self>, result: Result<Reply, StoreError>);
}

/// A [`Call`] that owns what it says.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// See [`Call::limit`].
    pub limit: Limit,
    /// See [`Call::demand`].
    pub demand: SmallVec<[Demand; 1]>,
    /// See [`Call::prefetch`].
    pub prefetch: u32,
    /// See [`Call::report`].
    pub report: Report,
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
struct LinkCell {
    link: AtomicU8,
    /// Redis answers with errors.
    refusing: AtomicBool,
}

impl LinkCell {
    fn new() -> Self {
        Self { link: AtomicU8::new(Link::Starting as u8), refusing: AtomicBool::new(false) }
    }

    fn get(&self) -> Link {
        [Link::Starting, Link::Connected, Link::Away][usize::from(self.link.load(Ordering::Relaxed))]
    }

    /// Logs what Redis refuses, once until it answers again.
    fn note(&self, key: &str, refused: Option<&StoreError>) {
        if self.refusing.load(Ordering::Relaxed) == refused.is_some() {
            return;
        }
        self.refusing.store(refused.is_some(), Ordering::Relaxed);
        match refused {
            Some(error) => tracing::warn!(key, "{error}; each rule's on_store_failure applies"),
            None => tracing::info!("the store answers again"),
        }
    }

    /// Returns what it was before.
    fn set(&self, link: Link) -> Link {
        let before = self.get();
        self.link.store(link as u8, Ordering::Relaxed);
        metrics::STORE_CONNECTED.set(i64::from(link == Link::Connected));
        before
    }
}

/// The store cannot be reached as its settings say.
#[derive(Debug, thiserror::Error)]
#[error("store.ca_file: {0}")]
pub struct SetupError(#[from] openssl::error::ErrorStack);

/// The store and the driver that has to run for it.
///
/// # Errors
/// When the certificates for TLS cannot be used.
pub fn connect(settings: &config::Store, server: &config::Redis) -> Result<(RedisStore, Driver), SetupError> {
    let (queue, jobs) = mpsc::channel(QUEUE);
    let link = Arc::new(LinkCell::new());
    let dialer = Dialer::new(&server.login, server.tls.as_ref())?;
    let Topology::Single(address) = &server.topology else { todo!() };
    let driver = Driver::new(dialer, address.clone(), settings.key_prefix.clone(), jobs, Arc::clone(&link));
    Ok((RedisStore { queue, timeout: settings.timeout, link }, driver))
}

impl RedisStore {
    /// The connection now.
    pub fn link(&self) -> Link {
        self.link.get()
    }

    /// Sends a call on its way. Its reply comes to [`Work::finish`], at once where the store is known to be away or too
    /// much waits for it.
    pub fn submit(&self, work: Box<dyn Work>) {
        let job = Job { work: Some(work), queued: Instant::now(), timeout: self.timeout };
        if self.link() == Link::Away {
            return job.finish(Err(Kind::Disconnected.into()));
        }
        match self.queue.try_send(job) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(job)) => job.finish(Err(Kind::Overloaded.into())),
            Err(mpsc::error::TrySendError::Closed(job)) => job.finish(Err(Kind::Disconnected.into())),
        }
    }
}

/// Work in the queue.
#[derive(Debug)]
struct Job {
    /// `None` when it has been answered, or is of no more use.
    work: Option<Box<dyn Work>>,
    queued: Instant,
    timeout: Duration,
}

impl Job {
    fn finish(mut self, result: Result<Reply, StoreError>) {
        self.answer(result);
    }

    fn answer(&mut self, result: Result<Reply, StoreError>) {
        let Some(work) = self.work.take() else { return };
        let took = self.queued.elapsed();
        let outcome = match &result {
            Ok(_) if took > self.timeout => metrics::StoreCall::Timeout,
            Ok(_) => metrics::StoreCall::Ok,
            Err(error) if error.is_timeout() => metrics::StoreCall::Timeout,
            Err(error) if error.is_rejected() => metrics::StoreCall::Rejected,
            Err(_) => metrics::StoreCall::Error,
        };
        metrics::store_call(outcome, took.as_secs_f64());
        work.finish(result);
    }
}

/// Pipelines under way are given up with their connection. Whoever waits for their calls hears of it: a key makes no
/// other call while one is out.
impl Drop for Job {
    fn drop(&mut self) {
        self.answer(Err(Kind::Disconnected.into()));
    }
}

impl Store for RedisStore {
    async fn call(&self, key: KeyRef<'_>, call: &Call<'_>) -> Result<Reply, StoreError> {
        let (answer, reply) = oneshot::channel();
        let message = Message {
            limit: call.limit,
            demand: SmallVec::from_slice(call.demand),
            prefetch: call.prefetch,
            report: call.report,
        };
        self.submit(Box::new(Plain { key: key.to_key(), message: Some(message), answer }));
        match tokio::time::timeout(self.timeout, reply).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(Kind::Disconnected.into()),
            Err(_) => Err(Kind::Timeout.into()),
        }
    }
}

/// A call that somebody waits for.
#[derive(Debug)]
struct Plain {
    key: Key,
    message: Option<Message>,
    answer: oneshot::Sender<Result<Reply, StoreError>>,
}

impl Work for Plain {
    fn key(&self) -> &Key {
        &self.key
    }

    fn begin(&mut self) -> Option<Message> {
        // What is granted to somebody who has left would be lost.
        self.message.take().filter(|_| !self.answer.is_closed())
    }

    fn finish(self: Box<Self>, result: Result<Reply, StoreError>) {
        let _ = self.answer.send(result);
    }
}
