//! A table of tags as stores and connections share it.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::tags::{Limits, TagKind, Tags};
use crate::store::{Exposure, Extent, Replacement};

/// One fabric's table, behind its lock. Copies are of the same table.
pub struct SharedTags<K: TagKind>(Arc<Mutex<Tags<K>>>);

impl<K: TagKind> Clone for SharedTags<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K: TagKind> fmt::Debug for SharedTags<K> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("SharedTags")
    }
}

impl<K: TagKind> SharedTags<K> {
    /// An empty one.
    pub fn new(limits: Limits) -> Self {
        Self(Arc::new(Mutex::new(Tags::new(limits))))
    }

    /// The table. Whoever has it asks no store for anything: a store's lock is taken before this one.
    pub fn lock(&self) -> MutexGuard<'_, Tags<K>> {
        // A panic in the table is a bug; going on with what is there serves more than ending every connection would.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops what is over. It may take system calls: outside of all locks.
    pub fn drop_over(&self) {
        let over = self.lock().take_over();
        drop(over.tags);
        drop(over.records);
        drop(over.registrations);
    }

    /// For [`Store::attach`](crate::store::Store::attach), once for each store. `registered` says whether so many bytes
    /// from an address on are registered already and keeps them so; it is asked under a store's lock and must not wait.
    pub fn exposure<R>(&self, registered: R) -> Box<dyn Exposure>
    where
        K: 'static,
        K::Registration: Send,
        K::Record: Send,
        K::Tag: Send,
        R: FnMut(u64, u64) -> Option<K::Registration> + Send + 'static,
    {
        Box::new(Exposed { tags: self.clone(), registered })
    }
}

struct Exposed<K: TagKind, R> {
    tags: SharedTags<K>,
    registered: R,
}

impl<K, R> Exposure for Exposed<K, R>
where
    K: TagKind,
    K::Registration: Send,
    K::Record: Send,
    K::Tag: Send,
    R: FnMut(u64, u64) -> Option<K::Registration> + Send,
{
    fn replaced(&mut self, replacement: &Replacement<'_>) -> bool {
        self.tags.lock().replaced(replacement, &mut self.registered)
    }

    fn is_open(&mut self, chunk: Extent) -> bool {
        self.tags.lock().is_open(chunk)
    }

    fn ended(&mut self, chunk: Extent, _now: u64) {
        self.tags.lock().ended(chunk);
    }
}
