//! What the cache's lock protects: the decisions, and who stands where.
//!
//! Nothing here blocks, registers or deregisters. A region's way through the books:
//!
//! ```text
//! planned ──► Pending ──► Standing ──► limbo ──► (deregistered) ──► gone
//!               │            │                        │
//!               └─ failed    └─ lent: not found any   └─ parked: the registrar could not; tried
//!                            more, a lease has it        again by who lacks room, the background, or `reap`
//! ```

mod changes;
mod comebacks;
mod leases;
mod orphans;

pub(super) use comebacks::Comeback;
pub(super) use leases::GROUP;
pub(super) use orphans::Orphan;

use super::barrier::Barrier;
use super::records::Records;
use super::slots::Blocks;
use super::tally::{Amount, Tally};
use crate::core::{Core, Leaving};
use crate::invalidation::Change;
use crate::policy::Need;
use crate::range::PageRange;
use crate::regions::RegionId;
use crate::registrar::Registered;
use crate::shim::sync::atomic::AtomicU32;
use std::time::Instant;

/// Where a region stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Entry {
    Vacant,
    /// Being registered, under this ticket. Stale: memory changed meanwhile, so it will not be cached.
    Pending {
        ticket: u64,
        stale: bool,
        /// The thread that registers it: see `who.rs`.
        owner: u32,
    },
    /// Registered. Stale: look-ups must not find it.
    Standing {
        stale: bool,
        watched: bool,
    },
}

pub(super) struct Books<T> {
    pub(super) core: Core,
    pub(super) entries: Vec<Entry>,
    /// Regions that the core holds on account of leases that it does not know; one entry a hold.
    pub(super) lent: Vec<RegionId>,
    /// What has left the core and is still registered.
    pub(super) limbo: Vec<Registered<T>>,
    /// An empty vector to put in the place of `limbo`.
    pub(super) spare: Vec<Registered<T>>,
    /// What could not be deregistered.
    pub(super) parked: Vec<Registered<T>>,
    /// What the registrar said when it last refused to deregister.
    pub(super) refusal: String,
    /// Regions being deregistered at this moment, by whichever thread.
    pub(super) going: u64,
    /// The batches that they are in: their numbers, and by which threads.
    pub(super) under_way: Vec<(u64, u32)>,
    /// The number of the next batch.
    pub(super) next_batch: u64,
    /// Threads that wait for progress.
    pub(super) waiting: u32,
    /// The threads that have begun requests and do not register what is missing yet: one entry a request.
    pub(super) beginners: Vec<u32>,
    /// All that is registered, is being registered or deregistered, or is parked.
    pub(super) registered: Amount,
    /// Ranges of regions that are to be unwatched.
    pub(super) to_unwatch: Vec<PageRange>,
    /// Changes whose regions are hidden already and still stand in the core.
    pub(super) changes: Vec<Change>,
    /// Where nothing is cached until then.
    pub(super) barred: Vec<(PageRange, Instant)>,
    /// Where nothing is cached until the change is done; each has a number.
    changing: Vec<(u64, PageRange)>,
    next_change: u64,
    /// Memory of arenas that are gone, which leases still have. Its bar is lifted when it is unmapped.
    pub(super) orphans: Vec<Orphan>,
    /// Memory that no lease has any more, to be unmapped after what is in limbo was deregistered.
    pub(super) to_unmap: Vec<Orphan>,
    /// The cache is gone: nothing new is registered.
    pub(super) closed: bool,
    next_ticket: u64,
    /// Regions that stand until something else has their place. Look-ups do not find them, and they may come back.
    yielding: Vec<Comeback>,
    next_comeback: u64,
    /// The group whose marks are handed over next.
    next_group: usize,
    pub(super) tally: Tally,
    /// What the core let go and was not collected yet. Empty between calls.
    leaving: Vec<RegionId>,
    names: Vec<u32>,
    free: Vec<RegionId>,
}

/// What the books' work needs of the outside.
pub(super) struct Desk<'a, T> {
    pub(super) records: &'a Records<T>,
    pub(super) blocks: &'a Blocks,
    pub(super) signs: &'a [AtomicU32],
    pub(super) barrier: Barrier,
}

impl<T> Clone for Desk<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Desk<'_, T> {}

