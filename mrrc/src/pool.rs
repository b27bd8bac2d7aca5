//! Things that are never freed and go from one cache to the next.

use std::sync::{Mutex, MutexGuard, TryLockError};

/// Things that are never freed, and are not in use.
///
/// No thread waits long for its lock, which may have been held at a fork. A thread that does not get it makes a new thing instead.
pub(crate) struct Pool<T: 'static>(Mutex<Vec<&'static T>>);

/// How often a thread yields to the one that holds a pool's lock, which takes some instructions. A thing that is not put back
/// because the lock cannot be had is leaked.
const TRIES: u32 = 100;

impl<T> Pool<T> {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
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
        for _ in 0..TRIES {
            match self.0.try_lock() {
                Ok(pool) => return Some(pool),
                Err(TryLockError::Poisoned(pool)) => return Some(pool.into_inner()),
                Err(TryLockError::WouldBlock) => std::thread::yield_now(),
            }
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
