//! Counters of this gateway for each of the last minutes or hours, in bounded memory.

use std::collections::VecDeque;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use super::series::{Series, What};

/// The last slices of time, all of one length.
#[derive(Debug)]
pub(super) struct Slices {
    /// Minutes of one slice.
    length: u64,
    /// How many are kept.
    keep: u64,
    /// The most counters of one slice.
    most: usize,
    /// By number since 1970; the last comes last.
    slices: VecDeque<(u64, HashMap<Series, u32, RandomState>)>,
}

impl Slices {
    pub(super) fn new(length: u64, keep: u64, most: usize) -> Self {
        Self { length, keep, most, slices: VecDeque::new() }
    }

    /// Counts in the slice of a minute since 1970; `false` if there was no room.
    pub(super) fn add(&mut self, minute: u64, series: &Series, count: u32) -> bool {
        let number = minute / self.length;
        if self.slices.back().is_none_or(|&(last, _)| last < number) {
            self.slices.push_back((number, HashMap::default()));
            while self.slices.front().is_some_and(|&(first, _)| first + self.keep <= number) {
                self.slices.pop_front();
            }
        }
        let Some((_, counters)) = self.slices.back_mut() else { return false };
        if let Some(counter) = counters.get_mut(series) {
            *counter = counter.saturating_add(count);
        } else if counters.len() < self.most {
            counters.insert(series.clone(), count);
        } else {
            return false;
        }
        true
    }

    /// The counters of a tenant: the number of each slice, what was counted, and how often.
    pub(super) fn of<'a>(&'a self, tenant: &'a str) -> impl Iterator<Item = (u64, What, u32)> + 'a {
        self.slices.iter().flat_map(move |(number, counters)| {
            let of_tenant = counters.iter().filter(move |(series, _)| series.tenant == tenant);
            of_tenant.map(|(series, &count)| (*number, series.what, count))
        })
    }
}
