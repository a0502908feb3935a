//! What one gateway knows of one bucket: the tokens it may spend without asking, the requests that wait for a call, and
//! how long it need not ask because the bucket is empty. Pure: no clock, no I/O; time comes as milliseconds of this
//! process's monotonic clock. The bucket's side of the protocol is [`Bucket`](crate::bucket::Bucket).
//!
//! Why no window admits more than `capacity + refill · t`: a token of the stash is spent only while the bucket counts it
//! as leased (two generations, here one less a margin after the call that leased it was *sent*), and the bucket does not
//! refill what is leased.

use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::SmallVec;
use tokio::sync::oneshot;

use crate::bucket::{Demand, GENERATION_MS, Limit, Reply, Report, rounded_up};
use crate::decision::{Decision, Outcome, Quota, Source, whole_seconds};
use crate::ledger::Keep;
use crate::store::redis::Message;
use waiting::{Calling, Waiting};

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
mod waiting;

/// A stash is spent for so many milliseconds after its call was sent: a generation's length less a margin.
const SPENT_FOR_MS: u64 = GENERATION_MS - 100;
/// The longest part of a hold that is not the reply's own wait, in milliseconds: calls for an exhausted key are at least
/// this far apart …
const HOLD_MS: f64 = 25.0;
/// … or this share of the bucket's fill time, for buckets that fill faster.
const HOLD_SHARE: f64 = 0.25;
/// A stash is refilled ahead when less than this share of the wanted lease is left.
const REFILL_BELOW: f64 = 0.3;
/// Requests that may wait for one key; what exceeds this is not asked for.
const WAITING: usize = 1024;

/// Numbers the calls of one gateway, each differently.
#[derive(Debug, Default)]
pub(super) struct Numbers(AtomicU64);

impl Numbers {
    fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}

/// One key of one gateway.
#[derive(Debug)]
pub(super) struct Lease {
    limit: Limit,
    /// Leased tokens left to spend.
    stash: u32,
    /// Leased tokens spent and not yet reported.
    used: u32,
    /// Where the bucket counts them. Of today's generations (two seconds each), as many as have been fill a fifth of it.
    generation: u32,
    /// The stash may be spent until then.
    spend_until: u64,
    /// Requests that cost `hold_cost` or more are denied until then.
    hold_until: u64,
    hold_cost: u32,
    /// The size of the last lease asked for.
    wanted: u32,
    last_use: u64,
    /// Whole tokens in the bucket, when it last replied.
    tokens: u32,
    /// The stash goes back with the next call.
    giving_back: Option<GivingBack>,
    /// It stands in the list of keys with tokens out.
    listed: bool,
    calling: Option<Box<Calling>>,
}

/// Why a stash goes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GivingBack {
    /// It lies idle. A request that comes before the call is sent may spend it: the call may never leave.
    Idle,
    /// Its rule has changed.
    OldRule,
}

/// What to do with a request.
#[derive(Debug)]
pub(super) enum Ask {
    /// A leased token was spent, or the key is on hold. `call`: make a call in the background.
    Decided {
        /// The decision.
        decision: Decision,
        /// The number of a call to make in the background.
        call: Option<u64>,
    },
    /// Wait for an answer; `None` there means that the store gave none.
    Wait {
        /// The answer.
        answer: oneshot::Receiver<Decision>,
        /// The number of a call to make, if none is out yet.
        call: Option<u64>,
    },
    /// Too many wait already.
    Full,
    /// It would have to wait, and may not.
    Away,
}

/// What follows from the end of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Finished {
    /// The number of the next call, if one has to be made.
    pub(super) next: Option<u64>,
    /// Tokens granted to requests that no longer waited.
    pub(super) in_vain: u32,
}

impl Lease {
    pub(super) fn new(limit: Limit) -> Self {
        Self {
            limit,
            stash: 0,
            used: 0,
            generation: 0,
            spend_until: 0,
            hold_until: 0,
            hold_cost: 0,
            wanted: 0,
            last_use: 0,
            tokens: limit.capacity(),
            giving_back: None,
            listed: false,
            calling: None,
        }
    }

    /// Whether some requests are denied without a call.
    pub(super) fn is_held(&self, now: u64) -> bool {
        now < self.hold_until
    }

    /// Spends leased tokens, where nothing else has to be done or known: what most requests for a hot key come to. Returns
    /// how many may be left.
    #[inline]
    pub(super) fn spend(&mut self, now: u64, limit: Limit, cost: u32) -> Option<u32> {
        let low = self.calling.is_none() && self.is_low(self.stash.checked_sub(cost)?);
        if low || now > self.spend_until || self.giving_back.is_some() || limit != self.limit {
            return None;
        }
        self.take(now, cost)
    }

    /// Takes leased tokens, if there are enough. Returns how many may be left.
    #[inline]
    fn take(&mut self, now: u64, cost: u32) -> Option<u32> {
        self.stash = self.stash.checked_sub(cost)?;
        self.used += cost;
        self.last_use = now;
        Some(self.tokens + self.stash)
    }

