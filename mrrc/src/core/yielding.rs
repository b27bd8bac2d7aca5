//! What a request replaces stands until its replacement does.
//!
//! More rights, or one region in the place of several, take a registration that can fail. Under a hard limit the regions
//! that give way are out of policy and index from the start, so that nobody meets both, and are held for whoever
//! registers: they leave when that is done ([`Core::give_way`]), or come back ([`Core::come_back`]). Where there is no room
//! for both they leave before, as victims do. A region that is in use takes no room that could be had.

use super::outcome::Gives;
use super::plan::Plan;
use super::{Core, Leavers, Lookup, Yielding};
use crate::policy::Policy;
use crate::regions::{RegionId, State};

impl<P: Policy> Core<P> {
    /// What the plan replaces leaves, or yields if that can be undone. It has stepped aside.
    pub(super) fn part_with(&mut self, plan: &Plan, fits_beside: bool) {
        let crowded_from = plan.replaced.len() - plan.crowded;
        for (nth, &region) in plan.replaced.iter().enumerate() {
            if self.hard_limit && (fits_beside || self.regions.get(region).in_use()) {
                self.hold(region);
                let why = match nth {
                    _ if nth < plan.short => Gives::Rights,
                    _ if nth < crowded_from => Gives::Pages,
                    _ => Gives::Place,
                };
                self.outcome.push_yielding(Yielding { region, why });
            } else {
                self.leave_now_or_later(region);
            }
        }
    }

    /// What took the place of these regions stands: they leave now, or with their last lease. What is returned is to be
    /// deregistered, in one batch.
    ///
    /// # Panics
    /// If one of them is not held.
    pub fn give_way(&mut self, regions: impl IntoIterator<Item = RegionId>) -> &Leavers {
        self.outcome.leaving_mut().clear();
        regions.into_iter().for_each(|id| self.let_lease_go(id));
        self.close_batch();
        self.outcome.leaving_mut()
    }

    /// What was to take the place of a region did not come about: the region is found again, as the one used last.
    /// False, and nothing is done, if another region has pages of it by now; where regions may overlap, if another serves
    /// whatever it would, or too many overlap it.
    ///
    /// # Panics
    /// If it is not held.
    pub fn come_back(&mut self, yielding: Yielding) -> bool {
        let Yielding { region: id, why } = yielding;
        let region = self.regions.get(id);
        assert!(region.state() == State::Retired && region.in_use(), "{id:?} has stepped aside, and is held");
        let range = region.range();
        let mut taken = false;
        match &self.lookups[region.access().class()] {
            Lookup::Contain(index) => index.for_each_overlap(range, &self.regions, |_| taken = true),
            Lookup::Layers(layers) => {
                let serves = |other| self.regions.get(other).access().contains(region.access());
                taken = layers.find(range, &self.regions, serves).is_some() || !layers.has_room(range, &self.regions);
            }
            Lookup::Exact(regions) => taken = regions.contains_key(&range),
        }
        if !taken {
            match why {
                Gives::Rights => self.counters.upgraded -= 1,
                Gives::Pages => self.counters.merged -= 1,
                Gives::Place => {}
            }
            self.step_back(id);
            self.unhold(id);
        }
        !taken
    }
}
