//! A monitor's reports, put into the state; and the queries to it.
//!
//! A cache is the only one that calls its monitor, and this is the only place where it does.

use crate::invalidation::{Change, Reports, Watch};
use crate::range::PageRange;
use crate::registrar::Registrar;
use crate::shim::sync::TryLockError;
use crate::state::shared::Shared;
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
            shared.tables.gate.raise();
        }
    }

    /// A change goes into the state at once if the lock is free.
    fn apply(&self, changes: &[Change]) -> bool {
        let Some(shared) = self.0.upgrade() else { return true };
        let now = Instant::now();
        let until = now.checked_add(shared.settings.grace).unwrap_or(now + FAR);
        let mut state = match shared.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::WouldBlock) => return false,
            // No thread uses this state any more, and no hit may use anything found by it.
            Err(TryLockError::Poisoned(_)) => {
                shared.broken();
                return true;
            }
        };
        changes.iter().for_each(|&change| state.note_change(&shared.tables, change, now, until));
        drop(state);
        // Regions that leave are deregistered by a thread that may allocate.
        shared.work.notify_one();
        true
    }

    fn lower(&self) {
        if let Some(shared) = self.0.upgrade() {
            shared.tables.gate.lower();
        }
    }
}

/// A cache's queries to its monitor. Never with a lock held.
#[expect(unsafe_code, reason = "a monitor's calls rely on who makes them")]
impl<R: Registrar> Shared<R> {
    /// Once, when the cache is made.
    pub(crate) fn begin_to_listen(self: &Arc<Self>) -> io::Result<()> {
        let listener = Arc::new(Listener(Arc::downgrade(self)));
        // SAFETY: the monitor was given to this cache by value, and it reports to this cache.
        unsafe { self.monitor.start(listener) }
    }

    pub(crate) fn watch(&self, range: PageRange) -> Watch {
        // SAFETY: the monitor was given to this cache by value.
        unsafe { self.monitor.watch(range) }
    }

    /// Once for each time that [`Shared::watch`] said that the range is watched, when nothing there is to be found any more.
    pub(crate) fn unwatch(&self, range: PageRange) {
        // SAFETY: `unwatch` may be called once for each answer `Watched`; each is noted with its placeholder, then with
        // its entry, and then in `to_unwatch`, and is taken from there to be given here.
        unsafe { self.monitor.unwatch(range) }
    }

    /// When the cache is closed.
    pub(crate) fn end_listening(&self) {
        // SAFETY: `stop` requires that this cache relies on no answer any more: nothing is cached from now on, and only
        // the owner of the cache, which is going, finds anything.
        unsafe { self.monitor.stop() }
    }
}
