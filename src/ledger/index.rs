//! Finds an entry's slot by the hash of its key. Open addressing with linear probing: hash and slot lie side by side, so
//! that a look-up takes one cache line, and growing reads nothing but the index.

/// The slot of no entry.
const NONE: u32 = u32::MAX;

/// The smallest index, in places; a power of two.
const SMALLEST: usize = 16;

#[derive(Clone, Copy, Debug)]
struct Place {
    hash: u32,
    slot: u32,
}

const EMPTY: Place = Place { hash: 0, slot: NONE };

/// The index. One place in eight at least is empty, so that every search ends.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// As many as a power of two.
    places: Box<[Place]>,
    len: usize,
}

impl Index {
    /// The slots that an index of `places` has room for.
    pub(super) const fn room(places: usize) -> usize {
        places / 8 * 7
    }

    /// The first slot under `hash` that is the one looked for.
    #[inline]
    pub(super) fn find(&self, hash: u32, is: impl Fn(u32) -> bool) -> Option<u32> {
        let mask = self.places.len().checked_sub(1)?;
        let mut at = hash as usize & mask;
        loop {
            let place = self.places[at];
            if place.hash == hash && place.slot != NONE && is(place.slot) {
                return Some(place.slot);
            }
            if place.slot == NONE {
                return None;
            }
            at = (at + 1) & mask;
        }
    }

    /// Adds a slot that is not in the index.
    pub(super) fn insert(&mut self, hash: u32, slot: u32) {
        if self.len == Self::room(self.places.len()) {
            let more = vec![EMPTY; (self.places.len() * 2).max(SMALLEST)].into_boxed_slice();
            for place in std::mem::replace(&mut self.places, more) {
                if place.slot != NONE {
                    self.put(place);
                }
            }
        }
        self.put(Place { hash, slot });
        self.len += 1;
    }

    fn put(&mut self, place: Place) {
        let mask = self.places.len() - 1;
        let mut at = place.hash as usize & mask;
        while self.places[at].slot != NONE {
            at = (at + 1) & mask;
        }
        self.places[at] = place;
    }

    /// Removes `slot`, which is in the index under `hash`, and moves up what lies behind it for its sake.
    pub(super) fn remove(&mut self, hash: u32, slot: u32) {
        let Some(mask) = self.places.len().checked_sub(1) else { return };
        let mut hole = hash as usize & mask;
        while self.places[hole].slot != slot {
            if self.places[hole].slot == NONE {
                return;
            }
            hole = (hole + 1) & mask;
        }
        let mut next = (hole + 1) & mask;
        while self.places[next].slot != NONE {
            let home = self.places[next].hash as usize & mask;
            let (from_home, from_hole) = (next.wrapping_sub(home) & mask, next.wrapping_sub(hole) & mask);
            if from_home >= from_hole {
                self.places[hole] = self.places[next];
                hole = next;
            }
            next = (next + 1) & mask;
        }
        self.places[hole] = EMPTY;
        self.len -= 1;
    }
}
