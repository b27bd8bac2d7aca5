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
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The arrays of an index.
#[derive(Clone)]
pub(super) struct Edition {
    pub(super) blocks: Blocks,
    pub(super) forks: Arc<[Fork]>,
    pub(super) leaves: Arc<[Leaf]>,
}

impl Edition {
    /// Bytes of the arrays that another edition does not have too.
    pub(super) fn memory_beside(&self, other: Option<&Self>) -> usize {
        let shares = |same: fn(&Self, &Self) -> bool| other.is_some_and(|other| same(self, other));
        let mut bytes = 0;
        if !shares(|a, b| a.blocks.is_same(&b.blocks)) {
            bytes += self.blocks.memory();
        }
        if !shares(|a, b| Arc::ptr_eq(&a.forks, &b.forks)) {
            bytes += size_of_val(&*self.forks);
        }
        if !shares(|a, b| Arc::ptr_eq(&a.leaves, &b.leaves)) {
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
