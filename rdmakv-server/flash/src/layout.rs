//! The parts of a shard's log in its files: units, segments, places.
//!
//! A file is a superblock of 4 KiB and then segments. Each shard has an equal part of every file. A place is a number of units from
//! the begin of the shard's log. Its segments follow each other there, those of the first file first.

use thiserror::Error;

/// The unit of batches and directories, and the size of a superblock.
pub const BLOCK: u64 = 4096;
/// Segments that a shard has at least.
pub const SEGMENTS_MIN: u64 = 8;

/// Consecutive bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// The file's number, in the order in which files were named.
    pub file: u16,
    /// Bytes from the file's begin.
    pub offset: u64,
    /// Number of bytes.
    pub len: u32,
}

/// Why files cannot hold a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum LayoutError {
    /// Too few segments for each shard.
    #[error(
        "divide flash of {given} bytes: a shard needs {SEGMENTS_MIN} segments: give {needed} bytes or use fewer threads"
    )]
    TooSmall {
        /// Bytes of all files.
        given: u64,
        /// Bytes that suffice.
        needed: u64,
    },
    /// A place would not fit its 32 bits.
    #[error("divide flash of {given} bytes: a shard can address {most} bytes: give less or use more threads")]
    TooLarge {
        /// Bytes of all files.
        given: u64,
        /// Bytes of a shard at most.
        most: u64,
    },
    /// A segment or unit size that direct I/O or the format cannot have.
    #[error("divide flash into segments of {segment} bytes, units of {unit}: give powers of two from 512 and 16384 on")]
    Sizes {
        /// Bytes of a segment.
        segment: u32,
        /// Bytes of a unit.
        unit: u32,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    file: u16,
    first: u32,
    offset: u64,
}

/// A shard's part of the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    unit: u32,
    segment: u32,
    segments: u32,
    parts: Vec<Part>,
}

/// Returns the size of a segment for files of `bytes` in all. It is a 128th of a shard's part, 4 to 64 MiB, and holds four of the largest
/// items.
#[must_use]
pub fn segment_size(bytes: u64, shards: u32, item_max: u32) -> u32 {
    let part = bytes / (128 * u64::from(shards.max(1)));
    let rounded = if part == 0 { 0 } else { 1 << part.ilog2() };
    let least = (u64::from(item_max) * 4).next_power_of_two();
    rounded.clamp(4 << 20, 64 << 20).max(least).min(1 << 31) as u32
}

impl Layout {
    /// Divides files of these sizes among `shards` and returns the part of `shard`.
    ///
    /// # Errors
    ///
    /// [`LayoutError`]: sizes that cannot be.
    pub fn new(sizes: &[u64], shards: u32, shard: u32, segment: u32, unit: u32) -> Result<Self, LayoutError> {
        let powers = segment.is_power_of_two() && unit.is_power_of_two();
        if !powers || unit < 512 || u64::from(unit) > BLOCK || u64::from(segment) < 4 * BLOCK {
            return Err(LayoutError::Sizes { segment, unit });
        }
        let mut parts = Vec::with_capacity(sizes.len());
        let mut segments = 0_u64;
        for (file, &size) in sizes.iter().enumerate() {
            let each = size.saturating_sub(BLOCK) / u64::from(segment) / u64::from(shards);
            let offset = BLOCK + each * u64::from(shard) * u64::from(segment);
            if each > 0 {
                parts.push(Part { file: file as u16, first: segments.min(u64::from(u32::MAX)) as u32, offset });
            }
            segments += each;
        }
        let given = sizes.iter().copied().fold(0, u64::saturating_add);
        if segments < SEGMENTS_MIN {
            let needed = SEGMENTS_MIN * u64::from(shards) * u64::from(segment) + BLOCK;
            return Err(LayoutError::TooSmall { given, needed });
        }
        let most = u64::from(u32::MAX) * u64::from(unit);
        if segments.saturating_mul(u64::from(segment)) > most {
            return Err(LayoutError::TooLarge { given, most });
        }
        Ok(Self { unit, segment, segments: segments as u32, parts })
    }

