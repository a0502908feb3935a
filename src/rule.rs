//! One limit as an operator wrote it, and the words it is written in.

use std::num::NonZeroU32;
use std::sync::Arc;

use crate::bucket::Limit;

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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Decides.
    #[default]
    Enforce,
    /// Counted beside the next enforcing rule of the chain, which still applies.
    Shadow,
}

/// The longest id, in characters.
pub(crate) const LONGEST_ID: usize = 64;

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

impl Rule {
    /// An enforcing rule with every other field at its default.
    pub fn new(tenant_id: &str, route_id: &str, limit: Limit) -> Self {
        Self {
            tenant_id: tenant_id.into(),
            route_id: route_id.into(),
            limit,
            cost: None,
            on_store_failure: None,
            shards: 1,
            mode: Mode::default(),
            enabled: true,
            comment: None,
        }
    }
}

/// Which ids of a rule stand for all. For a request of a known tenant and route it says which rule that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Scope {
    /// The rule is for every tenant.
    pub any_tenant: bool,
    /// The rule is for every route.
    pub any_route: bool,
}

impl Rule {
    /// Which of its ids stand for all.
    #[inline]
    pub fn scope(&self) -> Scope {
        Scope { any_tenant: *self.tenant_id == *ANY, any_route: *self.route_id == *ANY }
    }
}

impl Scope {
    /// The ids of the rule that applies to a tenant and route; the default rule is that for all.
    pub fn ids<'a>(self, tenant: &'a str, route: &'a str) -> (&'a str, &'a str) {
        (if self.any_tenant { ANY } else { tenant }, if self.any_route { ANY } else { route })
    }
}

/// Reads `"100/s"`, `"100/min"`, `"5000/h"`, `"10000/day"` as tokens per second.
///
/// # Errors
/// One sentence that says what is allowed.
pub fn parse_refill(text: &str) -> Result<f64, String> {
    let allowed = || {
        let text = shown(text);
        format!("\"{text}\" is not a refill, allowed are \"100/s\", \"100/min\", \"5000/h\", \"10000/day\"")
    };
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

/// Text from a source, fit for one line of a message.
pub(crate) fn shown(text: &str) -> String {
    let mut shown = String::with_capacity(text.len().min(LONGEST_ID));
    for char in text.chars().take(LONGEST_ID) {
        match char {
            '"' | '\'' => shown.push(char),
            _ => shown.extend(char.escape_debug()),
        }
    }
    if text.chars().nth(LONGEST_ID).is_some() {
        shown.push('…');
    }
    shown
}
