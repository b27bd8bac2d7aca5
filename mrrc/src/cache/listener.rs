//! What a monitor reports, put into the books; and what it is asked.
//!
//! A cache is the only one that calls its monitor, and this is the only place where it does.

use super::shared::Shared;
use crate::invalidation::{Change, Reports, Watch};
use crate::range::PageRange;
use crate::registrar::Registrar;
use crate::shim::sync::TryLockError;
use std::io;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// As good as for ever, and no more than a clock can hold.
const FAR: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// How a monitor knows the cache: without keeping it alive, for the cache owns its monitor.
struct Listener<R: Registrar>(Weak<Shared<R>>);

impl<R: Registrar> Reports for Listener<R> {
    fn raise(&self) {
        if let Some(shared) = self.0.upgrade() {
            shared.gate.raise();
        }
    }

    /// A change goes into the books at once if the lock is free.
    fn apply(&self, changes: &[Change]) -> bool {
        let Some(shared) = self.0.upgrade() else { return true };
        let now = Instant::now();
        let until = now.checked_add(shared.terms.bar).unwrap_or(now + FAR);
        let mut books = match shared.books.try_lock() {
            Ok(books) => books,
            Err(TryLockError::WouldBlock) => return false,
            // Nobody uses these books any more, and no hit may use what was found by them.
            Err(TryLockError::Poisoned(_)) => {
                shared.broken();
                return true;
            }
        };
        changes.iter().for_each(|&change| books.note_change(shared.desk(), change, now, until));
        drop(books);
        // What leaves is deregistered by somebody who may allocate.
        shared.work.notify_one();
        true
    }

    fn lower(&self) {
        if let Some(shared) = self.0.upgrade() {
            shared.gate.lower();
        }
    }
}

/// What a cache asks of its monitor. Never with a lock held.
#[expect(unsafe_code, reason = "a monitor's calls rely on who makes them")]
impl<R: Registrar> Shared<R> {
    /// Once, when the cache is made.
    pub(super) fn begin_to_listen(self: &Arc<Self>) -> io::Result<()> {
        let listener = Arc::new(Listener(Arc::downgrade(self)));
        // SAFETY: the monitor was given to this cache by value, and it reports to this cache.
        unsafe { self.monitor.start(listener) }
    }

    pub(super) fn watch(&self, range: PageRange) -> Watch {
        // SAFETY: the monitor was given to this cache by value.
        unsafe { self.monitor.watch(range) }
    }

    /// Once for each time that [`Shared::watch`] said that the range is watched, when nothing there is to be found any more.
    pub(super) fn unwatch(&self, range: PageRange) {
        // SAFETY: as above; each of those answers is noted with its placeholder, then with its entry, and then in
        // `to_unwatch`, and is taken from there to be given here.
        unsafe { self.monitor.unwatch(range) }
    }

    /// When the cache is closed.
    pub(super) fn end_listening(&self) {
        // SAFETY: as above; nothing is cached from now on, and nothing is found but by who has the cache, which is going.
        unsafe { self.monitor.stop() }
    }
}
