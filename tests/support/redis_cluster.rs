//! A Redis Cluster of the test's own, on free ports: masters, with or without a replica each.

use std::time::Duration;

use redis::aio::MultiplexedConnection;

use super::{PrivateRedis, connect, eventually, free_address};

/// Slots of every cluster.
const SLOTS: u16 = 16_384;

/// Killed when dropped.
pub(crate) struct RedisCluster {
    /// The first ones are the masters, each with an equal part of the slots; then a replica of each, if there are any.
    pub(crate) nodes: Vec<PrivateRedis>,
    masters: usize,
}

impl RedisCluster {
    /// A cluster of masters that serves every slot.
    pub(crate) async fn start(masters: usize) -> Self {
        Self::start_with(masters, false, None).await
    }

    /// The same where each master may have a replica, and all ask for a password.
    pub(crate) async fn start_with(masters: usize, with_replicas: bool, password: Option<&str>) -> Self {
        let count = if with_replicas { masters * 2 } else { masters };
        let mut nodes = Vec::new();
        for _ in 0..count {
            let mut node = Self::node(password);
            node.restart().await;
            nodes.push(node);
        }
        let cluster = Self { nodes, masters };
        cluster.join().await;
        cluster.replicate().await;
        cluster.well().await;
        cluster
    }

    fn node(password: Option<&str>) -> PrivateRedis {
        let bus = free_address().port().to_string();
        // A node that does not answer for so many milliseconds is down. Keys of other nodes go on being served.
        let node = PrivateRedis::absent().with(&[
            "--cluster-enabled",
            "yes",
            "--cluster-port",
            &bus,
            "--cluster-node-timeout",
            "1500",
            "--cluster-require-full-coverage",
            "no",
            "--cluster-replica-validity-factor",
            "0",
            "--repl-diskless-sync-delay",
            "0",
        ]);
        match password {
            Some(password) => node.with(&["--requirepass", password, "--masterauth", password]),
            None => node,
        }
    }

    async fn join(&self) {
        for (index, node) in self.nodes.iter().enumerate() {
            let mut connection = connect(&node.url()).await;
            cluster(&mut connection, &["SET-CONFIG-EPOCH", &(index + 1).to_string()]).await;
            if index < self.masters {
                let (first, last) = self.slots(index);
                let slots: Vec<String> = (first..=last).map(|slot| slot.to_string()).collect();
                let mut command = redis::cmd("CLUSTER");
                command.arg("ADDSLOTS").arg(slots).exec_async(&mut connection).await.unwrap();
            }
            let first = &self.nodes[0];
            let port = first.address.port().to_string();
            cluster(&mut connection, &["MEET", "127.0.0.1", &port, first.option("--cluster-port").unwrap()]).await;
        }
        self.everywhere("everybody knows everybody", |info| {
            info.contains(&format!("cluster_known_nodes:{}\r", self.nodes.len()))
        })
        .await;
    }

    async fn replicate(&self) {
        for (index, node) in self.nodes.iter().enumerate().skip(self.masters) {
            let id = self.id(index - self.masters).await;
            let connection = connect(&node.url()).await;
            eventually("the replica has heard of its master", Duration::from_secs(10), || {
                let (mut connection, id) = (connection.clone(), id.clone());
                async move { redis::cmd("CLUSTER").arg("REPLICATE").arg(id).exec_async(&mut connection).await.ok() }
            })
            .await;
            eventually("the replica follows its master", Duration::from_secs(10), || {
                let mut connection = connection.clone();
                async move {
                    let info: String = redis::cmd("INFO").arg("replication").query_async(&mut connection).await.ok()?;
                    info.contains("master_link_status:up").then_some(())
                }
            })
            .await;
        }
    }

    async fn well(&self) {
        self.everywhere("every slot is served", |info| {
            info.contains("cluster_state:ok") && info.contains(&format!("cluster_slots_ok:{SLOTS}\r"))
        })
        .await;
    }

    async fn everywhere(&self, what: &str, is: impl Fn(&str) -> bool) {
        for node in &self.nodes {
            let connection = connect(&node.url()).await;
            eventually(what, Duration::from_secs(15), || {
                let mut connection = connection.clone();
                let is = &is;
                async move { is(&cluster(&mut connection, &["INFO"]).await).then_some(()) }
            })
            .await;
        }
    }

    /// The URL of each node.
    pub(crate) fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(PrivateRedis::url).collect()
    }

    /// The slots that a master starts with, both ends included.
    pub(crate) fn slots(&self, master: usize) -> (u16, u16) {
        let bound = |n: usize| (usize::from(SLOTS) * n / self.masters) as u16;
        (bound(master), bound(master + 1) - 1)
    }

    /// The slot of a key.
    pub(crate) async fn slot(&self, key: &str) -> u16 {
        let mut connection = connect(&self.nodes[0].url()).await;
        redis::cmd("CLUSTER").arg("KEYSLOT").arg(key).query_async(&mut connection).await.unwrap()
    }

    /// The master that holds a key's slot at the start.
    pub(crate) async fn master_of(&self, key: &str) -> usize {
        let slot = self.slot(key).await;
        (0..self.masters).find(|&master| slot <= self.slots(master).1).unwrap()
    }

    /// Waits until a replica is a master.
    pub(crate) async fn promoted(&self, node: usize) {
        let connection = connect(&self.nodes[node].url()).await;
        eventually("the replica is promoted", Duration::from_secs(15), || {
            let mut connection = connection.clone();
            async move {
                let info: String = redis::cmd("INFO").arg("replication").query_async(&mut connection).await.ok()?;
                info.contains("role:master").then_some(())
            }
        })
        .await;
    }

    async fn id(&self, node: usize) -> String {
        cluster(&mut connect(&self.nodes[node].url()).await, &["MYID"]).await
    }

    /// Moves a slot with all its keys, as a resharding does: a key at a time, while both nodes go on serving.
    pub(crate) async fn move_slot(&self, slot: u16, from: usize, to: usize, between: Duration) {
        let number = slot.to_string();
        let (from_id, to_id) = (self.id(from).await, self.id(to).await);
        let mut source = connect(&self.nodes[from].url()).await;
        let mut target = connect(&self.nodes[to].url()).await;
        cluster(&mut target, &["SETSLOT", &number, "IMPORTING", &from_id]).await;
        cluster(&mut source, &["SETSLOT", &number, "MIGRATING", &to_id]).await;
        tokio::time::sleep(between).await;
        loop {
            let mut command = redis::cmd("CLUSTER");
            let keys: Vec<String> =
                command.arg("GETKEYSINSLOT").arg(slot).arg(1).query_async(&mut source).await.unwrap();
            let Some(key) = keys.first() else { break };
            let address = self.nodes[to].address;
            let mut migrate = redis::cmd("MIGRATE");
            migrate.arg(address.ip().to_string()).arg(address.port()).arg(key).arg(0).arg(2000);
            let moved: String = migrate.query_async(&mut source).await.unwrap();
            assert!(moved == "OK" || moved == "NOKEY", "{moved}");
            tokio::time::sleep(between).await;
        }
        for node in [&mut target, &mut source] {
            cluster(node, &["SETSLOT", &number, "NODE", &to_id]).await;
        }
    }
}

async fn cluster(connection: &mut MultiplexedConnection, arguments: &[&str]) -> String {
    redis::cmd("CLUSTER").arg(arguments).query_async(connection).await.unwrap()
}
