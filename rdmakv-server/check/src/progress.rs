//! A line on standard error that says how far it is: over and over on a terminal, now and then elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

#[derive(Debug)]
pub(crate) struct Progress {
    last: Instant,
    every: Duration,
    is_terminal: bool,
    quiet: bool,
    said: bool,
}

impl Progress {
    pub(crate) fn new(quiet: bool) -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        let every = if is_terminal { Duration::from_millis(500) } else { Duration::from_secs(10) };
        Self { last: Instant::now(), every, is_terminal, quiet, said: false }
    }

    pub(crate) fn print(&mut self, what: impl FnOnce() -> String) {
        if self.quiet || self.last.elapsed() < self.every {
            return;
        }
        (self.last, self.said) = (Instant::now(), true);
        if self.is_terminal {
            eprint!("\r\x1b[K{}", what());
        } else {
            eprintln!("{}", what());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.said && self.is_terminal {
            eprint!("\r\x1b[K");
        }
    }
}
