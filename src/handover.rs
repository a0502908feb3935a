//! From requests to a thread beside them: bounded, and lossy where that thread does not keep up. A request takes a lock
//! that it shares with few others, for as long as it takes to put one value down.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

/// Values that wait in one shard. Where they are taken every 100 ms, this is 160,000 a second and thread.
const MOST: usize = 16_384;

/// More shards than this are of no use.
const MOST_SHARDS: usize = 64;

/// Aligned to a pair of cache lines, so that threads do not slow each other down.
#[derive(Debug)]
#[repr(align(128))]
struct Shard<T>(Mutex<Vec<T>>);

/// A bounded queue from many threads to one.
#[derive(Debug)]
pub struct Handover<T> {
    shards: Box<[Shard<T>]>,
}

impl<T> Handover<T> {
    /// For so many threads that put values in.
    pub fn new(threads: usize) -> Self {
        let shards = threads.clamp(1, MOST_SHARDS).next_power_of_two();
        Self { shards: (0..shards).map(|_| Shard(Mutex::new(Vec::new()))).collect() }
    }

    /// Hands a value over; `false` if there was no room, and the value is lost.
    #[must_use]
    #[inline]
    pub fn put(&self, value: T) -> bool {
        let mut waiting = self.shards[thread_number() & (self.shards.len() - 1)].0.lock();
        if waiting.len() >= MOST {
            return false;
        }
        waiting.push(value);
        true
    }

    /// Takes everything that waits, in order of each thread. `spare` keeps its allocation from call to call.
    pub fn take(&self, spare: &mut Vec<T>, mut each: impl FnMut(T)) {
        for shard in &self.shards {
            std::mem::swap(&mut *shard.0.lock(), spare);
            spare.drain(..).for_each(&mut each);
        }
    }
}

/// A number of this thread, counted from 0.
fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    NUMBER.with(|number| {
        if number.get() == usize::MAX {
            number.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        number.get()
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn what_is_put_in_by_many_threads_is_taken_once_and_in_order_of_each() {
        let handover = Arc::new(Handover::new(3));
        let threads: Vec<_> = (0..5)
            .map(|thread| {
                let handover = Arc::clone(&handover);
                std::thread::spawn(move || (0..1000).for_each(|n| assert!(handover.put((thread, n)))))
            })
            .collect();
        let (mut spare, mut taken) = (Vec::new(), vec![Vec::new(); 5]);
        let mut take = || handover.take(&mut spare, |(thread, n): (usize, i32)| taken[thread].push(n));
        take();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        take();
        take();
        let all: Vec<i32> = (0..1000).collect();
        assert!(taken.iter().all(|numbers| *numbers == all));
    }

    #[test]
    fn what_finds_no_room_is_refused_and_nothing_waits() {
        let handover = Handover::new(1);
        assert_eq!((0..MOST + 10).filter(|&n| handover.put(n)).count(), MOST);
        let mut count = 0;
        handover.take(&mut Vec::new(), |_| count += 1);
        assert_eq!((count, handover.put(1)), (MOST, true));
    }
}
