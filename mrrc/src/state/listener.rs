//! A monitor's reports, put into the state.

use crate::invalidation::{Change, Reports};
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
        shared.wake_background();
        true
    }

    fn lower(&self) {
        if let Some(shared) = self.0.upgrade() {
            shared.tables.gate.lower();
        }
    }
}

/// Has the monitor of a cache report to it. Once, when the cache is made.
pub(crate) fn begin_to_listen<R: Registrar>(shared: &Arc<Shared<R>>) -> io::Result<()> {
    shared.monitor.start(Arc::new(Listener(Arc::downgrade(shared))))
}
