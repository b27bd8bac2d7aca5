//! Layouts of the program's maps; `layout.h` has the same for the program.
//!
//! | map | at | bytes | what |
//! | --- | ---: | ---: | --- |
//! | `head` | 0 | 8 | epoch: lowest bit 1 = answer; the rest counts pages that left their class |
//! | | 8 | 8 | the server's incarnation; it is there before the epoch is odd |
//! | | 64 + 16s | 8 | of shard s: items up to this version are gone |
//! | | 72 + 16s | 8 | of shard s: when a flush is due, in Unix seconds; 0 is never |
//! | `gets`, a bucket of 64 | 0 | 56 | seven slots: place in units of 8 bytes (low 32 bits), tag (high 32, never 0); 0 is empty |
//! | | 56 | 8 | a byte a slot: hits seen, 0 to 3, the program's to write; the last one unused |
//! | `tally`, a row a CPU | 0 | 128 | asked, answered, bytes in, bytes out, unknown, changed, over, no room, answers to `mg` |
//! | | 128 | 2048 | answers, by class of chunk |
//! | `interface` | 0 | 992 | MTU, MAC, addresses that are answered at, networks that may ask; the server follows the interface |
//!
//! Numbers are little-endian. An item lies as `rdmakv_proto::item` describes it, with one addition. Bytes 38 and 39 count the
//! chunk's lives.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU8, AtomicU64};

/// Slots of a bucket.
pub const SLOTS: usize = 7;
/// Shards at most.
pub const SHARDS: usize = 252;
/// Bytes of the map `head`.
pub const HEAD: usize = 64 + 16 * SHARDS;
/// Bytes of a row of the map `tally`.
pub const TALLY: usize = 128 + 8 * 256;
/// Bytes at the end of a value of the map of items where the program reads no item.
pub const TAIL: u64 = 2048;
/// Bytes of a value of the map of items at most.
pub const VALUE_MAX: u64 = 256 << 20;
/// Bytes of items at most: what a slot's place reaches.
pub const REACH: u64 = 8 << 32;
/// Addresses, and networks, of each family at most.
pub const ADDRESSES: usize = 16;
/// Bytes of the map `interface`.
pub const INTERFACE: usize = 32 + ADDRESSES * (4 + 16 + 8 + 32);
/// Words at its begin, in which MTU, MAC and counts are.
pub const INTERFACE_HEAD: usize = 4;

/// The bit of the epoch that lets the program answer.
pub const ANSWERING: u64 = 1;
/// The step of the epoch for a page that leaves its class.
pub const PAGE_LEFT: u64 = 2;

/// A bucket of the map `gets`.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Bucket {
    /// Place and tag of each; 0 is empty.
    pub slots: [AtomicU64; SLOTS],
    /// Hits that the program saw, at most 3.
    pub hits: [AtomicU8; 8],
}

const _: () = assert!(size_of::<Bucket>() == 64);

/// Returns the bytes of a value of the map of items, for a store with pages of this size.
///
/// It is a multiple of the page's size, so that no item crosses values.
pub fn value_size(page: u64) -> Option<u64> {
    (page > 0 && page <= VALUE_MAX).then(|| VALUE_MAX / page * page)
}

/// Returns how many buckets a table has for so much memory for items.
pub fn buckets(memory: u64) -> u64 {
    let wanted = (memory / 1024).clamp(64, 1 << 25);
    1 << wanted.ilog2()
}

/// The hash of keys, by a server's secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hasher([u64; 2]);

const ODD: u64 = 0x9fb2_1c65_1e98_df25;

impl Hasher {
    /// By this secret.
    #[inline]
    pub fn new(secret: [u64; 2]) -> Self {
        Self(secret)
    }

    /// Returns the hash of a key: words of eight bytes, the last one with zeros behind the key's end.
    #[inline]
    pub fn hash(self, key: &[u8]) -> u64 {
        let [begin, by] = self.0;
        let mut hash = begin;
        for bytes in key.chunks(8) {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            hash = (hash ^ u64::from_le_bytes(word)).wrapping_mul(ODD);
            hash ^= hash >> 32;
            hash = hash.wrapping_mul(by | 1);
            hash ^= hash >> 29;
        }
        hash = (hash ^ key.len() as u64).wrapping_mul(ODD);
        hash ^= hash >> 32;
        hash = hash.wrapping_mul(ODD);
        hash ^ hash >> 31
    }
}

