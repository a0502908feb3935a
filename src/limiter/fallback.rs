//! This gateway's shares of limits whose bucket in the store does not answer.
//!
//! A share starts with this gateway's part of what the bucket should hold by its last reply (of the capacity, where there
//! was none). From then on it refills, with its part of the refill, only while the store is away: calls lost one by one,
//! or a second outage soon after the first, bring no second burst. What was admitted by the share is told to the bucket
//! with its next call, and the share then starts again from the reply.
//!
//! Parts are fractions of tokens. So that gateways whose part is less than one request admit neither nothing nor one
//! request each, they take turns: of N gateways the k-th (from 0) admits requests that cost c a part k/N of one early. Where
//! a single gateway would have earned x tokens, so N of them have earned `Σ ⌊x/(N·c) + k/N⌋ = ⌊x/c⌋` requests (Hermite's
//! identity): to the request what one bucket would admit, if all are asked enough. What a gateway has not used after the
//! time in which the limit fills is gone, request by request: so also after a rest they admit together a capacity at once,
//! not one request each. That costs something where gateways are asked hardly more than once in that time.

use std::sync::Arc;

use crate::bucket::{Limit, rounded_up};
use crate::decision::{Decision, Outcome, Quota, Source, whole_seconds};
use crate::key::KeyRef;
use crate::ledger::{Keep, Ledger};
use crate::limiter::membership::{Membership, Place};

/// The shares of this gateway, for a bounded number of keys.
#[derive(Debug)]
pub(super) struct Fallback {
    shares: Ledger<Share>,
    membership: Arc<Membership>,
}

/// One request that the store does not decide.
#[derive(Clone, Copy, Debug)]
pub(super) struct Question<'a> {
    /// The bucket that will be told.
    pub(super) key: KeyRef<'a>,
    /// The whole limit.
    pub(super) limit: Limit,
    /// Buckets that the limit is split into.
    pub(super) shards: u8,
    /// Tokens the request takes.
    pub(super) cost: u32,
    /// Whole tokens that the bucket should hold, if that is known.
    pub(super) expected: Option<u32>,
    /// Milliseconds on this process's clock.
    pub(super) now: u64,
    /// Milliseconds that the bucket's node has been away, in total.
    pub(super) away_ms: u64,
}

/// What is left of one share.
#[derive(Debug)]
struct Share {
    /// Tokens left; below zero where a request was admitted early.
    tokens: f64,
    /// Tokens earned since it started, used or not.
    earned: f64,
    /// The most that it holds, early requests aside.
    full: f64,
    since: Since,
    /// Tokens admitted and not yet told.
    owed: u32,
    /// Buckets that the limit is split into.
    shards: u8,
}

/// Since when it has to be refilled.
#[derive(Clone, Copy, Debug)]
enum Since {
    /// The bucket's reply, in milliseconds on this process's clock.
    Reply(u64),
    /// The last decision, in milliseconds that the node had been away then.
    Decision(u64),
}

impl Fallback {
    pub(super) fn new(membership: Arc<Membership>, max_keys: usize) -> Self {
        Self { shares: Ledger::new(max_keys), membership }
    }

    /// Decides by the share.
    pub(super) fn decide(&self, question: &Question<'_>) -> Decision {
        let place = self.membership.place();
        let decide = |share: &mut Share| {
            share.refill(question, place);
            share.decide(question, place)
        };
        self.shares.with(question.key, question.now, || Share::new(question, place), decide)
    }

    /// Tokens that the bucket has to be told of, for a call that is about to be made: they come back by
    /// [`answered`](Self::answered) or [`lost`](Self::lost), or count as told.
    pub(super) fn take_owed(&self, key: KeyRef<'_>) -> u32 {
        self.with_known(key, |share| std::mem::take(&mut share.owed)).unwrap_or(0)
    }

    /// The bucket replied at `now` that it holds `tokens`. Of what was admitted since the call was made, `paid` were granted
    /// by it too, to requests that no longer waited.
    pub(super) fn answered(&self, key: KeyRef<'_>, now: u64, tokens: u32, paid: u32) {
        self.with_known(key, |share| {
            share.owed = share.owed.saturating_sub(paid);
            let whole = f64::from(tokens) * f64::from(share.shards);
            share.earned = self.membership.place().part(whole);
            share.tokens = share.earned - f64::from(share.owed);
            share.since = Since::Reply(now);
        });
    }

    /// A call that told of `owed` tokens brought no reply; they are told again.
    pub(super) fn lost(&self, key: KeyRef<'_>, owed: u32) {
        if owed > 0 {
            self.with_known(key, |share| share.owe(owed));
        }
    }

    /// Shares kept, and how many were forgotten for want of room though something was spent of them.
    pub(super) fn keys(&self) -> (usize, u64) {
        (self.shares.len(), self.shares.forgotten())
    }

    /// Without a look-up as long as the store has always answered.
    fn with_known<R>(&self, key: KeyRef<'_>, f: impl FnOnce(&mut Share) -> R) -> Option<R> {
        if self.shares.is_empty() { None } else { self.shares.find(key, f) }
    }
}

impl Share {
    fn new(question: &Question<'_>, place: Place) -> Self {
        let &Question { limit, shards, expected, away_ms, .. } = question;
        let whole = expected.map_or(limit.capacity(), |tokens| tokens.saturating_mul(shards.into()));
        let tokens = place.part(f64::from(whole.min(limit.capacity())));
        Self { tokens, earned: tokens, full: tokens, since: Since::Decision(away_ms), owed: 0, shards }
    }

    fn refill(&mut self, question: &Question<'_>, place: Place) {
        let &Question { limit, cost, now, away_ms, .. } = question;
        let millis = match self.since {
            Since::Reply(at) => now.saturating_sub(at),
            Since::Decision(at) => away_ms.saturating_sub(at),
        };
        let refilled = millis as f64 / 1000.0 * place.part(limit.refill_per_second());
        self.full = place.part(f64::from(limit.capacity()));
        self.earned += refilled;
        let requests_gone = ((self.earned + place.early(cost) - self.full) / f64::from(cost)).floor();
        self.tokens = (self.tokens + refilled).min(self.earned - requests_gone * f64::from(cost));
        self.since = Since::Decision(away_ms);
    }

    fn decide(&mut self, question: &Question<'_>, place: Place) -> Decision {
        let &Question { limit, cost, .. } = question;
        let mut left = self.tokens + place.early(cost);
        let missing = f64::from(cost) - left;
        let outcome = if cost > limit.capacity() {
            Outcome::Denied { retry_after: None }
        } else if missing > 0.0 {
            let wait_ms = rounded_up(missing * 1000.0 / place.part(limit.refill_per_second()));
            Outcome::Denied { retry_after: Some(whole_seconds(wait_ms)) }
        } else {
            self.tokens -= f64::from(cost);
            left -= f64::from(cost);
            self.owe(cost);
            Outcome::Allowed
        };
        let quota = Quota::new(limit.share(place.live(), cost), left.max(0.0) as u32);
        Decision { outcome, source: Source::Local, quota: Some(quota) }
    }

    /// Owes at most as much as the share holds when it is full: by the rest, the bucket has refilled.
    fn owe(&mut self, tokens: u32) {
        let most = rounded_up(self.full).min(Limit::MAX.into()) as u32;
        self.owed = self.owed.saturating_add(tokens).min(most.max(tokens));
    }
}

impl Keep for Share {
    fn loss(&self, _now: u64) -> f64 {
        f64::from(self.owed) + f64::max(0.0, 1.0 - self.tokens / self.full)
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
