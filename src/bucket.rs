//! The token bucket as pure arithmetic: no clock, no I/O. The same statements, in the same order, as
//! `scripts/redis/token_bucket.lua`; a property test holds the two together. The protocol of the leases (tokens that a
//! gateway may spend without asking) and why it never admits too much is in the README.

/// One year in seconds: the longest a bucket may take to fill, so that its time to live stays a sane number.
pub const LONGEST_FILL_SECONDS: f64 = 31_536_000.0;

/// Capacity and refill of a bucket, validated: capacity 1 … 2³¹−1 tokens, refill > 0 … 2³¹−1 tokens per second, and the
/// whole capacity refills within a year.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    capacity: u32,
    refill_per_second: f64,
}

/// Why two numbers are not a [`Limit`].
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum LimitError {
    /// Capacity out of range.
    #[error("capacity is {0}, allowed are integers from 1 to 2147483647")]
    Capacity(f64),
    /// Refill out of range.
    #[error("refill is {0} tokens per second, allowed is more than 0 up to 2147483647")]
    Refill(f64),
    /// Fills too slowly.
    #[error("a capacity of {0} refilled at {1} tokens per second takes longer than a year to fill")]
    FillTime(u32, f64),
}

impl Limit {
    /// The greatest capacity (tokens) and refill (tokens per second).
    pub const MAX: u32 = i32::MAX as u32;

    /// Checks the bounds.
    ///
    /// # Errors
    /// Names the first number that is out of its range.
    pub fn new(capacity: i64, refill_per_second: f64) -> Result<Self, LimitError> {
        let tokens = u32::try_from(capacity)
            .ok()
            .filter(|c| (1..=Self::MAX).contains(c))
            .ok_or(LimitError::Capacity(capacity as f64))?;
        if !(refill_per_second > 0.0 && refill_per_second <= f64::from(Self::MAX)) {
            return Err(LimitError::Refill(refill_per_second));
        }
        if f64::from(tokens) / refill_per_second > LONGEST_FILL_SECONDS {
            return Err(LimitError::FillTime(tokens, refill_per_second));
        }
        Ok(Self { capacity: tokens, refill_per_second })
    }

    /// One of `parts` equal shares, with a capacity of at least `least` tokens where the whole has them. Its refill is
    /// exactly one share, however slow.
    pub fn share(&self, parts: u32, least: u32) -> Self {
        Self {
            capacity: (self.capacity / parts.max(1)).max(least.clamp(1, self.capacity)),
            refill_per_second: self.refill_per_second / f64::from(parts.max(1)),
        }
    }

    /// Sub-bucket `index` of `parts`: their capacities add up to exactly this one's, and so do their refills.
    pub fn part(&self, parts: u8, index: u8) -> Self {
        let (parts, index) = (u32::from(parts.max(1)), u32::from(index));
        Self {
            capacity: (self.capacity / parts + u32::from(index < self.capacity % parts)).max(1),
            refill_per_second: self.refill_per_second / f64::from(parts),
        }
    }

    /// Tokens: the burst.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Tokens per second.
    pub fn refill_per_second(&self) -> f64 {
        self.refill_per_second
    }
}

/// Length of a lease generation in milliseconds on the store's clock. A lease ends two boundaries after it was granted
/// or renewed, at the latest.
pub const GENERATION_MS: u64 = 2_000;

/// A request for which leases leave no room (it costs more than the capacity less what is out) would starve beside a
/// steady stream of cheap ones: what is leased does not refill. So nothing is leased for this long (milliseconds) around
/// the time it may fit, …
const ROOM_MS: u64 = 2_000;
/// … which ends so long after that time, since clients are told whole seconds …
const LATE_MS: u64 = 1_500;
/// … and is this much later than the refill says: until then gateways have spent what they hold or given it back.
const BACK_MS: u64 = 250;

/// One token bucket and the leases that are out of it. It holds `tokens + lease_a + lease_b ≤ capacity`, and the leases
/// cover every token that any gateway may still spend; so no window of length t admits more than
/// `capacity + refill · t`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bucket {
    tokens: f64,
    /// Milliseconds on the store's clock.
    ts: u64,
    /// Tokens leased or renewed in the generation of `ts`.
    lease_a: u32,
    /// Tokens leased or renewed in the generation before.
    lease_b: u32,
    /// Nothing is leased in the [`ROOM_MS`] before this, on the store's clock; 0: no request waits for room.
    room_until: u64,
}

/// Requests of one cost that wait side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Tokens each of them takes, ≥ 1.
    pub cost: u32,
    /// How many.
    pub count: u32,
}

/// What a gateway tells of its stash, in tokens. The default, all zero, reports nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The generation that the bucket counts the stash in.
    pub generation: u64,
    /// Spent since the last report.
    pub used: u32,
    /// Still in the stash; renewed by this call.
    pub held: u32,
    /// Returned to the bucket.
    pub back: u32,
    /// Admitted without the bucket while it did not answer; taken off it.
    pub owed: u32,
}

/// One call of a gateway for one key.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The limit that applies now.
    pub limit: Limit,
    /// The requests that wait, in order.
    pub demand: &'a [Demand],
    /// Tokens wanted ahead.
    pub prefetch: u32,
    /// The gateway's stash.
    pub report: Report,
}