/// Returns the word of a slot: the tag of this hash, and the place in bytes, a multiple of 8 below [`REACH`].
#[inline]
pub fn slot(hash: u64, place: u64) -> u64 {
    debug_assert!(place < REACH && place.is_multiple_of(8));
    ((hash >> 32).max(1) << 32) | (place / 8)
}

/// A network, as its first bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// An address in it.
    pub address: IpAddr,
    /// How many bits its addresses share.
    pub bits: u8,
}

/// The constants of a program, and its interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Bytes of a value of the map of items; see [`value_size`].
    pub value_size: u64,
    /// Bytes of items in all.
    pub memory: u64,
    /// Bytes of each shard.
    pub shard_size: u64,
    /// Buckets of the table, a power of two.
    pub buckets: u64,
    /// The secret of the [`Hasher`].
    pub secret: [u64; 2],
    /// Nanoseconds from the boot clock to the clock that items expire by.
    pub clock: u64,
    /// `gets` answers 0 for a version.
    pub without_cas: bool,
    /// There is no program at XDP.
    pub only_tcx: bool,
    /// Bytes that a packet of the interface may have.
    pub mtu: u32,
    /// The server's port.
    pub port: u16,
    /// The interface's address.
    pub mac: [u8; 6],
    /// Addresses that the server answers at.
    pub addresses: Vec<IpAddr>,
    /// Sources that are answered.
    pub sources: Vec<Network>,
}

/// More addresses or networks of a family than the program knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooMany;

impl Settings {
    /// Returns the bytes that the program has its constants in.
    pub fn constants(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(72);
        let [secret0, secret1] = self.secret;
        for word in [self.value_size, self.memory, self.shard_size, self.buckets - 1, secret0, secret1, self.clock] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        for word in [u32::from(self.without_cas), u32::from(self.only_tcx)] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend_from_slice(&self.port.to_be_bytes());
        bytes.extend_from_slice(&[0; 6]);
        bytes
    }

    /// Returns the bytes of the map `interface`.
    ///
    /// # Errors
    ///
    /// There are more than [`ADDRESSES`] addresses or networks of a family.
    pub fn interface(&self) -> Result<Vec<u8>, TooMany> {
        let (mut own4, mut own6, mut from4, mut from6) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for address in &self.addresses {
            match address {
                IpAddr::V4(address) => own4.push(address.octets()),
                IpAddr::V6(address) => own6.push(address.octets()),
            }
        }
        for Network { address, bits } in &self.sources {
            match address {
                IpAddr::V4(address) => {
                    let mask = u32::MAX.checked_shl(32 - u32::from((*bits).min(32))).unwrap_or(0);
                    from4.push([(address.to_bits() & mask).to_be_bytes(), mask.to_be_bytes()].concat());
                }
                IpAddr::V6(address) => {
                    let mask = u128::MAX.checked_shl(128 - u32::from((*bits).min(128))).unwrap_or(0);
                    from6.push([(address.to_bits() & mask).to_be_bytes(), mask.to_be_bytes()].concat());
                }
            }
        }
        let counts = [own4.len(), own6.len(), from4.len(), from6.len()];
        if counts.iter().any(|&count| count > ADDRESSES) {
            return Err(TooMany);
        }
        let mut bytes = Vec::with_capacity(INTERFACE);
        bytes.extend_from_slice(&self.mtu.to_le_bytes());
        bytes.extend_from_slice(&self.mac);
        bytes.extend_from_slice(&[0; 2]);
        counts.iter().for_each(|&count| bytes.extend_from_slice(&(count as u32).to_le_bytes()));
        bytes.extend_from_slice(&[0; 4]);
        pad(&mut bytes, &own4, &[0; 4]);
        pad(&mut bytes, &own6, &[0; 16]);
        pad(&mut bytes, &from4, &[[0xff; 4], [0; 4]].concat());
        pad(&mut bytes, &from6, &[[0xff; 16], [0; 16]].concat());
        Ok(bytes)
    }
}

