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
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

/// Whether one came that asks. One that ends the process is told to no other thread, which would report it, too.
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
        if state.only_asks && !STOP.swap(true, Ordering::Relaxed) {
            return;
        }
        for path in &state.unfinished {
            let _ = std::fs::remove_file(path);
        }
        report();
        end();
    };
    let _ = ctrlc::set_handler(heard);
}

/// How long a report may take.
const PATIENCE: Duration = Duration::from_secs(1);

/// Reports the interruption, unless that takes too long. Standard error may be a pipe that nothing reads, or another thread may
/// wait for that and have the lock.
fn report() {
    let (done, reported) = mpsc::channel();
    let report = move || {
        let mut out = io::stderr();
        if out.is_terminal() {
            // A line of progress may stand there.
            let _ = out.write_all(b"\r\x1b[K");
        }
        note("interrupted");
        let _ = done.send(());
    };
    if thread::Builder::new().spawn(report).is_ok() {
        let _ = reported.recv_timeout(PATIENCE);
    }
}

/// Ends the process, and waits for nothing: `exit` writes the rest of standard output, which nothing may read.
fn end() -> ! {
    #[cfg(target_os = "linux")]
    #[expect(unsafe_code, reason = "the end without handlers")]
    // SAFETY: `_exit` takes a number, runs no code of the process and does not return.
    unsafe {
        libc::_exit(130)
    }
    #[cfg(not(target_os = "linux"))]
    std::process::exit(130)
}

/// From now on the first one only asks: the command looks for it soon, and prints what is finished or removes its own files.
pub(crate) fn only_ask() {
    state().only_asks = true;
}

/// Returns whether one came that asks.
pub(crate) fn came() -> bool {
    STOP.load(Ordering::Relaxed)
}

/// Makes a file that must not stay behind before it is [`finished`]. `path` returns its name, if it is such a file. Makes nothing
/// that waits: a signal waits for it.
pub(crate) fn begin<T, E>(
    make: impl FnOnce() -> Result<T, E>,
    path: impl for<'a> Fn(&'a T) -> Option<&'a Path>,
) -> Result<T, E> {
    let mut state = state();
    let made = make()?;
    state.unfinished.extend(path(&made).map(Path::to_owned));
    Ok(made)
}

/// It is finished, or gone.
pub(crate) fn finished(path: &Path) {
    state().unfinished.remove(path);
}
