//! The bytes of a datagram. Numbers are little-endian; `docs/wire-formats.md` has the table.

use crc_fast::{CrcAlgorithm, Digest};

/// Bytes of the header.
pub const HEADER: usize = 48;
/// The most bytes of a message: 1 MiB of value and 128 KiB beside it.
pub const MAX_MESSAGE: usize = (1 << 20) + (128 << 10);
/// The most bytes of a datagram.
pub const MAX_DATAGRAM: usize = 65_507;
/// The fewest bytes that a datagram may be configured to have: a list of parts fits.
pub const MIN_DATAGRAM: usize = 96;
/// Parts that a HAVE or WANT lists.
pub const LISTED: u16 = 256;

/// Bytes of a HELLO. No answer to one is longer, so a forged sender address gains nothing.
pub(super) const HELLO: usize = 96;
/// Bytes of a RETRY, and of a PING, so that a RETRY may answer it.
pub(super) const RETRY: usize = 72;
/// Bytes of a RESET.
pub(super) const RESET: usize = 56;

const MAGIC: u16 = u16::from_le_bytes(*b"FD");
const VERSION: u8 = 1;
const ADMIT: usize = 64;
const LIST: usize = 88;

/// Flags of a datagram.
pub mod flags {
    /// The client wants a HAVE now.
    pub const ANSWER_NOW: u8 = 1;
    /// The server sent it.
    pub const REPLY: u8 = 2;
    /// The server receives more than it can take: the client halves its window.
    pub const SLOW_DOWN: u8 = 4;
    pub(super) const KNOWN: u8 = ANSWER_NOW | REPLY | SLOW_DOWN;
}

/// The proof that a client receives at its address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Cookie {
    /// The keyed hash of address, client, nonce and time.
    pub hash: [u8; 16],
    /// When the server made it, by its clock.
    pub time: u64,
}

/// Some parts of a message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct List {
    /// The first part that the list is about: all before it are there.
    pub next: u16,
    /// The first part that is not to be sent yet.
    pub upto: u16,
    /// The execution whose reply it is; in a HAVE a number of the server's for what it assembles.
    pub execution: u32,
    /// A bit for each part from `next` on: it is there, or on its way.
    pub there: [u64; LISTED as usize / 64],
}

impl List {
    /// Returns whether the list says that this part is there.
    pub fn has(&self, part: u16) -> bool {
        let Some(bit) = part.checked_sub(self.next) else { return true };
        bit < LISTED && self.there[usize::from(bit / 64)] >> (bit % 64) & 1 == 1
    }

    /// Notes that this part is there; parts beyond the list are left out.
    pub fn add(&mut self, part: u16) {
        if let Some(bit) = part.checked_sub(self.next).filter(|bit| *bit < LISTED) {
            self.there[usize::from(bit / 64)] |= 1 << (bit % 64);
        }
    }
}

/// The reason of a refusal.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Refused {
    /// There is no room now, and nothing was executed: ask again.
    Busy,
    /// The request was executed, and its reply is not kept any more.
    ReplyGone,
    /// The message is longer than the server takes.
    TooLarge,
    /// There is no room for another client. It answers a HELLO.
    Full,
}

/// The part of a datagram that depends on its kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Body<'a> {
    /// A client wants to be admitted, or to be known at another address. The header's request is its nonce.
    Hello(Cookie),
    /// The answer to a sender that has not shown its address: the cookie for the next HELLO.
    Retry(Cookie),
    /// The client is admitted.
    Admit {
        /// The run of the server.
        incarnation: u64,
        /// Milliseconds of silence after which the server forgets the client.
        idle: u32,
        /// Datagrams that the client may expect at first.
        window: u16,
    },
    /// A part of a request or reply.
    Part(Part<'a>),
    /// The parts of a request that the server has, and up to which it takes more.
    Have(List),
    /// The parts of a reply that the client has, and up to which it wants more.
    Want(List),
    /// The server does not know the client.
    Reset {
        /// The run of the server.
        incarnation: u64,
    },
    /// A client tells its floor, and that it is there.
    Ping,
    /// The server's answer. The header's request is the floor that it knows.
    Pong,
    /// The client leaves.
    Bye,
    /// The server does not answer a request with a reply.
    Refused {
        /// The execution that a WANT named, or 0.
        execution: u32,
        /// The reason.
        why: Refused,
    },
}