/// Appends these, and `none` for each that is not there.
///
/// A run of the program may still have a former count, and read `none` as an entry. It matches no source: with a mask of zeros, an address
/// of zeros would match all, and one of ones matches none. Own addresses that are not there are zeros, to which no packet is routed.
fn pad(bytes: &mut Vec<u8>, list: &[impl AsRef<[u8]>], none: &[u8]) {
    list.iter().for_each(|one| bytes.extend_from_slice(one.as_ref()));
    (list.len()..ADDRESSES).for_each(|_| bytes.extend_from_slice(none));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_differ_by_every_byte() {
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
    fn hashes_are_those_of_the_test_vectors() {
        let hasher = Hasher::new([0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210]);
        let hashes = ["a", "abcdefgh", "a key of eighteen.", "abcdefghi"].map(|key| hasher.hash(key.as_bytes()));
        assert_eq!(hashes, VECTORS);
    }

    const VECTORS: [u64; 4] = [832904876650028528, 13962627579915873527, 16913543492392953946, 17542457480645998342];

    #[test]
    fn buckets_of_numbered_keys_fill_evenly() {
        let (hasher, buckets) = (Hasher::new([0x1234_5678_9abc_def0, 0x0fed_cba9_8765_4321]), 1 << 14);
        let mut filled = vec![0_u32; buckets as usize];
        for key in 0..3 * buckets {
            filled[(hasher.hash(format!("key{key:013}").as_bytes()) & (buckets - 1)) as usize] += 1;
        }
        // Twelve in a thousand of a Poisson distribution with a mean of 3 are more than seven.
        let overfull = filled.iter().filter(|&&keys| keys as usize > SLOTS).count() as f64 / buckets as f64;
        assert!(overfull < 0.016, "{overfull}");
    }

    #[test]
    fn values_hold_whole_pages() {
        assert_eq!(value_size(1 << 20), Some(256 << 20));
        assert_eq!(value_size(100 << 20), Some(200 << 20));
        assert_eq!((value_size(0), value_size((256 << 20) + 1)), (None, None));
    }

    fn settings() -> Settings {
        Settings {
            value_size: 1 << 20,
            memory: 1 << 20,
            shard_size: 1 << 20,
            buckets: 64,
            secret: [1, 2],
            clock: 3,
            without_cas: true,
            only_tcx: false,
            mtu: 1500,
            port: 0x1234,
            mac: [1, 2, 3, 4, 5, 6],
            addresses: vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
            sources: vec![Network { address: "10.0.0.9".parse().unwrap(), bits: 24 }],
        }
    }

    #[test]
    fn networks_that_are_not_there_match_no_source() {
        let entries = |bytes: &[u8], len: usize| {
            let split = |entry: &[u8]| (entry[..len].to_vec(), entry[len..].to_vec());
            bytes.chunks_exact(2 * len).map(split).collect::<Vec<_>>()
        };
        let bytes = settings().interface().unwrap();
        let (from4, from6) = bytes[32 + ADDRESSES * 20..].split_at(ADDRESSES * 8);
        for (all, there) in [(entries(from4, 4), 1), (entries(from6, 16), 0)] {
            assert_eq!(all.len(), ADDRESSES);
            // As the program asks: an address of the source, as far as the mask goes, is that of the entry.
            let may_match =
                |(address, mask): &(Vec<u8>, Vec<u8>)| address.iter().zip(mask).all(|(at, by)| at & !by == 0);
            assert_eq!(all.iter().filter(|entry| may_match(entry)).count(), there);
        }
    }

    #[test]
    fn settings_are_as_long_as_the_program_has_them() {
        let settings = settings();
        let constants = settings.constants();
        assert_eq!((constants.len(), &constants[64..66]), (72, &[0x12, 0x34][..]));
        let bytes = settings.interface().unwrap();
        assert_eq!(bytes.len(), INTERFACE);
        assert_eq!(bytes[4..10], [1, 2, 3, 4, 5, 6]);
        assert_eq!(bytes[12..28], [1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[32..36], [10, 0, 0, 1]);
        assert_eq!(bytes[352..360], [10, 0, 0, 0, 255, 255, 255, 0]);
        let many = Settings { addresses: vec!["10.0.0.1".parse().unwrap(); 17], ..settings };
        assert_eq!(many.interface(), Err(TooMany));
    }
}
