//! Which limit applies to a tenant and route: a [`Rule`](crate::rule::Rule), found in an immutable [`RuleSet`].
//!
//! | module | its one purpose |
//! |---|---|
//! | `raw` | a rule as a source wrote it → a rule, or one sentence about what is wrong |
//! | `file`, `postgres` | the sources: stream entries, each judged alone |
//! | `merge` | entries and the set in force → the next set |
//! | `set` | the immutable, indexed [`RuleSet`] |
//! | `snapshot` | the last good rules on disk |
//! | [`keys`] | registered API keys |
//! | `hold_back` | no change that would drop most rules |
//! | [`judge`] | who else has a say before rules come into force |
//! | [`change`] | what messengers say has changed, until the loader takes it |
//! | `current` | [`Rules`]: the set in force and its [`Status`], shared by all |
//! | [`loader`] | when to read which source, and how much of it |

pub mod change;
mod current;
mod file;
mod hold_back;
pub mod judge;
pub mod keys;
pub mod loader;
mod merge;
mod postgres;
mod raw;
mod report;
mod set;
mod snapshot;

pub use current::Rules;
pub use file::{FileError, read_rule_set};
pub use loader::{Checked, Loader};
pub use postgres::DatabaseError;
pub use report::{LoadError, Reads, Rejected, Source, Status};
pub use set::{Resolved, RuleSet};

pub use crate::rule::{ANY, FailurePolicy, Mode, Rule, parse_refill};
