//! What a monitor reports, put into the books.

use super::shared::Shared;
use crate::invalidation::{Change, Reports};
use crate::registrar::Registrar;
use crate::shim::sync::TryLockError;
use std::sync::Weak;
use std::time::{Duration, Instant};

/// As good as for ever, and no more than a clock can hold.
const FAR: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// How a monitor knows the cache: without keeping it alive, for the cache owns its monitor.
pub(super) struct Listener<R: Registrar>(pub(super) Weak<Shared<R>>);

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
        changes.iter().for_each(|&change| books.note_change(shared.desk(), change, until));
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
