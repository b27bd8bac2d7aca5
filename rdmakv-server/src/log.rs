//! The messages of `-v` on standard error: once, warnings; twice, also arrivals, departures and the first line of every
//! request. It is for looking, not for keeping: a reader that is slow slows the server.

use std::fmt::Display;
use std::io::Write;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Bytes of a line that are shown.
const SHOWN: usize = 200;

/// Writes a line, with or without a reader: `eprintln!` panics where its reader is gone or its disk is full, and no
/// thread of the server is to end for that.
pub(crate) fn print(what: impl Display) {
    let _ = writeln!(std::io::stderr(), "rdmakv-server: {what}");
}

/// The level of `-v`, which clients may change.
#[derive(Debug, Default)]
pub struct Log {
    level: AtomicU32,
}

impl Log {
    /// Returns how often `-v` was given.
    pub(crate) fn level(&self) -> u32 {
        self.level.load(Relaxed)
    }

    pub(crate) fn set_level(&self, level: u32) {
        self.level.store(level, Relaxed);
    }

    /// Prints a warning, from `-v` on.
    pub(crate) fn warn(&self, what: impl Display) {
        if self.level() > 0 {
            print(what);
        }
    }

    /// Prints an arrival or a departure, from `-vv` on.
    pub(crate) fn detail(&self, what: impl FnOnce() -> String) {
        if self.level() > 1 {
            print(what());
        }
    }

    /// Returns whether requests are printed: from `-vv` on.
    pub(crate) fn shows_requests(&self) -> bool {
        self.level() > 1
    }
}

/// Prints a client's request.
pub(crate) fn request(bytes: &[u8]) {
    print(format_args!("< {}", line(bytes)));
}

/// Returns the first line, in characters that a terminal shows.
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
    fn log_shows_first_line_escaped() {
        assert_eq!(line(b"set a 0 0 3\r\nabc\r\n"), "set a 0 0 3");
        assert_eq!(line(b"\x80\x1b[2J"), "\\x80\\x1b[2J");
        assert_eq!(line(&[b'x'; 300]).len(), SHOWN + "…".len());
        assert_eq!(line(b""), "");
    }
}
