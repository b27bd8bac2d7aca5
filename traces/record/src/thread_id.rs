//! The recording process and thread as the kernel numbers them, asked for once each.
//!
//! A child of a fork has another number. `pthread_atfork` sees that it asks anew; a child of a bare `clone` goes on
//! under its parent's. A child counts as a recorder from its first event on: most only run another program.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

static PROCESS: AtomicU32 = AtomicU32::new(0);
/// A child of a fork that has recorded nothing yet.
static SILENT_CHILD: AtomicBool = AtomicBool::new(false);

thread_local! {
    // Without a destructor: so the first use of a thread allocates nothing.
    static THREAD: Cell<u32> = const { Cell::new(0) };
}

/// This process, if it has been asked for.
#[inline]
pub(crate) fn process() -> Option<u32> {
    Some(PROCESS.load(Ordering::Relaxed)).filter(|&known| known != 0)
}

/// This thread.
#[inline]
pub(crate) fn thread() -> u32 {
    match THREAD.get() {
        0 => read_thread(),
        known => known,
    }
}

/// In a child of a fork: both are to be asked for anew.
pub(crate) fn forget() {
    PROCESS.store(0, Ordering::Relaxed);
    SILENT_CHILD.store(true, Ordering::Relaxed);
    THREAD.set(0);
}

/// Returns whether this is a child that has recorded nothing.
pub(crate) fn is_silent_child() -> bool {
    SILENT_CHILD.load(Ordering::Relaxed)
}

/// This process, and whether it is a child that begins to record with that.
#[cold]
pub(crate) fn read_process() -> (u32, bool) {
    let process = std::process::id();
    PROCESS.store(process, Ordering::Relaxed);
    (process, SILENT_CHILD.swap(false, Ordering::Relaxed))
}

#[cold]
fn read_thread() -> u32 {
    #[expect(unsafe_code, reason = "a system call")]
    // SAFETY: `gettid` takes no arguments and no memory.
    let thread = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
    THREAD.set(thread);
    thread
}
