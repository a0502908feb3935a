//! Makes the next set out of the entries of a source and the set in force.

use std::fmt;
use std::sync::Arc;

use hashbrown::HashSet;

use super::raw::{Entry, check_id};
use super::report::Rejected;
use super::set::{Building, RuleSet};
use crate::rule::shown;

/// Where an entry was read.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place<'a> {
    /// Line of a file.
    Line(&'a str, usize),
    /// A row of the rules database.
    Row,
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(file, line) => write!(f, "{file}:{line}: "),
            Self::Row => f.write_str("rules database: "),
        }
    }
}

/// What a source amounts to.
#[derive(Debug)]
pub(super) struct Merged {
    pub(super) set: RuleSet,
    pub(super) rejected: Rejected,
}

/// A set in the making, entry by entry: nothing of a source that fails half-way gets out of here.
///
/// A new rule that is invalid is left out, a changed one that is invalid keeps its version in force, and of several for
/// the same tenant and route none changes anything. An entry that does not even say for whom it is may be a changed
/// version of any rule: while there is one, no rule in force goes away. Unchanged rules keep their `Arc`.
#[derive(Debug)]
pub(super) struct Merge {
    in_force: Arc<RuleSet>,
    building: Building,
    names: HashSet<Arc<str>, foldhash::fast::RandomState>,
    /// (tenant, route) that no entry may change any more.
    refused: HashSet<(Box<str>, Box<str>), foldhash::fast::RandomState>,
    rejected: Rejected,
    /// Was there an entry that may stand for any rule?
    anonymous: bool,
}

impl Merge {
    pub(super) fn new(in_force: Arc<RuleSet>, rejected: Rejected) -> Self {
        Self {
            in_force,
            building: Building::default(),
            names: HashSet::default(),
            refused: HashSet::default(),
            rejected,
            anonymous: false,
        }
    }

    pub(super) fn add(&mut self, place: Place<'_>, entry: Entry<'_>) {
        let Entry { tenant_id, route_id, terms } = entry;
        let (tenant, route) = (tenant_id.as_deref(), route_id.as_deref());
        let reject = |rejected: &mut Rejected, problem: &str| {
            let noun = if matches!(place, Place::Line(..)) { "rule " } else { "" };
            let [tenant, route] = [tenant, route].map(|id| shown(id.unwrap_or("?")));
            rejected.push(|| format!("{place}{noun}{tenant}/{route}: {problem}"));
        };
        let ids = check_id("tenant_id", tenant).and_then(|()| check_id("route_id", route));
        let (Ok(()), Some(tenant), Some(route)) = (&ids, tenant, route) else {
            self.anonymous |= tenant.is_none() || route.is_none();
            let problem = terms.err().or(ids.err()).unwrap_or_default();
            return reject(&mut self.rejected, &problem);
        };

        let seen = self.building.contains(tenant, route)
            || (!self.refused.is_empty() && self.refused.contains(&(tenant.into(), route.into())));
        let problem = match terms {
            Ok(terms) if !seen => {
                let rule = match self.in_force.get(tenant, route) {
                    None => Arc::new(terms.into_rule(self.shared(tenant), self.shared(route))),
                    Some(before) => {
                        let rule = terms.into_rule(Arc::clone(&before.tenant_id), Arc::clone(&before.route_id));
                        if rule == **before { Arc::clone(before) } else { Arc::new(rule) }
                    }
                };
                return self.building.put(rule);
            }
            Err(problem) if !seen => problem,
            _ => "is there more than once, allowed is one rule for a tenant and route; none of them counts".to_owned(),
        };
        reject(&mut self.rejected, &problem);
        self.refuse(tenant, route);
    }

    pub(super) fn finish(mut self) -> Merged {
        if self.anonymous {
            for rule in self.in_force.iter() {
                if !self.building.contains(&rule.tenant_id, &rule.route_id) {
                    self.building.put(Arc::clone(rule));
                }
            }
        }
        Merged { set: self.building.finish(Arc::clone(self.in_force.default_rule())), rejected: self.rejected }
    }

