//! MPA (RFC 5044, and RFC 6581 for the set-up): where a frame begins and ends in a stream of bytes.
//!
//! A connection starts with a request and a reply. Then come FPDUs: a length of 2 bytes, so many bytes for DDP, and zeroes
//! up to a multiple of 4. A CRC32C of all of it follows, or zero if both sides do without.
//!
//! ```text
//! start frame   0  16 bytes  "MPA ID Req Frame" or "MPA ID Rep Frame"
//!              16  u8        M markers 80   C checksums 40   R rejected 20   S enhanced 10
//!              17  u8        revision: 2
//!              18  u16       bytes of private data that follow, at most 512
//!                            enhanced: the first 4 are flags and depths of reads, big-endian:
//!                            A peer-to-peer 8000 | IRD (14 bits), then B 8000 | C write 4000 ... | ORD (14 bits)
//! ```
//!
//! Markers are not spoken, as no implementation in use does.

use super::crc;
use std::fmt;

/// The most private data of a start frame.
pub const PRIVATE: usize = 512;
/// Bytes of a start frame without private data.
pub const START: usize = 20;

const REQUEST: &[u8; 16] = b"MPA ID Req Frame";
const REPLY: &[u8; 16] = b"MPA ID Rep Frame";
const MARKERS: u8 = 0x80;
const CHECKSUMS: u8 = 0x40;
const REJECTED: u8 = 0x20;
const ENHANCED: u8 = 0x10;
const REVISION: u8 = 2;
const DEPTH: u16 = 0x3fff;
const FIRST_FLAG: u16 = 0x8000;
const SECOND_FLAG: u16 = 0x4000;

/// Which of the two frames that start a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// From the side that connects.
    Request,
    /// From the side that accepts.
    Reply,
}

/// How many reads may be on their way, and how the connecting side says that it is ready (RFC 6581).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Enhanced {
    /// Whether either side may speak first, once the connecting side has sent a ready-to-receive.
    pub peer_to_peer: bool,
    /// Reads that the sender answers at a time.
    pub inbound: u16,
    /// Whether an empty send serves as ready-to-receive.
    pub ready_by_send: bool,
    /// Whether an empty write does.
    pub ready_by_write: bool,
    /// Whether an empty read does.
    pub ready_by_read: bool,
    /// Reads that the sender posts at a time.
    pub outbound: u16,
}

/// A frame that starts a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Start<'a> {
    /// The role.
    pub role: Role,
    /// Whether the sender wants CRCs.
    pub checksums: bool,
    /// Whether the connection is refused.
    pub rejected: bool,
    /// 1, or 2 for the enhanced set-up.
    pub revision: u8,
    /// The enhanced set-up, where it is spoken.
    pub enhanced: Option<Enhanced>,
    /// The application's.
    pub private: &'a [u8],
}

/// Bytes that are not MPA, or not such that they are spoken here.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MpaError {
    /// The peer speaks something else.
    #[error("the peer does not speak iWARP: its first bytes are no MPA frame")]
    Foreign,
    /// The frame is of the wrong side.
    #[error("an MPA frame of the wrong side")]
    WrongSide,
    /// A revision that is not spoken.
    #[error("MPA revision {revision}: 1 and 2 are supported")]
    Revision {
        /// Its revision.
        revision: u8,
    },
    /// Markers are asked for.
    #[error("the peer asks for MPA markers, which are not supported: configure it without")]
    Markers,
    /// Too much private data, or too little for what its flags say.
    #[error("{length} bytes of MPA private data do not fit its flags: at most 512 may come")]
    Private {
        /// Bytes.
        length: usize,
    },
    /// The CRC is wrong.
    #[error("an FPDU of {length} bytes with CRC {found:#010x}, and {computed:#010x} computed")]
    Checksum {
        /// Bytes for DDP.
        length: usize,
        /// The one that came.
        found: u32,
        /// The right one.
        computed: u32,
    },
}

impl<'a> Start<'a> {
    /// Reads a start frame and says how long it is; `None` if it is not all there yet.
    ///
    /// # Errors
    /// [`MpaError`], as soon as it is clear that no such frame comes.
    pub fn decode(bytes: &'a [u8]) -> Result<Option<(Self, usize)>, MpaError> {
        let known = bytes.len().min(REQUEST.len());
        let role = match &bytes[..known] {
            start if *start == REQUEST[..known] => Role::Request,
            start if *start == REPLY[..known] => Role::Reply,
            _ => return Err(MpaError::Foreign),
        };
        let Some(&[flags, revision, high, low]) = bytes.get(16..START) else { return Ok(None) };
        if flags & MARKERS != 0 {
            return Err(MpaError::Markers);
        }
        if !(1..=REVISION).contains(&revision) {
            return Err(MpaError::Revision { revision });
        }
        let length = usize::from(u16::from_be_bytes([high, low]));
        let is_enhanced = revision == 2 && flags & ENHANCED != 0;
        if length > PRIVATE || (is_enhanced && length < 4) {
            return Err(MpaError::Private { length });
        }
        let Some(private) = bytes.get(START..START + length) else { return Ok(None) };
        let (enhanced, private) = if is_enhanced {
            let (start, rest) = private.split_at(4);
            let word = |at: usize| u16::from_be_bytes([start[at], start[at + 1]]);
            (Some(Enhanced::decode(word(0), word(2))), rest)
        } else {
            (None, private)
        };
        let (checksums, rejected) = (flags & CHECKSUMS != 0, flags & REJECTED != 0);
        Ok(Some((Self { role, checksums, rejected, revision, enhanced, private }, START + length)))
    }

