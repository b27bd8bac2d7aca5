//! Classic commands: one line, and for the storage commands a block of data after it.

use super::{BAD_FORMAT, meta, number, number32, words};
use crate::store::{KEY_MAX, Mode};

/// A request. What it borrows is the line.
#[derive(Debug)]
pub enum Request<'a> {
    /// `get`, `gets`, `gat`, `gats`.
    Get {
        /// The keys, blanks between them; each short enough.
        keys: &'a [u8],
        /// Whether versions are asked for.
        cas: bool,
        /// The expiry to set, if this is `gat`.
        touch: Option<i64>,
    },
    /// The six storage commands. The data follows.
    Store {
        /// Which of them.
        mode: Mode,
        /// The key.
        key: &'a [u8],
        /// The client's flags.
        flags: u32,
        /// The expiry as sent.
        exptime: i64,
        /// Bytes of the data.
        len: usize,
        /// The version, if this is `cas`.
        cas: Option<u64>,
        /// Without an answer.
        quiet: bool,
    },
    /// `delete`.
    Delete {
        /// The key.
        key: &'a [u8],
        /// Without an answer.
        quiet: bool,
    },
    /// `incr`, `decr`.
    Add {
        /// The key.
        key: &'a [u8],
        /// Whether it is `incr`.
        up: bool,
        /// By how much.
        by: u64,
        /// Without an answer.
        quiet: bool,
    },
    /// `touch`.
    Touch {
        /// The key.
        key: &'a [u8],
        /// The expiry as sent.
        exptime: i64,
        /// Without an answer.
        quiet: bool,
    },
    /// `flush_all`.
    Flush {
        /// When.
        delay: i64,
        /// Without an answer.
        quiet: bool,
    },
    /// `verbosity`.
    Verbosity {
        /// The level.
        level: u32,
        /// Without an answer.
        quiet: bool,
    },
    /// `stats`, and what stands after it.
    Stats(&'a [u8]),
    /// `slabs reassign`: from (-1 is any), to.
    Reassign(i32, i32),
    /// `slabs automove`.
    Automove(u32),
    /// `lru`, well formed: what of it means something here is nothing.
    Lru,
    /// `lru_crawler`, and what stands after it.
    Crawler(&'a [u8]),
    /// `cache_memlimit`, in megabytes.
    MemLimit {
        /// Megabytes.
        megabytes: u64,
        /// Without an answer.
        quiet: bool,
    },
    /// `watch`.
    Watch(&'a [u8]),
    /// `shutdown`, or `shutdown graceful`.
    Shutdown {
        /// Whether clients may end what they do first.
        graceful: bool,
    },
    /// `version`.
    Version,
    /// `quit`.
    Quit,
    /// `refresh_certs`.
    RefreshCerts,
    /// A meta command.
    Meta(meta::Request<'a>),
    /// `mn`.
    MetaNoop,
    /// `me`.
    MetaDebug(meta::Key),
}

/// What is wrong with a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The error line, without its end.
    pub line: &'static str,
    /// Bytes of data that follow the line and are to be dropped.
    pub drop: usize,
}

impl From<&'static str> for Fault {
    fn from(line: &'static str) -> Self {
        Self { line, drop: 0 }
    }
}

const ERROR: &str = "ERROR";
const BAD_EXPTIME: &str = "CLIENT_ERROR invalid exptime argument";

fn key(word: &[u8]) -> Result<&[u8], Fault> {
    if word.len() > KEY_MAX { Err(BAD_FORMAT.into()) } else { Ok(word) }
}

fn exptime(word: &[u8]) -> Option<i64> {
    let (negative, digits) = word.strip_prefix(b"-").map_or((false, word), |digits| (true, digits));
    let number = number::<u32>(digits)?;
    Some(if negative { -i64::from(number) } else { i64::from(number) })
}

/// What stands after the first `skip` words.
fn rest(line: &[u8], skip: usize) -> &[u8] {
    let mut line = line.trim_ascii_start();
    for _ in 0..skip {
        let end = memchr::memchr(b' ', line).unwrap_or(line.len());
        line = line[end..].trim_ascii_start();
    }
    line.trim_ascii_end()
}

/// A line, without its end.
///
/// # Errors
///
/// The error line to answer with.
pub fn parse(line: &[u8]) -> Result<Request<'_>, Fault> {
    let mut words = words(line);
    let name = words.next().ok_or(ERROR)?;
    match name {
        b"get" | b"gets" => get(rest(line, 1), name.len() == 4, None),
        b"gat" | b"gats" => {
            let until = words.next().ok_or(ERROR)?;
            // Without a key, memcached 1.6 answers END and nothing else.
            let until = exptime(until).ok_or(BAD_EXPTIME)?;
            if words.next().is_none() {
                return Ok(Request::Get { keys: b"", cas: name.len() == 4, touch: Some(until) });
            }
            get(rest(line, 2), name.len() == 4, Some(until))
        }
        b"set" => store(Mode::Set, words, false),
        b"add" => store(Mode::Add, words, false),
        b"replace" => store(Mode::Replace, words, false),
        b"append" => store(Mode::Append, words, false),
        b"prepend" => store(Mode::Prepend, words, false),
        b"cas" => store(Mode::Set, words, true),
        b"mg" | b"ms" | b"md" | b"ma" => meta::parse(name[1], line).map(Request::Meta),
        b"mn" => Ok(Request::MetaNoop),
        b"me" => meta::debug(line).map(Request::MetaDebug),
        b"incr" | b"decr" => {
            let (name, at, by) = (name, words.next(), words.next());
            let (Some(at), Some(by)) = (at, by) else { return Err(ERROR.into()) };
            let by = number(by).ok_or("CLIENT_ERROR invalid numeric delta argument");
            Ok(Request::Add { key: key(at)?, up: name == b"incr", by: by?, quiet: quiet(line) })
        }
        b"delete" => {
            let at = key(words.next().ok_or(ERROR)?)?;
            let more = (words.next(), words.next(), words.next());
            match more {
                (None, ..) | (Some(b"0" | b"noreply"), None, _) | (Some(b"0"), Some(b"noreply"), None) => {
                    Ok(Request::Delete { key: at, quiet: quiet(line) })
                }
                _ => Err("CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]".into()),
            }
        }
        b"touch" => {
            let (Some(at), Some(until)) = (words.next(), words.next()) else { return Err(ERROR.into()) };
            Ok(Request::Touch { key: key(at)?, exptime: exptime(until).ok_or(BAD_EXPTIME)?, quiet: quiet(line) })
        }
        b"flush_all" => {
            let delay = match words.next() {
                None | Some(b"noreply") => 0,
                Some(word) => exptime(word).ok_or(BAD_EXPTIME)?,
            };
            Ok(Request::Flush { delay, quiet: quiet(line) })
        }
        b"verbosity" => {
            let level = words.next().ok_or(ERROR)?;
            // memcached takes it for well formed, and says nothing.
            if level == b"noreply" {
                return Ok(Request::Verbosity { level: 0, quiet: true });
            }
            Ok(Request::Verbosity { level: number32(level).ok_or(BAD_FORMAT)?, quiet: quiet(line) })
        }
        b"stats" => Ok(Request::Stats(rest(line, 1))),
        b"slabs" => slabs(words),
        b"lru" => lru(words),
        b"lru_crawler" => match rest(line, 1) {
            b"" => Err(ERROR.into()),
            rest => Ok(Request::Crawler(rest)),
        },
        b"cache_memlimit" => {
            let limit = words.next().ok_or(ERROR)?;
            Ok(Request::MemLimit { megabytes: number(limit).ok_or(BAD_FORMAT)?, quiet: quiet(line) })
        }
        b"watch" => Ok(Request::Watch(rest(line, 1))),
        b"shutdown" => match words.next() {
            None => Ok(Request::Shutdown { graceful: false }),
            Some(b"graceful") => Ok(Request::Shutdown { graceful: true }),
            Some(_) => Err("CLIENT_ERROR invalid shutdown mode".into()),
        },
        b"version" => Ok(Request::Version),
        b"quit" => Ok(Request::Quit),
        b"refresh_certs" => Ok(Request::RefreshCerts),
        _ => Err(ERROR.into()),
    }
}

