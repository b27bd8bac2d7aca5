//! Which thread it is: for requests that would wait for themselves.

use std::sync::atomic::{AtomicU32, Ordering};

/// Numbers are used again after 2^32 threads. A thread that is taken for another does without what that one registers.
fn next() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

#[cfg(not(any(loom, shuttle)))]
thread_local! {
    static MINE: u32 = next();
}

#[cfg(any(loom, shuttle))]
crate::shim::thread_local! {
    static MINE: u32 = next();
}

/// Returns the number of this thread; 0 for one that is ending.
pub(crate) fn current() -> u32 {
    MINE.try_with(|&mine| mine).unwrap_or(0)
}
