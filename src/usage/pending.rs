//! What has been counted and is not in Redis yet: by tenant, the longest waiting first.

use std::collections::VecDeque;

use compact_str::CompactString;
use foldhash::fast::RandomState;
use hashbrown::HashMap;

use super::series::{Series, What};

/// So often something was counted in one minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// Since 1970.
    pub(super) minute: u64,
    pub(super) what: What,
    pub(super) count: u32,
}

/// The rows of one tenant, in order of their minutes.
pub(super) type Batch = (CompactString, Vec<Row>);

/// Rows that wait.
#[derive(Debug)]
pub(super) struct Pending {
    rows: HashMap<CompactString, Vec<Row>, RandomState>,
    order: VecDeque<CompactString>,
    /// Of all tenants.
    len: usize,
    most: usize,
}

impl Pending {
    /// Room for so many rows.
    pub(super) fn new(most: usize) -> Self {
        Self { rows: HashMap::default(), order: VecDeque::new(), len: 0, most }
    }

    /// `false` if there was no room.
    pub(super) fn add(&mut self, minute: u64, series: &Series, count: u32) -> bool {
        self.put(&series.tenant, Row { minute, what: series.what, count })
    }

    fn put(&mut self, tenant: &CompactString, row: Row) -> bool {
        if let Some(rows) = self.rows.get_mut(tenant) {
            // Minutes come in order, so what can be added to stands at the end.
            let mut last = rows.iter_mut().rev().take_while(|known| known.minute >= row.minute);
            if let Some(known) = last.find(|known| (known.minute, known.what) == (row.minute, row.what)) {
                known.count = known.count.saturating_add(row.count);
                return true;
            }
        }
        if self.len >= self.most {
            return false;
        }
        self.len += 1;
        match self.rows.get_mut(tenant) {
            Some(rows) => rows.push(row),
            None => {
                self.rows.insert(tenant.clone(), vec![row]);
                self.order.push_back(tenant.clone());
            }
        }
        true
    }

    /// Takes the rows of at most so many tenants.
    pub(super) fn take(&mut self, tenants: usize) -> Vec<Batch> {
        let mut taken = Vec::new();
        while taken.len() < tenants {
            let Some(tenant) = self.order.pop_front() else { break };
            if let Some(rows) = self.rows.remove(&tenant) {
                self.len -= rows.len();
                taken.push((tenant, rows));
            }
        }
        taken
    }

    /// Puts back what was not sent; says how many decisions found no room.
    pub(super) fn give_back(&mut self, batches: Vec<Batch>) -> u64 {
        let rows = batches.iter().flat_map(|(tenant, rows)| rows.iter().map(move |row| (tenant, *row)));
        rows.filter(|(tenant, row)| !self.put(tenant, *row)).map(|(_, row)| u64::from(row.count)).sum()
    }

    /// The rows of a tenant.
    pub(super) fn of(&self, tenant: &str) -> &[Row] {
        self.rows.get(tenant).map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::super::series::Counted;
    use super::*;
    use crate::rule::Scope;

    fn series(tenant: &str, route: u32) -> Series {
        let rule = Scope { any_tenant: true, any_route: true };
        Series { tenant: tenant.into(), what: What { route, rule, counted: Counted::Allowed } }
    }

    #[test]
    fn tenants_are_taken_in_the_order_in_which_they_came_and_their_counts_add_up() {
        let mut pending = Pending::new(100);
        for (minute, tenant, route, count) in
            [(7, "b", 0, 1), (7, "a", 0, 2), (7, "b", 0, 3), (7, "b", 1, 4), (8, "b", 0, 5), (8, "b", 0, 6)]
        {
            assert!(pending.add(minute, &series(tenant, route), count));
        }
        let taken = pending.take(1);
        let rows: Vec<_> = taken[0].1.iter().map(|row| (row.minute, row.what.route, row.count)).collect();
        assert_eq!((taken[0].0.as_str(), rows), ("b", vec![(7, 0, 4), (7, 1, 4), (8, 0, 11)]));
        assert_eq!(pending.take(10).len(), 1);
        assert!(pending.take(10).is_empty() && pending.len == 0 && pending.order.is_empty());
    }

    #[test]
    fn what_is_given_back_adds_to_what_came_meanwhile_and_what_finds_no_room_is_counted() {
        let mut pending = Pending::new(2);
        assert!(pending.add(7, &series("a", 0), 1) && pending.add(7, &series("b", 0), 1));
        assert!(!pending.add(7, &series("c", 0), 1), "full");
        let taken = pending.take(2);
        assert!(pending.add(7, &series("a", 0), 10) && pending.add(7, &series("c", 0), 1));
        assert_eq!(pending.give_back(taken), 1);
        assert_eq!((pending.of("a")[0].count, pending.of("b"), pending.len), (11, &[][..], 2));
    }
}
