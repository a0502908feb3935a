//! `sekisho check`: every source is read and judged, and nothing put in force.

use super::read::{database_rules, file_rules};
use super::{Loader, temporary_runtime};
use crate::rules::merge::{Merge, Merged};
use crate::rules::postgres::DatabaseError;
use crate::rules::report::{LoadError, Rejected};

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
        if let Some(url) = &self.settings.database_url {
            let merge = Merge::new(self.rules.in_force(), Rejected::unbounded());
            self.check_rules(checked, database_rules(url, merge).await);
        }
        // Last, so that with both the count is that of the file only where the database is away.
        if let Some(file) = &self.settings.file {
            let merge = Merge::new(self.rules.in_force(), Rejected::unbounded());
            self.check_rules(checked, file_rules(file, merge).await);
        }
        match self.read_keys(self.keys.merge(Rejected::unbounded())).await {
            Ok(Some((_, merge))) => {
                checked.keys = merge.len();
                checked.faults.extend_from_slice(&merge.rejected().faults);
            }
            Ok(None) => {}
            Err(error) => checked.failed(&error),
        }
    }

    fn check_rules(&self, checked: &mut Checked, outcome: Result<Merged, LoadError>) {
        match outcome {
            Ok(Merged { set, rejected }) => {
                checked.rules = checked.rules.max(set.len());
                checked.faults.extend(rejected.faults);
                checked.warnings.extend(
                    self.unknown_routes(&set)
                        .iter()
                        .map(|route| format!("rules for route {route}: this configuration has no such route")),
                );
            }
            Err(error) => checked.failed(&error),
        }
    }
}
