//! What Redis says about itself: the calls it executed and the processor time it used.

use redis::{Connection, RedisResult, cmd};

/// A connection beside those of the fleet.
pub(crate) struct Observer(Connection);

/// Redis's counters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counters {
    /// Script calls since the last reset.
    pub(crate) calls: u64,
    /// Seconds of processor time, user and system, since it started.
    pub(crate) cpu: f64,
}

impl Observer {
    /// Connects.
    pub(crate) fn new(url: &str) -> RedisResult<Self> {
        redis::Client::open(url)?.get_connection().map(Self)
    }

    /// Forgets the calls counted so far, and the keys of earlier runs with them.
    pub(crate) fn reset(&mut self) -> RedisResult<()> {
        cmd("FLUSHDB").exec(&mut self.0)?;
        cmd("CONFIG").arg("RESETSTAT").exec(&mut self.0)
    }

    /// The counters now.
    pub(crate) fn counters(&mut self) -> RedisResult<Counters> {
        let cpu: String = cmd("INFO").arg("cpu").query(&mut self.0)?;
        let cpu = ["used_cpu_user:", "used_cpu_sys:"].iter().filter_map(|name| number(&cpu, name)).sum();
        let commands: String = cmd("INFO").arg("commandstats").query(&mut self.0)?;
        // Each call for a bucket reads it once; heartbeats do not count.
        let calls = number(&commands, "cmdstat_hmget:calls=").unwrap_or(0.0) as u64;
        Ok(Counters { calls, cpu })
    }
}

/// The number after `name` at the start of a line.
fn number(info: &str, name: &str) -> Option<f64> {
    let rest = info.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split(|c: char| !c.is_ascii_digit() && c != '.').next()?.parse().ok()
}
