//! The binary protocol: a header of 24 bytes, extras, key, value.

use super::{Answer, Ask, Codec, HEAD_MAX, Head, InFlight, Nonsense, Op};
use crate::outgoing::Outgoing;

const HEADER: usize = 24;
const GET: u8 = 0;
const SET: u8 = 1;

#[inline]
pub(super) fn put(codec: &Codec<'_>, ask: &Ask, out: &mut Outgoing) {
    let (code, extras, place) = match ask.op {
        // A plan with scans is refused: there is no request for several keys.
        Op::Get | Op::Scan => (GET, 0, 0..0),
        Op::Set => (SET, 8, codec.values.place(ask.key)),
    };
    let key_len = codec.names.key_len();
    let mut header = [0; HEADER + 8];
    header[..2].copy_from_slice(&[0x80, code]);
    header[2..4].copy_from_slice(&(key_len as u16).to_be_bytes());
    header[4] = extras as u8;
    header[8..12].copy_from_slice(&((extras + key_len + place.len()) as u32).to_be_bytes());
    out.bytes.extend_from_slice(&header[..HEADER + extras]);
    codec.names.put(ask.key, &mut out.bytes);
    out.put(place, codec.values.pattern());
}

fn lengths(bytes: &[u8]) -> (usize, usize, usize) {
    let body = u32::from_be_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]);
    (usize::from(u16::from_be_bytes([bytes[2], bytes[3]])), usize::from(bytes[4]), body as usize)
}

/// The head is the header, with the extras and the key; of an error or of noise, all that may be shown.
pub(super) fn head_len(bytes: &[u8]) -> Option<usize> {
    // Noise need not be complete to be known.
    if bytes.first().is_some_and(|&first| first != 0x81) {
        return Some(bytes.len().min(HEADER));
    }
    let header = bytes.get(..HEADER)?;
    let (key, extras, body) = lengths(header);
    let failed = header[6..8] != [0, 0];
    let more = if failed { body.min(HEAD_MAX - HEADER) } else { (key + extras).min(HEAD_MAX - HEADER) };
    (bytes.len() >= HEADER + more).then_some(HEADER + more)
}

pub(super) fn head(
    head: &[u8],
    asked: &InFlight,
    codec: &Codec<'_>,
    error: &mut Option<String>,
) -> Result<Head, Nonsense> {
    let awaited = match asked.ask.op {
        Op::Get | Op::Scan => "a binary answer to get",
        Op::Set => "a binary answer to set",
    };
    let wrong = || Nonsense::new(awaited, head);
    if head.len() < HEADER || head[0] != 0x81 || head[1] != if asked.ask.op == Op::Set { SET } else { GET } {
        return Err(wrong());
    }
    let (key, extras, body) = lengths(head);
    let status = u16::from_be_bytes([head[6], head[7]]);
    if status != 0 && body != head.len() - HEADER {
        return Err(wrong());
    }
    match (status, asked.ask.op) {
        (0, Op::Get | Op::Scan) if key == 0 && extras == 4 && body >= extras => {
            let len = body - extras;
            // No key comes back: the value shows its key.
            let right = !codec.verify || len <= codec.values.pattern().len();
            Ok(Head::Value { key: asked.ask.key, len, tail: b"", right, more: false })
        }
        (0, Op::Set) if body == 0 => Ok(Head::Done(Answer::Stored)),
        (1, Op::Get | Op::Scan) => Ok(Head::Done(Answer::Miss)),
        // Too large, out of memory, busy, for now not possible.
        (3 | 0x82 | 0x85 | 0x86, _) => {
            *error = Some(head[HEADER..].escape_ascii().to_string());
            Ok(Head::Done(Answer::Error))
        }
        _ => Err(wrong()),
    }
}
