//! Where buckets live: [`redis`] (shared by all gateways) or [`memory`] (this process alone).

pub mod breaker;
pub mod memory;
pub mod redis;

use std::future::Future;

use crate::bucket::{Call, Reply};
use crate::key::KeyRef;

/// Holds buckets and books calls on them, each atomically.
pub trait Store {
    /// Books `call` on the bucket `key`, which starts full when it is new.
    ///
    /// # Errors
    /// When the store did not answer in time; whether the call was booked is then unknown, and it must not be repeated.
    fn call(&self, key: KeyRef<'_>, call: &Call<'_>) -> impl Future<Output = Result<Reply, StoreError>> + Send;
}

/// Why a store did not answer.
#[derive(Clone, Debug, thiserror::Error)]
#[error(transparent)]
pub struct StoreError(#[from] Kind);

#[derive(Clone, Debug, thiserror::Error)]
enum Kind {
    #[error("the store did not answer in time")]
    Timeout,
    #[error("more calls wait for the store than its queue holds")]
    Overloaded,
    #[error("the store is known to be away or to fail")]
    Away,
    #[error("the connection to the store broke with the call under way")]
    Lost,
    #[error("the store refused: {0}")]
    Refused(String),
    #[error("the store's reply cannot be read: {0}")]
    Garbled(String),
}

impl StoreError {
    /// It did not answer in time.
    pub fn is_timeout(&self) -> bool {
        matches!(self.0, Kind::Timeout)
    }

    /// The call was never sent: the store is known to be away or to fail, or too much waits for it.
    pub fn is_rejected(&self) -> bool {
        matches!(self.0, Kind::Overloaded | Kind::Away)
    }
}
