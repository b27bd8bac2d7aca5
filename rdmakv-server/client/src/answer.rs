//! A server's answer, read from bytes that may not all be there yet.

use super::error::Operation;
use super::value::{Bytes, Source, Value};
use rdmakv_cluster::wire::MAX_REPLY;

/// An answer.
#[derive(Debug)]
pub(super) enum Answer {
    Value(Option<Value>),
    Stored(Stored),
    Yes(bool),
    Number(Option<u64>),
    Text(String),
    Stats(Vec<(String, String)>),
    /// The reply to a call, and the bytes that follow it.
    Called(Vec<u8>, Vec<u8>),
    /// An error line of the server's.
    Refused(String),
}

/// The outcome of a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "it may not have been stored"]
pub enum Stored {
    /// It is stored, and this is its version.
    Yes(u64),
    /// Not so: it was there (`add`), or was not (`replace`, `append`, `prepend`).
    NotStored,
    /// Another version was there (`cas`).
    Exists,
    /// There was none (`cas`).
    NotFound,
}

impl Stored {
    /// Returns whether it is stored.
    pub fn is_stored(self) -> bool {
        matches!(self, Self::Yes(_))
    }
}

/// Bytes that no answer begins with.
pub(super) type Nonsense = &'static str;

/// Bytes of a line at most.
const LINE: usize = 4096;
/// Bytes of statistics at most.
const STATS: usize = 16 << 20;

/// Returns the answer at the start of these bytes, and how many it has; or how many there have to be at least before it is worth
/// another look.
pub(super) fn take(
    operation: Operation,
    bytes: &[u8],
    largest: usize,
) -> Result<Result<(Answer, usize), usize>, Nonsense> {
    if operation == Operation::Stats {
        return stats(bytes);
    }
    let Some(end) = memchr::memchr(b'\n', bytes) else {
        return if bytes.len() > LINE { Err("a line without an end") } else { Ok(Err(bytes.len() + 1)) };
    };
    let line = bytes[..end].strip_suffix(b"\r").ok_or("a line that ends otherwise than they do")?;
    let mut words = line.split(|&byte| byte == b' ').filter(|word| !word.is_empty());
    let code = words.next().ok_or("an empty line")?;
    let rest = end + 1;
    if is_error(code) {
        return Ok(Ok((Answer::Refused(String::from_utf8_lossy(line).into_owned()), rest)));
    }
    use Operation::{Call, Decr, Delete, Flush, Gat, Get, Incr, Touch, Version};
    let answer = match (operation, code) {
        (Get | Gat, b"EN") => Answer::Value(None),
        (Incr | Decr, b"NF") => Answer::Number(None),
        (Get | Gat | Incr | Decr, b"VA") => {
            let length = words.next().and_then(number).ok_or("a value without a length")?;
            let length = usize::try_from(length)
                .ok()
                .filter(|&length| length <= largest)
                .ok_or("a longer value than there is")?;
            let whole = rest + length + 2;
            if bytes.len() < whole {
                return Ok(Err(whole));
            }
            if &bytes[whole - 2..whole] != b"\r\n" {
                return Err("a value that ends otherwise than they do");
            }
            let data = &bytes[rest..rest + length];
            let (mut flags, mut version) = (0, 0);
            for word in words {
                match word[0] {
                    b'f' => {
                        flags =
                            number(&word[1..]).and_then(|flags| flags.try_into().ok()).ok_or("flags that are none")?
                    }
                    b'c' => version = number(&word[1..]).ok_or("a version that is none")?,
                    _ => {}
                }
            }
            let answer = match operation {
                Incr | Decr => Answer::Number(Some(number(data.trim_ascii_end()).ok_or("a number that is none")?)),
                _ => Answer::Value(Some(Value::new(
                    Bytes::Heap(data.to_vec()),
                    0,
                    length,
                    (flags, version),
                    Source::Socket,
                ))),
            };
            return Ok(Ok((answer, whole)));
        }
        (Call, b"MX") => {
            let mut lengths = words.map(|word| number(word).and_then(|length| usize::try_from(length).ok()));
            let length = lengths.next().flatten().ok_or("a reply without a length")?;
            let reply = lengths.next().flatten().filter(|&reply| reply <= length).ok_or("a reply without a length")?;
            if reply > MAX_REPLY || length - reply > largest {
                return Err("a longer reply than there is");
            }
            let whole = rest + length + 2;
            if bytes.len() < whole {
                return Ok(Err(whole));
            }
            if &bytes[whole - 2..whole] != b"\r\n" {
                return Err("a reply that ends otherwise than they do");
            }
            let (reply, piece) = bytes[rest..rest + length].split_at(reply);
            return Ok(Ok((Answer::Called(reply.to_vec(), piece.to_vec()), whole)));
        }
        (Touch, b"HD") | (Delete, b"HD") => Answer::Yes(true),
        (Touch, b"EN") | (Delete, b"NF") => Answer::Yes(false),
        (Flush, b"OK") => Answer::Yes(true),
        (Version, b"VERSION") => Answer::Text(String::from_utf8_lossy(line.get(8..).unwrap_or_default()).into_owned()),
        (Call, _) => return Err("an answer to another question"),
        (_, b"HD") if is_store(operation) => {
            let version = words.find_map(|word| word.strip_prefix(b"c")).map_or(Some(0), number);
            Answer::Stored(Stored::Yes(version.ok_or("a version that is none")?))
        }
        (_, b"NS") if is_store(operation) => Answer::Stored(Stored::NotStored),
        (_, b"EX") if is_store(operation) => Answer::Stored(Stored::Exists),
        (_, b"NF") if is_store(operation) => Answer::Stored(Stored::NotFound),
        _ => return Err("an answer to another question"),
    };
    Ok(Ok((answer, rest)))
}

