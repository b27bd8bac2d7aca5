//! Changes of memory that the program makes itself and tells of, from before they begin until after they are done.

use super::error::ChangeError;
use super::shared::Shared;
use crate::registrar::Registrar;
use std::fmt;

/// Memory that is about to change: as long as this lives, nothing of it is cached.
/// From [`Cache::changing`](crate::Cache::changing).
#[must_use = "the change is taken to be done when this is dropped"]
pub struct Changing<'cache, R: Registrar> {
    shared: &'cache Shared<R>,
    change: u64,
}

impl<'cache, R: Registrar> Changing<'cache, R> {
    pub(super) fn begin(shared: &'cache Shared<R>, address: usize, length: usize) -> Result<Self, ChangeError> {
        let range = crate::range::PageRange::of_bytes(address as u64, length as u64)?;
        let mut books = shared.lock()?;
        let change = books.change(shared.desk(), range);
        drop(books);
        shared.progress.notify_all();
        shared.work.notify_one();
        Ok(Self { shared, change })
    }
}

impl<R: Registrar> Drop for Changing<'_, R> {
    fn drop(&mut self) {
        if let Ok((mut books, _)) = self.shared.lock_now() {
            books.changed(self.change);
        }
    }
}

impl<R: Registrar> fmt::Debug for Changing<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Changing").field("change", &self.change).finish_non_exhaustive()
    }
}
