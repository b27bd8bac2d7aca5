//! Regions that are being registered, under a [hard limit](Core::limit_hard).
//!
//! A gap is a region from the start: registering, held once, and found by look-ups, so that others wait for it and do not
//! register it again. The policy has it when it is published. Where a cached region is in the way (it is short of rights, it
//! is to be merged, or too many would overlap), the new one stands apart from the published ones: the old one serves hits
//! until the new one is published, and stays if that fails. One region that is being registered never replaces another: a
//! request that needs its place waits for it.

use super::plan::{Piece, Plan};
use super::{Core, Holders, Leavers, Request, Sharing};
use crate::policy::Policy;
use crate::regions::{RegionEvent, RegionId, RegionState};

impl<P: Policy> Core<P> {
    /// These regions were registered: they are cached from now on, and their request's holds end. Those in their way, and
    /// those that they cover where regions may [overlap](Core::use_one_key), retire. The returned regions are to be
    /// deregistered.
    ///
    /// # Panics
    /// If one is not registering.
    #[inline]
    pub fn publish(&mut self, ids: &[RegionId], holders: &mut impl Holders) -> &Leavers {
        self.outcome.leaving_mut().clear();
        if self.has_one_key() {
            ids.iter().for_each(|&id| self.displace_layers(id, holders));
        } else if self.lookup.has_replacements() {
            self.displace(ids, holders);
        }
        for &id in ids {
            self.regions.change(id, RegionEvent::Published);
            let region = self.regions.get(id);
            region.set_holds(region.holds() - 1);
            if region.holds() == 0 {
                self.capacity.release(region.pages());
            }
            self.evictor.admit(&mut self.regions, id);
        }
        self.outcome.leaving_mut()
    }

    /// Retires what is in the way of regions that are about to be published, and puts them among the published ones. The
    /// holders are asked once for all.
    #[inline(never)]
    fn displace(&mut self, ids: &[RegionId], holders: &mut impl Holders) {
        let mut plan = std::mem::take(&mut self.plan);
        plan.clear();
        let replacements = || ids.iter().copied().filter(|&id| self.lookup.is_replacement(id, &self.regions));
        replacements().for_each(|id| self.lookup.displaced(id, &self.regions, &mut plan.overlaps));
        // A region can be in the way of several.
        plan.overlaps.sort_unstable();
        plan.overlaps.dedup();
        plan.overlaps.retain(|&old| {
            let region = self.regions.get(old);
            let new = self.lookup.replacement_near(region.access().class(), region.range(), &self.regions);
            let is_short = new.is_some_and(|new| !region.access().contains(self.regions.get(new).access()));
            if is_short {
                plan.replaced.push(old);
            }
            !is_short
        });
        plan.short = plan.replaced.len();
        plan.replaced.append(&mut plan.overlaps);
        self.retire_displaced(&plan, holders);
        for &id in ids {
            if self.lookup.is_replacement(id, &self.regions) {
                self.lookup.remove(id, &self.regions);
                self.lookup.insert(id, &self.regions);
            }
        }
        self.plan = plan;
    }

    /// The same where regions may overlap.
    #[inline(never)]
    fn displace_layers(&mut self, id: RegionId, holders: &mut impl Holders) {
        let is_replacement = self.lookup.is_replacement(id, &self.regions);
        let region = self.regions.get(id);
        let piece = Piece { range: region.range(), access: region.access() };
        let mut plan = std::mem::take(&mut self.plan);
        plan.clear();
        let Some(layers) = self.lookup.layers(piece.access.class()) else { return };
        layers.overlaps(piece.range, &self.regions, &mut plan.replaced);
        plan.replaced.retain(|&other| other != id && self.is_covered(other, piece));
        plan.replaced.sort_by_key(|&id| self.regions.get(id).access() == piece.access);
        plan.short = plan.replaced.partition_point(|&id| self.regions.get(id).access() != piece.access);
        if is_replacement {
            plan.crowded = plan.replaced.len();
            let leaves = |other| self.is_covered(other, piece);
            layers.crowded_out(piece.range, &self.regions, leaves, &mut plan.replaced);
            plan.crowded = plan.replaced.len() - plan.crowded;
        }
        self.retire_displaced(&plan, holders);
        self.plan = plan;
        if is_replacement {
            self.lookup.remove(id, &self.regions);
            self.lookup.insert(id, &self.regions);
        }
    }

    /// Retires the regions that the plan replaces.
    fn retire_displaced(&mut self, plan: &Plan, holders: &mut impl Holders) {
        if plan.replaced.is_empty() {
            return;
        }
        self.unpublish(&plan.replaced, holders);
        self.counters.upgraded += plan.short as u64;
        self.counters.merged += (plan.replaced.len() - plan.short - plan.crowded) as u64;
        plan.replaced.iter().for_each(|&id| self.retire(id));
        self.close_batch();
    }

    /// The region that is being registered, in the place of others, and that is to serve the request.
    #[cold]
    pub(super) fn find_replacement(&self, request: &Request) -> Option<RegionId> {
        let classes = if request.sharing == Sharing::All {
            request.access.class()..2
        } else {
            request.access.class()..request.access.class() + 1
        };
        classes
            .into_iter()
            .find_map(|class| self.lookup.find_replacement(class, request.range, request.access, &self.regions))
    }

    /// A region that is being registered by another request and has a place that the plan needs.
    pub(super) fn in_the_way(&self, plan: &Plan) -> Option<RegionId> {
        if !self.capacity.is_hard() {
            return None;
        }
        let is_registering = |&&id: &&RegionId| self.regions.get(id).state() == RegionState::Registering;
        if let Some(&id) = plan.replaced.iter().find(is_registering) {
            return Some(id);
        }
        if !self.lookup.has_replacements() {
            return None;
        }
        plan.pieces
            .iter()
            .find_map(|piece| self.lookup.replacement_near(piece.access.class(), piece.range, &self.regions))
    }
}
