//! What a replay found.

use std::fmt;

use super::Request;
use crate::wall::Rfc3339;

/// Tenants and routes in a table; all are in the JSON.
const IN_TABLE: usize = 50;

/// Counts of a tenant on a route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Tally {
    /// Requests to which a limit applied.
    pub requests: u64,
    /// Denied by the log.
    pub denied_before: u64,
    /// Denied by the new rules.
    pub denied: u64,
    /// Of these, those that the log let pass.
    pub newly_denied: u64,
    /// What a new rule in shadow mode would deny.
    pub shadow_denied: u64,
    /// The first that the new rules deny.
    pub first_denied: Option<Rfc3339>,
}

impl Tally {
    pub(super) fn count(&mut self, request: &Request, denied: bool, shadow_denied: bool) {
        self.requests += 1;
        self.denied_before += u64::from(request.denied);
        self.denied += u64::from(denied);
        self.newly_denied += u64::from(denied && !request.denied);
        self.shadow_denied += u64::from(shadow_denied);
        if denied {
            self.first_denied.get_or_insert(Rfc3339(request.at_ms));
        }
    }

    fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.denied_before += other.denied_before;
        self.denied += other.denied;
        self.newly_denied += other.newly_denied;
        self.shadow_denied += other.shadow_denied;
        self.first_denied = self.first_denied.into_iter().chain(other.first_denied).min();
    }
}

/// A tenant on a route.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct TenantRoute {
    /// Its id, or a hash of it where the log hides that and no rule names it.
    pub tenant: String,
    /// The route's id.
    pub route: String,
    /// What was decided.
    #[serde(flatten)]
    pub tally: Tally,
}

/// What was decided for all. Displays as a table.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Report {
    /// Of all tenants and routes.
    pub total: Tally,
    /// Requests that came too late to be put in order, and counted as if they had come with the last one before.
    pub late: u64,
    /// Those with most denials by the new rules first.
    pub tenants: Vec<TenantRoute>,
}

impl Report {
    pub(super) fn new(each: Vec<(String, String, Tally)>, late: u64) -> Self {
        let mut total = Tally::default();
        each.iter().for_each(|(.., tally)| total.add(tally));
        let named = each.into_iter().map(|(tenant, route, tally)| TenantRoute { tenant, route, tally });
        let mut tenants: Vec<TenantRoute> = named.collect();
        tenants.sort_unstable_by(|one, other| {
            let by_denials = |of: &Tally| (of.denied, of.denied_before, of.requests);
            let names = || (&one.tenant, &one.route).cmp(&(&other.tenant, &other.route));
            by_denials(&other.tally).cmp(&by_denials(&one.tally)).then_with(names)
        });
        Self { total, late, tenants }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &self.tenants[..self.tenants.len().min(IN_TABLE)];
        let width =
            |name: fn(&TenantRoute) -> &str| shown.iter().map(|row| name(row).chars().count()).max().unwrap_or(0);
        let (tenant, route) = (width(|row| &row.tenant).max(6), width(|row| &row.route).max(5));
        writeln!(
            f,
            "{:tenant$}  {:route$}  {:>10}  {:>13}  {:>10}  {:>12}  first denied",
            "tenant", "route", "requests", "denied before", "denied now", "newly denied"
        )?;
        let mut row = |who: &str, what: &str, tally: &Tally| {
            let Tally { requests, denied_before, denied, newly_denied, first_denied, .. } = tally;
            let first = first_denied.map_or_else(|| "-".to_owned(), |time| time.to_string());
            writeln!(
                f,
                "{who:tenant$}  {what:route$}  {requests:>10}  {denied_before:>13}  {denied:>10}  {newly_denied:>12}  {first}"
            )
        };
        for TenantRoute { tenant, route, tally } in shown {
            row(tenant, route, tally)?;
        }
        row("total", "", &self.total)?;
        if self.total.shadow_denied > 0 {
            writeln!(f, "rules in shadow mode would have denied {}", self.total.shadow_denied)?;
        }
        if self.tenants.len() > shown.len() {
            writeln!(f, "{} more tenants and routes: --format json shows all", self.tenants.len() - shown.len())?;
        }
        Ok(())
    }
}
