//! What became of the attempts to read a source: for the log, `/api/v1/status` and the metrics.

use std::time::Duration;

use tokio::time::Instant;

use super::file::FileError;
use super::postgres::DatabaseError;

/// So many faults are kept by name; the rest is only counted.
const MOST_NAMED: usize = 100;

/// Where rules and keys are read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// `rules.file`, or `identity.keys_file`.
    File,
    /// `rules.database_url`.
    Postgres,
    /// `rules.snapshot`.
    Snapshot,
}

impl Source {
    /// Every source.
    pub const ALL: [Self; 3] = [Self::File, Self::Postgres, Self::Snapshot];

    /// The `source` label of `sekisho_rules_reloads_total`.
    pub fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Postgres => "postgres",
            Self::Snapshot => "snapshot",
        }
    }
}

/// Why a source failed as a whole. Never contains the password of the database.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file of rules or keys.
    #[error(transparent)]
    File(#[from] FileError),
    /// The database.
    #[error("rules database: {0}")]
    Database(#[from] DatabaseError),
    /// `identity.mode = "registered"`, and nothing that knows keys.
    #[error("identity.mode \"registered\" needs identity.keys_file or rules.database_url")]
    NoKeys,
    /// The system refuses what reading needs.
    #[error("while preparing to read rules: {0}")]
    System(#[from] std::io::Error),
}

/// Entries of a source that were left out, each named with its place and what is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// How many.
    pub total: usize,
    /// The first of them, one line each.
    pub faults: Vec<String>,
    most: usize,
}

impl Default for Rejected {
    fn default() -> Self {
        Self { total: 0, faults: Vec::new(), most: MOST_NAMED }
    }
}

impl Rejected {
    /// Keeps every fault by name.
    pub(super) fn unbounded() -> Self {
        Self { most: usize::MAX, ..Self::default() }
    }

    /// Counts a fault, and words it if there is room.
    pub(super) fn push(&mut self, fault: impl FnOnce() -> String) {
        self.total += 1;
        if self.faults.len() < self.most {
            self.faults.push(fault());
        }
    }
}

/// How the rules (or keys) of this process stand.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// Entries in force.
    pub loaded: usize,
    /// Where they come from; `None`: nothing was read yet.
    pub source: Option<Source>,
    /// Since the last good read; where that was of a snapshot, since it was written.
    pub age: Option<Duration>,
    /// Entries that the last good read left out.
    pub rejected: Rejected,
    /// Why the last attempt failed; `None` if it did not.
    pub last_error: Option<String>,
    /// Why the snapshot could not be written; `None` if it could, or if there is none.
    pub snapshot_error: Option<String>,
    /// Attempts since the start as (good, failed), in the order of [`Source::ALL`].
    pub reloads: [(u64, u64); 3],
}

/// What became of a snapshot.
#[derive(Debug)]
pub(super) enum SnapshotState {
    /// It was read, and is as old as this: no younger are the entries in force.
    Read { age: Duration },
    /// It was to be written.
    Written { fault: Option<String> },
}

/// Keeps the [`Status`], and logs what is new in it.
#[derive(Debug)]
pub(super) struct Record {
    what: &'static str,
    read_at: Option<Instant>,
    status: Status,
}

impl Record {
    /// `what` is read, in the words of the log.
    pub(super) fn new(what: &'static str) -> Self {
        Self { what, read_at: None, status: Status::default() }
    }

    /// The status of this moment, `loaded` entries being in force.
    pub(super) fn status(&self, loaded: usize) -> Status {
        Status { loaded, age: self.read_at.map(|read_at| read_at.elapsed()), ..self.status.clone() }
    }

    /// A source was read; `changed`: it differs from what was in force.
    pub(super) fn good(&mut self, source: Source, loaded: usize, rejected: Rejected, changed: bool) {
        let (what, from) = (self.what, source.name());
        for fault in rejected.faults.iter().filter(|fault| !self.status.rejected.faults.contains(fault)) {
            tracing::error!(source = from, "{fault}; left out, the last good version stays if there is one");
        }
        let unnamed = rejected.total - rejected.faults.len();
        if unnamed > 0 && rejected.total != self.status.rejected.total {
            tracing::error!(source = from, "{unnamed} more faulty {what} left out");
        }
        if changed || self.status.last_error.is_some() || self.status.source != Some(source) {
            tracing::info!(source = from, loaded, rejected = rejected.total, "{what} loaded");
        }
        self.status.reloads[source as usize].0 += 1;
        self.status.source = Some(source);
        self.status.rejected = rejected;
        self.status.last_error = None;
        self.read_at = Some(Instant::now());
    }

    /// What there is to say about the snapshot.
    pub(super) fn snapshot(&mut self, state: SnapshotState) {
        match state {
            SnapshotState::Read { age } => self.read_at = Instant::now().checked_sub(age).or(self.read_at),
            SnapshotState::Written { fault } => {
                if let Some(fault) = fault.as_ref().filter(|fault| self.status.snapshot_error.as_ref() != Some(fault)) {
                    tracing::error!("{fault}");
                }
                self.status.snapshot_error = fault;
            }
        }
    }

    /// A source failed as a whole.
    pub(super) fn failed(&mut self, source: Source, error: &LoadError) {
        let error = error.to_string();
        if self.status.last_error.as_ref() != Some(&error) {
            tracing::error!(source = source.name(), "{error}; the {} in force stay", self.what);
        }
        self.status.reloads[source as usize].1 += 1;
        self.status.last_error = Some(error);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The lines that `work` logs.
    fn logged(work: impl FnOnce()) -> Vec<String> {
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
        tracing::subscriber::with_default(subscriber, work);
        String::from_utf8(log.0.lock().clone()).unwrap().lines().map(str::to_owned).collect()
    }

    fn rejected(faults: &[&str]) -> Rejected {
        let mut rejected = Rejected::default();
        faults.iter().for_each(|fault| rejected.push(|| (*fault).to_owned()));
        rejected
    }

    #[test]
    fn a_fault_is_logged_when_it_appears_and_not_at_every_refresh() {
        let mut record = Record::new("rules");
        assert_eq!(logged(|| record.good(Source::File, 1, rejected(&["first"]), true)).len(), 2);
        assert_eq!(logged(|| record.good(Source::File, 1, rejected(&["first"]), false)), [] as [String; 0]);
        let lines = logged(|| record.good(Source::File, 1, rejected(&["first", "second"]), false));
        assert!(lines.len() == 1 && lines[0].contains("second"), "{lines:?}");
    }

    #[test]
    fn a_failing_source_is_logged_once_and_so_is_its_recovery() {
        let mut record = Record::new("rules");
        record.good(Source::Postgres, 1, rejected(&[]), true);
        assert_eq!(logged(|| record.failed(Source::Postgres, &LoadError::NoKeys)).len(), 1);
        assert_eq!(logged(|| record.failed(Source::Postgres, &LoadError::NoKeys)).len(), 0);
        assert!(record.status(1).last_error.is_some());
        assert_eq!(logged(|| record.good(Source::Postgres, 1, rejected(&[]), false)).len(), 1);
        let status = record.status(1);
        assert_eq!((status.last_error, status.reloads), (None, [(0, 0), (2, 2), (0, 0)]));
    }

    #[test]
    fn only_so_many_faults_are_kept_but_all_are_counted() {
        let mut rejected = Rejected::default();
        (0..1000).for_each(|n| rejected.push(|| n.to_string()));
        assert_eq!((rejected.total, rejected.faults.len()), (1000, MOST_NAMED));
    }
}
