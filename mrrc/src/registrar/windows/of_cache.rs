//! The windows of a cache, counted.

use super::PeerWindows;
use crate::access::Access;
use crate::shim::sync::atomic::{AtomicU64, Ordering};
use std::io;
use std::sync::Arc;

/// The windows of a cache, and their counts.
pub(crate) struct CacheWindows<T> {
    by: Arc<dyn PeerWindows<T>>,
    bound: AtomicU64,
    failed: AtomicU64,
}

impl<T> CacheWindows<T> {
    pub(crate) fn new(by: Arc<dyn PeerWindows<T>>) -> Self {
        Self { by, bound: AtomicU64::new(0), failed: AtomicU64::new(0) }
    }

    pub(crate) fn rights(&self) -> Access {
        self.by.rights()
    }

    pub(crate) fn trouble(&self) -> Option<String> {
        self.by.trouble()
    }

    /// As [`PeerWindows::bind`].
    pub(crate) fn bind(&self, registration: &T, address: usize, length: usize, rights: Access) -> io::Result<u32> {
        let key = self.by.bind(registration, address, length, rights);
        if key.is_ok() { &self.bound } else { &self.failed }.fetch_add(1, Ordering::Relaxed);
        key
    }

    /// As [`PeerWindows::unbind`].
    pub(crate) fn unbind(&self, key: u32) -> io::Result<()> {
        self.by.unbind(key).inspect_err(|_| _ = self.failed.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns how often a window was bound, and how often one could not be bound or unbound.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.bound.load(Ordering::Relaxed), self.failed.load(Ordering::Relaxed))
    }
}