fn quiet(line: &[u8]) -> bool {
    line.trim_ascii_end().ends_with(b" noreply")
}

fn get(keys: &[u8], cas: bool, touch: Option<i64>) -> Result<Request<'_>, Fault> {
    if keys.is_empty() {
        return Err(ERROR.into());
    }
    if words(keys).any(|key| key.len() > KEY_MAX) {
        return Err(BAD_FORMAT.into());
    }
    Ok(Request::Get { keys, cas, touch })
}

fn store<'a>(mode: Mode, mut words: impl Iterator<Item = &'a [u8]>, cas: bool) -> Result<Request<'a>, Fault> {
    let mut next = || words.next().ok_or(Fault::from(ERROR));
    let (at, flags, until, len) = (next()?, next()?, next()?, next()?);
    let version = if cas { Some(next()?) } else { None };
    let (Some(flags), Some(exptime), Some(len)) = (number32(flags), exptime(until), number::<u32>(len)) else {
        return Err(BAD_FORMAT.into());
    };
    let cas = version.map(|version| number(version).ok_or(BAD_FORMAT)).transpose()?;
    let quiet = words.next() == Some(b"noreply");
    // As memcached has it: beyond 31 bits no length is believed.
    if len > i32::MAX as u32 - 2 {
        return Err(BAD_FORMAT.into());
    }
    Ok(Request::Store { mode, key: key(at)?, flags, exptime, len: len as usize, cas, quiet })
}

