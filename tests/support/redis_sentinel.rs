//! A master, its replica and three sentinels of the test's own, on free ports.

use std::collections::HashMap;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::redis_server::server_program;
use super::{PrivateRedis, eventually, free_address};

const SENTINELS: usize = 3;

/// Killed when dropped.
pub(crate) struct RedisSentinel {
    /// Master and replica, as they start.
    pub(crate) servers: [PrivateRedis; 2],
    sentinels: Vec<Sentinel>,
    password: Option<String>,
}

struct Sentinel {
    child: Child,
    port: u16,
    _dir: tempfile::TempDir,
}

impl RedisSentinel {
    /// The name under which the sentinels watch the master.
    pub(crate) const MASTER: &str = "main";

    /// All of them know each other. With a password, master and replica ask for it, and so do the sentinels, for
    /// another: the same backwards.
    pub(crate) async fn start(password: Option<&str>) -> Self {
        let mut options = vec!["--repl-diskless-sync-delay", "0"];
        if let Some(password) = password {
            options.extend(["--requirepass", password, "--masterauth", password]);
        }
        let mut servers = [PrivateRedis::absent().with(&options), PrivateRedis::absent().with(&options)];
        let port = servers[0].address.port().to_string();
        servers[1] = PrivateRedis::absent().with(&options).with(&["--replicaof", &format!("127.0.0.1 {port}")]);
        for server in &mut servers {
            server.spawn();
        }
        let mut this = Self { servers, sentinels: Vec::new(), password: password.map(str::to_owned) };
        this.link_is_up().await;
        this.sentinels = (0..SENTINELS).map(|_| this.sentinel()).collect();
        this.sentinels_know_each_other().await;
        this
    }

    fn sentinel(&self) -> Sentinel {
        let (dir, port) = (tempfile::TempDir::new().unwrap(), free_address().port());
        let file = dir.path().join("sentinel.conf");
        let (name, master) = (Self::MASTER, self.servers[0].address.port());
        let mut text = format!(
            "port {port}\nbind 127.0.0.1\ndir {}\nsentinel monitor {name} 127.0.0.1 {master} 2\n\
             sentinel down-after-milliseconds {name} 1000\nsentinel failover-timeout {name} 5000\n",
            dir.path().display()
        );
        if let Some(password) = &self.password {
            let own = Self::sentinel_password(password);
            text += &format!("requirepass {own}\nsentinel sentinel-pass {own}\nsentinel auth-pass {name} {password}\n");
        }
        std::fs::write(&file, text).unwrap();
        let child = Command::new(server_program())
            .arg(&file)
            .arg("--sentinel")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("redis-server is not installed: run through scripts/services.sh");
        Sentinel { child, port, _dir: dir }
    }

    /// What the sentinels ask for where the servers ask for this.
    pub(crate) fn sentinel_password(password: &str) -> String {
        password.chars().rev().collect()
    }

    async fn link_is_up(&self) {
        let url = self.servers[1].url();
        eventually("the replica follows its master", Duration::from_secs(10), || async {
            let client = redis::Client::open(url.as_str()).ok()?;
            let mut connection = client.get_multiplexed_async_connection().await.ok()?;
            let info: String = redis::cmd("INFO").arg("replication").query_async(&mut connection).await.ok()?;
            info.contains("master_link_status:up").then_some(())
        })
        .await;
    }

    async fn sentinels_know_each_other(&self) {
        for sentinel in 0..SENTINELS {
            let url = self.sentinel_url(sentinel);
            eventually("the sentinels know each other and the replica", Duration::from_secs(15), || async {
                let client = redis::Client::open(url.as_str()).ok()?;
                let mut connection = client.get_multiplexed_async_connection().await.ok()?;
                let mut command = redis::cmd("SENTINEL");
                let asked = command.arg("MASTER").arg(Self::MASTER);
                let fields: HashMap<String, String> = asked.query_async(&mut connection).await.ok()?;
                let has = |name: &str, value: usize| fields.get(name) == Some(&value.to_string());
                (has("num-other-sentinels", SENTINELS - 1) && has("num-slaves", 1)).then_some(())
            })
            .await;
        }
    }

    /// The URLs of the sentinels with what the servers ask for, as the configuration wants them.
    pub(crate) fn urls(&self) -> Vec<String> {
        self.sentinels.iter().map(|sentinel| url(self.password.as_deref(), sentinel.port)).collect()
    }

    /// The URL of a sentinel, its own password included.
    pub(crate) fn sentinel_url(&self, sentinel: usize) -> String {
        let own = self.password.as_deref().map(Self::sentinel_password);
        url(own.as_deref(), self.sentinels[sentinel].port)
    }

    /// Waits until the second server is the master.
    pub(crate) async fn promoted(&self) {
        let url = self.servers[1].url();
        // Sentinels close the connections of a server whose role they change.
        eventually("the replica is promoted", Duration::from_secs(20), || async {
            let client = redis::Client::open(url.as_str()).ok()?;
            let mut connection = client.get_multiplexed_async_connection().await.ok()?;
            let info: String = redis::cmd("INFO").arg("replication").query_async(&mut connection).await.ok()?;
            info.contains("role:master").then_some(())
        })
        .await;
    }
}

fn url(password: Option<&str>, port: u16) -> String {
    match password {
        Some(password) => format!("redis://:{password}@127.0.0.1:{port}"),
        None => format!("redis://127.0.0.1:{port}"),
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