/// The bucket's answer.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Requests granted: the longest prefix of the demand that fits.
    pub granted: u32,
    /// Tokens leased ahead, counted in `generation`.
    pub prefetched: u32,
    /// The generation of this call.
    pub generation: u64,
    /// `false`: the stash that was reported has expired, or the bucket is younger; it must not be spent.
    pub stash_known: bool,
    /// Whole tokens left in the bucket.
    pub tokens: u32,
    /// Milliseconds until the first refused request fits (or the next token, if none was refused); `None`: it costs
    /// more than the capacity and never will.
    pub wait_ms: Option<u64>,
}

impl Bucket {
    /// A full bucket. `now` is milliseconds on the store's clock.
    pub fn full(limit: Limit, now: u64) -> Self {
        Self { tokens: f64::from(limit.capacity), ts: now, lease_a: 0, lease_b: 0, room_until: 0 }
    }

    /// Books one call at `now`, milliseconds on the store's clock.
    #[inline(always)] // For one request without a report most of this is known not to be needed.
    pub fn call(&mut self, now: u64, call: &Call<'_>) -> Reply {
        let Limit { capacity, refill_per_second: rate } = call.limit;
        if self.ts > now + GENERATION_MS {
            // The clock stepped back: start its time again, keep the tokens.
            (self.ts, self.lease_a, self.lease_b, self.room_until) = (now, 0, 0, 0);
        }
        let now = now.max(self.ts);
        let generation = self.refill_over_generations(now, call.limit);
        let stash_known = self.book(call.report, generation, capacity);
        self.tokens = (self.tokens - f64::from(call.report.owed)).max(0.0);

        let (mut granted, mut refused) = (0, None);
        for &Demand { cost, count } in call.demand {
            // A cast cuts off what is no whole request.
            let fit = ((self.tokens / f64::from(cost)) as u32).min(count);
            granted += fit;
            self.tokens = (self.tokens - f64::from(fit) * f64::from(cost)).max(0.0);
            if fit < count {
                refused = Some(cost);
                break;
            }
        }
        if now >= self.room_until {
            self.room_until = 0;
        }
        let makes_room = self.room_until > 0 && self.room_until - now <= ROOM_MS;
        let mut ahead = 0;
        if refused.is_none() && !makes_room {
            let may_be_out = (capacity / 2).saturating_sub(self.lease_a + self.lease_b);
            ahead = call.prefetch.min(self.tokens as u32).min(may_be_out);
            self.tokens -= f64::from(ahead);
            self.lease_a += ahead;
        }

        let need = refused.unwrap_or(1);
        let missing = f64::from(need) - self.tokens;
        let mut wait = if missing > 0.0 { rounded_up(missing * 1000.0 / rate) } else { 0 };
        if refused.is_some() && need <= capacity && need > capacity.saturating_sub(self.lease_a + self.lease_b) {
            wait += BACK_MS;
            self.room_until = now + wait + LATE_MS;
        }
        Reply {
            granted,
            prefetched: ahead,
            generation,
            stash_known,
            tokens: self.tokens as u32,
            wait_ms: (need <= capacity).then_some(wait),
        }
    }

    /// Refills up to each generation boundary since `ts` under the leases of before it (two boundaries end every lease;
    /// this is how those of dead gateways end), then up to `now`. Comes before the report: tokens spent since the last
    /// call count as out until now. Returns the generation of `now`.
    #[inline]
    fn refill_over_generations(&mut self, now: u64, limit: Limit) -> u64 {
        let generation = now / GENERATION_MS;
        let mut next = self.ts / GENERATION_MS + 1;
        while next <= generation && self.lease_a + self.lease_b > 0 {
            self.refill(next * GENERATION_MS, limit);
            (self.lease_a, self.lease_b) = (0, self.lease_a);
            next += 1;
        }
        self.refill(now, limit);
        generation
    }

    #[inline]
    fn refill(&mut self, moment: u64, limit: Limit) {
        let ceiling = f64::from(limit.capacity) - f64::from(self.lease_a + self.lease_b);
        let refilled = self.tokens + (moment - self.ts) as f64 * limit.refill_per_second / 1000.0;
        self.tokens = refilled.min(ceiling.max(0.0));
        self.ts = moment;
    }

    /// Takes what is reported off the slot of its generation and what is given back into the bucket. Returns whether
    /// the stash is known.
    #[inline]
    fn book(&mut self, report: Report, generation: u64, capacity: u32) -> bool {
        let out = report.used + report.held + report.back;
        if out == 0 {
            return true;
        }
        let slot = match generation.checked_sub(report.generation) {
            Some(0) => &mut self.lease_a,
            Some(1) => &mut self.lease_b,
            _ => return false,
        };
        let Some(rest) = slot.checked_sub(out) else { return false };
        *slot = rest;
        let ceiling = f64::from(capacity) - f64::from(self.lease_a + self.lease_b) - f64::from(report.held);
        self.tokens = (self.tokens + f64::from(report.back)).min(ceiling.max(0.0));
        self.lease_a += report.held;
        true
    }

    /// Tokens in the bucket, as of its last call.
    pub fn tokens(&self) -> f64 {
        self.tokens
    }

    /// The share of the capacity that is spent or leased at `now`: 0 when forgetting this bucket would change nothing.
    pub fn used_share(&self, now: u64, limit: Limit) -> f64 {
        let mut later = *self;
        later.refill_over_generations(now.max(self.ts), limit);
        1.0 - later.tokens / f64::from(limit.capacity)
    }
}

/// As [`f64::ceil`] of a positive number, which is a call into a library on processors as old as the build supports.
pub(crate) fn rounded_up(number: f64) -> u64 {
    let whole = number as u64;
    whole + u64::from((whole as f64) < number)
}

#[cfg(test)]
mod tests;
