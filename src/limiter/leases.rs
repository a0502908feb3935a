//! All leases of this gateway: finds a key's, makes its calls, gives back what lies idle.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::bucket::{Limit, Reply};
use crate::clock::Clock;
use crate::config;
use crate::decision::{Decision, Source};
use crate::key::{Key, KeyRef};
use crate::ledger::Ledger;
use crate::limiter::demand::Demand;
use crate::limiter::fallback::Fallback;
use crate::limiter::lease::{Ask, Lease, Numbers, allowed};
use crate::store::StoreError;
use crate::store::redis::{Message, RedisStore, Work};

/// Leases over one shared store.
#[derive(Debug)]
pub(super) struct Leases {
    ledger: Ledger<Lease>,
    demand: Demand,
    store: Arc<RedisStore>,
    fallback: Arc<Fallback>,
    clock: Clock,
    /// The longest a request waits.
    timeout: Duration,
    /// A stash that lies idle for so long goes back.
    horizon: Duration,
    /// Numbers calls.
    calls: Numbers,
    /// The keys with tokens out, as of their last call; each once.
    out: Mutex<Vec<Key>>,
    /// The process is about to stop: nothing is leased any more.
    closing: AtomicBool,
}

/// To be had from the store; `None` where too many wait already.
pub(super) type Answer = Option<oneshot::Receiver<Decision>>;

impl Leases {
    /// Over `store`, which is told what `fallback` admitted while it did not answer.
    pub(super) fn new(
        store: Arc<RedisStore>,
        fallback: Arc<Fallback>,
        timeout: Duration,
        settings: &config::Limiter,
        clock: Clock,
    ) -> Self {
        Self {
            ledger: Ledger::new(settings.max_keys),
            demand: Demand::new(settings.prefetch),
            store,
            fallback,
            clock,
            timeout,
            horizon: settings.prefetch.horizon,
            calls: Numbers::default(),
            out: Mutex::default(),
            closing: AtomicBool::new(false),
        }
    }

    pub(super) fn store(&self) -> &RedisStore {
        &self.store
    }

    /// Keys tracked, and how many were forgotten for want of room though something was known of them.
    pub(super) fn keys(&self) -> (usize, u64) {
        (self.ledger.len(), self.ledger.forgotten())
    }

    /// Whole tokens that a key's bucket may hold now, by its last reply; `None` if nothing is known of it.
    pub(super) fn expected(&self, key: KeyRef<'_>) -> Option<u32> {
        let now = self.clock.now();
        self.ledger.find(key, |lease| lease.expected(now))
    }

    /// Whole tokens that this gateway thinks are left for a key; `None` if it knows nothing.
    pub(super) fn glimpse(&self, key: KeyRef<'_>) -> Option<u32> {
        let now = self.clock.now();
        self.ledger.find(key, |lease| lease.glimpse(now))
    }

    /// Decides at once, with a leased token or by a hold, or asks the store.
    #[inline]
    pub(super) fn ask(self: &Arc<Self>, key: KeyRef<'_>, limit: Limit, cost: u32) -> Result<Decision, Answer> {
        let tick = self.clock.tick();
        let spend = |lease: &mut Lease| {
            let spent = lease.spend(tick, limit, cost);
            spent.ok_or_else(|| self.ask_more(lease, key, tick, limit, cost))
        };
        match self.ledger.with(key, tick, || Lease::new(limit), spend) {
            Ok(left) => Ok(allowed(limit, Source::Lease, left)),
            Err(asked) => self.act(key, asked),
        }
    }

    /// Makes the call that follows from a request, if any.
    #[inline(never)]
    fn act(self: &Arc<Self>, key: KeyRef<'_>, asked: Ask) -> Result<Decision, Answer> {
        match asked {
            Ask::Decided { decision, call } => {
                self.make(key, call);
                Ok(decision)
            }
            Ask::Wait { answer, call } => {
                self.make(key, call);
                Err(Some(answer))
            }
            Ask::Full | Ask::Away => Err(None),
        }
    }

    /// Not inlined, so that the way above stays short.
    #[inline(never)]
    fn ask_more(&self, lease: &mut Lease, key: KeyRef<'_>, tick: u64, limit: Limit, cost: u32) -> Ask {
        // `Retry-After` is honest to the millisecond; the end of a stash does not have to be.
        let now = if lease.is_held(tick) { self.clock.now() } else { tick };
        let until = || match self.store.lets_through(key) {
            true => self.clock.now() + (self.timeout.as_millis() as u64).max(1),
            // Nobody waits for a store that is known to be away, not even for a call that was sent before.
            false => now,
        };
        lease.ask(now, limit, cost, until, &self.calls)
    }

