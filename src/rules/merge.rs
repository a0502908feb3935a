//! Makes the next set out of the entries of a source and the set in force.

use std::fmt;
use std::sync::Arc;

use hashbrown::HashSet;

use super::change::{Pairs, Told};
use super::raw::{Entry, Terms, check_id};
use super::rejected::Rejected;
use super::set::{Building, RuleSet};
use crate::rule::{Mode, Rule, shown};

const MODES: [Mode; 2] = [Mode::Enforce, Mode::Shadow];

/// Where an entry was read.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place<'a> {
    /// Line of a file.
    Line(&'a str, usize),
    /// A row of the rules database.
    Row,
    /// A message.
    Message(&'a str),
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(file, line) => write!(f, "{file}:{line}: "),
            Self::Row => f.write_str("rules database: "),
            Self::Message(place) => write!(f, "{place}: "),
        }
    }
}

/// What a source amounts to.
#[derive(Debug)]
pub(super) struct Merged {
    pub(super) set: RuleSet,
    pub(super) rejected: Rejected,
}

impl Merged {
    /// Leaves the rules of some tenants and routes as they are in force, and what is known to be wrong with them.
    pub(super) fn keep(&mut self, in_force: &RuleSet, rejected: &Rejected, pairs: &Pairs) {
        if pairs.is_empty() {
            return;
        }
        let mut building = Building::of(&self.set);
        for (tenant, route) in pairs {
            self.rejected.take_over(rejected, tenant, route);
            for mode in MODES {
                match in_force.get(tenant, route, mode) {
                    Some(rule) => building.put(Arc::clone(rule)),
                    None => building.remove(tenant, route, mode),
                }
            }
        }
        self.set = building.finish_after(in_force);
    }
}

/// What became of a change.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// There is a rule for this route.
    Put(Arc<str>),
    /// Rules are gone, if there were any.
    Deleted,
    /// The rule is wrong: its last good version stays, if there is one.
    Bad,
    /// It does not even say for whom it is, and changes nothing; in one line.
    Nameless(String),
}

/// A set in the making, entry by entry: nothing of a source that fails half-way gets out of here.
///
/// A new rule that is invalid is left out, a changed one that is invalid keeps its version in force, and of several for
/// the same tenant, route and mode none changes anything. An entry that does not even say for whom it is may be a changed
/// version of any rule: while there is one, no rule in force goes away; nor does one of its tenant and route while an
/// entry does not say in which mode it is. Unchanged rules keep their `Arc`.
#[derive(Debug)]
pub(super) struct Merge {
    in_force: Arc<RuleSet>,
    building: Building,
    names: HashSet<Arc<str>, foldhash::fast::RandomState>,
    /// (tenant, route, mode) that no entry may change any more.
    refused: HashSet<(Box<str>, Box<str>, Mode), foldhash::fast::RandomState>,
    rejected: Rejected,
    /// Was there an entry that may stand for any rule?
    anonymous: bool,
    /// (tenant, route) of entries that may be in either mode.
    of_either_mode: Vec<(Box<str>, Box<str>)>,
}

impl Merge {
    /// Of all entries of a source.
    pub(super) fn new(in_force: Arc<RuleSet>, rejected: Rejected) -> Self {
        Self::starting(Building::default(), in_force, rejected)
    }

    /// Of all entries for some tenants and routes, of which nothing is left but what the entries say; the other rules stay
    /// as they are, and so does what of `rejected` is about them.
    pub(super) fn of_pairs(in_force: Arc<RuleSet>, mut rejected: Rejected, pairs: &Pairs) -> Self {
        let mut building = Building::of(&in_force);
        for (tenant, route) in pairs {
            rejected.forget(tenant, route);
            MODES.into_iter().for_each(|mode| building.remove(tenant, route, mode));
        }
        Self::starting(building, in_force, rejected)
    }

    /// Of changes, one after the other: see [`tell`](Self::tell).
    pub(super) fn of_changes(in_force: Arc<RuleSet>, rejected: Rejected) -> Self {
        Self::starting(Building::of(&in_force), in_force, rejected)
    }

