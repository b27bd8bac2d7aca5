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

use crate::memory::{BLOCK, Piece, StubMemory};
use crate::record::u32_at;

/// Blocks of which the one with the fewest stubs gives way to another size.
const COMPARED: usize = 16;
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
    bytes: Piece,
    /// Bytes of a slot.
    size: u16,
    /// Stubs. A block without any serves any size.
    used: u16,
    /// Slots that were never used begin here.
    fresh: u16,
    free: u16,
    /// Neighbours among the blocks of this size with room.
    prev: u32,
    next: u32,
}

/// Memory that was lent or mapped together.
#[derive(Debug)]
struct Extent {
    memory: StubMemory,
    /// Blocks with stubs.
    used: usize,
    /// Whether it takes no more of them.
    is_leaving: bool,
}

/// All stubs of a shard.
#[derive(Debug)]
pub(crate) struct Stubs {
    /// Dropped before the memory.
    blocks: Vec<Option<Block>>,
    extents: Vec<Option<Extent>>,
    /// Blocks of an extent.
    per: usize,
    /// Whether memory is mapped where none is lent.
    maps: bool,
    /// The first block with room of each size.
    with_room: Box<[u32; SIZES]>,
    /// Blocks that may have stubs.
    limit: usize,
    len: usize,
    used_blocks: usize,
    /// The block from which the next to give way is looked for.
    hand: usize,
    /// How many stubs have each coded length, and how many of these are not shadowed.
    lengths: Box<[(u32, u32); 256]>,
    away: usize,
}

/// Writes all but the key.
fn put(bytes: &mut [u8], stub: Stub) {
    bytes[..4].copy_from_slice(&stub.place.to_le_bytes());
    bytes[4..8].copy_from_slice(&stub.expiry.to_le_bytes());
    (bytes[8], bytes[10], bytes[11]) = (stub.len, stub.version, stub.marks);
}

fn size(key: usize) -> usize {
    (FIXED + key).next_multiple_of(2)
}

