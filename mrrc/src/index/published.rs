//! Arrays that their owner changes and grows while other threads read them.
//!
//! The elements are atomics, so a reader can meet an array half changed, but never one that is gone: an
//! array that is outgrown is copied into one of twice the size, and the old *edition* stays for those
//! who still read it, until the whole index goes. All old editions together are smaller than the current
//! one. Where nobody but the owner reads, there are no editions: arrays grow by an eighth and the old one
//! is freed.
#![expect(unsafe_code, reason = "the path of a hit: one load leads to the newest edition")]

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The owner's hold of the array.
pub(super) struct Published<T> {
    current: Arc<[T]>,
    readers: Option<Arc<Editions<T>>>,
}

/// One state of the array that readers were shown.
struct Edition<T> {
    items: NonNull<T>,
    len: usize,
    _kept: Arc<[T]>,
}

/// What readers hold.
pub(super) struct Editions<T> {
    newest: AtomicPtr<Edition<T>>,
    #[expect(clippy::vec_box, reason = "readers point to editions, which must not move")]
    all: Mutex<Vec<Box<Edition<T>>>>,
}

// SAFETY: editions are shared slices of `T` and nothing else.
unsafe impl<T: Send + Sync> Send for Editions<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Editions<T> {}

impl<T> Editions<T> {
    /// The newest edition.
    #[inline(always)]
    pub(super) fn read(&self) -> &[T] {
        // Acquire, with the release in `publish`: what the array was filled with is seen.
        let newest = self.newest.load(Ordering::Acquire);
        // SAFETY: there is an edition from the beginning, it is boxed and kept in `all` as long as `self` is, and
        // it keeps its slice.
        unsafe { std::slice::from_raw_parts((*newest).items.as_ptr(), (*newest).len) }
    }

    fn new(items: Arc<[T]>) -> Self {
        let editions = Self { newest: AtomicPtr::new(std::ptr::null_mut()), all: Mutex::new(Vec::new()) };
        editions.publish(items);
        editions
    }

    fn publish(&self, items: Arc<[T]>) {
        let edition = Box::new(Edition { items: NonNull::from(&*items).cast(), len: items.len(), _kept: items });
        let newest = std::ptr::from_ref(&*edition).cast_mut();
        self.all.lock().unwrap_or_else(PoisonError::into_inner).push(edition);
        self.newest.store(newest, Ordering::Release);
    }

    fn total(&self) -> usize {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|edition| edition.len).sum()
    }
}

impl<T> Published<T> {
    pub(super) fn new(items: Arc<[T]>) -> Self {
        Self { current: items, readers: None }
    }

    /// From now on others may read.
    pub(super) fn share(&mut self) -> Arc<Editions<T>> {
        let current = &self.current;
        self.readers.get_or_insert_with(|| Arc::new(Editions::new(current.clone()))).clone()
    }

    pub(super) fn is_shared(&self) -> bool {
        self.readers.is_some()
    }

    /// Puts another array in the place of this one.
    pub(super) fn replace(&mut self, items: Arc<[T]>) {
        if let Some(readers) = &self.readers {
            readers.publish(items.clone());
        }
        self.current = items;
    }

    /// Bytes allocated, old editions included.
    pub(super) fn memory(&self) -> usize {
        self.readers.as_ref().map_or(self.current.len(), |readers| readers.total()) * size_of::<T>()
    }
}

impl<T> Deref for Published<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        &self.current
    }
}