    /// Returns the bytes of a unit: places and lengths count in it.
    #[must_use]
    pub fn unit(&self) -> u32 {
        self.unit
    }
    /// Returns the bytes of a segment.
    #[must_use]
    pub fn segment_bytes(&self) -> u32 {
        self.segment
    }
    /// Returns the number of segments.
    #[must_use]
    pub fn segments(&self) -> u32 {
        self.segments
    }
    /// Returns the file that a segment is in.
    #[must_use]
    pub fn file(&self, segment: u32) -> u16 {
        self.part(segment).file
    }
    /// Returns where `len` bytes are that begin `offset` bytes into a segment.
    #[must_use]
    pub fn area(&self, segment: u32, offset: u32, len: u32) -> Area {
        let part = self.part(segment);
        let begin = part.offset + u64::from(segment - part.first) * u64::from(self.segment);
        Area { file: part.file, offset: begin + u64::from(offset), len }
    }

    fn part(&self, segment: u32) -> &Part {
        let after = self.parts.partition_point(|part| part.first <= segment);
        &self.parts[after - 1]
    }

    pub(crate) fn place(&self, segment: u32, offset: u32) -> u32 {
        segment * (self.segment / self.unit) + offset / self.unit
    }
    pub(crate) fn segment_of(&self, place: u32) -> u32 {
        place / (self.segment / self.unit)
    }
    /// Returns how far into its segment a place is, in bytes.
    pub(crate) fn offset_of(&self, place: u32) -> u32 {
        place % (self.segment / self.unit) * self.unit
    }
    /// Returns how many bytes to read for a record: its coded length, clipped to the segment.
    pub(crate) fn read_len(&self, place: u32, code: u8) -> u32 {
        let len = u64::from(decode_len(code)) * u64::from(self.unit);
        len.min(u64::from(self.segment - self.offset_of(place))) as u32
    }
}

/// Returns a code for a length in units, which says the length or at most a sixteenth more.
pub(crate) fn encode_len(units: u32) -> u8 {
    if units < 16 {
        return units as u8;
    }
    // Five significant bits, the first of which is one.
    let mut shift = units.ilog2() - 4;
    let mut mantissa = units.div_ceil(1 << shift);
    if mantissa == 32 {
        (mantissa, shift) = (16, shift + 1);
    }
    (((shift + 1) << 4) | (mantissa - 16)) as u8
}

/// Returns the units that a code says.
pub(crate) fn decode_len(code: u8) -> u32 {
    let (exponent, mantissa) = (u32::from(code >> 4), u32::from(code & 15));
    if exponent == 0 { mantissa } else { (16 + mantissa) << (exponent - 1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_says_a_sixteenth_more_at_most() {
        for units in 1..400_000 {
            let said = decode_len(encode_len(units));
            assert!(said >= units && u64::from(said - units) * 16 <= u64::from(units), "{units}: {said}");
        }
    }

    #[test]
    fn parts_of_shards_are_disjoint() {
        let (sizes, segment) = ([40 << 14, (24 << 14) + 5000], 1 << 14);
        let mut seen = std::collections::HashSet::new();
        for shard in 0..3 {
            let layout = Layout::new(&sizes, 3, shard, segment, 512).unwrap();
            assert_eq!(layout.segments(), 13 + 8);
            for number in 0..layout.segments() {
                let area = layout.area(number, 0, segment);
                assert!(area.offset >= BLOCK && area.offset + u64::from(area.len) <= sizes[usize::from(area.file)]);
                assert!(seen.insert((area.file, area.offset)));
                let place = layout.place(number, segment - 512);
                assert_eq!((layout.segment_of(place), layout.offset_of(place)), (number, segment - 512));
                assert_eq!(layout.read_len(place, encode_len(9)), 512);
            }
        }
    }

    #[test]
    fn too_small_names_the_size_needed() {
        let error = Layout::new(&[1 << 20], 4, 0, 1 << 16, 512).unwrap_err();
        let LayoutError::TooSmall { needed, .. } = error else { panic!("{error}") };
        assert_eq!(Layout::new(&[needed], 4, 3, 1 << 16, 512).unwrap().segments(), 8);
        assert!(error.to_string().contains("give 2101248 bytes"));
        assert!(Layout::new(&[needed], 4, 0, 1 << 16, 100).is_err());
    }

    #[test]
    fn a_segment_takes_four_large_items() {
        assert_eq!(segment_size(1 << 32, 4, 1 << 20), 8 << 20);
        assert_eq!(segment_size(1 << 30, 4, 1 << 20), 4 << 20);
        assert_eq!(segment_size(1 << 20, 4, 1 << 20), 4 << 20);
        assert_eq!(segment_size(1 << 45, 4, 1 << 20), 64 << 20);
        assert_eq!(segment_size(1 << 30, 1, 24 << 20), 128 << 20);
    }
}
