//! Ctrl-C, and the requests to end that are like it.
//!
//! The first one asks: replays stop, and what is finished is printed. The second one ends the process at once, and takes
//! unfinished files along.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Whether the first one came.
pub(crate) static STOP: AtomicBool = AtomicBool::new(false);

/// Files that must not stay behind. Locked for a moment only.
static UNFINISHED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// From now on signals are heard. Where that cannot be, they end the process as usual.
pub(crate) fn listen() {
    let heard = || {
        if STOP.swap(true, Ordering::Relaxed) {
            for path in UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner).iter() {
                let _ = std::fs::remove_file(path);
            }
            std::process::exit(130);
        }
    };
    let _ = ctrlc::set_handler(heard);
}

/// Returns whether the first one came.
pub(crate) fn came() -> bool {
    STOP.load(Ordering::Relaxed)
}

/// A file is begun.
pub(crate) fn begun(path: &Path) {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner).insert(path.to_owned());
}

/// It is finished, or gone.
pub(crate) fn finished(path: &Path) {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner).remove(path);
}
