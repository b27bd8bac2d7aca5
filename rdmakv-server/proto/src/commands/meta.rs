//! Meta commands: two letters, a key, and flags of one letter each, some with a token.

use super::{BAD_FORMAT, Fault, Mode, number, number32, rest, signed32, words};
use crate::item::KEY_MAX;

/// A key, decoded if it came as base64.
#[derive(Clone, Copy)]
pub struct Key {
    bytes: [u8; KEY_MAX],
    len: u8,
    /// Whether it came, and goes back, as base64.
    pub binary: bool,
}

impl Key {
    /// Returns the key itself.
    pub fn get(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    pub(super) fn new(word: &[u8], binary: bool) -> Result<Self, &'static str> {
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
    /// The options.
    pub options: Options,
}

/// The options that the flags give.
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
    /// The flag `E`.
    pub version: Option<u64>,
    /// The flag `x`.
    pub empty: bool,
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

/// Returns a line that starts with this command.
pub(super) fn parse(command: u8, line: &[u8]) -> Result<Request<'_>, Fault> {
    let mut all = words(line);
    all.next();
    let sent_key = all.next().ok_or("ERROR")?;
    if sent_key.len() > KEY_MAX {
        return Err(BAD_FORMAT.into());
    }
    let len = match command {
        b's' => {
            all.next().and_then(signed32).filter(|len| (0..=i32::MAX - 2).contains(len)).ok_or(BAD_FORMAT)? as usize
        }
        _ => 0,
    };
    // From here on the data is known to follow, and goes with the error.
    let drop = if command == b's' { len + 2 } else { 0 };
    let flags = rest(line, if command == b's' { 3 } else { 2 });
    let fault = |line| Fault { line, drop };
    let (options, key) = options(command, flags, sent_key).map_err(fault)?;
    let mut request = Request { command, key, sent_key, len, flags, options };
    request.look_closer().map_err(fault)?;
    Ok(request)
}

/// Returns the options of the flags, as far as they are read before the command is looked at. Every flag is known to
/// every command, and most mean something to some of them only. A flag that is not known, or comes twice, ends it; of
/// what else is wrong the last one is told.
fn options(command: u8, flags: &[u8], sent_key: &[u8]) -> Result<(Options, Key), &'static str> {
    const BAD_TOKEN: &str = "CLIENT_ERROR bad token in command line format";
    let (mut options, mut seen, mut wrong) = (Options::default(), 0_u128, None);
    let mut key = Key::new(sent_key, false)?;
    // Of these two commands memcached tells no more than that.
    let told = |line| if matches!(command, b'd' | b'a') { "CLIENT_ERROR invalid or duplicate flag" } else { line };
    if words(flags).count() > 24 {
        return Err("CLIENT_ERROR options flags are too long");
    }
    for flag in words(flags) {
        let (letter, token) = (flag[0], &flag[1..]);
        if letter < 127 && seen >> letter & 1 == 1 {
            return Err(told("CLIENT_ERROR duplicate flag"));
        }
        if !b"bcfhklqstuvxCDEFIJLMNOPRT".contains(&letter) {
            return Err(told(if letter < 127 { "CLIENT_ERROR invalid flag" } else { "CLIENT_ERROR duplicate flag" }));
        }
        seen |= 1 << letter;
        let ttl = || signed32(token).map(i64::from);
        let mut need = |good: bool, line| {
            if !good {
                wrong = Some(line);
            }
        };
        match letter {
            b'b' => match Key::new(sent_key, true) {
                Ok(decoded) => key = decoded,
                Err(line) => need(false, line),
            },
            b'v' => options.value = true,
            b'q' => options.quiet = true,
            b'u' => options.no_bump = true,
            b'I' => options.invalidate = true,
            b'x' => options.empty = true,
            b'E' => {
                options.version = number(token);
                need(options.version.is_some(), BAD_TOKEN);
            }
            b'C' => {
                options.cas = number(token);
                need(options.cas.is_some(), BAD_TOKEN);
            }
            b'T' => {
                options.ttl = ttl();
                need(options.ttl.is_some(), BAD_TOKEN);
            }
            b'N' => {
                options.vivify = ttl();
                need(options.vivify.is_some(), BAD_TOKEN);
            }
            b'R' => {
                options.recache = ttl();
                need(options.recache.is_some(), BAD_TOKEN);
            }
            b'J' => match number(token) {
                Some(initial) => options.initial = initial,
                None => need(false, "CLIENT_ERROR invalid numeric initial value"),
            },
            b'D' => {
                options.delta = number(token);
                need(options.delta.is_some(), "CLIENT_ERROR invalid numeric delta value");
            }
            b'F' => match number32(token) {
                Some(flags) => options.client_flags = flags,
                // It has no words of its own.
                None => wrong = wrong.or(Some(BAD_FORMAT)),
            },
            b'M' => need(token.len() == 1, "CLIENT_ERROR incorrect length for M token"),
            _ => {}
        }
    }
    match wrong {
        Some(line) => Err(told(line)),
        None => Ok((options, key)),
    }
}

impl Request<'_> {
    /// Checks the options that only some commands have.
    fn look_closer(&mut self) -> Result<(), &'static str> {
        for flag in words(self.flags) {
            let token = &flag[1..];
            match (flag[0], self.command) {
                (b'O', b'g' | b'd') if token.len() > OPAQUE_MAX => return Err(TOO_OPAQUE),
                (b'M', b's') => {
                    self.options.mode = match token {
                        b"E" => Mode::Add,
                        b"A" => Mode::Append,
                        b"P" => Mode::Prepend,
                        b"R" => Mode::Replace,
                        b"S" => Mode::Set,
                        _ => return Err("CLIENT_ERROR invalid mode for ms M token"),
                    };
                }
                (b'M', b'a') => {
                    self.options.down = match token {
                        b"I" | b"+" => false,
                        b"D" | b"-" => true,
                        _ => return Err("CLIENT_ERROR invalid mode for ma M token"),
                    };
                }
                _ => {}
            }
        }
        // With `ms` the mode is looked at first, and with `ma` what is to be counted.
        if self.command == b's' && self.is_too_opaque() { Err(TOO_OPAQUE) } else { Ok(()) }
    }

    /// Returns whether the opaque token is too long.
    pub fn is_too_opaque(&self) -> bool {
        words(self.flags).any(|flag| flag[0] == b'O' && flag.len() > 1 + OPAQUE_MAX)
    }
}

/// The answer to a longer one.
pub const TOO_OPAQUE: &str = "CLIENT_ERROR opaque token too long";
/// Bytes of an opaque token at most.
const OPAQUE_MAX: usize = 31;

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
    use crate::commands::text::{self, Request as Text};
    use proptest::prelude::*;

    fn fault(line: &str) -> (&'static str, usize) {
        let fault = text::parse(line.as_bytes()).unwrap_err();
        (fault.line, fault.drop)
    }

    /// The lines are those that memcached 1.6.18 answers; after a length, the data goes with the error.
    #[test]
    fn wrong_flags_get_memcacheds_own_answers() {
        assert_eq!(fault("mg a m"), ("CLIENT_ERROR invalid flag", 0));
        assert_eq!(fault("mg a Ex"), ("CLIENT_ERROR bad token in command line format", 0));
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
