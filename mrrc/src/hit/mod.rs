//! The path of a hit: no lock, no line that another thread writes, no system call.
//!
//! ```text
//! look the page up      → a candidate: the name of a region, maybe out of date
//! announce it           → the name goes into a slot of this thread; barrier
//! look at the gate      → no change of memory is being dealt with, no fork
//! look at the record    → live, grants the rights, contains the range
//! ```
//!
//! If anything fails the slot is cleared and the request takes the locked path, which finds what there is.
//!
//! # Why a hit never gets what is leaving
//!
//! `docs/hit-path.md` has the arguments: against eviction, changes of memory, forks, and ends of leases that go unnoticed. They
//! rest on these orderings:
//!
//! * The heavy barrier and the light one order each side's store before its load, so one of the two sees the other. With
//!   `membarrier` the light one is an order to the compiler alone: the system call makes every running thread execute a full
//!   barrier, and one that does not run has passed a barrier when it was switched out.
//! * A slot is emptied with release and read with acquire, so all that the lease did comes before the registration is taken
//!   out. A record that is used again was empty in between: a hit that announced its name early reads the new region's facts
//!   after its barrier, and holds that one. An announcement that fails is taken for a hold at worst, and the region is looked
//!   at again later.
//! * The gate is raised before the event is read, and lowered, with release, after the records are hidden. A hit reads it, with
//!   acquire, *before* the record.
//! * The index may be changing while it is read. It is made of atomics in memory that stays, and its answer is only a guess: the
//!   record decides.

pub(crate) mod barrier;
pub(crate) mod gate;
mod hold;
pub(crate) mod notifier;
pub(crate) mod records;
pub(crate) mod slots;

use crate::access::Access;
use crate::core::Core;
use crate::driver::IndexReader;
use crate::range::PageRange;
use crate::regions::RegionId;
use crate::shim::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use barrier::Barrier;
use gate::Gate;
pub(crate) use hold::HoldRef;
use notifier::Notifier;
use records::{Record, Records};
use slots::{Block, Blocks, Slot};
use std::io;
use std::sync::Arc;

/// Regions with marks that share a sign that there are some. Each is looked at where there are any, so there are few.
const GROUP: usize = 16;

/// The tables that hits read, and that the state of the cache is published in.
///
/// In this order: what a plain hit reads lies in one line.
#[repr(C, align(64))]
pub(crate) struct HitTables<T> {
    // The words that a hit reads, and nothing writes.
    pub(crate) gate: Gate,
    pub(crate) records: Records<T>,
    readers: [IndexReader; 2],
    /// The number of the cache where a hit is a plain one: no latency is recorded, and the device's pages are ours. No
    /// cache's where it is not.
    quick_number: u64,
    most_touches: u32,
    pub(crate) barrier: Barrier,
    // Up to here.
    /// Whether rights for peers were ever asked for.
    has_remote: AtomicBool,
    /// Whether a region of each group has marks.
    signs: Box<[AtomicU8]>,
    pub(crate) blocks: Arc<Blocks>,
    /// The layers above those of `readers`, where regions may overlap. Not on the plain way of a hit.
    layers: [Box<[IndexReader]>; 2],
}

const _: () = assert!(std::mem::offset_of!(HitTables<u64>, has_remote) <= 64 || cfg!(any(loom, shuttle)));

/// A region has as many leases as can be counted.
pub(crate) struct TooMany;

/// Takes hold of a region if its record is live, grants the rights and contains the range, and the gate is open.
/// Returns the number of its pages.
///
/// `gate` is asked between the announcement and the record. The name is the record's number; it may be 0, which
/// means nothing in a slot, and names a record that is never live.
#[inline(always)]
pub(crate) fn take<T>(
    barrier: Barrier,
    slot: &Slot,
    record: &Record<T>,
    name: u32,
    range: PageRange,
    access: Access,
    gate: impl FnOnce() -> bool,
) -> Option<u64> {
    slot.announce(barrier, name);
    if gate()
        && let Some(pages) = serves(record, range, access)
    {
        return Some(pages);
    }
    slot.release();
    None
}

/// The same, by the count of the region: for a thread that has no free slot. `None` also where the count is full: the
/// locked path says so.
pub(crate) fn take_counted<T>(
    barrier: Barrier,
    record: &Record<T>,
    name: u32,
    notifier: &Notifier,
    range: PageRange,
    access: Access,
    gate: impl FnOnce() -> bool,
) -> Option<u64> {
    if !barrier.announce_count(record.counted()) {
        return None;
    }
    if gate()
        && let Some(pages) = serves(record, range, access)
    {
        return Some(pages);
    }
    release_counted(record, name, notifier);
    None
}

