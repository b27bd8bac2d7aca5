//! The buffer cache in front of the cache that is studied: it takes the short reuse distances away.

use crate::Span;
use lru::LruCache;
use mrrc_core::PAGE;
use rustc_hash::FxBuildHasher;

/// An LRU cache of pages.
pub(super) struct FirstLevel {
    held: LruCache<u64, (), FxBuildHasher>,
    pages: usize,
    evicted: bool,
}

impl FirstLevel {
    pub(super) fn new(bytes: u64) -> Self {
        Self { held: LruCache::unbounded_with_hasher(FxBuildHasher), pages: (bytes / PAGE) as usize, evicted: false }
    }

    /// Returns whether it ever had to let a page go.
    pub(super) fn was_full(&self) -> bool {
        self.pages == 0 || self.evicted
    }

    /// In pages.
    pub(super) fn size(&self) -> usize {
        self.pages
    }

    /// Returns whether all pages were there; afterwards they are.
    pub(super) fn absorbs(&mut self, span: Span) -> bool {
        let (first, last) = (span.address / PAGE, (span.address + span.length - 1) / PAGE);
        let mut all = true;
        for page in first..=last {
            all &= self.held.put(page, ()).is_some();
            if self.held.len() > self.pages {
                self.held.pop_lru();
                self.evicted = true;
            }
        }
        all
    }
}
