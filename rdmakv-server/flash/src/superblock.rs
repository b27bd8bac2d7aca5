//! The first 4 KiB of a file of the log: whose it is, and whether it was left in order.
//!
//! | at | bytes | what                                             |
//! |---:|------:|--------------------------------------------------|
//! |  0 |     8 | magic: `rdmakvfl`                                |
//! |  8 |     4 | version of the format: 1                         |
//! | 12 |     4 | state: 1 in use, 2 clean                         |
//! | 16 |     8 | the log's id                                     |
//! | 24 |     8 | bytes of the file                                |
//! | 32 |     8 | stop id, where clean; else 0                     |
//! | 40 |     4 | bytes of a segment                               |
//! | 44 |     4 | bytes of a unit                                  |
//! | 48 |     4 | shards                                           |
//! | 52 |     2 | the file's number                                |
//! | 54 |     2 | files                                            |
//! | 56 |     4 | zero                                             |
//! | 60 |     4 | CRC32C of the above                              |

use thiserror::Error;

use crate::layout::BLOCK;
use crate::record::{crc, u32_at, u64_at};

const MAGIC: &[u8; 8] = b"rdmakvfl";
const VERSION: u32 = 1;
const LEN: usize = 64;

/// The description of a file at its begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// One number for all files of a log, chosen when it is made.
    pub log: u64,
    /// Bytes of the file.
    pub size: u64,
    /// Names the orderly stop, if one was the last that happened.
    pub stop: Option<u64>,
    /// Bytes of a segment.
    pub segment: u32,
    /// Bytes of a unit.
    pub unit: u32,
    /// Shards among which the file is divided.
    pub shards: u32,
    /// The file's number.
    pub file: u16,
    /// Number of files.
    pub files: u16,
}

/// Why a file is not one of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SuperblockError {
    /// All zero. Nothing is lost when the file is used if it has no data behind that either.
    #[error("open flash file: it is empty: it will be used")]
    Empty,
    /// Another program's.
    #[error("open flash file: another program wrote it: name another file, or remove this one")]
    Foreign,
    /// A later format.
    #[error("open flash file: format {0} is unknown: use the server that wrote it, or remove the file")]
    Version(u32),
    /// The sum differs, or fields make no sense.
    #[error("open flash file: its superblock is damaged: remove the file if its items may go")]
    Damaged,
}

impl Superblock {
    /// Returns its bytes, a block.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; BLOCK as usize];
        bytes[..8].copy_from_slice(MAGIC);
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(8, &VERSION.to_le_bytes());
        put(12, &(1 + u32::from(self.stop.is_some())).to_le_bytes());
        put(16, &self.log.to_le_bytes());
        put(24, &self.size.to_le_bytes());
        put(32, &self.stop.unwrap_or(0).to_le_bytes());
        put(40, &self.segment.to_le_bytes());
        put(44, &self.unit.to_le_bytes());
        put(48, &self.shards.to_le_bytes());
        put(52, &self.file.to_le_bytes());
        put(54, &self.files.to_le_bytes());
        let sum = crc(&[&bytes[..60]]);
        bytes[60..LEN].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Returns what the first bytes of a file say.
    ///
    /// # Errors
    ///
    /// [`SuperblockError`]: only [`SuperblockError::Empty`] lets the file be used, if it has no data at all.
    pub fn decode(bytes: &[u8]) -> Result<Self, SuperblockError> {
        let bytes = &bytes[..bytes.len().min(BLOCK as usize)];
        if bytes.iter().all(|&byte| byte == 0) {
            return Err(SuperblockError::Empty);
        }
        if bytes.len() < LEN || &bytes[..8] != MAGIC {
            return Err(SuperblockError::Foreign);
        }
        if crc(&[&bytes[..60]]) != u32_at(bytes, 60) {
            return Err(SuperblockError::Damaged);
        }
        if u32_at(bytes, 8) != VERSION {
            return Err(SuperblockError::Version(u32_at(bytes, 8)));
        }
        let (stop, state) = (u64_at(bytes, 32), u32_at(bytes, 12));
        if !matches!((state, stop), (1, 0) | (2, _)) || u32_at(bytes, 56) != 0 {
            return Err(SuperblockError::Damaged);
        }
        let halves = u32_at(bytes, 52);
        Ok(Self {
            log: u64_at(bytes, 16),
            size: u64_at(bytes, 24),
            stop: (state == 2).then_some(stop),
            segment: u32_at(bytes, 40),
            unit: u32_at(bytes, 44),
            shards: u32_at(bytes, 48),
            file: halves as u16,
            files: (halves >> 16) as u16,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_superblock_is_read_back() {
        let (log, size) = (7, 1 << 30);
        for stop in [None, Some(0), Some(9)] {
            let block = Superblock { log, size, stop, segment: 1 << 22, unit: 512, shards: 4, file: 1, files: 2 };
            let bytes = block.encode();
            assert_eq!(Superblock::decode(&bytes), Ok(block));
            for at in 0..LEN {
                let mut broken = bytes.clone();
                broken[at] ^= 4;
                let wanted = if at < 8 { SuperblockError::Foreign } else { SuperblockError::Damaged };
                assert_eq!(Superblock::decode(&broken), Err(wanted), "byte {at}");
            }
        }
    }

    #[test]
    fn only_an_empty_file_is_taken() {
        assert_eq!(Superblock::decode(&[]), Err(SuperblockError::Empty));
        assert_eq!(Superblock::decode(&[0; 5000]), Err(SuperblockError::Empty));
        assert_eq!(Superblock::decode(b"hello"), Err(SuperblockError::Foreign));
    }
}
