//! Widening: [`probation`](mrrc_core::policy::probation), and misses that register their neighbours where that was seen to pay.
//!
//! The core learns by how much to widen. This policy only turns it on; `--widen` does so for any policy.

use mrrc_core::cost::Linear;
use mrrc_core::policy::probation::Probation;
use mrrc_core::policy::{Need, Policy, PolicyParams, Scheme};
use mrrc_core::{PageRange, RegionId, Regions};

/// Probation, widening.
#[derive(Debug)]
pub struct Widening(Probation);

impl Widening {
    /// With the capacity and the cost model of the configuration.
    pub fn new(params: &PolicyParams) -> Self {
        Self(Probation::new(params))
    }
}

impl Policy for Widening {
    fn scheme(&self) -> Scheme {
        Scheme { widens: true, ..self.0.scheme() }
    }
    fn missed(&mut self, ranges: &mut dyn Iterator<Item = PageRange>) {
        self.0.missed(ranges);
    }
    fn insert(&mut self, regions: &mut Regions, id: RegionId) {
        self.0.insert(regions, id);
    }
    fn touch(&mut self, regions: &mut Regions, id: RegionId) {
        self.0.touch(regions, id);
    }
    fn remove(&mut self, regions: &mut Regions, id: RegionId) {
        self.0.remove(regions, id);
    }
    fn victim(&mut self, regions: &mut Regions) -> Option<RegionId> {
        self.0.victim(regions)
    }
    fn put_back(&mut self, regions: &mut Regions, id: RegionId) {
        self.0.put_back(regions, id);
    }
    fn released(&mut self, regions: &mut Regions, id: RegionId) {
        self.0.released(regions, id);
    }
    fn costs(&mut self, costs: &Linear) {
        self.0.costs(costs);
    }
    fn max_touches(&self) -> u32 {
        self.0.max_touches()
    }
    fn prepare(&mut self, regions: &mut Regions) {
        self.0.prepare(regions);
    }
    fn batch_size(&self, need: Need) -> Need {
        self.0.batch_size(need)
    }
    fn memory(&self) -> usize {
        self.0.memory()
    }
}
