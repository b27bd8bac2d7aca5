//! First in, first out.
//!
//! The region that was registered longest ago leaves, asked for or not. The least that a policy can do, and so what the
//! others are measured from; libCacheSim does the same. It knows no regions in use: those are set aside here when their
//! turn comes, and take their old place again when they are released.

use mrrc_core::policy::{Policy, parts::Queue};
use mrrc_core::{RegionId, Regions};

/// One queue. A hit does nothing.
#[derive(Debug)]
pub struct Fifo {
    queue: Queue,
}

impl Fifo {
    /// Returns an empty queue.
    pub fn new() -> Self {
        Self { queue: Queue::marking(1) }
    }
}

impl Default for Fifo {
    fn default() -> Self {
        Self::new()
    }
}

impl Policy for Fifo {
    fn insert(&mut self, regions: &mut Regions, id: RegionId) {
        self.queue.push(regions, id);
    }

    #[inline]
    fn touch(&mut self, _: &mut Regions, _: RegionId) {}

    fn remove(&mut self, regions: &mut Regions, id: RegionId) {
        self.queue.remove(regions, id);
    }

    fn victim(&mut self, regions: &mut Regions) -> Option<RegionId> {
        self.queue.take_idle(regions)
    }

    fn put_back(&mut self, regions: &mut Regions, id: RegionId) {
        self.queue.put_back(regions, id);
    }

    fn memory(&self) -> usize {
        self.queue.memory()
    }
}
