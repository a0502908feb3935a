//! What messengers say has changed, until the loader takes it.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{Mode, Source};

/// What came first waits so long for others, so that many changes are read together.
const GATHER: Duration = Duration::from_millis(1);

/// So many pairs are kept by name; beyond that everything is read anew, which is cheaper by then.
const MOST_PAIRS: usize = 10_000;

/// So many rules that came in messages wait at once; who brings more waits too.
const MOST_TOLD: usize = 10_000;

/// Tenant and route.
pub(super) type Pair = (Arc<str>, Arc<str>);

/// Messages choose what is in it: hashed so that nobody can make it slow.
pub(super) type Pairs = HashSet<Pair>;

/// A rule as a message brought it, where no database says what is right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// The JSON of a rule, as in `rules.json`.
    Put {
        /// Who brought it.
        source: Source,
        /// Where it was read, for a fault: `kafka rules[0]@17`.
        place: String,
        /// One JSON object.
        json: String,
    },
    /// The rules of this tenant and route are gone; of this mode only, if one is named.
    Delete {
        /// Who brought it.
        source: Source,
        /// Where it was read.
        place: String,
        /// Whose rule it was.
        tenant_id: Arc<str>,
        /// For which route.
        route_id: Arc<str>,
        /// Which of them.
        mode: Option<Mode>,
    },
}

impl Told {
    pub(super) fn source(&self) -> Source {
        match self {
            Self::Put { source, .. } | Self::Delete { source, .. } => *source,
        }
    }
}

/// What came since the last look.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Pending {
    /// Anything may have changed: read all.
    pub(super) all: bool,
    /// Of these (tenant, route) the database knows more.
    pub(super) pairs: Pairs,
    /// In the order in which they came.
    pub(super) told: Vec<Told>,
}

impl Pending {
    fn is_empty(&self) -> bool {
        !self.all && self.pairs.is_empty() && self.told.is_empty()
    }
}

/// Where messengers leave what changed. A flood of messages costs memory for so many and one full read, no more.
#[derive(Debug, Default)]
pub struct Changes {
    pending: Mutex<Pending>,
    arrived: Notify,
    taken: Notify,
}

impl Changes {
    /// Of this tenant and route the database knows more.
    pub fn pair(&self, tenant_id: &str, route_id: &str) {
        {
            let mut pending = self.pending.lock();
            if !pending.all {
                pending.pairs.insert((tenant_id.into(), route_id.into()));
            }
            if pending.pairs.len() > MOST_PAIRS {
                pending.pairs.clear();
                pending.all = true;
            }
        }
        self.arrived.notify_one();
    }

    /// Anything may have changed, for example while nobody listened.
    pub fn all(&self) {
        {
            let mut pending = self.pending.lock();
            pending.pairs.clear();
            pending.all = true;
        }
        self.arrived.notify_one();
    }

    /// A rule came in a message. Waits while there are too many.
    pub async fn tell(&self, told: Told) {
        loop {
            let room = self.taken.notified();
            tokio::pin!(room);
            // From here on it is told of room, also of what comes before it waits.
            room.as_mut().enable();
            {
                let mut pending = self.pending.lock();
                if pending.told.len() < MOST_TOLD {
                    pending.told.push(told);
                    break;
                }
            }
            room.await;
        }
        self.arrived.notify_one();
    }

    /// Waits until something has changed, and a moment longer for more, and takes all that has. Who gives up waiting has
    /// taken nothing.
    pub(super) async fn take(&self) -> Pending {
        while self.pending.lock().is_empty() {
            self.arrived.notified().await;
        }
        tokio::time::sleep(GATHER).await;
        let pending = std::mem::take(&mut *self.pending.lock());
        self.taken.notify_waiters();
        pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_said_twice_is_taken_once() {
        let changes = Changes::default();
        changes.pair("a", "r");
        changes.pair("a", "r");
        let pending = changes.take().await;
        assert_eq!((pending.pairs.len(), pending.all), (1, false));
    }

    #[tokio::test]
    async fn a_flood_becomes_one_full_read() {
        let changes = Changes::default();
        (0..=MOST_PAIRS).for_each(|n| changes.pair(&n.to_string(), "r"));
        let pending = changes.take().await;
        assert_eq!((pending.pairs.len(), pending.all), (0, true));
    }

    #[tokio::test(start_paused = true)]
    async fn who_tells_too_much_waits_until_it_is_taken() {
        let changes = Arc::new(Changes::default());
        let delete = || Told::Delete {
            source: Source::Redis,
            place: "redis".into(),
            tenant_id: "a".into(),
            route_id: "r".into(),
            mode: None,
        };
        for _ in 0..MOST_TOLD {
            changes.tell(delete()).await;
        }
        let teller = tokio::spawn({
            let (changes, last) = (Arc::clone(&changes), delete());
            async move { changes.tell(last).await }
        });
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        assert!(!teller.is_finished());
        assert_eq!(changes.take().await.told.len(), MOST_TOLD);
        teller.await.unwrap();
        assert_eq!(changes.take().await.told.len(), 1);
    }
}
