//! What the two sides of a connection say to each other, byte by byte.
//!
//! Numbers are little-endian. Every message starts with the same 16 bytes, in this version and in all to come:
//!
//! ```text
//!  0  u32  magic     "FRWP": 46 52 57 50
//!  4  u8   version   1
//!  5  u8   kind      1 SYNC  2 STCRW  3 DONE  4 NAK  5 CANCEL  6 CREDIT
//!  6  u16  credits   receives that the sender has added since its last message
//!  8  u64  tag       the transfer; 0 in a CREDIT, and in a NAK of what had no tag
//! ```
//!
//! What follows depends on the kind. Bytes said to be zero, and flags that have no meaning here, are sent as zero and not
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
//! ```
//!
//! A message is at most [`MESSAGE`] bytes, which is what a receive has to hold. Decoding copies nothing: header and
//! segments are read where they lie.

use std::fmt;

/// The most bytes of a message: an STCRW of 256 segments.
pub const MESSAGE: usize = 32 + SEGMENTS * SEGMENT;
/// The most bytes of an application's header.
pub const HEADER: usize = 4096;
/// The most segments of a message.
pub const SEGMENTS: usize = 256;
/// The version spoken here.
pub const VERSION: u8 = 1;

const MAGIC: u32 = u32::from_le_bytes(*b"FRWP");
const SEGMENT: usize = 24;

/// The 16 bytes that messages of all versions start with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Start {
    /// Of the message.
    pub version: u8,
    /// What kind of message it is.
    pub kind: u8,
    /// Receives that the sender has added.
    pub credits: u16,
    /// The transfer.
    pub tag: u64,
}

impl Start {
    /// The start, where there is one.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        Fields(bytes).start()
    }

    /// Whether this is a NAK, which is never answered, whatever follows.
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
    /// What grants the right.
    pub key: u32,
}

/// A segment and the place of its bytes in the buffer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Placed {
    /// Of its first byte.
    pub offset: u64,
    /// Where that is.
    pub segment: Segment,
}

/// Why a transfer cannot go on, as it is told to the peer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Reason {
    /// The memory could not be registered.
    Registration,
    /// The buffer is too small; this length would do.
    TooLong {
        /// Bytes.
        needed: u64,
    },
    /// A bound of the peer's was reached: try later.
    Busy,
    /// Given up.
    Cancelled,
    /// Time ran out.
    TimedOut,
    /// No such transfer was ever opened.
    UnknownTag,
    /// The message contradicts itself, this format or what was said before.
    Malformed,
    /// The message is of a version that is not spoken; this one is.
    Version {
        /// The newest version that the peer speaks.
        spoken: u8,
    },
    /// The application does not want it.
    Refused,
    /// A reason that this version does not know.
    Other(u16),
}

impl Reason {
    fn code(self) -> (u16, u64) {
        match self {
            Self::Registration => (1, 0),
            Self::TooLong { needed } => (2, needed),
            Self::Busy => (3, 0),
            Self::Cancelled => (4, 0),
            Self::TimedOut => (5, 0),
            Self::UnknownTag => (6, 0),
            Self::Malformed => (7, 0),
            Self::Version { spoken } => (8, u64::from(spoken)),
            Self::Refused => (9, 0),
            Self::Other(code) => (code, 0),
        }
    }

    fn of_code(code: u16, needed: u64) -> Self {
        match code {
            1 => Self::Registration,
            2 => Self::TooLong { needed },
            3 => Self::Busy,
            4 => Self::Cancelled,
            5 => Self::TimedOut,
            6 => Self::UnknownTag,
            7 => Self::Malformed,
            8 => Self::Version { spoken: needed as u8 },
            9 => Self::Refused,
            other => Self::Other(other),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Registration => f.write_str("its memory could not be registered: see the error there"),
            Self::TooLong { needed } => write!(f, "the buffer is too small, {needed} bytes are needed: lend as many"),
            Self::Busy => {
                f.write_str("a bound of the connection was reached: try again when other transfers have ended")
            }
            Self::Cancelled => f.write_str("cancelled"),
            Self::TimedOut => f.write_str("time ran out on that side"),
            Self::UnknownTag => f.write_str("no such transfer is open"),
            Self::Malformed => f.write_str("a message made no sense: do both sides run the same release?"),
            Self::Version { spoken } => {
                write!(f, "versions differ, version {spoken} is spoken there: run the same release on both sides")
            }
            Self::Refused => f.write_str("refused by the application"),
            Self::Other(code) => write!(f, "reason {code}, which this version does not know"),
        }
    }
}

