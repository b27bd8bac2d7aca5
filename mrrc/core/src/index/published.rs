//! The arrays that look-ups read, while the owner changes and grows them.
//!
//! The elements are atomics, so a reader can meet an array half changed, but never one that is gone. An outgrown
//! array is copied into a longer one, and the old *edition* stays for its readers, until the whole index goes. Lines grow
//! to four times as many, so all old arrays together have a third of what is in use. The unused rest of the newest takes no memory.
//! Where only the owner reads, there are no editions: arrays grow by an eighth and the old one is freed.
//!
//! Where the newest arrays are, and how long, stands in one line for all readers. A pointer and a length are not written
//! at once: the pointer comes first, and a reader reads the length first. Arrays that readers see never shrink, so what a
//! reader finds is at least as long as it believes. Arrays of different editions are as good as lines that change.
#![expect(unsafe_code, reason = "the path of a hit: one line leads to the newest arrays")]

use super::blocks::Blocks;
use super::fork::Fork;
use super::leaf::Leaf;
use super::lines::Lines;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

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

/// The arrays that a look-up reads: the owner's, or what readers see of them.
pub(super) trait Arrays {
    fn places(&self) -> &[AtomicU64];
    fn fork(&self, number: usize) -> Option<&Fork>;
    fn leaf(&self, number: usize) -> Option<&Leaf>;
}

impl Arrays for Edition {
    #[inline(always)]
    fn places(&self) -> &[AtomicU64] {
        self.blocks.all()
    }

    #[inline(always)]
    fn fork(&self, number: usize) -> Option<&Fork> {
        self.forks.get(number)
    }

    #[inline(always)]
    fn leaf(&self, number: usize) -> Option<&Leaf> {
        self.leaves.get(number)
    }
}

/// The newest array of a kind, for readers.
struct Newest<T> {
    len: AtomicUsize,
    items: AtomicPtr<T>,
}

impl<T> Newest<T> {
    fn none() -> Self {
        Self { len: AtomicUsize::new(0), items: AtomicPtr::new(NonNull::dangling().as_ptr()) }
    }

    /// Shows an array. By one thread at a time.
    fn show(&self, array: &[T]) {
        assert!(array.len() >= self.len.load(Ordering::Relaxed), "what readers see never shrinks");
        // Release: the array's content is seen; and a reader of the length finds this array, or a later one.
        self.items.store(std::ptr::from_ref(array).cast_mut().cast(), Ordering::Release);
        self.len.store(array.len(), Ordering::Release);
    }

    /// # Safety
    /// All arrays that were shown are there as long as the answer is used.
    #[inline(always)]
    unsafe fn read(&self) -> &[T] {
        // Acquire, in this order: the array is that of the length, or a later one, which is no shorter.
        let len = self.len.load(Ordering::Acquire);
        let items = self.items.load(Ordering::Acquire);
        // SAFETY: the caller promises that the array last stored is alive; it has at least `len` items, and none stored
        // is an array of no items.
        unsafe { std::slice::from_raw_parts(items, len) }
    }

    /// Returns the item of this number. Where there is none, where the items are is not read.
    ///
    /// # Safety
    /// All arrays that were shown are there as long as the answer is used.
    #[inline(always)]
    unsafe fn get(&self, number: usize) -> Option<&T> {
        // Acquire, in this order: see `read`.
        if number >= self.len.load(Ordering::Acquire) {
            return None;
        }
        let items = self.items.load(Ordering::Acquire);
        // SAFETY: the caller promises that the array last stored is alive; it has more than `number` items.
        Some(unsafe { &*items.add(number) })
    }
}

/// The editions that readers hold. The part that they read lies in one line.
#[repr(C, align(64))]
pub(super) struct Editions {
    places: Newest<AtomicU64>,
    leaves: Newest<Leaf>,
    forks: Newest<Fork>,
    all: Mutex<Vec<Edition>>,
}

const _: () = assert!(std::mem::offset_of!(Editions, all) <= 64);

impl Arrays for Editions {
    #[inline(always)]
    fn places(&self) -> &[AtomicU64] {
        // SAFETY: `all` keeps each array that was shown as long as `self` is there.
        unsafe { self.places.read() }
    }

    #[inline(always)]
    fn fork(&self, number: usize) -> Option<&Fork> {
        // SAFETY: `all` keeps each array that was shown as long as `self` is there.
        unsafe { self.forks.get(number) }
    }

    #[inline(always)]
    fn leaf(&self, number: usize) -> Option<&Leaf> {
        // SAFETY: `all` keeps each array that was shown as long as `self` is there.
        unsafe { self.leaves.get(number) }
    }
}

impl Editions {
    pub(super) fn new(first: Edition) -> Self {
        let (places, leaves, forks) = (Newest::none(), Newest::none(), Newest::none());
        let editions = Self { places, leaves, forks, all: Mutex::default() };
        editions.publish(first);
        editions
    }

    pub(super) fn publish(&self, edition: Edition) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(edition);
        if let Some(edition) = all.last() {
            // The kept array is the shown one: the items stay where they are when the list of editions grows.
            self.leaves.show(&edition.leaves);
            self.forks.show(&edition.forks);
            self.places.show(edition.blocks.all());
        }
    }

    /// Bytes allocated, old editions included.
    pub(super) fn memory(&self) -> usize {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let before = [None].into_iter().chain(all.iter().map(Some));
        // An array is in editions that follow each other.
        let arrays = all.iter().zip(before).map(|(edition, before)| edition.memory_beside(before));
        arrays.sum::<usize>() + all.len() * size_of::<Edition>()
    }
}
