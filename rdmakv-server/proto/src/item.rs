//! An item as it lies in memory: what the store writes, and what a one-sided reader has to check before it believes it.
//!
//! | at | bytes | what                                                              | in the CRC |
//! |---:|------:|-------------------------------------------------------------------|------------|
//! |  0 |     1 | state: 0 free, 1 unpublished, 2 alive, 3 dead, 4 held, 5 primary  | no         |
//! |  1 |     1 | marks: 1 fetched, 2 stale, 4 won, 8 leased, 16 key was base64, 32 its version was chosen, 64 listed | no |
//! |  2 |     2 | magic: 76 6b                                                      | no         |
//! |  4 |     4 | incarnation of the server                                         | no         |
//! |  8 |     8 | expiry, in Unix seconds; 0 is never                               | no         |
//! | 16 |     8 | version (CAS)                                                     | yes        |
//! | 24 |     4 | length of the value                                               | yes        |
//! | 28 |     4 | the client's flags                                                | yes        |
//! | 32 |     4 | CRC32C                                                            |            |
//! | 36 |     1 | length of the key, 1 to 250                                       | yes        |
//! | 37 |     1 | class of the chunk's size                                         | no         |
//! | 38 |     2 | life of the chunk: how many items began in it, modulo 65,536      | no         |
//! | 40 |    16 | the store's own: neighbours in the queue, last access, holders, … | no         |
//! | 56 |       | the key, then the value                                           | yes        |
//!
//! Numbers are little-endian. The CRC covers version, length of the value, flags, length of the key (one byte), key, value. In the item of
//! a fragment it has the CRC32C of the whole value in the place of that of the fragment's bytes.
//!
//! While an item is alive the first sixteen bytes change in place, as two words of eight, and so do the store's own; nothing else
//! does. A reader that finds the state *alive* has read it at a moment at which the chunk was the key's value, and the rest, read
//! after that within the reader's lease, is of the same value.
//!
//! Values that several servers keep, and fragments of them, are *primary* where their key's server may answer, which readers take as
//! alive. They are *held* where it may not, and then they are no answer. A held fragment is a part of one that the primary gives.

use crc_fast::{CrcAlgorithm, Digest};

use crate::sums::joined;

/// Bytes before the key.
pub const HEADER: usize = 56;
/// The mark of a chunk of this layout.
pub const MAGIC: u16 = 0x6b76;
/// Bytes of a key at most.
pub const KEY_MAX: usize = 250;

/// The state of a chunk in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// In no use.
    Free = 0,
    /// Being filled.
    Unpublished = 1,
    /// The value of its key.
    Alive = 2,
    /// Was the value of its key.
    Dead = 3,
    /// A value that several servers keep. This one may not answer for its key.
    Held = 4,
    /// The value of a key that several servers keep, at the one that answers for it.
    Primary = 5,
}

impl State {
    /// Returns the state that the lowest byte of a header's first word says.
    #[inline]
    pub fn of(byte: u8) -> Self {
        match byte {
            1 => Self::Unpublished,
            2 => Self::Alive,
            3 => Self::Dead,
            4 => Self::Held,
            5 => Self::Primary,
            _ => Self::Free,
        }
    }

    /// Returns whether a reader may take the chunk for the value of its key.
    #[inline]
    pub fn is_readable(self) -> bool {
        matches!(self, Self::Alive | Self::Primary)
    }
}

/// Returns the CRC32C that an item's header should carry.
#[inline]
pub fn sum(version: u64, flags: u32, key: &[u8], value: &[u8]) -> u32 {
    let mut digest = before_value(version, flags, key, value.len());
    digest.update(value);
    digest.finalize() as u32
}

/// Returns the same for a value of this length, of which [`value_sum`] is known.
pub fn sum_of(version: u64, flags: u32, key: &[u8], (length, value_sum): (usize, u32)) -> u32 {
    let before = before_value(version, flags, key, length).finalize() as u32;
    joined(before, (value_sum, length as u32))
}

