//! Requests to the server and their answers: the protocols, without sockets.
//!
//! A [`Reader`] takes the bytes of answers as they come, in any pieces. A line that is not complete is kept; a value
//! is compared or skipped where it lies, so that nothing is copied.

mod binary;
mod meta;
mod text;

use std::fmt;
use std::str::FromStr;

use crate::keys::Names;
use crate::outgoing::Outgoing;
use crate::values::Values;

/// A protocol of memcached's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// `get` and `set`.
    #[default]
    Text,
    /// `mg` and `ms`.
    Meta,
    /// The binary one.
    Binary,
}

impl FromStr for Protocol {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "text" | "ascii" => Ok(Self::Text),
            "meta" => Ok(Self::Meta),
            "binary" => Ok(Self::Binary),
            _ => Err(format!("{text}: one of text, meta, binary")),
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Text => "text",
            Self::Meta => "meta",
            Self::Binary => "binary",
        })
    }
}

/// A kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Reads a value.
    Get,
    /// Writes one.
    Set,
    /// Reads the values of several keys in a row, in one request.
    Scan,
}

/// The part that a request plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Nothing else.
    Whole,
    /// A read; what was read is written back.
    Modify,
    /// That write.
    Modified,
    /// A read; what is missed is written.
    Fill,
    /// That write.
    Filled,
    /// The write of a new key, to be read only when it is there.
    Insert,
}

/// A request, before it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ask {
    pub(crate) op: Op,
    /// The first of its keys.
    pub(crate) key: u64,
    /// How many keys in a row.
    pub(crate) keys: u16,
    pub(crate) part: Part,
}

impl Ask {
    pub(crate) const fn new(op: Op, key: u64) -> Self {
        Self { op, key, keys: 1, part: Part::Whole }
    }
}

/// A request that waits for its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InFlight {
    /// When it was to start, in nanoseconds since the run began.
    pub(crate) start: u64,
    /// When the first request was to start of which this is a part.
    pub(crate) first: u64,
    pub(crate) ask: Ask,
}

impl InFlight {
    /// Returns the request that has to follow this answer.
    #[inline]
    pub(crate) fn next(&self, answer: Answer) -> Option<Ask> {
        let part = match (self.ask.part, answer) {
            (Part::Modify, Answer::Hit | Answer::Miss) => Part::Modified,
            (Part::Fill, Answer::Miss) => Part::Filled,
            _ => return None,
        };
        Some(Ask { op: Op::Set, part, ..self.ask })
    }
}

/// The server's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Hit,
    Miss,
    Stored,
    /// So many of the keys of a scan were there.
    Found(u16),
    /// It could not do it, and says so in an orderly way.
    Error,
    /// A value, but not this key's.
    Wrong,
}

/// An answer that no server should give: the expectation, and the beginning of the bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Nonsense(pub(crate) String);

impl Nonsense {
    fn new(awaited: &str, came: &[u8]) -> Self {
        let shown = came[..came.len().min(60)].escape_ascii();
        Self(format!("nonsense from the server: {awaited} was awaited, and this came: \"{shown}\""))
    }
}

/// How the requests of a run are written and their answers read.
#[derive(Clone, Debug)]
pub(crate) struct Codec<'a> {
    pub(crate) protocol: Protocol,
    pub(crate) names: &'a Names,
    pub(crate) values: &'a Values,
    pub(crate) verify: bool,
}

impl Codec<'_> {
    /// The request, appended.
    #[inline]
    pub(crate) fn put(&self, ask: &Ask, out: &mut Outgoing) {
        match self.protocol {
            Protocol::Text => text::put(self, ask, out),
            Protocol::Meta => meta::put(self, ask, out),
            Protocol::Binary => binary::put(self, ask, out),
        }
    }

    /// Returns whether this is the key that was asked for.
    fn is_key(&self, key: u64, came: &[u8]) -> bool {
        let mut buffer = Vec::with_capacity(self.names.key_len());
        self.names.put(key, &mut buffer);
        buffer == came
    }
}

/// The meaning of a complete head.
enum Head {
    Done(Answer),
    /// A value of this key's and this length, then these bytes; of a scan more may follow.
    Value {
        key: u64,
        len: usize,
        tail: &'static [u8],
        right: bool,
        more: bool,
    },
    /// No more values of a scan.
    EndOfScan,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Head,
    /// Bytes that are left, and where in the pattern they should be.
    Value {
        left: usize,
        at: usize,
        tail: &'static [u8],
        wrong: bool,
        more: bool,
    },
    Tail {
        left: &'static [u8],
        wrong: bool,
        more: bool,
    },
}