    /// What the store answers; `None` if it does not in time.
    pub(super) async fn answer(&self, answer: Answer) -> Option<Decision> {
        tokio::time::timeout(self.timeout, answer?).await.ok()?.ok()
    }

    fn make(self: &Arc<Self>, key: KeyRef<'_>, call: Option<u64>) {
        if let Some(number) = call {
            self.submit(key.to_key(), number);
        }
    }

    fn submit(self: &Arc<Self>, key: Key, number: u64) {
        self.store.submit(Box::new(LeaseCall { leases: Arc::clone(self), key, number, asked_under: None, owed: 0 }));
    }

    /// Gives back what lies idle, until the process ends.
    pub(super) async fn keep_up(self: Arc<Self>) {
        loop {
            tokio::time::sleep(self.horizon / 2).await;
            let now = self.clock.now();
            self.give_back(now.saturating_sub(self.horizon.as_millis() as u64));
        }
    }

    /// Gives back every stash not used since `idle_since`. Returns how many keys have tokens out still.
    fn give_back(self: &Arc<Self>, idle_since: u64) -> usize {
        let now = self.clock.now();
        let keys = std::mem::take(&mut *self.out.lock());
        let mut still_out = Vec::with_capacity(keys.len());
        for key in keys {
            let found = self.ledger.find(key.as_ref(), |lease| {
                let call = lease.give_back(now, idle_since, &self.calls);
                (call, lease.stays_listed(now))
            });
            let Some((call, listed)) = found else { continue };
            if let Some(number) = call {
                self.submit(key.clone(), number);
            }
            if listed {
                still_out.push(key);
            }
        }
        let mut out = self.out.lock();
        out.append(&mut still_out);
        out.len()
    }

    /// Gives back every stash and leases no more; returns when all are back, or after `longest`.
    pub(super) async fn close(self: &Arc<Self>, longest: Duration) {
        self.closing.store(true, Ordering::Relaxed);
        let all_back = async {
            while self.give_back(u64::MAX) > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let _ = tokio::time::timeout(longest, all_back).await;
    }

    /// Leased tokens that may be spent without asking.
    pub(super) fn tokens(&self) -> u64 {
        let now = self.clock.now();
        let keys = self.out.lock();
        keys.iter().filter_map(|key| self.ledger.find(key.as_ref(), |lease| u64::from(lease.stash(now)))).sum()
    }
}

/// One call for one key.
#[derive(Debug)]
struct LeaseCall {
    leases: Arc<Leases>,
    key: Key,
    number: u64,
    asked_under: Option<Limit>,
    /// Tokens that it tells of, admitted without the store.
    owed: u32,
}

impl Work for LeaseCall {
    fn key(&self) -> &Key {
        &self.key
    }

    fn begin(&mut self) -> Option<Message> {
        let Leases { ledger, demand, fallback, clock, closing, .. } = &*self.leases;
        let now = clock.now();
        let hash = ledger.hash(self.key.as_ref());
        let mut message = ledger.find(self.key.as_ref(), |lease| {
            let limit = lease.limit();
            lease.begin(now, self.number, |spent| {
                let rate = demand.observe(hash, spent);
                if closing.load(Ordering::Relaxed) { 0 } else { demand.lease(rate, limit) }
            })
        })??;
        self.asked_under = Some(message.limit);
        self.owed = fallback.take_owed(self.key.as_ref());
        message.report.owed = self.owed;
        Some(message)
    }

    fn finish(self: Box<Self>, result: Result<Reply, StoreError>) {
        let leases = &self.leases;
        let now = leases.clock.now();
        let reply = result.ok();
        let (finished, newly_out) = leases
            .ledger
            .find(self.key.as_ref(), |lease| {
                let finished = lease.finish(now, self.number, self.asked_under, reply, &leases.calls);
                (finished, lease.list(now))
            })
            .unwrap_or_default();
        match reply {
            Some(reply) => leases.fallback.answered(self.key.as_ref(), now, reply.tokens, finished.in_vain),
            None => leases.fallback.lost(self.key.as_ref(), self.owed),
        }
        if newly_out {
            leases.out.lock().push(self.key.clone());
        }
        if let Some(number) = finished.next {
            leases.submit(self.key.clone(), number);
        }
    }
}
