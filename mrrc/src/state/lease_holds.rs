//! Holds of the core on account of leases that it does not know: of regions that were found in use when they were to leave,
//! and of those that are registered for one lease.
//!
//! A region is *fresh* at first: a sweep looks whether leases still have it. Regions that leases have for long are *awaited*:
//! their leases tell when they end, and no thread looks until then. So long leases cost nothing.

use super::stats::Stats;
use crate::hit::HitTables;
use crate::hit::barrier::Barrier;
use crate::regions::RegionId;
use rustc_hash::FxHashSet;

/// For no more regions than these the names of those that are held are not sorted.
const FEW: usize = 8;
/// When there are more fresh regions than these, a sweep awaits their leases.
const MANY: usize = if cfg!(any(loom, shuttle)) { 1 } else { 256 };

/// Regions that leases hold without the core's knowledge. Owns one hold of the core's for each: a region that is found in use
/// again and again has no second one.
#[derive(Default)]
pub(crate) struct LeaseHolds {
    fresh: FxHashSet<RegionId>,
    awaited: FxHashSet<RegionId>,
    /// How many stayed fresh when they were last to be awaited.
    left: usize,
    names: Names,
}

/// The names of the regions that leases held when the slots were last read.
#[derive(Default)]
pub(super) struct Names {
    names: Vec<u32>,
    is_sorted: bool,
}

impl Names {
    /// Reads the slots of all threads, to be asked for so many regions.
    pub(super) fn read<T>(&mut self, tables: &HitTables<T>, regions: usize) {
        self.names.clear();
        tables.blocks.read(&mut self.names);
        self.is_sorted = regions > FEW;
        if self.is_sorted {
            self.names.sort_unstable();
        }
    }

    /// Returns whether a lease held the region when the slots were read. Slots first, then counts.
    pub(super) fn have<T>(&self, tables: &HitTables<T>, id: RegionId) -> bool {
        let name = id.raw();
        let named = if self.is_sorted { self.names.binary_search(&name).is_ok() } else { self.names.contains(&name) };
        named || tables.records[id].counted().any()
    }
}

impl LeaseHolds {
    /// Takes a hold of the core's. Returns false where it has one of the region: the caller keeps its own.
    pub(crate) fn add(&mut self, id: RegionId) -> bool {
        !self.awaited.contains(&id) && self.fresh.insert(id)
    }

    /// Returns the number of holds.
    pub(crate) fn len(&self) -> usize {
        self.fresh.len() + self.awaited.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of holds of fresh regions.
    pub(crate) fn fresh(&self) -> usize {
        self.fresh.len()
    }

    pub(super) fn regions(&self) -> impl Iterator<Item = RegionId> {
        self.fresh.iter().chain(&self.awaited).copied()
    }

    pub(super) fn names(&mut self) -> &mut Names {
        &mut self.names
    }

    /// Returns whether fresh regions are to be awaited because they are many: each time they have doubled, where they stay
    /// fresh.
    pub(super) fn are_many(&self) -> bool {
        self.fresh.len() > MANY + 2 * self.left
    }

    /// Returns the holds of fresh regions that no lease has any more, and those of which a lease has ended.
    pub(super) fn sweep<T>(&mut self, tables: &HitTables<T>, stats: &mut Stats) -> Vec<RegionId> {
        self.take_ended(tables);
        if self.fresh.is_empty() {
            return Vec::new();
        }
        stats.sweeps += 1;
        let Self { fresh, names, .. } = self;
        names.read(tables, fresh.len());
        // Hidden ones cannot be taken again; one that was shown again is only free to be proposed.
        fresh.extract_if(|&id| !names.have(tables, id)).collect()
    }

    /// Has the leases of fresh regions tell when they end. A region stays fresh if a lease took it that was not asked to
    /// tell. Returns the holds of those that no lease has by now.
    ///
    /// A release that empties its slot and does not find the wish did both before the barrier: so it is seen here.
    pub(super) fn await_ends<T>(&mut self, tables: &HitTables<T>, stats: &mut Stats) -> Vec<RegionId> {
        let fresh = std::mem::take(&mut self.fresh);
        let names = &mut self.names.names;
        names.clear();
        names.extend(fresh.iter().map(|id| id.raw()));
        names.sort_unstable();
        let mut dropped = Vec::new();
        tables.blocks.await_releases(names, &mut dropped);
        fresh.iter().for_each(|&id| tables.records[id].counted().set_awaited(true));
        tables.barrier.heavy();
        stats.barriers += 1;
        stats.sweeps += 1;
        names.clear();
        let mut unaware = Vec::new();
        tables.blocks.read_unaware(names, &mut unaware);
        names.sort_unstable();
        unaware.sort_unstable();
        let (mut free, mut left) = (Vec::new(), FxHashSet::default());
        for id in fresh {
            let counted = tables.records[id].counted();
            if unaware.binary_search(&id.raw()).is_ok() {
                left.insert(id);
            } else if names.binary_search(&id.raw()).is_ok() || counted.any() {
                self.awaited.insert(id);
                continue;
            } else {
                free.push(id);
            }
            counted.set_awaited(false);
        }
        self.left = left.len();
        self.fresh = left;
        // Slots that were emptied and taken for another region before they told.
        for id in dropped.into_iter().filter_map(RegionId::from_raw) {
            self.look_at(tables, id);
        }
        free
    }

    /// Makes the regions fresh of which leases told that they have ended: they may have others.
    fn take_ended<T>(&mut self, tables: &HitTables<T>) {
        if self.awaited.is_empty() {
            return;
        }
        let mut names = std::mem::take(&mut self.names.names);
        names.clear();
        if tables.notifier().take_ended(&mut names) {
            self.look_at_all(tables);
        }
        for id in names.drain(..).filter_map(RegionId::from_raw) {
            self.look_at(tables, id);
        }
        self.names.names = names;
    }

    /// Makes a region fresh: a lease of it has ended, or may have.
    fn look_at<T>(&mut self, tables: &HitTables<T>, id: RegionId) {
        if self.awaited.remove(&id) {
            tables.records[id].counted().set_awaited(false);
            self.fresh.insert(id);
        }
    }

    fn look_at_all<T>(&mut self, tables: &HitTables<T>) {
        let awaited: Vec<_> = self.awaited.iter().copied().collect();
        awaited.into_iter().for_each(|id| self.look_at(tables, id));
    }

    /// Makes all regions fresh where leases may have ended without telling: without `membarrier` a release may miss that it
    /// is to tell, if both are at the same moment.
    pub(super) fn look_again<T>(&mut self, tables: &HitTables<T>) {
        if tables.barrier == Barrier::Fence {
            self.look_at_all(tables);
        }
    }
}
