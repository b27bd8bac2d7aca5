//! `mx` and `mp`: the lines by which clients and servers of a cluster speak to each other.
//!
//! ```text
//! mx KEY BODYLEN CALLLEN [b]     a body of BODYLEN bytes follows, then an end of line: CALLLEN bytes of a call, then its piece
//! MX BODYLEN REPLYLEN            the answer; its body has the same form, and an end of line
//! mp                             asks for the run of the server
//! MP RUN EPOCH NANOSECONDS right|none   the answer: 16 hexadecimal digits, its epoch, its time since 1970, whether it has a right
//! ```
//!
//! The layouts of calls and replies are those of `rdmakv_cluster::wire`. With `b` the key is base64. Without a cluster both are unknown
//! commands, but the body of `mx` is skipped.

use super::meta::Key;
use super::{BAD_FORMAT, Fault, digits, magnitude, words};

/// The line of a call.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// The key.
    pub key: Key,
    /// Bytes of the body.
    pub len: usize,
    /// Bytes of the call, with which the body begins.
    pub call_len: usize,
}

/// Returns a line that starts with `mx`.
pub(super) fn parse(line: &[u8]) -> Result<Request, Fault> {
    let mut words = words(line).skip(1);
    let mut next = || words.next().ok_or("ERROR");
    let (key, len, call_len) = (next()?, next()?, next()?);
    let len = length(len).ok_or(BAD_FORMAT)?;
    // From here on the body is known to follow, and goes with the error.
    let fault = |line| Fault { line, drop: len + 2 };
    let call_len = length(call_len).filter(|&call| call <= len).ok_or(fault(BAD_FORMAT))?;
    let binary = match (words.next(), words.next()) {
        (None, _) => false,
        (Some(b"b"), None) => true,
        _ => return Err(fault("CLIENT_ERROR invalid flag")),
    };
    let key = Key::new(key, binary).map_err(fault)?;
    Ok(Request { key, len, call_len })
}

/// Returns a length in digits alone.
fn length(word: &[u8]) -> Option<usize> {
    let (negative, digits) = digits(word)?;
    let length = magnitude(digits).filter(|_| !negative && digits.len() == word.len())?;
    (length <= i32::MAX as u64 - 2).then_some(length as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_taken_apart() {
        let request = parse(b"mx key 100 40").unwrap();
        assert_eq!((request.key.get(), request.len, request.call_len), (&b"key"[..], 100, 40));
        let request = parse(b"mx a2V5 40 40 b").unwrap();
        assert_eq!((request.key.get(), request.key.binary, request.len), (&b"key"[..], true, 40));
    }

    #[test]
    fn a_fault_drops_the_body_it_announced() {
        for (line, answer, drop) in [
            ("mx", "ERROR", 0),
            ("mx key 10", "ERROR", 0),
            ("mx key -1 0", BAD_FORMAT, 0),
            ("mx key x 0", BAD_FORMAT, 0),
            ("mx key 4294967296 0", BAD_FORMAT, 0),
            ("mx key 10 11", BAD_FORMAT, 12),
            ("mx key 10 +1", BAD_FORMAT, 12),
            ("mx key 10 5 q", "CLIENT_ERROR invalid flag", 12),
            ("mx key 10 5 b b", "CLIENT_ERROR invalid flag", 12),
            ("mx key 10 5 b", "CLIENT_ERROR error decoding key", 12),
        ] {
            assert_eq!(parse(line.as_bytes()).unwrap_err(), Fault { line: answer, drop }, "{line}");
        }
        let long = format!("mx {} 10 5", "k".repeat(251));
        assert_eq!(parse(long.as_bytes()).unwrap_err(), Fault { line: BAD_FORMAT, drop: 12 });
    }
}