    /// Appends the frame. Private data past what fits is the caller's mistake, and is cut.
    pub fn encode(&self, into: &mut Vec<u8>) {
        let flag = |set, bit| if set { bit } else { 0 };
        let room = PRIVATE - if self.enhanced.is_some() { 4 } else { 0 };
        let private = &self.private[..self.private.len().min(room)];
        into.extend_from_slice(if self.role == Role::Request { REQUEST } else { REPLY });
        into.push(
            flag(self.checksums, CHECKSUMS) | flag(self.rejected, REJECTED) | flag(self.enhanced.is_some(), ENHANCED),
        );
        into.push(self.revision);
        let length = private.len() + if self.enhanced.is_some() { 4 } else { 0 };
        into.extend_from_slice(&(length as u16).to_be_bytes());
        if let Some(enhanced) = self.enhanced {
            for word in enhanced.encode() {
                into.extend_from_slice(&word.to_be_bytes());
            }
        }
        into.extend_from_slice(private);
    }
}

impl Enhanced {
    fn decode(first: u16, second: u16) -> Self {
        Self {
            peer_to_peer: first & FIRST_FLAG != 0,
            ready_by_send: first & SECOND_FLAG != 0,
            inbound: first & DEPTH,
            ready_by_write: second & FIRST_FLAG != 0,
            ready_by_read: second & SECOND_FLAG != 0,
            outbound: second & DEPTH,
        }
    }

    fn encode(self) -> [u16; 2] {
        let flag = |set, bit| if set { bit } else { 0 };
        [
            flag(self.peer_to_peer, FIRST_FLAG) | flag(self.ready_by_send, SECOND_FLAG) | self.inbound.min(DEPTH),
            flag(self.ready_by_write, FIRST_FLAG) | flag(self.ready_by_read, SECOND_FLAG) | self.outbound.min(DEPTH),
        ]
    }
}

impl fmt::Display for Start<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let role = if self.role == Role::Request { "request" } else { "reply" };
        write!(f, "MPA {role}, revision {}", self.revision)?;
        if let Some(Enhanced { inbound, outbound, peer_to_peer, .. }) = self.enhanced {
            write!(f, ", IRD {inbound}, ORD {outbound}{}", if peer_to_peer { ", peer to peer" } else { "" })?;
        }
        let flags = [(self.checksums, "checksums"), (self.rejected, "rejected")];
        flags.iter().filter(|(set, _)| *set).try_for_each(|(_, name)| write!(f, ", {name}"))?;
        if self.private.is_empty() { Ok(()) } else { write!(f, ", {} bytes of private data", self.private.len()) }
    }
}

/// An FPDU, where it lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fpdu<'a> {
    /// The payload for DDP.
    pub ulpdu: &'a [u8],
    /// Its CRC, as it came.
    pub crc: u32,
    /// Bytes of the stream that it takes.
    pub length: usize,
    /// All that the CRC covers.
    covered: &'a [u8],
}

/// Zeroes after so many bytes for DDP.
pub fn padding(ulpdu: usize) -> usize {
    (2 + ulpdu).wrapping_neg() % 4
}

/// Bytes of the stream that an FPDU takes.
pub fn framed(ulpdu: usize) -> usize {
    2 + ulpdu + padding(ulpdu) + 4
}

impl<'a> Fpdu<'a> {
    /// Takes the first FPDU; `None` if it is not all there yet.
    pub fn split(bytes: &'a [u8]) -> Option<Self> {
        let &[high, low] = bytes.first_chunk()?;
        let carried = usize::from(u16::from_be_bytes([high, low]));
        let length = framed(carried);
        let (covered, crc) = bytes.get(..length)?.split_at(length - 4);
        let crc = u32::from_le_bytes(crc.try_into().ok()?);
        Some(Self { ulpdu: &covered[2..2 + carried], crc, length, covered })
    }

    /// Returns the CRC that it should have.
    pub fn checksum(&self) -> u32 {
        crc::of(self.covered)
    }

    /// Checks the CRC.
    ///
    /// # Errors
    /// [`MpaError::Checksum`].
    pub fn check(&self) -> Result<(), MpaError> {
        let computed = self.checksum();
        if computed == self.crc {
            return Ok(());
        }
        Err(MpaError::Checksum { length: self.ulpdu.len(), found: self.crc, computed })
    }
}

/// Returns the two ends of an FPDU, around pieces that need not lie together.
pub fn frame(pieces: &[&[u8]], checksums: bool) -> ([u8; 2], ([u8; 7], usize)) {
    let carried: usize = pieces.iter().map(|piece| piece.len()).sum();
    let start = (carried as u16).to_be_bytes();
    let zeroes = padding(carried);
    let mut end = [0; 7];
    if checksums {
        let crc = pieces.iter().fold(crc::of(&start), |crc, piece| crc::append(crc, piece));
        let crc = crc::append(crc, &end[..zeroes]);
        end[zeroes..zeroes + 4].copy_from_slice(&crc.to_le_bytes());
    }
    (start, (end, zeroes + 4))
}
