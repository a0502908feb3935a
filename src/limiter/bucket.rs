//! The token bucket as pure arithmetic: no clock, no I/O. The same statements, in the same order, as
//! `scripts/redis/token_bucket.lua`; a property test holds the two together.

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

    /// Tokens: the burst.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Tokens per second.
    pub fn refill_per_second(&self) -> f64 {
        self.refill_per_second
    }
}
