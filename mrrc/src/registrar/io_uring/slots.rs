//! Which slots of the table are free.
//!
//! A bit a slot, and the search for a free one goes on where the last one was found. So regions registered one
//! after the other lie side by side in the table. They grow old together, leave in one batch, and a run of
//! neighbours is cleared in one system call. A slot that was just given back is not the next to be taken. So an index
//! used past its lease meets an empty slot sooner than another's buffer.

/// All memory is taken at creation: taking and giving back never allocate.
#[derive(Debug)]
pub(super) struct Slots {
    /// A set bit is a free slot.
    words: Box<[u64]>,
    free: u32,
    /// The slot at which the next search starts.
    next: u32,
}

impl Slots {
    /// `count` free slots.
    pub(super) fn new(count: u32) -> Self {
        let mut words = vec![u64::MAX; count.div_ceil(64) as usize].into_boxed_slice();
        if let (Some(last), over @ 1..) = (words.last_mut(), count % 64) {
            *last = (1 << over) - 1;
        }
        Self { words, free: count, next: 0 }
    }

    pub(super) fn free(&self) -> u32 {
        self.free
    }

    /// Returns a free slot, the first one from where the last was found.
    pub(super) fn take(&mut self) -> Option<u16> {
        if self.free == 0 {
            return None;
        }
        let start = self.next as usize / 64;
        let behind = u64::MAX << (self.next % 64);
        // The first word twice: its upper part now, the whole of it when all others had nothing.
        let (word, bits) = std::iter::once((start, self.words.get(start)? & behind))
            .chain((start + 1..self.words.len()).chain(0..=start).map(|word| (word, self.words[word])))
            .find(|(_, bits)| *bits != 0)?;
        let slot = word as u32 * 64 + bits.trailing_zeros();
        self.words[word] &= !(1 << (slot % 64));
        self.free -= 1;
        self.next = (slot + 1) % (self.words.len() as u32 * 64);
        Some(slot as u16)
    }

    /// Gives a slot back that was taken.
    pub(super) fn give(&mut self, slot: u16) {
        let (word, bit) = (slot as usize / 64, 1 << (slot % 64));
        debug_assert!(self.words[word] & bit == 0, "slot {slot} is free already");
        self.words[word] |= bit;
        self.free += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_slot_is_given_out_once() {
        for count in [1, 2, 63, 64, 65, 128, 1000, 16384] {
            let mut slots = Slots::new(count);
            let taken: Vec<u16> = std::iter::from_fn(|| slots.take()).collect();
            assert_eq!(taken, (0..count as u16).collect::<Vec<_>>());
            assert_eq!(slots.free(), 0);
        }
    }

    #[test]
    fn a_slot_that_was_given_back_is_the_last_to_be_taken() {
        let mut slots = Slots::new(130);
        let first = slots.take().unwrap();
        slots.give(first);
        let order: Vec<u16> = std::iter::from_fn(|| slots.take()).collect();
        assert_eq!(order.last(), Some(&first));
        assert_eq!(order.len(), 130);
    }

    #[test]
    fn the_search_goes_round_within_a_word() {
        let mut slots = Slots::new(64);
        while slots.take().is_some() {}
        slots.give(40);
        assert_eq!(slots.take(), Some(40));
        slots.give(3);
        assert_eq!(slots.take(), Some(3), "below the place where the last was found");
    }

    #[test]
    fn any_order_of_taking_and_giving_agrees_with_a_set() {
        let mut slots = Slots::new(200);
        let mut taken = BTreeSet::new();
        let mut state = 1_u64;
        for _ in 0..20_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            if state >> 63 == 0 {
                match slots.take() {
                    Some(slot) => assert!(slot < 200 && taken.insert(slot)),
                    None => assert_eq!(taken.len(), 200),
                }
            } else if let Some(&slot) = taken.iter().nth((state >> 33) as usize % taken.len().max(1)) {
                taken.remove(&slot);
                slots.give(slot);
            }
            assert_eq!(slots.free() as usize, 200 - taken.len());
        }
    }
}
