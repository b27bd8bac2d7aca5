//! The GET table: where items lie, by key, for clients that read the server's memory and its table.
//!
//! The table is memory that the server alone writes and that its clients over shared memory may read, as they may read all items. A GET
//! looks its key up there and reads the item, so that it needs no tag: any number of clients read any number of items without a word to
//! the server, and nothing is leased to them.
//!
//! ```text
//! at       0  u64  until when the table holds, in nanoseconds of the machine's boot clock
//!          8  u64  what that clock lacks to the one that items expire by, in nanoseconds; 0 of a server that does not say it
//!       4096  buckets of 64 bytes, a power of two of them: eight entries each
//!
//! an entry    bits  0 to 35  the item's place: bytes from the begin of the first arena, as if all followed each other, in units of 8
//!                  36 to 41  how long the item is at most, as a step: (4 + step % 4) << (step / 4 + 4) bytes
//!                  42 to 51  a print of the key: the highest bits of its hash, and never 0
//!                  52 to 63  the lowest bits of the item's version
//! ```
//!
//! An entry of all zeros is empty. A key's bucket is given by the lowest bits of its [hash](Hasher::hash).
//!
//! # The rules
//!
//! The table is a hint as to what it lacks: a key that is not there is asked of the server. As to what it has it is exact:
//!
//! * The server takes an entry out after its item has died, and before anything else: before the next value of the key is alive, before it
//!   replies to whatever ended the item, and before the chunk is used again.
//! * A client reads an entry, then the item, then the entry again. If both are equal the chunk was that item's all the while, so what
//!   was read is one value of the key, and was its value when the entry was read again. Between the two nothing was waited for. The item is
//!   [checked](crate::item::check) all the same, with its version.
//! * Twelve bits of a version come again after 4,096 changes. That cannot be mistaken unless the client stops between its reads while the key
//!   has its next value in the very chunk so many changes later. Then the sum of the item differs from what was read, part of it before.
//! * An item ends by the server's clock, which is never set: the boot clock and the table's second word. The machine's time of day may have
//!   been put right since, and no reader asks the server whether an item that is found here is over.
//! * The time in the table's first word is moved on as long as the server runs, to one lease (D) from then. A client believes what it read
//!   only if that time, read before the item, has not come afterwards. So nothing is believed of a server that has been gone for longer
//!   than D, as with leases, and the next server waits for as long.

/// Bytes before the buckets.
pub const HEAD: u64 = 4096;
/// Entries of a bucket.
pub const SLOTS: usize = 8;
/// Bytes of a bucket.
pub const BUCKET: u64 = 8 * SLOTS as u64;

/// Bytes of items for each bucket: a table takes an eighth of the memory for items, of which the system gives what is used.
const BYTES_A_BUCKET: u64 = 512;
/// The largest table: 1 GiB.
const MOST: u64 = 1 << 24;

const PLACE: u32 = 36;
const STEP: u32 = 6;
const PRINT: u32 = 10;
const VERSION: u32 = 12;

const fn mask(bits: u32) -> u64 {
    (1 << bits) - 1
}

/// How many buckets a table has for so much memory for items.
pub fn buckets(memory: u64) -> u64 {
    let wanted = (memory / BYTES_A_BUCKET).clamp(64, MOST);
    1 << wanted.ilog2()
}

/// Bytes that arenas may have in all.
pub const REACH: u64 = 8 << PLACE;

/// The key of the hash function: a server's secret, so that no other party can choose keys that share a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hasher([u64; 2]);

#[inline]
fn fold(one: u64, other: u64) -> u64 {
    let product = u128::from(one) * u128::from(other);
    product as u64 ^ (product >> 64) as u64
}

impl Hasher {
    /// By this secret.
    #[inline]
    pub fn new(secret: [u64; 2]) -> Self {
        Self(secret)
    }

    /// Returns the secret.
    #[inline]
    pub fn secret(self) -> [u64; 2] {
        self.0
    }