#[inline]
fn before_value(version: u64, flags: u32, key: &[u8], length: usize) -> Digest {
    let mut fields = [0; 17];
    fields[..8].copy_from_slice(&version.to_le_bytes());
    fields[8..12].copy_from_slice(&(length as u32).to_le_bytes());
    fields[12..16].copy_from_slice(&flags.to_le_bytes());
    fields[16] = key.len() as u8;
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(&fields);
    digest.update(key);
    digest
}

/// Returns the CRC32C of a value alone, which the copies and fragments of it carry.
pub fn value_sum(value: &[u8]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(value);
    digest.finalize() as u32
}

/// Why bytes that were read are not the key's value. The server knows what is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemError {
    /// The chunk is not alive, or not one at all.
    NotAlive,
    /// It is of another incarnation of the server.
    OtherIncarnation,
    /// It is another key's.
    OtherKey,
    /// It is longer than what was read.
    Longer,
    /// It may have expired.
    Expired,
    /// The sum differs, or of a fragment the version or the length.
    Torn,
}

/// An item that was read, and that is what it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item<'a> {
    /// The value.
    pub value: &'a [u8],
    /// The client's flags.
    pub flags: u32,
    /// The version (CAS).
    pub version: u64,
    /// When it ends, in Unix seconds; 0 is never.
    pub expiry: u64,
}

#[inline]
fn number<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut number = [0; N];
    number.copy_from_slice(&bytes[at..at + N]);
    number
}

/// Returns the key's value in these bytes, read from the server's memory. `now` is in Unix seconds, by this machine's clock:
/// an item whose end is near by it is left to the server, whose clock counts.
///
/// # Errors
///
/// [`ItemError`]: the server is to be asked.
#[inline]
pub fn check<'a>(bytes: &'a [u8], key: &[u8], incarnation: u32, now: u64) -> Result<Item<'a>, ItemError> {
    if bytes.len() < HEADER || u16::from_le_bytes(number(bytes, 2)) != MAGIC || !State::of(bytes[0]).is_readable() {
        return Err(ItemError::NotAlive);
    }
    if u32::from_le_bytes(number(bytes, 4)) != incarnation {
        return Err(ItemError::OtherIncarnation);
    }
    let expiry = u64::from_le_bytes(number(bytes, 8));
    let version = u64::from_le_bytes(number(bytes, 16));
    let length = u32::from_le_bytes(number(bytes, 24)) as usize;
    let flags = u32::from_le_bytes(number(bytes, 28));
    let wanted = u32::from_le_bytes(number(bytes, 32));
    let key_length = usize::from(bytes[36]);
    if key_length != key.len() {
        return Err(ItemError::OtherKey);
    }
    let body = &bytes[HEADER..];
    if body.len() < key_length || body.len() - key_length < length {
        return Err(ItemError::Longer);
    }
    let (own, rest) = body.split_at(key_length);
    if own != key {
        return Err(ItemError::OtherKey);
    }
    let value = &rest[..length];
    if sum(version, flags, key, value) != wanted {
        return Err(ItemError::Torn);
    }
    if expiry != 0 && expiry <= now {
        return Err(ItemError::Expired);
    }
    Ok(Item { value, flags, version, expiry })
}

/// The head of an item that is a fragment of a value: what is before its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// The state of its chunk.
    pub state: State,
    /// When the value ends, in Unix seconds; 0 is never.
    pub expiry: u64,
    /// The client's flags.
    pub flags: u32,
}

