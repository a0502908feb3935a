//! Room for connections. A process out of descriptors can neither take clients nor reach upstreams and the store, for
//! those it has already taken neither; so clients get at most half of them, the other half is for their upstreams.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use pingora::listeners::PreTlsProcess;
use pingora::protocols::UniqueID;
use pingora::protocols::l4::stream::Stream as PlainStream;
use pingora::{Error, ErrorType};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::metrics;
use crate::telemetry::Seldom;

/// The system's own default for processes without a limit.
const UNLIMITED: u64 = 1 << 20;

/// What a plain connection gets that there is no room for.
const REFUSAL: &str = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/problem+json\r\n\
    Content-Length: 117\r\nCache-Control: no-store\r\nRetry-After: 1\r\nConnection: close\r\n\r\n\
    {\"type\":\"about:blank\",\"title\":\"Service Unavailable\",\"status\":503,\
    \"detail\":\"the gateway has no room for a connection\"}";

/// How often the log is told of refused connections, at most.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// Descriptors are numbered from the lowest that is free: the number of a new one says that at least so many are open.
/// No count is kept that could be wrong, and handshakes, upstreams and files are all in it.
#[derive(Clone, Debug)]
pub(super) struct Room {
    first_refused: i32,
    told: Arc<Seldom>,
}

impl Room {
    /// Raises the limit of this process on descriptors as far as it may, and divides what it then is.
    pub(super) fn raise() -> Self {
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        let descriptors = match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
            Ok(()) => maximum,
            Err(error) => {
                tracing::warn!(%error, "the limit on descriptors cannot be raised");
                current
            }
        };
        let half = descriptors.unwrap_or(UNLIMITED) / 2;
        Self { first_refused: i32::try_from(half).unwrap_or(i32::MAX), told: Arc::new(Seldom::new(TELL_EVERY)) }
    }

    /// Whether a new connection may stay; a refusal is counted, and told now and then.
    pub(super) fn admits(&self, connection: &PlainStream) -> bool {
        if connection.id() < self.first_refused {
            return true;
        }
        metrics::CONNECTIONS_REFUSED.inc();
        if let Some(refused) = self.told.tell() {
            tracing::error!(
                refused,
                "client connections were refused: more than {} descriptors are open, half of the limit (LimitNOFILE)",
                self.first_refused
            );
        }
        false
    }
}

/// Before a handshake, which costs more than any answer.
#[async_trait]
impl PreTlsProcess for Room {
    async fn process(&self, connection: &mut PlainStream) -> pingora::Result<()> {
        match self.admits(connection) {
            true => Ok(()),
            false => Error::e_explain(ErrorType::AcceptError, "no room for a connection"),
        }
    }
}

/// Says so, without waiting for anything: who is refused must not hold a descriptor.
pub(super) async fn refuse(connection: &mut PlainStream) {
    let _ = connection.write_all(REFUSAL.as_bytes()).await;
    let _ = connection.flush().await;
    // Closing while bytes lie unread makes the kernel send a reset, which can take the answer with it.
    let _ = connection.read(&mut [0; 4096]).now_or_never();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_refusal_has_the_length_that_it_says() {
        let (head, body) = REFUSAL.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())), "{}", body.len());
        assert_eq!(serde_json::from_str::<serde_json::Value>(body).unwrap()["status"], 503);
    }
}
