//! The rules of one tenant and route, and where they stand in the set.

use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashTable;

use crate::rule::{Mode, Rule};

/// Rules are spread over so many segments that a set which differs in one rule can share all segments but one with its
/// predecessor: among 1,000,000 rules a segment holds about 1,000.
pub(super) const SEGMENTS: usize = 1024;

/// A part of all rules.
pub(super) type Segment = HashTable<Pair>;

/// The rules written for one tenant and route: one that decides, one in shadow mode beside it.
#[derive(Clone, Debug, Default)]
pub(super) struct Pair {
    pub(super) enforce: Option<Arc<Rule>>,
    pub(super) shadow: Option<Arc<Rule>>,
}

impl Pair {
    pub(super) fn of(&self, mode: Mode) -> Option<&Arc<Rule>> {
        match mode {
            Mode::Enforce => self.enforce.as_ref(),
            Mode::Shadow => self.shadow.as_ref(),
        }
    }

    pub(super) fn of_mut(&mut self, mode: Mode) -> &mut Option<Arc<Rule>> {
        match mode {
            Mode::Enforce => &mut self.enforce,
            Mode::Shadow => &mut self.shadow,
        }
    }

    pub(super) fn rules(&self) -> impl Iterator<Item = &Arc<Rule>> {
        self.enforce.iter().chain(&self.shadow)
    }

    /// Either of them: both have the same ids.
    fn any(&self) -> Option<&Arc<Rule>> {
        self.enforce.as_ref().or(self.shadow.as_ref())
    }

    pub(super) fn is_for(&self, tenant: &str, route: &str) -> bool {
        self.any().is_some_and(|rule| *rule.route_id == *route && *rule.tenant_id == *tenant)
    }

    /// What it is found by. A pair without rules stands in no table.
    pub(super) fn hash(&self) -> u64 {
        self.any().map_or(0, |rule| pair_hash(text_hash(&rule.tenant_id), text_hash(&rule.route_id)))
    }

    pub(super) fn same_ids(&self, other: &Self) -> bool {
        self.any().is_some_and(|rule| other.is_for(&rule.tenant_id, &rule.route_id))
    }

    fn same_as(&self, other: &Self) -> bool {
        let same = |one: &Option<Arc<Rule>>, two: &Option<Arc<Rule>>| match (one, two) {
            (Some(one), Some(two)) => Arc::ptr_eq(one, two),
            (None, None) => true,
            _ => false,
        };
        same(&self.enforce, &other.enforce) && same(&self.shadow, &other.shadow)
    }
}

// Only operators add to the table, so that a fixed seed gives a client no handle: a look-up cannot make it grow.
const HASHER: FixedState = FixedState::with_seed(0);

pub(super) fn text_hash(text: &str) -> u64 {
    HASHER.hash_one(text)
}

pub(super) fn pair_hash(tenant_hash: u64, route_hash: u64) -> u64 {
    HASHER.hash_one((tenant_hash, route_hash))
}

/// The table within the segment uses the lowest and the highest bits.
pub(super) fn segment_of(hash: u64) -> usize {
    (hash >> 32) as usize % SEGMENTS
}

/// Do both hold the very same rules?
pub(super) fn same_segment(ours: &Arc<Segment>, theirs: &Arc<Segment>) -> bool {
    Arc::ptr_eq(ours, theirs)
        || ours.len() == theirs.len()
            && ours.iter().all(|pair| {
                theirs.find(pair.hash(), |their| their.same_ids(pair)).is_some_and(|their| pair.same_as(their))
            })
}