    fn starting(building: Building, in_force: Arc<RuleSet>, rejected: Rejected) -> Self {
        Self {
            in_force,
            building,
            names: HashSet::default(),
            refused: HashSet::default(),
            rejected,
            anonymous: false,
            of_either_mode: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, place: Place<'_>, entry: Entry<'_>) {
        let Entry { tenant_id, route_id, mode, terms } = entry;
        let (tenant, route) = (tenant_id.as_deref(), route_id.as_deref());
        let ids = check_id("tenant_id", tenant).and_then(|()| check_id("route_id", route));
        let (Ok(()), Some(tenant), Some(route)) = (&ids, tenant, route) else {
            self.anonymous |= tenant.is_none() || route.is_none();
            let problem = terms.err().or(ids.err()).unwrap_or_default();
            return self.rejected.push(|| fault(place, tenant, route, &problem));
        };
        let Some(mode) = mode else {
            self.of_either_mode.push((tenant.into(), route.into()));
            let problem = terms.err().unwrap_or_default();
            return self
                .rejected
                .push_about(Some((tenant, route)), || fault(place, Some(tenant), Some(route), &problem));
        };

        let seen = self.building.contains(tenant, route, mode)
            || (!self.refused.is_empty() && self.refused.contains(&(tenant.into(), route.into(), mode)));
        let problem = match terms {
            Ok(terms) if !seen => {
                let rule = self.rule(tenant, route, terms);
                return self.building.put(rule);
            }
            Err(problem) if !seen => problem,
            _ => {
                "is there more than once, allowed is one rule for a tenant, route and mode; none of them counts".into()
            }
        };
        self.rejected.push_about(Some((tenant, route)), || fault(place, Some(tenant), Some(route), &problem));
        self.refuse(tenant, route, mode);
    }

    /// Applies a change to what the changes before it left.
    pub(super) fn tell(&mut self, told: &Told) -> Heard {
        let (place, json) = match told {
            Told::Put { place, json, .. } => (Place::Message(place), json),
            Told::Delete { tenant_id, route_id, mode, .. } => {
                self.rejected.forget(tenant_id, route_id);
                for mode in MODES.into_iter().filter(|one| mode.is_none_or(|mode| mode == *one)) {
                    self.building.remove(tenant_id, route_id, mode);
                }
                return Heard::Deleted;
            }
        };
        let Entry { tenant_id, route_id, terms, .. } = Entry::from_json(json);
        let (tenant, route) = (tenant_id.as_deref(), route_id.as_deref());
        let ids = check_id("tenant_id", tenant).and_then(|()| check_id("route_id", route));
        let (Ok(()), Some(tenant), Some(route)) = (&ids, tenant, route) else {
            return Heard::Nameless(fault(place, tenant, route, &terms.err().or(ids.err()).unwrap_or_default()));
        };
        self.rejected.forget(tenant, route);
        match terms {
            Ok(terms) => {
                let rule = self.rule(tenant, route, terms);
                let route = Arc::clone(&rule.route_id);
                self.building.put(rule);
                Heard::Put(route)
            }
            Err(problem) => {
                let fault = || fault(place, Some(tenant), Some(route), &problem);
                self.rejected.push_about(Some((tenant, route)), fault);
                Heard::Bad
            }
        }
    }

    pub(super) fn finish(mut self) -> Merged {
        if self.anonymous {
            let in_force = Arc::clone(&self.in_force);
            in_force.iter().for_each(|rule| self.keep(rule));
        }
        for (tenant, route) in std::mem::take(&mut self.of_either_mode) {
            for mode in MODES {
                if let Some(rule) = self.in_force.get(&tenant, &route, mode).cloned() {
                    self.keep(&rule);
                }
            }
        }
        Merged { set: self.building.finish_after(&self.in_force), rejected: self.rejected }
    }

    /// A rule of these terms: the very one in force where they are the same.
    fn rule(&mut self, tenant: &str, route: &str, terms: Terms) -> Arc<Rule> {
        match self.in_force.get(tenant, route, terms.mode()) {
            None => Arc::new(terms.into_rule(self.shared(tenant), self.shared(route))),
            Some(before) => {
                let rule = terms.into_rule(Arc::clone(&before.tenant_id), Arc::clone(&before.route_id));
                if rule == **before { Arc::clone(before) } else { Arc::new(rule) }
            }
        }
    }

    /// Lets a rule in force stay, unless there is another in its place.
    fn keep(&mut self, rule: &Arc<Rule>) {
        if !self.building.contains(&rule.tenant_id, &rule.route_id, rule.mode) {
            self.building.put(Arc::clone(rule));
        }
    }

    /// Leaves what is in force for this tenant, route and mode as it is.
    fn refuse(&mut self, tenant: &str, route: &str, mode: Mode) {
        match self.in_force.get(tenant, route, mode) {
            Some(before) => self.building.put(Arc::clone(before)),
            None => self.building.remove(tenant, route, mode),
        }
        self.refused.insert((tenant.into(), route.into(), mode));
    }

    /// One allocation for all rules of a tenant or route.
    fn shared(&mut self, name: &str) -> Arc<str> {
        if let Some(shared) = self.names.get(name) {
            return Arc::clone(shared);
        }
        let shared: Arc<str> = name.into();
        self.names.insert(Arc::clone(&shared));
        shared
    }
}

/// One line that names the place, the rule and what is wrong.
fn fault(place: Place<'_>, tenant: Option<&str>, route: Option<&str>, problem: &str) -> String {
    let noun = if matches!(place, Place::Row) { "" } else { "rule " };
    let [tenant, route] = [tenant, route].map(|id| shown(id.unwrap_or("?")));
    format!("{place}{noun}{tenant}/{route}: {problem}")
}

#[cfg(test)]
mod tests;
