//! Classic commands: one line, and for the storage commands a block of data after it.

use super::{BAD_FORMAT, Fault, Mode, meta, number, number32, replicate, rest, signed32, words};
use crate::item::KEY_MAX;

/// A request. It borrows the line.
#[derive(Debug)]
pub enum Request<'a> {
    /// `get`, its older name `bget`, `gets`, `gat`, `gats`.
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
    /// `slabs automove`: 0 is off, 1 and 2 are on.
    Automove(u32),
    /// `slabs automove ratio`, well formed. Nothing here depends on that ratio.
    AutomoveRatio,
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
    /// `shutdown`, or `shutdown graceful`; or another, which there is not.
    Shutdown {
        /// Whether clients may end what they do first, if there is such a one.
        graceful: Option<bool>,
    },
    /// `version`.
    Version,
    /// `quit`.
    Quit,
    /// The first line of an HTTP request.
    Http,
    /// `refresh_certs`.
    RefreshCerts,
    /// A meta command.
    Meta(meta::Request<'a>),
    /// `mn`.
    MetaNoop,
    /// `me`.
    MetaDebug(meta::Key),
    /// `mx`: a call to a server of a cluster. Its body follows.
    Replicate(replicate::Request),
    /// `mp`: asks for the run of a server.
    Ping,
}

const ERROR: &str = "ERROR";
const BAD_EXPTIME: &str = "CLIENT_ERROR invalid exptime argument";

/// Of an error that `noreply` hides: nothing is answered.
pub const SILENT: &str = "";

fn key(word: &[u8]) -> Result<&[u8], Fault> {
    if word.len() > KEY_MAX { Err(BAD_FORMAT.into()) } else { Ok(word) }
}

fn exptime(word: &[u8]) -> Option<i64> {
    signed32(word).map(i64::from)
}

/// The words after a command's name, as many as memcached looks at.
struct Arguments<'a> {
    words: [&'a [u8]; ARGUMENTS],
    count: usize,
}

const ARGUMENTS: usize = 22;

impl<'a> Arguments<'a> {
    fn new(all: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut arguments = Self { words: [b""; ARGUMENTS], count: 0 };
        for word in all.take(ARGUMENTS) {
            arguments.words[arguments.count] = word;
            arguments.count += 1;
        }
        arguments
    }

