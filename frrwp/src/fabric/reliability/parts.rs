//! Messages in parts: which parts are there, and their bytes.

use super::wire::{LISTED, List, Part};
use smallvec::SmallVec;

/// A set of parts.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Bits {
    words: SmallVec<[u64; 2]>,
    count: u16,
}

impl Bits {
    pub(super) fn new(parts: u16) -> Self {
        Self { words: SmallVec::from_elem(0, usize::from(parts).div_ceil(64)), count: 0 }
    }

    pub(super) fn has(&self, part: u16) -> bool {
        self.words.get(usize::from(part / 64)).is_some_and(|word| word >> (part % 64) & 1 == 1)
    }

    /// Adds a part; returns whether it is new.
    pub(super) fn add(&mut self, part: u16) -> bool {
        let is_new = !self.has(part);
        self.words[usize::from(part / 64)] |= 1 << (part % 64);
        self.count += u16::from(is_new);
        is_new
    }

    pub(super) fn remove(&mut self, part: u16) {
        if self.has(part) {
            self.words[usize::from(part / 64)] &= !(1 << (part % 64));
            self.count -= 1;
        }
    }

    pub(super) fn count(&self) -> u16 {
        self.count
    }

    /// Returns the first part that is not in the set.
    pub(super) fn first_missing(&self) -> u16 {
        let full = self.words.iter().take_while(|word| **word == u64::MAX).count();
        full as u16 * 64 + self.words.get(full).map_or(0, |word| word.trailing_ones() as u16)
    }
}

/// Returns the parts that a message of this length takes.
pub(super) fn parts(length: usize, fragment: usize) -> u16 {
    length.div_ceil(fragment).max(1) as u16
}

/// A message that comes in parts.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Assembly {
    length: usize,
    stride: usize,
    parts: u16,
    have: Bits,
    bytes: Vec<u8>,
}

impl Assembly {
    /// Returns the assembly that this part belongs to, still without it.
    pub(super) fn of(part: &Part<'_>) -> Option<Self> {
        let stride = part.stride()?;
        let have = Bits::new(part.parts);
        Some(Self { length: part.length as usize, stride, parts: part.parts, have, bytes: Vec::new() })
    }

    /// Takes a part. Returns whether it is new; `None` if it is not one of this message.
    pub(super) fn place(&mut self, part: &Part<'_>) -> Option<bool> {
        let same = (self.length, self.parts) == (part.length as usize, part.parts);
        if !same || part.stride() != Some(self.stride) {
            return None;
        }
        if !self.have.add(part.part) {
            return Some(false);
        }
        let at = usize::from(part.part) * self.stride;
        let end = at + part.bytes.len();
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[at..end].copy_from_slice(part.bytes);
        Some(true)
    }

    pub(super) fn is_whole(&self) -> bool {
        self.have.count() == self.parts
    }

    pub(super) fn parts(&self) -> u16 {
        self.parts
    }

    pub(super) fn stride(&self) -> usize {
        self.stride
    }

    pub(super) fn have(&self) -> &Bits {
        &self.have
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Returns the list of the parts that came.
    pub(super) fn list(&self, upto: u16, execution: u32) -> List {
        let next = self.have.first_missing().min(self.parts);
        let mut list = List { next, upto: upto.max(next), execution, there: [0; 4] };
        for part in next..self.parts.min(next.saturating_add(LISTED)) {
            if self.have.has(part) {
                list.add(part);
            }
        }
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn parts_of_other_messages_are_refused() {
        let part = |part, parts, length, bytes| Part { execution: 0, part, parts, length, bytes };
        let mut assembly = Assembly::of(&part(1, 3, 10, b"4567")).unwrap();
        assert_eq!(assembly.place(&part(1, 3, 10, b"4567")), Some(true));
        assert_eq!(assembly.place(&part(1, 3, 10, b"4567")), Some(false));
        assert_eq!(assembly.place(&part(0, 3, 9, b"0123")), None);
        assert_eq!(assembly.place(&part(0, 4, 10, b"012")), None);
        assert_eq!(assembly.place(&part(2, 3, 10, b"8")), None, "the last part has what the others leave");
        assert_eq!(assembly.place(&part(2, 3, 10, b"89")), Some(true));
        assert_eq!(assembly.place(&part(0, 3, 10, b"0123")), Some(true));
        assert!(assembly.is_whole());
        assert_eq!(assembly.into_bytes(), b"0123456789");
    }

    proptest! {
        #[test]
        fn messages_are_whole_in_any_order(
            message in prop::collection::vec(any::<u8>(), 0..2000),
            fragment in 1_usize..300,
            order in any::<u64>(),
        ) {
            let count = parts(message.len(), fragment);
            let mut order: Vec<u16> = {
                let mut state = order;
                let mut all: Vec<u16> = (0..count).chain(0..count).collect();
                for at in (1..all.len()).rev() {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    all.swap(at, (state >> 33) as usize % (at + 1));
                }
                all
            };
            let cut = |number: u16| {
                let at = usize::from(number) * fragment;
                let bytes = &message[at..message.len().min(at + fragment)];
                Part { execution: 1, part: number, parts: count, length: message.len() as u32, bytes }
            };
            let mut assembly = Assembly::of(&cut(order[0])).unwrap();
            let mut news = 0;
            for number in order.drain(..) {
                news += u16::from(assembly.place(&cut(number)).unwrap());
                let list = assembly.list(count, 1);
                prop_assert!((0..count).all(|part| list.has(part) == assembly.have().has(part) || part >= list.next + 256));
            }
            prop_assert!(assembly.is_whole() && news == count);
            prop_assert_eq!(assembly.into_bytes(), message);
        }
    }
}
