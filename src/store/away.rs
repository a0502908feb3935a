//! How long a node has been away in total: a clock that stands still while it answers.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::clock::Clock;

/// Set while the node is away.
const RUNS: u64 = 1 << 63;

/// Written by the one task that judges the node, read by everybody.
#[derive(Debug)]
pub struct AwayClock {
    clock: Clock,
    /// Milliseconds: while it stands, the total; while it runs, the moment at which it would have had to start to show the
    /// total.
    word: AtomicU64,
}

impl AwayClock {
    /// Stands at 0.
    pub fn new(clock: Clock) -> Self {
        Self { clock, word: AtomicU64::new(0) }
    }

    /// Milliseconds away, in total.
    pub fn total_ms(&self) -> u64 {
        self.read(self.word.load(Ordering::Relaxed))
    }

    /// The node is away from now on, or answers.
    pub fn set(&self, away: bool) {
        let word = self.word.load(Ordering::Relaxed);
        if away == (word & RUNS != 0) {
            return;
        }
        let total = self.read(word);
        let word = if away { RUNS | self.clock.now().saturating_sub(total) } else { total };
        self.word.store(word, Ordering::Relaxed);
    }

    fn read(&self, word: u64) -> u64 {
        match word & RUNS {
            0 => word,
            _ => self.clock.now().saturating_sub(word & !RUNS),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn runs_only_while_the_node_is_away() {
        let now = Arc::new(AtomicU64::new(5));
        let away = AwayClock::new(Clock::manual(Arc::clone(&now)));
        let at = |moment, is_away| {
            now.store(moment, Ordering::Relaxed);
            let before = away.total_ms();
            away.set(is_away);
            assert_eq!(away.total_ms(), before, "nothing is lost or gained by a change");
            before
        };
        let totals = [(10, true), (110, true), (130, false), (1000, false), (5000, true), (5001, false)];
        assert_eq!(totals.map(|(moment, is_away)| at(moment, is_away)), [0, 100, 120, 120, 120, 121]);
    }
}