/// Returns the head in these bytes, which were read from a server's memory, if it is that of the key's fragment of this version. The
/// fragment has so many bytes, and the whole value this sum.
///
/// It says nothing of the fragment's bytes: those of a whole value are believed if they have its sum.
///
/// # Errors
///
/// [`ItemError`]: the server is to be asked.
pub fn check_head(
    bytes: &[u8],
    key: &[u8],
    incarnation: u32,
    version: u64,
    (length, whole_sum): (usize, u32),
) -> Result<Head, ItemError> {
    if bytes.len() < HEADER || u16::from_le_bytes(number(bytes, 2)) != MAGIC {
        return Err(ItemError::NotAlive);
    }
    if u32::from_le_bytes(number(bytes, 4)) != incarnation {
        return Err(ItemError::OtherIncarnation);
    }
    if usize::from(bytes[36]) != key.len() || bytes.get(HEADER..HEADER + key.len()) != Some(key) {
        return Err(ItemError::OtherKey);
    }
    let of = (u64::from_le_bytes(number(bytes, 16)), u32::from_le_bytes(number(bytes, 24)) as usize);
    let flags = u32::from_le_bytes(number(bytes, 28));
    if of != (version, length)
        || sum_of(version, flags, key, (length, whole_sum)) != u32::from_le_bytes(number(bytes, 32))
    {
        return Err(ItemError::Torn);
    }
    Ok(Head { state: State::of(bytes[0]), expiry: u64::from_le_bytes(number(bytes, 8)), flags })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image() -> Vec<u8> {
        let (key, value) = (b"key", b"value");
        let mut bytes = vec![0; HEADER];
        bytes[0] = State::Alive as u8;
        bytes[2..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..8].copy_from_slice(&7_u32.to_le_bytes());
        bytes[8..16].copy_from_slice(&100_u64.to_le_bytes());
        bytes[16..24].copy_from_slice(&9_u64.to_le_bytes());
        bytes[24..28].copy_from_slice(&5_u32.to_le_bytes());
        bytes[28..32].copy_from_slice(&3_u32.to_le_bytes());
        bytes[32..36].copy_from_slice(&sum(9, 3, key, value).to_le_bytes());
        bytes[36] = 3;
        bytes.extend_from_slice(key);
        bytes.extend_from_slice(value);
        bytes
    }

    #[test]
    fn a_whole_item_is_believed() {
        let bytes = image();
        let item = check(&bytes, b"key", 7, 99).unwrap();
        assert_eq!(item, Item { value: b"value", flags: 3, version: 9, expiry: 100 });
        // The bytes behind it have no meaning.
        let longer = [&bytes[..], b"rest"].concat();
        assert_eq!(check(&longer, b"key", 7, 99).unwrap().value, b"value");
    }

    #[test]
    fn only_alive_and_primary_are_believed() {
        let mut bytes = image();
        for state in 0..=u8::MAX {
            bytes[0] = state;
            let is_readable = matches!(state, 2 | 5);
            assert_eq!(check(&bytes, b"key", 7, 99).is_ok(), is_readable, "{state}");
            assert!(check(&bytes, b"key", 7, 99).is_ok() || check(&bytes, b"key", 7, 99) == Err(ItemError::NotAlive));
        }
    }

    #[test]
    fn the_sum_follows_from_that_of_the_value() {
        for length in [0, 1, 63, 64, 5000] {
            let value = vec![0xa5; length];
            let whole = sum(1 << 41 | 7, 3, b"some key", &value);
            assert_eq!(sum_of(1 << 41 | 7, 3, b"some key", (length, value_sum(&value))), whole, "{length}");
        }
    }

    #[test]
    fn whatever_differs_is_left_to_the_server() {
        let bytes = image();
        assert_eq!(check(&bytes, b"key", 8, 99), Err(ItemError::OtherIncarnation));
        assert_eq!(check(&bytes, b"kex", 7, 99), Err(ItemError::OtherKey));
        assert_eq!(check(&bytes, b"keys", 7, 99), Err(ItemError::OtherKey));
        assert_eq!(check(&bytes, b"key", 7, 100), Err(ItemError::Expired));
        for length in 0..bytes.len() {
            assert!(check(&bytes[..length], b"key", 7, 99).is_err(), "{length}");
        }
        for (at, mask) in (0..bytes.len() * 8).map(|bit| (bit / 8, 1_u8 << (bit % 8))) {
            let mut broken = bytes.clone();
            broken[at] ^= mask;
            // Marks, expiry and the store's own words may change; of the expiry it depends.
            let own = at == 1 || (8..16).contains(&at) || (37..HEADER).contains(&at);
            assert!(own || check(&broken, b"key", 7, 99).is_err(), "byte {at}, bit {mask:#x}");
        }
    }
}
