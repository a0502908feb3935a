//! The immutable, indexed set of rules.

mod building;
mod pair;

use std::sync::Arc;

pub(super) use self::building::Building;
use self::pair::{Pair, Segment, pair_hash, same_segment, segment_of, text_hash};
use super::{ANY, Mode, Rule};

/// The rules that apply to one tenant and route.
#[derive(Clone, Copy, Debug)]
pub struct Resolved<'a> {
    /// The rule that decides.
    pub enforce: &'a Arc<Rule>,
    /// The most specific rule in shadow mode, as specific as that one or more; counted beside it.
    pub shadow: Option<&'a Arc<Rule>>,
}

/// All rules of one moment, immutable and indexed.
#[derive(Clone, Debug)]
pub struct RuleSet {
    default_rule: Arc<Rule>,
    segments: Box<[Arc<Segment>]>,
    len: usize,
}

impl RuleSet {
    /// A set of these rules, no two of them for the same tenant, route and mode (the later would take the place of the
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
        let enabled = |rule: &&Arc<Rule>| rule.enabled;
        let mut shadow = None;
        for pair in self.links(tenant, route).flatten() {
            shadow = shadow.or_else(|| pair.shadow.as_ref().filter(enabled));
            if let Some(enforce) = pair.enforce.as_ref().filter(enabled) {
                return Resolved { enforce, shadow };
            }
        }
        Resolved { enforce: &self.default_rule, shadow }
    }

    /// The rules at each link of the chain, most specific first, of each the enforcing one and then the one in shadow
    /// mode, also those that are disabled: what [`resolve`](Self::resolve) chose from, for people.
    pub fn chain(&self, tenant: &str, route: &str) -> [Option<&Arc<Rule>>; 8] {
        let mut links = self.links(tenant, route);
        let mut pair = None;
        std::array::from_fn(|index| {
            if index % 2 == 0 {
                pair = links.next().flatten();
                pair?.enforce.as_ref()
            } else {
                pair?.shadow.as_ref()
            }
        })
    }

    /// The rule of this mode written for exactly this tenant and route, each of which may be `*`.
    pub fn get(&self, tenant: &str, route: &str, mode: Mode) -> Option<&Arc<Rule>> {
        self.find(text_hash(tenant), text_hash(route), tenant, route)?.of(mode)
    }

    /// Is there any rule written for exactly this tenant and route?
    pub(super) fn contains(&self, tenant: &str, route: &str) -> bool {
        self.find(text_hash(tenant), text_hash(route), tenant, route).is_some()
    }

    /// The rule that applies where no other does.
    pub fn default_rule(&self) -> &Arc<Rule> {
        &self.default_rule
    }

    /// Every rule but the default rule, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Rule>> {
        self.segments.iter().flat_map(|segment| segment.iter().flat_map(Pair::rules))
    }

    /// How many rules there are, not counting the default rule.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Is there none but the default rule?
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Does every rule of `other` stand here unchanged, and no other rule? Segments that both share are not looked into.
    pub(super) fn same_as(&self, other: &Self) -> bool {
        self.len == other.len
            && self.segments.iter().zip(&other.segments).all(|(ours, theirs)| same_segment(ours, theirs))
    }

    /// How many rules of `other` have no successor here: none for the same tenant, route and mode. Segments that both
    /// share are not looked into.
    pub(super) fn missing_of(&self, other: &Self) -> usize {
        let pairs = self.segments.iter().zip(&other.segments).filter(|(ours, theirs)| !Arc::ptr_eq(ours, theirs));
        let missing = |(ours, theirs): (&Arc<Segment>, &Arc<Segment>)| -> usize {
            let lacks = |pair: &Pair| {
                let here = ours.find(pair.hash(), |here| here.same_ids(pair));
                pair.rules().filter(|rule| here.is_none_or(|here| here.of(rule.mode).is_none())).count()
            };
            theirs.iter().map(lacks).sum()
        };
        pairs.map(missing).sum()
    }

    fn links<'s, 'q>(&'s self, tenant: &'q str, route: &'q str) -> impl Iterator<Item = Option<&'s Pair>> {
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

    fn find(&self, tenant_hash: u64, route_hash: u64, tenant: &str, route: &str) -> Option<&Pair> {
        let hash = pair_hash(tenant_hash, route_hash);
        self.segments[segment_of(hash)].find(hash, |pair| pair.is_for(tenant, route))
    }
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
        let chain = set.chain("a", "r").map(|link| link.map(|rule| named(rule)).unwrap_or_default());
        assert_eq!(chain, ["a/r", "", "", "", "*/r", "", "", ""]);
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

    #[test]
    fn a_shadow_rule_stands_beside_the_enforcing_one_of_the_same_ids() {
        let shadow = |tenant, route| Rule { mode: Mode::Shadow, ..rule(tenant, route) };
        let off = |rule| Rule { enabled: false, ..rule };
        let set = set([rule("a", "r"), shadow("a", "r"), rule("b", "r"), off(shadow("b", "r")), shadow("*", "r")]);
        assert_eq!(set.len(), 5);
        let resolved = |tenant| {
            let resolved = set.resolve(tenant, "r");
            (named(resolved.enforce), resolved.shadow.map(|rule| named(rule)).unwrap_or_default())
        };
        assert_eq!(resolved("a"), ("a/r".into(), "a/r".into()));
        assert_eq!(resolved("b"), ("b/r".into(), String::new()), "less specific shadow rules do not count");
        assert_eq!(resolved("c"), ("default/default".into(), "*/r".into()));
        let both = set.chain("a", "r").map(|link| link.map(|rule| rule.mode));
        assert_eq!(both[..3], [Some(Mode::Enforce), Some(Mode::Shadow), None]);
    }

    #[test]
    fn a_set_made_from_another_shares_all_but_what_changed() {
        let before = set((0..5000).map(|number| rule(&number.to_string(), "r")));
        let mut building = Building::of(&before);
        building.put(Arc::new(rule("17", "r")));
        building.put(Arc::new(Rule { mode: Mode::Shadow, ..rule("18", "r") }));
        building.remove("18", "r", Mode::Enforce);
        building.remove("18", "other", Mode::Enforce);
        building.remove("19", "r", Mode::Shadow);
        let after = building.finish_after(&before);
        let shared = before.segments.iter().zip(&after.segments).filter(|(one, two)| Arc::ptr_eq(one, two)).count();
        assert!(shared >= 1022, "{shared}");
        assert_eq!((after.len(), after.missing_of(&before), before.missing_of(&after)), (5000, 1, 1));
        assert!(!after.same_as(&before));
        let mut building = Building::of(&after);
        building.remove("18", "r", Mode::Shadow);
        let less = building.finish_after(&after);
        assert_eq!((less.len(), less.contains("18", "r"), less.missing_of(&before)), (4999, false, 1));
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
            let at = |mode: Mode| {
                [(&*tenant, &*route), (&*tenant, "*"), ("*", &*route), ("*", "*")].map(|(t, r)| {
                    let is_it = |rule: &&Rule| *rule.tenant_id == *t && *rule.route_id == *r && rule.mode == mode;
                    rules.iter().rfind(is_it).filter(|rule| rule.enabled)
                })
            };
            let decides = at(Mode::Enforce).iter().position(Option::is_some);
            let shadow = at(Mode::Shadow)[..=decides.unwrap_or(3)].iter().flatten().next().map(|rule| (*rule).clone());

            let resolved = set.resolve(&tenant, &route);
            let expected = decides.and_then(|link| at(Mode::Enforce)[link].cloned());
            prop_assert_eq!(&**resolved.enforce, &expected.unwrap_or_else(|| rule("default", "default")));
            prop_assert_eq!(resolved.shadow.map(|rule| (**rule).clone()), shadow);
        }
    }
}
