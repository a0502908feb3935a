//! `sekisho check`: every source is read and judged, and nothing put in force.

use std::sync::Arc;

use super::read::{database_rules, file_rules};
use super::{Loader, temporary_runtime};
use crate::rules::RuleSet;
use crate::rules::merge::{Merge, Merged};
use crate::rules::postgres::DatabaseError;
use crate::rules::rejected::Rejected;
use crate::rules::report::LoadError;

/// What [`Loader::check`] found.
#[derive(Debug, Default)]
pub struct Checked {
    /// Good rules.
    pub rules: usize,
    /// Good keys.
    pub keys: usize,
    /// One line each: what keeps a rule, a key or a whole source from being used.
    pub faults: Vec<String>,
    /// One line each: what may be meant as it is.
    pub warnings: Vec<String>,
}

impl Checked {
    fn failed(&mut self, error: &LoadError) {
        let line = error.to_string();
        let list = match error {
            // A check may run where the database cannot be reached from.
            LoadError::Database(DatabaseError::Connect(_)) => &mut self.warnings,
            _ => &mut self.faults,
        };
        if !list.contains(&line) {
            list.push(line);
        }
    }
}

impl Loader {
    /// Reads every source there is and judges it, putting nothing in force. Not for use inside a runtime.
    pub fn check(&self) -> Checked {
        let mut checked = Checked::default();
        match temporary_runtime() {
            Ok(runtime) => runtime.block_on(self.check_sources(&mut checked)),
            Err(error) => checked.faults.push(LoadError::from(error).to_string()),
        }
        checked
    }

    async fn check_sources(&self, checked: &mut Checked) {
        // First: rules may be judged by them.
        match self.read_keys(self.keys.merge(Rejected::unbounded())).await {
            Ok(Some((source, merge))) => {
                checked.keys = merge.len();
                checked.faults.extend_from_slice(&merge.rejected().faults);
                self.keys.replace(source, merge);
            }
            Ok(None) => {}
            Err(error) => checked.failed(&error),
        }
        let mut judged = false;
        if let Some(url) = &self.settings.database_url {
            let merge = Merge::new(self.rules.in_force(), Rejected::unbounded());
            judged |= self.check_rules(checked, database_rules(url, merge).await);
        }
        // Last, so that with both the count is that of the file only where the database is away.
        if let Some(file) = &self.settings.file {
            let merge = Merge::new(self.rules.in_force(), Rejected::unbounded());
            judged |= self.check_rules(checked, file_rules(file, merge).await);
        }
        if !judged && self.settings.database_url.is_none() && self.settings.file.is_none() {
            self.judge_rules(checked, &self.rules.load());
        } else if !judged && self.judge.is_some() {
            checked.warnings.push("the rule tests were not run: no rules could be read".to_owned());
        }
    }

    /// Says whether there were rules.
    fn check_rules(&self, checked: &mut Checked, outcome: Result<Merged, LoadError>) -> bool {
        let Merged { set, rejected } = match outcome {
            Ok(merged) => merged,
            Err(error) => {
                checked.failed(&error);
                return false;
            }
        };
        checked.rules = checked.rules.max(set.len());
        checked.faults.extend(rejected.faults);
        self.judge_rules(checked, &set);
        let warning = |route: &Arc<str>| format!("rules for route {route}: this configuration has no such route");
        checked.warnings.extend(self.unknown_routes(&set).iter().map(warning));
        true
    }

    fn judge_rules(&self, checked: &mut Checked, set: &RuleSet) {
        for failure in self.judge.iter().flat_map(|judge| judge.failures(set)) {
            // Of the database's rules and of the file's, perhaps.
            if !checked.faults.contains(&failure) {
                checked.faults.push(failure);
            }
        }
    }
}
