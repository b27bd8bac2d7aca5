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

use super::arena::Memory;
use super::barrier::Barrier;
use super::records::Records;
use super::slots::Blocks;
use crate::core::{AllInUse, Core, Holders, Leaving, Yielding};
use crate::invalidation::{Change, ChangeKind};
use crate::policy::Need;
use crate::range::PageRange;
use crate::regions::RegionId;
use crate::registrar::Registered;
use crate::shim::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

/// Changes that a monitor can leave to be dealt with; more become one that touches everything.
const CHANGES: usize = 64;
/// Ranges that are barred at a time; more become their hull.
const BARRED: usize = 64;
/// Regions whose marks share a sign that there are some.
pub(super) const GROUP: usize = 64;

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

/// Pages and regions.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Amount {
    pub(crate) pages: u64,
    pub(crate) regions: u64,
}

impl Amount {
    pub(crate) fn of<T>(batch: &[Registered<T>]) -> Self {
        let mut amount = Self::default();
        batch.iter().for_each(|registered| amount.add(registered.range.pages()));
        amount
    }

    pub(crate) fn add(&mut self, pages: u64) {
        self.pages += pages;
        self.regions += 1;
    }

    /// Whether there is so much beside this.
    #[inline]
    pub(super) fn has_room(self, more: Self, limit: Self) -> bool {
        let after = self.plus(more);
        after.pages <= limit.pages && after.regions <= limit.regions
    }

    /// Saturates: a registrar may claim to have deregistered more than there was.
    pub(crate) fn take(&mut self, other: Self) {
        self.pages = self.pages.saturating_sub(other.pages);
        self.regions = self.regions.saturating_sub(other.regions);
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self { pages: self.pages + other.pages, regions: self.regions + other.regions }
    }

    /// Why so much more cannot be registered beside this.
    pub(crate) fn no_room(self, asked: PageRange, more: Self, limit: Self) -> AllInUse {
        let after = self.plus(more);
        AllInUse {
            asked,
            missing_pages: after.pages.saturating_sub(limit.pages),
            missing_regions: after.regions.saturating_sub(limit.regions),
            in_use_pages: self.pages,
            in_use_regions: self.regions,
        }
    }
}

/// What the cache counts besides what the core counts.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Tally {
    pub(crate) attempts: u64,
    pub(crate) retries: u64,
    pub(super) waits: u64,
    pub(super) unwatched: u64,
    pub(super) barred: u64,
    pub(super) overtaken: u64,
    pub(super) recalled: u64,
    pub(super) barriers: u64,
    pub(super) changes: u64,
    pub(super) failed_deregs: u64,
    /// Requests that had no room because of such failures.
    pub(crate) not_taken_back: u64,
    pub(super) batches: u64,
    pub(crate) deregistered: Amount,
    pub(super) peak: Amount,
}

impl Tally {
    /// Sets room aside with the registrar, if there is as much.
    pub(crate) fn reserve(&mut self, registered: &mut Amount, amount: Amount, limit: Amount) -> bool {
        let after = registered.plus(amount);
        let fits = registered.has_room(amount, limit);
        if fits {
            *registered = after;
            self.peak.pages = self.peak.pages.max(after.pages);
            self.peak.regions = self.peak.regions.max(after.regions);
        }
        fits
    }

    /// A batch was handed to the registrar, and this was left of it.
    pub(crate) fn handed_over(&mut self, registered: &mut Amount, batch: Amount, left: Amount, failed: bool) {
        // A registrar that says that all went wrong and leaves nothing is taken at its deeds.
        let done = Amount {
            pages: batch.pages.saturating_sub(left.pages),
            regions: batch.regions.saturating_sub(left.regions),
        };
        registered.take(done);
        self.batches += 1;
        self.deregistered = self.deregistered.plus(done);
        self.failed_deregs += left.regions.max(u64::from(failed));
    }
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

/// A region that stands until something else has its place: for who asked to end it, and in the books.
#[derive(Clone, Copy)]
pub(super) struct Comeback {
    /// Names of regions are used again, this is not: the room may have been needed, and the region given up.
    number: u64,
    yielding: Yielding,
}

/// Memory whose arena is gone.
pub(super) struct Orphan {
    pub(super) memory: Memory,
    /// The number of the change that its end is.
    pub(super) change: u64,
    /// No batch from this number on has any of it, as far as was seen when last looked.
    free_from: Option<u64>,
}

impl Orphan {
    pub(super) fn new(memory: Memory, change: u64) -> Self {
        Self { memory, change, free_from: None }
    }
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
            changes: Vec::with_capacity(CHANGES),
            barred: Vec::with_capacity(BARRED),
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

