//! Things that are never freed and go from one cache to the next.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// Things that are never freed, and are not in use.
///
/// In a forked child its lock may be held by a thread that is not there. So a child waits for it a bounded time at first, and makes a
/// new thing if it does not get it.
pub(crate) struct Pool<T: 'static> {
    unused: Mutex<Vec<&'static T>>,
    /// The process whose threads are sure to give the lock back; 0 before it was taken.
    process: AtomicU32,
}

/// How often a thread of a forked child yields to one that may hold the lock. A thing that is not put back
/// because the lock cannot be had is leaked.
const TRIES: u32 = 100;

impl<T> Pool<T> {
    pub(crate) const fn new() -> Self {
        Self { unused: Mutex::new(Vec::new()), process: AtomicU32::new(0) }
    }

    /// Returns a thing that is not in use. None under a checker, whose objects are good for one run only.
    pub(crate) fn take(&self) -> Option<&'static T> {
        if cfg!(any(loom, shuttle)) { None } else { self.lock()?.pop() }
    }

    pub(crate) fn put(&self, unused: impl IntoIterator<Item = &'static T>) {
        if let Some(mut pool) = self.lock() {
            pool.extend(unused);
        }
    }

    fn lock(&self) -> Option<MutexGuard<'_, Vec<&'static T>>> {
        let process = std::process::id();
        // Before the lock is taken for the first time: no child finds it held and no process noted.
        let before =
            self.process.compare_exchange(0, process, Ordering::SeqCst, Ordering::Relaxed).unwrap_or_else(|old| old);
        if before == 0 || before == process {
            return Some(self.unused.lock().unwrap_or_else(PoisonError::into_inner));
        }
        for _ in 0..TRIES {
            let pool = match self.unused.try_lock() {
                Ok(pool) => pool,
                Err(TryLockError::Poisoned(pool)) => pool.into_inner(),
                Err(TryLockError::WouldBlock) => {
                    std::thread::yield_now();
                    continue;
                }
            };
            self.process.store(process, Ordering::Relaxed);
            return Some(pool);
        }
        None
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_pool_loses_nothing_where_many_are_at_it() {
        const ROUNDS: u32 = if cfg!(miri) { 100 } else { 50_000 };
        static POOL: Pool<u32> = Pool::new();
        POOL.put([&0; 8]);
        std::thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| (0..ROUNDS).for_each(|_| POOL.put(POOL.take())));
            }
        });
        assert_eq!(std::iter::from_fn(|| POOL.take()).count(), 8);
    }
}