impl<T> Books<T> {
    pub(super) fn new(core: Core) -> Self {
        Self {
            core,
            entries: Vec::new(),
            lent: Vec::new(),
            limbo: Vec::new(),
            spare: Vec::new(),
            parked: Vec::new(),
            refusal: String::new(),
            going: 0,
            under_way: Vec::new(),
            next_batch: 0,
            waiting: 0,
            beginners: Vec::new(),
            registered: Amount::default(),
            to_unwatch: Vec::new(),
            changes: Vec::with_capacity(changes::CHANGES),
            barred: Vec::with_capacity(changes::BARRED),
            changing: Vec::new(),
            next_change: 0,
            orphans: Vec::new(),
            to_unmap: Vec::new(),
            closed: false,
            next_ticket: 0,
            yielding: Vec::new(),
            next_comeback: 0,
            next_group: 0,
            tally: Tally::default(),
            leaving: Vec::new(),
            names: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Sets room aside with the registrar, if there is as much.
    pub(super) fn reserve(&mut self, amount: Amount, limit: Amount) -> bool {
        self.tally.reserve(&mut self.registered, amount, limit)
    }

    pub(super) fn new_ticket(&mut self) -> u64 {
        self.next_ticket += 1;
        self.next_ticket
    }

    pub(super) fn entry(&self, id: RegionId) -> Entry {
        self.entries.get(id.index()).copied().unwrap_or(Entry::Vacant)
    }

    pub(super) fn set_entry(&mut self, id: RegionId, entry: Entry) {
        if self.entries.len() <= id.index() {
            self.entries.resize(id.index() + 1, Entry::Vacant);
        }
        self.entries[id.index()] = entry;
    }

    /// Takes the registrations of what the core let go in the request that it just answered.
    pub(super) fn collect_outcome(&mut self, desk: Desk<'_, T>) {
        let Self { core, leaving, .. } = self;
        append(core.outcome().batches(), leaving);
        self.collect(desk);
    }

    /// Takes the registrations of what the core let go.
    #[expect(unsafe_code, reason = "it empties records")]
    fn collect(&mut self, desk: Desk<'_, T>) {
        while let Some(id) = self.leaving.pop() {
            let record = &desk.records[id];
            let Entry::Standing { watched, .. } = self.entry(id) else { unreachable!("{id:?} stands until it leaves") };
            let (range, access) = (record.range(), record.access());
            // SAFETY: the region stood, so its record is filled; it was hidden and found unheld before the core let it
            // go, and `self` is what the lock protects.
            let registration = unsafe { record.empty() };
            self.set_entry(id, Entry::Vacant);
            self.limbo.push(Registered { range, access, registration });
            if watched {
                self.to_unwatch.push(range);
            }
        }
    }

    /// Makes room for no request in particular: so much, or what there is.
    pub(super) fn evict(&mut self, desk: Desk<'_, T>, need: Need) {
        let mut leaving = std::mem::take(&mut self.leaving);
        let (core, mut leases) = self.parts(desk);
        append(core.evict(need, &mut leases).batches(), &mut leaving);
        self.leaving = leaving;
        self.collect(desk);
    }

    /// Ends a hold that the core knows of.
    pub(super) fn release(&mut self, desk: Desk<'_, T>, id: RegionId) {
        let Self { core, leaving, .. } = self;
        append(core.release(id).batches(), leaving);
        self.collect(desk);
    }

    /// A batch is handed over from now on. Returns its number.
    pub(super) fn batch_begins(&mut self, regions: u64, thread: u32) -> u64 {
        let batch = self.next_batch;
        self.next_batch += 1;
        self.going += regions;
        self.under_way.push((batch, thread));
        batch
    }

    /// What is left of the batch is parked.
    pub(super) fn batch_ends(&mut self, batch: u64, regions: u64) {
        self.going -= regions;
        self.under_way.retain(|&(other, _)| other != batch);
    }

    /// Whether there is anything to deregister or to unmap.
    pub(super) fn has_leavers(&self) -> bool {
        !self.limbo.is_empty() || !self.to_unmap.is_empty()
    }

    /// Looks which of the lent regions are free again, and which memory.
    pub(super) fn sweep(&mut self, desk: Desk<'_, T>) {
        if !self.lent.is_empty() {
            self.sweep_lent(desk);
        }
        if !self.orphans.is_empty() {
            self.part_with_orphans(desk);
        }
    }
}

/// The names of what leaves.
fn append<'a>(batches: impl Iterator<Item = &'a [Leaving]>, names: &mut Vec<RegionId>) {
    for batch in batches {
        names.extend(batch.iter().map(|leaving| leaving.region));
    }
}
