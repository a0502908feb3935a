//! What the table has of the columns of a rule, and rules as arrays of text to be cast to them.

use std::collections::HashMap;

use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Row as Record, Transaction};

use super::statement;
use crate::rules::edit::format::{fields, mode};
use crate::rules::edit::plan::Change;
use crate::rules::edit::{EditError, RuleId};
use crate::rules::postgres::{DatabaseError, RULE_COLUMNS};
use crate::rules::{Mode, Rule};

pub(super) const NAME: &str = "rate_limit_rule";

/// Values of a statement, with their types.
pub(super) type Parameters<'a> = Vec<(&'a (dyn ToSql + Sync), Type)>;

/// What the table has of the columns of a rule.
pub(super) struct Columns {
    /// Those of [`RULE_COLUMNS`] that are there, with their types.
    types: HashMap<String, String>,
    /// Is the time of a change kept?
    pub(super) updated_at: bool,
}

impl Columns {
    pub(super) async fn read(transaction: &Transaction<'_>) -> Result<Self, EditError> {
        let there = "SELECT attname::text, atttypid::regtype::text FROM pg_attribute \
                     WHERE attrelid = to_regclass($1::text) AND attnum > 0 AND NOT attisdropped";
        let failed = statement("reading the columns of the table");
        let records = transaction.query_typed(there, &[(&NAME, Type::TEXT)]).await.map_err(failed)?;
        let pair = |record: &Record| Ok((record.try_get(0)?, record.try_get(1)?));
        let types: HashMap<String, String> = records.iter().map(pair).collect::<Result<_, _>>().map_err(failed)?;
        if types.is_empty() {
            return Err(DatabaseError::NoTable(NAME).into());
        }
        match RULE_COLUMNS.iter().find(|(column, needed)| *needed && !types.contains_key(*column)) {
            Some((column, _)) => Err(DatabaseError::NoColumn(NAME, column).into()),
            None => Ok(Self { updated_at: types.contains_key("updated_at"), types }),
        }
    }

    /// The columns of a rule that are there.
    pub(super) fn there(&self) -> impl Iterator<Item = &'static str> {
        RULE_COLUMNS.iter().map(|(column, _)| *column).filter(|column| self.types.contains_key(*column))
    }

    /// All columns of a rule of row `t` as text, named, in the order that a rule is read in.
    pub(super) fn list(&self) -> String {
        let text = |(column, _): &(&str, bool)| match self.types.contains_key(*column) {
            true => format!("t.{column}::text AS {column}"),
            false => format!("NULL::text AS {column}"),
        };
        RULE_COLUMNS.iter().map(text).collect::<Vec<_>>().join(", ")
    }

    /// The mode of row `t`.
    pub(super) fn mode(&self) -> &'static str {
        if self.types.contains_key("mode") { "coalesce(t.mode::text, 'enforce')" } else { "'enforce'" }
    }

    /// Row `t` is that of row `n`, whose columns are text.
    pub(super) fn same(&self) -> String {
        format!("t.tenant_id = n.tenant_id AND t.route_id = n.route_id AND {} = n.mode", self.mode())
    }

    /// Column of row `n`, in the type of the table. Refill goes through NUMERIC, so that a table of whole numbers rounds
    /// it, which is found out later, in words that help.
    pub(super) fn cast(&self, column: &str) -> String {
        let kind = if column == "refill_per_second" { "numeric" } else { &self.types[column] };
        // Assigned as text where it is text: a type would cut what is too long.
        if kind.starts_with("character") { format!("n.{column}") } else { format!("n.{column}::{kind}") }
    }

    /// Is there a column for whatever is not the default?
    pub(super) fn check(&self, changes: &[Change]) -> Result<(), EditError> {
        for rule in changes.iter().filter_map(Change::after) {
            let shadow = ("mode", (rule.mode == Mode::Shadow).then(String::new));
            let set = fields(rule).into_iter().chain([shadow]).filter(|(_, value)| value.is_some());
            if let Some((column, _)) = set.into_iter().find(|(column, _)| !self.types.contains_key(*column)) {
                return Err(EditError::NoColumn { rule: RuleId::of(rule), column });
            }
        }
        Ok(())
    }
}

/// Rows to match, as the arrays of `unnest`.
pub(super) struct Arrays {
    names: Vec<&'static str>,
    values: Vec<Vec<Option<String>>>,
}

impl Arrays {
    /// Only what names them.
    pub(super) fn ids<'a>(ids: impl Iterator<Item = &'a RuleId>) -> Self {
        let mut arrays = Self { names: vec!["tenant_id", "route_id", "mode"], values: vec![Vec::new(); 3] };
        for id in ids {
            let name = [&*id.tenant_id, &*id.route_id, mode(id.mode)];
            arrays.values.iter_mut().zip(name).for_each(|(array, value)| array.push(Some(value.to_owned())));
        }
        arrays
    }

    /// Every field of every rule, also those that the table has no column for.
    pub(super) fn rules<'a>(rules: impl Iterator<Item = &'a Rule>) -> Self {
        let names = RULE_COLUMNS.map(|(column, _)| column).to_vec();
        let mut values = vec![Vec::new(); names.len()];
        for rule in rules {
            for (name, array) in names.iter().zip(&mut values) {
                array.push(value(rule, name));
            }
        }
        Self { names, values }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.values.first().is_none_or(Vec::is_empty)
    }

    /// `unnest(…) AS n(…)`
    pub(super) fn table(&self) -> String {
        let parameters: Vec<String> = (1..=self.names.len()).map(|n| format!("${n}::text[]")).collect();
        format!("unnest({}) AS n({})", parameters.join(", "), self.names.join(", "))
    }

    pub(super) fn parameters(&self) -> Parameters<'_> {
        self.values.iter().map(|array| (array as &(dyn ToSql + Sync), Type::TEXT_ARRAY)).collect()
    }
}

/// What a column holds for a rule.
fn value(rule: &Rule, column: &str) -> Option<String> {
    let default = match column {
        "tenant_id" => return Some(rule.tenant_id.to_string()),
        "route_id" => return Some(rule.route_id.to_string()),
        "mode" => return Some(mode(rule.mode).to_owned()),
        "shards" => Some("1"),
        "enabled" => Some("true"),
        _ => None,
    };
    let set = fields(rule).into_iter().find(|(name, _)| *name == column).and_then(|(_, value)| value);
    set.or(default.map(str::to_owned))
}