/// A part of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part<'a> {
    /// The execution whose reply it is; 0 in a request.
    pub execution: u32,
    /// Its number.
    pub part: u16,
    /// Parts of the message, at least one.
    pub parts: u16,
    /// Bytes of the message.
    pub length: u32,
    /// Its bytes.
    pub bytes: &'a [u8],
}

impl Part<'_> {
    /// Returns the bytes of each part but the last, if the numbers are those of one message.
    pub fn stride(&self) -> Option<usize> {
        let (length, parts, bytes) = (self.length as usize, usize::from(self.parts), self.bytes.len());
        if length > MAX_MESSAGE || self.part >= self.parts {
            return None;
        }
        if parts == 1 {
            return (bytes == length).then_some(length);
        }
        if self.part + 1 < self.parts {
            return ((parts - 1) * bytes < length && length <= parts * bytes).then_some(bytes);
        }
        let before = length.checked_sub(bytes)?;
        let stride = before / (parts - 1);
        (before % (parts - 1) == 0 && 0 < bytes && bytes <= stride).then_some(stride)
    }
}

/// A datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Datagram<'a> {
    /// The client; 0 before it is admitted.
    pub client: u64,
    /// The request.
    pub request: u64,
    /// The request minus the oldest one whose reply is still wanted.
    pub floor: u16,
    /// See [`flags`].
    pub flags: u8,
    /// From a client its clock, in µs; from the server how many µs it held what it answers.
    pub clock: u32,
    /// From the server the clock of what it answers.
    pub echo: u32,
    /// The rest.
    pub body: Body<'a>,
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// Returns the CRC32C of a datagram with its own field as zero.
fn sum(bytes: &[u8]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(&bytes[..4]);
    digest.update(&[0; 4]);
    digest.update(&bytes[8..]);
    digest.finalize() as u32
}

fn list(bytes: &[u8]) -> Option<List> {
    let mut there = [0; 4];
    for (word, at) in there.iter_mut().zip((56..).step_by(8)) {
        *word = u64_at(bytes, at);
    }
    let [next, upto] = [48, 50].map(|at| u16_at(bytes, at));
    (next <= upto).then_some(List { next, upto, execution: u32_at(bytes, 52), there })
}

fn cookie(bytes: &[u8]) -> Cookie {
    let mut hash = [0; 16];
    hash.copy_from_slice(&bytes[48..64]);
    Cookie { hash, time: u64_at(bytes, 64) }
}

impl<'a> Datagram<'a> {
    /// Returns the datagram with these bytes. `check`: the sum has to be right; fabrics that check by themselves send none.
    pub fn decode(bytes: &'a [u8], check: bool) -> Option<Self> {
        if bytes.len() < HEADER || u16_at(bytes, 0) != MAGIC || bytes[2] != VERSION || bytes[38] & !flags::KNOWN != 0 {
            return None;
        }
        let kind = bytes[3];
        let least = match kind {
            1 => HELLO,
            2 => RETRY,
            3 => ADMIT,
            5 | 6 => LIST,
            7 => RESET,
            11 => HEADER + 1,
            _ => HEADER,
        };
        if bytes.len() < least || (check && u32_at(bytes, 4) != sum(bytes)) {
            return None;
        }
        let execution = u32_at(bytes, 24);
        let body = match kind {
            1 => Body::Hello(cookie(bytes)),
            2 => Body::Retry(cookie(bytes)),
            3 => Body::Admit { incarnation: u64_at(bytes, 48), idle: u32_at(bytes, 56), window: u16_at(bytes, 60) },
            4 => {
                let [part, parts] = [28, 30].map(|at| u16_at(bytes, at));
                let part = Part { execution, part, parts, length: u32_at(bytes, 32), bytes: &bytes[HEADER..] };
                part.stride()?;
                Body::Part(part)
            }
            5 => Body::Have(list(bytes)?),
            6 => Body::Want(list(bytes)?),
            7 => Body::Reset { incarnation: u64_at(bytes, 48) },
            8 => Body::Ping,
            9 => Body::Pong,
            10 => Body::Bye,
            11 => {
                let why = match bytes[48] {
                    1 => Refused::Busy,
                    2 => Refused::ReplyGone,
                    3 => Refused::TooLarge,
                    4 => Refused::Full,
                    _ => return None,
                };
                Body::Refused { execution, why }
            }
            _ => return None,
        };
        Some(Self {
            client: u64_at(bytes, 8),
            request: u64_at(bytes, 16),
            floor: u16_at(bytes, 36),
            flags: bytes[38],
            clock: u32_at(bytes, 40),
            echo: u32_at(bytes, 44),
            body,
        })
    }

