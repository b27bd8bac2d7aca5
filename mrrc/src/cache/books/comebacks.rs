//! Regions that stand until something else has their place: an upgrade of rights, a merge. Look-ups do not find them
//! meanwhile; where the replacement fails they come back, and where somebody else lacks room they leave at once.

use super::{Books, Desk, Entry, append};
use crate::core::Yielding;
use crate::regions::RegionId;

/// A region that stands until something else has its place: for who asked to end it, and in the books.
#[derive(Clone, Copy)]
pub(in crate::cache) struct Comeback {
    /// Names of regions are used again, this is not: the room may have been needed, and the region given up.
    number: u64,
    yielding: Yielding,
}

impl Comeback {
    pub(super) fn region(&self) -> RegionId {
        self.yielding.region
    }
}

impl<T> Books<T> {
    /// What the core's last answer replaces, for who asked to end it.
    pub(in crate::cache) fn note_yielding(&mut self, desk: Desk<'_, T>, noted: &mut impl Extend<Comeback>) {
        for nth in 0..self.core.outcome().yielding().len() {
            let yielding = self.core.outcome().yielding()[nth];
            match self.entry(yielding.region) {
                Entry::Standing { .. } => {
                    let comeback = Comeback { number: self.next_comeback, yielding };
                    self.next_comeback += 1;
                    self.yielding.push(comeback);
                    noted.extend([comeback]);
                }
                // Another request's own until it is registered; that ends there.
                _ => self.give_way(desk, [yielding.region]),
            }
        }
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
        for Comeback { number, yielding } in yielding {
            let Some(place) = self.yielding.iter().position(|other| other.number == number) else {
                // Given up for somebody else.
                continue;
            };
            self.yielding.swap_remove(place);
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
        // They were hidden when they stepped aside, and what was held then is lent.
        let Self { yielding, lent, .. } = self;
        let gone: Vec<_> = yielding
            .extract_if(.., |comeback| !lent.contains(&comeback.region()))
            .map(|comeback| comeback.region())
            .collect();
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