    fn is_low(&self, stash: u32) -> bool {
        f64::from(stash) < REFILL_BELOW * f64::from(self.wanted)
    }

    /// A request that costs `cost` asks to pass. Where a call is needed, `until` says how long the request may wait for
    /// it; without time to wait none is made: the store is known to be away.
    pub(super) fn ask(
        &mut self,
        now: u64,
        limit: Limit,
        cost: u32,
        until: impl FnOnce() -> u64,
        numbers: &Numbers,
    ) -> Ask {
        if limit != self.limit {
            self.change_rule(limit);
        }
        if cost > limit.capacity() {
            return Ask::Decided { decision: self.denied(Source::Hold, None), call: None };
        }
        self.expire(now);
        if self.giving_back != Some(GivingBack::OldRule)
            && let Some(left) = self.take(now, cost)
        {
            self.giving_back = None;
            let low = self.is_low(self.stash) && self.calling.is_none() && now >= self.hold_until && now < until();
            let call = low.then(|| self.call(numbers));
            return Ask::Decided { decision: allowed(limit, Source::Lease, left), call };
        }
        if now < self.hold_until && cost >= self.hold_cost {
            let wait = self.hold_until - now + fill_ms(cost - self.hold_cost, limit);
            return Ask::Decided { decision: self.denied(Source::Hold, Some(wait)), call: None };
        }
        let until = until();
        if now >= until {
            return Ask::Away;
        }
        let call = self.calling.is_none().then(|| self.call(numbers));
        let waiting = &mut self.calling.get_or_insert_default().waiting;
        if waiting.len() >= WAITING {
            return Ask::Full;
        }
        let (answer, receiver) = oneshot::channel();
        waiting.push(Waiting { cost, until, answer });
        Ask::Wait { answer: receiver, call }
    }

    /// The message of call `number`, now that it is about to be sent: everything that waits, the lease wanted (from the
    /// tokens spent and asked for since the last call), and what became of the last lease. `None` if the call is of no
    /// more use.
    pub(super) fn begin(&mut self, now: u64, number: u64, want: impl FnOnce(u32) -> u32) -> Option<Message> {
        self.expire(now);
        let calling = self.calling.as_deref_mut().filter(|calling| calling.number == number)?;
        calling.asked = std::mem::take(&mut calling.waiting);
        calling.asked.retain(|waiting| now < waiting.until && !waiting.answer.is_closed());
        calling.sent = Some(now);
        let mut demand: SmallVec<[Demand; 1]> = SmallVec::new();
        for &Waiting { cost, .. } in &calling.asked {
            match demand.last_mut() {
                Some(last) if last.cost == cost => last.count += 1,
                _ => demand.push(Demand { cost, count: 1 }),
            }
        }
        let cost = |demand: &Demand| demand.cost.saturating_mul(demand.count);
        self.wanted = want(demand.iter().map(cost).fold(self.used, u32::saturating_add));
        let too_small = demand.iter().any(|demand| demand.cost > self.stash);
        let (held, back, prefetch) = match self.giving_back.take() {
            Some(_) => (0, std::mem::take(&mut self.stash), 0),
            // Here it would only keep the bucket from refilling what they need.
            None if too_small => (0, std::mem::take(&mut self.stash), self.wanted),
            None => (self.stash, 0, self.wanted),
        };
        let used = std::mem::take(&mut self.used);
        if demand.is_empty() && prefetch == 0 && used + back == 0 {
            self.calling = None;
            return None;
        }
        let report = Report { generation: self.generation.into(), used, held, back, owed: 0 };
        Some(Message { limit: self.limit, demand, prefetch, report })
    }

    /// The reply to call `number`, which asked under the rule `asked_under`; `None` if there is none and will be none.
    pub(super) fn finish(
        &mut self,
        now: u64,
        number: u64,
        asked_under: Option<Limit>,
        reply: Option<Reply>,
        numbers: &Numbers,
    ) -> Finished {
        let Some(calling) = self.calling.take_if(|calling| calling.number == number) else {
            return Finished::default();
        };
        // Without a reply: never repeated, it may have been booked. Whoever waits goes to the failure policy, also who
        // came meanwhile: another call would most likely fare the same.
        let Some(reply) = reply else { return Finished::default() };
        let Calling { sent, asked, mut waiting, .. } = *calling;
        self.tokens = reply.tokens.min(self.limit.capacity());
        if !reply.stash_known {
            (self.stash, self.used) = (0, 0);
        }
        // What was granted under an older rule is left to expire.
        let same_rule = asked_under == Some(self.limit);
        if same_rule {
            self.stash += reply.prefetched;
            self.generation = u32::try_from(reply.generation).unwrap_or(u32::MAX);
            self.spend_until = sent.unwrap_or(now) + SPENT_FOR_MS;
            self.last_use = now;
        }
        let refused = asked.get(reply.granted as usize).map(|first| first.cost);
        if let Some(cost) = refused.filter(|_| same_rule) {
            let least = HOLD_MS.min(HOLD_SHARE * fill_ms(self.limit.capacity(), self.limit) as f64);
            let wait = reply.wait_ms.map_or(least, |wait| least.max(wait as f64));
            (self.hold_until, self.hold_cost) = (now + wait.ceil() as u64, cost);
        }
        let in_vain = self.answer(asked, &reply, refused);
        if same_rule {
            waiting = self.spend_on(waiting);
        }
        if let Some(cost) = refused.filter(|_| same_rule) {
            let wait = self.hold_until - now;
            waiting = self.deny(waiting, cost, wait);
        }
        let next = (!waiting.is_empty()).then(|| {
            let number = numbers.next();
            self.calling = Some(Box::new(Calling { number, waiting, ..Calling::default() }));
            number
        });
        Finished { next, in_vain }
    }

