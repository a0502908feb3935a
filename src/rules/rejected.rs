//! Entries of a source that were left out, and whose they are.

/// So many faults are kept by name; the rest is only counted.
const MOST_NAMED: usize = 100;

/// Of so many faults it is known whose they are, so that they can be forgotten one by one.
const MOST_KNOWN: usize = 1000;

/// Entries of a source that were left out, each named with its place and what is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// How many.
    pub total: usize,
    /// The first of them, one line each.
    pub faults: Vec<String>,
    /// The tenant and route they are about, for the first of them; as many as that are in `faults` too.
    whose: Vec<Option<(Box<str>, Box<str>)>>,
    most: usize,
}

impl Default for Rejected {
    fn default() -> Self {
        Self { total: 0, faults: Vec::new(), whose: Vec::new(), most: MOST_NAMED }
    }
}

impl Rejected {
    /// Keeps every fault by name.
    pub(super) fn unbounded() -> Self {
        Self { most: usize::MAX, ..Self::default() }
    }

    /// Counts a fault, and words it if there is room.
    pub(super) fn push(&mut self, fault: impl FnOnce() -> String) {
        self.push_about(None, fault);
    }

    /// Counts a fault in what is written for a tenant and route, and words it if there is room.
    pub(super) fn push_about(&mut self, pair: Option<(&str, &str)>, fault: impl FnOnce() -> String) {
        self.total += 1;
        let at = self.faults.len();
        if at < self.most {
            self.faults.push(fault());
        }
        if at < MOST_KNOWN && at <= self.whose.len() {
            let at = if at < self.most { at } else { self.whose.len() };
            self.whose.insert(at, pair.map(|(tenant, route)| (tenant.into(), route.into())));
            self.whose.truncate(MOST_KNOWN);
        }
    }

    /// Knows of what is written for a tenant and route what `other` knows.
    pub(super) fn take_over(&mut self, other: &Self, tenant: &str, route: &str) {
        self.forget(tenant, route);
        for (fault, whose) in other.faults.iter().zip(&other.whose) {
            if whose.as_ref().is_some_and(|(t, r)| **t == *tenant && **r == *route) {
                self.push_about(Some((tenant, route)), || fault.clone());
            }
        }
    }

    /// Forgets what was wrong with what is written for a tenant and route. Of faults beyond the first thousand it is not
    /// known whose they are: they count until everything is read anew.
    pub(super) fn forget(&mut self, tenant: &str, route: &str) {
        for at in (0..self.whose.len()).rev() {
            if self.whose[at].as_ref().is_some_and(|(t, r)| **t == *tenant && **r == *route) {
                self.whose.remove(at);
                self.total -= 1;
                if at < self.faults.len() {
                    self.faults.remove(at);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_wrong_with_one_rule_is_forgotten_alone() {
        let mut rejected = Rejected::default();
        let about = |rejected: &mut Rejected, n: usize| {
            let tenant = n.to_string();
            rejected.push_about(Some((&tenant, "r")), || format!("fault of {tenant}"));
        };
        (0..300).for_each(|n| about(&mut rejected, n));
        rejected.forget("7", "other");
        rejected.forget("7", "r");
        rejected.forget("200", "r");
        assert_eq!((rejected.total, rejected.faults.len()), (298, 99));
        assert!(!rejected.faults.contains(&"fault of 7".to_owned()));
        about(&mut rejected, 7);
        assert_eq!(rejected.faults.last().unwrap(), "fault of 7");
        for n in (0..300).filter(|n| *n != 200) {
            rejected.forget(&n.to_string(), "r");
        }
        assert_eq!((rejected.total, rejected.faults.len()), (0, 0));
    }

    #[test]
    fn only_so_many_faults_are_kept_but_all_are_counted() {
        let mut rejected = Rejected::default();
        (0..1000).for_each(|n| rejected.push(|| n.to_string()));
        assert_eq!((rejected.total, rejected.faults.len()), (1000, MOST_NAMED));
    }
}
