//! Stubs: the key of each flash item and the place of its record, 12 bytes and the key.
//!
//! | at | bytes | what                                                                             |
//! |---:|------:|----------------------------------------------------------------------------------|
//! |  0 |     4 | place of the record, in units of the shard's log                                 |
//! |  4 |     4 | expiry, in Unix seconds; 0 is never                                              |
//! |  8 |     1 | length of the record in units, coded                                             |
//! |  9 |     1 | length of the key; 0: the slot is free                                           |
//! | 10 |     1 | lowest byte of the version                                                       |
//! | 11 |     1 | frequency (3 bits), fetched, the store's two marks, shadowed, loading            |
//! | 12 |       | the key, to an even number of bytes                                              |
//!
//! They lie in blocks of 32 KiB, each with slots of one size. A block without stubs serves any size.

use crate::record::u32_at;

const BLOCK: usize = 32 << 10;
const FIXED: usize = 12;
const SIZES: usize = (FIXED + 256) / 2;
const SLOT_BITS: u32 = 12;

/// A stub's block and slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Id(u32);

impl Id {
    pub(crate) const NONE: Self = Self(u32::MAX);
    fn new(block: u32, slot: u32) -> Self {
        Self(block << SLOT_BITS | slot)
    }
    fn block(self) -> usize {
        (self.0 >> SLOT_BITS) as usize
    }
    fn slot(self) -> usize {
        (self.0 & ((1 << SLOT_BITS) - 1)) as usize
    }
}

pub(crate) const FREQUENCY: u8 = 7;
pub(crate) const FETCHED: u8 = 1 << 3;
pub(crate) const OWN: u8 = 3 << 4;
pub(crate) const OWN_SHIFT: u32 = 4;
/// Its item is in RAM too.
pub(crate) const SHADOWED: u8 = 1 << 6;
/// A load of it is in progress.
pub(crate) const LOADING: u8 = 1 << 7;

/// The fields of a stub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stub {
    pub(crate) place: u32,
    pub(crate) expiry: u32,
    pub(crate) len: u8,
    pub(crate) version: u8,
    pub(crate) marks: u8,
}

const NO_BLOCK: u32 = u32::MAX;
const NO_SLOT: u16 = u16::MAX;

#[derive(Debug)]
struct Block {
    /// Without stubs there are none.
    bytes: Box<[u8]>,
    /// Bytes of a slot; 0: in no use.
    size: u16,
    used: u16,
    /// Slots that were never used begin here.
    fresh: u16,
    free: u16,
    /// Neighbours among the blocks of this size with room, or the next one in no use.
    prev: u32,
    next: u32,
}

/// All stubs of a shard.
#[derive(Debug)]
pub(crate) struct Stubs {
    blocks: Vec<Block>,
    /// The first block with room of each size.
    with_room: Box<[u32; SIZES]>,
    unused: u32,
    limit: usize,
    len: usize,
    used_blocks: usize,
}

fn size(key: usize) -> usize {
    (FIXED + key).next_multiple_of(2)
}

impl Stubs {
    /// Makes room for stubs of this many bytes at most.
    pub(crate) fn new(limit: u64) -> Self {
        let limit = (limit / BLOCK as u64).min(1 << (32 - SLOT_BITS)) as usize;
        Self {
            blocks: Vec::new(),
            with_room: Box::new([NO_BLOCK; SIZES]),
            unused: NO_BLOCK,
            limit,
            len: 0,
            used_blocks: 0,
        }
    }
    pub(crate) fn len(&self) -> usize {
        self.len
    }
    /// Returns the bytes of all blocks that have stubs.
    pub(crate) fn bytes(&self) -> usize {
        self.used_blocks * BLOCK
    }

    fn at(&self, id: Id) -> &[u8] {
        let block = &self.blocks[id.block()];
        let size = usize::from(block.size);
        &block.bytes[id.slot() * size..][..size]
    }
    fn at_mut(&mut self, id: Id) -> &mut [u8] {
        let block = &mut self.blocks[id.block()];
        let size = usize::from(block.size);
        &mut block.bytes[id.slot() * size..][..size]
    }
    pub(crate) fn key(&self, id: Id) -> &[u8] {
        let bytes = self.at(id);
        &bytes[FIXED..FIXED + usize::from(bytes[9])]
    }
    pub(crate) fn get(&self, id: Id) -> Stub {
        let bytes = self.at(id);
        Stub { place: u32_at(bytes, 0), expiry: u32_at(bytes, 4), len: bytes[8], version: bytes[10], marks: bytes[11] }
    }
    pub(crate) fn set(&mut self, id: Id, stub: Stub) {
        let bytes = self.at_mut(id);
        bytes[..4].copy_from_slice(&stub.place.to_le_bytes());
        bytes[4..8].copy_from_slice(&stub.expiry.to_le_bytes());
        (bytes[8], bytes[10], bytes[11]) = (stub.len, stub.version, stub.marks);
    }

    /// Adds a stub, if there is room.
    pub(crate) fn insert(&mut self, key: &[u8], stub: Stub) -> Option<Id> {
        let class = size(key.len()) / 2;
        let at = match self.with_room[class] {
            NO_BLOCK => self.take_block(class)?,
            at => at,
        };
        let block = &mut self.blocks[at as usize];
        let width = usize::from(block.size);
        let slot = if block.free == NO_SLOT {
            block.fresh += 1;
            block.fresh - 1
        } else {
            let slot = block.free;
            let begin = usize::from(slot) * width;
            block.free = u16::from_le_bytes([block.bytes[begin], block.bytes[begin + 1]]);
            slot
        };
        block.used += 1;
        let is_full = usize::from(block.used) == BLOCK / width;
        let bytes = &mut block.bytes[usize::from(slot) * width..][..width];
        bytes[9] = key.len() as u8;
        bytes[FIXED..FIXED + key.len()].copy_from_slice(key);
        if is_full {
            self.unlink(at, class);
        }
        self.len += 1;
        let id = Id::new(at, u32::from(slot));
        self.set(id, stub);
        Some(id)
    }

