//! Changes to the rules in PostgreSQL, for commands and the admin API: what is there, what shall be, the difference, and
//! its writing in one transaction. The rules in force are not touched: they follow the table.
//!
//! | module | its one purpose |
//! |---|---|
//! | `id` | what names a rule, in the order of pages |
//! | `patch` | some fields of a rule as a person gives them → a rule |
//! | `plan` | what is there and what shall be → the difference, readable |
//! | `table` | reads rows, and writes a difference, all or nothing |
//! | `migrate` | brings the tables up to `conf/schema.sql` |
//! | [`format`] | rules as JSON, CSV and a table for people |

pub mod format;
mod id;
mod migrate;
mod patch;
mod plan;
mod table;

use super::Rule;
use super::postgres::DatabaseError;

pub use id::{RuleId, etag};
pub use migrate::SCHEMA;
pub use patch::Patch;
pub use plan::{Change, Plan};
pub use table::{Selection, Table};

/// A row of the table: a rule, or why it is none.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Which rule it is.
    pub id: RuleId,
    /// What it says.
    pub rule: Result<Rule, Broken>,
}

/// What a row says that is no rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// What is wrong and what is allowed.
    pub fault: String,
    /// Every value as it is, for comparison.
    pub(super) values: Vec<Option<String>>,
}

/// Why rules cannot be read for editing, or a change not be made; in the latter case nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum EditError {
    /// No connection, or no such table.
    #[error("rules database: {0}")]
    Database(#[from] DatabaseError),
    /// The server refuses a statement.
    #[error("rules database: while {doing}: {problem}")]
    Statement {
        /// What was being done.
        doing: &'static str,
        /// What the server says.
        problem: String,
    },
    /// A row that no command can name.
    #[error("rules database: {0}")]
    Unnamed(String),
    /// The table is too small for a rule.
    #[error("rule {rule}: table rate_limit_rule has no column {column}; `sekisho rules migrate` adds it")]
    NoColumn {
        /// The rule.
        rule: RuleId,
        /// What it would need.
        column: &'static str,
    },
    /// The table keeps something else than what was written.
    #[error(
        "rule {rule}: table rate_limit_rule makes it {differences}; `sekisho rules migrate` brings the table up to date"
    )]
    NotKept {
        /// The rule.
        rule: RuleId,
        /// What was written and what is kept.
        differences: String,
    },
    /// The table has room for one rule where there shall be two.
    #[error(
        "rules database: the table allows fewer rules for a tenant and route than there shall be ({0}); \
         `sekisho rules migrate` allows a shadow rule beside an enforcing one"
    )]
    OneRule(String),
    /// Somebody else was faster.
    #[error("rule {0} was changed by somebody else meanwhile; nothing was changed, try again")]
    Conflict(RuleId),
}

impl EditError {
    /// Was the rule changed by somebody else?
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Conflict(_))
    }

    /// Is it the rule that does not fit, not the database that fails?
    pub fn is_invalid_input(&self) -> bool {
        matches!(self, Self::NoColumn { .. } | Self::NotKept { .. } | Self::OneRule(_))
    }
}
