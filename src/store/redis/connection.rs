//! A connection to one node.

use redis::aio::MultiplexedConnection;
use redis::{Cmd, PushKind, RedisError, ServerError, Value};

use super::dial::{DialError, Dialer, Line};
use super::reply::{self, Outcome};
use super::script::Scripts;
use crate::config::Address;

/// What a probe writes is gone after so many milliseconds.
const PROBE_LIVES_MS: u64 = 1;

/// A connection, and what it tells of itself.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) commands: MultiplexedConnection,
    line: Line,
}

/// Why there is none.
#[derive(Debug, thiserror::Error)]
pub(super) enum OpenError {
    #[error(transparent)]
    Dial(#[from] DialError),
    #[error("{}", reply::text(.0))]
    Broken(#[from] RedisError),
    #[error("the server refused: {0}")]
    Refused(ServerError),
    #[error("the server is no master")]
    NoMaster,
}

impl Connection {
    /// Connects, and finds out whether this is a node that can be written to: a replica or one without memory is no
    /// better than none.
    pub(super) async fn open(dialer: &Dialer, address: &Address, probe_key: &str) -> Result<Self, OpenError> {
        let line = dialer.dial(address).await?;
        let mut commands = line.link.clone();
        let mut first = Scripts::load();
        first.cmd("ROLE").add_command(probe(probe_key));
        let replies = commands.send_packed_commands(&first, 0, first.len()).await?;
        let mut replies = replies.into_iter();
        for reply in replies.by_ref().take(Scripts::COUNT) {
            if let Value::ServerError(error) = reply {
                return Err(OpenError::Refused(error));
            }
        }
        // A user who may not ask for the role gets an error, which says nothing of it.
        if let Some(Value::Array(role)) = replies.next()
            && !matches!(role.first(), Some(Value::BulkString(role)) if role == b"master")
        {
            return Err(OpenError::NoMaster);
        }
        match replies.next() {
            Some(Value::ServerError(error)) if !is_elsewhere(&error) => Err(OpenError::Refused(error)),
            _ => Ok(Self { commands, line }),
        }
    }

    /// Returns when the connection is broken.
    pub(super) async fn broken(&mut self) {
        while let Some(push) = self.line.pushes.recv().await {
            if push.kind == PushKind::Disconnection {
                return;
            }
        }
    }
}

/// A harmless write: it fails on a node that is read-only, out of memory, loading, busy or short of replicas, as calls
/// would.
pub(super) fn probe(key: &str) -> Cmd {
    let mut command = redis::cmd("SET");
    command.arg(key).arg(1).arg("PX").arg(PROBE_LIVES_MS);
    command
}

/// Whether the slot of the probe's key has moved: that says nothing against the node.
pub(super) fn is_elsewhere(error: &ServerError) -> bool {
    matches!(reply::refusal(error), Outcome::Elsewhere(_))
}
