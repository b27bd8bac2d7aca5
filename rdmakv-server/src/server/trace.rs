//! What `-v` has the server say on its standard error: once, its warnings; twice, also who comes and goes and the first
//! line of whatever is read. It is for looking, not for keeping: a reader that is slow slows the server.

use std::fmt::Display;
use std::io::Write;
use std::sync::atomic::Ordering::Relaxed;

use crate::session::Shared;

/// Bytes of a line that are shown.
const SHOWN: usize = 200;

/// A line, whether somebody reads it or not: `eprintln!` panics where its reader is gone or its disk is full, and no
/// thread of the server is to end for that.
pub(crate) fn say(what: impl Display) {
    let _ = writeln!(std::io::stderr(), "rdmakv-server: {what}");
}

/// A warning, from `-v` on.
pub(crate) fn warn(shared: &Shared, what: impl Display) {
    if shared.verbosity.load(Relaxed) > 0 {
        say(what);
    }
}

/// Somebody came or went, from `-vv` on.
pub(crate) fn tell(shared: &Shared, what: impl FnOnce() -> String) {
    if shared.verbosity.load(Relaxed) > 1 {
        say(what());
    }
}

/// What a client said.
pub(crate) fn said(bytes: &[u8]) {
    say(format_args!("< {}", line(bytes)));
}

/// The first line, in characters that a terminal shows.
fn line(bytes: &[u8]) -> String {
    let end = memchr::memchr(b'\n', bytes).unwrap_or(bytes.len());
    let line = bytes[..end].strip_suffix(b"\r").unwrap_or(&bytes[..end]);
    let more = if line.len() > SHOWN { "…" } else { "" };
    format!("{}{more}", line[..line.len().min(SHOWN)].escape_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_line_is_shown_and_nothing_that_moves_the_cursor() {
        assert_eq!(line(b"set a 0 0 3\r\nabc\r\n"), "set a 0 0 3");
        assert_eq!(line(b"\x80\x1b[2J"), "\\x80\\x1b[2J");
        assert_eq!(line(&[b'x'; 300]).len(), SHOWN + "…".len());
        assert_eq!(line(b""), "");
    }
}
