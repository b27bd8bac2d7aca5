//! Arrays that their owner changes and grows while other threads read them.
//!
//! The elements are atomics, so a reader can meet an array half changed, but never one that is gone: an
//! array that is outgrown is copied into one of twice the size, and the old *edition* stays for those
//! who still read it, until the whole index goes. All old editions together are smaller than the current
//! one. Where nobody but the owner reads, there are no editions: arrays grow by an eighth and the old one
//! is freed.

use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Doubling from eight elements, the last edition has room for all that can be numbered.
const EDITIONS: usize = 32;

/// The owner's hold of the array.
pub(super) struct Published<T> {
    current: Arc<[T]>,
    readers: Option<Arc<Editions<T>>>,
}

/// What readers hold.
pub(super) struct Editions<T> {
    newest: AtomicUsize,
    all: [OnceLock<Arc<[T]>>; EDITIONS],
}

impl<T> Editions<T> {
    /// The newest edition.
    #[inline(always)]
    pub(super) fn read(&self) -> &[T] {
        // Acquire, with the release in `publish`: what the array was filled with is seen.
        match self.all[self.newest.load(Ordering::Acquire) % EDITIONS].get() {
            Some(items) => items,
            None => &[],
        }
    }

    fn publish(&self, items: Arc<[T]>) {
        // Out of editions readers keep the last: they miss what is new and ask the owner instead.
        if let Some(edition) = self.all.iter().position(|edition| edition.get().is_none()) {
            _ = self.all[edition].set(items);
            self.newest.store(edition, Ordering::Release);
        }
    }
}

impl<T> Published<T> {
    pub(super) fn new(items: Arc<[T]>) -> Self {
        Self { current: items, readers: None }
    }

    /// From now on others may read.
    pub(super) fn share(&mut self) -> Arc<Editions<T>> {
        let current = &self.current;
        let readers = self.readers.get_or_insert_with(|| {
            let editions = Editions { newest: AtomicUsize::new(0), all: [const { OnceLock::new() }; EDITIONS] };
            editions.publish(current.clone());
            Arc::new(editions)
        });
        readers.clone()
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
        let elements = match &self.readers {
            None => self.current.len(),
            Some(readers) => readers.all.iter().filter_map(OnceLock::get).map(|items| items.len()).sum(),
        };
        elements * size_of::<T>()
    }
}

impl<T> Deref for Published<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        &self.current
    }
}
