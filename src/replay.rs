//! What other rules would have done to the requests of an access log: each is decided again, by the limiter of one
//! gateway with its buckets in this process, on the log's own clock.
//!
//! Lines are written when requests end and tell when they began, so they are brought into order first: see [`Sorted`].
//! What clients would have done differently, had they been answered differently, nobody knows.

mod line;
mod order;
mod report;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use compact_str::CompactString;

pub use self::line::{Fault, Line, Request, Tenant, read};
pub use self::order::Sorted;
pub use self::report::{Report, Tally, TenantRoute};
use crate::access_log::hashed;
use crate::clock::Clock;
use crate::config;
use crate::decision::Outcome;
use crate::limiter::{Check, Limiter};
use crate::rule::{ANY, FailurePolicy, Rule};
use crate::rules::RuleSet;
use crate::store::redis::SetupError;

/// Decides requests again.
#[derive(Debug)]
pub struct Replay {
    rules: RuleSet,
    /// The same rules with hashes in place of tenants, for logs that hide those; made when the first such line comes.
    hashed: Option<(RuleSet, HashMap<String, Arc<str>>)>,
    limiter: Limiter,
    clock: Arc<AtomicU64>,
    /// By id: its place in `routes`.
    route_places: HashMap<Box<str>, usize>,
    routes: Vec<Route>,
    tallies: HashMap<(CompactString, usize), Tally, foldhash::fast::RandomState>,
    late: u64,
}

#[derive(Debug)]
struct Route {
    id: Arc<str>,
    /// As configured; `None`: what the log says.
    cost: Option<u32>,
}

impl Replay {
    /// By these rules. A request takes what its rule says, else what its route (of these) says, else what the log says.
    ///
    /// # Errors
    /// Never: that is for shared stores.
    pub fn new(rules: RuleSet, routes: &[config::Route], settings: &config::Limiter) -> Result<Self, SetupError> {
        let clock = Arc::new(AtomicU64::new(0));
        let store = config::Store { redis: None, timeout: Duration::from_secs(1), key_prefix: String::new() };
        let (limiter, _) = Limiter::new(&store, settings, Clock::manual(Arc::clone(&clock)))?;
        let mut replay = Self {
            rules,
            hashed: None,
            limiter,
            clock,
            route_places: HashMap::new(),
            routes: Vec::new(),
            tallies: HashMap::default(),
            late: 0,
        };
        for route in routes {
            replay.add_route(&route.id, Some(route.cost));
        }
        Ok(replay)
    }

    /// Decides a request again. Requests come in order of their times; one that is earlier than the last counts as if
    /// it had come with that.
    pub fn request(&mut self, request: &Request) {
        let now = self.clock.load(Ordering::Relaxed);
        self.late += u64::from(request.at_ms < now);
        self.clock.store(now.max(request.at_ms), Ordering::Relaxed);
        let place = match self.route_places.get(&*request.route) {
            Some(&place) => place,
            None => self.add_route(&request.route, None),
        };
        let (rules, tenant) = match &request.tenant {
            Tenant::Plain(id) => (&self.rules, id),
            Tenant::Hashed(hash) => (&self.hashed.get_or_insert_with(|| with_hashes(&self.rules)).0, hash),
        };
        let Some(Route { id, cost }) = self.routes.get(place) else { return };
        let resolved = rules.resolve(tenant, id);
        let decide = |rule: &Rule, shadow| {
            self.limiter.decide_at_once(&Check {
                tenant,
                route: id,
                limit: rule.limit,
                cost: rule.cost.map_or(cost.unwrap_or(request.cost), u32::from),
                on_store_failure: FailurePolicy::Local,
                shadow,
                shards: rule.shards,
            })
        };
        let is_denied = |rule: &Rule, shadow| {
            decide(rule, shadow).is_ok_and(|decision| matches!(decision.outcome, Outcome::Denied { .. }))
        };
        let denied = is_denied(resolved.enforce, false);
        let shadow_denied = resolved.shadow.is_some_and(|rule| is_denied(rule, true));
        let tally = self.tallies.entry((tenant.clone(), place)).or_default();
        tally.count(request, denied, shadow_denied);
    }

    /// What has been decided until now.
    pub fn report(&self) -> Report {
        let name = |tenant: &CompactString| {
            let known = self.hashed.as_ref().and_then(|(_, names)| names.get(tenant.as_str()));
            known.map_or_else(|| tenant.to_string(), |known| known.to_string())
        };
        let route = |place: usize| self.routes.get(place).map_or("", |route| &*route.id).to_owned();
        let each = self.tallies.iter();
        Report::new(each.map(|((tenant, place), tally)| (name(tenant), route(*place), *tally)).collect(), self.late)
    }

    fn add_route(&mut self, id: &str, cost: Option<u32>) -> usize {
        let place = self.routes.len();
        self.routes.push(Route { id: id.into(), cost });
        self.route_places.insert(id.into(), place);
        place
    }
}

/// The rules for hashed tenants, and the tenants of the hashes that they name.
fn with_hashes(rules: &RuleSet) -> (RuleSet, HashMap<String, Arc<str>>) {
    let mut names = HashMap::new();
    let mut of_hash = |rule: &Arc<Rule>| {
        let mut rule = Rule::clone(rule);
        if *rule.tenant_id != *ANY {
            let hash = hashed(&rule.tenant_id);
            let plain = std::mem::replace(&mut rule.tenant_id, hash.as_str().into());
            names.insert(hash, plain);
        }
        rule
    };
    let rules_of_hashes: Vec<Rule> = rules.iter().map(&mut of_hash).collect();
    (RuleSet::new(Arc::clone(rules.default_rule()), rules_of_hashes), names)
}
