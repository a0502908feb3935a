//! The scripts that run inside Redis, and their calls as commands.

use redis::{Cmd, Pipeline, Script};

use super::{ALIVE_FOR, Message};
use crate::bucket::Report;

const BUCKET: &str = include_str!("../../../scripts/redis/token_bucket.lua");
const HEARTBEAT: &str = include_str!("../../../scripts/redis/heartbeat.lua");
const TEXTS: [&str; 2] = [BUCKET, HEARTBEAT];

/// The scripts, by the hashes that Redis caches them under.
#[derive(Debug)]
pub(super) struct Scripts {
    bucket: String,
    heartbeat: String,
}

/// A call of one of them.
#[derive(Debug)]
pub(super) enum Command {
    /// `token_bucket.lua`
    Bucket { key: String, call: Message },
    /// `heartbeat.lua`
    Beat { key: String, id: String, leaves: bool },
}

/// How a command names its script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// By its hash, which Redis may not know.
    Hash,
    /// By its text, which works whatever is cached.
    Text,
}

impl Scripts {
    /// How many there are.
    pub(super) const COUNT: usize = TEXTS.len();

    pub(super) fn new() -> Self {
        let hash = |text| Script::new(text).get_hash().to_owned();
        Self { bucket: hash(BUCKET), heartbeat: hash(HEARTBEAT) }
    }

    /// Loads them into Redis's cache, where only `SCRIPT FLUSH` or a restart removes them.
    pub(super) fn load() -> Pipeline {
        let mut pipeline = Pipeline::new();
        for text in TEXTS {
            pipeline.cmd("SCRIPT").arg("LOAD").arg(text);
        }
        pipeline
    }

    /// The call as Redis reads it.
    pub(super) fn command(&self, command: &Command, by: By) -> Cmd {
        let (text, hash) = match command {
            Command::Bucket { .. } => (BUCKET, &self.bucket),
            Command::Beat { .. } => (HEARTBEAT, &self.heartbeat),
        };
        let mut to_redis = match by {
            By::Hash => redis::cmd("EVALSHA"),
            By::Text => redis::cmd("EVAL"),
        };
        match by {
            By::Hash => to_redis.arg(hash),
            By::Text => to_redis.arg(text),
        };
        match command {
            Command::Bucket { key, call } => bucket(&mut to_redis, key, call),
            Command::Beat { key, id, leaves } => {
                let expiry = ALIVE_FOR.as_millis() as u64;
                to_redis.arg(1).arg(key).arg(id).arg(expiry).arg(i32::from(*leaves));
            }
        }
        to_redis
    }
}

impl Command {
    /// The key in Redis.
    pub(super) fn key(&self) -> &str {
        let (Self::Bucket { key, .. } | Self::Beat { key, .. }) = self;
        key
    }
}

fn bucket(command: &mut Cmd, key: &str, call: &Message) {
    command.arg(1).arg(key).arg(call.limit.capacity()).arg(call.limit.refill_per_second()).arg(call.demand.len());
    for demand in &call.demand {
        command.arg(demand.cost).arg(demand.count);
    }
    // Most calls are for keys that are not leased: what they have nothing to say of need not be read.
    let Report { generation, used, held, back, owed } = call.report;
    if call.prefetch + used + held + back + owed > 0 {
        command.arg(call.prefetch).arg(generation).arg(used).arg(held).arg(back).arg(owed);
    }
}
