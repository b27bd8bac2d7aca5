//! Regions that stand until something else has their place: an upgrade of rights, a merge. Look-ups do not find them
//! meanwhile; where the replacement fails they come back, and where somebody else lacks room they leave at once.

use super::{Books, Desk, Entry, append};
use crate::core::Yielding;
use crate::range::PageRange;
use crate::regions::RegionId;
use rustc_hash::FxHashSet;
use std::collections::BTreeMap;

/// A region that stands until something else has its place, for the request that is to end it.
#[derive(Clone, Copy)]
pub(in crate::cache) struct Comeback {
    /// Its first page, and a number: names of regions are used again, this is not. The room may have been needed, and the
    /// region given up.
    key: (u64, u64),
}

/// The regions that stand until something else has their place, in the order of their addresses.
#[derive(Default)]
pub(super) struct Comebacks {
    regions: BTreeMap<(u64, u64), Yielding>,
    /// No region is longer: where the search for those that overlap a range begins.
    longest: u64,
    next: u64,
}

impl Comebacks {
    fn add(&mut self, range: PageRange, yielding: Yielding) -> Comeback {
        if self.regions.is_empty() {
            self.longest = 0;
        }
        self.longest = self.longest.max(range.pages());
        let key = (range.start(), self.next);
        self.next += 1;
        self.regions.insert(key, yielding);
        Comeback { key }
    }

    fn remove(&mut self, comeback: Comeback) -> Option<Yielding> {
        self.regions.remove(&comeback.key)
    }

    /// All that overlap the range, and some that lie before it. Allocates nothing.
    pub(super) fn near(&self, range: PageRange) -> impl Iterator<Item = RegionId> {
        let first = range.start().saturating_sub(self.longest);
        self.regions.range((first, 0)..(range.end(), 0)).map(|(_, yielding)| yielding.region)
    }
}

impl<T> Books<T> {
    /// What the core's last answer replaces, for who asked to end it.
    pub(in crate::cache) fn note_yielding(&mut self, desk: Desk<'_, T>, noted: &mut impl Extend<Comeback>) {
        let mut unregistered = Vec::new();
        for &yielding in self.core.outcome().yielding() {
            match self.entry(yielding.region) {
                Entry::Standing { .. } => {
                    let range = desk.records[yielding.region].range();
                    noted.extend([self.yielding.add(range, yielding)]);
                }
                // Another request's own until it is registered; that ends there.
                _ => unregistered.push(yielding.region),
            }
        }
        self.give_way(desk, unregistered);
    }

    /// Whether it was replaced or not: what can come back does. Sure: no change is under way that is not in the books.
    pub(in crate::cache) fn end_yielding(
        &mut self,
        desk: Desk<'_, T>,
        yielding: impl ExactSizeIterator<Item = Comeback>,
        sure: bool,
    ) {
        if yielding.len() == 0 {
            return;
        }
        let mut gone = Vec::with_capacity(yielding.len());
        for comeback in yielding {
            // One that is missing was given up for another request.
            let Some(yielding) = self.yielding.remove(comeback) else { continue };
            let id = yielding.region;
            let stands = matches!(self.entry(id), Entry::Standing { stale: false, .. });
            if sure && stands && self.core.come_back(yielding) {
                desk.records[id].show();
            } else {
                gone.push(id);
            }
        }
        self.give_way(desk, gone);
    }

    /// Somebody has no room: what only waits to come back leaves, whosever it is. False if there is none. What leases have
    /// stays, as it would make none.
    pub(in crate::cache) fn give_up_comebacks(&mut self, desk: Desk<'_, T>) -> bool {
        if self.yielding.regions.is_empty() {
            return false;
        }
        // They were hidden when they stepped aside, and what was held then is lent.
        let lent: FxHashSet<_> = self.lent.regions().collect();
        let mut gone = Vec::new();
        self.yielding.regions.retain(|_, yielding| {
            let held = lent.contains(&yielding.region);
            if !held {
                gone.push(yielding.region);
            }
            held
        });
        let any = !gone.is_empty();
        self.give_way(desk, gone);
        any
    }

    /// What took the place of these stands, or they leave without.
    fn give_way(&mut self, desk: Desk<'_, T>, regions: impl IntoIterator<Item = RegionId>) {
        let Self { core, leaving, .. } = self;
        append(core.give_way(regions).batches(), leaving);
        self.collect(desk);
    }
}
