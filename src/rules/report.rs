//! What became of the attempts to read a source: for the log, `/api/v1/status` and the metrics.

use std::time::Duration;

use tokio::time::Instant;

use super::file::FileError;
use super::postgres::DatabaseError;
use super::rejected::Rejected;

/// Where rules and keys are read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// `rules.file`, or `identity.keys_file`.
    File,
    /// `rules.database_url`.
    Postgres,
    /// `rules.snapshot`.
    Snapshot,
    /// Messages of Kafka.
    Kafka,
    /// Messages of Redis.
    Redis,
}

impl Source {
    /// Every source.
    pub const ALL: [Self; 5] = [Self::File, Self::Postgres, Self::Snapshot, Self::Kafka, Self::Redis];

    /// The `source` label of `sekisho_rules_reloads_total`.
    pub fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Postgres => "postgres",
            Self::Snapshot => "snapshot",
            Self::Kafka => "kafka",
            Self::Redis => "redis",
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
    /// Too many rules would go at once.
    #[error(
        "{dropped} of {of} rules would go, more than half: held back; to let them go, restart, or run with \
         rules.allow_mass_delete = true"
    )]
    MassDelete {
        /// So many would go.
        dropped: usize,
        /// Of so many.
        of: usize,
    },
    /// What the rules are judged by refuses them.
    #[error("{0}")]
    Refused(String),
    /// The system refuses what reading needs.
    #[error("while preparing to read rules: {0}")]
    System(#[from] std::io::Error),
}

impl LoadError {
    /// Is it no use to try again with the same configuration?
    pub(super) fn is_final(&self) -> bool {
        match self {
            Self::Database(error) => error.is_final(),
            Self::MassDelete { .. } | Self::Refused(_) => false,
            Self::File(_) | Self::NoKeys | Self::System(_) => true,
        }
    }

    /// Was the source read well, and what it gave not put in force?
    fn is_held(&self) -> bool {
        matches!(self, Self::MassDelete { .. } | Self::Refused(_))
    }
}

/// How much of a source was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// All of it.
    Whole,
    /// What has changed.
    Part,
}

/// How often a source was read, and what became of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reads {
    /// Read well.
    pub ok: u64,
    /// Not to be read.
    pub error: u64,
    /// Read well, and not put in force: too many rules would go, or the rule tests fail.
    pub held: u64,
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
    /// Attempts since the start, in the order of [`Source::ALL`].
    pub reloads: [Reads; Source::ALL.len()],
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
    /// Whose failure [`Status::last_error`] is.
    failed: Option<Source>,
    status: Status,
}

impl Record {
    /// `what` is read, in the words of the log.
    pub(super) fn new(what: &'static str) -> Self {
        Self { what, read_at: None, failed: None, status: Status::default() }
    }

    /// The status of this moment, `loaded` entries being in force.
    pub(super) fn status(&self, loaded: usize) -> Status {
        Status { loaded, age: self.read_at.map(|read_at| read_at.elapsed()), ..self.status.clone() }
    }

    /// A source was read; `changed`: it differs from what was in force. A part that is good says nothing about the rest:
    /// neither of its age, nor of why the whole could not be read.
    pub(super) fn good(&mut self, source: Source, extent: Extent, loaded: usize, rejected: Rejected, changed: bool) {
        let (what, from) = (self.what, source.name());
        for fault in rejected.faults.iter().filter(|fault| !self.status.rejected.faults.contains(fault)) {
            tracing::error!(source = from, "{fault}; left out, the last good version stays if there is one");
        }
        let unnamed = rejected.total - rejected.faults.len();
        if unnamed > 0 && rejected.total != self.status.rejected.total {
            tracing::error!(source = from, "{unnamed} more faulty {what} left out");
        }
        let before = std::mem::replace(&mut self.status.rejected, rejected);
        let rejected = self.status.rejected.total;
        if extent == Extent::Part {
            if changed || before.total != rejected {
                tracing::info!(source = from, loaded, rejected, "{what} changed");
            }
            self.status.source = self.status.source.or(Some(source));
            return;
        }
        if changed || self.status.last_error.is_some() || self.status.source != Some(source) {
            tracing::info!(source = from, loaded, rejected, "{what} loaded");
        }
        self.status.source = Some(source);
        self.status.last_error = None;
        self.read_at = Some(Instant::now());
    }

    /// Counts good reads of a source, or good messages.
    pub(super) fn count_good(&mut self, source: Source, count: u64) {
        self.status.reloads[source as usize].ok += count;
    }

    /// Counts messages of a source that could not be understood.
    pub(super) fn count_bad(&mut self, source: Source, count: u64) {
        self.status.reloads[source as usize].error += count;
    }

    /// Entries that the last reads left out.
    pub(super) fn rejected(&self) -> Rejected {
        self.status.rejected.clone()
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
        let held = error.is_held();
        let error = error.to_string();
        if self.status.last_error.as_ref() != Some(&error) {
            tracing::error!(source = source.name(), "{error}; the {} in force stay", self.what);
        }
        let reads = &mut self.status.reloads[source as usize];
        *(if held { &mut reads.held } else { &mut reads.error }) += 1;
        self.status.last_error = Some(error);
        self.failed = Some(source);
    }

    /// What a source says is in force, although it is never read as a whole.
    pub(super) fn recovered(&mut self, source: Source) {
        if self.failed == Some(source) {
            self.status.last_error = None;
        }
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
        assert_eq!(logged(|| record.good(Source::File, Extent::Whole, 1, rejected(&["first"]), true)).len(), 2);
        assert_eq!(
            logged(|| record.good(Source::File, Extent::Whole, 1, rejected(&["first"]), false)),
            [] as [String; 0]
        );
        let lines = logged(|| record.good(Source::File, Extent::Whole, 1, rejected(&["first", "second"]), false));
        assert!(lines.len() == 1 && lines[0].contains("second"), "{lines:?}");
    }

    #[test]
    fn a_failing_source_is_logged_once_and_so_is_its_recovery() {
        let mut record = Record::new("rules");
        record.good(Source::Postgres, Extent::Whole, 1, rejected(&[]), true);
        assert_eq!(logged(|| record.failed(Source::Postgres, &LoadError::NoKeys)).len(), 1);
        assert_eq!(logged(|| record.failed(Source::Postgres, &LoadError::NoKeys)).len(), 0);
        assert!(record.status(1).last_error.is_some());
        assert_eq!(logged(|| record.good(Source::Postgres, Extent::Whole, 1, rejected(&[]), false)).len(), 1);
        let status = record.status(1);
        let reads = Reads { ok: 0, error: 2, held: 0 };
        assert_eq!((status.last_error, status.reloads[Source::Postgres as usize]), (None, reads));
    }

    #[test]
    fn a_part_that_is_good_says_nothing_about_the_whole() {
        let mut record = Record::new("rules");
        record.failed(Source::Postgres, &LoadError::NoKeys);
        record.good(Source::Postgres, Extent::Part, 1, rejected(&[]), true);
        let status = record.status(1);
        assert!(status.last_error.is_some() && status.age.is_none());
    }
}
