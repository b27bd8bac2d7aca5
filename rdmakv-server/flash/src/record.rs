//! A record: an item as it lies on flash, and the directory of a segment.
//!
//! A record is the item as one-sided readers know it ([`item`]), its state unpublished. The store's sixteen bytes at 40 are the key's
//! hash (8) and the sequence of the segment (8). A directory has 12 bytes for
//! each record: hash (8) and unit in the segment (4). A tail follows: sequence (8), count (4), magic (4), zero (4), CRC32C of all that (4).

use crc_fast::{CrcAlgorithm, Digest};
use rdmakv_proto::faults::{Fault, injected};
use rdmakv_proto::item::{self, HEADER, KEY_MAX, MAGIC, State};
use thiserror::Error;

use crate::layout::BLOCK;

/// An item to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Its key, 1 to 250 bytes.
    pub key: &'a [u8],
    /// Its value.
    pub value: &'a [u8],
    /// Its version (CAS).
    pub version: u64,
    /// The client's flags.
    pub flags: u32,
    /// The CRC32C of the item, as [`item::sum`] computes it.
    pub crc: u32,
    /// When it ends, in Unix seconds; 0 is never.
    pub expiry: u32,
    /// How often it was asked for, 7 at most.
    pub frequency: u8,
    /// Whether it was fetched since it was stored.
    pub fetched: bool,
    /// The store's own marks: two bits.
    pub marks: u8,
}

/// A record that was read and is the one meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// Its value.
    pub value: &'a [u8],
    /// Its version (CAS).
    pub version: u64,
    /// The client's flags.
    pub flags: u32,
    /// The CRC32C of the item.
    pub crc: u32,
}

/// Why bytes are not the record that was meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RecordError {
    /// Fewer bytes than the record has.
    #[error("read record: it is longer than what was read: the item is dropped")]
    Short,
    /// No record begins here.
    #[error("read record: these bytes are no record: the item is dropped")]
    NoRecord,
    /// A record from before or after the segment was used for this one.
    #[error("read record: it is of another use of the segment: the item is dropped")]
    OtherSequence,
    /// Another key's record.
    #[error("read record: it is of another key: the item is dropped")]
    OtherKey,
    /// Another value of the key.
    #[error("read record: it is of another version: the item is dropped")]
    OtherVersion,
    /// The sum differs.
    #[error("read record: its CRC differs: the item is dropped: check the device")]
    Torn,
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut number = [0; N];
    number.copy_from_slice(&bytes[at..at + N]);
    number
}
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(number(bytes, at))
}
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(number(bytes, at))
}

pub(crate) fn crc(parts: &[&[u8]]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    for part in parts {
        digest.update(part);
    }
    digest.finalize() as u32
}

/// Returns the CRC32C of these bytes, as directories and manifests end with it.
#[must_use]
pub fn sum(bytes: &[u8]) -> u32 {
    crc(&[bytes])
}

/// Returns the bytes of a record, without padding.
pub(crate) fn len(entry: &Entry<'_>) -> usize {
    HEADER + entry.key.len() + entry.value.len()
}

/// Writes a record to the begin of `out`, which has [`len`] bytes at least.
pub(crate) fn write(out: &mut [u8], entry: &Entry<'_>, hash: u64, sequence: u64) {
    out[..HEADER].fill(0);
    out[0] = State::Unpublished as u8;
    out[2..4].copy_from_slice(&MAGIC.to_le_bytes());
    out[8..16].copy_from_slice(&u64::from(entry.expiry).to_le_bytes());
    out[16..24].copy_from_slice(&entry.version.to_le_bytes());
    out[24..28].copy_from_slice(&(entry.value.len() as u32).to_le_bytes());
    out[28..32].copy_from_slice(&entry.flags.to_le_bytes());
    out[32..36].copy_from_slice(&entry.crc.to_le_bytes());
    out[36] = entry.key.len() as u8;
    out[40..48].copy_from_slice(&hash.to_le_bytes());
    out[48..56].copy_from_slice(&sequence.to_le_bytes());
    let body = &mut out[HEADER..];
    body[..entry.key.len()].copy_from_slice(entry.key);
    body[entry.key.len()..][..entry.value.len()].copy_from_slice(entry.value);
}

