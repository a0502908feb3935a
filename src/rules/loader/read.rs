//! Reads a source as a whole, and puts what it gives in force if nothing speaks against it.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use super::Loader;
use crate::config::Secret;
use crate::rules::background::in_background;
use crate::rules::file::read_rules;
use crate::rules::merge::{Merge, Merged};
use crate::rules::postgres::Database;
use crate::rules::rejected::Rejected;
use crate::rules::report::{Extent, LoadError, SnapshotState, Source};
use crate::rules::snapshot::write_rules;

/// So many failing rule tests are named in one line of the log.
const MOST_FAILURES_NAMED: usize = 5;

/// What tells a file from its next version.
pub(super) type Stamp = (SystemTime, u64);

impl Loader {
    pub(super) async fn rules_from_file(&self, source: Source, path: &Path) -> Result<(), LoadError> {
        let stamp = stamp(path);
        let outcome = file_rules(path, Merge::new(self.rules.in_force(), Rejected::default())).await;
        let whole = outcome.as_ref().is_ok_and(|merged| merged.rejected.total == 0);
        self.settle(source, outcome)?;
        if source == Source::File {
            *self.file_read.lock() = stamp;
            self.told.store(false, Ordering::Relaxed);
        }
        if let (Source::Snapshot, Some(snapshot)) = (source, &self.rules_snapshot) {
            snapshot.set_current(whole);
            self.rules.snapshot(SnapshotState::Read { age: snapshot.age().unwrap_or_default() });
        }
        Ok(())
    }

    /// Whether what messages said of these rules would only be undone by reading the file again.
    pub(super) fn is_overtaken(&self, path: &Path) -> bool {
        let read = *self.file_read.lock();
        self.told.load(Ordering::Relaxed) && read.is_some() && read == stamp(path)
    }

    pub(super) async fn rules_from_database(&self, url: &Secret) -> Result<(), LoadError> {
        self.meanwhile.lock().replace(Default::default());
        let mut outcome = self.read_database(url).await;
        let meanwhile = self.meanwhile.lock().take().unwrap_or_default();
        if let Ok(merged) = &mut outcome {
            // Read after this read began, so that they are no older.
            merged.keep(&self.rules.in_force(), &self.rules.rejected(), &meanwhile);
        }
        let changed = self.settle(Source::Postgres, outcome)?;
        if let Some(snapshot) = &self.rules_snapshot {
            if changed {
                snapshot.set_current(false);
            }
            let set = self.rules.in_force();
            let fault = snapshot.save(move |out| write_rules(out, &set)).await;
            self.rules.snapshot(SnapshotState::Written { fault });
        }
        Ok(())
    }

    async fn read_database(&self, url: &Secret) -> Result<Merged, LoadError> {
        let merge = Merge::new(self.rules.in_force(), Rejected::default());
        let mut database = Database::connect(&url.0).await?;
        let merged = database.read_rules(merge).await?;
        let spare = self.kept.lock().offer(database);
        if let Some(spare) = spare {
            spare.close().await;
        }
        Ok(merged)
    }

    /// Puts an outcome on record and, if it is good, in force; says whether anything changed.
    fn settle(&self, source: Source, outcome: Result<Merged, LoadError>) -> Result<bool, LoadError> {
        let admitted = outcome.and_then(|merged| {
            self.prepare()?;
            self.admit(&merged, Extent::Whole)?;
            Ok(merged)
        });
        let merged = admitted.inspect_err(|error| self.rules.failed(source, error))?;
        self.rules.count_good(source, 1);
        let changed = self.rules.replace(source, Extent::Whole, merged);
        if changed {
            self.tell_unknown_routes();
        }
        Ok(changed)
    }

    /// Reads anew what rules are judged by.
    fn prepare(&self) -> Result<(), LoadError> {
        self.judge.as_ref().map_or(Ok(()), |judge| judge.prepare()).map_err(LoadError::Refused)
    }

    /// Whether rules that are well-formed may come into force.
    pub(super) fn admit(&self, merged: &Merged, extent: Extent) -> Result<(), LoadError> {
        self.hold_back.as_ref().map_or(Ok(()), |hold| hold.lock().judge(&self.rules.load(), &merged.set, extent))?;
        let failures = self.judge.as_ref().map(|judge| judge.failures(&merged.set)).unwrap_or_default();
        if failures.is_empty() {
            return Ok(());
        }
        let named = failures[..failures.len().min(MOST_FAILURES_NAMED)].join("; ");
        let more = match failures.len().saturating_sub(MOST_FAILURES_NAMED) {
            0 => String::new(),
            more => format!("; and {more} more"),
        };
        Err(LoadError::Refused(format!("rule tests fail: {named}{more}")))
    }
}

pub(super) async fn file_rules(path: &Path, mut merge: Merge) -> Result<Merged, LoadError> {
    let path = path.to_owned();
    in_background(move || {
        read_rules(&path, &mut merge)?;
        Ok(merge.finish())
    })
    .await
}

pub(super) async fn database_rules(url: &Secret, merge: Merge) -> Result<Merged, LoadError> {
    let mut database = Database::connect(&url.0).await?;
    let merged = database.read_rules(merge).await?;
    database.close().await;
    Ok(merged)
}

fn stamp(path: &Path) -> Option<Stamp> {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}