/// The range is tested after the hold: before it, the record may have been another region's. Without a hold the answer
/// is a guess.
#[inline(always)]
pub(crate) fn serves<T>(record: &Record<T>, range: PageRange, access: Access) -> Option<u64> {
    let facts = record.facts();
    if !facts.grant(access) {
        return None;
    }
    // A range that starts before the region wraps to a huge distance: one comparison for both ends.
    let ahead = range.start().wrapping_sub(record.start());
    let pages = facts.pages();
    (ahead < pages && range.pages() <= pages - ahead).then_some(pages)
}

/// Ends a hold that was counted. After that the record may be gone; the notifier is not.
pub(crate) fn release_counted<T>(record: &Record<T>, name: u32, notifier: &Notifier) {
    if record.counted().end() {
        notifier.lease_ended(name);
    }
}

impl<T> HitTables<T> {
    /// Returns the tables of a cache of at most so many regions. Plain: see `quick_number`.
    ///
    /// # Errors
    /// The system has no memory for them, or no page that is wiped on fork.
    pub(crate) fn new(regions: usize, core: &mut Core, barrier: Barrier, is_plain: bool) -> io::Result<Self> {
        let blocks = Blocks::new();
        Ok(Self {
            gate: Gate::new()?,
            records: Records::new(regions)?,
            readers: core.share_index(),
            quick_number: if is_plain { blocks.number() } else { slots::NOBODY },
            // A mark also tells that a region was leased: `state/unheld.rs`.
            most_touches: core.max_touches().max(1),
            barrier,
            has_remote: AtomicBool::new(false),
            signs: (0..regions.div_ceil(GROUP)).map(|_| AtomicU8::new(0)).collect(),
            blocks,
            layers: core.share_layers(),
        })
    }

