//! Memory of arenas that are gone: leases may still have some of it, and then it stays mapped.

use super::{Books, Comeback, Desk};
use crate::cache::arena::Memory;
use crate::range::PageRange;

/// Memory whose arena is gone.
pub(in crate::cache) struct Orphan {
    pub(in crate::cache) memory: Memory,
    /// The number of the change that its end is.
    pub(in crate::cache) change: u64,
    /// No batch from this number on has any of it, as far as was seen when last looked.
    free_from: Option<u64>,
}

impl Orphan {
    pub(in crate::cache) fn new(memory: Memory, change: u64) -> Self {
        Self { memory, change, free_from: None }
    }
}

impl<T> Books<T> {
    /// Finds the orphans that no lease has any more. What a lease has of memory that is gone is among the lent: it was
    /// struck out when the memory went.
    pub(super) fn part_with_orphans(&mut self, desk: Desk<'_, T>) {
        let Self { orphans, to_unmap, lent, parked, yielding, under_way, next_batch, .. } = self;
        let has = |pages: PageRange| {
            let standing = yielding.iter().map(Comeback::region);
            lent.iter().copied().chain(standing).any(|id| desk.records[id].range().overlaps(pages))
                || parked.iter().any(|registered| registered.range.overlaps(pages))
        };
        let ready = |orphan: &mut Orphan| {
            if has(orphan.memory.pages()) {
                orphan.free_from = None;
                return false;
            }
            // What others are deregistering may be theirs, and what is in limbo goes with the next batch: this memory goes
            // with it, or after it. Batches that come later have none of it, and are not waited for.
            let free_from = *orphan.free_from.get_or_insert(*next_batch + 1);
            under_way.iter().all(|&(batch, _)| batch >= free_from)
        };
        to_unmap.extend(orphans.extract_if(.., ready));
    }
}
