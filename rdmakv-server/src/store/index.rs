//! From a key to its chunk: buckets of one cache line, each with ten tags and ten chunks.
//!
//! The table grows one bucket at a time (linear hashing), in segments, so that no single insertion pays for a
//! doubling. A bucket that overflows continues in a spare one.

use std::hash::{BuildHasher, Hasher};

use foldhash::quality::FixedState;

use super::chunk::Id;
use super::slabs::Slabs;

const SLOTS: usize = 10;
const SEGMENT: usize = 1024;

#[derive(Clone, Debug)]
#[repr(align(64))]
struct Bucket {
    ids: [Id; SLOTS],
    tags: [u16; SLOTS],
    more: u32,
}

/// No spare bucket.
const NONE: u32 = u32::MAX;
const EMPTY: Bucket = Bucket { ids: [Id::NONE; SLOTS], tags: [0; SLOTS], more: NONE };

/// The chunks of items, by key.
#[derive(Debug)]
pub(super) struct ItemIndex {
    table: Table,
    hasher: FixedState,
}

impl ItemIndex {
    /// Makes an empty index: two to the power of `power` buckets, and hashes by this secret.
    pub(super) fn new(power: u32, seed: u64) -> Self {
        Self { table: Table::new(power), hasher: FixedState::with_seed(seed) }
    }

    /// Returns how many items there are.
    pub(super) fn len(&self) -> usize {
        self.table.len
    }
    pub(super) fn bytes(&self) -> usize {
        self.table.bytes()
    }
    /// Returns the power of two of its buckets.
    pub(super) fn power(&self) -> u32 {
        self.table.base.ilog2()
    }
    /// Returns whether it is between two powers.
    pub(super) fn is_growing(&self) -> bool {
        self.table.split > 0
    }

    #[inline]
    pub(super) fn hash(&self, key: &[u8]) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(key);
        hasher.finish()
    }
    pub(super) fn hash_of(&self, slabs: &Slabs, id: Id) -> u64 {
        self.hash(slabs.chunk(id).key())
    }

    /// Returns the key's chunk.
    #[inline]
    pub(super) fn find(&self, slabs: &Slabs, hash: u64, key: &[u8]) -> Option<Id> {
        self.table.find(hash, |id| slabs.chunk(id).key() == key)
    }
    /// Returns whether this chunk is its key's.
    pub(super) fn names(&self, hash: u64, id: Id) -> bool {
        self.table.find(hash, |other| other == id).is_some()
    }

    /// Adds the chunk of a key that has none.
    pub(super) fn insert(&mut self, slabs: &Slabs, hash: u64, id: Id) {
        let Self { table, hasher } = self;
        table.insert(hash, id, |id| {
            let mut state = hasher.build_hasher();
            state.write(slabs.chunk(id).key());
            state.finish()
        });
    }
    /// Puts another chunk in the place of the key's.
    pub(super) fn replace(&mut self, hash: u64, old: Id, new: Id) {
        let there = self.table.replace(hash, old, new);
        debug_assert!(there, "an item is in the index");
    }
    pub(super) fn remove(&mut self, hash: u64, id: Id) {
        let there = self.table.remove(hash, id);
        debug_assert!(there, "an item is in the index");
    }
}

#[derive(Debug)]
struct Table {
    segments: Vec<Box<[Bucket]>>,
    spare: Vec<Bucket>,
    unused_spares: Vec<u32>,
    /// Buckets when the present doubling began, a power of two.
    base: usize,
    /// Buckets split so far in this doubling.
    split: usize,
    len: usize,
}

/// The place of a bucket: in the table or among the spare ones.
#[derive(Clone, Copy)]
enum At {
    Main(usize),
    Spare(u32),
}

fn tag(hash: u64) -> u16 {
    (hash >> 48) as u16
}

impl Table {
    fn new(power: u32) -> Self {
        let base = SEGMENT.max(1 << power.min(32));
        let segments = (0..base / SEGMENT).map(|_| vec![EMPTY; SEGMENT].into_boxed_slice()).collect();
        Self { segments, spare: Vec::new(), unused_spares: Vec::new(), base, split: 0, len: 0 }
    }

    fn bytes(&self) -> usize {
        (self.segments.len() * SEGMENT + self.spare.len()) * size_of::<Bucket>()
    }

    #[inline]
    fn home(&self, hash: u64) -> usize {
        let narrow = hash as usize & (self.base - 1);
        if narrow < self.split { hash as usize & (2 * self.base - 1) } else { narrow }
    }

    #[inline]
    fn bucket(&self, at: At) -> &Bucket {
        match at {
            At::Main(at) => &self.segments[at / SEGMENT][at % SEGMENT],
            At::Spare(at) => &self.spare[at as usize],
        }
    }
    fn bucket_mut(&mut self, at: At) -> &mut Bucket {
        match at {
            At::Main(at) => &mut self.segments[at / SEGMENT][at % SEGMENT],
            At::Spare(at) => &mut self.spare[at as usize],
        }
    }

    #[inline]
    fn position(&self, hash: u64, is: impl Fn(Id) -> bool) -> Option<(At, usize)> {
        let tag = tag(hash);
        let mut at = At::Main(self.home(hash));
        loop {
            let bucket = self.bucket(at);
            for slot in 0..SLOTS {
                if bucket.tags[slot] == tag && bucket.ids[slot] != Id::NONE && is(bucket.ids[slot]) {
                    return Some((at, slot));
                }
            }
            if bucket.more == NONE {
                return None;
            }
            at = At::Spare(bucket.more);
        }
    }

