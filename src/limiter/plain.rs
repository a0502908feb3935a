//! Without leases: each request makes a call of its own.

use std::sync::Arc;
use std::time::Duration;

use smallvec::smallvec;
use tokio::sync::oneshot;

use crate::bucket::{Demand, Limit, Reply, Report};
use crate::clock::Clock;
use crate::decision::{Decision, Source};
use crate::key::{Key, KeyRef};
use crate::limiter::decision;
use crate::limiter::fallback::Fallback;
use crate::store::StoreError;
use crate::store::redis::{Message, RedisStore, Work};

/// Buckets in the shared store, one call a decision.
#[derive(Debug)]
pub(super) struct Plain {
    store: Arc<RedisStore>,
    fallback: Arc<Fallback>,
    /// The longest a request waits.
    timeout: Duration,
    clock: Clock,
}

impl Plain {
    /// Over `store`, which is told what `fallback` admitted while it did not answer.
    pub(super) fn new(store: Arc<RedisStore>, fallback: Arc<Fallback>, timeout: Duration, clock: Clock) -> Self {
        Self { store, fallback, timeout, clock }
    }

    pub(super) fn store(&self) -> &RedisStore {
        &self.store
    }

    /// Asks one bucket; `None` if the store gave no answer in time.
    pub(super) async fn decide(&self, key: KeyRef<'_>, limit: Limit, cost: u32) -> Option<Decision> {
        let (answer, decided) = oneshot::channel();
        let (fallback, clock) = (Arc::clone(&self.fallback), self.clock.clone());
        self.store.submit(Box::new(PlainCall { key: key.to_key(), limit, cost, owed: 0, answer, fallback, clock }));
        tokio::time::timeout(self.timeout, decided).await.ok()?.ok()
    }
}

/// The call of one request, which may leave before it is answered.
#[derive(Debug)]
struct PlainCall {
    key: Key,
    limit: Limit,
    cost: u32,
    /// Tokens that it tells of, admitted without the store.
    owed: u32,
    answer: oneshot::Sender<Decision>,
    fallback: Arc<Fallback>,
    clock: Clock,
}

impl Work for PlainCall {
    fn key(&self) -> &Key {
        &self.key
    }

    fn begin(&mut self) -> Option<Message> {
        // What is granted to somebody who has left would be lost.
        if self.answer.is_closed() {
            return None;
        }
        self.owed = self.fallback.take_owed(self.key.as_ref());
        let report = Report { owed: self.owed, ..Report::default() };
        Some(Message {
            limit: self.limit,
            demand: smallvec![Demand { cost: self.cost, count: 1 }],
            prefetch: 0,
            report,
        })
    }

    fn finish(self: Box<Self>, result: Result<Reply, StoreError>) {
        let Self { key, limit, cost, owed, answer, fallback, clock } = *self;
        let Ok(reply) = result else { return fallback.lost(key.as_ref(), owed) };
        let left = answer.send(decision(limit, &reply, Source::Store)).is_err();
        let in_vain = if left { reply.granted * cost } else { 0 };
        fallback.answered(key.as_ref(), clock.now(), reply.tokens, in_vain);
    }
}
