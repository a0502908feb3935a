//! Which limit applies to a tenant and route: a [`Rule`], found in an immutable [`RuleSet`].
//!
//! | module | its one purpose |
//! |---|---|
//! | `raw` | a rule as a source wrote it → [`Rule`], or one sentence about what is wrong |
//! | `file`, `postgres` | the sources: stream entries, each judged alone |
//! | `merge` | entries and the set in force → the next set |
//! | `set` | the immutable, indexed [`RuleSet`] |
//! | `snapshot` | the last good rules on disk |
//! | [`keys`] | registered API keys |
//! | `current` | [`Rules`]: the set in force and its [`Status`], shared by all |
//! | [`loader`] | when to read which source |

mod current;
mod file;
pub mod keys;
pub mod loader;
mod merge;
mod postgres;
mod raw;
mod report;
mod set;
mod snapshot;

use std::num::NonZeroU32;
use std::sync::Arc;

pub use current::Rules;
pub use file::FileError;
pub use loader::{Checked, Loader};
pub use postgres::DatabaseError;
pub use report::{LoadError, Rejected, Source, Status};
pub use set::{Resolved, RuleSet};

use crate::limiter::bucket::Limit;

/// What to do when the store does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FailurePolicy {
    /// Enforce this gateway's share of the limit in this process.
    Local,
    /// Let the request pass, unlimited.
    Open,
    /// Answer 503.
    Closed,
}

/// Whether a rule decides or is only counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Decides.
    #[default]
    Enforce,
    /// Counted beside the next enforcing rule of the chain, which still applies.
    Shadow,
}

/// The id that stands for every tenant or every route.
pub const ANY: &str = "*";

/// One limit, as an operator wrote it; validated.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// 1–64 characters, or `*`.
    pub tenant_id: Arc<str>,
    /// 1–64 characters, or `*`.
    pub route_id: Arc<str>,
    /// Capacity and refill.
    pub limit: Limit,
    /// Tokens one request takes; `None`: the route's cost.
    pub cost: Option<NonZeroU32>,
    /// `None`: `limiter.on_store_failure`.
    pub on_store_failure: Option<FailurePolicy>,
    /// Sub-buckets, 1 … 100.
    pub shards: u8,
    /// Whether it decides.
    pub mode: Mode,
    /// `false`: skipped, the next rule of the chain applies.
    pub enabled: bool,
    /// For people.
    pub comment: Option<Box<str>>,
}

/// Reads `"100/s"`, `"100/min"`, `"5000/h"`, `"10000/day"` as tokens per second.
///
/// # Errors
/// One sentence that says what is allowed.
pub fn parse_refill(text: &str) -> Result<f64, String> {
    let allowed =
        || format!("\"{text}\" is not a refill, allowed are \"100/s\", \"100/min\", \"5000/h\", \"10000/day\"");
    let (amount, unit) = text.split_once('/').ok_or_else(allowed)?;
    let seconds = match unit.trim() {
        "s" => 1.0,
        "min" => 60.0,
        "h" => 3600.0,
        "day" => 86_400.0,
        _ => return Err(allowed()),
    };
    let amount: f64 = amount.trim().parse().map_err(|_| allowed())?;
    if amount.is_finite() { Ok(amount / seconds) } else { Err(allowed()) }
}