/// Reads answers.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    /// The beginning of a head.
    partial: Vec<u8>,
    state: State,
    /// A scan's values, and whether one of them was wrong.
    found: u16,
    wrong: bool,
    /// The last error line.
    pub(crate) error: Option<String>,
}

/// Bytes of a head at most: a key, and some numbers and flags.
const HEAD_MAX: usize = 1024;

impl Reader {
    /// Takes input up to the end of the answer to `asked`, if it is there; returns how many bytes those were.
    #[inline]
    pub(crate) fn next(
        &mut self,
        input: &[u8],
        asked: &InFlight,
        codec: &Codec<'_>,
    ) -> Result<(usize, Option<Answer>), Nonsense> {
        let mut used = 0;
        loop {
            let rest = &input[used..];
            match &mut self.state {
                State::Head => {
                    let Some((part, head)) = self.head(rest, asked, codec)? else { return Ok((input.len(), None)) };
                    used += part;
                    match head {
                        Head::Done(answer) => return Ok((used, Some(answer))),
                        Head::Value { key, len, tail, right, more } => {
                            let place = codec.values.place(key);
                            let wrong = codec.verify && (!right || len != place.len());
                            self.state = State::Value { left: len, at: place.start, tail, wrong, more };
                        }
                        Head::EndOfScan => {
                            let (found, wrong) = (std::mem::take(&mut self.found), std::mem::take(&mut self.wrong));
                            return Ok((used, Some(if wrong { Answer::Wrong } else { Answer::Found(found) })));
                        }
                    }
                }
                State::Value { left, at, tail, wrong, more } => {
                    let part = rest.len().min(*left);
                    if codec.verify && !*wrong && rest[..part] != codec.values.pattern()[*at..*at + part] {
                        *wrong = true;
                    }
                    *left -= part;
                    *at += part;
                    used += part;
                    if *left > 0 {
                        return Ok((used, None));
                    }
                    self.state = State::Tail { left: tail, wrong: *wrong, more: *more };
                }
                State::Tail { left, wrong, more } => {
                    let part = rest.len().min(left.len());
                    if rest[..part] != left[..part] {
                        return Err(Nonsense::new("the end of a value", rest));
                    }
                    *left = &left[part..];
                    used += part;
                    if !left.is_empty() {
                        return Ok((used, None));
                    }
                    let (wrong, more) = (*wrong, *more);
                    self.state = State::Head;
                    if !more {
                        return Ok((used, Some(if wrong { Answer::Wrong } else { Answer::Hit })));
                    }
                    // No server sends more than was asked for without being found out: its keys are looked at.
                    self.found = self.found.saturating_add(1);
                    self.wrong |= wrong;
                    if used == input.len() {
                        return Ok((used, None));
                    }
                }
            }
        }
    }

    /// Returns a head, if the input completes one; else all of the input is kept.
    fn head(&mut self, rest: &[u8], asked: &InFlight, codec: &Codec<'_>) -> Result<Option<(usize, Head)>, Nonsense> {
        if self.partial.is_empty() {
            if let Some(len) = head_len(codec.protocol, rest) {
                let head = self.understand(&rest[..len], asked, codec)?;
                return Ok(Some((len, head)));
            }
            self.partial.extend_from_slice(&rest[..rest.len().min(HEAD_MAX)]);
        } else {
            let before = self.partial.len();
            self.partial.extend_from_slice(&rest[..rest.len().min(HEAD_MAX)]);
            if let Some(len) = head_len(codec.protocol, &self.partial) {
                let partial = std::mem::take(&mut self.partial);
                let head = self.understand(&partial[..len], asked, codec)?;
                self.partial = partial;
                self.partial.clear();
                return Ok(Some((len - before, head)));
            }
        }
        // Noise need not be a line to be known: its end may never come.
        let noise =
            codec.protocol != Protocol::Binary && self.partial.first().is_some_and(|first| !first.is_ascii_uppercase());
        if noise || self.partial.len() >= HEAD_MAX {
            return Err(Nonsense::new("an answer's first line", &self.partial));
        }
        Ok(None)
    }

