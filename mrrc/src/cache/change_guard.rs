//! Changes of memory that the program makes itself and tells of, from before they begin until after they are done.

use crate::error::ChangeError;
use crate::registrar::Registrar;
use crate::state::shared::Shared;
use std::fmt;

/// Memory that is about to change: as long as this lives, nothing of it is cached.
/// From [`Cache::begin_change`](crate::Cache::begin_change).
#[must_use = "the change is taken to be done when this is dropped"]
pub struct ChangeGuard<'cache, R: Registrar> {
    shared: &'cache Shared<R>,
    change: u64,
}

impl<'cache, R: Registrar> ChangeGuard<'cache, R> {
    pub(crate) fn begin(shared: &'cache Shared<R>, address: usize, length: usize) -> Result<Self, ChangeError> {
        let range = crate::range::PageRange::of_bytes(address as u64, length as u64)?;
        let mut state = shared.lock()?;
        let change = state.begin_change(&shared.tables, range);
        let wakes = state.in_flight.take_all_waiters();
        drop(state);
        shared.wake(wakes);
        shared.wake_background();
        Ok(Self { shared, change })
    }
}

impl<R: Registrar> Drop for ChangeGuard<'_, R> {
    fn drop(&mut self) {
        if let Ok((mut state, _)) = self.shared.lock_now() {
            state.changes.end(self.change);
        }
    }
}

impl<R: Registrar> fmt::Debug for ChangeGuard<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChangeGuard").field("change", &self.change).finish_non_exhaustive()
    }
}
