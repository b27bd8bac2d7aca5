//! Least recently used: the order that most registration caches share.
//!
//! They differ by their [`Scheme`] and how much they evict at a time, so each of them is a file that
//! states just that: [`pindown`](crate::policy::pindown) and [`fmrd`](crate::policy::fmrd) here, and seven of `tracesim-policies`.

use super::recency::Recency;
use crate::policy::{Need, Policy, Scheme};
use crate::regions::{RegionId, Regions};

/// An LRU stack under a scheme.
#[derive(Debug)]
pub struct Lru {
    stack: Recency,
    scheme: Scheme,
    batch_pages: u64,
    by_release: bool,
}

impl Lru {
    /// Evicts just enough.
    pub fn new(scheme: Scheme) -> Self {
        Self { stack: Recency::default(), scheme, batch_pages: 0, by_release: false }
    }

    /// Evicts at least this many pages at a time.
    pub fn in_batches_of(self, pages: u64) -> Self {
        Self { batch_pages: pages, ..self }
    }

    /// A region is as old as its last release, not its last use.
    pub fn by_release(self) -> Self {
        Self { by_release: true, ..self }
    }
}

impl Policy for Lru {
    fn scheme(&self) -> Scheme {
        self.scheme
    }

    fn insert(&mut self, _: &mut Regions, id: RegionId) {
        self.stack.insert(id);
    }

    #[inline]
    fn touch(&mut self, regions: &mut Regions, id: RegionId) {
        self.stack.raise(regions, id);
    }

    fn remove(&mut self, regions: &mut Regions, id: RegionId) {
        self.stack.remove(regions, id);
    }

    fn batch_size(&self, need: Need) -> Need {
        Need { pages: need.pages.max(self.batch_pages), regions: need.regions }
    }

    fn victim(&mut self, regions: &mut Regions) -> Option<RegionId> {
        self.stack.take_oldest(regions)
    }

    fn put_back(&mut self, regions: &mut Regions, id: RegionId) {
        self.stack.put_back(regions, id);
    }

    fn released(&mut self, regions: &mut Regions, id: RegionId) {
        if self.by_release {
            self.stack.raise(regions, id);
        }
    }

    fn memory(&self) -> usize {
        self.stack.memory()
    }
}
