//! A bound on what is registered for transfers that are under way: the other half of the registered memory is for tags.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use mrrc::PAGE;

/// The bound, in pages, and what is taken of it.
#[derive(Debug)]
pub(super) struct Budget {
    most: u64,
    taken: AtomicU64,
}

/// Pages that are taken, until this is dropped.
#[derive(Debug)]
pub(super) struct Room {
    of: Arc<Budget>,
    pages: u64,
}

/// Pages that so many bytes are on at most.
pub(super) fn pages_of(bytes: u64) -> u64 {
    bytes.div_ceil(PAGE) + 1
}

impl Budget {
    pub(super) fn new(most: u64) -> Arc<Self> {
        Arc::new(Self { most, taken: AtomicU64::new(0) })
    }

    /// Room for so many bytes, if there is any now.
    pub(super) fn take(self: &Arc<Self>, bytes: u64) -> Option<Room> {
        let pages = pages_of(bytes);
        let more = |taken: u64| taken.checked_add(pages).filter(|&taken| taken <= self.most);
        self.taken.fetch_update(Relaxed, Relaxed, more).ok().map(|_| Room { of: self.clone(), pages })
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.of.taken.fetch_sub(self.pages, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_never_exceeds_and_drops_return() {
        let budget = Budget::new(10);
        let four = budget.take(3 * PAGE).unwrap();
        assert!(budget.take(6 * PAGE).is_none());
        let six = budget.take(5 * PAGE).unwrap();
        assert!(budget.take(0).is_none(), "not even one page");
        drop(four);
        assert!(budget.take(3 * PAGE).is_some());
        drop(six);
        assert!(budget.take(9 * PAGE).is_some() && budget.take(u64::MAX).is_none());
    }
}
