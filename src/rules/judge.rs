//! Who has a say in whether rules that are well-formed come into force.

use std::fmt::Debug;

use super::RuleSet;

/// Judges a set of rules before it comes into force.
pub trait Judge: Debug + Send + Sync {
    /// Reads anew what it judges by. Called before rules are judged that were read as a whole.
    ///
    /// # Errors
    /// One sentence; then no rules come into force.
    fn prepare(&self) -> Result<(), String>;

    /// What speaks against these rules, one line each; nothing, if they may come into force.
    fn failures(&self, set: &RuleSet) -> Vec<String>;
}
