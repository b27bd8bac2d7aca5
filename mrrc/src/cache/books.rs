//! What the cache's lock protects: the decisions, and who stands where.
//!
//! Nothing here blocks, registers or deregisters. A region's way through the books:
//!
//! ```text
//! planned ──► Pending ──► Standing ──► limbo ──► (a batch) ──► gone
//!               │            │                        │
//!               └─ failed    └─ lent: not found any   └─ parked: the registrar could not; tried
//!                            more, a lease has it        again by who lacks room, the background, or `reap`
//! ```

mod announced;
mod changes;
mod comebacks;
mod discards;
mod leases;
mod lent;
mod orphans;

pub(super) use comebacks::Comeback;
pub(super) use leases::GROUP;
pub(super) use orphans::Orphan;

use super::barrier::Barrier;
use super::error::Obstacle;
use super::notifier::Notifier;
use super::pace::Pace;
use super::records::Records;
use super::slots::Blocks;
use super::tally::{Amount, Tally};
use crate::core::{Core, Leaving};
use crate::policy::Need;
use crate::range::PageRange;
use crate::regions::RegionId;
use crate::registrar::Registered;
use crate::shim::sync::atomic::AtomicU32;
use std::collections::VecDeque;

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

impl Entry {
    /// Whether look-ups must not find what stands or is registered here.
    fn is_stale(self) -> bool {
        matches!(self, Self::Pending { stale: true, .. } | Self::Standing { stale: true, .. })
    }
}

pub(super) struct Books<T> {
    pub(super) core: Core,
    pub(super) entries: Vec<Entry>,
    /// Regions that the core holds on account of leases that it does not know; once for each hold.
    pub(super) lent: lent::Lent,
    /// The background sleeps until it is told.
    resting: bool,
    /// Something has left since the background was last there.
    stirred: bool,
    /// What has left the core and is still registered. What left first is deregistered first.
    pub(super) limbo: VecDeque<Registered<T>>,
    /// An empty vector for the next batch.
    spare: Vec<Registered<T>>,
    /// How much of it one call deregisters.
    pub(super) pace: Pace,
    /// What could not be deregistered.
    pub(super) parked: Vec<Registered<T>>,
    /// What the registrar said when it last refused to deregister.
    pub(super) refusal: String,
    /// What is being deregistered at this moment, by whichever thread.
    pub(super) going: Amount,
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
    /// Regions that a monitor's change has hidden, and that still stand in the core.
    unsettled: changes::Unsettled,
    /// Where nothing is cached for a while.
    discards: discards::Discards,
    /// Where nothing is cached until the change is done.
    announced: announced::Announced,
    /// Memory of arenas that are gone, which leases still have. Its bar is lifted when it is unmapped.
    pub(super) orphans: Vec<Orphan>,
    looked: orphans::Looked,
    /// Batches that have ended.
    ended: u64,
    /// Memory that no lease has any more, to be unmapped after what is in limbo was deregistered.
    pub(super) to_unmap: Vec<Orphan>,
    /// The cache is gone: nothing new is registered.
    pub(super) closed: bool,
    next_ticket: u64,
    /// Regions that stand until something else has their place. Look-ups do not find them, and they may come back.
    yielding: comebacks::Comebacks,
    /// The group whose marks are handed over next.
    next_group: usize,
    pub(super) tally: Tally,
    /// What the core let go and was not collected yet. Empty between calls.
    leaving: Vec<RegionId>,
    names: Vec<u32>,
    free: Vec<RegionId>,
}

