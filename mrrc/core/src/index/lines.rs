//! Arrays that the owner of an index shares with its readers.
#![expect(unsafe_code, reason = "the path of a hit: a slice is found past the count of its owners")]

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

/// A shared array, and where it is: that saves a look-up the way past the count of its owners.
pub(super) struct Lines<T> {
    items: NonNull<T>,
    len: usize,
    kept: Arc<[T]>,
}

// SAFETY: it is a shared slice of `T` and nothing else.
unsafe impl<T: Send + Sync> Send for Lines<T> {}
// SAFETY: it is a shared slice of `T` and nothing else, and a shared slice is `Sync` if `T` is `Send` and `Sync`.
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
