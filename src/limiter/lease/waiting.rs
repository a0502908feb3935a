//! Those who wait for a key's call, and what they are told when it is answered.

use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::{Lease, allowed, fill_ms};
use crate::bucket::Reply;
use crate::decision::{Decision, Source};

/// Present while a call is out or about to be.
#[derive(Debug, Default)]
pub(super) struct Calling {
    /// Tells this call from one that was abandoned or of an entry that was forgotten.
    pub(super) number: u64,
    /// When it was sent; `None` until then.
    pub(super) sent: Option<u64>,
    /// The requests that the call asks for.
    pub(super) asked: Queue,
    /// Those that go with the next.
    pub(super) waiting: Queue,
}

/// Most calls are made for one request.
pub(super) type Queue = SmallVec<[Waiting; 1]>;

/// One request.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) cost: u32,
    pub(super) until: u64,
    pub(super) answer: oneshot::Sender<Decision>,
}

impl Lease {
    /// Answers those whom the call asked for: the first are granted, the others denied. Returns the tokens granted to
    /// those who went to the failure policy in the meantime.
    pub(super) fn answer(&self, asked: Queue, reply: &Reply, refused: Option<u32>) -> u32 {
        let mut in_vain = 0;
        let granted = reply.granted as usize;
        let mut left = self.tokens + self.stash + asked.iter().take(granted).map(|waiting| waiting.cost).sum::<u32>();
        for (i, waiting) in asked.into_iter().enumerate() {
            let decision = if i < granted {
                left -= waiting.cost;
                allowed(self.limit, Source::Store, left)
            } else {
                let more = waiting.cost.saturating_sub(refused.unwrap_or(waiting.cost));
                self.denied(Source::Store, reply.wait_ms.map(|wait| wait + fill_ms(more, self.limit)))
            };
            if waiting.answer.send(decision).is_err() && i < granted {
                in_vain += waiting.cost;
            }
        }
        in_vain
    }

    /// Gives those who came while the call was under way what it leased, as if they came now; returns the others.
    pub(super) fn spend_on(&mut self, waiting: Queue) -> Queue {
        let mut others = Queue::new();
        for one in waiting {
            let Some(left) = self.stash.checked_sub(one.cost) else {
                others.push(one);
                continue;
            };
            if one.answer.send(allowed(self.limit, Source::Lease, self.tokens + left)).is_ok() {
                (self.stash, self.used) = (left, self.used + one.cost);
            }
        }
        others
    }

    /// Denies those who cost as much as the refused request or more; returns the others.
    pub(super) fn deny(&self, waiting: Queue, refused: u32, wait: u64) -> Queue {
        let (deny, keep): (Queue, Queue) = waiting.into_iter().partition(|waiting| waiting.cost >= refused);
        for waiting in deny {
            let wait = wait + fill_ms(waiting.cost - refused, self.limit);
            let _ = waiting.answer.send(self.denied(Source::Hold, Some(wait)));
        }
        keep
    }
}
