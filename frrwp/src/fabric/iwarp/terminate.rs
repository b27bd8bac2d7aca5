//! Terminate (RFC 5040, section 4.8): the last words of a side that found something wrong.
//!
//! ```text
//! 0  u8   layer in the upper half: 0 RDMAP, 1 DDP, 2 MPA; kind of error in the lower
//! 1  u8   error
//! 2  u8   80 the length of the segment follows   40 its DDP header   20 its RDMAP header
//! 3  u8   zero
//! 4       what was announced: u16 length, header, read request
//! ```
//!
//! Linux's siw has layer and kind the other way round, and the flags in the low bits, as its compiler lays bits out. What can
//! be told apart is read either way.

use super::ddp::{Header, ReadRequest, SegmentError};
use std::fmt;

/// The segment at fault.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AtFault {
    /// Its header.
    pub header: Header,
    /// Bytes that it carries for DDP.
    pub length: u16,
    /// The read request, if it has come whole.
    pub request: Option<ReadRequest>,
}

/// The error.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Terminate {
    /// 0 RDMAP, 1 DDP, 2 the layer below.
    pub layer: u8,
    /// The kind of error, as the layer counts.
    pub kind: u8,
    /// The error, as the kind counts.
    pub code: u8,
}

/// Names of RFC 5040 (section 4.8), RFC 5041 (section 6.2 and 8) and RFC 5044 (section 8).
const KNOWN: &[(Terminate, &str)] = &[
    (Terminate::LOCAL_CATASTROPHE, "local catastrophic error"),
    (Terminate::INVALID_TAG, "remote protection error: invalid steering tag"),
    (Terminate::BASE_OR_BOUNDS, "remote protection error: base or bounds violation"),
    (Terminate::ACCESS, "remote protection error: access rights violation"),
    (Terminate::TAG_NOT_ASSOCIATED, "remote protection error: steering tag of another stream"),
    (Terminate::OFFSET_WRAPS, "remote protection error: tagged offset wraps"),
    (Terminate::CANNOT_INVALIDATE, "remote protection error: steering tag cannot be invalidated"),
    (Terminate::RDMAP_VERSION, "remote operation error: invalid RDMAP version"),
    (Terminate::UNEXPECTED_OPCODE, "remote operation error: unexpected operation"),
    (Terminate::REMOTE_CATASTROPHE, "remote operation error: catastrophic, localised to the stream"),
    (Terminate::DDP_INVALID_TAG, "tagged buffer error: invalid steering tag"),
    (Terminate::DDP_BOUNDS, "tagged buffer error: base or bounds violation"),
    (Terminate::DDP_NOT_ASSOCIATED, "tagged buffer error: steering tag of another stream"),
    (Terminate::DDP_OFFSET_WRAPS, "tagged buffer error: offset wraps"),
    (Terminate::DDP_TAGGED_VERSION, "tagged buffer error: invalid DDP version"),
    (Terminate::INVALID_QUEUE, "untagged buffer error: invalid queue"),
    (Terminate::NO_BUFFER, "untagged buffer error: no buffer for the message"),
    (Terminate::NUMBER_OUT_OF_RANGE, "untagged buffer error: message number out of range"),
    (Terminate::INVALID_OFFSET, "untagged buffer error: invalid message offset"),
    (Terminate::TOO_LONG, "untagged buffer error: message too long for its buffer"),
    (Terminate::DDP_UNTAGGED_VERSION, "untagged buffer error: invalid DDP version"),
    (Terminate::MPA_CLOSED, "MPA: the TCP connection was closed"),
    (Terminate::MPA_CRC, "MPA: CRC error"),
    (Terminate::MPA_INSUFFICIENT_READS, "MPA: not enough read depth"),
    (Terminate::MPA_NO_READY, "MPA: no way to say ready to receive"),
];

impl Terminate {
    const fn of(layer: u8, kind: u8, code: u8) -> Self {
        Self { layer, kind, code }
    }

