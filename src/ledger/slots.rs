//! A list that grows without moving what it holds: a vector that doubles leaves its old halves behind, as much memory
//! again as it uses.

use std::ops::{Index, IndexMut};

/// Bytes that are allocated together: a little less than a power of two, to which the allocator adds its own. Pages of
/// it that were never written to take no memory.
const CHUNK: usize = 32 * 1024 - 256;

/// The list. Nothing is ever taken out; a slot can be given another item.
#[derive(Debug)]
pub(super) struct Slots<T>(Vec<Vec<T>>);

impl<T> Slots<T> {
    /// Items in a chunk.
    const EACH: usize = CHUNK / size_of::<T>();

    pub(super) const fn new() -> Self {
        Self(Vec::new())
    }

    pub(super) fn len(&self) -> usize {
        self.0.last().map_or(0, |last| (self.0.len() - 1) * Self::EACH + last.len())
    }

    /// Appends `item`; returns its slot.
    pub(super) fn push(&mut self, item: T) -> u32 {
        let slot = self.len();
        match self.0.last_mut() {
            Some(last) if last.len() < Self::EACH => last.push(item),
            _ => {
                let mut chunk = Vec::with_capacity(Self::EACH);
                chunk.push(item);
                self.0.push(chunk);
            }
        }
        slot as u32
    }
}

impl<T> Index<u32> for Slots<T> {
    type Output = T;

    #[inline]
    fn index(&self, slot: u32) -> &T {
        &self.0[slot as usize / Self::EACH][slot as usize % Self::EACH]
    }
}

impl<T> IndexMut<u32> for Slots<T> {
    #[inline]
    fn index_mut(&mut self, slot: u32) -> &mut T {
        &mut self.0[slot as usize / Self::EACH][slot as usize % Self::EACH]
    }
}
