//! A set in the making, from nothing or from another set.

use std::sync::Arc;

use super::RuleSet;
use super::pair::{Pair, SEGMENTS, Segment, pair_hash, same_segment, segment_of, text_hash};
use crate::rule::{Mode, Rule};

/// A set in the making. What started from another set copies the segments that it changes, and shares the others.
#[derive(Debug)]
pub(in crate::rules) struct Building {
    segments: Box<[Arc<Segment>]>,
    len: usize,
}

impl Default for Building {
    fn default() -> Self {
        Self { segments: (0..SEGMENTS).map(|_| Arc::default()).collect(), len: 0 }
    }
}

impl Building {
    /// Starts from the rules of `set`.
    pub(in crate::rules) fn of(set: &RuleSet) -> Self {
        Self { segments: set.segments.clone(), len: set.len }
    }

    /// Is there a rule for this tenant, route and mode?
    pub(in crate::rules) fn contains(&self, tenant: &str, route: &str, mode: Mode) -> bool {
        let hash = pair_hash(text_hash(tenant), text_hash(route));
        let pair = self.segments[segment_of(hash)].find(hash, |pair| pair.is_for(tenant, route));
        pair.is_some_and(|pair| pair.of(mode).is_some())
    }

    /// Puts a rule in, in place of the one for the same tenant, route and mode.
    pub(in crate::rules) fn put(&mut self, rule: Arc<Rule>) {
        let hash = pair_hash(text_hash(&rule.tenant_id), text_hash(&rule.route_id));
        let segment = Arc::make_mut(&mut self.segments[segment_of(hash)]);
        let mode = rule.mode;
        match segment.find_mut(hash, |pair| pair.is_for(&rule.tenant_id, &rule.route_id)) {
            Some(pair) => self.len += usize::from(pair.of_mut(mode).replace(rule).is_none()),
            None => {
                let mut pair = Pair::default();
                *pair.of_mut(mode) = Some(rule);
                segment.insert_unique(hash, pair, Pair::hash);
                self.len += 1;
            }
        }
    }

    /// Takes the rule for this tenant, route and mode out.
    pub(in crate::rules) fn remove(&mut self, tenant: &str, route: &str, mode: Mode) {
        if !self.contains(tenant, route, mode) {
            return;
        }
        let hash = pair_hash(text_hash(tenant), text_hash(route));
        let segment = Arc::make_mut(&mut self.segments[segment_of(hash)]);
        if let Ok(mut entry) = segment.find_entry(hash, |pair| pair.is_for(tenant, route)) {
            // The other rule tells whose pair it is, so that a pair without rules has to go as a whole.
            let pair = entry.get_mut();
            if pair.rules().count() > 1 {
                *pair.of_mut(mode) = None;
            } else {
                entry.remove();
            }
            self.len -= 1;
        }
    }

    /// The set.
    pub(in crate::rules) fn finish(self, default_rule: Arc<Rule>) -> RuleSet {
        RuleSet { default_rule, segments: self.segments, len: self.len }
    }

    /// The set, sharing with `before` every segment in which nothing changed.
    pub(in crate::rules) fn finish_after(mut self, before: &RuleSet) -> RuleSet {
        for (segment, before) in self.segments.iter_mut().zip(&before.segments) {
            if same_segment(segment, before) {
                *segment = Arc::clone(before);
            }
        }
        self.finish(Arc::clone(before.default_rule()))
    }
}
