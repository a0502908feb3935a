//! What goes to a node: one call, from the queue to its answer.

use std::fmt;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::script::Command;
use crate::bucket::{Demand, Limit, Reply, Report};
use crate::key::Key;
use crate::metrics;
use crate::store::{Kind, StoreError};

/// One call for one bucket, on its way.
pub trait Work: fmt::Debug + Send {
    /// The bucket.
    fn key(&self) -> &Key;

    /// What to call, decided when the call is about to be sent; `None` if there is no more reason to.
    fn begin(&mut self) -> Option<Message>;

    /// Takes the reply.
    fn finish(self: Box<Self>, result: Result<Reply, StoreError>);
}

/// A [`Call`](crate::bucket::Call) that owns what it says.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// See [`Call::limit`](crate::bucket::Call::limit).
    pub limit: Limit,
    /// See [`Call::demand`](crate::bucket::Call::demand).
    pub demand: SmallVec<[Demand; 1]>,
    /// See [`Call::prefetch`](crate::bucket::Call::prefetch).
    pub prefetch: u32,
    /// See [`Call::report`](crate::bucket::Call::report).
    pub report: Report,
}

/// What somebody wants of the store.
#[derive(Debug)]
pub(super) enum Task {
    /// One call for one bucket.
    Bucket(Box<dyn Work>),
    /// A sign of life of this gateway.
    Beat(Beat),
}

/// A gateway is alive, or leaves.
#[derive(Debug)]
pub(super) struct Beat {
    pub(super) id: String,
    pub(super) leaves: bool,
    pub(super) answer: oneshot::Sender<Result<Alive, StoreError>>,
}

/// What Redis replied.
#[derive(Debug)]
pub(super) enum Answer {
    /// A bucket's reply.
    Bucket(Reply),
    /// A heartbeat's reply.
    Alive(Alive),
}

/// The gateways that are alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alive {
    /// How many.
    pub gateways: u32,
    /// How many of them come before the one that asked; the order is the same for all.
    pub before: u32,
}

impl Task {
    /// The key in Redis.
    pub(super) fn key(&self, prefix: &str) -> String {
        match self {
            Self::Bucket(work) => work.key().in_redis(prefix),
            Self::Beat(_) => format!("{prefix}:gateways"),
        }
    }

    fn finish(self, result: Result<Answer, StoreError>) {
        match (self, result) {
            (Self::Bucket(work), Ok(Answer::Bucket(reply))) => work.finish(Ok(reply)),
            (Self::Bucket(work), result) => work.finish(Err(error(result))),
            (Self::Beat(beat), result) => {
                let result = match result {
                    Ok(Answer::Alive(alive)) => Ok(alive),
                    result => Err(error(result)),
                };
                let _ = beat.answer.send(result);
            }
        }
    }
}

fn error(result: Result<Answer, StoreError>) -> StoreError {
    match result {
        Err(error) => error,
        Ok(other) => Kind::Garbled(format!("{other:?}")).into(),
    }
}

/// A task in the queue or under way.
#[derive(Debug)]
pub(super) struct Job {
    /// `None` when it has been answered, or is of no more use.
    task: Option<Task>,
    queued: Instant,
    /// Longer is slow.
    timeout: Duration,
    /// The breaker knows already what became of it.
    pub(super) judged: bool,
    /// Its key in Redis, once somebody had to know it.
    key: Option<String>,
    /// Its command, if it was sent to a node that did not execute it.
    begun: Option<Command>,
    /// How often it was sent on to another node.
    hops: u8,
    /// The node it goes to has its key, but not yet the slot.
    pub(super) asking: bool,
}

impl Job {
    pub(super) fn new(task: Task, timeout: Duration) -> Self {
        let queued = Instant::now();
        Self { task: Some(task), queued, timeout, judged: false, key: None, begun: None, hops: 0, asking: false }
    }

    /// When it will have taken too long.
    pub(super) fn slow_at(&self) -> Instant {
        self.queued + self.timeout
    }

    /// Its key in Redis.
    pub(super) fn key(&mut self, prefix: &str) -> &str {
        let task = &self.task;
        self.key.get_or_insert_with(|| task.as_ref().map(|task| task.key(prefix)).unwrap_or_default())
    }

    /// Takes back its command, which a node did not execute.
    pub(super) fn take_back(&mut self, command: Command) {
        self.begun = Some(command);
    }

    /// It goes on to another node: how often it has done so by now. What comes late to that node is not that node's
    /// fault.
    pub(super) fn hop(&mut self, asking: bool) -> u8 {
        self.asking = asking;
        self.judged = self.slow_at() <= Instant::now();
        self.hops += 1;
        self.hops
    }

    /// Its command, now that it is about to be sent; `None` if there is no more reason to.
    pub(super) fn begin(&mut self, prefix: &str) -> Option<Command> {
        if let Some(begun) = self.begun.take() {
            return Some(begun);
        }
        let mut task = self.task.take()?;
        let key = self.key.take().unwrap_or_else(|| task.key(prefix));
        let command = match &mut task {
            Task::Bucket(work) => Command::Bucket { key, call: work.begin()? },
            Task::Beat(beat) if beat.answer.is_closed() => return None,
            Task::Beat(beat) => Command::Beat { key, id: beat.id.clone(), leaves: beat.leaves },
        };
        self.task = Some(task);
        Some(command)
    }

    pub(super) fn finish(mut self, result: Result<Answer, StoreError>) {
        self.answer(result);
    }

    fn answer(&mut self, result: Result<Answer, StoreError>) {
        let Some(task) = self.task.take() else { return };
        let took = self.queued.elapsed();
        let outcome = match &result {
            Ok(_) if took > self.timeout => metrics::StoreCall::Timeout,
            Ok(_) => metrics::StoreCall::Ok,
            Err(error) if error.is_timeout() => metrics::StoreCall::Timeout,
            Err(error) if error.is_rejected() => metrics::StoreCall::Rejected,
            Err(_) => metrics::StoreCall::Error,
        };
        // Beats are nothing that a request could wait for.
        if matches!(task, Task::Bucket(_)) {
            metrics::store_call(outcome, took.as_secs_f64());
        }
        task.finish(result);
    }
}

/// Calls under way are given up with their connection, and all with the driver. Whoever waits hears of it: a key makes no
/// other call while one is out.
impl Drop for Job {
    fn drop(&mut self) {
        self.answer(Err(Kind::Lost.into()));
    }
}
