//! No cache: register and deregister at each request. The baseline of every cache.

use super::{Keeps, Policy, Scheme};
use crate::regions::{RegionId, Regions};

/// Keeps nothing, so it never has a region to order.
#[derive(Debug, Default)]
pub struct NoCache;

impl Policy for NoCache {
    fn scheme(&self) -> Scheme {
        Scheme { keeps: Keeps::Nothing, ..Scheme::default() }
    }

    fn insert(&mut self, _: &mut Regions, _: RegionId) {}

    fn touch(&mut self, _: &mut Regions, _: RegionId) {}

    fn remove(&mut self, _: &mut Regions, _: RegionId) {}

    fn victim(&mut self, _: &mut Regions) -> Option<RegionId> {
        None
    }

    fn put_back(&mut self, _: &mut Regions, _: RegionId) {}
}
