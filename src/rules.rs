//! Which limit applies to a tenant and route: a [`Rule`](crate::rule::Rule), found in an immutable [`RuleSet`].
//!
//! | module | its one purpose |
//! |---|---|
//! | `raw` | a rule as a source wrote it → a rule, or one sentence about what is wrong |
//! | `file`, `postgres` | the sources: stream entries, each judged alone |
//! | `merge` | entries and the set in force → the next set |
//! | `set` | the immutable, indexed [`RuleSet`] |
//! | `rejected` | what was left out of a source, and why |
//! | [`edit`] | changes to the table in PostgreSQL, for commands and the admin API |
//! | `page` | the rules in force, page by page |
//! | `snapshot` | the last good rules on disk |
//! | [`keys`] | registered API keys |
//! | `hold_back` | no change that would drop most rules |
//! | [`judge`] | who else has a say before rules come into force |
//! | [`change`] | what messengers say has changed, until the loader takes it |
//! | `messages` | what a message about changed rules says |
//! | `background` | long work, not at the expense of requests |
//! | `current` | [`Rules`]: the set in force and its [`Status`], shared by all |
//! | [`loader`] | when to read which source, and how much of it |

mod background;
pub mod change;
mod current;
pub mod edit;
mod file;
mod hold_back;
pub mod judge;
pub mod keys;
pub mod loader;
mod merge;
pub(crate) mod messages;
mod page;
pub(crate) mod postgres;
mod raw;
mod rejected;
mod report;
mod set;
mod snapshot;

pub use current::Rules;
pub(crate) use file::read_array;
pub use file::{FileError, read_rule_set};
pub use loader::{Checked, Loader};
pub use page::{Filter, page};
pub use postgres::DatabaseError;
pub(crate) use raw::without_position;
pub use rejected::Rejected;
pub use report::{LoadError, Reads, Source, Status};
pub use set::{Resolved, RuleSet};

pub use crate::rule::{ANY, FailurePolicy, Mode, Rule, parse_refill};
