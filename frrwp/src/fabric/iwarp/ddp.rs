//! DDP (RFC 5041) and RDMAP (RFC 5040): what an FPDU carries.
//!
//! Tagged segments go into memory that a steering tag names; untagged ones into the next buffer of a queue. Numbers are
//! big-endian.
//!
//! ```text
//! both       0  u8   DDP: T tagged 80   L last of its message 40   version 01
//!            1  u8   RDMAP: version 40   operation 0f
//!
//! tagged     2  u32  steering tag        untagged   2  u32  tag to invalidate, else 0
//!            6  u64  offset                         6  u32  queue: 0 sends, 1 read requests, 2 terminate
//!           14       bytes                         10  u32  number of the message, from 1
//!                                                  14  u32  offset in the message
//!                                                  18       bytes
//!
//! read       0  u32  tag of the reader    4  u64  offset    12  u32  bytes
//! request   16  u32  tag to read from    20  u64  offset
//! ```

use std::fmt;

/// Bytes of the header of a tagged segment.
pub const TAGGED: usize = 14;
/// Bytes of the header of an untagged segment.
pub const UNTAGGED: usize = 18;
/// Bytes of a read request.
pub const READ_REQUEST: usize = 28;

const IS_TAGGED: u8 = 0x80;
const IS_LAST: u8 = 0x40;
const DDP_VERSION: u8 = 0x01;
const RDMAP_VERSION: u8 = 0x40;

/// The operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Operation {
    /// Bytes for memory of the peer's.
    Write,
    /// A wish to read.
    ReadRequest,
    /// The bytes that were wished for.
    ReadResponse,
    /// A message.
    Send,
    /// A message, and a tag of the receiver's that ends.
    SendInvalidate,
    /// A message that asks for an event.
    SendSolicited,
    /// Both.
    SendSolicitedInvalidate,
    /// The end, and why.
    Terminate,
}

impl Operation {
    const ALL: [Self; 8] = [
        Self::Write,
        Self::ReadRequest,
        Self::ReadResponse,
        Self::Send,
        Self::SendInvalidate,
        Self::SendSolicited,
        Self::SendSolicitedInvalidate,
        Self::Terminate,
    ];

    fn code(self) -> u8 {
        self as u8
    }

    fn is_tagged(self) -> bool {
        matches!(self, Self::Write | Self::ReadResponse)
    }

    /// Returns the queue of untagged segments.
    pub fn queue(self) -> u32 {
        match self {
            Self::ReadRequest => 1,
            Self::Terminate => 2,
            _ => 0,
        }
    }

    /// Its name, as RFC 5040 has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Write => "WRITE",
            Self::ReadRequest => "READ_REQ",
            Self::ReadResponse => "READ_RESP",
            Self::Send => "SEND",
            Self::SendInvalidate => "SEND_INV",
            Self::SendSolicited => "SEND_SE",
            Self::SendSolicitedInvalidate => "SEND_SE_INV",
            Self::Terminate => "TERMINATE",
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The destination of a segment's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Place {
    /// In memory.
    Tagged {
        /// The steering tag.
        tag: u32,
        /// From where on, as the tag's owner counts.
        offset: u64,
    },
    /// In a queue.
    Untagged {
        /// The tag that ends, if the operation says so.
        invalidate: u32,
        /// The queue.
        queue: u32,
        /// The message, from 1.
        number: u32,
        /// From where on in the message.
        offset: u32,
    },
}

/// The header of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Header {
    /// The operation.
    pub operation: Operation,
    /// Whether the message ends here.
    pub last: bool,
    /// The destination of the bytes.
    pub place: Place,
}

/// The error of an unusable segment, as a Terminate names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SegmentError {
    /// Too short for its header.
    #[error("a segment of {length} bytes is too short for its header")]
    Short {
        /// Bytes.
        length: usize,
    },
    /// A version of DDP that is not spoken.
    #[error("DDP version {version} in a {} segment", if *tagged { "tagged" } else { "untagged" })]
    DdpVersion {
        /// Its version.
        version: u8,
        /// Its kind.
        tagged: bool,
    },
    /// A version of RDMAP that is not spoken.
    #[error("RDMAP version {version}")]
    RdmapVersion {
        /// Its version.
        version: u8,
    },
    /// An operation that does not exist, or not for such segments.
    #[error("operation {operation:#x} in a {} segment", if *tagged { "tagged" } else { "untagged" })]
    Operation {
        /// Its code.
        operation: u8,
        /// The segment's kind.
        tagged: bool,
    },
    /// The queue is another than the operation's.
    #[error("queue {queue} is none for {operation}")]
    Queue {
        /// The queue.
        queue: u32,
        /// The operation.
        operation: Operation,
    },
}

