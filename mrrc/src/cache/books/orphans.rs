//! Memory of arenas that are gone: leases may still have some of it, and then it stays mapped.

use super::{Books, Desk};
use crate::cache::arena::Memory;
use crate::range::PageRange;

/// What of it was looked at. Nothing comes to have such memory any more, and what has it leaves in a batch: so an orphan that was
/// found to be in use is looked at again when a batch has ended.
#[derive(Default)]
pub(super) struct Looked {
    /// The first so many orphans.
    orphans: usize,
    /// After so many batches.
    batches: u64,
}

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
        let Self { orphans, to_unmap, lent, limbo, parked, yielding, under_way, next_batch, looked, ended, .. } = self;
        let first = if looked.batches == *ended { looked.orphans.min(orphans.len()) } else { 0 };
        if first == orphans.len() {
            return;
        }
        // No two are of the same memory.
        let mut places: Vec<_> = orphans[first..].iter().map(|orphan| (orphan.memory.pages(), false)).collect();
        places.sort_unstable();
        let mut note = |range: PageRange| {
            let first = places.partition_point(|(pages, _)| pages.end() <= range.start());
            let overlapping = places[first..].iter_mut().take_while(|(pages, _)| pages.start() < range.end());
            overlapping.for_each(|(_, is_used)| *is_used = true);
        };
        lent.regions().for_each(|id| note(desk.records[id].range()));
        limbo.iter().chain(&*parked).for_each(|registered| note(registered.range));
        let is_used = |pages: PageRange| {
            let noted = places.binary_search_by_key(&pages, |&(pages, _)| pages).is_ok_and(|at| places[at].1);
            noted || yielding.near(pages).any(|id| desk.records[id].range().overlaps(pages))
        };
        let ready = |orphan: &mut Orphan| {
            if is_used(orphan.memory.pages()) {
                orphan.free_from = None;
                return false;
            }
            // What others are deregistering may be theirs. Batches that come later have none of it, and are not waited for.
            let free_from = *orphan.free_from.get_or_insert(*next_batch);
            under_way.iter().all(|&(batch, _)| batch >= free_from)
        };
        to_unmap.extend(orphans.extract_if(first.., ready));
        *looked = Looked { orphans: orphans.len(), batches: *ended };
    }
}
