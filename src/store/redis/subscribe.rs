//! Subscriptions to a channel of the store's servers, each on a connection of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use redis::{PushInfo, PushKind, Value};
use tokio::sync::mpsc;

use super::dial::{Dialer, Line};
use super::sentinel::master_of;
use super::{SetupError, reply};
use crate::config::{self, Address, Topology};

/// Messages that wait for their reader at once. Those beyond are lost, and counted.
const QUEUE: usize = 256;

/// Knows how to subscribe.
#[derive(Debug)]
pub(crate) struct Subscriptions {
    dialer: Dialer,
    topology: Topology,
    /// What leads to the sentinels.
    sentinel_dialer: Option<Dialer>,
    /// No longer message is kept.
    longest: usize,
}

/// A subscription; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Subscription {
    line: Line<mpsc::Receiver<Vec<u8>>>,
    lost: Arc<AtomicU64>,
    address: Address,
}

impl Subscriptions {
    /// Of a longer message than `longest` bytes only that much and one byte more is kept, so that it can be told.
    ///
    /// # Errors
    /// When the certificates for TLS cannot be used.
    pub(crate) fn new(server: &config::Redis, longest: usize) -> Result<Self, SetupError> {
        let sentinel_dialer = match &server.topology {
            Topology::Sentinel { login, .. } => Some(Dialer::new(login, server.tls.as_ref())?),
            Topology::Single(_) | Topology::Cluster(_) => None,
        };
        let dialer = Dialer::new(&server.login, server.tls.as_ref())?;
        Ok(Self { dialer, topology: server.topology.clone(), sentinel_dialer, longest })
    }

    /// Subscribes at the server, the master, or any node of the cluster; what is the matter if there is none.
    pub(crate) async fn subscribe(&self, channel: &str) -> Result<Subscription, String> {
        match (&self.topology, &self.sentinel_dialer) {
            (Topology::Sentinel { sentinels, master_name, .. }, Some(dialer)) => {
                let mut why = String::new();
                for sentinel in sentinels {
                    match master_of(dialer, sentinel, master_name).await {
                        Ok(master) => return self.subscribe_at(&master, channel).await,
                        Err(error) => why = error,
                    }
                }
                Err(format!("no sentinel names the master: {why}"))
            }
            (Topology::Cluster(nodes) | Topology::Sentinel { sentinels: nodes, .. }, _) => {
                // A cluster carries messages to all of its nodes.
                let mut why = String::new();
                for node in nodes {
                    match self.subscribe_at(node, channel).await {
                        Ok(subscription) => return Ok(subscription),
                        Err(error) => why = error,
                    }
                }
                Err(why)
            }
            (Topology::Single(address), _) => self.subscribe_at(address, channel).await,
        }
    }

    async fn subscribe_at(&self, address: &Address, channel: &str) -> Result<Subscription, String> {
        let (sender, messages) = mpsc::channel(QUEUE);
        let lost = Arc::new(AtomicU64::new(0));
        let (counter, longest) = (Arc::clone(&lost), self.longest);
        let pushed = move |push: PushInfo| {
            if let Some(message) = message(push, longest)
                && sender.try_send(message).is_err()
            {
                counter.fetch_add(1, Ordering::Relaxed);
            }
            Ok::<(), ()>(())
        };
        let mut line = self.dialer.dial_with(address, pushed, messages).await.map_err(|error| error.to_string())?;
        let subscribed = redis::cmd("SUBSCRIBE").arg(channel).exec_async(&mut line.link).await;
        subscribed.map_err(|error| format!("{address}: {}", reply::text(&error)))?;
        Ok(Subscription { line, lost, address: address.clone() })
    }
}

fn message(PushInfo { kind, mut data }: PushInfo, longest: usize) -> Option<Vec<u8>> {
    match (kind, data.pop()) {
        (PushKind::Message, Some(Value::BulkString(mut bytes))) => {
            if bytes.len() > longest {
                bytes.truncate(longest + 1);
                bytes.shrink_to_fit();
            }
            Some(bytes)
        }
        _ => None,
    }
}

impl Subscription {
    /// The server it is at.
    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// The next message; `None` when the connection is broken.
    pub(crate) async fn next(&mut self) -> Option<Vec<u8>> {
        self.line.pushes.recv().await
    }

    /// So many messages found no room since this was asked last.
    pub(crate) fn take_lost(&self) -> u64 {
        self.lost.swap(0, Ordering::Relaxed)
    }

    /// A question that the server answers while the connection stands, about a second being its longest time.
    pub(crate) fn ping(&self) -> impl Future<Output = Result<(), String>> + Send + use<> {
        let (mut link, address) = (self.line.link.clone(), self.address.clone());
        async move {
            let answer = redis::cmd("PING").exec_async(&mut link).await;
            answer.map_err(|error| format!("{address}: {}", reply::text(&error)))
        }
    }
}