impl Header {
    /// Reads a header, and gives the bytes that follow it.
    ///
    /// # Errors
    /// [`SegmentError`]; never a panic, whatever the bytes.
    pub fn decode(ulpdu: &[u8]) -> Result<(Self, &[u8]), SegmentError> {
        let length = ulpdu.len();
        let short = SegmentError::Short { length };
        let &[ddp, rdmap] = ulpdu.first_chunk().ok_or(short)?;
        let tagged = ddp & IS_TAGGED != 0;
        if ddp & 0x03 != DDP_VERSION {
            return Err(SegmentError::DdpVersion { version: ddp & 0x03, tagged });
        }
        if rdmap & 0xc0 != RDMAP_VERSION {
            return Err(SegmentError::RdmapVersion { version: rdmap >> 6 });
        }
        let code = rdmap & 0x0f;
        let operation = Operation::ALL.get(usize::from(code)).copied().filter(|op| op.is_tagged() == tagged);
        let operation = operation.ok_or(SegmentError::Operation { operation: code, tagged })?;
        let word =
            |at: usize| ulpdu.get(at..at + 4).map(|bytes| u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
        let place = if tagged {
            (|| {
                let offset = u64::from(word(6)?) << 32 | u64::from(word(10)?);
                Some(Place::Tagged { tag: word(2)?, offset })
            })()
        } else {
            (|| Some(Place::Untagged { invalidate: word(2)?, queue: word(6)?, number: word(10)?, offset: word(14)? }))()
        };
        let place = place.ok_or(short)?;
        if let Place::Untagged { queue, .. } = place
            && queue != operation.queue()
        {
            return Err(SegmentError::Queue { queue, operation });
        }
        let header = Self { operation, last: ddp & IS_LAST != 0, place };
        Ok((header, &ulpdu[header.length()..]))
    }

    /// Bytes that it takes.
    pub fn length(&self) -> usize {
        if matches!(self.place, Place::Tagged { .. }) { TAGGED } else { UNTAGGED }
    }

    /// Writes it, and says how much of the array it is.
    pub fn encode(&self) -> ([u8; UNTAGGED], usize) {
        let mut bytes = [0; UNTAGGED];
        let tagged = matches!(self.place, Place::Tagged { .. });
        bytes[0] = DDP_VERSION | if tagged { IS_TAGGED } else { 0 } | if self.last { IS_LAST } else { 0 };
        bytes[1] = RDMAP_VERSION | self.operation.code();
        match self.place {
            Place::Tagged { tag, offset } => {
                bytes[2..6].copy_from_slice(&tag.to_be_bytes());
                bytes[6..14].copy_from_slice(&offset.to_be_bytes());
            }
            Place::Untagged { invalidate, queue, number, offset } => {
                for (at, word) in [(2, invalidate), (6, queue), (10, number), (14, offset)] {
                    bytes[at..at + 4].copy_from_slice(&word.to_be_bytes());
                }
            }
        }
        (bytes, self.length())
    }
}

/// A wish to read: the bytes are sent as read responses to the reader's own tag.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ReadRequest {
    /// The tag that they are to go to.
    pub sink_tag: u32,
    /// From where on.
    pub sink_offset: u64,
    /// How many.
    pub length: u32,
    /// The tag that is read.
    pub source_tag: u32,
    /// From where on.
    pub source_offset: u64,
}

impl ReadRequest {
    /// Reads a request of the right size.
    pub fn decode(payload: &[u8]) -> Option<Self> {
        let bytes: &[u8; READ_REQUEST] = payload.try_into().ok()?;
        let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let long = |at: usize| u64::from(word(at)) << 32 | u64::from(word(at + 4));
        Some(Self {
            sink_tag: word(0),
            sink_offset: long(4),
            length: word(12),
            source_tag: word(16),
            source_offset: long(20),
        })
    }

    /// Writes it.
    pub fn encode(&self) -> [u8; READ_REQUEST] {
        let mut bytes = [0; READ_REQUEST];
        bytes[0..4].copy_from_slice(&self.sink_tag.to_be_bytes());
        bytes[4..12].copy_from_slice(&self.sink_offset.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.length.to_be_bytes());
        bytes[16..20].copy_from_slice(&self.source_tag.to_be_bytes());
        bytes[20..28].copy_from_slice(&self.source_offset.to_be_bytes());
        bytes
    }
}