    /// Appends the bytes. Those in `more` follow the bytes of a part.
    pub fn encode(&self, more: &[u8], check: bool, out: &mut Vec<u8>) {
        let start = out.len();
        out.resize(start + HEADER, 0);
        let kind = match self.body {
            Body::Hello(cookie) | Body::Retry(cookie) => {
                out.extend(cookie.hash);
                out.extend(cookie.time.to_le_bytes());
                let is_hello = matches!(self.body, Body::Hello(_));
                out.resize(start + if is_hello { HELLO } else { RETRY }, 0);
                if is_hello { 1 } else { 2 }
            }
            Body::Admit { incarnation, idle, window } => {
                out.extend(incarnation.to_le_bytes());
                out.extend(idle.to_le_bytes());
                out.extend(u32::from(window).to_le_bytes());
                3
            }
            Body::Part(part) => {
                out.extend(part.bytes);
                out.extend(more);
                4
            }
            Body::Have(list) | Body::Want(list) => {
                out.extend(list.next.to_le_bytes());
                out.extend(list.upto.to_le_bytes());
                out.extend(list.execution.to_le_bytes());
                out.extend(list.there.iter().flat_map(|word| word.to_le_bytes()));
                if matches!(self.body, Body::Have(_)) { 5 } else { 6 }
            }
            Body::Reset { incarnation } => {
                out.extend(incarnation.to_le_bytes());
                7
            }
            Body::Ping => {
                out.resize(start + RETRY, 0);
                8
            }
            Body::Pong => 9,
            Body::Bye => 10,
            Body::Refused { why, .. } => {
                out.push(match why {
                    Refused::Busy => 1,
                    Refused::ReplyGone => 2,
                    Refused::TooLarge => 3,
                    Refused::Full => 4,
                });
                11
            }
        };
        let bytes = &mut out[start..];
        bytes[..2].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[2..4].copy_from_slice(&[VERSION, kind]);
        bytes[8..16].copy_from_slice(&self.client.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.request.to_le_bytes());
        match self.body {
            Body::Part(part) => {
                bytes[24..28].copy_from_slice(&part.execution.to_le_bytes());
                bytes[28..30].copy_from_slice(&part.part.to_le_bytes());
                bytes[30..32].copy_from_slice(&part.parts.to_le_bytes());
                bytes[32..36].copy_from_slice(&part.length.to_le_bytes());
            }
            Body::Refused { execution, .. } => bytes[24..28].copy_from_slice(&execution.to_le_bytes()),
            _ => {}
        }
        bytes[36..38].copy_from_slice(&self.floor.to_le_bytes());
        bytes[38] = self.flags;
        bytes[40..44].copy_from_slice(&self.clock.to_le_bytes());
        bytes[44..48].copy_from_slice(&self.echo.to_le_bytes());
        if check {
            let sum = sum(bytes);
            bytes[4..8].copy_from_slice(&sum.to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bodies() -> impl Strategy<Value = (u8, [u64; 4], Vec<u8>)> {
        (1_u8..=11, any::<[u64; 4]>(), prop::collection::vec(any::<u8>(), 1..300))
    }

    fn body<'a>(kind: u8, words: [u64; 4], bytes: &'a [u8]) -> Body<'a> {
        let cookie = Cookie { hash: (u128::from(words[0]) << 64 | u128::from(words[1])).to_le_bytes(), time: words[2] };
        let [next, upto] = [words[0].min(words[1]) as u16, words[0] as u16];
        let list = List { next: next.min(upto), upto, execution: words[2] as u32, there: words };
        match kind {
            1 => Body::Hello(cookie),
            2 => Body::Retry(cookie),
            3 => Body::Admit { incarnation: words[0], idle: words[1] as u32, window: words[2] as u16 },
            4 => {
                // A part in the middle, or the last one, of a message with parts of this length.
                let parts = 1 + (words[1] % 500) as u16;
                let part = if parts == 1 || words[2].is_multiple_of(2) {
                    parts - 1
                } else {
                    (words[3] % u64::from(parts)) as u16
                };
                let length = (u32::from(parts) * bytes.len() as u32).min(MAX_MESSAGE as u32);
                Body::Part(Part { execution: words[0] as u32, part, parts, length, bytes })
            }
            5 => Body::Have(list),
            6 => Body::Want(list),
            7 => Body::Reset { incarnation: words[0] },
            8 => Body::Ping,
            9 => Body::Pong,
            10 => Body::Bye,
            _ => {
                let why = [Refused::Busy, Refused::ReplyGone, Refused::TooLarge, Refused::Full][words[1] as usize % 4];
                Body::Refused { execution: words[0] as u32, why }
            }
        }
    }

    proptest! {
        #[test]
        fn datagrams_are_decoded_as_they_were_encoded(
            (kind, words, bytes) in bodies(),
            header in any::<(u64, u64, u16, u32, u32)>(),
            flags in 0_u8..8,
            check in any::<bool>(),
            cut in any::<prop::sample::Index>(),
            changed in any::<(prop::sample::Index, u8)>(),
        ) {
            let (client, request, floor, clock, echo) = header;
            let body = body(kind, words, &bytes);
            let datagram = Datagram { client, request, floor, flags, clock, echo, body };
            let mut encoded = Vec::new();
            datagram.encode(&[], check, &mut encoded);
            prop_assert_eq!(Datagram::decode(&encoded, check), Some(datagram));
            if let (Body::Part(part), true) = (body, cut.index(bytes.len()) > 0) {
                // The bytes of a part may come in two pieces.
                let [first, second] = [&bytes[..cut.index(bytes.len())], &bytes[cut.index(bytes.len())..]];
                let mut again = Vec::new();
                let body = Body::Part(Part { bytes: first, ..part });
                Datagram { body, ..datagram }.encode(second, check, &mut again);
                prop_assert_eq!(&again, &encoded);
            }
            // No change of up to eight bits in a row passes the sum, and no datagram that was cut off panics.
            let (at, bits) = (changed.0.index(encoded.len()), changed.1);
            let _ = Datagram::decode(&encoded[..at], false);
            encoded[at] ^= bits;
            let decoded = Datagram::decode(&encoded, true);
            prop_assert!(decoded.is_none() || (check && bits == 0));
            let _ = Datagram::decode(&encoded, false);
        }
    }

    #[test]
    fn parts_have_the_numbers_of_one_message() {
        let stride = |part, parts, length, bytes: usize| {
            Part { execution: 0, part, parts, length, bytes: &[0; 100][..bytes] }.stride()
        };
        assert_eq!((stride(0, 1, 5, 5), stride(0, 1, 0, 0)), (Some(5), Some(0)));
        assert_eq!((stride(0, 3, 100, 40), stride(2, 3, 100, 20)), (Some(40), Some(40)));
        for (part, parts, length, bytes) in [
            (0, 0, 0, 0),
            (1, 1, 5, 5),
            (0, 1, 5, 4),
            (0, 3, 100, 50),
            (0, 3, 100, 33),
            (2, 3, 100, 0),
            (2, 3, 100, 35),
            (2, 3, 100, 21),
            (2, 3, 1, 20),
            (0, 65_535, 4, 0),
            (0, 12_000, MAX_MESSAGE as u32 + 1, 100),
        ] {
            assert_eq!(stride(part, parts, length, bytes), None, "part {part} of {parts}: {bytes} of {length}");
        }
    }

    #[test]
    fn answers_to_strangers_are_not_longer() {
        let length = |body| {
            let mut bytes = Vec::new();
            Datagram { client: 1, request: 1, floor: 0, flags: 2, clock: 0, echo: 0, body }.encode(
                &[],
                true,
                &mut bytes,
            );
            bytes.len()
        };
        let cookie = Cookie::default();
        assert_eq!(
            (length(Body::Hello(cookie)), length(Body::Retry(cookie)), length(Body::Ping)),
            (HELLO, RETRY, RETRY)
        );
        let admit = length(Body::Admit { incarnation: 1, idle: 1, window: 1 });
        assert_eq!((admit, length(Body::Reset { incarnation: 1 })), (ADMIT, RESET));
        assert!(admit < HELLO && RETRY < HELLO);
    }
}
