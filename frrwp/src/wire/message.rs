//! Messages: their fields, their encoding, and their decoding in place.

use super::{
    DecodeError, HEADER, MAGIC, MESSAGE, NAK, Offer, Reason, SAY, SAYS, SEGMENT, SEGMENTS, Segment, Segments, Start,
};

const READ: u8 = 1;
const OFFER: u8 = 2;
const MORE: u8 = 4;
const STCRW_MORE: u8 = 1;

/// A message, decoded in place or about to be encoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message<'a> {
    /// Receives that the sender has added.
    pub credits: u16,
    /// The transfer; of a CREDIT and a SAY, how many SAYs were taken.
    pub tag: u64,
    /// The body.
    pub body: Body<'a>,
}

/// The body of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Body<'a> {
    /// A transfer opens.
    Sync {
        /// The length of the buffer, or the most that is accepted.
        length: u64,
        /// Whether the target opens.
        read: bool,
        /// The application's.
        header: &'a [u8],
        /// The start of the target's buffer, where it is registered already: an STCRW in the same message.
        offer: Option<Offer<'a>>,
    },
    /// The segments to write to.
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
    /// A message of one application to the other.
    Say(&'a [u8]),
}

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
        let malformed = |what| DecodeError::Malformed { tag, what };
        match (version, kind) {
            (1, _) if kind != SAY => {}
            (SAYS, SAY) => {}
            (1 | SAYS, _) => return Err(malformed("a kind that its version does not have")),
            _ => return Err(DecodeError::Version { version, tag }),
        }
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
    /// An excess is the caller's mistake: headers, segments and messages are bounded before they come here.
    pub fn encode(&self, into: &mut [u8; MESSAGE]) -> usize {
        let mut writer = Writer { into, at: 0 };
        writer.u32(MAGIC);
        writer.u8(if matches!(self.body, Body::Say(_)) { SAYS } else { 1 });
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
            Body::Say(said) => writer.bytes(said),
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
            Body::Say(_) => SAY,
        }
    }
}

/// The fields left to read.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

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

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn start(&mut self) -> Option<Start> {
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
            SAY => self.bytes(self.0.len()).map(Body::Say),
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

/// The bytes written so far.
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