    /// Returns the words, if there are so many; with them whether the last one says that no answer is wanted.
    fn between(&self, least: usize, most: usize) -> Result<(&[&'a [u8]], bool), Fault> {
        let all = &self.words[..self.count];
        if (least..=most).contains(&all.len()) {
            Ok((all, all.last() == Some(&&b"noreply"[..])))
        } else {
            Err(ERROR.into())
        }
    }
}

/// Returns the request of a command with arguments; one that wants no answer gets none to an error either.
fn hushed<'a>(quiet: bool, done: Result<Request<'a>, &'static str>) -> Result<Request<'a>, Fault> {
    done.map_err(|line| if quiet { SILENT } else { line }.into())
}

/// Returns a line, without its end.
///
/// # Errors
///
/// The error line to answer with; [`SILENT`] for none.
pub fn parse(line: &[u8]) -> Result<Request<'_>, Fault> {
    // To memcached a line ends there.
    let line = memchr::memchr(0, line).map_or(line, |end| &line[..end]);
    let mut words = words(line);
    let name = words.next().ok_or(ERROR)?;
    match name {
        b"get" | b"bget" => return get(rest(line, 1), false, None),
        b"gets" => return get(rest(line, 1), true, None),
        b"gat" | b"gats" => {
            let until = words.next().ok_or(ERROR)?;
            // Without a key, memcached 1.6 answers END and nothing else.
            let until = exptime(until).ok_or(BAD_EXPTIME)?;
            if words.next().is_none() {
                return Ok(Request::Get { keys: b"", cas: name.len() == 4, touch: Some(until) });
            }
            return get(rest(line, 2), name.len() == 4, Some(until));
        }
        b"mg" | b"ms" | b"md" | b"ma" => return meta::parse(name[1], line).map(Request::Meta),
        b"mn" => return Ok(Request::MetaNoop),
        b"me" => return meta::debug(line).map(Request::MetaDebug),
        b"mx" => return replicate::parse(line).map(Request::Replicate),
        b"mp" => return Ok(Request::Ping),
        b"stats" => return Ok(Request::Stats(rest(line, 1))),
        b"watch" => return Ok(Request::Watch(rest(line, 1))),
        b"lru_crawler" => {
            return match rest(line, 1) {
                b"" => Err(ERROR.into()),
                rest => Ok(Request::Crawler(rest)),
            };
        }
        _ => {}
    }
    let arguments = Arguments::new(words);
    match name {
        b"set" => store(Mode::Set, &arguments, false),
        b"add" => store(Mode::Add, &arguments, false),
        b"replace" => store(Mode::Replace, &arguments, false),
        b"append" => store(Mode::Append, &arguments, false),
        b"prepend" => store(Mode::Prepend, &arguments, false),
        b"cas" => store(Mode::Set, &arguments, true),
        b"incr" | b"decr" => {
            let (words, quiet) = arguments.between(2, 3)?;
            let by = number(words[1]).ok_or("CLIENT_ERROR invalid numeric delta argument");
            let request = || Ok(Request::Add { key: key(words[0])?, up: name == b"incr", by: by?, quiet });
            hushed(quiet, request().map_err(|fault: Fault| fault.line))
        }
        b"delete" => {
            let (words, quiet) = arguments.between(1, 3)?;
            let good = match words[1..] {
                [] => true,
                [only] => only == b"0" || quiet,
                [first, ..] => first == b"0" && quiet,
            };
            let quiet = quiet && words.len() > 1;
            let usage = "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]";
            let request = || Ok(Request::Delete { key: key(words[0])?, quiet });
            hushed(quiet, if good { request().map_err(|fault: Fault| fault.line) } else { Err(usage) })
        }
        b"touch" => {
            let (words, quiet) = arguments.between(2, 3)?;
            let until = exptime(words[1]).ok_or(BAD_EXPTIME);
            let request = || Ok(Request::Touch { key: key(words[0])?, exptime: until?, quiet });
            hushed(quiet, request().map_err(|fault: Fault| fault.line))
        }
        b"flush_all" => {
            let (words, quiet) = arguments.between(0, 2)?;
            let delay = match words {
                [] | [b"noreply"] => Ok(0),
                [word, ..] => exptime(word).ok_or(BAD_EXPTIME),
            };
            hushed(quiet, delay.map(|delay| Request::Flush { delay, quiet }))
        }
        b"verbosity" => {
            let (words, quiet) = arguments.between(1, 2)?;
            // memcached takes `verbosity noreply` for well formed, and says nothing.
            let level = if words[0] == b"noreply" { Ok(0) } else { number32(words[0]).ok_or(BAD_FORMAT) };
            hushed(quiet, level.map(|level| Request::Verbosity { level, quiet }))
        }
        b"slabs" => slabs(&arguments),
        b"lru" => lru(&arguments),
        b"cache_memlimit" => {
            let (words, quiet) = arguments.between(1, 2)?;
            let megabytes = number(words[0]).ok_or(ERROR);
            hushed(quiet, megabytes.map(|megabytes| Request::MemLimit { megabytes, quiet }))
        }
        b"shutdown" => Ok(Request::Shutdown {
            graceful: match arguments.words[..arguments.count] {
                [] => Some(false),
                [b"graceful"] => Some(true),
                _ => None,
            },
        }),
        b"version" => Ok(Request::Version),
        b"quit" => Ok(Request::Quit),
        b"refresh_certs" => Ok(Request::RefreshCerts),
        // As memcached: a browser that a page made speak to us is not heard on, lest its request's body be commands.
        _ if rest(line, 0).rsplit(|&byte| byte == b' ').next().is_some_and(|last| last.starts_with(b"HTTP/")) => {
            Ok(Request::Http)
        }
        _ => Err(ERROR.into()),
    }
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

fn store<'a>(mode: Mode, arguments: &Arguments<'a>, cas: bool) -> Result<Request<'a>, Fault> {
    let needed = if cas { 5 } else { 4 };
    let (words, quiet) = arguments.between(needed, needed + 1)?;
    let request = || {
        let at = key(words[0])?;
        let (flags, exptime) = (number32(words[1]).ok_or(BAD_FORMAT)?, exptime(words[2]).ok_or(BAD_FORMAT)?);
        // As memcached has it: beyond 31 bits no length is believed, nor one below nothing.
        let len = signed32(words[3]).filter(|len| (0..=i32::MAX - 2).contains(len)).ok_or(BAD_FORMAT)? as usize;
        let cas = if cas { Some(number(words[4]).ok_or(BAD_FORMAT)?) } else { None };
        Ok(Request::Store { mode, key: at, flags, exptime, len, cas, quiet })
    };
    hushed(quiet, request().map_err(|fault: Fault| fault.line))
}

fn slabs<'a>(arguments: &Arguments<'a>) -> Result<Request<'a>, Fault> {
    match arguments.words[..arguments.count] {
        [b"reassign", from, to] => {
            let (Some(from), Some(to)) = (signed32(from), signed32(to)) else { return Err(BAD_FORMAT.into()) };
            Ok(Request::Reassign(from, to))
        }
        [b"automove", b"ratio", ratio, ..] if is_real(ratio) => Ok(Request::AutomoveRatio),
        [b"automove", b"ratio", ..] => Err(ERROR.into()),
        [b"automove", level, ..] => match number32(level).ok_or(BAD_FORMAT)? {
            level @ 0..=2 => Ok(Request::Automove(level)),
            _ => Err(ERROR.into()),
        },
        _ => Err(ERROR.into()),
    }
}

fn is_real(word: &[u8]) -> bool {
    std::str::from_utf8(word).is_ok_and(|word| word.parse::<f64>().is_ok())
}

fn lru<'a>(arguments: &Arguments<'a>) -> Result<Request<'a>, Fault> {
    let good = match arguments.words[..arguments.count] {
        [b"tune", hot, warm, hotter, warmer, ..] => [hot, warm, hotter, warmer].into_iter().all(is_real),
        [b"mode", mode, ..] => mode == b"flat" || mode == b"segmented",
        [b"temp_ttl", seconds, ..] => is_real(seconds),
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
            ("slabs automove 3", "ERROR"),
            ("slabs automove 9", "ERROR"),
            ("slabs automove ratio", "ERROR"),
            ("slabs automove ratio x", "ERROR"),
            ("slabs automove x", BAD_FORMAT),
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
