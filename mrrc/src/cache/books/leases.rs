//! Who holds what without the core's knowledge, and what was hit: the slots, counts and marks of all threads, read for
//! the core.

use super::lent::Lent;
use super::{Books, Desk, Entry};
use crate::cache::barrier::Barrier;
use crate::cache::tally::Tally;
use crate::core::{Core, Holders};
use crate::regions::RegionId;
use crate::shim::sync::atomic::Ordering;

/// Regions whose marks share a sign that there are some.
pub(in crate::cache) const GROUP: usize = 64;

/// For no more regions than these the names of those that are held are not sorted.
const FEW: usize = 8;
/// When there are more fresh regions than these, whoever looks at them awaits their leases.
const MANY: usize = if cfg!(any(loom, shuttle)) { 1 } else { 256 };

/// Those who hold regions without the core's knowledge: the leases of all threads.
pub(in crate::cache) struct Leases<'a, T> {
    desk: Desk<'a, T>,
    entries: &'a [Entry],
    lent: &'a mut Lent,
    names: &'a mut Vec<u32>,
    /// Whether the names are in their order.
    sorted: bool,
    tally: &'a mut Tally,
    next_group: &'a mut usize,
}

impl<T> Leases<'_, T> {
    /// So many regions will be asked for.
    fn read_slots(&mut self, regions: usize) {
        self.names.clear();
        self.desk.blocks.read(self.names);
        self.sorted = regions > FEW;
        if self.sorted {
            self.names.sort_unstable();
        }
    }

    /// Whether somebody held it when the slots were read. Slots first, then counts.
    fn is_held(&self, id: RegionId) -> bool {
        let name = id.raw();
        let named = if self.sorted { self.names.binary_search(&name).is_ok() } else { self.names.contains(&name) };
        named || self.desk.records[id].counted().any()
    }

    fn stands(&self, id: RegionId) -> bool {
        matches!(self.entries.get(id.index()), Some(Entry::Standing { .. }))
    }
}

impl<T> Holders for Leases<'_, T> {
    fn hold_back(&mut self, leaving: &[RegionId], held: &mut Vec<RegionId>) {
        let mut any = false;
        for &id in leaving {
            // What is pending is held by who registers it, and the core knows.
            if self.stands(id) {
                self.desk.records[id].hide();
                any = true;
            }
        }
        if !any {
            return;
        }
        self.desk.barrier.heavy();
        self.tally.barriers += 1;
        self.read_slots(leaving.len());
        for &id in leaving {
            if self.stands(id) && self.is_held(id) {
                self.tally.recalled += 1;
                self.lent.push(id);
                held.push(id);
            }
        }
    }

    fn stay(&mut self, regions: &[RegionId]) {
        for &id in regions {
            if matches!(self.entries.get(id.index()), Some(Entry::Standing { stale: false, .. })) {
                self.desk.records[id].show();
            }
        }
    }

    /// A sign can be taken away before the mark is seen that it stands for; and not all marks are handed over at once.
    fn touches(&mut self, region: RegionId) -> u32 {
        self.desk.records[region].take_touched()
    }

    /// In the order of their names: the next time goes on where this one ended, and begins anew when it has come to the end.
    fn touched(&mut self, most: usize, touched: &mut Vec<RegionId>) {
        let groups = self.entries.len().div_ceil(GROUP);
        let first = std::mem::take(self.next_group);
        for (group, sign) in self.desk.signs.iter().enumerate().take(groups).skip(first) {
            if sign.load(Ordering::Relaxed) == 0 {
                continue;
            }
            if touched.len() >= most {
                *self.next_group = group;
                return;
            }
            if sign.swap(0, Ordering::Acquire) == 0 {
                continue;
            }
            let first = group * GROUP;
            for index in first..(first + GROUP).min(self.entries.len()) {
                let id = RegionId::of_index(index);
                let record = &self.desk.records[id];
                for _ in 0..record.take_touched() {
                    touched.push(id);
                }
            }
        }
    }
}

impl<T> Books<T> {
    /// The core, and those whom it has to ask.
    pub(in crate::cache) fn parts<'a>(&'a mut self, desk: Desk<'a, T>) -> (&'a mut Core, Leases<'a, T>) {
        let Self { core, entries, lent, names, tally, next_group, .. } = self;
        (core, Leases { desk, entries, lent, names, sorted: false, tally, next_group })
    }

    /// Looks which of the fresh regions leases still have, and those of which a lease has ended.
    pub(super) fn sweep_lent(&mut self, desk: Desk<'_, T>) {
        let Self { lent, names, .. } = self;
        lent.take_ended(desk, names);
        self.sweep_fresh(desk);
        if self.lent.are_many(MANY) {
            self.await_lent(desk);
        }
    }

    fn sweep_fresh(&mut self, desk: Desk<'_, T>) {
        let mut fresh = self.lent.take_fresh();
        if fresh.is_empty() {
            return;
        }
        self.tally.sweeps += 1;
        let mut free = std::mem::take(&mut self.free);
        let (_, mut leases) = self.parts(desk);
        leases.read_slots(fresh.len());
        // Hidden ones cannot be taken again; one that was shown again is only free to be proposed.
        fresh.retain(|&id| {
            let held = leases.is_held(id);
            if !held {
                free.push(id);
            }
            held
        });
        self.lent.put_fresh(fresh);
        for id in free.drain(..) {
            self.release(desk, id);
        }
        self.free = free;
    }

    /// Whoever has a fresh region tells when that is over. A region leaves if nobody has it by now, and stays fresh if somebody
    /// took it who was not asked to tell.
    ///
    /// A release that empties its slot and does not find the wish did both before the barrier: so it is seen here.
    pub(in crate::cache) fn await_lent(&mut self, desk: Desk<'_, T>) {
        // All holds of a region go the same way.
        let fresh = self.lent.take_fresh_and_its_like(desk);
        let Self { names, tally, .. } = self;
        names.clear();
        names.extend(fresh.iter().map(|id| id.raw()));
        names.sort_unstable();
        let mut dropped = Vec::new();
        desk.blocks.await_releases(names, &mut dropped);
        fresh.iter().for_each(|&id| desk.records[id].counted().set_awaited(true));
        desk.barrier.heavy();
        tally.barriers += 1;
        tally.sweeps += 1;
        names.clear();
        let mut unaware = Vec::new();
        desk.blocks.read_unaware(names, &mut unaware);
        names.sort_unstable();
        unaware.sort_unstable();
        let (mut free, mut left) = (std::mem::take(&mut self.free), Vec::new());
        for id in fresh {
            let counted = desk.records[id].counted();
            if unaware.binary_search(&id.raw()).is_ok() {
                left.push(id);
            } else if self.names.binary_search(&id.raw()).is_ok() || counted.any() {
                self.lent.set_awaited(id);
                continue;
            } else {
                free.push(id);
            }
            counted.set_awaited(false);
        }
        self.lent.put_left(left);
        for id in free.drain(..) {
            self.release(desk, id);
        }
        self.free = free;
        // Slots that were emptied and taken for another region before anybody told.
        for id in dropped.into_iter().filter_map(RegionId::from_raw) {
            self.lent.look_at(desk, id);
        }
    }

    /// Without `membarrier` a release may miss that it is to tell, if both are at the same moment: who relies on it looks
    /// once more.
    pub(in crate::cache) fn look_at_all_lent(&mut self, desk: Desk<'_, T>) {
        if desk.barrier == Barrier::Fence {
            self.lent.look_at_all(desk);
        }
        self.sweep(desk);
    }
}
