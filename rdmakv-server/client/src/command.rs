//! A request to a server, as a line of the meta protocol or, where that has no word for it, of the text protocol. Over sockets and
//! over fabrics it is the same line.

use super::error::{Error, Operation};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rdmakv_proto::item::KEY_MAX;
use std::io::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// When a value ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Expire {
    /// Never; it may still be evicted.
    #[default]
    Never,
    /// So long after the server has it, in whole seconds, rounded up.
    In(Duration),
    /// Then, by the server's clock, in whole seconds.
    At(SystemTime),
}

impl From<Duration> for Expire {
    fn from(after: Duration) -> Self {
        Self::In(after)
    }
}

/// Seconds up to which memcached takes a number as seconds from now.
const RELATIVE: u64 = 60 * 60 * 24 * 30;
/// The last second that it can say.
const LAST: u64 = i32::MAX as u64;

impl Expire {
    /// Returns the second since 1970 at which it ends; 0 is never.
    pub(super) fn unix_seconds(self) -> u64 {
        match self.number() {
            0 => 0,
            // It is over already.
            ..0 => 1,
            after if after as u64 <= RELATIVE => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
                now.saturating_add(after as u64)
            }
            at => at as u64,
        }
    }

    /// As the protocol has it.
    pub(super) fn number(self) -> i64 {
        let unix = |at: SystemTime| at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        match self {
            Self::Never => 0,
            Self::In(Duration::ZERO) => -1,
            Self::In(after) => {
                let seconds = after.as_secs().saturating_add(u64::from(after.subsec_nanos() > 0));
                let number =
                    if seconds <= RELATIVE { seconds } else { unix(SystemTime::now()).saturating_add(seconds) };
                number.min(LAST) as i64
            }
            // A time before the first month of 1970 is over.
            Self::At(at) => match unix(at) {
                0..=RELATIVE => -1,
                seconds => seconds.min(LAST) as i64,
            },
        }
    }
}

/// The terms that are stored with a value.
///
/// ```
/// use rdmakv_client::{Expire, Terms};
/// use std::time::Duration;
///
/// assert_eq!(Terms::from(Duration::from_secs(60)), Terms { expire: Expire::In(Duration::from_secs(60)), flags: 0 });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Terms {
    /// When it ends.
    pub expire: Expire,
    /// The application's own; many clients keep in them what kind of value it is.
    pub flags: u32,
}

impl From<Expire> for Terms {
    fn from(expire: Expire) -> Self {
        Self { expire, flags: 0 }
    }
}

impl From<Duration> for Terms {
    fn from(after: Duration) -> Self {
        Expire::In(after).into()
    }
}

impl From<()> for Terms {
    fn from((): ()) -> Self {
        Self::default()
    }
}

/// The arguments of an operation beside its key and data.
#[derive(Clone, Debug, Default)]
pub(super) struct Arguments {
    pub(super) terms: Terms,
    /// The version that `cas` compares with.
    pub(super) version: u64,
    /// The step of `incr` and `decr`; seconds of a `flush`; the bytes of a call that are not its piece's.
    pub(super) number: u64,
    /// The kind of statistics.
    pub(super) word: String,
}

/// The line of an operation, with its end. Data of `length` bytes, and another end, follow where the operation has data.
pub(super) fn line(operation: Operation, key: &[u8], arguments: &Arguments, length: usize, into: &mut Vec<u8>) {
    use Operation::{
        Add, Append, Call, Cas, Decr, Delete, Flush, Gat, Get, Incr, Prepend, Replace, Set, Stats, Touch, Version,
    };
    let Arguments { terms, version, number, word } = arguments;
    match operation {
        Stats => {
            into.extend_from_slice(b"stats");
            if !word.is_empty() {
                into.push(b' ');
                into.extend_from_slice(word.as_bytes());
            }
            return into.extend_from_slice(b"\r\n");
        }
        Version => return into.extend_from_slice(b"version\r\n"),
        Flush => return put(into, format_args!("flush_all {number}\r\n")),
        _ => {}
    }
    into.extend_from_slice(match operation {
        Get | Gat | Touch => b"mg ",
        Delete => b"md ",
        Call => b"mx ",
        Incr | Decr => b"ma ",
        _ => b"ms ",
    });
    let binary = !is_text(key);
    if binary {
        into.extend_from_slice(STANDARD.encode(key).as_bytes());
    } else {
        into.extend_from_slice(key);
    }
    let expire = terms.expire.number();
    match operation {
        Get => into.extend_from_slice(b" v f c"),
        Gat => put(into, format_args!(" v f c T{expire}")),
        Touch => put(into, format_args!(" T{expire}")),
        Delete => {}
        Call => put(into, format_args!(" {length} {number}")),
        Incr => put(into, format_args!(" v c MI D{number}")),
        Decr => put(into, format_args!(" v c MD D{number}")),
        _ => {
            put(into, format_args!(" {length} c T{expire} F{}", terms.flags));
            match operation {
                Add => into.extend_from_slice(b" ME"),
                Replace => into.extend_from_slice(b" MR"),
                Append => into.extend_from_slice(b" MA"),
                Prepend => into.extend_from_slice(b" MP"),
                Cas => put(into, format_args!(" C{version}")),
                _ => debug_assert_eq!(operation, Set),
            }
        }
    }
    into.extend_from_slice(if binary { b" b\r\n" } else { b"\r\n" });
}

