//! The primitives of concurrency, or those of a checker.
//!
//! Everything in the crate that more than one thread touches is built on the names below. A test that runs
//! with `--cfg loom` or `--cfg shuttle` swaps them for the checker's, so that the checker runs the code that
//! ships.

use std::time::Duration;

/// How often a lock is tried before its taker sleeps: 20 µs or so in all.
#[cfg(not(any(loom, shuttle)))]
const TRIES: u32 = 40;
/// Pauses between two tries, each of which takes the lock's line from its holder.
#[cfg(not(any(loom, shuttle)))]
const PAUSES: u32 = 32;

#[cfg(not(any(loom, shuttle)))]
pub(crate) use std::{sync, thread};

#[cfg(loom)]
pub(crate) use loom::thread_local;

#[cfg(shuttle)]
pub(crate) use shuttle::{sync, thread_local};

/// The parts that loom lacks, besides those that it has.
#[cfg(loom)]
pub(crate) mod sync {
    pub(crate) use loom::sync::*;
    pub(crate) use std::sync::{PoisonError, TryLockError};
}

/// Loom has no `sleep`, and shuttle's gives no other thread a turn.
#[cfg(any(loom, shuttle))]
pub(crate) mod thread {
    #[cfg(loom)]
    pub(crate) use loom::thread::*;
    #[cfg(shuttle)]
    pub(crate) use shuttle::thread::*;

    pub(crate) fn sleep(_: std::time::Duration) {
        yield_now();
    }
}

/// A moment for others, in a loop that waits for them.
pub(crate) fn pause() {
    #[cfg(not(any(loom, shuttle)))]
    std::hint::spin_loop();
    #[cfg(any(loom, shuttle))]
    thread::yield_now();
}

/// Takes a lock that is mostly held for a microsecond or a few: to be woken takes ten times as long, and two threads that
/// wait for each other like that stay in step and wait again. So it is tried for about as long as a wake-up takes first.
pub(crate) fn lock<T>(mutex: &sync::Mutex<T>) -> sync::LockResult<sync::MutexGuard<'_, T>> {
    #[cfg(not(any(loom, shuttle)))]
    for _ in 0..TRIES {
        match mutex.try_lock() {
            Ok(guard) => return Ok(guard),
            Err(sync::TryLockError::Poisoned(poisoned)) => return Err(poisoned),
            Err(sync::TryLockError::WouldBlock) => (0..PAUSES).for_each(|_| pause()),
        }
    }
    mutex.lock()
}

/// Lets go of a lock and waits to be told of something, at most so long. False: the lock is poisoned.
///
/// Time does not pass under a checker. There a short wait is over as soon as others had a turn: it is a second look
/// at something that is not reported. A long one ends only with a notification, so that a missed one is found as a
/// deadlock.
pub(crate) fn wait<T>(told: &sync::Condvar, guard: sync::MutexGuard<'_, T>, longest: Duration) -> bool {
    #[cfg(any(loom, shuttle))]
    if longest < Duration::from_millis(100) {
        drop(guard);
        pause();
        return true;
    }
    told.wait_timeout(guard, longest).is_ok()
}