/// Returns the record that these bytes begin with, if they hold all of it. Its CRC is not computed.
///
/// # Errors
///
/// [`RecordError::Short`], [`RecordError::NoRecord`].
pub fn parse(bytes: &[u8]) -> Result<(Record<'_>, u64, u64), RecordError> {
    if bytes.len() < HEADER {
        return Err(RecordError::Short);
    }
    let key = usize::from(bytes[36]);
    if u16::from_le_bytes(number(bytes, 2)) != MAGIC
        || bytes[0] != State::Unpublished as u8
        || key == 0
        || key > KEY_MAX
    {
        return Err(RecordError::NoRecord);
    }
    let (body, value) = (&bytes[HEADER..], u32_at(bytes, 24) as usize);
    if body.len() < key || body.len() - key < value {
        return Err(RecordError::Short);
    }
    let record = Record {
        key: &body[..key],
        value: &body[key..key + value],
        version: u64_at(bytes, 16),
        flags: u32_at(bytes, 28),
        crc: u32_at(bytes, 32),
    };
    Ok((record, u64_at(bytes, 40), u64_at(bytes, 48)))
}

/// Bytes that were read, and the CRC of the record that they begin with.
///
/// To make one reads all of them, so drivers do that before they take a lock.
#[derive(Clone, Copy, Debug)]
pub struct Summed<'a> {
    bytes: &'a [u8],
    sum: Option<u32>,
}

impl<'a> Summed<'a> {
    /// Computes the CRC of the record that these bytes begin with, if they do.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        let sum =
            parse(bytes).ok().map(|(record, ..)| item::sum(record.version, record.flags, record.key, record.value));
        Self { bytes, sum }
    }
    /// Returns the bytes.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

/// Returns the record of this key in these bytes, which were read.
///
/// # Errors
///
/// [`RecordError`]: it is not to be believed.
pub fn believe<'a>(read: Summed<'a>, key: &[u8], version: u8, sequence: u64) -> Result<Record<'a>, RecordError> {
    let (record, _, written) = parse(read.bytes)?;
    if written != sequence {
        return Err(RecordError::OtherSequence);
    }
    if record.key != key {
        return Err(RecordError::OtherKey);
    }
    if record.version as u8 != version {
        return Err(RecordError::OtherVersion);
    }
    if read.sum != Some(record.crc) && !injected(Fault::FlashNoCrc) {
        return Err(RecordError::Torn);
    }
    Ok(record)
}

/// Bytes of a directory's entry.
pub(crate) const SLOT: usize = 12;
const TAIL: usize = 24;
const DIRECTORY_MAGIC: u32 = u32::from_le_bytes(*b"kvdr");

/// Returns the bytes that a directory of this number of records takes at the end of its segment.
#[must_use]
pub fn directory_len(count: usize) -> usize {
    (count * SLOT + TAIL).next_multiple_of(BLOCK as usize)
}

/// Writes a directory, whose entries are in order, to `out`, which has [`directory_len`] bytes.
pub(crate) fn write_directory(out: &mut [u8], entries: &[u8], sequence: u64) {
    let tail = out.len() - TAIL;
    let begin = tail - entries.len();
    out[..begin].fill(0);
    out[begin..tail].copy_from_slice(entries);
    out[tail..tail + 8].copy_from_slice(&sequence.to_le_bytes());
    out[tail + 8..tail + 12].copy_from_slice(&((entries.len() / SLOT) as u32).to_le_bytes());
    out[tail + 12..tail + 16].copy_from_slice(&DIRECTORY_MAGIC.to_le_bytes());
    out[tail + 16..tail + 20].fill(0);
    let sum = crc(&[&out[begin..tail + 20]]);
    out[tail + 20..].copy_from_slice(&sum.to_le_bytes());
}

