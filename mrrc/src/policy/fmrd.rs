//! FMRD (Wu et al. 2003a): a pin-down cache that deregisters in batches.
//!
//! The fast registration of its name is a cost model, [`Linear::FMR`](crate::cost::Linear::FMR),
//! chosen apart.

use super::pindown::PinDown;
use super::{Need, Policy, Scheme};
use crate::config::Config;
use crate::regions::{RegionId, Regions};

/// Region LRU that evicts at least a fraction of the capacity at a time.
pub struct Fmrd {
    stack: PinDown,
    evict_pages: u64,
}

impl Fmrd {
    /// With the capacity and the evict fraction of the configuration.
    pub fn new(config: &Config) -> Self {
        Self { stack: PinDown::new(), evict_pages: config.pages_of(config.evict).max(1) }
    }
}

impl Policy for Fmrd {
    fn scheme(&self) -> Scheme {
        Scheme::default()
    }

    fn insert(&mut self, regions: &mut Regions, id: RegionId) {
        self.stack.insert(regions, id);
    }

    fn touch(&mut self, regions: &mut Regions, id: RegionId) {
        self.stack.touch(regions, id);
    }

    fn remove(&mut self, regions: &mut Regions, id: RegionId) {
        self.stack.remove(regions, id);
    }

    fn goal(&self, need: Need) -> Need {
        Need { pages: need.pages.max(self.evict_pages), regions: need.regions }
    }

    fn victim(&mut self, regions: &mut Regions) -> Option<RegionId> {
        self.stack.victim(regions)
    }

    fn put_back(&mut self, regions: &mut Regions, id: RegionId) {
        self.stack.put_back(regions, id);
    }

    fn memory(&self) -> usize {
        self.stack.memory()
    }
}
