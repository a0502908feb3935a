//! The heaviest of the last minutes: a sketch a minute, added up when somebody asks.

use std::collections::{HashSet, VecDeque};

use compact_str::CompactString;

use super::sketch::{Estimate, Sketch};

/// Counters that each minute keeps: no count of the whole window is off by more than a thousandth of all events.
const KEEP: usize = 1000;

/// Minutes that are looked back over, the current one among them.
pub(super) const MINUTES: u64 = 10;

/// Tenant, and the route's place in the configuration.
pub(super) type Place = (CompactString, u32);

/// Events of the last minutes by tenant and route.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// The last minute comes last.
    minutes: VecDeque<(u64, Sketch<Place>)>,
}

impl Window {
    /// Counts `events` in a minute since 1970; an earlier minute than the last one counts as that.
    pub(super) fn add(&mut self, minute: u64, place: Place, events: u64) {
        if self.minutes.back().is_none_or(|&(last, _)| last < minute) {
            self.minutes.push_back((minute, Sketch::new(KEEP)));
            self.forget_before(minute);
        }
        if let Some((_, sketch)) = self.minutes.back_mut() {
            sketch.add(place, events);
        }
    }

    /// The `most` heaviest as of `minute`, heaviest first.
    pub(super) fn top(&mut self, minute: u64, most: usize) -> Vec<(Place, Estimate)> {
        self.forget_before(minute);
        let known: HashSet<&Place> = self.minutes.iter().flat_map(|(_, sketch)| sketch.keys()).collect();
        let sum = |place: &Place| {
            self.minutes.iter().fold(Estimate::default(), |sum, (_, sketch)| {
                let Estimate { count, error } = sketch.get(place);
                Estimate { count: sum.count + count, error: sum.error + error }
            })
        };
        let mut all: Vec<(&Place, Estimate)> = known.into_iter().map(|place| (place, sum(place))).collect();
        all.sort_unstable_by(|(place, estimate), (other, theirs)| {
            theirs.count.cmp(&estimate.count).then_with(|| place.cmp(other))
        });
        all.truncate(most);
        all.into_iter().map(|(place, estimate)| (place.clone(), estimate)).collect()
    }

    fn forget_before(&mut self, minute: u64) {
        while self.minutes.front().is_some_and(|&(first, _)| first + MINUTES <= minute) {
            self.minutes.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(tenant: &str) -> Place {
        (tenant.into(), 0)
    }

    #[test]
    fn the_heaviest_of_the_last_ten_minutes_come_first_and_older_ones_not_at_all() {
        let mut window = Window::default();
        window.add(100, place("old"), 1000);
        window.add(101, place("a"), 5);
        window.add(105, place("b"), 7);
        window.add(109, place("a"), 4);
        let names = |top: Vec<(Place, Estimate)>| -> Vec<(String, u64)> {
            top.into_iter().map(|((tenant, _), estimate)| (tenant.into(), estimate.count)).collect()
        };
        let named = |list: &[(&str, u64)]| -> Vec<(String, u64)> {
            list.iter().map(|&(tenant, count)| (tenant.to_owned(), count)).collect()
        };
        assert_eq!(names(window.top(109, 10)), named(&[("old", 1000), ("a", 9), ("b", 7)]));
        assert_eq!(names(window.top(110, 10)), named(&[("a", 9), ("b", 7)]));
        assert_eq!(names(window.top(110, 1)), named(&[("a", 9)]));
        assert_eq!(names(window.top(111, 10)), named(&[("b", 7), ("a", 4)]));
        assert_eq!(names(window.top(200, 10)), named(&[]));
    }
}