    /// Returns the notifier of the background, which leases notify too.
    pub(crate) fn notifier(&self) -> &'static Notifier {
        self.blocks.notifier()
    }

    /// Notes that regions with rights for peers exist from now on.
    pub(crate) fn expect_remote(&self) {
        self.has_remote.store(true, Ordering::Relaxed);
    }

    /// Appends the regions that were hit since they were last taken, each as often as that happened, or about `most` of
    /// them. The first `regions` are looked at, from group `next` on, which moves to where the next call goes on.
    ///
    /// A sign can be taken away before the mark is seen that it stands for.
    pub(crate) fn take_touched(&self, regions: usize, next: &mut usize, most: usize, touched: &mut Vec<RegionId>) {
        let first = std::mem::take(next);
        for (group, sign) in self.signs.iter().enumerate().take(regions.div_ceil(GROUP)).skip(first) {
            if sign.load(Ordering::Relaxed) == 0 {
                continue;
            }
            if touched.len() >= most {
                *next = group;
                return;
            }
            if sign.swap(0, Ordering::Acquire) == 0 {
                continue;
            }
            let first = group * GROUP;
            let records = self.records.range(RegionId::of_index(first), GROUP.min(regions - first));
            for (record, nth) in records.iter().zip(first..) {
                for _ in 0..record.take_touched() {
                    touched.push(RegionId::of_index(nth));
                }
            }
        }
    }

    /// The way of a hit where nothing is out of the ordinary: it ends early rather than call what is
    /// seldom needed. [`HitTables::hit`] finds the rest.
    #[inline(always)]
    pub(crate) fn hit_quickly(&self, range: PageRange, access: Access) -> Option<HoldRef> {
        let block = slots::nearby(self.quick_number)?;
        // No test whether there is a candidate: the record of none says so.
        let name = self.readers[access.class()].guess(range.start());
        let record = self.records.named(name)?;
        let slot = block.free_slot()?;
        let pages = take(self.barrier, slot, record, name, range, access, || self.gate.is_open())?;
        self.note_hit(block, record, name, pages, range.pages());
        Some(HoldRef::by(slot))
    }

    /// The way of a hit, with everything that can be on it.
    #[inline(never)]
    pub(crate) fn hit(&self, range: PageRange, access: Access) -> Option<HoldRef> {
        let class = access.class();
        let hit = self.hit_in(class, range, access);
        // A region that peers have rights to serves its owner too.
        if hit.is_none() && class == 0 && self.has_remote.load(Ordering::Relaxed) {
            return self.hit_in(1, range, access);
        }
        hit
    }

    fn hit_in(&self, class: usize, range: PageRange, access: Access) -> Option<HoldRef> {
        let hit = self.hit_by(&self.readers[class], range, access);
        hit.or_else(|| self.layers[class].iter().find_map(|layer| self.hit_by(layer, range, access)))
    }

    #[inline]
    fn hit_by(&self, layer: &IndexReader, range: PageRange, access: Access) -> Option<HoldRef> {
        let id = layer.candidate(range.start())?;
        let record = self.records.get(id)?;
        // Mostly it is a miss that comes here: the holder of the lock finds what this guess does not.
        serves(record, range, access)?;
        let Some((block, slot)) = self.free_slot() else { return self.hit_counted(id, range, access) };
        let pages = take(self.barrier, slot, record, id.raw(), range, access, || self.gate.is_open())?;
        self.note_hit(block, record, id.raw(), pages, range.pages());
        Some(HoldRef::by(slot))
    }

    #[inline(never)]
    fn hit_counted(&self, id: RegionId, range: PageRange, access: Access) -> Option<HoldRef> {
        let block = slots::mine(&self.blocks, || !self.gate.is_forked())?;
        let (record, notifier) = (&self.records[id], self.notifier());
        let pages = take_counted(self.barrier, record, id.raw(), notifier, range, access, || self.gate.is_open())?;
        self.note_hit(block, record, id.raw(), pages, range.pages());
        Some(HoldRef::counted(id))
    }

    #[inline(always)]
    fn note_hit(&self, block: &Block, record: &Record<T>, name: u32, pages: u64, asked: u64) {
        block.count(pages == asked, asked);
        if record.touch(self.most_touches) {
            let sign = &self.signs[(name as usize).wrapping_sub(1) / GROUP];
            if sign.load(Ordering::Relaxed) == 0 {
                // Release, with the acquire of the thread that takes it away: the mark is there to be found.
                sign.store(1, Ordering::Release);
            }
        }
    }

    /// Returns a slot of this thread, and its block.
    #[inline]
    fn free_slot(&self) -> Option<(&'static Block, &'static Slot)> {
        // The lock may have been held at a fork.
        slots::free_slot(&self.blocks, || !self.gate.is_forked())
    }

    /// For requests that only regions for local use may serve. `None` also where the thread has no free slot.
    pub(crate) fn hit_own_class(&self, range: PageRange, access: Access) -> Option<HoldRef> {
        let id = self.readers[access.class()].candidate(range.start())?;
        self.hit_of_class(id, range, access)
    }

    /// The name may be another region's by now, of another class: that is looked at when it is held.
    fn hit_of_class(&self, id: RegionId, range: PageRange, access: Access) -> Option<HoldRef> {
        let record = self.records.get(id)?;
        let (block, slot) = self.free_slot()?;
        let pages = take(self.barrier, slot, record, id.raw(), range, access, || self.gate.is_open())?;
        if record.access().class() != access.class() {
            slot.release();
            return None;
        }
        self.note_hit(block, record, id.raw(), pages, range.pages());
        Some(HoldRef::by(slot))
    }

    /// Takes hold of a region that stands. Under the lock: it cannot be retired meanwhile.
    pub(crate) fn hold(&self, id: RegionId) -> Result<HoldRef, TooMany> {
        if let Some((_, slot)) = self.free_slot() {
            slot.hold(id.raw());
            return Ok(HoldRef::by(slot));
        }
        if self.records[id].counted().add() { Ok(HoldRef::counted(id)) } else { Err(TooMany) }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use crate::cache::Builder;
    use crate::hit::records::LeaseCount;
    use crate::hit::slots::{MOST_BLOCKS, SLOTS};
    use crate::invalidation::Explicit;
    use crate::testing::NoopRegistrar;
    use crate::{Access, AcquireError, Cache, Lease, PAGE, PageRange};

    #[test]
    fn reused_id_of_another_class_is_no_hit() {
        let cache = builder().build().unwrap();
        let (range, access) = (PageRange::new(16, 4).unwrap(), Access::LOCAL | Access::REMOTE_READ);
        #[expect(unsafe_code, reason = "no transfer is made")]
        // SAFETY: `acquire` restricts uses of the memory during transfers; this test makes none.
        let lease = unsafe { cache.acquire((16 * PAGE) as *const u8, 4 * PAGE as usize, access) }.unwrap();
        drop(lease);
        let tables = &cache.shared.tables;
        let id = tables.readers[1].candidate(range.start()).unwrap();
        // As if the index of the other class still named it.
        assert!(tables.hit_of_class(id, range, Access::LOCAL).is_none());
        assert_eq!((cache.counters().decisions.requests, cache.reap().unwrap().regions), (1, 0), "and is not counted");
        assert_eq!(cache.flush().unwrap().regions, 1, "nor held");
    }

    #[test]
    fn a_hit_in_any_layer_takes_no_lock() {
        let cache = builder().capacity_pages(1000).max_segments(1).build().unwrap();
        let ask = |start, pages| drop(take(&cache, start, pages).unwrap());
        // Each overlaps those before it, and none is merged with another.
        let four = [(1000, 200), (1120, 82), (1170, 34), (1190, 15)];
        four.iter().for_each(|&(start, pages)| ask(start, pages));
        let locked = cache.shared.lock().unwrap();
        four.iter().for_each(|&(start, pages)| ask(start, pages));
        ask(1203, 2);
        drop(locked);
        assert_eq!((cache.counters().attempts, cache.counters().decisions.hits()), (4, 5));
    }

    #[test]
    fn unsigned_touch_still_keeps_its_region() {
        use std::sync::atomic::Ordering;
        let cache = builder().capacity_pages(2).policy("pindown".parse().unwrap()).build().unwrap();
        let ask = |page| drop(take(&cache, page, 1).unwrap());
        ask(16);
        ask(20);
        ask(16);
        // As if the thread that took the sign away had not seen the mark yet.
        assert_eq!(cache.shared.tables.signs[0].swap(0, Ordering::Relaxed), 1);
        ask(24);
        ask(16);
        assert_eq!((cache.counters().attempts, cache.counters().decisions.hits()), (3, 2));
        // Where all were hit, one leaves all the same.
        ask(24);
        cache.shared.tables.signs[0].swap(0, Ordering::Relaxed);
        ask(28);
        assert_eq!((cache.counters().attempts, cache.usage().regions), (4, 2));
    }

    #[expect(unsafe_code, reason = "no transfer is made")]
    fn take(cache: &Cache<NoopRegistrar>, page: u64, pages: u64) -> Result<Lease<NoopRegistrar>, AcquireError> {
        // SAFETY: `acquire` restricts uses of the memory during transfers; this test makes none.
        unsafe { cache.acquire((page * PAGE) as *const u8, (pages * PAGE) as usize, Access::LOCAL) }
    }

    fn builder() -> Builder<NoopRegistrar> {
        Cache::builder(NoopRegistrar::default()).monitor(Explicit).ignore_environment()
    }

    fn small() -> Cache<NoopRegistrar> {
        builder().capacity_pages(100).build().unwrap()
    }

    #[test]
    fn a_full_count_of_leases_is_an_error() {
        let cache = small();
        let leases = SLOTS * MOST_BLOCKS + LeaseCount::MOST as usize;
        let mut held: Vec<_> = (0..leases).map(|_| take(&cache, 16, 1).unwrap()).collect();
        // Alone, and with a gap beside it, which is taken back.
        for pages in [1, 2] {
            let refused = take(&cache, 16, pages).map(drop).unwrap_err();
            assert!(matches!(refused, AcquireError::TooManyLeases { .. }), "{refused}");
        }
        // The region is in use, whatever was forgotten and refused.
        held.drain(10..).for_each(std::mem::forget);
        cache.invalidate((16 * PAGE) as *const u8, PAGE as usize).unwrap();
        assert_eq!((cache.reap().unwrap().regions, cache.usage().pages), (0, 1));
    }

    #[test]
    fn a_count_that_was_full_takes_more_when_a_lease_ends() {
        let cache = small();
        let leases = SLOTS * MOST_BLOCKS + LeaseCount::MOST as usize;
        let mut held: Vec<_> = (0..leases).map(|_| take(&cache, 16, 1).unwrap()).collect();
        assert!(take(&cache, 16, 1).is_err());
        drop(held.pop());
        held.push(take(&cache, 16, 1).unwrap());
        drop(held);
        assert_eq!((cache.flush().unwrap().regions, cache.usage().pages), (1, 0));
    }

    #[test]
    fn a_lease_whose_word_was_lost_keeps_no_region() {
        let cache = builder().fence(true).build().unwrap();
        drop(take(&cache, 16, 1).unwrap());
        let shared = &cache.shared;
        let held = shared.tables.hit(PageRange::new(16, 1).unwrap(), Access::LOCAL);
        let Some(slot) = held.and_then(|hold| hold.slot()) else { panic!("there is a slot") };
        cache.invalidate((16 * PAGE) as *const u8, PAGE as usize).unwrap();
        shared.lock().unwrap().await_leases(&shared.tables);
        assert_eq!((cache.usage().retired, cache.reap().unwrap().regions), (1, 0));
        shared.lock().unwrap().await_leases(&shared.tables);
        // As if it had looked for the wish before that came.
        slot.hold(0);
        assert_eq!((cache.reap().unwrap().regions, cache.usage().retired), (1, 0));
    }

    #[test]
    fn leases_in_any_order_have_slots() {
        let cache = small();
        let mut held: Vec<_> = (0..1024).map(|_| take(&cache, 16, 1).unwrap()).collect();
        let (mut random, mut oldest) = (1_u64, 0);
        for round in 0..100_000 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            // The newest, the oldest, any: each for a while.
            let place = match round / 10_000 % 3 {
                0 => 0,
                1 => oldest,
                _ => (random >> 33) as usize % held.len(),
            };
            oldest = (oldest + 1) % held.len();
            held[place] = take(&cache, 16, 1).unwrap();
        }
        let id = cache.shared.tables.readers[0].candidate(16).unwrap();
        assert!(!cache.shared.tables.records[id].counted().any(), "some are counted");
    }
}
