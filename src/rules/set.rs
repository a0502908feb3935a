//! The immutable, indexed set of rules.

use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashTable;

use super::{ANY, Mode, Rule};

/// Rules are spread over so many segments that a set which differs in one rule can share all segments but one with its
/// predecessor: among 1,000,000 rules a segment holds about 1,000.
const SEGMENTS: usize = 1024;

/// The rules that apply to one tenant and route.
#[derive(Clone, Copy, Debug)]
pub struct Resolved<'a> {
    /// The rule that decides.
    pub enforce: &'a Arc<Rule>,
    /// A more specific rule in shadow mode, counted beside it; of several the most specific.
    pub shadow: Option<&'a Arc<Rule>>,
}

type Segment = HashTable<Arc<Rule>>;

/// All rules of one moment, immutable and indexed.
#[derive(Clone, Debug)]
pub struct RuleSet {
    default_rule: Arc<Rule>,
    segments: Box<[Arc<Segment>]>,
    len: usize,
}

impl RuleSet {
    /// A set of these rules, no two of them for the same tenant and route (the later would take the place of the
    /// earlier). `default_rule` applies where no other does.
    pub fn new(default_rule: Arc<Rule>, rules: impl IntoIterator<Item = Rule>) -> Self {
        let mut building = Building::default();
        for rule in rules {
            building.put(Arc::new(rule));
        }
        building.finish(default_rule)
    }

    /// The rules that apply: (tenant, route) → (tenant, `*`) → (`*`, route) → (`*`, `*`) → the default rule; disabled
    /// ones are skipped. Allocates nothing.
    pub fn resolve(&self, tenant: &str, route: &str) -> Resolved<'_> {
        let mut shadow = None;
        for rule in self.links(tenant, route).flatten().filter(|rule| rule.enabled) {
            match rule.mode {
                Mode::Enforce => return Resolved { enforce: rule, shadow },
                Mode::Shadow => shadow = shadow.or(Some(rule)),
            }
        }
        Resolved { enforce: &self.default_rule, shadow }
    }

    /// The rule at each link of the chain, most specific first, also those that are disabled or in shadow mode: what
    /// [`resolve`](Self::resolve) chose from, for people.
    pub fn chain(&self, tenant: &str, route: &str) -> [Option<&Arc<Rule>>; 4] {
        let mut links = self.links(tenant, route);
        std::array::from_fn(|_| links.next().flatten())
    }

    /// The rule written for exactly this tenant and route, each of which may be `*`.
    pub fn get(&self, tenant: &str, route: &str) -> Option<&Arc<Rule>> {
        self.find(text_hash(tenant), text_hash(route), tenant, route)
    }

    /// The rule that applies where no other does.
    pub fn default_rule(&self) -> &Arc<Rule> {
        &self.default_rule
    }

    /// Every rule but the default rule, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Rule>> {
        self.segments.iter().flat_map(|segment| segment.iter())
    }

    /// How many rules there are, not counting the default rule.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Is there none but the default rule?
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Does every rule of `other` stand here unchanged, and no other rule?
    pub(super) fn same_as(&self, other: &Self) -> bool {
        self.len == other.len
            && self
                .iter()
                .all(|rule| other.get(&rule.tenant_id, &rule.route_id).is_some_and(|theirs| Arc::ptr_eq(rule, theirs)))
    }

    fn links<'s, 'q>(&'s self, tenant: &'q str, route: &'q str) -> impl Iterator<Item = Option<&'s Arc<Rule>>> {
        let (tenant_hash, route_hash, any_hash) = (text_hash(tenant), text_hash(route), text_hash(ANY));
        [
            (tenant_hash, route_hash, tenant, route),
            (tenant_hash, any_hash, tenant, ANY),
            (any_hash, route_hash, ANY, route),
            (any_hash, any_hash, ANY, ANY),
        ]
        .into_iter()
        .map(|(tenant_hash, route_hash, tenant, route)| self.find(tenant_hash, route_hash, tenant, route))
    }

    fn find(&self, tenant_hash: u64, route_hash: u64, tenant: &str, route: &str) -> Option<&Arc<Rule>> {
        let hash = pair_hash(tenant_hash, route_hash);
        self.segments[segment_of(hash)].find(hash, |rule| *rule.route_id == *route && *rule.tenant_id == *tenant)
    }
}

/// A set in the making.
#[derive(Debug)]
pub(super) struct Building {
    segments: Vec<Segment>,
    len: usize,
}

impl Default for Building {
    fn default() -> Self {
        Self { segments: vec![Segment::new(); SEGMENTS], len: 0 }
    }
}

impl Building {
    pub(super) fn contains(&self, tenant: &str, route: &str) -> bool {
        let hash = pair_hash(text_hash(tenant), text_hash(route));
        self.segments[segment_of(hash)].find(hash, |rule| is_for(rule, tenant, route)).is_some()
    }

    /// Puts a rule in, in place of the one for the same tenant and route.
    pub(super) fn put(&mut self, rule: Arc<Rule>) {
        let hash = rule_hash(&rule);
        let segment = &mut self.segments[segment_of(hash)];
        match segment.find_mut(hash, |other| is_for(other, &rule.tenant_id, &rule.route_id)) {
            Some(place) => *place = rule,
            None => {
                segment.insert_unique(hash, rule, rule_hash);
                self.len += 1;
            }
        }
    }

