//! Who holds what without the core's knowledge, and what was hit: the slots, counts and marks of all threads, read for
//! the core.

use super::{Books, Desk, Entry};
use crate::cache::tally::Tally;
use crate::core::{Core, Holders};
use crate::regions::RegionId;
use crate::shim::sync::atomic::Ordering;

/// Regions whose marks share a sign that there are some.
pub(in crate::cache) const GROUP: usize = 64;

/// Those who hold regions without the core's knowledge: the leases of all threads.
pub(in crate::cache) struct Leases<'a, T> {
    desk: Desk<'a, T>,
    entries: &'a [Entry],
    lent: &'a mut Vec<RegionId>,
    names: &'a mut Vec<u32>,
    tally: &'a mut Tally,
    next_group: &'a mut usize,
}

impl<T> Leases<'_, T> {
    fn read_slots(&mut self) {
        self.names.clear();
        self.desk.blocks.read(self.names);
        self.names.sort_unstable();
    }

    /// Whether somebody held it when the slots were read. Slots first, then counts.
    fn is_held(&self, id: RegionId) -> bool {
        self.names.binary_search(&id.raw()).is_ok() || self.desk.records[id].counted().load(Ordering::Acquire) != 0
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
        self.read_slots();
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
        (core, Leases { desk, entries, lent, names, tally, next_group })
    }

    pub(super) fn sweep_lent(&mut self, desk: Desk<'_, T>) {
        let mut lent = std::mem::take(&mut self.lent);
        let mut free = std::mem::take(&mut self.free);
        let (_, mut leases) = self.parts(desk);
        leases.read_slots();
        // Hidden ones cannot be taken again; one that was shown again is only free to be proposed.
        lent.retain(|&id| {
            let held = leases.is_held(id);
            if !held {
                free.push(id);
            }
            held
        });
        self.lent = lent;
        for id in free.drain(..) {
            self.release(desk, id);
        }
        self.free = free;
    }
}
