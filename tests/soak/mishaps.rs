//! What happens to Redis, drawn at random.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use tokio::time::sleep;

use crate::support::{Fault, FaultProxy, Plan, PrivateRedis, connect, free_address};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Mishap {
    /// SIGSTOP for a while.
    Hangs,
    /// SIGKILL, and after a while an empty server on the same address.
    Dies,
    /// It turns into a replica of a master that is away, and back.
    Demoted,
    /// `CLIENT KILL TYPE normal`.
    CutsClients,
    /// `SCRIPT FLUSH`, ten times a second.
    LosesScripts,
    /// Every reply is later than requests wait.
    Slow,
    /// Replies are lost after the calls were executed, connections reset.
    LosesReplies,
    /// Everything is swallowed, in both directions, without a reset.
    Swallowed,
}

use Mishap::*;

const ALL: [Mishap; 8] = [Hangs, Dies, Demoted, CutsClients, LosesScripts, Slow, LosesReplies, Swallowed];

/// What has happened.
#[derive(Debug)]
pub(crate) struct Mishaps {
    random: SmallRng,
    happened: BTreeMap<Mishap, u32>,
}

impl Mishaps {
    pub(crate) fn new(seed: u64) -> Self {
        Self { random: SmallRng::seed_from_u64(seed), happened: BTreeMap::new() }
    }

    /// How often Redis came back empty.
    pub(crate) fn lost_memory(&self) -> u32 {
        self.happened.get(&Dies).copied().unwrap_or(0)
    }

    /// One after the other for so long; afterwards everything is well.
    pub(crate) async fn run(&mut self, redis: &mut PrivateRedis, proxy: &FaultProxy, duration: Duration) {
        let end = Instant::now() + duration;
        while Instant::now() < end {
            self.pause(500..3000).await;
            let mishap = *ALL.choose(&mut self.random).unwrap();
            *self.happened.entry(mishap).or_default() += 1;
            self.strike(mishap, redis, proxy).await;
        }
    }

    async fn pause(&mut self, milliseconds: std::ops::Range<u64>) {
        sleep(Duration::from_millis(self.random.random_range(milliseconds))).await;
    }

    async fn strike(&mut self, mishap: Mishap, redis: &mut PrivateRedis, proxy: &FaultProxy) {
        match mishap {
            Hangs => {
                redis.signal("STOP");
                self.pause(200..4000).await;
                redis.signal("CONT");
            }
            Dies => {
                redis.kill();
                self.pause(0..4000).await;
                redis.restart().await;
            }
            Demoted => {
                let nobody = free_address();
                tell(redis, &["REPLICAOF", &nobody.ip().to_string(), &nobody.port().to_string()]).await;
                self.pause(200..3000).await;
                tell(redis, &["REPLICAOF", "NO", "ONE"]).await;
            }
            CutsClients => tell(redis, &["CLIENT", "KILL", "TYPE", "normal"]).await,
            LosesScripts => {
                for _ in 0..20 {
                    tell(redis, &["SCRIPT", "FLUSH"]).await;
                    sleep(Duration::from_millis(100)).await;
                }
            }
            Slow => self.by_plan(proxy, 1..2, &[Fault::LateReply(Duration::from_millis(60))]).await,
            LosesReplies => self.by_plan(proxy, 50..500, &[Fault::LoseReply, Fault::HangUp, Fault::Reset]).await,
            Swallowed => {
                proxy.swallow(true);
                self.pause(200..4000).await;
                proxy.swallow(false);
            }
        }
    }

    async fn by_plan(&mut self, proxy: &FaultProxy, every: std::ops::Range<u64>, faults: &[Fault]) {
        let every = Duration::from_millis(every.start)..Duration::from_millis(every.end);
        proxy.plan(Some(Plan { every, faults: faults.to_vec() }));
        self.pause(1000..4000).await;
        proxy.plan(None);
    }
}

async fn tell(redis: &PrivateRedis, command: &[&str]) {
    let mut connection = connect(&redis.url()).await;
    // `CLIENT KILL` ends this connection too.
    let _ = redis::cmd(command[0]).arg(&command[1..]).query_async::<redis::Value>(&mut connection).await;
}

impl fmt::Display for Mishaps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.happened.iter().try_for_each(|(mishap, times)| write!(f, "{mishap:?} {times}, "))
    }
}
