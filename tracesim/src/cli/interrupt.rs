//! Ctrl-C, and the requests to end that are like it.
//!
//! The first one ends the process at once, wherever it waits, as long as there is nothing to print. Once a command has called
//! [`only_ask`], the first one asks: replays stop, and what is finished is printed. The second one ends the process in any case.
//! Unfinished files go along.

use super::failure::note;
use std::collections::BTreeSet;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tempfile::NamedTempFile;

/// Whether the first one came.
pub(crate) static STOP: AtomicBool = AtomicBool::new(false);

/// Decides what the first one does. Its lock is held while the process ends, so that no file is made meanwhile.
struct State {
    /// Whether the first one only asks.
    only_asks: bool,
    /// Files that must not stay behind.
    unfinished: BTreeSet<PathBuf>,
}

static STATE: Mutex<State> = Mutex::new(State { only_asks: false, unfinished: BTreeSet::new() });

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on signals are heard. Where that cannot be, they end the process as usual.
pub(crate) fn listen() {
    let heard = || {
        let state = state();
        if STOP.swap(true, Ordering::Relaxed) || !state.only_asks {
            for path in &state.unfinished {
                let _ = std::fs::remove_file(path);
            }
            let mut out = io::stderr();
            if out.is_terminal() {
                // A line of progress may stand there.
                let _ = out.write_all(b"\r\x1b[K");
            }
            note("interrupted");
            std::process::exit(130);
        }
    };
    let _ = ctrlc::set_handler(heard);
}

/// From now on the first one only asks: the command looks for it soon, and prints what is finished or removes its own files.
pub(crate) fn only_ask() {
    state().only_asks = true;
}

/// Returns whether the first one came.
pub(crate) fn came() -> bool {
    STOP.load(Ordering::Relaxed)
}

/// Makes a file that must not stay behind before it is [`finished`].
pub(crate) fn begin(make: impl FnOnce() -> io::Result<NamedTempFile>) -> io::Result<NamedTempFile> {
    let mut state = state();
    let file = make()?;
    state.unfinished.insert(file.path().to_owned());
    Ok(file)
}

/// It is finished, or gone.
pub(crate) fn finished(path: &Path) {
    state().unfinished.remove(path);
}
