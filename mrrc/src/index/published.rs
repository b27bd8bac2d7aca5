//! What look-ups read, while its owner changes and grows it.
//!
//! The elements are atomics, so a reader can meet an array half changed, but never one that is gone: an
//! array that is outgrown is copied into one of twice the size, and the old *edition* stays for those
//! who still read it, until the whole index goes. All old arrays of a kind together are smaller than the
//! current one. Where nobody but the owner reads, there are no editions: arrays grow by an eighth and the old one
//! is freed.
#![expect(unsafe_code, reason = "the path of a hit: one load leads to the newest edition")]

use super::blocks::Blocks;
use super::fork::Fork;
use super::leaf::Leaf;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A shared array, and where it is: that saves a look-up the way past the count of its owners.
pub(super) struct Lines<T> {
    items: NonNull<T>,
    len: usize,
    kept: Arc<[T]>,
}

// SAFETY: it is a shared slice of `T` and nothing else.
unsafe impl<T: Send + Sync> Send for Lines<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Lines<T> {}

impl<T> From<Arc<[T]>> for Lines<T> {
    fn from(kept: Arc<[T]>) -> Self {
        Self { items: NonNull::from(&*kept).cast(), len: kept.len(), kept }
    }
}

impl<T> Lines<T> {
    pub(super) fn empty() -> Self {
        Arc::<[T]>::from([]).into()
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.kept, &other.kept)
    }
}

impl<T> Clone for Lines<T> {
    fn clone(&self) -> Self {
        self.kept.clone().into()
    }
}

impl<T> Deref for Lines<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: `From` took both from the slice that is kept.
        unsafe { std::slice::from_raw_parts(self.items.as_ptr(), self.len) }
    }
}

/// The arrays of an index.
#[derive(Clone)]
pub(super) struct Edition {
    pub(super) blocks: Blocks,
    pub(super) forks: Lines<Fork>,
    pub(super) leaves: Lines<Leaf>,
}

impl Edition {
    /// Bytes of the arrays that another edition does not have too.
    pub(super) fn memory_beside(&self, other: Option<&Self>) -> usize {
        let shares = |same: fn(&Self, &Self) -> bool| other.is_some_and(|other| same(self, other));
        let mut bytes = 0;
        if !shares(|a, b| a.blocks.is_same(&b.blocks)) {
            bytes += self.blocks.memory();
        }
        if !shares(|a, b| a.forks.is_same(&b.forks)) {
            bytes += size_of_val(&*self.forks);
        }
        if !shares(|a, b| a.leaves.is_same(&b.leaves)) {
            bytes += size_of_val(&*self.leaves);
        }
        bytes
    }
}

/// What readers hold.
pub(super) struct Editions {
    newest: AtomicPtr<Edition>,
    all: Mutex<Vec<Arc<Edition>>>,
}

impl Editions {
    pub(super) fn new(first: Edition) -> Self {
        let editions = Self { newest: AtomicPtr::default(), all: Mutex::default() };
        editions.publish(first);
        editions
    }

    /// The newest edition.
    #[inline(always)]
    pub(super) fn read(&self) -> &Edition {
        // Acquire, with the release in `publish`: what the arrays were filled with is seen.
        let newest = self.newest.load(Ordering::Acquire);
        // SAFETY: there is an edition from the beginning, and `all` keeps each as long as `self` is there.
        unsafe { &*newest }
    }

    pub(super) fn publish(&self, edition: Edition) {
        let edition = Arc::new(edition);
        let newest = Arc::as_ptr(&edition).cast_mut();
        self.all.lock().unwrap_or_else(PoisonError::into_inner).push(edition);
        self.newest.store(newest, Ordering::Release);
    }

    /// Bytes allocated, old editions included.
    pub(super) fn memory(&self) -> usize {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let before = [None].into_iter().chain(all.iter().map(Some));
        // An array is in editions that follow each other.
        let arrays = all.iter().zip(before).map(|(edition, before)| edition.memory_beside(before.map(|arc| &**arc)));
        arrays.sum::<usize>() + all.len() * size_of::<Edition>()
    }
}
