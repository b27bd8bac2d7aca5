//! `mg` and `ms`.

use super::{Answer, Ask, Codec, Head, InFlight, Nonsense, Op, number, put_line_and_value};
use crate::outgoing::Outgoing;

#[inline]
pub(super) fn put(codec: &Codec<'_>, ask: &Ask, out: &mut Outgoing) {
    match ask.op {
        // A plan with scans is refused: there is no request for several keys.
        Op::Get | Op::Scan => {
            out.bytes.extend_from_slice(b"mg ");
            codec.names.put(ask.key, &mut out.bytes);
            // The key comes back only where it is looked at.
            out.bytes.extend_from_slice(if codec.verify { b" k v\r\n" } else { b" v\r\n" });
        }
        Op::Set => put_line_and_value(codec, ask.key, out, (b"ms ", b" ")),
    }
}

pub(super) fn head(line: &[u8], asked: &InFlight, codec: &Codec<'_>) -> Result<Head, Nonsense> {
    match asked.ask.op {
        Op::Set if is(line, b"HD") => Ok(Head::Done(Answer::Stored)),
        Op::Set => Err(Nonsense::new("HD", line)),
        Op::Get | Op::Scan if is(line, b"EN") => Ok(Head::Done(Answer::Miss)),
        Op::Get | Op::Scan => {
            let wrong = || Nonsense::new("VA or EN", line);
            let mut words = line.strip_prefix(b"VA ").ok_or_else(wrong)?.split(|&byte| byte == b' ');
            let len = words.next().and_then(number).ok_or_else(wrong)?;
            let right = !codec.verify
                || words.any(|flag| flag.first() == Some(&b'k') && codec.is_key(asked.ask.key, &flag[1..]));
            Ok(Head::Value { key: asked.ask.key, len, tail: b"\r\n", right, more: false })
        }
    }
}

/// Returns whether the line has this code; some servers let flags come back with it.
fn is(line: &[u8], code: &[u8]) -> bool {
    line.strip_prefix(code).is_some_and(|rest| rest.is_empty() || rest[0] == b' ')
}
