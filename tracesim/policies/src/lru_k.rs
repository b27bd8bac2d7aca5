//! LRU-K (O'Neil, O'Neil and Weikum, *The LRU-K page replacement algorithm for database disk
//! buffering*, SIGMOD 1993).
//!
//! The victim is the region whose K-th last reference is longest ago. Those with fewer than K references
//! have none, so they leave first, the least recently used among them ahead (the subsidiary policy of the
//! paper). The references of an evicted region are remembered for a while: otherwise a region could never
//! be asked for K times if it is evicted in between. Here that is in ghosts of one capacity of pages,
//! where the paper has a period of time. Time is counted in references, and the correlated reference
//! period is 0. libCacheSim's version forgets what is evicted and is FIFO below K references.

use mrrc_core::policy::{
    Policy, PolicyParams,
    parts::{Ghosts, Ordered, Queue},
};
use mrrc_core::{RegionId, Regions};
use std::collections::VecDeque;

/// The mark of regions with K references.
const RANKED: u8 = 2;

/// The last K references, oldest first.
type Times = VecDeque<u64>;

/// Regions by their K-th last reference.
#[derive(Debug)]
pub struct LruK {
    k: usize,
    clock: u64,
    /// Fewer than K references.
    few: Queue,
    /// By the K-th last reference.
    ranked: Ordered,
    /// By [`RegionId::index`].
    times: Vec<Times>,
    ghosts: Ghosts<Times>,
}

impl LruK {
    /// With the capacity and the K of the configuration.
    pub fn new(params: &PolicyParams) -> Self {
        Self {
            k: params.lru_k.max(1) as usize,
            clock: 0,
            few: Queue::marking(1),
            ranked: Ordered::default(),
            times: Vec::new(),
            ghosts: Ghosts::new(params.capacity),
        }
    }

    /// Notes a reference; returns the K-th last, if there are as many.
    fn refer(&mut self, id: RegionId) -> Option<f64> {
        self.clock += 1;
        let times = &mut self.times[id.index()];
        if times.len() == self.k {
            times.pop_front();
        }
        times.push_back(self.clock);
        // Exact: the clock would need centuries to pass 2^53.
        (times.len() == self.k).then(|| times[0] as f64)
    }
}

impl Policy for LruK {
    fn insert(&mut self, regions: &mut Regions, id: RegionId) {
        if self.times.len() <= id.index() {
            self.times.resize_with(id.index() + 1, Times::new);
        }
        self.times[id.index()] = self.ghosts.remove(regions.get(id).range()).unwrap_or_default();
        self.ghosts.trim();
        match self.refer(id) {
            Some(time) => {
                regions.get(id).set_mark(RANKED);
                self.ranked.insert(regions, id, time);
            }
            None => self.few.push(regions, id),
        }
    }

    fn touch(&mut self, regions: &mut Regions, id: RegionId) {
        match self.refer(id) {
            Some(time) if self.few.owns(regions, id) => {
                self.few.remove(regions, id);
                regions.get(id).set_mark(RANKED);
                self.ranked.insert(regions, id, time);
            }
            // The references that came back with a ghost can be older than those that the region was ranked by.
            Some(time) => self.ranked.raise(regions, id, time.max(regions.get(id).weight.get())),
            None if self.few.owns(regions, id) => self.few.raise(regions, id),
            // Its references went with its ghost while it was held: it stays where it is ranked.
            None => {}
        }
    }

    fn remove(&mut self, regions: &mut Regions, id: RegionId) {
        self.times[id.index()] = Times::new();
        if self.few.owns(regions, id) {
            self.few.remove(regions, id);
        } else {
            self.ranked.remove(regions, id);
        }
    }

    fn prepare(&mut self, _: &mut Regions) {
        self.ghosts.trim();
    }

    /// By default the second last use decides.
    fn max_touches(&self) -> u32 {
        2
    }

    fn victim(&mut self, regions: &mut Regions) -> Option<RegionId> {
        let id = self.few.take_idle(regions).or_else(|| self.ranked.take_idle(regions))?;
        self.ghosts.insert(regions.get(id).range(), std::mem::take(&mut self.times[id.index()]));
        Some(id)
    }

    fn put_back(&mut self, regions: &mut Regions, id: RegionId) {
        // A victim has left its references with its ghost; what was set aside still has them. The ghost can be another's:
        // a region of the same pages with rights for peers, or without.
        if self.times[id.index()].is_empty()
            && let Some(times) = self.ghosts.remove(regions.get(id).range())
        {
            self.times[id.index()] = times;
        }
        if self.few.owns(regions, id) {
            self.few.put_back(regions, id);
        } else {
            self.ranked.put_back(regions, id);
        }
    }

    fn memory(&self) -> usize {
        let each = size_of::<Times>() + self.k.max(4).next_power_of_two() * size_of::<u64>();
        self.ranked.memory() + self.ghosts.memory() + self.times.capacity() * each
    }
}