impl Stubs {
    /// Makes room for stubs of `limit` bytes at most, in memory of `together` bytes at a time.
    pub(crate) fn new(limit: u64, together: usize) -> Self {
        let mut stubs = Self {
            blocks: Vec::new(),
            extents: Vec::new(),
            per: (together / BLOCK).max(1),
            maps: true,
            with_room: Box::new([NO_BLOCK; SIZES]),
            limit: 0,
            len: 0,
            used_blocks: 0,
            hand: 0,
            lengths: Box::new([(0, 0); 256]),
            away: 0,
        };
        stubs.set_limit(limit);
        stubs
    }
    pub(crate) fn len(&self) -> usize {
        self.len
    }
    /// Returns how many are not shadowed.
    pub(crate) fn away(&self) -> usize {
        self.away
    }
    /// Returns each coded length that stubs have, how many have it, and how many of these are not shadowed.
    pub(crate) fn lengths(&self) -> impl Iterator<Item = (u8, u64, u64)> + '_ {
        let all = (0..=u8::MAX).zip(self.lengths.iter());
        all.filter(|(_, of)| of.0 > 0).map(|(code, of)| (code, u64::from(of.0), u64::from(of.1)))
    }
    fn count(&mut self, stub: Stub) {
        let of = &mut self.lengths[usize::from(stub.len)];
        let is_away = stub.marks & SHADOWED == 0;
        *of = (of.0 + 1, of.1 + u32::from(is_away));
        self.away += usize::from(is_away);
    }
    fn discount(&mut self, stub: Stub) {
        let of = &mut self.lengths[usize::from(stub.len)];
        let is_away = stub.marks & SHADOWED == 0;
        *of = (of.0 - 1, of.1 - u32::from(is_away));
        self.away -= usize::from(is_away);
    }
    /// Returns the bytes of all blocks that have stubs.
    pub(crate) fn bytes(&self) -> usize {
        self.used_blocks * BLOCK
    }
    /// Returns the bytes of memory that is not lent.
    pub(crate) fn mapped_bytes(&self) -> usize {
        let mapped = self.extents.iter().flatten().filter(|extent| !extent.memory.is_lent());
        mapped.map(|extent| extent.memory.len()).sum()
    }
    fn at(&self, id: Id) -> &[u8] {
        let block = self.blocks[id.block()].as_ref().expect("a stub has memory");
        let size = usize::from(block.size);
        block.bytes.bytes(id.slot() * size, size)
    }
    fn at_mut(&mut self, id: Id) -> &mut [u8] {
        let block = self.block_mut(id.block() as u32);
        let size = usize::from(block.size);
        block.bytes.bytes_mut(id.slot() * size, size)
    }
    fn block_mut(&mut self, at: u32) -> &mut Block {
        self.blocks[at as usize].as_mut().expect("a block that is named has memory")
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
        let (len, marks) = (bytes[8], bytes[11]);
        put(bytes, stub);
        if len != stub.len || (marks ^ stub.marks) & SHADOWED != 0 {
            self.discount(Stub { len, marks, ..stub });
            self.count(stub);
        }
    }

    /// Sets how many bytes they may take from now on.
    pub(crate) fn set_limit(&mut self, limit: u64) {
        // The last name stands for no slot.
        self.limit = (limit / BLOCK as u64).min((1 << (32 - SLOT_BITS)) - 1) as usize;
    }
    /// Returns whether they take all that they may take.
    pub(crate) fn is_full(&self) -> bool {
        self.used_blocks >= self.limit
    }

    fn extents(&self) -> impl Iterator<Item = (usize, &Extent)> {
        self.extents.iter().enumerate().filter_map(|(at, extent)| Some((at, extent.as_ref()?)))
    }
    /// Returns the blocks without stubs that may get some.
    fn spare_blocks(&self) -> usize {
        let staying = self.extents().filter(|(_, extent)| !extent.is_leaving);
        staying.map(|(_, extent)| self.per - extent.used).sum()
    }
    /// Maps no memory from now on.
    pub(crate) fn take_lent_only(&mut self) {
        self.maps = false;
    }
    /// Returns whether more memory should be lent. Half of a piece is left then, for the items of the page that gives way.
    pub(crate) fn wants_memory(&self) -> bool {
        !self.maps && self.used_blocks + self.per <= self.limit && self.spare_blocks() < self.per.div_ceil(2)
    }
    /// Takes memory for more stubs.
    pub(crate) fn lend(&mut self, memory: StubMemory) {
        let at = self.extents.iter().position(Option::is_none).unwrap_or(self.extents.len());
        if at == self.extents.len() {
            self.extents.push(None);
            self.blocks.extend((0..self.per).map(|_| None));
        }
        for number in 0..self.per {
            let bytes = memory.piece(number);
            self.blocks[at * self.per + number] =
                Some(Block { bytes, size: 0, used: 0, fresh: 0, free: NO_SLOT, prev: NO_BLOCK, next: NO_BLOCK });
        }
        self.extents[at] = Some(Extent { memory, used: 0, is_leaving: false });
    }
    /// Returns memory that no stub is in, unless more stubs will need it soon.
    pub(crate) fn take_back(&mut self) -> Option<StubMemory> {
        let (at, extent) =
            self.extents().find(|(_, extent)| extent.used == 0 && (extent.memory.is_lent() || !self.maps))?;
        if !extent.is_leaving && extent.memory.is_lent() && self.spare_blocks() < 2 * self.per {
            return None;
        }
        self.blocks[at * self.per..(at + 1) * self.per].fill_with(|| None);
        self.extents[at].take().map(|extent| extent.memory)
    }
    /// Returns a block whose stubs are to go if there is more memory than the limit, so that memory can be taken back.
    pub(crate) fn excess(&mut self) -> Option<usize> {
        let leaving = |stubs: &Self| stubs.extents().find(|(_, extent)| extent.is_leaving).map(|(at, _)| at);
        let all = self.extents().count();
        if leaving(self).is_none() && all > 1 && all * self.per > self.limit.next_multiple_of(self.per) {
            let at = self.extents().min_by_key(|(_, extent)| extent.used).map(|(at, _)| at)?;
            if let Some(extent) = &mut self.extents[at] {
                extent.is_leaving = true;
            }
            for block in at * self.per..(at + 1) * self.per {
                let Some(Block { size, used, .. }) = self.blocks[block] else { continue };
                if used > 0 && usize::from(used) < BLOCK / usize::from(size) {
                    self.unlink(block as u32, usize::from(size) / 2);
                }
            }
        }
        let at = leaving(self)?;
        (at * self.per..(at + 1) * self.per).find(|&at| self.blocks[at].as_ref().is_some_and(|block| block.used > 0))
    }

    /// Adds a stub, if there is room.
    pub(crate) fn insert(&mut self, key: &[u8], stub: Stub) -> Option<Id> {
        let class = size(key.len()) / 2;
        let at = match self.with_room[class] {
            NO_BLOCK => self.take_block(class)?,
            at => at,
        };
        let block = self.block_mut(at);
        let slot = if block.free == NO_SLOT { block.fresh } else { block.free };
        let width = usize::from(block.size);
        let bytes = block.bytes.bytes_mut(usize::from(slot) * width, width);
        let next = u16::from_le_bytes([bytes[0], bytes[1]]);
        bytes[9] = key.len() as u8;
        bytes[FIXED..FIXED + key.len()].copy_from_slice(key);
        put(bytes, stub);
        if block.free == NO_SLOT {
            block.fresh += 1;
        } else {
            block.free = next;
        }
        block.used += 1;
        if usize::from(block.used) == BLOCK / width {
            self.unlink(at, class);
        }
        self.len += 1;
        self.count(stub);
        Some(Id::new(at, u32::from(slot)))
    }

    pub(crate) fn remove(&mut self, id: Id) {
        self.discount(self.get(id));
        let (at, extent) = (id.block() as u32, id.block() / self.per);
        let is_leaving = self.extents[extent].as_ref().is_some_and(|extent| extent.is_leaving);
        let block = self.block_mut(at);
        let width = usize::from(block.size);
        let free = block.free;
        let bytes = block.bytes.bytes_mut(id.slot() * width, width);
        bytes[..2].copy_from_slice(&free.to_le_bytes());
        bytes[9] = 0;
        let was_full = usize::from(block.used) == BLOCK / width;
        block.free = id.slot() as u16;
        block.used -= 1;
        let is_empty = block.used == 0;
        self.len -= 1;
        match (was_full, is_empty) {
            _ if is_leaving => {}
            (false, true) => self.unlink(at, width / 2),
            (true, false) => self.link(at, width / 2),
            _ => {}
        }
        if is_empty {
            self.used_blocks -= 1;
            if let Some(extent) = &mut self.extents[extent] {
                extent.used -= 1;
            }
        }
    }

    fn take_block(&mut self, class: usize) -> Option<u32> {
        if self.is_full() {
            return None;
        }
        let per = self.per;
        // The fullest: so others come free.
        let with_room = |stubs: &Self| {
            let some = stubs.extents().filter(|(_, extent)| !extent.is_leaving && extent.used < per);
            some.max_by_key(|(_, extent)| extent.used).map(|(at, _)| at)
        };
        let extent = match with_room(self) {
            Some(extent) => extent,
            None if self.maps => {
                self.lend(StubMemory::mapped(per * BLOCK)?);
                with_room(self)?
            }
            None => return None,
        };
        let mut all = extent * per..(extent + 1) * per;
        let at = all.find(|&at| self.blocks[at].as_ref().is_some_and(|block| block.used == 0))? as u32;
        let block = self.block_mut(at);
        (block.size, block.used, block.fresh, block.free) = (class as u16 * 2, 0, 0, NO_SLOT);
        self.used_blocks += 1;
        if let Some(extent) = &mut self.extents[extent] {
            extent.used += 1;
        }
        self.link(at, class);
        Some(at)
    }
    fn link(&mut self, at: u32, class: usize) {
        let first = self.with_room[class];
        let block = self.block_mut(at);
        (block.prev, block.next) = (NO_BLOCK, first);
        if first != NO_BLOCK {
            self.block_mut(first).prev = at;
        }
        self.with_room[class] = at;
    }
    fn unlink(&mut self, at: u32, class: usize) {
        let &mut Block { prev, next, .. } = self.block_mut(at);
        match prev {
            NO_BLOCK => self.with_room[class] = next,
            prev => self.block_mut(prev).next = next,
        }
        if next != NO_BLOCK {
            self.block_mut(next).prev = prev;
        }
    }

    /// Returns the block that is to give way to keys of another length, and moves on. It is one of a few with the fewest stubs.
    pub(crate) fn next_to_empty(&mut self, key: usize) -> Option<usize> {
        let own = size(key) as u16;
        let (mut best, mut compared) = (None, 0);
        for _ in 0..self.blocks.len() {
            self.hand = (self.hand + 1) % self.blocks.len();
            let Some(Block { size, used, .. }) = self.blocks[self.hand] else { continue };
            let is_leaving = || self.extents[self.hand / self.per].as_ref().is_some_and(|extent| extent.is_leaving);
            if used == 0 || size == own || is_leaving() {
                continue;
            }
            if best.is_none_or(|(fewest, _)| used < fewest) {
                best = Some((used, self.hand));
            }
            compared += 1;
            if compared == COMPARED {
                break;
            }
        }
        best.map(|(_, at)| at)
    }
    /// Returns the stubs of a block.
    pub(crate) fn of_block(&self, at: usize) -> Vec<Id> {
        let slots = self.blocks[at].as_ref().map_or(0, |block| if block.used == 0 { 0 } else { block.fresh });
        let all = (0..slots).map(|slot| Id::new(at as u32, u32::from(slot)));
        all.filter(|&id| self.at(id)[9] != 0).collect()
    }

    /// Returns the first stub from this one on in the order of their places in memory: [`Id::NONE`] is the begin.
    pub(crate) fn after(&self, id: Id) -> Option<Id> {
        let (mut at, mut slot) = if id == Id::NONE { (0, 0) } else { (id.block(), id.slot() + 1) };
        while let Some(block) = self.blocks.get(at) {
            if let Some(block) = block.as_ref().filter(|block| block.used != 0) {
                while slot < usize::from(block.fresh) {
                    let id = Id::new(at as u32, slot as u32);
                    if self.at(id)[9] != 0 {
                        return Some(id);
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
            let mut stubs = Stubs::new(40 * BLOCK as u64, 8 * BLOCK);
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
                prop_assert_eq!(stubs.away(), model.len());
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
        let mut stubs = Stubs::new(2 * BLOCK as u64, 8 * BLOCK);
        let ids: Vec<_> = std::iter::from_fn(|| stubs.insert(&[7; 20], stub(1))).collect();
        assert_eq!(ids.len(), 2 * 1024);
        assert!(stubs.insert(&[7; 100], stub(1)).is_none());
        for id in ids {
            stubs.remove(id);
        }
        assert_eq!(stubs.bytes(), 0);
        assert!(stubs.insert(&[7; 100], stub(1)).is_some());
    }

    #[test]
    fn a_lower_limit_is_reached_block_by_block() {
        let mut stubs = Stubs::new(4 * BLOCK as u64, 2 * BLOCK);
        let ids: Vec<_> = std::iter::from_fn(|| stubs.insert(&[7; 20], stub(1))).collect();
        for (at, &id) in ids.iter().enumerate() {
            if at / 1024 == 2 || at % 2 == 0 {
                stubs.remove(id);
            }
        }
        assert_eq!(stubs.excess(), None);
        stubs.set_limit(2 * BLOCK as u64);
        // What has room is used no more.
        assert_eq!(stubs.excess(), Some(3));
        assert!(stubs.insert(&[7; 20], stub(1)).is_some_and(|id| id.block() < 2));
        for id in stubs.of_block(3) {
            stubs.remove(id);
        }
        assert_eq!((stubs.excess(), stubs.len()), (None, 1025));
    }

    #[test]
    fn blocks_of_another_length_give_way_in_turn() {
        let mut stubs = Stubs::new(40 * BLOCK as u64, 8 * BLOCK);
        while stubs.insert(&[7; 20], stub(1)).is_some() {}
        assert!(stubs.is_full());
        assert_eq!(stubs.next_to_empty(20), None, "all are of this length");
        let chosen: std::collections::HashSet<_> = (0..3).map(|_| stubs.next_to_empty(30)).collect();
        assert!(chosen.len() == 3 && !chosen.contains(&None), "{chosen:?}");
    }

    #[test]
    fn lent_memory_is_taken_back() {
        let lend = || StubMemory::mapped(4 * BLOCK).map(StubMemory::into_lent).unwrap();
        let mut stubs = Stubs::new(12 * BLOCK as u64, 4 * BLOCK);
        stubs.take_lent_only();
        assert!(stubs.insert(&[7; 20], stub(1)).is_none() && stubs.wants_memory());
        let mut ids = Vec::new();
        for _ in 0..3 {
            stubs.lend(lend());
            assert!(!stubs.wants_memory());
            ids.extend(std::iter::from_fn(|| stubs.insert(&[7; 20], stub(1))));
        }
        assert!(ids.len() == 12 * 1024 && !stubs.wants_memory() && stubs.is_full());
        assert!(stubs.take_back().is_none());
        for id in ids.split_off(2 * 1024) {
            stubs.remove(id);
        }
        // One is kept, for more to come.
        assert!(stubs.take_back().is_some() && stubs.take_back().is_none());
        assert_eq!(ids.iter().filter(|&&id| stubs.key(id) == [7; 20]).count(), 2 * 1024);
        stubs.lend(lend());
        let walked = std::iter::successors(stubs.after(Id::NONE), |&id| stubs.after(id)).count();
        assert_eq!(walked, 2 * 1024);
    }
}