    fn understand(&mut self, head: &[u8], asked: &InFlight, codec: &Codec<'_>) -> Result<Head, Nonsense> {
        match codec.protocol {
            Protocol::Binary => binary::head(head, asked, codec, &mut self.error),
            Protocol::Text | Protocol::Meta => {
                let line = head.strip_suffix(b"\r\n").ok_or_else(|| Nonsense::new("a line", head))?;
                // The server's own trouble; what it does not understand is ours.
                if line.starts_with(b"SERVER_ERROR") {
                    self.error = Some(line.escape_ascii().to_string());
                    return Ok(Head::Done(Answer::Error));
                }
                if codec.protocol == Protocol::Text {
                    text::head(line, asked, codec, self.found)
                } else {
                    meta::head(line, asked, codec)
                }
            }
        }
    }
}

/// Bytes of the head that these begin with, if it is complete.
#[inline]
fn head_len(protocol: Protocol, bytes: &[u8]) -> Option<usize> {
    match protocol {
        Protocol::Binary => binary::head_len(bytes),
        Protocol::Text | Protocol::Meta => Some(memchr::memchr(b'\n', &bytes[..bytes.len().min(HEAD_MAX)])? + 1),
    }
}

/// Returns a number without signs.
fn number(word: &[u8]) -> Option<usize> {
    if word.is_empty() || word.len() > 10 {
        return None;
    }
    word.iter().try_fold(0, |sum, byte| byte.is_ascii_digit().then(|| sum * 10 + usize::from(byte - b'0')))
}

