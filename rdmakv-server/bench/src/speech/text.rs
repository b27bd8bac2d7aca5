//! `get` and `set`.

use super::{Answer, Flying, Head, Nonsense, Op, Speech, number, put_line_and_value};
use crate::outgoing::Outgoing;

#[inline]
pub(super) fn put(speech: &Speech<'_>, op: Op, key: u64, out: &mut Outgoing) {
    match op {
        Op::Get => {
            out.bytes.extend_from_slice(b"get ");
            speech.names.put(key, &mut out.bytes);
            out.bytes.extend_from_slice(b"\r\n");
        }
        Op::Set => put_line_and_value(speech, key, out, (b"set ", b" 0 0 ")),
    }
}

pub(super) fn head(line: &[u8], asked: &Flying, speech: &Speech<'_>) -> Result<Head, Nonsense> {
    match asked.op {
        Op::Set if line == b"STORED" => Ok(Head::Done(Answer::Stored)),
        Op::Set => Err(Nonsense::new("STORED", line)),
        Op::Get if line == b"END" => Ok(Head::Done(Answer::Miss)),
        Op::Get => {
            let wrong = || Nonsense::new("VALUE or END", line);
            let mut words = line.strip_prefix(b"VALUE ").ok_or_else(wrong)?.split(|&byte| byte == b' ');
            let (key, _flags) = (words.next(), words.next());
            let len = words.next().and_then(number).ok_or_else(wrong)?;
            let right = !speech.verify || key.is_some_and(|key| speech.is_key(asked.key, key));
            Ok(Head::Value { len, tail: b"\r\nEND\r\n", right })
        }
    }
}
