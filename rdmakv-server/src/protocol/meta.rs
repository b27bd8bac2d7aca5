//! Meta commands: two letters, a key, and flags of one letter each, some with a token.

use super::text::Fault;
use super::{BAD_FORMAT, number, number32, words};
use crate::store::{KEY_MAX, Mode};

/// A key, decoded if it came as base64.
#[derive(Clone, Copy)]
pub struct Key {
    bytes: [u8; KEY_MAX],
    len: u8,
    /// Whether it came, and goes back, as base64.
    pub binary: bool,
}

impl Key {
    /// The key itself.
    pub fn get(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    fn new(word: &[u8], binary: bool) -> Result<Self, &'static str> {
        let mut key = Self { bytes: [0; KEY_MAX], len: 0, binary };
        if word.len() > KEY_MAX {
            return Err(BAD_FORMAT);
        }
        key.len = if binary {
            decode(word, &mut key.bytes).ok_or("CLIENT_ERROR error decoding key")? as u8
        } else {
            key.bytes[..word.len()].copy_from_slice(word);
            word.len() as u8
        };
        Ok(key)
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(self.get()))
    }
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn decode(text: &[u8], into: &mut [u8; KEY_MAX]) -> Option<usize> {
    if text.is_empty() || !text.len().is_multiple_of(4) {
        return None;
    }
    let pad = text.iter().rev().take_while(|&&byte| byte == b'=').count();
    if pad > 2 {
        return None;
    }
    let mut len = 0;
    for four in text.chunks_exact(4) {
        let mut bits = 0_u32;
        for &byte in four {
            let six = if byte == b'=' { 0 } else { ALPHABET.iter().position(|&letter| letter == byte)? as u32 };
            bits = bits << 6 | six;
        }
        into.get_mut(len..len + 3)?.copy_from_slice(&bits.to_be_bytes()[1..]);
        len += 3;
    }
    // Padding stands at the end only.
    (text[..text.len() - pad].iter().all(|&byte| byte != b'=')).then_some(len - pad)
}

/// The key as base64, appended.
pub fn encode(key: &[u8], out: &mut Vec<u8>) {
    for three in key.chunks(3) {
        let bits = three.iter().fold(0_u32, |bits, &byte| bits << 8 | u32::from(byte)) << (8 * (3 - three.len()));
        for at in 0..4 {
            let six = (bits >> (18 - 6 * at) & 63) as usize;
            out.push(if at <= three.len() { ALPHABET[six] } else { b'=' });
        }
    }
}

/// A meta command: `g`, `s`, `d` or `a`.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// Its second letter.
    pub command: u8,
    /// The key.
    pub key: Key,
    /// The key as it came.
    pub sent_key: &'a [u8],
    /// Bytes of data that follow (`ms`).
    pub len: usize,
    /// The flags as they came, for an answer in their order.
    pub flags: &'a [u8],
    /// What they say.
    pub options: Options,
}

/// What the flags say.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// The flag `v`.
    pub value: bool,
    /// The flag `q`.
    pub quiet: bool,
    /// The flag `u`.
    pub no_bump: bool,
    /// The flag `I`.
    pub invalidate: bool,
    /// The flag `C`.
    pub cas: Option<u64>,
    /// The flag `F`.
    pub client_flags: u32,
    /// The flag `T`.
    pub ttl: Option<i64>,
    /// The flag `N`.
    pub vivify: Option<i64>,
    /// The flag `R`.
    pub recache: Option<i64>,
    /// The flag `J`.
    pub initial: u64,
    /// The flag `D`.
    pub delta: Option<u64>,
    /// The flag `M`, of `ms`.
    pub mode: Mode,
    /// The flag `M`, of `ma`.
    pub down: bool,
}

/// A line that starts with this command.
pub(super) fn parse(command: u8, line: &[u8]) -> Result<Request<'_>, Fault> {
    let mut all = words(line);
    all.next();
    let sent_key = all.next().ok_or("ERROR")?;
    if sent_key.len() > KEY_MAX {
        return Err(BAD_FORMAT.into());
    }
    let len = match command {
        b's' => {
            all.next().and_then(number::<u32>).filter(|&len| len <= i32::MAX as u32 - 2).ok_or(BAD_FORMAT)? as usize
        }
        _ => 0,
    };
    // From here on the data is known to follow, and goes with the error.
    let drop = if command == b's' { len + 2 } else { 0 };
    let flags = {
        let mut rest = line.trim_ascii_start();
        for _ in 0..if command == b's' { 3 } else { 2 } {
            let end = memchr::memchr(b' ', rest).unwrap_or(rest.len());
            rest = rest[end..].trim_ascii_start();
        }
        rest.trim_ascii_end()
    };
    let parsed = options(command, flags).and_then(|(options, binary)| Ok((options, Key::new(sent_key, binary)?)));
    let (options, key) = parsed.map_err(|line| Fault { line, drop })?;
    Ok(Request { command, key, sent_key, len, flags, options })
}

