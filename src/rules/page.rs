//! The rules in force, page by page, in the order of their ids.

use std::collections::BinaryHeap;
use std::sync::Arc;

use super::edit::RuleId;
use super::{Mode, Rule, RuleSet};

/// Which rules to show.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Of this tenant alone, which may be `*`.
    pub tenant: Option<String>,
    /// For this route alone, which may be `*`.
    pub route: Option<String>,
    /// Only those behind this one.
    pub after: Option<RuleId>,
}

/// A rule in the order of its id.
struct Ordered<'a>(&'a Arc<Rule>);

impl Ordered<'_> {
    fn key(&self) -> (&str, &str, Mode) {
        (&self.0.tenant_id, &self.0.route_id, self.0.mode)
    }
}

impl PartialEq for Ordered<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Ordered<'_> {}

impl PartialOrd for Ordered<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ordered<'_> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

/// The first `limit` rules that `filter` lets through, and whether there are more. One look at each rule of the set,
/// whose rules lie in no order: not for a thread that serves others. Who goes on after the last of a page sees every
/// rule that stays there exactly once, whatever comes and goes meanwhile.
pub fn page(set: &RuleSet, filter: &Filter, limit: usize) -> (Vec<Arc<Rule>>, bool) {
    let after = filter.after.as_ref().map(|id| (&*id.tenant_id, &*id.route_id, id.mode));
    let mut smallest = BinaryHeap::with_capacity(limit + 2);
    for rule in set.iter().map(Ordered) {
        let shown = filter.tenant.as_deref().is_none_or(|tenant| tenant == &*rule.0.tenant_id)
            && filter.route.as_deref().is_none_or(|route| route == &*rule.0.route_id)
            && after.is_none_or(|after| rule.key() > after);
        // One more than asked for tells whether there is another page.
        if shown && (smallest.len() <= limit || smallest.peek().is_some_and(|greatest| rule < *greatest)) {
            smallest.push(rule);
            if smallest.len() > limit + 1 {
                smallest.pop();
            }
        }
    }
    let more = smallest.len() > limit;
    let sorted = smallest.into_sorted_vec();
    (sorted.into_iter().take(limit).map(|rule| Arc::clone(rule.0)).collect(), more)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bucket::Limit;
    use proptest::prelude::*;

    fn rule(tenant: &str, route: &str) -> Rule {
        Rule::new(tenant, route, Limit::new(1, 1.0).unwrap())
    }

    proptest! {
        #[test]
        fn pages_show_every_rule_once_and_in_order(ids in prop::collection::btree_set(("[a-c*]", "[a-c*]{1,2}"), 0..40), limit in 1..12_usize) {
            let set = RuleSet::new(Arc::new(rule("default", "default")), ids.iter().map(|(t, r)| rule(t, r)));
            let (mut seen, mut filter) = (Vec::new(), Filter::default());
            loop {
                let (rules, more) = page(&set, &filter, limit);
                prop_assert!(rules.len() <= limit && (!more || rules.len() == limit));
                seen.extend(rules.iter().map(|rule| (rule.tenant_id.to_string(), rule.route_id.to_string())));
                filter.after = rules.last().map(|rule| RuleId::of(rule));
                if !more {
                    break;
                }
            }
            prop_assert_eq!(seen, ids.into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_page_can_be_of_one_tenant_or_route() {
        let ids = [("a", "x"), ("a", "y"), ("*", "x"), ("b", "x")];
        let set = RuleSet::new(Arc::new(rule("d", "d")), ids.map(|(t, r)| rule(t, r)));
        let count = |tenant: Option<&str>, route: Option<&str>| {
            let filter = Filter { tenant: tenant.map(Into::into), route: route.map(Into::into), after: None };
            page(&set, &filter, 10).0.len()
        };
        assert_eq!((count(Some("a"), None), count(None, Some("x")), count(Some("*"), None)), (2, 3, 1));
        assert_eq!((count(Some("a"), Some("x")), count(None, None)), (1, 4));
    }
}
