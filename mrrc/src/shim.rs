//! The primitives of concurrency, or those of a checker.
//!
//! Everything in the crate that more than one thread touches is built on the names below. A test that runs
//! with `--cfg loom` or `--cfg shuttle` swaps them for the checker's, so that the checker runs the code that
//! ships.

#[cfg(not(any(loom, shuttle)))]
pub(crate) use std::{sync, thread};

#[cfg(loom)]
pub(crate) use loom::{sync, thread, thread_local};

#[cfg(shuttle)]
pub(crate) use shuttle::{sync, thread, thread_local};

/// A moment for others, in a loop that waits for them.
pub(crate) fn pause() {
    #[cfg(not(any(loom, shuttle)))]
    std::hint::spin_loop();
    #[cfg(any(loom, shuttle))]
    thread::yield_now();
}
