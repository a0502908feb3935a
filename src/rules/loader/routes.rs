//! Rules for routes that this gateway does not have.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Loader;
use crate::rule::ANY;
use crate::rules::RuleSet;

/// So many unknown routes are named in one line of the log.
const MOST_ROUTES_NAMED: usize = 10;

impl Loader {
    /// Rules are shared by gateways with different routes: one for a route this gateway does not have is no fault, but
    /// may be a misspelling.
    pub(super) fn unknown_routes(&self, set: &RuleSet) -> BTreeSet<Arc<str>> {
        let mut unknown = BTreeSet::new();
        for rule in set.iter().filter(|rule| &*rule.route_id != ANY && !self.routes.contains(&*rule.route_id)) {
            if !unknown.contains(&rule.route_id) {
                unknown.insert(Arc::clone(&rule.route_id));
            }
        }
        unknown
    }

    pub(super) fn tell_unknown_routes(&self) {
        let unknown = self.unknown_routes(&self.rules.load());
        let mut told = self.told_routes.lock();
        if !unknown.is_empty() && unknown != *told {
            let names: Vec<&str> = unknown.iter().take(MOST_ROUTES_NAMED).map(|route| &**route).collect();
            tracing::warn!(count = unknown.len(), "rules name routes that this gateway does not have: {names:?}");
        }
        *told = unknown;
    }

    /// The same of some rules that changed.
    pub(super) fn tell_unknown_routes_of<'a>(&self, routes: impl Iterator<Item = &'a Arc<str>>) {
        let mut told = self.told_routes.lock();
        let unknown = |route: &Arc<str>| &**route != ANY && !self.routes.contains(&**route);
        for route in routes.filter(|route| unknown(route)) {
            if told.insert(Arc::clone(route)) {
                tracing::warn!("a rule names a route that this gateway does not have: {route:?}");
            }
        }
    }
}
