//! The policy, and the victims that it proposes.

use super::capacity::Total;
use super::holders::Holders;
use crate::cost::Linear;
use crate::policy::{Need, Policy};
use crate::range::PageRange;
use crate::regions::{RegionId, RegionState, Regions};

/// Orders the cached regions. Owns the policy, and the lists of a run of *full*.
pub(super) struct Evictor<P> {
    policy: P,
    victims: Victims,
    /// Of the regions that were last to leave, those that are held.
    held_victims: Vec<RegionId>,
    /// Regions that were asked for without the core's knowledge.
    touched: Vec<RegionId>,
    /// Whether no more leaves than is needed.
    exact: bool,
}

/// Regions that are proposed to leave, in batches; none has left yet.
#[derive(Default)]
pub(super) struct Victims {
    pub(super) regions: Vec<RegionId>,
    /// The end of each batch in `regions`.
    pub(super) ends: Vec<usize>,
}

impl<P: Policy> Evictor<P> {
    pub(super) fn new(policy: P) -> Self {
        Self { policy, victims: Victims::default(), held_victims: Vec::new(), touched: Vec::new(), exact: false }
    }

    #[cfg(test)]
    pub(super) fn policy(&self) -> &P {
        &self.policy
    }

    /// See [`Policy::max_touches`].
    pub(super) fn max_touches(&self) -> u32 {
        self.policy.max_touches()
    }

    /// See [`Policy::costs`].
    pub(super) fn costs(&mut self, costs: &Linear) {
        self.policy.costs(costs);
    }

    /// Returns the bytes allocated by the policy.
    pub(super) fn memory(&self) -> usize {
        self.policy.memory()
    }

    /// A region is cached from now on.
    #[inline]
    pub(super) fn admit(&mut self, regions: &mut Regions, id: RegionId) {
        self.policy.insert(regions, id);
    }

    /// A region was asked for. One that is not cached is in no order.
    #[inline(always)]
    pub(super) fn touch(&mut self, regions: &mut Regions, id: RegionId) {
        if regions.is_ordered(id) || self.is_ordered_again(regions, id) {
            self.policy.touch(regions, id);
        }
    }

    /// Brings a cached region back into the order, and returns whether it is cached.
    #[cold]
    fn is_ordered_again(&mut self, regions: &mut Regions, id: RegionId) -> bool {
        let is_cached = regions.get(id).state() == RegionState::Cached;
        if is_cached {
            self.bring_back(regions, id);
        }
        is_cached
    }

    /// The last hold of a region ended.
    #[inline]
    pub(super) fn released(&mut self, regions: &mut Regions, id: RegionId) {
        if regions.get(id).aside() {
            self.bring_back(regions, id);
        }
        self.policy.released(regions, id);
    }

    /// A region leaves, and not as a victim.
    pub(super) fn forget(&mut self, regions: &mut Regions, id: RegionId) {
        if regions.get(id).aside() {
            self.bring_back(regions, id);
        }
        self.policy.remove(regions, id);
    }

    #[cold]
    fn bring_back(&mut self, regions: &mut Regions, id: RegionId) {
        regions.get(id).set_aside(false);
        self.policy.put_back(regions, id);
    }

    /// Puts a victim that stays back into the order.
    pub(super) fn reinsert(&mut self, regions: &mut Regions, id: RegionId) {
        self.policy.put_back(regions, id);
    }

    /// These ranges are about to be registered, and victims leave for them.
    pub(super) fn missed(&mut self, mut ranges: impl Iterator<Item = PageRange>) {
        self.policy.missed(&mut ranges);
    }

    /// From now on no more leaves at a time than is needed, or as much as the policy lets leave.
    pub(super) fn set_exact(&mut self, exact: bool) {
        self.exact = exact;
    }

    /// Returns how much one run takes. Where pages are there and only regions are missing, a batch is the same share of the
    /// regions that it is of the pages otherwise: a tenth of the pages can be more than all that a full table of small
    /// regions holds.
    pub(super) fn batch_size(&self, need: Need, limit: Total) -> Need {
        if self.exact {
            return need;
        }
        let batch = self.policy.batch_size(need);
        if need.pages > 0 {
            return batch;
        }
        let share = u128::from(batch.pages) * u128::from(limit.regions) / u128::from(limit.pages.max(1));
        Need { pages: 0, regions: batch.regions.max(u64::try_from(share).unwrap_or(u64::MAX)) }
    }

    /// Begins a run.
    pub(super) fn prepare(&mut self, regions: &mut Regions) {
        self.policy.prepare(regions);
    }

    /// Takes the next victim out of the order.
    #[inline]
    pub(super) fn victim(&mut self, regions: &mut Regions) -> Option<RegionId> {
        let id = self.policy.victim(regions)?;
        let victim = regions.get(id);
        // Policies can come from outside, and what is held must stay whatever they say.
        assert!(
            victim.state() == RegionState::Cached && !victim.in_use(),
            "the policy proposes {id:?}, which is in use or gone"
        );
        Some(id)
    }

    /// One run: appends a batch of victims, taken out of the order.
    pub(super) fn propose(&mut self, regions: &mut Regions, need: Need, limit: Total, proposed: &mut Vec<RegionId>) {
        self.prepare(regions);
        let mut missing = self.batch_size(need, limit);
        while !missing.is_met() {
            let Some(id) = self.victim(regions) else { break };
            missing = missing.less(regions.pages(id));
            proposed.push(id);
        }
    }

    /// Lends an empty list of victims; to be returned.
    pub(super) fn take_victims(&mut self) -> Victims {
        let mut victims = std::mem::take(&mut self.victims);
        victims.regions.clear();
        victims.ends.clear();
        victims
    }

    pub(super) fn return_victims(&mut self, victims: Victims) {
        self.victims = victims;
    }

    /// Asks which of the regions that are about to leave are held: [`Evictor::held_victims`] has them.
    pub(super) fn find_held(&mut self, leaving: &[RegionId], holders: &mut impl Holders) {
        self.held_victims.clear();
        holders.unpublish(leaving, &mut self.held_victims);
    }

    pub(super) fn held_victims(&self) -> &[RegionId] {
        &self.held_victims
    }

    /// Touches about so many regions that were asked for without the core's knowledge.
    pub(super) fn apply_touches(&mut self, regions: &mut Regions, most: usize, holders: &mut impl Holders) {
        let mut touched = std::mem::take(&mut self.touched);
        touched.clear();
        holders.touched(most, &mut touched);
        touched.iter().for_each(|&id| self.touch(regions, id));
        self.touched = touched;
    }
}
