//! A connection to one node.

use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, Client, Cmd, IntoConnectionInfo, ProtocolVersion, PushInfo, PushKind, RedisResult};
use tokio::sync::mpsc;

use super::script::Scripts;
use super::{ABANDON, PIPELINES};

/// What a probe writes is gone after so many milliseconds.
const PROBE_LIVES_MS: u64 = 1;

/// Connects to the node at `url`.
///
/// # Errors
/// When it is not one of Redis.
pub(super) fn client(url: &str) -> RedisResult<Client> {
    let info = url.into_connection_info()?;
    // RESP3 tells of a broken connection at once; under RESP2 the next call would find out.
    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    let tcp = TcpSettings::default().set_nodelay(true).set_user_timeout(ABANDON);
    Client::open(info.set_redis_settings(settings).set_tcp_settings(tcp))
}

/// A connection, and what it tells of itself.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) commands: MultiplexedConnection,
    pushes: mpsc::UnboundedReceiver<PushInfo>,
}

impl Connection {
    /// Connects, and finds out whether this is a node that can be written to: a replica or one without memory is no
    /// better than none.
    pub(super) async fn open(client: &Client, probe_key: &str) -> RedisResult<Self> {
        let (sender, pushes) = mpsc::unbounded_channel();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(Some(ABANDON))
            .set_pipeline_buffer_size(PIPELINES * 2)
            .set_push_sender(sender);
        let mut commands = client.get_multiplexed_async_connection_with_config(&config).await?;
        let mut first = Scripts::load();
        first.add_command(probe(probe_key)).exec_async(&mut commands).await?;
        Ok(Self { commands, pushes })
    }

    /// Returns when the connection is broken.
    pub(super) async fn broken(&mut self) {
        while let Some(push) = self.pushes.recv().await {
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
