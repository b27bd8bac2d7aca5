//! Arrays that the owner of an index shares with its readers.
//!
//! They are made of zeroes that the system has ready, so the part that was never used takes address space and no memory.
#![expect(unsafe_code, reason = "the path of a hit: a slice is found past the count of its owners")]

use super::arena::Line;
use super::fork::Fork;
use super::leaf::Leaf;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// A shared array, and where it is: that saves a look-up the way past the count of its owners.
pub(super) struct Lines<T> {
    items: NonNull<T>,
    len: usize,
    kept: Arc<Memory>,
}

/// The memory of an array. The items have nothing to drop.
struct Memory {
    start: NonNull<u8>,
    layout: Layout,
}

/// An item that is nothing where it is all zeroes.
///
/// # Safety
/// All zeroes are a value of the type, and it has nothing to drop.
pub(super) unsafe trait Zeroed {}

// SAFETY: `Zeroed` asks for a type that zeroes are a value of: it is an integer.
unsafe impl Zeroed for AtomicU64 {}
// SAFETY: `Zeroed` asks for a type that zeroes are a value of: it is an array of integers.
unsafe impl Zeroed for Fork {}
// SAFETY: `Zeroed` asks for a type that zeroes are a value of: it is made of arrays of integers.
unsafe impl Zeroed for Leaf {}

// SAFETY: it is a shared slice of `T` and nothing else.
unsafe impl<T: Send + Sync> Send for Lines<T> {}
// SAFETY: it is a shared slice of `T` and nothing else, and a shared slice is `Sync` if `T` is `Send` and `Sync`.
unsafe impl<T: Send + Sync> Sync for Lines<T> {}

impl<T: Zeroed> Lines<T> {
    /// Returns an array of so many zeroes.
    pub(super) fn zeroed(len: usize) -> Self {
        Self::beginning_with(std::iter::empty(), len)
    }

    /// Returns an array of so many items: these, and then zeroes.
    fn beginning_with(first: impl ExactSizeIterator<Item = T>, len: usize) -> Self {
        assert!(first.len() <= len, "the first items are among all");
        let layout = Layout::array::<T>(len).ok().and_then(|items| {
            // The standard allocator has untouched memory for alignments up to 16 bytes only.
            Layout::from_size_align(items.size().checked_add(items.align())?, 16).ok()
        });
        let Some(layout) = layout else { panic!("an array of {len} lines is longer than memory") };
        // SAFETY: the layout has a size: that of an alignment at least.
        let Some(start) = NonNull::new(unsafe { alloc_zeroed(layout) }) else { handle_alloc_error(layout) };
        let ahead = start.align_offset(align_of::<T>());
        // SAFETY: it is less than the alignment, by which the memory is longer than the items.
        let items = unsafe { start.add(ahead) }.cast::<T>();
        for (nth, item) in first.enumerate() {
            // SAFETY: there are no more of them than `len`, for which there is room, aligned; and no other has the memory.
            unsafe { items.add(nth).write(item) };
        }
        Self { items, len, kept: Arc::new(Memory { start, layout }) }
    }
}

impl<T: Line + Zeroed> Lines<T> {
    /// Returns a longer array with the same lines.
    pub(super) fn grown(&self, more: usize) -> Self {
        Self::beginning_with(self.iter().map(T::copy_of), self.len + more)
    }
}

impl<T> Lines<T> {
    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.kept, &other.kept)
    }
}

impl<T> Clone for Lines<T> {
    fn clone(&self) -> Self {
        Self { kept: self.kept.clone(), ..*self }
    }
}

impl<T> Deref for Lines<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: `beginning_with` made so many items there, aligned: those that it wrote, and zeroes, which `Zeroed` says are
        // items too. The memory is kept.
        unsafe { std::slice::from_raw_parts(self.items.as_ptr(), self.len) }
    }
}

// SAFETY: it owns its memory, and has no reference to what is in it.
unsafe impl Send for Memory {}
// SAFETY: by itself it leads to nothing.
unsafe impl Sync for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the memory was allocated with this layout, and the last array of it is gone.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}