fn put(into: &mut Vec<u8>, what: std::fmt::Arguments<'_>) {
    // Writing to a vector does not fail.
    let _ = into.write_fmt(what);
}

/// Returns whether the key can stand in a line as it is.
fn is_text(key: &[u8]) -> bool {
    key.iter().all(|&byte| byte > b' ' && byte != 127)
}

/// Whether it is a key.
pub(super) fn check_key(operation: Operation, key: &[u8]) -> Result<(), Error> {
    let wrong = |what| Err(Error::Key { operation, key: key[..key.len().min(KEY_MAX)].to_vec(), what });
    match key.len() {
        0 => wrong("a key has at least one byte"),
        // As base64, it has to be no longer than a key either.
        187.. if !is_text(key) && key.len() <= KEY_MAX => {
            wrong("a key with spaces or control characters has at most 186 bytes: make it shorter, or take them out")
        }
        251.. => wrong("a key has at most 250 bytes: make it shorter, by a hash if need be"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(operation: Operation, key: &[u8], arguments: &Arguments, length: usize) -> String {
        let mut bytes = Vec::new();
        line(operation, key, arguments, length, &mut bytes);
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn operations_are_lines() {
        let arguments = Arguments {
            terms: Terms { expire: Expire::In(Duration::from_millis(1500)), flags: 9 },
            version: 7,
            number: 3,
            word: "items".into(),
        };
        for (operation, length, line) in [
            (Operation::Get, 0, "mg k v f c\r\n"),
            (Operation::Gat, 0, "mg k v f c T2\r\n"),
            (Operation::Touch, 0, "mg k T2\r\n"),
            (Operation::Set, 5, "ms k 5 c T2 F9\r\n"),
            (Operation::Add, 5, "ms k 5 c T2 F9 ME\r\n"),
            (Operation::Cas, 5, "ms k 5 c T2 F9 C7\r\n"),
            (Operation::Delete, 0, "md k\r\n"),
            (Operation::Decr, 0, "ma k v c MD D3\r\n"),
            (Operation::Stats, 0, "stats items\r\n"),
            (Operation::Flush, 0, "flush_all 3\r\n"),
            (Operation::Call, 9, "mx k 9 3\r\n"),
        ] {
            assert_eq!(said(operation, b"k", &arguments, length), line);
        }
        assert_eq!(said(Operation::Delete, b"a b", &arguments, 0), "md YSBi b\r\n");
    }

    #[test]
    fn ends_are_what_memcached_takes_them_for() {
        let day = Duration::from_secs(86400);
        assert_eq!(Expire::Never.number(), 0);
        assert_eq!(Expire::In(Duration::ZERO).number(), -1);
        assert_eq!(Expire::In(Duration::from_nanos(1)).number(), 1);
        assert_eq!(Expire::In(day * 30).number(), 30 * 86400);
        // Longer than a month is a date.
        assert!(Expire::In(day * 31).number() > 1_700_000_000);
        assert_eq!(Expire::In(Duration::MAX).number(), i64::from(i32::MAX));
        assert_eq!(Expire::At(UNIX_EPOCH + day).number(), -1);
        assert_eq!(Expire::At(UNIX_EPOCH + day * 40).number(), 40 * 86400);
        assert_eq!((Expire::Never.unix_seconds(), Expire::In(Duration::ZERO).unix_seconds()), (0, 1));
        assert_eq!(Expire::At(UNIX_EPOCH + day * 40).unix_seconds(), 40 * 86400);
        assert!(Expire::In(Duration::from_secs(9)).unix_seconds() > 1_700_000_000);
    }

    #[test]
    fn what_is_no_key_is_refused_here() {
        let check = |key: &[u8]| check_key(Operation::Get, key).is_ok();
        assert!(check(b"k") && check(&[b'k'; 250]) && check(&[0; 186]));
        assert!(!check(b"") && !check(&[b'k'; 251]) && !check(&[0; 187]) && !check(&[0; 300]));
    }
}