    /// Takes the rule for this tenant and route out.
    pub(super) fn remove(&mut self, tenant: &str, route: &str) {
        let hash = pair_hash(text_hash(tenant), text_hash(route));
        if let Ok(entry) = self.segments[segment_of(hash)].find_entry(hash, |rule| is_for(rule, tenant, route)) {
            entry.remove();
            self.len -= 1;
        }
    }

    pub(super) fn finish(self, default_rule: Arc<Rule>) -> RuleSet {
        RuleSet { default_rule, segments: self.segments.into_iter().map(Arc::new).collect(), len: self.len }
    }
}

fn is_for(rule: &Arc<Rule>, tenant: &str, route: &str) -> bool {
    *rule.route_id == *route && *rule.tenant_id == *tenant
}

// Only operators add to the table, so that a fixed seed gives a client no handle: a look-up cannot make it grow.
const HASHER: FixedState = FixedState::with_seed(0);

fn text_hash(text: &str) -> u64 {
    HASHER.hash_one(text)
}

fn pair_hash(tenant_hash: u64, route_hash: u64) -> u64 {
    HASHER.hash_one((tenant_hash, route_hash))
}

fn rule_hash(rule: &Arc<Rule>) -> u64 {
    pair_hash(text_hash(&rule.tenant_id), text_hash(&rule.route_id))
}

/// The table within the segment uses the lowest and the highest bits.
fn segment_of(hash: u64) -> usize {
    (hash >> 32) as usize % SEGMENTS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bucket::Limit;
    use proptest::prelude::*;

    fn rule(tenant: &str, route: &str) -> Rule {
        Rule::new(tenant, route, Limit::new(1, 1.0).unwrap())
    }

    fn set(rules: impl IntoIterator<Item = Rule>) -> RuleSet {
        RuleSet::new(Arc::new(rule("default", "default")), rules)
    }

    fn named(rule: &Rule) -> String {
        format!("{}/{}", rule.tenant_id, rule.route_id)
    }

    #[test]
    fn the_most_specific_rule_applies() {
        let mut rules = vec![rule("a", "r"), rule("a", "*"), rule("*", "r"), rule("*", "*")];
        for expected in ["a/r", "a/*", "*/r", "*/*", "default/default"] {
            assert_eq!(named(set(rules.clone()).resolve("a", "r").enforce), expected);
            if !rules.is_empty() {
                rules.remove(0);
            }
        }
    }

    #[test]
    fn disabled_rules_are_skipped_but_shown_in_the_chain() {
        let set = set([Rule { enabled: false, ..rule("a", "r") }, rule("*", "r")]);
        assert_eq!(named(set.resolve("a", "r").enforce), "*/r");
        let chain = set.chain("a", "r").map(|link| link.map(|rule| named(rule)));
        assert_eq!(chain, [Some("a/r".into()), None, Some("*/r".into()), None]);
    }

    #[test]
    fn shadow_rules_are_counted_beside_the_one_that_decides() {
        let shadow = |tenant, route| Rule { mode: Mode::Shadow, ..rule(tenant, route) };
        let set = set([shadow("a", "r"), shadow("a", "*"), rule("*", "r"), shadow("*", "*")]);
        let resolved = set.resolve("a", "r");
        assert_eq!(named(resolved.enforce), "*/r");
        assert_eq!(resolved.shadow.map(|rule| named(rule)), Some("a/r".into()));
        let resolved = set.resolve("b", "r");
        assert_eq!((named(resolved.enforce), resolved.shadow), ("*/r".into(), None));
        let resolved = set.resolve("b", "other");
        assert_eq!(named(resolved.enforce), "default/default");
        assert_eq!(resolved.shadow.map(|rule| named(rule)), Some("*/*".into()));
    }

    fn small_rule() -> impl Strategy<Value = Rule> {
        let id = || prop::sample::select(vec!["a", "b", "c", "*"]);
        (id(), id(), any::<bool>(), any::<bool>()).prop_map(|(tenant, route, enabled, shadow)| Rule {
            enabled,
            mode: if shadow { Mode::Shadow } else { Mode::Enforce },
            ..rule(tenant, route)
        })
    }

    proptest! {
        #[test]
        fn resolve_agrees_with_a_linear_search(
            rules in prop::collection::vec(small_rule(), 0..16),
            tenant in "[abcd]",
            route in "[abcd]",
        ) {
            let set = set(rules.clone());
            let candidates: Vec<&Rule> = [(&*tenant, &*route), (&*tenant, "*"), ("*", &*route), ("*", "*")]
                .iter()
                .filter_map(|(t, r)| rules.iter().rfind(|rule| *rule.tenant_id == **t && *rule.route_id == **r))
                .filter(|rule| rule.enabled)
                .collect();
            let decides = candidates.iter().position(|rule| rule.mode == Mode::Enforce);
            let shadow = candidates[..decides.unwrap_or(candidates.len())].first().map(|rule| (*rule).clone());

            let resolved = set.resolve(&tenant, &route);
            let expected = decides.map_or_else(|| rule("default", "default"), |at| candidates[at].clone());
            prop_assert_eq!(&**resolved.enforce, &expected);
            prop_assert_eq!(resolved.shadow.map(|rule| (**rule).clone()), shadow);
        }
    }
}