/// A `set`, which both protocols of lines say alike but for the words before and after the key.
#[inline]
fn put_line_and_value(codec: &Codec<'_>, key: u64, out: &mut Outgoing, (before, after): (&[u8], &[u8])) {
    let place = codec.values.place(key);
    out.bytes.extend_from_slice(before);
    codec.names.put(key, &mut out.bytes);
    out.bytes.extend_from_slice(after);
    out.bytes.extend_from_slice(itoa::Buffer::new().format(place.len()).as_bytes());
    out.bytes.extend_from_slice(b"\r\n");
    out.put(place, codec.values.pattern());
    out.bytes.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: u64 = 7;

    fn in_flight(op: Op) -> InFlight {
        InFlight { start: 0, first: 0, ask: Ask::new(op, KEY) }
    }

    struct World {
        names: Names,
        values: Values,
    }

    impl World {
        fn new() -> Self {
            Self { names: Names::new("k", 12, 100).unwrap(), values: Values::new(&"5000".parse().unwrap()) }
        }
        fn codec(&self, protocol: Protocol) -> Codec<'_> {
            Codec { protocol, names: &self.names, values: &self.values, verify: true }
        }
        fn value(&self) -> &[u8] {
            &self.values.pattern()[self.values.place(KEY)]
        }
        /// Returns the results of these answers in pieces of this length.
        fn read(&self, protocol: Protocol, ops: &[Op], bytes: &[u8], piece: usize) -> Result<Vec<Answer>, Nonsense> {
            let codec = self.codec(protocol);
            let (mut reader, mut answers) = (Reader::default(), Vec::new());
            for piece in bytes.chunks(piece) {
                let mut at = 0;
                while at < piece.len() {
                    let asked = in_flight(ops[answers.len()]);
                    let (used, answer) = reader.next(&piece[at..], &asked, &codec)?;
                    assert!(used > 0, "nothing is used and nothing comes of it");
                    at += used;
                    answers.extend(answer);
                }
            }
            Ok(answers)
        }
    }

    fn binary(code: u8, status: u8, extras: &[u8], value: &[u8]) -> Vec<u8> {
        let body = (extras.len() + value.len()) as u32;
        let mut bytes = vec![0x81, code, 0, 0, extras.len() as u8, 0, 0, status];
        bytes.extend(body.to_be_bytes());
        bytes.extend([0; 12]);
        bytes.extend(extras);
        bytes.extend(value);
        bytes
    }

    #[test]
    fn answers_parse_in_any_fragmentation() {
        let world = World::new();
        let value = world.value();
        let mut wrong = value.to_vec();
        wrong[4999] ^= 1;
        let line = |start: &str, value: &[u8], end: &str| [start.as_bytes(), value, end.as_bytes()].concat();
        let cases = [
            (
                Protocol::Text,
                [
                    line("VALUE k00000000007 0 5000\r\n", value, "\r\nEND\r\n"),
                    b"END\r\n".to_vec(),
                    b"STORED\r\n".to_vec(),
                    b"SERVER_ERROR out of memory storing object\r\n".to_vec(),
                    line("VALUE k00000000007 0 5000\r\n", &wrong, "\r\nEND\r\n"),
                    line("VALUE k00000000008 0 5000\r\n", value, "\r\nEND\r\n"),
                    line("VALUE k00000000007 0 3\r\n", b"abc", "\r\nEND\r\n"),
                ],
            ),
            (
                Protocol::Meta,
                [
                    line("VA 5000 kk00000000007\r\n", value, "\r\n"),
                    b"EN\r\n".to_vec(),
                    b"HD\r\n".to_vec(),
                    b"SERVER_ERROR out of memory storing object\r\n".to_vec(),
                    line("VA 5000 kk00000000007\r\n", &wrong, "\r\n"),
                    line("VA 5000 kk00000000008\r\n", value, "\r\n"),
                    line("VA 3 kk00000000007\r\n", b"abc", "\r\n"),
                ],
            ),
            (
                Protocol::Binary,
                [
                    binary(0, 0, &[0; 4], value),
                    binary(0, 1, &[], b"Not found"),
                    binary(1, 0, &[], b""),
                    binary(1, 0x82, &[], b"Out of memory"),
                    binary(0, 0, &[0; 4], &wrong),
                    binary(0, 0, &[0; 4], &wrong[1..]),
                    binary(0, 0, &[0; 4], b""),
                ],
            ),
        ];
        let ops = [Op::Get, Op::Get, Op::Set, Op::Set, Op::Get, Op::Get, Op::Get];
        use Answer::{Error, Hit, Miss, Stored, Wrong};
        for (protocol, answers) in cases {
            let bytes = answers.concat();
            for piece in [1, 2, 3, 7, 24, 100, 4999, 5001, bytes.len()] {
                let came = world.read(protocol, &ops, &bytes, piece).unwrap();
                assert_eq!(came, [Hit, Miss, Stored, Error, Wrong, Wrong, Wrong], "{protocol}, {piece}");
            }
        }
    }

    #[test]
    fn scan_answer_values_are_each_verified() {
        let names = Names::new("k", 12, 100).unwrap();
        let values = Values::new(&"5-900".parse().unwrap());
        let codec = Codec { protocol: Protocol::Text, names: &names, values: &values, verify: true };
        let ask = Ask { keys: 4, ..Ask::new(Op::Scan, KEY) };
        let mut out = Outgoing::default();
        codec.put(&ask, &mut out);
        assert_eq!(out.bytes, b"get k00000000007 k00000000008 k00000000009 k00000000010\r\n");
        // Values of these keys, each with that key's own or another's bytes.
        let answer = |keys: &[(u64, u64)]| {
            let mut bytes = Vec::new();
            for &(key, whose) in keys {
                let value = &values.pattern()[values.place(whose)];
                bytes.extend(format!("VALUE k{key:011} 0 {}\r\n", value.len()).bytes());
                bytes.extend(value);
                bytes.extend(b"\r\n");
            }
            bytes.extend(b"END\r\n");
            bytes
        };
        let read = |bytes: &[u8], piece: usize| -> Result<Answer, Nonsense> {
            let (mut reader, asked) = (Reader::default(), InFlight { start: 0, first: 0, ask });
            for (at, piece) in bytes.chunks(piece).enumerate() {
                let mut rest = piece;
                while !rest.is_empty() {
                    let (used, answer) = reader.next(rest, &asked, &codec)?;
                    rest = &rest[used..];
                    if let Some(answer) = answer {
                        assert!(rest.is_empty(), "the end of piece {at} is left");
                        return Ok(answer);
                    }
                }
            }
            panic!("no answer came of it");
        };
        for piece in [1, 7, 100, 100_000] {
            for (keys, found) in [
                (&[(7, 7), (8, 8), (9, 9), (10, 10)][..], Answer::Found(4)),
                (&[(8, 8), (10, 10)], Answer::Found(2)),
                (&[], Answer::Found(0)),
                (&[(7, 7), (8, 9)], Answer::Wrong),
                // A key that was not asked for, be its value right.
                (&[(7, 7), (11, 11)], Answer::Wrong),
                (&[(6, 6)], Answer::Wrong),
            ] {
                assert_eq!(read(&answer(keys), piece), Ok(found), "{keys:?} in pieces of {piece}");
            }
            let more = answer(&[(7, 7), (8, 8), (9, 9), (10, 10), (7, 7)]);
            assert!(read(&more, piece).unwrap_err().0.contains("END was awaited"));
        }
    }

    #[test]
    fn what_no_server_should_answer_is_nonsense() {
        let world = World::new();
        let long = "x".repeat(3000);
        for (protocol, op, bytes) in [
            (Protocol::Text, Op::Get, "HTTP/1.1 400 Bad Request\r\n"),
            (Protocol::Text, Op::Get, "STORED\r\n"),
            (Protocol::Text, Op::Set, "END\r\n"),
            (Protocol::Text, Op::Get, "ERROR\r\n"),
            (Protocol::Text, Op::Get, "CLIENT_ERROR line format\r\n"),
            (Protocol::Text, Op::Get, "VALUE k00000000007 0 99999999999\r\n"),
            (Protocol::Text, Op::Get, "VALUE k00000000007 0 -1\r\n"),
            (Protocol::Text, Op::Get, "VALUE k00000000007 0 2\r\nabXX"),
            (Protocol::Text, Op::Get, "END\n"),
            (Protocol::Text, Op::Get, &long),
            (Protocol::Meta, Op::Get, "VA x\r\n"),
            (Protocol::Meta, Op::Set, "EN\r\n"),
            (Protocol::Meta, Op::Get, "HD\r\n"),
            (Protocol::Binary, Op::Get, "not at all the binary protocol"),
            (Protocol::Binary, Op::Get, "\u{1}"),
        ] {
            for piece in [1, 5, 5000] {
                let wrong = world.read(protocol, &[op], bytes.as_bytes(), piece).unwrap_err();
                assert!(wrong.0.contains("was awaited"), "{bytes:.40}: {wrong:?}");
            }
        }
        // An answer to another request, and lengths that cannot be.
        for bytes in [binary(1, 0, &[], b""), binary(0, 0, &[0; 5], b""), binary(0, 0x81, &[], b"Unknown command")] {
            world.read(Protocol::Binary, &[Op::Get], &bytes, 5000).unwrap_err();
        }
    }

    #[test]
    fn no_bytes_make_a_reader_panic_or_keep_much() {
        use rand::{RngExt, SeedableRng};
        let world = World::new();
        let mut random = rand_pcg::Pcg64::seed_from_u64(3);
        let good = [
            &b"VALUE k00000000007 0 10\r\n0123456789\r\nEND\r\n"[..],
            b"VA 4 kk00000000007\r\nabcd\r\n",
            &binary(0, 0, &[0; 4], b"abc"),
        ];
        for turn in 0..30_000 {
            let protocol = [Protocol::Text, Protocol::Meta, Protocol::Binary][turn % 3];
            let mut bytes = good[turn % 3].to_vec();
            for _ in 0..random.random_range(0..4) {
                let at = random.random_range(0..bytes.len());
                bytes[at] = random.random();
            }
            let codec = world.codec(protocol);
            let (mut reader, mut at) = (Reader::default(), 0);
            let asked = in_flight(Op::Get);
            while at < bytes.len() {
                let end = (at + random.random_range(1..50)).min(bytes.len());
                let Ok((used, _)) = reader.next(&bytes[at..end], &asked, &codec) else { break };
                at += used;
                assert!(reader.partial.len() <= 2 * HEAD_MAX);
            }
        }
    }

    /// The tests with servers check our own server's answers; this checks the form.
    #[test]
    fn requests_have_the_form_of_their_protocol() {
        let names = Names::new("k", 12, 100).unwrap();
        let values = Values::new(&"3".parse().unwrap());
        let value = values.pattern()[values.place(KEY)].escape_ascii().to_string();
        for (protocol, get, set) in [
            (Protocol::Text, "get k00000000007\\r\\n", format!("set k00000000007 0 0 3\\r\\n{value}\\r\\n")),
            (Protocol::Meta, "mg k00000000007 k v\\r\\n", format!("ms k00000000007 3\\r\\n{value}\\r\\n")),
        ] {
            let codec = Codec { protocol, names: &names, values: &values, verify: true };
            for (op, text) in [(Op::Get, get), (Op::Set, &set)] {
                let mut out = Outgoing::default();
                codec.put(&Ask::new(op, KEY), &mut out);
                assert_eq!(out.bytes.escape_ascii().to_string(), text);
            }
        }
    }
}
