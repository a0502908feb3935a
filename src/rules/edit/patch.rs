//! Some fields of a rule as a person gives them, over those that are there.

use std::borrow::Cow;

use super::super::raw::RawTerms;
use super::RuleId;
use super::format::{fields, mode, storable};
use crate::rule::Rule;

/// What sets a field back to its default.
const DEFAULT: &str = "default";

/// New values of some fields, as text; `default` sets one back to its default.
#[derive(Clone, Debug, Default)]
pub struct Patch {
    /// Tokens.
    pub capacity: Option<String>,
    /// Tokens per second, or `"100/min"`.
    pub refill: Option<String>,
    /// Tokens one request takes.
    pub cost: Option<String>,
    /// `local`, `open`, `closed`.
    pub on_store_failure: Option<String>,
    /// Sub-buckets.
    pub shards: Option<String>,
    /// `true`, `false`.
    pub enabled: Option<String>,
    /// For people; empty: none.
    pub comment: Option<String>,
}

impl Patch {
    /// The rule `id` with these fields; all others as they are in `before`, or their default.
    ///
    /// # Errors
    /// One sentence: what is wrong and what is allowed.
    pub fn over(&self, id: &RuleId, before: Option<&Rule>) -> Result<Rule, String> {
        let old = before.map(fields).unwrap_or_default();
        let value = |field: &str, new: &Option<String>| -> Option<String> {
            match new.as_deref() {
                Some(DEFAULT) => None,
                Some(new) => Some(new.to_owned()),
                None => old.iter().find(|(name, _)| *name == field)?.1.clone(),
            }
        };
        let capacity = value("capacity", &self.capacity);
        let refill = value("refill_per_second", &self.refill);
        let (refill, refill_per_second) =
            if refill.as_ref().is_some_and(|refill| refill.contains('/')) { (refill, None) } else { (None, refill) };
        let cost = value("cost", &self.cost);
        let shards = value("shards", &self.shards);
        let enabled = value("enabled", &self.enabled);
        let comment = match self.comment.as_deref() {
            Some(comment) => Some(comment.to_owned()).filter(|comment| !comment.is_empty()),
            None => value("comment", &None),
        };
        let terms = RawTerms {
            capacity: capacity.as_deref(),
            refill_per_second: refill_per_second.as_deref(),
            refill: refill.map(Cow::Owned),
            cost: cost.as_deref(),
            on_store_failure: value("on_store_failure", &self.on_store_failure).map(Cow::Owned),
            shards: shards.as_deref(),
            mode: Some(Cow::Borrowed(mode(id.mode))),
            enabled: enabled.as_deref(),
            comment: comment.map(Cow::Owned),
        };
        let rule = terms.judge()?.into_rule(id.tenant_id.clone(), id.route_id.clone());
        storable(&rule)?;
        Ok(rule)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bucket::Limit;
    use crate::rule::{FailurePolicy, Mode};

    fn some(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn given_fields_change_and_all_others_stay() {
        let id = RuleId::new("a", "r", Mode::Shadow).unwrap();
        let before = Rule {
            mode: Mode::Shadow,
            on_store_failure: Some(FailurePolicy::Open),
            enabled: false,
            comment: Some("default".into()),
            ..Rule::new("a", "r", Limit::new(50, 0.1).unwrap())
        };
        assert_eq!(Patch::default().over(&id, Some(&before)), Ok(before.clone()));
        let patch =
            Patch { capacity: some("60"), on_store_failure: some("default"), comment: some(""), ..Patch::default() };
        let after =
            Rule { limit: Limit::new(60, 0.1).unwrap(), on_store_failure: None, comment: None, ..before.clone() };
        assert_eq!(patch.over(&id, Some(&before)), Ok(after));
        let patch = Patch { refill: some("30/min"), ..Patch::default() };
        assert_eq!(patch.over(&id, Some(&before)).unwrap().limit, Limit::new(50, 0.5).unwrap());
    }

    #[test]
    fn a_new_rule_needs_capacity_and_refill() {
        let id = RuleId::new("a", "r", Mode::Enforce).unwrap();
        let patch = Patch { capacity: some("5"), ..Patch::default() };
        assert!(patch.over(&id, None).unwrap_err().contains("neither refill_per_second nor refill"));
        assert!(Patch::default().over(&id, None).unwrap_err().starts_with("capacity is missing"));
        let patch = Patch { refill: some("1"), ..patch };
        assert_eq!(patch.over(&id, None), Ok(Rule::new("a", "r", Limit::new(5, 1.0).unwrap())));
    }
}
