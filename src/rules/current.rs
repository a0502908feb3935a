//! The rules in force, shared by all.

use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;

use super::background::free_in_background;
use super::merge::Merged;
use super::rejected::Rejected;
use super::report::{Extent, LoadError, Record, SnapshotState, Source, Status};
use super::{Rule, RuleSet};

/// The rules in force, replaced as a whole when a source changes.
#[derive(Debug)]
pub struct Rules {
    current: ArcSwap<RuleSet>,
    /// The set before, kept until the next change: freeing hundreds of thousands of rules is not for the request that
    /// happens to be the last to look at them.
    retired: Mutex<Option<Arc<RuleSet>>>,
    record: Mutex<Record>,
}

impl Rules {
    /// Only the default rule.
    pub fn new(default_rule: Rule) -> Self {
        Self::of(RuleSet::new(Arc::new(default_rule), []))
    }

    /// These rules, which no source has to confirm.
    pub fn of(set: RuleSet) -> Self {
        Self {
            current: ArcSwap::from_pointee(set),
            retired: Mutex::new(None),
            record: Mutex::new(Record::new("rules")),
        }
    }

    /// The snapshot of this moment. Hold it for the length of a decision, no longer.
    pub fn load(&self) -> Guard<Arc<RuleSet>> {
        self.current.load()
    }

    /// How the rules stand.
    pub fn status(&self) -> Status {
        self.record.lock().status(self.current.load().len())
    }

    /// The set in force, to make the next one from. Frees the one before.
    pub(super) fn in_force(&self) -> Arc<RuleSet> {
        if let Some(retired) = self.retired.lock().take() {
            free_in_background(retired);
        }
        self.current.load_full()
    }

    /// Puts what a source gave in force; says whether anything changed.
    pub(super) fn replace(&self, source: Source, extent: Extent, Merged { set, rejected }: Merged) -> bool {
        let changed = !set.same_as(&self.current.load());
        let loaded = set.len();
        if changed {
            let before = self.current.swap(Arc::new(set));
            *self.retired.lock() = Some(before);
        }
        self.record.lock().good(source, extent, loaded, rejected, changed);
        changed
    }

    /// What the last reads left out.
    pub(super) fn rejected(&self) -> Rejected {
        self.record.lock().rejected()
    }

    /// Counts reads that went well, or messages.
    pub(super) fn count_good(&self, source: Source, count: u64) {
        self.record.lock().count_good(source, count);
    }

    /// What a source says is in force, although it is never read as a whole.
    pub(super) fn recovered(&self, source: Source) {
        self.record.lock().recovered(source);
    }

    /// Counts messages that could not be understood.
    pub(super) fn count_bad(&self, source: Source, count: u64) {
        self.record.lock().count_bad(source, count);
    }

    /// The snapshot that was read is this old, or could not be written.
    pub(super) fn snapshot(&self, state: SnapshotState) {
        self.record.lock().snapshot(state);
    }

    /// A source failed; what is in force stays.
    pub(super) fn failed(&self, source: Source, error: &LoadError) {
        self.record.lock().failed(source, error);
    }
}
