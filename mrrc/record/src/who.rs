//! Who records: process and thread as the kernel numbers them, asked for once each.
//!
//! A child of a fork has another number. `pthread_atfork` sees that it asks anew; a child of a bare `clone` goes on
//! under its parent's.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

static PROCESS: AtomicU32 = AtomicU32::new(0);

thread_local! {
    // Without a destructor: so the first use of a thread allocates nothing.
    static THREAD: Cell<u32> = const { Cell::new(0) };
}

/// This process.
#[inline]
pub(crate) fn process() -> u32 {
    match PROCESS.load(Ordering::Relaxed) {
        0 => ask_process(),
        known => known,
    }
}

/// This thread.
#[inline]
pub(crate) fn thread() -> u32 {
    match THREAD.get() {
        0 => ask_thread(),
        known => known,
    }
}

/// Both are to be asked for anew.
pub(crate) fn forget() {
    PROCESS.store(0, Ordering::Relaxed);
    THREAD.set(0);
}

#[cold]
fn ask_process() -> u32 {
    let process = std::process::id();
    PROCESS.store(process, Ordering::Relaxed);
    process
}

#[cold]
fn ask_thread() -> u32 {
    #[expect(unsafe_code, reason = "a system call")]
    // SAFETY: no memory is passed.
    let thread = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
    THREAD.set(thread);
    thread
}
