//! From a key to its stub: buckets of one cache line, each with twelve tags of a byte and twelve stubs.
//!
//! The table grows by one bucket at a time (linear hashing), in pieces, so that no insertion pays for a doubling. A bucket that
//! overflows continues in a spare one.

use crate::stubs::Id;

const SLOTS: usize = 12;
const PIECE: usize = 256;
const NONE: u32 = u32::MAX;

#[derive(Clone, Debug)]
#[repr(align(64))]
struct Bucket {
    ids: [Id; SLOTS],
    tags: [u8; SLOTS],
    more: u32,
}

const EMPTY: Bucket = Bucket { ids: [Id::NONE; SLOTS], tags: [0; SLOTS], more: NONE };

/// Buckets by number, in pieces that never move.
#[derive(Debug, Default)]
struct Pieces {
    pieces: Vec<Box<[Bucket]>>,
    len: usize,
}

impl Pieces {
    fn push(&mut self) -> usize {
        if self.len == self.pieces.len() * PIECE {
            self.pieces.push(vec![EMPTY; PIECE].into_boxed_slice());
        }
        self.len += 1;
        self.len - 1
    }
    fn at(&self, at: usize) -> &Bucket {
        &self.pieces[at / PIECE][at % PIECE]
    }
    fn at_mut(&mut self, at: usize) -> &mut Bucket {
        &mut self.pieces[at / PIECE][at % PIECE]
    }
}

/// The stubs by the hashes of their keys.
#[derive(Debug)]
pub(crate) struct Index {
    main: Pieces,
    spare: Pieces,
    unused_spares: Vec<u32>,
    /// Buckets when the present doubling began, a power of two.
    base: usize,
    /// Buckets split so far in this doubling.
    split: usize,
    len: usize,
}

#[derive(Clone, Copy)]
enum At {
    Main(usize),
    Spare(u32),
}

fn tag(hash: u64) -> u8 {
    (hash >> 56) as u8
}

impl Index {
    pub(crate) fn new() -> Self {
        let mut main = Pieces::default();
        for _ in 0..PIECE {
            main.push();
        }
        Self { main, spare: Pieces::default(), unused_spares: Vec::new(), base: PIECE, split: 0, len: 0 }
    }
    pub(crate) fn bytes(&self) -> usize {
        (self.main.pieces.len() + self.spare.pieces.len()) * PIECE * size_of::<Bucket>()
            + self.unused_spares.capacity() * 4
    }

    fn home(&self, hash: u64) -> usize {
        let narrow = hash as usize & (self.base - 1);
        if narrow < self.split { hash as usize & (2 * self.base - 1) } else { narrow }
    }
    fn bucket(&self, at: At) -> &Bucket {
        match at {
            At::Main(at) => self.main.at(at),
            At::Spare(at) => self.spare.at(at as usize),
        }
    }
    fn bucket_mut(&mut self, at: At) -> &mut Bucket {
        match at {
            At::Main(at) => self.main.at_mut(at),
            At::Spare(at) => self.spare.at_mut(at as usize),
        }
    }
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

    /// Returns the stub with this hash that `is` the one meant.
    pub(crate) fn find(&self, hash: u64, is: impl Fn(Id) -> bool) -> Option<Id> {
        self.position(hash, is).map(|(at, slot)| self.bucket(at).ids[slot])
    }
    pub(crate) fn remove(&mut self, hash: u64, id: Id) {
        if let Some((at, slot)) = self.position(hash, |other| other == id) {
            self.bucket_mut(at).ids[slot] = Id::NONE;
            self.len -= 1;
        }
    }
    /// Adds a stub. The table grows by a bucket where it is five sixths full; `hash_of` is asked about stubs in the bucket that is
    /// split.
    pub(crate) fn insert(&mut self, hash: u64, id: Id, hash_of: impl Fn(Id) -> u64) {
        self.put(hash, id);
        self.len += 1;
        if self.len * 6 > (self.base + self.split) * SLOTS * 5 {
            self.grow(hash_of);
        }
    }

    fn put(&mut self, hash: u64, id: Id) {
        let mut at = At::Main(self.home(hash));
        loop {
            let bucket = self.bucket_mut(at);
            if let Some(slot) = bucket.ids.iter().position(|&id| id == Id::NONE) {
                (bucket.ids[slot], bucket.tags[slot]) = (id, tag(hash));
                return;
            }
            let mut more = bucket.more;
            if more == NONE {
                more = self.unused_spares.pop().unwrap_or_else(|| self.spare.push() as u32);
                self.bucket_mut(at).more = more;
            }
            at = At::Spare(more);
        }
    }
    fn grow(&mut self, hash_of: impl Fn(Id) -> u64) {
        let from = self.split;
        self.main.push();
        let mut chain = std::mem::replace(self.main.at_mut(from), EMPTY);
        self.split += 1;
        if self.split == self.base {
            (self.base, self.split) = (self.base * 2, 0);
        }
        loop {
            for &id in chain.ids.iter().filter(|&&id| id != Id::NONE) {
                self.put(hash_of(id), id);
            }
            if chain.more == NONE {
                break;
            }
            let spare = chain.more;
            chain = std::mem::replace(self.spare.at_mut(spare as usize), EMPTY);
            self.unused_spares.push(spare);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stubs::{Stub, Stubs};

    fn hash(key: &[u8]) -> u64 {
        let number = u64::from_le_bytes(key[..8].try_into().unwrap());
        number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23).wrapping_mul(0xbf58_476d_1ce4_e5b9)
    }

    #[test]
    fn an_item_takes_at_most_24_bytes_and_its_key() {
        let (mut stubs, mut index) = (Stubs::new(1 << 30, 1 << 20), Index::new());
        let stub = Stub { place: 1, expiry: 0, len: 1, version: 1, marks: 0 };
        let mut key = *b"01234567-an-even-key";
        for number in 0..600_000_u64 {
            key[..8].copy_from_slice(&number.to_le_bytes());
            let id = stubs.insert(&key, stub).unwrap();
            index.insert(hash(&key), id, |id| hash(stubs.key(id)));
            if number > 100_000 && number % 10_000 == 0 {
                let each = (stubs.bytes() + index.bytes()) as f64 / stubs.len() as f64 - key.len() as f64;
                assert!(each <= 22.0, "{number}: {each}");
            }
        }
        for number in (0..600_000_u64).step_by(3) {
            key[..8].copy_from_slice(&number.to_le_bytes());
            let id = index.find(hash(&key), |id| stubs.key(id) == key).unwrap();
            index.remove(hash(&key), id);
            assert!(index.find(hash(&key), |other| other == id).is_none());
        }
        assert_eq!(index.len, 400_000);
    }
}