    /// Something broke on the sender's side.
    pub const LOCAL_CATASTROPHE: Self = Self::of(0, 0, 0);
    /// A read names a tag that is not there.
    pub const INVALID_TAG: Self = Self::of(0, 1, 0);
    /// A read leaves its tag's memory.
    pub const BASE_OR_BOUNDS: Self = Self::of(0, 1, 1);
    /// A read without the right to.
    pub const ACCESS: Self = Self::of(0, 1, 2);
    /// A read of another connection's tag.
    pub const TAG_NOT_ASSOCIATED: Self = Self::of(0, 1, 3);
    /// A read past the end of all memory.
    pub const OFFSET_WRAPS: Self = Self::of(0, 1, 4);
    /// A tag that cannot be taken back.
    pub const CANNOT_INVALIDATE: Self = Self::of(0, 1, 9);
    /// A version of RDMAP that is not spoken.
    pub const RDMAP_VERSION: Self = Self::of(0, 2, 5);
    /// An operation that does not exist, or not here.
    pub const UNEXPECTED_OPCODE: Self = Self::of(0, 2, 6);
    /// Too many reads at a time, and other breaches that have no name.
    pub const REMOTE_CATASTROPHE: Self = Self::of(0, 2, 7);
    /// A write names a tag that is not there.
    pub const DDP_INVALID_TAG: Self = Self::of(1, 1, 0);
    /// A write leaves its tag's memory.
    pub const DDP_BOUNDS: Self = Self::of(1, 1, 1);
    /// A write to another connection's tag.
    pub const DDP_NOT_ASSOCIATED: Self = Self::of(1, 1, 2);
    /// A write past the end of all memory.
    pub const DDP_OFFSET_WRAPS: Self = Self::of(1, 1, 3);
    /// A version of DDP that is not spoken.
    pub const DDP_TAGGED_VERSION: Self = Self::of(1, 1, 4);
    /// A queue that does not exist.
    pub const INVALID_QUEUE: Self = Self::of(1, 2, 1);
    /// A message for which no receive was posted.
    pub const NO_BUFFER: Self = Self::of(1, 2, 2);
    /// A message out of order.
    pub const NUMBER_OUT_OF_RANGE: Self = Self::of(1, 2, 3);
    /// A part of a message that does not follow the one before.
    pub const INVALID_OFFSET: Self = Self::of(1, 2, 4);
    /// A message that is longer than its receive.
    pub const TOO_LONG: Self = Self::of(1, 2, 5);
    /// A version of DDP that is not spoken.
    pub const DDP_UNTAGGED_VERSION: Self = Self::of(1, 2, 6);
    /// The stream ended.
    pub const MPA_CLOSED: Self = Self::of(2, 0, 1);
    /// A CRC is wrong.
    pub const MPA_CRC: Self = Self::of(2, 0, 2);
    /// Fewer reads than the peer needs.
    pub const MPA_INSUFFICIENT_READS: Self = Self::of(2, 0, 6);
    /// No ready-to-receive that both sides know.
    pub const MPA_NO_READY: Self = Self::of(2, 0, 7);

    /// Returns whether this answers an access by a tag that does not open what was wanted: a guess, if the tag was never valid on
    /// the connection.
    pub fn is_guess(self) -> bool {
        matches!(self, Self { layer: 0 | 1, kind: 1, .. })
    }

    /// Returns the answer to a segment that cannot be used.
    pub fn for_segment(error: SegmentError) -> Self {
        match error {
            SegmentError::DdpVersion { tagged: true, .. } => Self::DDP_TAGGED_VERSION,
            SegmentError::DdpVersion { tagged: false, .. } => Self::DDP_UNTAGGED_VERSION,
            SegmentError::RdmapVersion { .. } => Self::RDMAP_VERSION,
            SegmentError::Operation { .. } => Self::UNEXPECTED_OPCODE,
            SegmentError::Queue { .. } => Self::INVALID_QUEUE,
            SegmentError::Short { .. } => Self::REMOTE_CATASTROPHE,
        }
    }

    /// Writes it, with what is at fault if that is known.
    pub fn encode(self, at_fault: Option<&AtFault>) -> Vec<u8> {
        let mut bytes = vec![self.layer << 4 | self.kind, self.code, 0, 0];
        if let Some(AtFault { header, length, request }) = at_fault {
            bytes[2] = 0x80 | 0x40;
            bytes.extend_from_slice(&length.to_be_bytes());
            let (encoded, used) = header.encode();
            bytes.extend_from_slice(&encoded[..used]);
            // The place in a read request where RDMAP finds the error: DDP does not look into it.
            if let (Some(request), 0) = (request, self.layer) {
                bytes[2] |= 0x20;
                bytes.extend_from_slice(&request.encode());
            }
        }
        bytes
    }

    /// Reads it; `None` where there is not enough of it.
    pub fn decode(payload: &[u8]) -> Option<Self> {
        let &[first, code, ..] = payload else { return None };
        let (upper, lower) = (first >> 4, first & 0x0f);
        let as_written = Self::of(upper, lower, code);
        let turned = Self::of(lower, upper, code);
        let is_known = |one: Self| KNOWN.iter().any(|&(known, _)| known == one);
        Some(if !is_known(as_written) && is_known(turned) { turned } else { as_written })
    }
}

impl fmt::Display for Terminate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match KNOWN.iter().find(|(known, _)| known == self) {
            Some((_, name)) => f.write_str(name),
            None => write!(f, "layer {}, kind {}, error {}", self.layer, self.kind, self.code),
        }
    }
}