/// A batch that was taken out of the books to be deregistered.
pub(super) struct BatchTaken<T> {
    pub(super) number: u64,
    pub(super) regions: Vec<Registered<T>>,
    pub(super) amount: Amount,
    /// Ranges to be unwatched before.
    pub(super) unwatch: Vec<PageRange>,
    /// Whether the pace wants to know how long it takes.
    pub(super) timed: bool,
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
            lent: lent::Lent::default(),
            resting: false,
            stirred: false,
            limbo: VecDeque::new(),
            spare: Vec::new(),
            pace: Pace::new(),
            parked: Vec::new(),
            refusal: String::new(),
            going: Amount::default(),
            under_way: Vec::new(),
            next_batch: 0,
            waiting: 0,
            beginners: Vec::new(),
            registered: Amount::default(),
            to_unwatch: Vec::new(),
            unsettled: changes::Unsettled::default(),
            discards: discards::Discards::new(),
            announced: announced::Announced::default(),
            orphans: Vec::new(),
            looked: orphans::Looked::default(),
            ended: 0,
            to_unmap: Vec::new(),
            closed: false,
            next_ticket: 0,
            yielding: comebacks::Comebacks::default(),
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
            self.unsettled.make_room(self.entries.len());
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
        if !self.leaving.is_empty() {
            self.stir(desk.blocks.notifier());
        }
        while let Some(id) = self.leaving.pop() {
            let record = &desk.records[id];
            let Entry::Standing { watched, .. } = self.entry(id) else { unreachable!("{id:?} stands until it leaves") };
            let (range, access) = (record.range(), record.access());
            // SAFETY: the region stood, so its record is filled; it was hidden and found unheld before the core let it
            // go, and `self` is what the lock protects.
            let registration = unsafe { record.empty() };
            self.set_entry(id, Entry::Vacant);
            self.limbo.push_back(Registered { range, access, registration });
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

    /// A region stands: those leave that it makes needless.
    #[inline]
    pub(super) fn retire_covered(&mut self, desk: Desk<'_, T>, id: RegionId) {
        if !self.core.has_one_key() {
            return;
        }
        let mut leaving = std::mem::take(&mut self.leaving);
        let (core, mut leases) = self.parts(desk);
        append(core.retire_covered(id, &mut leases).batches(), &mut leaving);
        self.leaving = leaving;
        self.collect(desk);
    }

    /// As [`Books::evict`], and no more than that: other caches need it.
    pub(super) fn evict_exactly(&mut self, desk: Desk<'_, T>, need: Need) {
        let mut leaving = std::mem::take(&mut self.leaving);
        let (core, mut leases) = self.parts(desk);
        append(core.evict_exactly(need, &mut leases).batches(), &mut leaving);
        self.leaving = leaving;
        self.collect(desk);
    }

    /// Ends a hold that the core knows of.
    pub(super) fn release(&mut self, desk: Desk<'_, T>, id: RegionId) {
        let Self { core, leaving, .. } = self;
        append(core.release(id).batches(), leaving);
        self.collect(desk);
    }

    /// Takes the next batch, which is handed over from now on: what left first, no more than the pace allows.
    pub(super) fn batch_begins(&mut self, thread: u32) -> BatchTaken<T> {
        let mut regions = std::mem::take(&mut self.spare);
        // One alone needs no choice.
        let count = match self.limbo.len() {
            few @ ..=1 => few,
            _ => self.pace.choose(self.limbo.iter().map(|registered| registered.range.pages())),
        };
        if count == 1 {
            regions.extend(self.limbo.pop_front());
        } else {
            regions.extend(self.limbo.drain(..count));
        }
        // There are no more of these than regions in limbo, so none is left when that is empty.
        let unwatch = if self.to_unwatch.len() <= count {
            std::mem::take(&mut self.to_unwatch)
        } else {
            self.to_unwatch.split_off(self.to_unwatch.len() - count)
        };
        let number = self.next_batch;
        self.next_batch += 1;
        let amount = Amount::of(&regions);
        self.going = self.going.plus(amount);
        self.under_way.push((number, thread));
        BatchTaken { number, regions, amount, unwatch, timed: self.pace.wants_time(amount) }
    }

    /// A batch of this amount is over, and what is left of it is parked.
    pub(super) fn batch_ends(&mut self, batch: u64, amount: Amount, left: &mut Vec<Registered<T>>) {
        self.going.take(amount);
        self.ended += 1;
        if let Some(place) = self.under_way.iter().position(|&(other, _)| other == batch) {
            self.under_way.swap_remove(place);
        }
        if !left.is_empty() {
            self.parked.append(left);
        }
        self.spare = std::mem::take(left);
    }

    /// What a request that needs so much waits for, as long as what left is not deregistered.
    pub(super) fn obstacle(&self, needed: Amount, limit: Amount) -> Obstacle {
        let after = self.registered.plus(needed);
        let mut waiting = Amount::default();
        self.limbo.iter().for_each(|registered| waiting.add(registered.range.pages()));
        Obstacle::Deregistering {
            missing_pages: after.pages.saturating_sub(limit.pages),
            missing_regions: after.regions.saturating_sub(limit.regions),
            under_way_pages: self.going.pages,
            under_way_regions: self.going.regions,
            waiting_pages: waiting.pages,
            waiting_regions: waiting.regions,
        }
    }

    /// Something has left, and whoever caused that may not deregister all of it: the background looks after it, soon. To wake
    /// it each time would be more than the work, so it is woken only out of a long rest.
    pub(super) fn stir(&mut self, background: &Notifier) {
        self.stirred = true;
        if std::mem::take(&mut self.resting) {
            background.notify_one();
        }
    }

    /// The background has nothing to do. True: nothing has left for a while, so it sleeps until it is told. Under a checker
    /// always: time does not pass.
    pub(super) fn rest(&mut self) -> bool {
        let stirred = std::mem::take(&mut self.stirred);
        self.resting = !stirred || cfg!(any(loom, shuttle));
        self.resting
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
