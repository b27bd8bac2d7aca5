//! A store of regions for tests of a policy by itself, without a core.

use super::Policy;
use crate::access::Access;
use crate::range::PageRange;
use crate::regions::{RegionId, RegionState, Regions};

/// Returns an empty store.
pub fn regions() -> Regions {
    Regions::new()
}

/// Inserts a region with the right to read; the policy has not heard of it yet.
pub fn insert(regions: &mut Regions, range: PageRange) -> RegionId {
    regions.insert_with(range, Access::LOCAL_READ, RegionState::Cached)
}

/// Removes a region that the policy no longer lists.
pub fn remove(regions: &mut Regions, id: RegionId) {
    regions.remove(id);
}

/// A range enters, is evicted, comes back after all, leaves for another reason and enters again. Every policy with ghosts has to
/// take it for as new as the first time. Returns the region.
///
/// # Panics
/// If the policy does not propose the region as a victim.
pub fn returns_without_a_ghost(policy: &mut impl Policy, regions: &mut Regions, range: PageRange) -> RegionId {
    let id = insert(regions, range);
    policy.insert(regions, id);
    assert_eq!(policy.victim(regions), Some(id));
    policy.put_back(regions, id);
    policy.remove(regions, id);
    regions.remove(id);
    let id = insert(regions, range);
    policy.insert(regions, id);
    id
}
