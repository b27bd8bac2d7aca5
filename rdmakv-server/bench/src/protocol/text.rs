//! `get` and `set`.

use super::{Answer, Ask, Codec, Head, InFlight, Nonsense, Op, number, put_line_and_value};
use crate::outgoing::Outgoing;

#[inline]
pub(super) fn put(codec: &Codec<'_>, ask: &Ask, out: &mut Outgoing) {
    match ask.op {
        Op::Get => {
            out.bytes.extend_from_slice(b"get ");
            codec.names.put(ask.key, &mut out.bytes);
            out.bytes.extend_from_slice(b"\r\n");
        }
        Op::Scan => {
            out.bytes.extend_from_slice(b"get");
            for key in ask.key..ask.key + u64::from(ask.keys) {
                out.bytes.push(b' ');
                codec.names.put(key, &mut out.bytes);
            }
            out.bytes.extend_from_slice(b"\r\n");
        }
        Op::Set => put_line_and_value(codec, ask.key, out, (b"set ", b" 0 0 ")),
    }
}

pub(super) fn head(line: &[u8], asked: &InFlight, codec: &Codec<'_>, found: u16) -> Result<Head, Nonsense> {
    let ask = &asked.ask;
    match ask.op {
        Op::Set if line == b"STORED" => Ok(Head::Done(Answer::Stored)),
        Op::Set => Err(Nonsense::new("STORED", line)),
        Op::Get if line == b"END" => Ok(Head::Done(Answer::Miss)),
        Op::Scan if line == b"END" => Ok(Head::EndOfScan),
        Op::Get | Op::Scan => {
            let wrong = || Nonsense::new("VALUE or END", line);
            let mut words = line.strip_prefix(b"VALUE ").ok_or_else(wrong)?.split(|&byte| byte == b' ');
            let (key, _flags) = (words.next(), words.next());
            let len = words.next().and_then(number).ok_or_else(wrong)?;
            if ask.op == Op::Get {
                let right = !codec.verify || key.is_some_and(|key| codec.is_key(ask.key, key));
                return Ok(Head::Value { key: ask.key, len, tail: b"\r\nEND\r\n", right, more: false });
            }
            if found >= ask.keys {
                return Err(Nonsense::new("END", line));
            }
            let asked_for = ask.key..ask.key + u64::from(ask.keys);
            let key = key.and_then(|key| codec.names.number_of(key)).filter(|key| asked_for.contains(key));
            Ok(Head::Value { key: key.unwrap_or(ask.key), len, tail: b"\r\n", right: key.is_some(), more: true })
        }
    }
}