    /// Leaves what is in force for this tenant and route as it is.
    fn refuse(&mut self, tenant: &str, route: &str) {
        match self.in_force.get(tenant, route) {
            Some(before) => self.building.put(Arc::clone(before)),
            None => self.building.remove(tenant, route),
        }
        self.refused.insert((tenant.into(), route.into()));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::Rule;

    fn empty() -> Arc<RuleSet> {
        let default = Entry::from_json(r#"{"capacity": 1, "refill_per_second": 1}"#).terms.unwrap();
        Arc::new(RuleSet::new(Arc::new(default.into_rule("*".into(), "*".into())), []))
    }

    fn merge(in_force: &Arc<RuleSet>, entries: &[&str]) -> (Arc<RuleSet>, Vec<String>) {
        let mut merge = Merge::new(Arc::clone(in_force), Rejected::default());
        for (index, entry) in entries.iter().enumerate() {
            merge.add(Place::Line("rules.json", index + 1), Entry::from_json(entry));
        }
        let merged = merge.finish();
        assert_eq!(merged.rejected.total, merged.rejected.faults.len());
        (Arc::new(merged.set), merged.rejected.faults)
    }

    fn rule(tenant: &str, capacity: i64) -> String {
        format!(r#"{{"tenant_id": "{tenant}", "route_id": "r", "capacity": {capacity}, "refill_per_second": 1}}"#)
    }

    fn capacity(set: &RuleSet, tenant: &str) -> Option<u32> {
        set.get(tenant, "r").map(|rule: &Arc<Rule>| rule.limit.capacity())
    }

    #[test]
    fn a_new_invalid_rule_is_named_and_left_out_and_others_load() {
        let (set, faults) = merge(&empty(), &[&rule("a", 5), &rule("b", 0), &rule("c", 7)]);
        assert_eq!((capacity(&set, "a"), capacity(&set, "b"), capacity(&set, "c")), (Some(5), None, Some(7)));
        let expected = "rules.json:2: rule b/r: capacity is 0, allowed are integers from 1 to 2147483647";
        assert_eq!(faults, [expected]);
    }

    #[test]
    fn a_changed_invalid_rule_keeps_its_last_good_version() {
        let (before, _) = merge(&empty(), &[&rule("a", 5), &rule("b", 6)]);
        let (after, faults) = merge(&before, &[&rule("a", -1), &rule("b", 7)]);
        assert_eq!((capacity(&after, "a"), capacity(&after, "b")), (Some(5), Some(7)));
        assert_eq!(faults.len(), 1);
        let (again, _) = merge(&after, &[&rule("a", -1), &rule("b", 7)]);
        assert_eq!(capacity(&again, "a"), Some(5));
    }

    #[test]
    fn of_duplicates_none_changes_anything() {
        let (before, _) = merge(&empty(), &[&rule("a", 5)]);
        let [a6, a7, n1, n2, bad] = [rule("a", 6), rule("a", 7), rule("new", 1), rule("new", 2), rule("new", 0)];
        for order in [[&a6, &a7, &n1, &n2, &bad], [&bad, &n1, &a7, &n2, &a6], [&n2, &bad, &n1, &a6, &a7]] {
            let (after, faults) = merge(&before, &order.map(String::as_str));
            assert_eq!((capacity(&after, "a"), capacity(&after, "new")), (Some(5), None));
            assert_eq!(faults.iter().filter(|fault| fault.contains("more than once")).count(), 3, "{faults:?}");
        }
    }

    #[test]
    fn a_rule_that_is_gone_from_the_source_is_gone() {
        let (before, _) = merge(&empty(), &[&rule("a", 5), &rule("b", 6)]);
        let (after, _) = merge(&before, &[&rule("b", 6)]);
        assert_eq!((capacity(&after, "a"), after.len()), (None, 1));
    }

    #[test]
    fn while_an_entry_may_be_any_rule_no_rule_goes_away() {
        let (before, _) = merge(&empty(), &[&rule("a", 5), &rule("b", 6)]);
        for anonymous in ["1", "{}", r#"{"route_id": "r", "capacity": 5, "refill_per_second": 1}"#] {
            let (after, faults) = merge(&before, &[&rule("b", 7), anonymous]);
            assert_eq!((capacity(&after, "a"), capacity(&after, "b"), faults.len()), (Some(5), Some(7), 1));
        }
        let (after, _) = merge(&before, &[&rule("b", 7), &rule("", 1)]);
        assert_eq!(capacity(&after, "a"), None, "an id that no rule can have stands for no rule in force");
    }

    #[test]
    fn unchanged_rules_keep_their_allocation_and_new_ones_share_names() {
        let (before, _) = merge(&empty(), &[&rule("a", 5), &rule("b", 6)]);
        let (after, _) = merge(&before, &[&rule("a", 5), &rule("b", 7)]);
        assert!(Arc::ptr_eq(before.get("a", "r").unwrap(), after.get("a", "r").unwrap()));
        assert!(!Arc::ptr_eq(before.get("b", "r").unwrap(), after.get("b", "r").unwrap()));
        assert!(Arc::ptr_eq(&before.get("a", "r").unwrap().route_id, &after.get("b", "r").unwrap().route_id));
        assert!(!after.same_as(&before));
        assert!(merge(&after, &[&rule("b", 7), &rule("a", 5)]).0.same_as(&after));
    }

    #[test]
    fn an_entry_without_a_usable_id_is_named_as_far_as_it_can_be() {
        let (_, faults) = merge(
            &empty(),
            &[
                r#"{"route_id": "r", "capacity": 5, "refill_per_second": 1}"#,
                r#"{"tenant_id": "", "route_id": "r", "capacity": 5, "refill_per_second": 1}"#,
                r#"{"tenant_id": "a\nb", "route_id": "r", "capacity": 5, "refill_per_second": 1}"#,
                "17",
            ],
        );
        assert!(faults[0].starts_with("rules.json:1: rule ?/r: tenant_id is missing"), "{faults:?}");
        assert!(faults[1].starts_with("rules.json:2: rule /r: tenant_id is empty"), "{faults:?}");
        assert!(faults[2].starts_with(r"rules.json:3: rule a\nb/r: tenant_id contains control"), "{faults:?}");
        assert_eq!(faults[3], "rules.json:4: rule ?/?: 17 is not a rule, allowed are JSON objects");
    }
}