    /// Returns the hash of a key: words of eight bytes, the last one with zeros behind the key's end, multiplied and
    /// folded.
    #[inline]
    pub fn hash(self, key: &[u8]) -> u64 {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        let Self([start, by]) = self;
        let by = by | 1;
        let mut state = start ^ (key.len() as u64).wrapping_mul(ODD);
        let (words, rest) = key.as_chunks::<8>();
        for word in words {
            state = fold(state ^ u64::from_le_bytes(*word), by ^ ODD);
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        state = fold(state ^ u64::from_le_bytes(last), by);
        fold(state ^ start.rotate_left(32), by ^ ODD.rotate_left(17))
    }
}

/// Returns the bucket of a hash, of so many.
#[inline]
pub fn bucket(hash: u64, buckets: u64) -> u64 {
    hash & (buckets - 1)
}

/// Returns the bytes of a step.
#[inline]
fn bytes_of(step: u64) -> u64 {
    (4 + step % 4) << (step / 4 + 4)
}

/// An entry: where an item is, and which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry(u64);

impl Entry {
    /// Returns the entry of the key with this hash, at this place (in bytes, a multiple of 8), of so many bytes. None where
    /// that does not fit.
    #[inline]
    pub fn new(hash: u64, place: u64, bytes: u64, version: u64) -> Option<Self> {
        let step = (0..1 << STEP).find(|&step| bytes_of(step) >= bytes)?;
        if place >= REACH || !place.is_multiple_of(8) {
            return None;
        }
        let version = (version & mask(VERSION)) << (PLACE + STEP + PRINT);
        Some(Self((place / 8) | (step << PLACE) | (Self::print(hash) << (PLACE + STEP)) | version))
    }

    /// Returns the entry that a word is, if it is one.
    #[inline]
    pub fn of(word: u64) -> Option<Self> {
        (word != 0).then_some(Self(word))
    }

    /// Returns the word.
    #[inline]
    pub fn word(self) -> u64 {
        self.0
    }

    #[inline]
    fn print(hash: u64) -> u64 {
        (hash >> (64 - PRINT)).max(1)
    }

    /// Returns whether it may be of the key with this hash.
    #[inline]
    pub fn may_be(self, hash: u64) -> bool {
        self.0 >> (PLACE + STEP) & mask(PRINT) == Self::print(hash)
    }

    /// Returns the start of the item, in bytes.
    #[inline]
    pub fn place(self) -> u64 {
        (self.0 & mask(PLACE)) * 8
    }

    /// Bytes that the item has at most.
    #[inline]
    pub fn bytes(self) -> u64 {
        bytes_of(self.0 >> PLACE & mask(STEP))
    }

    /// Returns whether the item may have this version.
    #[inline]
    pub fn has_version(self, version: u64) -> bool {
        self.0 >> (PLACE + STEP + PRINT) == version & mask(VERSION)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_table_takes_an_eighth_of_the_memory() {
        assert_eq!(buckets(64 << 20) * BUCKET, 8 << 20);
        assert_eq!((buckets(0), buckets(u64::MAX)), (64, MOST));
    }

    #[test]
    fn what_does_not_fit_has_no_entry() {
        assert!(Entry::new(1, REACH - 8, 100, 1).is_some());
        assert!(Entry::new(1, REACH, 100, 1).is_none());
        assert!(Entry::new(1, 4, 100, 1).is_none());
        assert!(Entry::new(1, 0, 7 << 19, 1).is_some() && Entry::new(1, 0, (7 << 19) + 1, 1).is_none());
    }

    #[test]
    fn keys_differ_by_length_and_by_every_byte() {
        let hasher = Hasher::new([3, 5]);
        let mut seen = std::collections::HashSet::new();
        for length in 1..40 {
            assert!(seen.insert(hasher.hash(&vec![0; length])));
            for at in 0..length {
                let mut key = vec![0; length];
                key[at] = 1;
                assert!(seen.insert(hasher.hash(&key)), "byte {at} of {length}");
            }
        }
    }

    #[test]
    fn buckets_of_numbered_keys_fill_evenly() {
        let (hasher, buckets) = (Hasher::new([0x1234_5678_9abc_def0, 0x0fed_cba9_8765_4321]), 1 << 14);
        let mut filled = vec![0_u32; buckets as usize];
        for key in 0..3 * buckets {
            filled[bucket(hasher.hash(format!("key{key:013}").as_bytes()), buckets) as usize] += 1;
        }
        // Four in a thousand of a Poisson distribution with a mean of 3 are more than eight.
        let overfull = filled.iter().filter(|&&keys| keys as usize > SLOTS).count() as f64 / buckets as f64;
        assert!(overfull < 0.008, "{overfull}");
    }

    proptest! {
        #[test]
        fn an_entry_says_what_it_was_made_of(
            hash: u64, place in 0..REACH / 8, bytes in 1..7_u64 << 19, version: u64, other: u64,
        ) {
            let entry = Entry::new(hash, place * 8, bytes, version).unwrap();
            prop_assert_eq!(Entry::of(entry.word()), Some(entry));
            prop_assert!(entry.may_be(hash) && entry.has_version(version));
            prop_assert_eq!(entry.place(), place * 8);
            prop_assert!(entry.bytes() >= bytes && (entry.bytes() <= 64 || entry.bytes() * 4 <= bytes * 5 + 64));
            prop_assert_eq!(entry.may_be(other), hash >> 54 == other >> 54 || (hash >> 55 == 0 && other >> 55 == 0));
            prop_assert_eq!(entry.has_version(other), version & 0xfff == other & 0xfff);
        }
    }
}
