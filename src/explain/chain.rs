//! Every link of the chain that a rule is looked for in, and what was found there.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::rule::{ANY, Mode, Rule};
use crate::rules::{Resolved, RuleSet};

/// One entry for every rule of every link, or for the link that has none; the default rule in the end.
pub(super) fn chain(rules: &RuleSet, tenant: &str, route: &str, resolved: &Resolved<'_>) -> Value {
    let found: Vec<&Arc<Rule>> = rules.chain(tenant, route).into_iter().flatten().collect();
    let mut chain = Vec::new();
    // Shadow rules are counted up to the link that decides, that link included.
    let mut decided = false;
    for (tenant, route) in [(tenant, route), (tenant, ANY), (ANY, route), (ANY, ANY)] {
        let here = || found.iter().filter(|rule| *rule.tenant_id == *tenant && *rule.route_id == *route);
        if here().next().is_none() {
            chain.push(json!({ "rule": format!("{tenant}/{route}"), "state": "absent" }));
        }
        for rule in here() {
            let state = state(rule, resolved, decided);
            chain.push(json!({ "rule": format!("{tenant}/{route}"), "mode": rule.mode, "state": state }));
        }
        decided |= here().any(|rule| Arc::ptr_eq(rule, resolved.enforce));
    }
    let state = if decided { NOT_REACHED } else { ENFORCES };
    chain.push(json!({ "rule": "limiter.default_rule", "mode": Mode::Enforce, "state": state }));
    chain.into()
}

const ENFORCES: &str = "enforces";
const NOT_REACHED: &str = "not reached: a rule before it applies";

/// What a rule does about this request.
fn state(rule: &Arc<Rule>, resolved: &Resolved<'_>, decided: bool) -> &'static str {
    if !rule.enabled {
        "disabled: skipped"
    } else if Arc::ptr_eq(rule, resolved.enforce) {
        ENFORCES
    } else if resolved.shadow.is_some_and(|shadow| Arc::ptr_eq(rule, shadow)) {
        "shadow: counted, decides nothing"
    } else if rule.mode == Mode::Shadow && !decided {
        "shadow: not counted, a more specific shadow rule is"
    } else {
        NOT_REACHED
    }
}

/// Why the rule that decides, or is counted, is the one.
pub(super) fn why(rule: &Arc<Rule>, rules: &RuleSet) -> &'static str {
    if Arc::ptr_eq(rule, rules.default_rule()) {
        return "no rule applies; limiter.default_rule";
    }
    match (&*rule.tenant_id, &*rule.route_id) {
        (ANY, ANY) => "no rule of this tenant or route applies; a rule for everybody",
        (ANY, _) => "no rule of this tenant applies; a rule for this route",
        (_, ANY) => "no rule for this tenant and route applies; a rule for this tenant",
        _ => "a rule for this tenant and route",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bucket::Limit;

    fn rule(tenant: &str, route: &str, mode: Mode) -> Rule {
        Rule { mode, ..Rule::new(tenant, route, Limit::new(1, 1.0).unwrap()) }
    }

    fn states(rules: impl IntoIterator<Item = Rule>) -> Vec<String> {
        let set = RuleSet::new(Arc::new(rule("*", "*", Mode::Enforce)), rules);
        let chain = chain(&set, "a", "r", &set.resolve("a", "r"));
        let line = |link: &Value| format!("{} {}", link["rule"].as_str().unwrap(), link["state"].as_str().unwrap());
        chain.as_array().unwrap().iter().map(line).collect()
    }

    #[test]
    fn every_link_says_what_was_found() {
        let off = Rule { enabled: false, ..rule("a", "r", Mode::Enforce) };
        assert_eq!(
            states([off, rule("*", "r", Mode::Enforce), rule("*", "*", Mode::Shadow)]),
            [
                "a/r disabled: skipped",
                "a/* absent",
                "*/r enforces",
                "*/* not reached: a rule before it applies",
                "limiter.default_rule not reached: a rule before it applies",
            ]
        );
    }

    #[test]
    fn where_no_rule_decides_the_default_does_and_of_shadow_rules_the_first_counts() {
        assert_eq!(
            states([rule("a", "*", Mode::Shadow), rule("*", "*", Mode::Shadow)]),
            [
                "a/r absent",
                "a/* shadow: counted, decides nothing",
                "*/r absent",
                "*/* shadow: not counted, a more specific shadow rule is",
                "limiter.default_rule enforces",
            ]
        );
    }
}