    /// What the core's last answer replaces, for who asked to end it.
    pub(super) fn note_yielding(&mut self, desk: Desk<'_, T>, noted: &mut impl Extend<Comeback>) {
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
    pub(super) fn end_yielding(
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
    pub(super) fn give_up_comebacks(&mut self, desk: Desk<'_, T>) -> bool {
        // They were hidden when they stepped aside, and what was held then is lent.
        let Self { yielding, lent, .. } = self;
        let gone: Vec<_> = yielding
            .extract_if(.., |comeback| !lent.contains(&comeback.yielding.region))
            .map(|comeback| comeback.yielding.region)
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

    pub(super) fn entry(&self, id: RegionId) -> Entry {
        self.entries.get(id.index()).copied().unwrap_or(Entry::Vacant)
    }

    pub(super) fn set_entry(&mut self, id: RegionId, entry: Entry) {
        if self.entries.len() <= id.index() {
            self.entries.resize(id.index() + 1, Entry::Vacant);
        }
        self.entries[id.index()] = entry;
    }

    /// The core, and those whom it has to ask.
    pub(super) fn parts<'a>(&'a mut self, desk: Desk<'a, T>) -> (&'a mut Core, Leases<'a, T>) {
        let Self { core, entries, lent, names, tally, next_group, .. } = self;
        (core, Leases { desk, entries, lent, names, tally, next_group })
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

    /// Deals with what monitors left.
    pub(super) fn settle(&mut self, desk: Desk<'_, T>) {
        while let Some(change) = self.changes.pop() {
            self.invalidate(desk, change.range);
        }
    }

    /// Strikes out what stands or is pending in the range; what leases have stays registered until they end.
    pub(super) fn invalidate(&mut self, desk: Desk<'_, T>, range: PageRange) {
        self.mark_stale(desk, range);
        let mut leaving = std::mem::take(&mut self.leaving);
        let (core, mut leases) = self.parts(desk);
        append(core.invalidate_among(range, &mut leases).batches(), &mut leaving);
        self.leaving = leaving;
        self.collect(desk);
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

    /// Hides what is in the range. Allocates and frees nothing: monitors do this.
    pub(super) fn mark_stale(&mut self, desk: Desk<'_, T>, range: PageRange) {
        let entries = &mut self.entries;
        let mut mark = |id: RegionId| {
            if let Some(entry) = entries.get_mut(id.index()) {
                match entry {
                    Entry::Vacant => {}
                    Entry::Pending { stale, .. } => *stale = true,
                    Entry::Standing { stale, .. } => {
                        *stale = true;
                        desk.records[id].hide();
                    }
                }
            }
        };
        self.core.for_each_overlap(range, &mut mark);
        let yielding = self.yielding.iter().map(|comeback| comeback.yielding.region);
        yielding.filter(|&id| desk.records[id].range().overlaps(range)).for_each(mark);
    }

    /// A monitor's change: hidden at once, dealt with by the next one who has the lock. Allocates nothing.
    pub(super) fn note_change(&mut self, desk: Desk<'_, T>, change: Change, barred_until: Instant) {
        self.tally.changes += 1;
        self.mark_stale(desk, change.range);
        if self.changes.len() == CHANGES {
            self.changes.clear();
            self.mark_stale(desk, PageRange::EVERYTHING);
            self.changes.push(Change { range: PageRange::EVERYTHING, kind: ChangeKind::Gone });
        } else {
            self.changes.push(change);
        }
        if change.kind == ChangeKind::Discarding {
            self.bar(change.range, barred_until);
        }
    }

    /// Nothing is cached in the range until then. Allocates nothing.
    pub(super) fn bar(&mut self, range: PageRange, until: Instant) {
        let now = Instant::now();
        self.barred.retain(|&(_, until)| until > now);
        if self.barred.len() == BARRED {
            let all = self.barred.iter().fold(range, |hull, &(barred, _)| hull.hull(barred));
            self.barred.clear();
            self.barred.push((all, until));
        } else {
            self.barred.push((range, until));
        }
    }

    /// The range is about to change, until [`Books::changed`]: nothing of it is found from now on, and nothing
    /// of it is cached that is planned meanwhile.
    pub(super) fn change(&mut self, desk: Desk<'_, T>, range: PageRange) -> u64 {
        let change = self.next_change;
        self.next_change += 1;
        self.changing.push((change, range));
        self.invalidate(desk, range);
        change
    }

    /// The change is done.
    pub(super) fn changed(&mut self, change: u64) {
        self.changing.retain(|&(number, _)| number != change);
    }

    /// Whether a change is under way somewhere in the range.
    pub(super) fn is_changing(&self, range: PageRange) -> bool {
        self.changing.iter().any(|(_, changing)| changing.overlaps(range))
    }

    /// Finds the orphans that no lease has any more. What a lease has of memory that is gone is among the lent: it was
    /// struck out when the memory went.
    fn part_with_orphans(&mut self, desk: Desk<'_, T>) {
        let Self { orphans, to_unmap, lent, parked, yielding, under_way, next_batch, .. } = self;
        let has = |pages: PageRange| {
            let standing = yielding.iter().map(|comeback| &comeback.yielding.region);
            lent.iter().chain(standing).any(|&id| desk.records[id].range().overlaps(pages))
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

    /// Whether a request is planned as usual: the cache is there, and nothing is changing or being discarded in the range.
    #[inline]
    pub(super) fn is_quiet(&self, range: PageRange) -> bool {
        !self.closed && !self.is_changing(range) && !self.is_barred(range)
    }

    /// Whether there is anything to deregister or to unmap.
    pub(super) fn has_leavers(&self) -> bool {
        !self.limbo.is_empty() || !self.to_unmap.is_empty()
    }

    pub(super) fn is_barred(&self, range: PageRange) -> bool {
        let mut over = self.barred.iter().filter(|(barred, _)| barred.overlaps(range)).peekable();
        over.peek().is_some() && {
            let now = Instant::now();
            over.any(|&(_, until)| until > now)
        }
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

    fn sweep_lent(&mut self, desk: Desk<'_, T>) {
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

/// The names of what leaves.
fn append<'a>(batches: impl Iterator<Item = &'a [Leaving]>, names: &mut Vec<RegionId>) {
    for batch in batches {
        names.extend(batch.iter().map(|leaving| leaving.region));
    }
}

/// Those who hold regions without the core's knowledge: the leases of all threads.
pub(super) struct Leases<'a, T> {
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
