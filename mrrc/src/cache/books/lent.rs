//! Regions that the core holds on account of leases that it does not know: what was found in use when it was to leave, and
//! what is registered for one lease.
//!
//! A region is *fresh* at first: whoever sweeps looks whether leases still have it. What leases have for long is *awaited*:
//! they tell when they end, and nobody looks until then. So long leases cost nothing.

use super::Desk;
use crate::regions::RegionId;
use rustc_hash::FxHashMap;

/// See the [module](self). A region is in it once for each hold of the core's.
#[derive(Default)]
pub(in crate::cache) struct Lent {
    fresh: Vec<RegionId>,
    /// How many holds there are of each.
    awaited: FxHashMap<RegionId, u32>,
    awaited_holds: usize,
    /// How many stayed fresh when they were last to be awaited.
    left: usize,
}

impl Lent {
    pub(in crate::cache) fn push(&mut self, id: RegionId) {
        self.fresh.push(id);
    }

    /// Holds.
    pub(in crate::cache) fn len(&self) -> usize {
        self.fresh.len() + self.awaited_holds
    }

    pub(in crate::cache) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Holds of fresh regions.
    pub(in crate::cache) fn fresh(&self) -> usize {
        self.fresh.len()
    }

    /// Each region at least once.
    pub(super) fn regions(&self) -> impl Iterator<Item = RegionId> {
        self.fresh.iter().chain(self.awaited.keys()).copied()
    }

    pub(super) fn take_fresh(&mut self) -> Vec<RegionId> {
        std::mem::take(&mut self.fresh)
    }

    /// The same, and what is awaited of the same regions.
    pub(super) fn take_fresh_and_its_like<T>(&mut self, desk: Desk<'_, T>) -> Vec<RegionId> {
        for nth in 0..self.fresh.len() {
            self.look_at(desk, self.fresh[nth]);
        }
        self.take_fresh()
    }

    pub(super) fn put_fresh(&mut self, fresh: Vec<RegionId>) {
        self.fresh = fresh;
    }

    /// What could not be awaited.
    pub(super) fn put_left(&mut self, left: Vec<RegionId>) {
        self.left = left.len();
        self.fresh = left;
    }

    /// Whether the fresh ones are to be awaited, because they are more than so many: each time they have doubled, where they
    /// stay fresh.
    pub(super) fn are_many(&self, many: usize) -> bool {
        self.fresh.len() > many + 2 * self.left
    }

    /// Nobody looks at it before a lease of it ends.
    pub(super) fn set_awaited(&mut self, id: RegionId) {
        *self.awaited.entry(id).or_default() += 1;
        self.awaited_holds += 1;
    }

    /// Takes in which leases have ended: their regions are fresh again, and may have others.
    pub(super) fn take_ended<T>(&mut self, desk: Desk<'_, T>, names: &mut Vec<u32>) {
        if self.awaited.is_empty() {
            return;
        }
        names.clear();
        if desk.blocks.notifier().take_ended(names) {
            return self.look_at_all(desk);
        }
        for id in names.drain(..).filter_map(RegionId::from_raw) {
            self.look_at(desk, id);
        }
    }

    /// A lease of the region has ended, or may have.
    pub(super) fn look_at<T>(&mut self, desk: Desk<'_, T>, id: RegionId) {
        if let Some(holds) = self.awaited.remove(&id) {
            desk.records[id].counted().set_awaited(false);
            self.awaited_holds -= holds as usize;
            self.fresh.extend(std::iter::repeat_n(id, holds as usize));
        }
    }

    /// Leases have ended, and of which regions nobody knows.
    pub(super) fn look_at_all<T>(&mut self, desk: Desk<'_, T>) {
        for (id, holds) in self.awaited.drain() {
            desk.records[id].counted().set_awaited(false);
            self.fresh.extend(std::iter::repeat_n(id, holds as usize));
        }
        self.awaited_holds = 0;
    }
}
