//! What is there and what shall be → the difference, one readable line a rule.

use std::collections::BTreeMap;
use std::fmt;

use super::format::fields;
use super::{Broken, Row, RuleId};
use crate::rule::{Rule, shown};

/// What happens to one rule.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// It is new.
    Add(Rule),
    /// It becomes another.
    Replace {
        /// What is there.
        before: Row,
        /// What shall be.
        after: Rule,
    },
    /// It goes away.
    Delete(Row),
}

impl Change {
    /// Whose change it is.
    pub fn id(&self) -> RuleId {
        match self {
            Self::Add(rule) => RuleId::of(rule),
            Self::Replace { before: row, .. } | Self::Delete(row) => row.id.clone(),
        }
    }

    /// The row that has to be there for the change to be meant.
    pub(super) fn before(&self) -> Option<&Row> {
        match self {
            Self::Add(_) => None,
            Self::Replace { before, .. } => Some(before),
            Self::Delete(row) => Some(row),
        }
    }

    /// The rule that shall be there.
    pub(super) fn after(&self) -> Option<&Rule> {
        match self {
            Self::Add(rule) | Self::Replace { after: rule, .. } => Some(rule),
            Self::Delete(_) => None,
        }
    }
}

/// `+ a/r: capacity 5, refill_per_second 1`, `~ a/r: capacity 5 → 6`, `- a/r: …`
impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = self.id();
        match self {
            Self::Add(rule) => write!(f, "+ {id}: {}", terms(rule)),
            Self::Delete(Row { rule: Ok(rule), .. }) => write!(f, "- {id}: {}", terms(rule)),
            Self::Delete(Row { rule: Err(Broken { fault, .. }), .. }) => write!(f, "- {id}: invalid ({fault})"),
            Self::Replace { before: Row { rule: Ok(before), .. }, after } => {
                write!(f, "~ {id}: {}", differences(before, after))
            }
            Self::Replace { before: Row { rule: Err(Broken { fault, .. }), .. }, after } => {
                write!(f, "~ {id}: invalid ({fault}) → {}", terms(after))
            }
        }
    }
}

/// The fields that a rule sets, ids and mode aside.
fn terms(rule: &Rule) -> String {
    let set = fields(rule).into_iter().filter_map(|(name, value)| Some(format!("{name} {}", worded(&value?))));
    set.collect::<Vec<_>>().join(", ")
}

/// The fields in which two rules differ, old → new.
pub(super) fn differences(before: &Rule, after: &Rule) -> String {
    let both = fields(before).into_iter().zip(fields(after));
    let differ = both.filter(|((_, before), (_, after))| before != after);
    let worded = |value: Option<String>| value.map_or_else(|| "–".to_owned(), |value| worded(&value));
    let lines = differ.map(|((name, before), (_, after))| format!("{name} {} → {}", worded(before), worded(after)));
    lines.collect::<Vec<_>>().join(", ")
}

/// A value on one line; text that is no plain word in quotes.
fn worded(value: &str) -> String {
    let plain = value.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'.');
    if plain { value.to_owned() } else { format!("\"{}\"", shown(value)) }
}

/// All changes to be made, in the order of their ids, and how many rules they leave alone.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// What changes.
    pub changes: Vec<Change>,
    /// Rules that are there already as they shall be.
    pub unchanged: usize,
    /// Rows that are there now.
    pub present: usize,
}

impl Plan {
    /// From what is there to what shall be. `replace`: what is not wanted goes away; otherwise it stays.
    pub fn new(present: Vec<Row>, wanted: impl IntoIterator<Item = Rule>, replace: bool) -> Self {
        let mut plan = Self { present: present.len(), ..Self::default() };
        let mut rows: BTreeMap<RuleId, Row> = present.into_iter().map(|row| (row.id.clone(), row)).collect();
        for rule in wanted {
            match rows.remove(&RuleId::of(&rule)) {
                None => plan.changes.push(Change::Add(rule)),
                Some(row) if row.rule.as_ref() == Ok(&rule) => plan.unchanged += 1,
                Some(row) => plan.changes.push(Change::Replace { before: row, after: rule }),
            }
        }
        if replace {
            plan.changes.extend(rows.into_values().map(Change::Delete));
        }
        plan.changes.sort_by_cached_key(Change::id);
        plan
    }

    /// One rule goes away.
    pub fn delete(row: Row) -> Self {
        Self { changes: vec![Change::Delete(row)], unchanged: 0, present: 1 }
    }

    /// How many rules are added, changed and deleted.
    pub fn counts(&self) -> (usize, usize, usize) {
        self.changes.iter().fold((0, 0, 0), |(added, changed, deleted), change| match change {
            Change::Add(_) => (added + 1, changed, deleted),
            Change::Replace { .. } => (added, changed + 1, deleted),
            Change::Delete(_) => (added, changed, deleted + 1),
        })
    }

    /// Would more than half of all rules go away? Nobody means that often.
    pub fn deletes_most(&self) -> bool {
        self.counts().2 * 2 > self.present
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bucket::Limit;
    use crate::rule::Mode;

    fn rule(tenant: &str, capacity: i64) -> Rule {
        Rule::new(tenant, "r", Limit::new(capacity, 0.5).unwrap())
    }

    fn row(rule: Rule) -> Row {
        Row { id: RuleId::of(&rule), rule: Ok(rule) }
    }

    fn lines(plan: &Plan) -> Vec<String> {
        plan.changes.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_difference_is_one_line_a_rule() {
        let shadow = Rule { mode: Mode::Shadow, ..rule("a", 5) };
        let commented = Rule { comment: Some("x\ny".into()), enabled: false, ..rule("b", 6) };
        let present = vec![row(rule("a", 5)), row(rule("b", 5)), row(shadow.clone()), row(rule("c", 1))];
        let wanted = [rule("new", 9), commented, rule("a", 5)];
        let plan = Plan::new(present.clone(), wanted.clone(), true);
        assert_eq!(
            lines(&plan),
            [
                "- a/r (shadow): capacity 5, refill_per_second 0.5",
                r#"~ b/r: capacity 5 → 6, enabled – → false, comment – → "x\ny""#,
                "- c/r: capacity 1, refill_per_second 0.5",
                "+ new/r: capacity 9, refill_per_second 0.5",
            ]
        );
        assert_eq!((plan.counts(), plan.unchanged, plan.deletes_most()), ((1, 1, 2), 1, false));
        let plan = Plan::new(present, wanted, false);
        assert_eq!((plan.counts(), plan.unchanged), ((1, 1, 0), 1));
    }

    #[test]
    fn a_row_that_is_no_rule_can_be_mended_and_deleted() {
        let broken = Broken { fault: "capacity is 0".into(), values: vec![] };
        let present = || vec![Row { id: RuleId::of(&rule("a", 1)), rule: Err(broken.clone()) }];
        let mended = Plan::new(present(), [rule("a", 5)], false);
        assert_eq!(lines(&mended), ["~ a/r: invalid (capacity is 0) → capacity 5, refill_per_second 0.5"]);
        let gone = Plan::new(present(), [], true);
        assert_eq!((lines(&gone), gone.deletes_most()), (vec!["- a/r: invalid (capacity is 0)".to_owned()], true));
    }
}
