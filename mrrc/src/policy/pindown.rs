//! The pin-down cache of Tezuka et al. 1998: least recently used, just enough, one at a time.

use super::recency::Recency;
use super::{Deregistration, Policy, Scheme};
use crate::regions::{RegionId, Regions};

/// Region LRU.
#[derive(Default)]
pub struct PinDown {
    stack: Recency,
}

impl PinDown {
    /// An empty stack.
    pub fn new() -> Self {
        Self::default()
    }
}

impl Policy for PinDown {
    fn scheme(&self) -> Scheme {
        Scheme { deregistration: Deregistration::Single, ..Scheme::default() }
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

    fn victim(&mut self, regions: &mut Regions) -> Option<RegionId> {
        self.stack.take_oldest(regions)
    }

    fn put_back(&mut self, regions: &mut Regions, id: RegionId) {
        self.stack.put_back(regions, id);
    }

    fn memory(&self) -> usize {
        self.stack.memory()
    }
}