    /// Returns the chunk with this hash that `is` the one meant.
    #[inline]
    fn find(&self, hash: u64, is: impl Fn(Id) -> bool) -> Option<Id> {
        self.position(hash, is).map(|(at, slot)| self.bucket(at).ids[slot])
    }

    /// Puts another chunk in the place of this one; returns whether it was there.
    fn replace(&mut self, hash: u64, old: Id, new: Id) -> bool {
        let found = self.position(hash, |id| id == old);
        if let Some((at, slot)) = found {
            self.bucket_mut(at).ids[slot] = new;
        }
        found.is_some()
    }

    fn remove(&mut self, hash: u64, old: Id) -> bool {
        let found = self.position(hash, |id| id == old);
        if let Some((at, slot)) = found {
            self.bucket_mut(at).ids[slot] = Id::NONE;
            self.len -= 1;
        }
        found.is_some()
    }

    /// Adds a chunk; the table grows by a bucket where it is two thirds full. `hash_of` is asked about chunks in the
    /// bucket that is split.
    fn insert(&mut self, hash: u64, id: Id, hash_of: impl Fn(Id) -> u64) {
        self.put(hash, id);
        self.len += 1;
        let buckets = self.base + self.split;
        if self.len * 3 > buckets * SLOTS * 2 {
            self.grow(hash_of);
        }
    }

    fn put(&mut self, hash: u64, id: Id) {
        let mut at = At::Main(self.home(hash));
        loop {
            let bucket = self.bucket_mut(at);
            if let Some(slot) = bucket.ids.iter().position(|&id| id == Id::NONE) {
                bucket.ids[slot] = id;
                bucket.tags[slot] = tag(hash);
                return;
            }
            let mut more = bucket.more;
            if more == NONE {
                more = self.unused_spares.pop().unwrap_or_else(|| {
                    self.spare.push(EMPTY);
                    self.spare.len() as u32 - 1
                });
                self.bucket_mut(at).more = more;
            }
            at = At::Spare(more);
        }
    }

    fn grow(&mut self, hash_of: impl Fn(Id) -> u64) {
        let (from, to) = (self.split, self.base + self.split);
        if to / SEGMENT == self.segments.len() {
            self.segments.push(vec![EMPTY; SEGMENT].into_boxed_slice());
        }
        // The chain is taken apart and each chunk put where the wider hash says.
        let mut chain = std::mem::replace(self.bucket_mut(At::Main(from)), EMPTY);
        self.split += 1;
        if self.split == self.base {
            self.base *= 2;
            self.split = 0;
        }
        loop {
            for &id in chain.ids.iter().filter(|&&id| id != Id::NONE) {
                self.put(hash_of(id), id);
            }
            if chain.more == NONE {
                break;
            }
            let spare = chain.more;
            chain = std::mem::replace(self.bucket_mut(At::Spare(spare)), EMPTY);
            self.unused_spares.push(spare);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn id(number: u32) -> Id {
        Id::of(number as usize * 8)
    }

    fn number(id: Id) -> u32 {
        (id.at() / 8) as u32
    }

    fn hash(id: Id) -> u64 {
        u64::from(number(id)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31)
    }

    #[test]
    fn everything_is_found_however_often_the_table_grew() {
        let mut index = Table::new(0);
        for id in (0..100_000).map(id) {
            index.insert(hash(id), id, hash);
        }
        assert!(index.base.ilog2() > 12);
        for id in (0..100_000).map(id) {
            assert_eq!(index.find(hash(id), |found| found == id), Some(id));
        }
        for id in (0..100_000).step_by(2).map(id) {
            assert!(index.remove(hash(id), id));
            assert!(!index.remove(hash(id), id));
        }
        assert_eq!(index.len, 50_000);
        assert!(
            (0..100_000).map(id).all(|id| index.find(hash(id), |found| found == id).is_some() == (number(id) % 2 == 1))
        );
    }

    #[test]
    fn a_bucket_that_overflows_keeps_all_its_chunks() {
        let mut index = Table::new(0);
        for id in (0..5000).map(id) {
            index.insert(7, id, |_| 7);
        }
        assert!((0..5000).map(id).all(|id| index.find(7, |found| found == id).is_some()));
    }

    proptest! {
        #[test]
        fn the_table_agrees_with_a_map(ops in prop::collection::vec((0..3_u8, 0..400_u32), 1..800), coarse in 1..9_u32) {
            let hash = |chunk: Id| hash(id(number(chunk) / coarse));
            let (mut index, mut model) = (Table::new(0), HashMap::new());
            for (op, number) in ops {
                let id = id(number);
                match op {
                    0 if !model.contains_key(&id) => { index.insert(hash(id), id, hash); model.insert(id, ()); }
                    1 => prop_assert_eq!(index.remove(hash(id), id), model.remove(&id).is_some()),
                    _ => prop_assert_eq!(index.find(hash(id), |found| found == id).is_some(), model.contains_key(&id)),
                }
                prop_assert_eq!(index.len, model.len());
            }
        }
    }
}