    /// Another rule applies from now on: it lifts the hold, and the stash goes back (or, with a call out that counts it
    /// as held, is dropped).
    fn change_rule(&mut self, limit: Limit) {
        self.limit = limit;
        (self.hold_until, self.hold_cost) = (0, 0);
        self.tokens = self.tokens.min(limit.capacity());
        if self.calling.as_ref().is_some_and(|calling| calling.sent.is_some()) {
            (self.stash, self.used) = (0, 0);
        } else {
            self.giving_back = (self.stash > 0).then_some(GivingBack::OldRule);
        }
    }

    /// If leased tokens lie idle since before `idle_since`: returns the number of a call that gives them back.
    pub(super) fn give_back(&mut self, now: u64, idle_since: u64, numbers: &Numbers) -> Option<u64> {
        self.expire(now);
        if self.calling.is_some() || self.last_use > idle_since || self.stash + self.used == 0 {
            return None;
        }
        self.giving_back.get_or_insert(GivingBack::Idle);
        Some(self.call(numbers))
    }

    /// Leased tokens not yet spent, or spent and not yet reported.
    fn is_out(&self, now: u64) -> bool {
        now <= self.spend_until && self.stash + self.used > 0
    }

    /// Whether this has to be put in the list of keys with tokens out.
    pub(super) fn list(&mut self, now: u64) -> bool {
        let missing = !self.listed && self.is_out(now);
        self.listed |= missing;
        missing
    }

    /// Whether this stays in that list.
    pub(super) fn stays_listed(&mut self, now: u64) -> bool {
        self.listed = self.is_out(now) || self.calling.is_some();
        self.listed
    }

    /// Whole tokens that the bucket holds by now if nobody has taken any since its last reply; the capacity, if it never
    /// has replied.
    pub(super) fn expected(&self, now: u64) -> u32 {
        let seen_at = self.spend_until.saturating_sub(SPENT_FOR_MS);
        let refilled = now.saturating_sub(seen_at) as f64 * self.limit.refill_per_second() / 1000.0;
        self.tokens.saturating_add(refilled as u32).min(self.limit.capacity())
    }

    /// The rule that applies.
    pub(super) fn limit(&self) -> Limit {
        self.limit
    }

    /// Whole tokens that may be left for this gateway: none while the key is on hold, else what was last seen and what
    /// has refilled since.
    pub(super) fn glimpse(&self, now: u64) -> u32 {
        if now < self.hold_until {
            return 0;
        }
        self.expected(now) + self.stash(now)
    }

    /// Leased tokens left to spend.
    pub(super) fn stash(&self, now: u64) -> u32 {
        if now <= self.spend_until { self.stash } else { 0 }
    }

    fn call(&mut self, numbers: &Numbers) -> u64 {
        let number = numbers.next();
        self.calling = Some(Box::new(Calling { number, ..Calling::default() }));
        number
    }

    fn expire(&mut self, now: u64) {
        if now > self.spend_until {
            (self.stash, self.used, self.giving_back) = (0, 0, None);
        }
    }

    fn denied(&self, source: Source, wait_ms: Option<u64>) -> Decision {
        let left = self.tokens + self.stash;
        let retry_after = wait_ms.map(whole_seconds);
        Decision { outcome: Outcome::Denied { retry_after }, source, quota: Some(Quota::new(self.limit, left)) }
    }
}

impl Keep for Lease {
    fn loss(&self, now: u64) -> f64 {
        match () {
            () if self.calling.is_some() => f64::INFINITY,
            () if self.is_out(now) => 2.0,
            () if now < self.hold_until => 1.0,
            () => 0.0,
        }
    }
}

pub(super) fn allowed(limit: Limit, source: Source, left: u32) -> Decision {
    Decision { outcome: Outcome::Allowed, source, quota: Some(Quota::new(limit, left)) }
}

/// Milliseconds in which `tokens` refill, rounded up.
fn fill_ms(tokens: u32, limit: Limit) -> u64 {
    rounded_up(f64::from(tokens) * 1000.0 / limit.refill_per_second())
}
