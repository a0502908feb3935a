//! Holds back a change after which more than half of all rules would be gone: a mistake more often than a wish.

use std::time::Duration;

use tokio::time::Instant;

use super::RuleSet;
use super::report::{Extent, LoadError};

/// Fewer rules than this may go at any time: who tries things out deletes most of them.
const FEWEST: usize = 10;

/// The shortest time over which rules that go one by one are counted together.
const SHORTEST_WINDOW: Duration = Duration::from_secs(60);

/// Compares the next set with the one in force, and with the largest one of the last while, so that many small changes
/// are seen as the great one that they are. A process that has just started has nothing to compare with.
#[derive(Debug)]
pub(super) struct HoldBack {
    window: Duration,
    /// Start of the current window.
    since: Option<Instant>,
    /// The most rules in force, in the window before and in this one: what was in force a window ago, or up to two.
    most: [usize; 2],
    /// While something is held back, time does not make it right.
    holds: bool,
}

impl HoldBack {
    /// Over the last two to four times that all is read anew.
    pub(super) fn new(refresh: Duration) -> Self {
        let window = refresh.saturating_mul(2).max(SHORTEST_WINDOW);
        Self { window, since: None, most: [0; 2], holds: false }
    }

    /// Whether `next` may take the place of what is in force.
    pub(super) fn judge(&mut self, in_force: &RuleSet, next: &RuleSet, extent: Extent) -> Result<(), LoadError> {
        self.look(in_force.len());
        let most = self.most[0].max(self.most[1]);
        // So many at once; then so many in a while.
        let gone = [(next.missing_of(in_force), in_force.len()), (most.saturating_sub(next.len()), most)];
        let smaller = next.len() < in_force.len();
        let too_many =
            |&(at, (dropped, of)): &(usize, (usize, usize))| of >= FEWEST && dropped > of / 2 && (at == 0 || smaller);
        if let Some((_, (dropped, of))) = gone.into_iter().enumerate().find(too_many) {
            self.holds = true;
            return Err(LoadError::MassDelete { dropped, of });
        }
        self.holds &= extent == Extent::Part;
        Ok(())
    }

    /// Takes note of how many rules are in force.
    fn look(&mut self, len: usize) {
        let now = Instant::now();
        let age = now - *self.since.get_or_insert(now);
        if age >= self.window && !self.holds {
            let is_recent = age < self.window.saturating_mul(2);
            self.most = [if is_recent { self.most[1] } else { len }, len];
            self.since = Some(now);
        }
        self.most[1] = self.most[1].max(len);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::bucket::Limit;
    use crate::rule::Rule;

    const REFRESH: Duration = Duration::from_secs(30);

    fn rules(numbers: impl IntoIterator<Item = usize>) -> RuleSet {
        let rule = |tenant: &str| Rule::new(tenant, "r", Limit::new(1, 1.0).unwrap());
        RuleSet::new(Arc::new(rule("*")), numbers.into_iter().map(|number| rule(&number.to_string())))
    }

    fn judge(hold: &mut HoldBack, in_force: &RuleSet, next: &RuleSet) -> Option<(usize, usize)> {
        match hold.judge(in_force, next, Extent::Whole) {
            Ok(()) => None,
            Err(LoadError::MassDelete { dropped, of }) => Some((dropped, of)),
            Err(other) => panic!("{other}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn half_of_all_rules_may_go_and_no_more() {
        let before = rules(0..20);
        for (next, expected) in [
            (rules(0..10), None),
            (rules(0..9), Some((11, 20))),
            (rules([]), Some((20, 20))),
            (rules(100..120), Some((20, 20))),
            (rules(0..40), None),
        ] {
            assert_eq!(judge(&mut HoldBack::new(REFRESH), &before, &next), expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_rules_and_a_few_rules_are_never_held_back() {
        assert_eq!(judge(&mut HoldBack::new(REFRESH), &rules([]), &rules(0..3)), None);
        assert_eq!(judge(&mut HoldBack::new(REFRESH), &rules(0..9), &rules([])), None);
    }

    #[tokio::test(start_paused = true)]
    async fn rules_that_go_one_by_one_are_held_back_too() {
        let mut hold = HoldBack::new(REFRESH);
        for left in (10..20).rev() {
            tokio::time::advance(Duration::from_secs(5)).await;
            assert_eq!(judge(&mut hold, &rules(0..left + 1), &rules(0..left)), None, "{left}");
        }
        let one_more = judge(&mut hold, &rules(0..10), &rules(0..9));
        assert_eq!(one_more, Some((11, 20)));
        assert_eq!(judge(&mut hold, &rules(0..10), &rules(1..11)), None, "what loses nothing may change");
    }

    #[tokio::test(start_paused = true)]
    async fn time_does_not_make_right_what_is_held_back_but_forgets_what_is_long_ago() {
        let mut hold = HoldBack::new(REFRESH);
        assert_eq!(judge(&mut hold, &rules(0..20), &rules(0..10)), None);
        for _ in 0..10 {
            assert_eq!(judge(&mut hold, &rules(0..10), &rules(0..9)), Some((11, 20)));
            tokio::time::advance(Duration::from_secs(60)).await;
        }
        assert_eq!(judge(&mut hold, &rules(0..10), &rules(0..10)), None);
        tokio::time::advance(Duration::from_secs(120)).await;
        assert_eq!(judge(&mut hold, &rules(0..10), &rules(0..9)), None);
    }
}
