//! The messages of the two sides of a connection, byte by byte.
//!
//! Numbers are little-endian. Every message starts with the same 16 bytes, in this version and in all to come:
//!
//! ```text
//!  0  u32  magic     "FRWP": 46 52 57 50
//!  4  u8   version   1; of a SAY 2
//!  5  u8   kind      1 SYNC  2 STCRW  3 DONE  4 NAK  5 CANCEL  6 CREDIT  7 SAY
//!  6  u16  credits   receives that the sender has added since its last message
//!  8  u64  tag       the transfer; in a CREDIT and in a SAY how many SAYs the sender's application has taken since its
//!                    last CREDIT or SAY; 0 in a NAK of what had no tag
//! ```
//!
//! The rest depends on the kind. Bytes said to be zero, and flags that have no meaning here, are sent as zero and not
//! looked at.
//!
//! ```text
//! SYNC    16  u64  length      of the buffer; the most that is accepted, if the target opens
//!         24  u8   flags       1: the target opens (a read)   2: segments follow   4: and more will
//!         25  u8   zero
//!         26  u16  header      bytes of the application's header, at most 4096
//!         28  u16  segments    at most 256, and as many as fit the message
//!         30  u16  zero
//!         32       the header, then the segments, which begin at offset 0 of the buffer
//!
//! STCRW   16  u16  segments    at most 256
//!         18  u8   flags       1: more will follow
//!         19       zero (5)
//!         24  u64  offset      in the buffer, of the first segment; each following one begins where the one before ends
//!         32       the segments
//!
//! segment  0  u64  address     as the fabric counts addresses
//!          8  u64  length      bytes, at least one
//!         16  u32  key
//!         20  u32  zero
//!
//! DONE    16  u64  bytes       that were written
//!
//! NAK     16  u16  reason      see [`Reason`]
//!         18       zero (6)
//!         24  u64  needed      the length that would do (too long), or the version that is spoken (version); else 0
//!
//! CANCEL  nothing more
//! CREDIT  nothing more
//!
//! SAY     16       what one application says to the other: all that is left of the message, at most 6160 bytes
//! ```
//!
//! # Versions
//!
//! A message carries the version in which its kind came, so that peers of different versions share the kinds that both
//! know. Version 1 has the kinds 1 to 6, version 2 adds SAY. A side that does not speak a message's version reads its start
//! and counts its credits. It answers with a NAK of its tag for the reason *version*, with the version that it speaks. So a
//! peer of version 1 moves transfers with one of version 2, and answers a SAY with NAK(version, 1) of tag 0. No more SAYs
//! are sent to it, and the application learns that its peer is too old. At most half of the first 16 credits go on SAYs
//! before that NAK has come. That is fewer than the 16 messages without sense that a peer tolerates.
//!
//! A message is at most [`MESSAGE`] bytes, which is what a receive has to hold. Decoding copies nothing: header and
//! segments are read where they lie.

mod message;
mod reason;

use message::Fields;
pub use message::{Body, Message};
pub use reason::Reason;

/// The most bytes of a message: an STCRW of 256 segments.
pub const MESSAGE: usize = 32 + SEGMENTS * SEGMENT;
/// The most bytes of an application's header.
pub const HEADER: usize = 4096;
/// The most bytes that an application says in one message.
pub const MAX_FRAME_PAYLOAD: usize = MESSAGE - START;
/// The most segments of a message.
pub const SEGMENTS: usize = 256;
/// The newest version spoken here.
pub const VERSION: u8 = 2;
/// The version in which applications began to say things.
pub const SAYS: u8 = 2;

const START: usize = 16;
const MAGIC: u32 = u32::from_le_bytes(*b"FRWP");
const SEGMENT: usize = 24;
const NAK: u8 = 4;
const SAY: u8 = 7;

/// The 16 bytes that messages of all versions start with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Start {
    /// Of the message.
    pub version: u8,
    /// The kind of the message.
    pub kind: u8,
    /// Receives that the sender has added.
    pub credits: u16,
    /// The transfer.
    pub tag: u64,
}

impl Start {
    /// Returns the start, where there is one.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        Fields(bytes).start()
    }

    /// Returns whether this is a NAK, which is never answered, whatever follows.
    pub fn is_nak(self) -> bool {
        self.kind == NAK
    }
}

/// A piece of memory that the peer may write: where, how much, by which key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Segment {
    /// As the fabric counts addresses.
    pub address: u64,
    /// Bytes, at least one.
    pub length: u64,
    /// The key that grants the right.
    pub key: u32,
}

/// A segment and the place of its bytes in the buffer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Placed {
    /// Of its first byte.
    pub offset: u64,
    /// Its segment.
    pub segment: Segment,
}

/// Part of a target's buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offer<'a> {
    /// The offset of the first segment in the buffer.
    pub offset: u64,
    /// One after another.
    pub segments: Segments<'a>,
    /// Whether this is not all.
    pub more: bool,
}

/// Segments, where they lie in a message or in memory.
#[derive(Clone, Copy, Debug)]
pub enum Segments<'a> {
    /// In a message.
    Encoded(&'a [u8]),
    /// To be encoded.
    Plain(&'a [Placed]),
}

impl<'a> Segments<'a> {
    /// How many.
    pub fn len(self) -> usize {
        match self {
            Self::Encoded(bytes) => bytes.len() / SEGMENT,
            Self::Plain(placed) => placed.len(),
        }
    }

    /// Returns whether there are none.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// One after another.
    pub fn iter(self) -> impl Iterator<Item = Segment> + 'a {
        let (bytes, plain): (&[u8], &[Placed]) = match self {
            Self::Encoded(bytes) => (bytes, &[]),
            Self::Plain(placed) => (&[], placed),
        };
        let decode = |chunk: &[u8]| {
            let mut fields = Fields(chunk);
            let (address, length, key) = (fields.u64()?, fields.u64()?, fields.u32()?);
            Some(Segment { address, length, key })
        };
        bytes.chunks_exact(SEGMENT).filter_map(decode).chain(plain.iter().map(|placed| placed.segment))
    }
}

impl PartialEq for Segments<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Segments<'_> {}

/// Bytes that are no message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// Too short for a start, or the start is not the magic.
    #[error("{length} bytes that do not start as a message of this protocol")]
    Foreign {
        /// Bytes received.
        length: usize,
    },
    /// Another version: the tag can be read, the rest cannot.
    #[error("a message of version {version} about transfer {tag}: versions 1 to {VERSION} are supported")]
    Version {
        /// Its version.
        version: u8,
        /// Its tag.
        tag: u64,
    },
    /// A start, and then something that the format does not allow.
    #[error("a message about transfer {tag} with {what}")]
    Malformed {
        /// Its tag.
        tag: u64,
        /// The fault.
        what: &'static str,
    },
}
