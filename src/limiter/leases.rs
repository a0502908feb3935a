//! All leases of this gateway: finds a key's, makes its calls, gives back what lies idle.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::bucket::{Limit, Reply};
use crate::clock::Clock;
use crate::config;
use crate::decision::Decision;
use crate::key::{Key, KeyRef};
use crate::ledger::Ledger;
use crate::limiter::demand::Demand;
use crate::limiter::lease::{Ask, Lease, Numbers};
use crate::store::StoreError;
use crate::store::redis::{Message, RedisStore, Work};

/// Leases over one shared store.
#[derive(Debug)]
pub(super) struct Leases {
    ledger: Ledger<Lease>,
    demand: Demand,
    store: RedisStore,
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

impl Leases {
    pub(super) fn new(store: RedisStore, timeout: Duration, settings: &config::Limiter, clock: Clock) -> Self {
        Self {
            ledger: Ledger::new(settings.max_keys),
            demand: Demand::new(settings.prefetch),
            store,
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

    /// A request for `key` was admitted without the store, by a share of `most` tokens.
    pub(super) fn owe(&self, key: KeyRef<'_>, cost: u32, most: u32) {
        self.ledger.find(key, |lease| lease.owe(cost, most));
    }

    /// Tokens that the store reported for a key since this was last asked.
    pub(super) fn news(&self, key: KeyRef<'_>) -> Option<u32> {
        self.ledger.find(key, Lease::news)?
    }

    /// Whole tokens that this gateway thinks are left for a key; `None` if it knows nothing.
    pub(super) fn glimpse(&self, key: KeyRef<'_>) -> Option<u32> {
        let now = self.clock.now();
        self.ledger.find(key, |lease| lease.glimpse(now))
    }

    /// Decides, with a leased token if there is one; `None` if the store gave no answer in time.
    pub(super) async fn decide(self: &Arc<Self>, key: KeyRef<'_>, limit: Limit, cost: u32) -> Option<Decision> {
        let now = self.clock.now();
        // Nobody waits for a store that is known to be away, not even for a call that was sent before.
        let until = if self.store.lets_through(key) { now + (self.timeout.as_millis() as u64).max(1) } else { now };
        match self.ledger.with(key, now, || Lease::new(limit), |lease| lease.ask(now, limit, cost, until, &self.calls))
        {
            Ask::Decided { decision, call } => {
                self.make(key, call);
                Some(decision)
            }
            Ask::Wait { answer, call } => {
                self.make(key, call);
                tokio::time::timeout(self.timeout, answer).await.ok()?.ok()
            }
            Ask::Full | Ask::Away => None,
        }
    }

    fn make(self: &Arc<Self>, key: KeyRef<'_>, call: Option<u64>) {
        if let Some(number) = call {
            self.submit(key.to_key(), number);
        }
    }

    fn submit(self: &Arc<Self>, key: Key, number: u64) {
        self.store.submit(Box::new(LeaseCall { leases: Arc::clone(self), key, number, asked_under: None }));
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
}

impl Work for LeaseCall {
    fn key(&self) -> &Key {
        &self.key
    }

    fn begin(&mut self) -> Option<Message> {
        let Leases { ledger, demand, clock, closing, .. } = &*self.leases;
        let now = clock.now();
        let hash = ledger.hash(self.key.as_ref());
        let message = ledger.find(self.key.as_ref(), |lease| {
            let limit = lease.limit();
            lease.begin(now, self.number, |spent| {
                let rate = demand.observe(hash, spent);
                if closing.load(Ordering::Relaxed) { 0 } else { demand.lease(rate, limit) }
            })
        })??;
        self.asked_under = Some(message.limit);
        Some(message)
    }

    fn finish(self: Box<Self>, result: Result<Reply, StoreError>) {
        let leases = &self.leases;
        let now = leases.clock.now();
        let reply = result.ok();
        let Some((next, newly_out)) = leases.ledger.find(self.key.as_ref(), |lease| {
            let next = lease.finish(now, self.number, self.asked_under, reply, &leases.calls);
            (next, lease.list(now))
        }) else {
            return;
        };
        if newly_out {
            leases.out.lock().push(self.key.clone());
        }
        if let Some(number) = next {
            leases.submit(self.key.clone(), number);
        }
    }
}
