//! `[usage]` and `[access_log]`: what is remembered of requests.

use std::fmt;
use std::path::PathBuf;

/// `[usage]`
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// `false`: nothing is counted by tenant.
    pub enabled: bool,
    /// The fleet adds up its counts in the shared store, if there is one.
    pub shared: bool,
    /// The most counters (tenant, route, rule and outcome) that this process keeps for one minute, and for one hour.
    pub max_series: usize,
}

impl Default for Usage {
    fn default() -> Self {
        Self { enabled: true, shared: true, max_series: 10_000 }
    }
}

/// `[access_log]`
#[derive(Clone, Debug)]
pub struct AccessLog {
    /// `path`
    pub target: LogTarget,
    /// Share of the requests that have a line, 0 < x ≤ 1.
    pub sample: f64,
    /// Lines hold a hash in place of the tenant's id.
    pub hash_tenants: bool,
}

/// Where lines go. Displays for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogTarget {
    /// `-`
    Stdout,
    /// Appended to this file.
    File(PathBuf),
}

impl fmt::Display for LogTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdout => f.write_str("standard output"),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}