/// A message, decoded in place or about to be encoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message<'a> {
    /// Receives that the sender has added.
    pub credits: u16,
    /// The transfer.
    pub tag: u64,
    /// What is said about it.
    pub body: Body<'a>,
}

/// What a message says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Body<'a> {
    /// A transfer opens.
    Sync {
        /// Of the buffer, or the most that is accepted.
        length: u64,
        /// Whether the target opens.
        read: bool,
        /// The application's.
        header: &'a [u8],
        /// The start of the target's buffer, where it is registered already: an STCRW in the same message.
        offer: Option<Offer<'a>>,
    },
    /// Where to write.
    Stcrw(Offer<'a>),
    /// All is written.
    Done {
        /// Bytes.
        bytes: u64,
    },
    /// The transfer cannot go on.
    Nak(Reason),
    /// The target gives up after its STCRW.
    Cancel,
    /// Only the credits.
    Credit,
}

/// Part of a target's buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offer<'a> {
    /// Where in the buffer the first segment begins.
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

    /// Whether there are none.
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
pub enum DecodeError {
    /// Too short for a start, or the start is not the magic.
    #[error("{length} bytes that do not start as a message of this protocol")]
    Foreign {
        /// Bytes received.
        length: usize,
    },
    /// Another version: the tag can be read, the rest cannot.
    #[error("a message of version {version} about transfer {tag}; version 1 is spoken")]
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
        /// What is wrong.
        what: &'static str,
    },
}

const NAK: u8 = 4;
const READ: u8 = 1;
const OFFER: u8 = 2;
const MORE: u8 = 4;
const STCRW_MORE: u8 = 1;

impl<'a> Message<'a> {
    /// Reads a message where it lies.
    ///
    /// # Errors
    /// [`DecodeError`]; never a panic, whatever the bytes.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut fields = Fields(bytes);
        let Some(Start { version, kind, credits, tag }) = fields.start() else {
            return Err(DecodeError::Foreign { length: bytes.len() });
        };
        if version != VERSION {
            return Err(DecodeError::Version { version, tag });
        }
        let malformed = |what| DecodeError::Malformed { tag, what };
        if bytes.len() > MESSAGE {
            return Err(malformed("more bytes than a message has"));
        }
        let body = fields.body(kind).map_err(malformed)?;
        if !fields.0.is_empty() {
            return Err(malformed("bytes left over"));
        }
        Ok(Self { credits, tag, body })
    }

    /// Writes the message and returns its length.
    ///
    /// What does not fit is the caller's mistake: headers and segments are bounded before they come here.
    pub fn encode(&self, into: &mut [u8; MESSAGE]) -> usize {
        let mut writer = Writer { into, at: 0 };
        writer.u32(MAGIC);
        writer.u8(VERSION);
        writer.u8(self.body.kind());
        writer.u16(self.credits);
        writer.u64(self.tag);
        match self.body {
            Body::Sync { length, read, header, offer } => {
                let flag = |set, bit| if set { bit } else { 0 };
                let more = offer.is_some_and(|offer| offer.more);
                writer.u64(length);
                writer.u8(flag(read, READ) | flag(offer.is_some(), OFFER) | flag(more, MORE));
                writer.u8(0);
                writer.u16(header.len() as u16);
                writer.u16(offer.map_or(0, |offer| offer.segments.len()) as u16);
                writer.u16(0);
                writer.bytes(header);
                if let Some(offer) = offer {
                    writer.segments(offer.segments);
                }
            }
            Body::Stcrw(Offer { offset, segments, more }) => {
                writer.u16(segments.len() as u16);
                writer.u8(if more { STCRW_MORE } else { 0 });
                writer.bytes(&[0; 5]);
                writer.u64(offset);
                writer.segments(segments);
            }
            Body::Done { bytes } => writer.u64(bytes),
            Body::Nak(reason) => {
                let (code, needed) = reason.code();
                writer.u16(code);
                writer.bytes(&[0; 6]);
                writer.u64(needed);
            }
            Body::Cancel | Body::Credit => {}
        }
        writer.at
    }

    /// How many segments fit beside a SYNC's header.
    pub fn segments_beside(header: usize) -> usize {
        MESSAGE.saturating_sub(32 + header) / SEGMENT
    }
}