fn slabs<'a>(mut words: impl Iterator<Item = &'a [u8]>) -> Result<Request<'a>, Fault> {
    let signed = |word: &[u8]| std::str::from_utf8(word).ok()?.parse::<i32>().ok();
    match (words.next(), words.next(), words.next()) {
        (Some(b"reassign"), Some(from), Some(to)) => {
            let (Some(from), Some(to)) = (signed(from), signed(to)) else { return Err(BAD_FORMAT.into()) };
            Ok(Request::Reassign(from, to))
        }
        (Some(b"automove"), Some(level), _) => Ok(Request::Automove(number32(level).ok_or(BAD_FORMAT)?)),
        _ => Err(ERROR.into()),
    }
}

fn lru<'a>(mut words: impl Iterator<Item = &'a [u8]>) -> Result<Request<'a>, Fault> {
    let real = |word: Option<&[u8]>| word.and_then(|word| std::str::from_utf8(word).ok()?.parse::<f64>().ok());
    let good = match words.next() {
        Some(b"tune") => (0..4).all(|_| real(words.next()).is_some()),
        Some(b"mode") => matches!(words.next(), Some(b"flat" | b"segmented")),
        Some(b"temp_ttl") => real(words.next()).is_some(),
        _ => false,
    };
    if good { Ok(Request::Lru) } else { Err(ERROR.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(line: &str) -> &'static str {
        parse(line.as_bytes()).unwrap_err().line
    }

    /// The lines are those that memcached 1.6.18 answers.
    #[test]
    fn a_wrong_line_gets_memcacheds_own_answer() {
        for (line, answer) in [
            ("", "ERROR"),
            ("foo", "ERROR"),
            ("GET a", "ERROR"),
            ("get", "ERROR"),
            ("set a 0 0", "ERROR"),
            ("set a 0 0 abc", BAD_FORMAT),
            ("set a x 0 1", BAD_FORMAT),
            ("set a -1 0 1", BAD_FORMAT),
            ("set a 0 0 -1", BAD_FORMAT),
            ("set a 0 abc 1", BAD_FORMAT),
            ("cas a 0 0 1", "ERROR"),
            ("cas a 0 0 1 abc", BAD_FORMAT),
            ("incr a", "ERROR"),
            ("incr a x", "CLIENT_ERROR invalid numeric delta argument"),
            ("incr a 99999999999999999999999", "CLIENT_ERROR invalid numeric delta argument"),
            ("delete", "ERROR"),
            ("delete a 10", "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]"),
            ("touch a", "ERROR"),
            ("touch a x", BAD_EXPTIME),
            ("gat x a", BAD_EXPTIME),
            ("flush_all a", BAD_EXPTIME),
            ("verbosity", "ERROR"),
            ("verbosity a", BAD_FORMAT),
            ("lru", "ERROR"),
            ("slabs", "ERROR"),
            ("slabs foo 1", "ERROR"),
            ("cache_memlimit", "ERROR"),
            ("me", BAD_FORMAT),
            ("mg", "ERROR"),
            ("ms a", BAD_FORMAT),
            ("ms a x", BAD_FORMAT),
        ] {
            assert_eq!(fault(line), answer, "{line}");
        }
        assert_eq!(fault(&format!("get {}", "k".repeat(251))), BAD_FORMAT);
        assert_eq!(fault(&format!("set {} 0 0 1", "k".repeat(251))), BAD_FORMAT);
    }

    #[test]
    fn a_storage_line_is_taken_apart() {
        let line = b"cas  key 4294967296 -1 10 7 noreply";
        let Ok(Request::Store { mode, key, flags, exptime, len, cas, quiet }) = parse(line) else { panic!() };
        assert_eq!((mode, key, flags, exptime, len, cas, quiet), (Mode::Set, &b"key"[..], 0, -1, 10, Some(7), true));
    }

    #[test]
    fn keys_come_in_order_whatever_blanks_are_between() {
        let Ok(Request::Get { keys, cas: true, touch: None }) = parse(b"gets  a   bb c ") else { panic!() };
        assert_eq!(words(keys).collect::<Vec<_>>(), [&b"a"[..], b"bb", b"c"]);
        let Ok(Request::Get { keys, cas: false, touch: Some(-3) }) = parse(b"gat -3 a b") else { panic!() };
        assert_eq!(words(keys).count(), 2);
    }
}