/// Returns the entries of a directory, hash and unit of each, if these bytes end with that of this sequence.
#[must_use]
pub fn directory(bytes: &[u8], sequence: u64) -> Option<impl ExactSizeIterator<Item = (u64, u32)>> {
    let tail = bytes.len().checked_sub(TAIL)?;
    let count = u32_at(bytes, tail + 8) as usize;
    let begin = tail.checked_sub(count.checked_mul(SLOT)?)?;
    let is = u64_at(bytes, tail) == sequence
        && u32_at(bytes, tail + 12) == DIRECTORY_MAGIC
        && crc(&[&bytes[begin..tail + 20]]) == u32_at(bytes, tail + 20);
    is.then(|| bytes[begin..tail].chunks_exact(SLOT).map(|slot| (u64_at(slot, 0), u32_at(slot, 8))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Entry<'static> {
        let (key, value) = (b"key", b"value");
        let crc = item::sum(0x109, 3, key, value);
        Entry { key, value, version: 0x109, flags: 3, crc, expiry: 0, frequency: 0, fetched: false, marks: 0 }
    }

    #[test]
    fn a_whole_record_is_believed() {
        let mut bytes = vec![0xee; 512];
        write(&mut bytes, &entry(), 77, 5);
        let record = believe(Summed::new(&bytes), b"key", 9, 5).unwrap();
        assert_eq!((record.value, record.flags, record.version), (&b"value"[..], 3, 0x109));
        assert_eq!(parse(&bytes).unwrap().1, 77);
    }

    #[test]
    fn every_changed_bit_that_counts_is_found() {
        let mut bytes = vec![0; len(&entry())];
        write(&mut bytes, &entry(), 77, 5);
        for (at, mask) in (0..bytes.len() * 8).map(|bit| (bit / 8, 1_u8 << (bit % 8))) {
            let mut broken = bytes.clone();
            broken[at] ^= mask;
            // Marks, incarnation, expiry (the stub's counts), class and hash are not of the value.
            let own = at == 1 || (4..16).contains(&at) || (37..48).contains(&at);
            assert!(own || believe(Summed::new(&broken), b"key", 9, 5).is_err(), "byte {at}, bit {mask:#x}");
        }
        for length in 0..bytes.len() {
            assert_eq!(believe(Summed::new(&bytes[..length]), b"key", 9, 5), Err(RecordError::Short));
        }
        assert_eq!(believe(Summed::new(&bytes), b"kex", 9, 5), Err(RecordError::OtherKey));
        assert_eq!(believe(Summed::new(&bytes), b"key", 8, 5), Err(RecordError::OtherVersion));
        assert_eq!(believe(Summed::new(&bytes), b"key", 9, 6), Err(RecordError::OtherSequence));
    }

    #[test]
    fn a_directory_is_read_back_whole_or_not() {
        let entries: Vec<u8> =
            (0..400_u32).flat_map(|at| [&u64::from(at * 7).to_le_bytes()[..], &at.to_le_bytes()].concat()).collect();
        let mut bytes = vec![1; directory_len(400)];
        write_directory(&mut bytes, &entries, 5);
        let back: Vec<_> = directory(&bytes, 5).unwrap().collect();
        assert_eq!(back, (0..400).map(|at| (u64::from(at) * 7, at)).collect::<Vec<_>>());
        assert!(directory(&bytes, 6).is_none() && directory(&bytes[1..], 5).is_some());
        let begin = bytes.len() - TAIL - 400 * SLOT;
        for at in begin..bytes.len() {
            let mut broken = bytes.clone();
            broken[at] ^= 1;
            assert!(directory(&broken, 5).is_none(), "byte {at}");
        }
        assert!(directory(&[], 0).is_none());
    }
}