impl Body<'_> {
    fn kind(&self) -> u8 {
        match self {
            Body::Sync { .. } => 1,
            Body::Stcrw(_) => 2,
            Body::Done { .. } => 3,
            Body::Nak(_) => NAK,
            Body::Cancel => 5,
            Body::Credit => 6,
        }
    }
}

/// What is left to read.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn start(&mut self) -> Option<Start> {
        let magic = self.u32()?;
        let (version, kind, credits, tag) = (self.u8()?, self.u8()?, self.u16()?, self.u64()?);
        (magic == MAGIC).then_some(Start { version, kind, credits, tag })
    }

    fn body(&mut self, kind: u8) -> Result<Body<'a>, &'static str> {
        let body = match kind {
            1 => return self.sync(),
            2 => return self.stcrw(),
            3 => self.u64().map(|bytes| Body::Done { bytes }),
            NAK => (|| {
                let code = self.u16()?;
                self.bytes(6)?;
                Some(Body::Nak(Reason::of_code(code, self.u64()?)))
            })(),
            5 => Some(Body::Cancel),
            6 => Some(Body::Credit),
            _ => return Err("a kind that does not exist"),
        };
        body.ok_or("too few bytes for its kind")
    }

    fn sync(&mut self) -> Result<Body<'a>, &'static str> {
        let start = (|| {
            let (length, flags) = (self.u64()?, self.u8()?);
            self.u8()?;
            let (header, segments) = (self.u16()?, self.u16()?);
            self.u16()?;
            Some((length, flags, usize::from(header), usize::from(segments)))
        })();
        let (length, flags, header, segments) = start.ok_or("too few bytes for a SYNC")?;
        if header > HEADER {
            return Err("an application header of more than 4096 bytes");
        }
        let header = self.bytes(header).ok_or("a header that ends before its length")?;
        let read = flags & READ != 0;
        let offer = match (flags & OFFER != 0, read) {
            (false, _) if segments == 0 => None,
            (true, true) => Some(Offer { offset: 0, segments: self.segments(segments)?, more: flags & MORE != 0 }),
            _ => return Err("segments that its flags do not announce"),
        };
        Ok(Body::Sync { length, read, header, offer })
    }

    fn stcrw(&mut self) -> Result<Body<'a>, &'static str> {
        let start = (|| {
            let (segments, flags) = (self.u16()?, self.u8()?);
            self.bytes(5)?;
            Some((usize::from(segments), flags, self.u64()?))
        })();
        let (segments, flags, offset) = start.ok_or("too few bytes for an STCRW")?;
        Ok(Body::Stcrw(Offer { offset, segments: self.segments(segments)?, more: flags & STCRW_MORE != 0 }))
    }

    /// Every segment has a byte, and neither an address nor the sum of all lengths wraps.
    fn segments(&mut self, count: usize) -> Result<Segments<'a>, &'static str> {
        if count > SEGMENTS {
            return Err("more than 256 segments");
        }
        let segments = Segments::Encoded(self.bytes(count * SEGMENT).ok_or("segments that end before their number")?);
        let mut sum = 0_u64;
        for Segment { address, length, .. } in segments.iter() {
            let end = length.checked_sub(1).and_then(|before_last| address.checked_add(before_last));
            end.ok_or("a segment without bytes or past the end of memory")?;
            sum = sum.checked_add(length).ok_or("segments of more bytes than memory has")?;
        }
        Ok(segments)
    }
}

/// What was written so far.
struct Writer<'a> {
    into: &'a mut [u8; MESSAGE],
    at: usize,
}

impl Writer<'_> {
    fn bytes(&mut self, bytes: &[u8]) {
        self.into[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    fn u8(&mut self, value: u8) {
        self.bytes(&[value]);
    }

    fn u16(&mut self, value: u16) {
        self.bytes(&value.to_le_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }

    fn segments(&mut self, segments: Segments<'_>) {
        for Segment { address, length, key } in segments.iter() {
            self.u64(address);
            self.u64(length);
            self.u32(key);
            self.u32(0);
        }
    }
}
