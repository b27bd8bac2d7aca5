//! The messages of `-v` on standard error: once, warnings; twice, also arrivals, departures and the first line of every
//! request. It is for looking, not for keeping: a reader that is slow slows the server.
//!
//! Clients cause warnings, and as many as they like. So of each kind one is printed in a second, with the number of those since the last.

use std::fmt::Display;
use std::io::Write;
use std::panic::Location;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The least time between two warnings of a kind.
const QUIET: Duration = Duration::from_secs(1);

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
    warnings: Mutex<Warnings>,
}

impl Log {
    /// Returns how often `-v` was given.
    pub(crate) fn level(&self) -> u32 {
        self.level.load(Relaxed)
    }

    pub(crate) fn set_level(&self, level: u32) {
        self.level.store(level, Relaxed);
    }

    /// Prints a warning, from `-v` on. Those from one place in the source are of a kind.
    #[track_caller]
    pub(crate) fn warn(&self, what: impl Display) {
        if self.level() > 0 {
            let line = self.warnings(|warnings| warnings.take(Location::caller(), &what, Instant::now()));
            // A slow reader holds up no other thread.
            line.into_iter().for_each(print);
        }
    }

    /// Prints the warnings that wait for their second to pass. To be called once a second.
    pub(crate) fn tick(&self) {
        self.warnings(|warnings| warnings.due(Instant::now())).into_iter().for_each(print);
    }

    fn warnings<T>(&self, use_them: impl FnOnce(&mut Warnings) -> T) -> T {
        use_them(&mut self.warnings.lock().unwrap_or_else(PoisonError::into_inner))
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

/// The kinds of warnings that were printed.
#[derive(Debug, Default)]
struct Warnings(Vec<Kind>);

#[derive(Debug)]
struct Kind {
    from: &'static Location<'static>,
    printed: Instant,
    /// Those since, and the last one of them.
    more: u64,
    last: String,
}

impl Warnings {
    /// Takes a warning. Returns the line to be printed now, if there is one.
    fn take(&mut self, from: &'static Location<'static>, what: &dyn Display, now: Instant) -> Option<String> {
        let Some(kind) = self.0.iter_mut().find(|kind| kind.from == from) else {
            self.0.push(Kind { from, printed: now, more: 0, last: String::new() });
            return Some(what.to_string());
        };
        (kind.more, kind.last) = (kind.more + 1, what.to_string());
        kind.due(now)
    }

    /// Returns the lines that waited for long enough.
    fn due(&mut self, now: Instant) -> Vec<String> {
        self.0.iter_mut().filter_map(|kind| kind.due(now)).collect()
    }
}

impl Kind {
    fn due(&mut self, now: Instant) -> Option<String> {
        if self.more == 0 || now.duration_since(self.printed) < QUIET {
            return None;
        }
        let (more, line) = (std::mem::take(&mut self.more), std::mem::take(&mut self.last));
        self.printed = now;
        Some(if more == 1 { line } else { format!("{line} ({more} times since the last line)") })
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
    fn warnings_of_a_kind_are_counted_for_a_second() {
        let (mut warnings, begun) = (Warnings::default(), Instant::now());
        let [refused, failed] = [Location::caller(), Location::caller()];
        let at = |millis| begun + Duration::from_millis(millis);
        let mut take = |from, what: &str, millis| warnings.take(from, &what, at(millis));
        assert_eq!(take(refused, "refused", 0).as_deref(), Some("refused"));
        assert_eq!((take(refused, "refused", 1), take(refused, "refused", 999)), (None, None));
        assert_eq!(take(failed, "failed", 999).as_deref(), Some("failed"));
        let line = take(refused, "refused again", 1000);
        assert_eq!(line.as_deref(), Some("refused again (3 times since the last line)"));
        assert_eq!(take(refused, "refused", 1500), None);
        assert_eq!(warnings.due(at(1999)), [""; 0]);
        assert_eq!(warnings.due(at(2000)), ["refused"]);
        assert_eq!(warnings.due(at(9000)), [""; 0]);
    }

    #[test]
    fn log_shows_first_line_escaped() {
        assert_eq!(line(b"set a 0 0 3\r\nabc\r\n"), "set a 0 0 3");
        assert_eq!(line(b"\x80\x1b[2J"), "\\x80\\x1b[2J");
        assert_eq!(line(&[b'x'; 300]).len(), SHOWN + "…".len());
        assert_eq!(line(b""), "");
    }
}