fn options(command: u8, flags: &[u8]) -> Result<(Options, bool), &'static str> {
    const BAD_TOKEN: &str = "CLIENT_ERROR bad token in command line format";
    let allowed: &[u8] = match command {
        b'g' => b"bcfhklOqstuvNRTPLE",
        b's' => b"bcCFIkOqTMPL",
        b'd' => b"bCIkOqTPLx",
        _ => b"bCNJDTMqtcvkOPL",
    };
    let (mut options, mut binary, mut seen) = (Options::default(), false, 0_u128);
    if words(flags).count() > 24 {
        return Err("CLIENT_ERROR options flags are too long");
    }
    for flag in words(flags) {
        let (letter, token) = (flag[0], &flag[1..]);
        if !allowed.contains(&letter) {
            return Err("CLIENT_ERROR invalid flag");
        }
        if seen >> letter & 1 == 1 {
            return Err("CLIENT_ERROR duplicate flag");
        }
        seen |= 1 << letter;
        let ttl = || {
            let (sign, digits) = token.strip_prefix(b"-").map_or((1, token), |digits| (-1, digits));
            number::<u32>(digits).map(|seconds| sign * i64::from(seconds)).ok_or(BAD_TOKEN)
        };
        match letter {
            b'b' => binary = true,
            b'v' => options.value = true,
            b'q' => options.quiet = true,
            b'u' => options.no_bump = true,
            b'I' => options.invalidate = true,
            b'C' => options.cas = Some(number(token).ok_or(BAD_TOKEN)?),
            b'F' => options.client_flags = number32(token).ok_or(BAD_FORMAT)?,
            b'T' => options.ttl = Some(ttl()?),
            b'N' => options.vivify = Some(ttl()?),
            b'R' => options.recache = Some(ttl()?),
            b'J' => options.initial = number(token).ok_or("CLIENT_ERROR invalid numeric initial value")?,
            b'D' => options.delta = Some(number(token).ok_or("CLIENT_ERROR invalid numeric delta value")?),
            b'O' if token.len() > 32 => return Err("CLIENT_ERROR opaque token too long"),
            b'M' if token.len() != 1 => return Err("CLIENT_ERROR incorrect length for M token"),
            b'M' if command == b's' => {
                options.mode = match token[0].to_ascii_uppercase() {
                    b'E' => Mode::Add,
                    b'A' => Mode::Append,
                    b'P' => Mode::Prepend,
                    b'R' => Mode::Replace,
                    b'S' => Mode::Set,
                    _ => return Err("CLIENT_ERROR invalid mode for ms M token"),
                };
            }
            b'M' => {
                options.down = match token[0] {
                    b'I' | b'i' | b'+' => false,
                    b'D' | b'd' | b'-' => true,
                    _ => return Err("CLIENT_ERROR invalid mode for ma M token"),
                };
            }
            _ => {}
        }
    }
    Ok((options, binary))
}

/// `me KEY [b]`.
pub(super) fn debug(line: &[u8]) -> Result<Key, Fault> {
    let mut words = words(line);
    words.next();
    let key = words.next().ok_or(BAD_FORMAT)?;
    Ok(Key::new(key, words.next() == Some(b"b"))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::text::{self, Request as Text};
    use proptest::prelude::*;

    fn fault(line: &str) -> (&'static str, usize) {
        let fault = text::parse(line.as_bytes()).unwrap_err();
        (fault.line, fault.drop)
    }

    /// The lines are those that memcached 1.6.18 answers; after a length, the data goes with the error.
    #[test]
    fn wrong_flags_get_memcacheds_own_answers() {
        assert_eq!(fault("mg a x"), ("CLIENT_ERROR invalid flag", 0));
        assert_eq!(fault("mg a v !"), ("CLIENT_ERROR invalid flag", 0));
        assert_eq!(fault("mg a b"), ("CLIENT_ERROR error decoding key", 0));
        assert_eq!(fault("ms a 2 S5"), ("CLIENT_ERROR invalid flag", 4));
        assert_eq!(fault("ms a 2 MZ"), ("CLIENT_ERROR invalid mode for ms M token", 4));
        assert_eq!(fault("ms a 2 Fx"), (BAD_FORMAT, 4));
        assert_eq!(fault("ms a 2 Tx"), ("CLIENT_ERROR bad token in command line format", 4));
        assert_eq!(fault("ma a MX"), ("CLIENT_ERROR invalid mode for ma M token", 0));
        assert_eq!(fault(&format!("mg a O{}", "x".repeat(33))), ("CLIENT_ERROR opaque token too long", 0));
        assert_eq!(fault(&format!("ms {} 2", "k".repeat(251))), (BAD_FORMAT, 0));
    }

    #[test]
    fn flags_are_understood_and_kept_in_their_order() {
        let Ok(Text::Meta(request)) = text::parse(b"ms YWI= 2 c b k F5 T30 C7 I ME") else { panic!() };
        assert_eq!((request.key.get(), request.len, request.flags), (&b"ab"[..], 2, &b"c b k F5 T30 C7 I ME"[..]));
        let options = request.options;
        assert_eq!((options.client_flags, options.ttl, options.cas), (5, Some(30), Some(7)));
        assert!(options.invalidate && options.mode == Mode::Add);
    }

    proptest! {
        #[test]
        fn a_binary_key_comes_back_as_it_went(key in prop::collection::vec(any::<u8>(), 1..180)) {
            let mut text = Vec::new();
            encode(&key, &mut text);
            let mut bytes = [0; KEY_MAX];
            let len = decode(&text, &mut bytes);
            prop_assert_eq!(len.map(|len| &bytes[..len]), Some(&key[..]));
        }
    }
}
