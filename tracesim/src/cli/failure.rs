//! How the command ends when it does not succeed.

use super::table::many;
use std::env;
use std::ffi::OsStr;
use std::fmt::Display;
use std::io;
use std::path::Path;
use std::process::ExitCode;

/// Failures, by exit status.
#[derive(Debug)]
pub(crate) enum Failure {
    /// 2: it was asked for what cannot be.
    Usage(String),
    /// 1: what it was asked for failed.
    Work(String),
    /// 130: it was interrupted, and nothing is finished.
    Interrupted,
    /// 130: it was interrupted. So many results of so many are finished, and printed.
    Unfinished(usize, usize),
    /// 0: the reader of its output has seen enough.
    NobodyReads,
}

impl Failure {
    /// Failed work.
    pub(crate) fn work(what: impl Display) -> Self {
        Self::Work(what.to_string())
    }

    /// Wrong usage.
    pub(crate) fn usage(what: impl Display) -> Self {
        Self::Usage(what.to_string())
    }

    /// Returns the failure of writing there.
    pub(crate) fn writing(what: impl Display, error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::NobodyReads,
            _ => Self::Work(format!("{what}: write: {error}")),
        }
    }

    /// Says it, on standard error.
    pub(crate) fn tell(&self) -> ExitCode {
        match self {
            Self::Usage(what) => {
                note(&format!("{what}\n\nFor more information, try '--help'."));
                ExitCode::from(2)
            }
            Self::Work(what) => {
                note(what);
                ExitCode::from(1)
            }
            Self::Interrupted => {
                note("interrupted");
                ExitCode::from(130)
            }
            Self::Unfinished(finished, all) => {
                note(&format!("interrupted: {finished} of {} finished, and printed", many(*all as u64, "result")));
                ExitCode::from(130)
            }
            Self::NobodyReads => ExitCode::SUCCESS,
        }
    }
}

/// A line on standard error, after the name of the program: one with policies of its own has a name of its own.
pub(crate) fn note(what: &str) {
    use io::Write as _;
    let path = env::args_os().next().unwrap_or_default();
    let name = Path::new(&path).file_name().map_or("tracesim".into(), OsStr::to_string_lossy);
    // An error here could not be reported anywhere.
    let _ = writeln!(io::stderr(), "{name}: {what}");
}