fn is_error(code: &[u8]) -> bool {
    matches!(code, b"ERROR" | b"CLIENT_ERROR" | b"SERVER_ERROR")
}

/// Returns whether it has data.
pub(super) fn is_store(operation: Operation) -> bool {
    use Operation::{Add, Append, Call, Cas, Prepend, Replace, Set};
    matches!(operation, Set | Add | Replace | Append | Prepend | Cas | Call)
}

fn number(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn stats(bytes: &[u8]) -> Result<Result<(Answer, usize), usize>, Nonsense> {
    let (mut stats, mut at) = (Vec::new(), 0);
    while let Some(end) = memchr::memchr(b'\n', &bytes[at..]) {
        let line = String::from_utf8_lossy(bytes[at..at + end].strip_suffix(b"\r").unwrap_or(&bytes[at..at + end]));
        at += end + 1;
        match line.split_once(' ') {
            Some(("STAT", rest)) => {
                let (name, value) = rest.split_once(' ').unwrap_or((rest, ""));
                stats.push((name.to_owned(), value.to_owned()));
            }
            // The answer to `stats reset`, and to statistics that are none.
            None if line == "END" || line == "RESET" => return Ok(Ok((Answer::Stats(stats), at))),
            _ if is_error(line.split(' ').next().unwrap_or_default().as_bytes()) => {
                return Ok(Ok((Answer::Refused(line.into_owned()), at)));
            }
            _ => return Err("a line among statistics that is none"),
        }
    }
    if bytes.len() > STATS { Err("statistics without an end") } else { Ok(Err(bytes.len() + 1)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn debug(operation: Operation, bytes: &[u8]) -> String {
        match take(operation, bytes, 1000) {
            Ok(Ok((answer, len))) => format!("{answer:?} {len}"),
            Ok(Err(more)) => format!("more {more}"),
            Err(nonsense) => nonsense.to_owned(),
        }
    }

    #[test]
    fn answers_are_understood() {
        use Operation::{Call, Cas, Delete, Get, Incr, Set, Stats, Touch, Version};
        for (operation, bytes, answer) in [
            (Get, "VA 3 f5 c9\r\nabc\r\nrest", "Value(Some(Value(\"abc\", 3 bytes, version 9, socket))) 17"),
            (Get, "VA 3 f5", "more 8"),
            (Get, "VA 3 f5\r\nab", "more 14"),
            (Get, "VA 3\r\nabcde", "a value that ends otherwise than they do"),
            (Get, "VA 1001\r\n", "a longer value than there is"),
            (Get, "EN\r\n", "Value(None) 4"),
            (Get, "HD\r\n", "an answer to another question"),
            (Set, "HD c12\r\n", "Stored(Yes(12)) 8"),
            (Cas, "EX c0\r\n", "Stored(Exists) 7"),
            (Set, "SERVER_ERROR out of memory\r\n", "Refused(\"SERVER_ERROR out of memory\") 28"),
            (Delete, "NF\r\n", "Yes(false) 4"),
            (Touch, "HD\r\n", "Yes(true) 4"),
            (Incr, "VA 2 c7\r\n12\r\n", "Number(Some(12)) 13"),
            (Incr, "NF\r\n", "Number(None) 4"),
            (Version, "VERSION 1.6.18\r\n", "Text(\"1.6.18\") 16"),
            (Stats, "STAT a b c\r\nSTAT d 1\r\nEND\r\nx", "Stats([(\"a\", \"b c\"), (\"d\", \"1\")]) 27"),
            (Stats, "STAT a b", "more 9"),
            (Call, "MX 5 2\r\nabcde\r\nMX", "Called([97, 98], [99, 100, 101]) 15"),
            (Call, "MX 5 2\r\nabcde", "more 15"),
            (Call, "MX 2 3\r\nab\r\n", "a reply without a length"),
            (Call, "MX 2000 2\r\n", "a longer reply than there is"),
            (Call, "HD\r\n", "an answer to another question"),
        ] {
            assert_eq!(debug(operation, bytes.as_bytes()), answer, "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn noise_is_no_answer_or_one_but_never_a_panic(noise in "(VA|HD|EN|MX|STAT|END|ms| |[0-9]|\r\n|c|f|.){0,30}") {
            use Operation::{Call, Get, Incr, Set, Stats, Version};
            for operation in [Get, Set, Stats, Incr, Version, Call] {
                if let Ok(Ok((_, len))) = take(operation, noise.as_bytes(), 100) {
                    prop_assert!(len <= noise.len());
                }
            }
        }
    }
}
