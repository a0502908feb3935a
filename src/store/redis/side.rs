//! Connections beside those of the drivers, for what no request waits for: it has neither part in their queues nor a say
//! in their breakers. Where keys are, it knows from them.

use std::collections::HashMap;
use std::sync::Weak;
use std::time::Duration;

use redis::{Pipeline, PushKind, Value};
use tokio::time::timeout;

use super::dial::{Dialer, Line};
use super::reply;
use super::router::Router;
use crate::config::Address;

/// The longest wait for the replies to a pipeline.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// Why a pipeline has no replies.
#[derive(Debug, thiserror::Error)]
pub enum SideError {
    /// Nothing was sent.
    #[error("{0}")]
    Unsent(String),
    /// Whether it was executed is not known.
    #[error("{0}")]
    Lost(String),
}

/// Knows where to connect to; connects when it is first used, to each node by itself.
#[derive(Debug)]
pub struct SideLine {
    router: Weak<Router>,
    dialer: Dialer,
    lines: HashMap<Address, Line>,
}

impl SideLine {
    pub(super) fn new(router: Weak<Router>, dialer: Dialer) -> Self {
        Self { router, dialer, lines: HashMap::new() }
    }

    /// The node that holds a key; `None` where it is not known, or known to be away or to fail.
    pub fn node(&self, key: &str) -> Option<Address> {
        self.router.upgrade()?.address_of(key)
    }

    /// Sends commands to a node, all of whose keys it holds. One reply each; an error of a single command is its reply.
    ///
    /// # Errors
    /// When there is no connection, or it breaks, or no reply comes in time.
    pub async fn send(&mut self, node: &Address, pipeline: &Pipeline) -> Result<Vec<Value>, SideError> {
        if self.lines.get_mut(node).is_some_and(is_broken) {
            self.lines.remove(node);
        }
        if !self.lines.contains_key(node) {
            self.forget_others();
            let line = self.dialer.dial(node).await.map_err(|error| SideError::Unsent(error.to_string()))?;
            self.lines.insert(node.clone(), line);
        }
        let Some(line) = self.lines.get_mut(node) else { return Err(SideError::Unsent("no connection".to_owned())) };
        let sent = timeout(ANSWER_TIMEOUT, line.link.send_packed_commands(pipeline, 0, pipeline.len())).await;
        let lost = match sent {
            Ok(Ok(replies)) => return Ok(replies),
            Ok(Err(error)) => format!("{node}: {}", reply::text(&error)),
            Err(_) => format!("{node}: no answer within {ANSWER_TIMEOUT:?}"),
        };
        self.lines.remove(node);
        Err(SideError::Lost(lost))
    }

    /// Closes connections to nodes that are no part of the store any more.
    fn forget_others(&mut self) {
        if let Some(router) = self.router.upgrade() {
            self.lines.retain(|node, _| router.routes().at(node).is_some());
        }
    }
}

/// Whether a connection broke since it was last used: what is sent on it would be lost.
fn is_broken(line: &mut Line) -> bool {
    std::iter::from_fn(|| line.pushes.try_recv().ok()).any(|push| push.kind == PushKind::Disconnection)
}