    pub(crate) fn remove(&mut self, id: Id) {
        let at = id.block() as u32;
        let block = &mut self.blocks[id.block()];
        let width = usize::from(block.size);
        let was_full = usize::from(block.used) == BLOCK / width;
        let begin = id.slot() * width;
        block.bytes[begin..begin + 2].copy_from_slice(&block.free.to_le_bytes());
        block.bytes[begin + 9] = 0;
        block.free = id.slot() as u16;
        block.used -= 1;
        let is_empty = block.used == 0;
        self.len -= 1;
        match (was_full, is_empty) {
            (false, true) => self.unlink(at, width / 2),
            (true, false) => self.link(at, width / 2),
            _ => {}
        }
        if is_empty {
            let unused = self.unused;
            let block = &mut self.blocks[at as usize];
            (block.size, block.next, block.bytes) = (0, unused, Box::default());
            self.unused = at;
            self.used_blocks -= 1;
        }
    }

    fn take_block(&mut self, class: usize) -> Option<u32> {
        let at = match self.unused {
            NO_BLOCK if self.blocks.len() >= self.limit => return None,
            NO_BLOCK => {
                let bytes = Box::default();
                self.blocks.push(Block {
                    bytes,
                    size: 0,
                    used: 0,
                    fresh: 0,
                    free: NO_SLOT,
                    prev: NO_BLOCK,
                    next: NO_BLOCK,
                });
                self.blocks.len() as u32 - 1
            }
            at => {
                self.unused = self.blocks[at as usize].next;
                at
            }
        };
        let block = &mut self.blocks[at as usize];
        (block.size, block.used, block.fresh, block.free) = (class as u16 * 2, 0, 0, NO_SLOT);
        block.bytes = vec![0; BLOCK].into_boxed_slice();
        self.used_blocks += 1;
        self.link(at, class);
        Some(at)
    }
    fn link(&mut self, at: u32, class: usize) {
        let first = self.with_room[class];
        (self.blocks[at as usize].prev, self.blocks[at as usize].next) = (NO_BLOCK, first);
        if first != NO_BLOCK {
            self.blocks[first as usize].prev = at;
        }
        self.with_room[class] = at;
    }
    fn unlink(&mut self, at: u32, class: usize) {
        let (prev, next) = (self.blocks[at as usize].prev, self.blocks[at as usize].next);
        match prev {
            NO_BLOCK => self.with_room[class] = next,
            prev => self.blocks[prev as usize].next = next,
        }
        if next != NO_BLOCK {
            self.blocks[next as usize].prev = prev;
        }
    }

    /// Returns the first stub from this one on in the order of their places in memory: [`Id::NONE`] is the begin.
    pub(crate) fn after(&self, id: Id) -> Option<Id> {
        let (mut at, mut slot) = if id == Id::NONE { (0, 0) } else { (id.block(), id.slot() + 1) };
        while let Some(block) = self.blocks.get(at) {
            let width = usize::from(block.size);
            if width != 0 && block.used != 0 {
                while slot < usize::from(block.fresh) {
                    if block.bytes[slot * width + 9] != 0 {
                        return Some(Id::new(at as u32, slot as u32));
                    }
                    slot += 1;
                }
            }
            (at, slot) = (at + 1, 0);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn stub(place: u32) -> Stub {
        Stub { place, expiry: place ^ 5, len: place as u8, version: 3, marks: 9 }
    }

    proptest! {
        #[test]
        fn stubs_agree_with_a_map(ops in prop::collection::vec((any::<bool>(), 0..40_u32, 1..251_usize), 1..3000)) {
            let mut stubs = Stubs::new(40 * BLOCK as u64);
            let mut model: HashMap<u32, (Id, Vec<u8>)> = HashMap::new();
            for (add, number, len) in ops {
                if add && !model.contains_key(&number) {
                    let key = vec![number as u8; len];
                    if let Some(id) = stubs.insert(&key, stub(number)) {
                        model.insert(number, (id, key));
                    }
                } else if let Some((id, _)) = model.remove(&number) {
                    stubs.remove(id);
                }
                prop_assert_eq!(stubs.len(), model.len());
                prop_assert!(stubs.bytes() <= 40 * BLOCK);
            }
            for (&number, (id, key)) in &model {
                prop_assert_eq!(stubs.key(*id), &key[..]);
                prop_assert_eq!(stubs.get(*id), stub(number));
            }
            let walked = std::iter::successors(stubs.after(Id::NONE), |&id| stubs.after(id)).count();
            prop_assert_eq!(walked, model.len());
        }
    }

    #[test]
    fn a_full_arena_refuses_and_serves_other_sizes_later() {
        let mut stubs = Stubs::new(2 * BLOCK as u64);
        let ids: Vec<_> = std::iter::from_fn(|| stubs.insert(&[7; 20], stub(1))).collect();
        assert_eq!(ids.len(), 2 * 1024);
        assert!(stubs.insert(&[7; 100], stub(1)).is_none());
        for id in ids {
            stubs.remove(id);
        }
        assert_eq!(stubs.bytes(), 0);
        assert!(stubs.insert(&[7; 100], stub(1)).is_some());
    }
}
