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
//! # Why a hit never gets what is going
//!
//! *Against retirement.* Who wants a region gone, under the lock, (1) hides its record, (2) runs the heavy
//! barrier, (3) reads all slots and then the count, and takes the registration out only if none names it. A hit (a)
//! announces, (b) runs the light barrier, (c) reads the record. The barriers order each side's store before its
//! load, so one of the two sees the other: if (3) does not see the announcement (a), then (c) comes after (1)
//! and finds the record hidden. If (3) sees it, the region stays until the slot is empty. That empty slot is read
//! with acquire and was stored with release, so all that the lease did comes before the registration is
//! taken out. A record that is used again was empty in between; a hit that announced its name early reads the
//! new region's facts after (b), and holds that one. An announcement that fails is taken for a hold at worst, and
//! the region is looked at again later.
//!
//! *Against invalidation.* Explicit: the record is hidden before the call returns, and whoever acquires
//! after that reads it hidden. By a monitor: the gate is raised before the event is read, so before the call that
//! changed memory returns; the records are hidden before the gate is lowered. A hit reads the gate *before*
//! the record. If it finds the gate open although the change has returned, the gate was lowered in between, with
//! release, and the hit's load acquires: it finds the record hidden.
//!
//! *Against a release that nobody notices.* Who awaits the end of a lease (1) writes so beside its slot, (2) runs the heavy
//! barrier, (3) reads the slot again. A release (a) empties the slot, (b) runs the light barrier, (c) looks beside it. As
//! above, one of the two sees the other. With a real fence instead of `membarrier`, (b) is still an order to the compiler, and
//! who awaits looks again from time to time.
//!
//! *Against forks.* The gate is wiped in a child: it is not open, and the locked path says so.
//!
//! *The index* may be changing while it is read. It is made of atomics in memory that stays, and what it
//! says is only a guess: the record decides.
//!
//! With `membarrier` the light barrier is an order to the compiler alone. The heavy side's system call
//! then makes every running thread of the process execute a full barrier between (1) and (3). A thread's
//! announcement is either before that point, and visible to (3), or after it, and so is its reading of the record.
//! Threads that do not run have passed a barrier when they were switched out.

use super::barrier::Barrier;
use super::books::GROUP;
use super::notifier::Notifier;
use super::records::Record;
use super::shared::Shared;
use super::slots::{self, Block, Slot};
use crate::access::Access;
use crate::index::IndexReader;
use crate::range::PageRange;
use crate::regions::RegionId;
use crate::registrar::Registrar;
use crate::shim::sync::atomic::Ordering;

/// What a lease has of one region: a slot with its name, or a place in its count.
pub(super) enum Grip {
    Slot(&'static Slot),
    Counted,
}

/// A region has as many leases as can be counted.
pub(super) struct TooMany;

/// Takes hold of a region if its record is live, grants the rights and contains the range, and the gate is open.
/// Returns the number of its pages.
///
/// `gate` is asked between the announcement and the record. The name is the record's number; it may be 0, which says
/// nothing in a slot, and whose record is never live.
#[inline(always)]
pub(super) fn take<T>(
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
    slot.let_go();
    None
}

/// The same, by the count of the region: for a thread that has no free slot. `None` also where the count is full: the
/// locked path says so.
pub(super) fn take_counted<T>(
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
    let_go_counted(record, name, notifier);
    None
}

/// The range is tested after the hold: before it, the record may have been another region's. Without a hold the answer
/// is a guess.
#[inline(always)]
pub(super) fn serves<T>(record: &Record<T>, range: PageRange, access: Access) -> Option<u64> {
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
pub(super) fn let_go_counted<T>(record: &Record<T>, name: u32, notifier: &Notifier) {
    if record.counted().end() {
        notifier.lease_ended(name);
    }
}

impl<R: Registrar> Shared<R> {
    /// The way of a hit where nothing is out of the ordinary: it ends early rather than call what is
    /// seldom needed. [`Shared::hit`] finds the rest.
    #[inline(always)]
    pub(super) fn hit_quickly(&self, range: PageRange, access: Access) -> Option<&'static Slot> {
        let block = slots::nearby(self.quick_number)?;
        // No test whether there is a candidate: the record of none says so.
        let name = self.readers[access.class()].guess(range.start());
        let record = self.records.named(name)?;
        let slot = block.free_slot()?;
        let pages = take(self.barrier, slot, record, name, range, access, || self.gate.is_open())?;
        self.note_hit(block, record, name, pages, range.pages());
        Some(slot)
    }

    /// The way of a hit, with everything that can be on it.
    #[inline(never)]
    pub(super) fn hit(&self, range: PageRange, access: Access) -> Option<(RegionId, Grip)> {
        let class = access.class();
        if let Some(hit) = self.hit_in(class, range, access) {
            return Some(hit);
        }
        // A region that peers have rights to serves its owner too.
        if class == 0 && self.has_remote.load(Ordering::Relaxed) { self.hit_in_remote(range, access) } else { None }
    }

    #[inline(never)]
    fn hit_in_remote(&self, range: PageRange, access: Access) -> Option<(RegionId, Grip)> {
        self.hit_in(1, range, access)
    }

    #[inline]
    fn hit_in(&self, class: usize, range: PageRange, access: Access) -> Option<(RegionId, Grip)> {
        let hit = self.hit_by(&self.readers[class], range, access);
        if hit.is_some() || self.layers[class].is_empty() { hit } else { self.hit_in_layers(class, range, access) }
    }

    #[inline(never)]
    fn hit_in_layers(&self, class: usize, range: PageRange, access: Access) -> Option<(RegionId, Grip)> {
        self.layers[class].iter().find_map(|layer| self.hit_by(layer, range, access))
    }

    #[inline]
    fn hit_by(&self, layer: &IndexReader, range: PageRange, access: Access) -> Option<(RegionId, Grip)> {
        let id = layer.candidate(range.start())?;
        let record = self.records.get(id)?;
        // Mostly it is a miss that comes here: whoever has the lock finds what this guess does not.
        serves(record, range, access)?;
        let Some((block, slot)) = self.free_slot() else { return self.hit_counted(id, range, access) };
        let pages = take(self.barrier, slot, record, id.raw(), range, access, || self.gate.is_open())?;
        self.note_hit(block, record, id.raw(), pages, range.pages());
        Some((id, Grip::Slot(slot)))
    }

    #[inline(never)]
    fn hit_counted(&self, id: RegionId, range: PageRange, access: Access) -> Option<(RegionId, Grip)> {
        let block = slots::mine(&self.blocks, || !self.gate.is_forked())?;
        let (record, notifier) = (&self.records[id], self.work);
        let pages = take_counted(self.barrier, record, id.raw(), notifier, range, access, || self.gate.is_open())?;
        self.note_hit(block, record, id.raw(), pages, range.pages());
        Some((id, Grip::Counted))
    }

    #[inline(always)]
    fn note_hit(&self, block: &Block, record: &Record<R::Registration>, name: u32, pages: u64, asked: u64) {
        block.count(pages == asked, asked);
        if record.touch(self.most_touches) {
            let sign = &self.signs[(name as usize).wrapping_sub(1) / GROUP];
            if sign.load(Ordering::Relaxed) == 0 {
                // Release, with the acquire of who takes it away: the mark is there to be found.
                sign.store(1, Ordering::Release);
            }
        }
    }

    /// A slot of this thread, and its block.
    #[inline]
    fn free_slot(&self) -> Option<(&'static Block, &'static Slot)> {
        // The lock may have been held at a fork.
        slots::free_slot(&self.blocks, || !self.gate.is_forked())
    }

    /// For requests that only regions for local use may serve. `None` also where the thread has no free slot.
    pub(super) fn hit_own_class(&self, range: PageRange, access: Access) -> Option<(RegionId, Grip)> {
        let id = self.readers[access.class()].candidate(range.start())?;
        self.hit_of_class(id, range, access)
    }

    /// The name may be another region's by now, of another class: that is looked at when it is held.
    fn hit_of_class(&self, id: RegionId, range: PageRange, access: Access) -> Option<(RegionId, Grip)> {
        let record = self.records.get(id)?;
        let (block, slot) = self.free_slot()?;
        let pages = take(self.barrier, slot, record, id.raw(), range, access, || self.gate.is_open())?;
        if record.access().class() != access.class() {
            slot.let_go();
            return None;
        }
        self.note_hit(block, record, id.raw(), pages, range.pages());
        Some((id, Grip::Slot(slot)))
    }

    /// Takes hold of a region that stands. Under the lock: nobody can retire it meanwhile.
    pub(super) fn grip(&self, id: RegionId) -> Result<Grip, TooMany> {
        if let Some((_, slot)) = self.free_slot() {
            slot.grip(id.raw());
            return Ok(Grip::Slot(slot));
        }
        if self.records[id].counted().add() { Ok(Grip::Counted) } else { Err(TooMany) }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::Grip;
    use crate::cache::records::LeaseCount;
    use crate::cache::slots::{MOST_BLOCKS, SLOTS};
    use crate::invalidation::Explicit;
    use crate::registrar::model::Dummy;
    use crate::{Access, AcquireError, Cache, Lease, PAGE, PageRange};

    #[test]
    fn a_name_that_is_used_again_by_a_region_of_another_class_is_no_hit() {
        let cache = Cache::builder(Dummy::default()).monitor(Explicit).ignore_environment().build().unwrap();
        let (range, access) = (PageRange::new(16, 4).unwrap(), Access::LOCAL | Access::REMOTE_READ);
        #[expect(unsafe_code, reason = "no transfer is made")]
        // SAFETY: no transfer is made.
        let lease = unsafe { cache.acquire((16 * PAGE) as *const u8, 4 * PAGE as usize, access) }.unwrap();
        drop(lease);
        let shared = &cache.shared;
        let id = shared.readers[1].candidate(range.start()).unwrap();
        // As if the index of the other class still named it.
        assert!(shared.hit_of_class(id, range, Access::LOCAL).is_none());
        assert_eq!((cache.counters().decisions.requests, cache.reap().unwrap().regions), (1, 0), "and is not counted");
        assert_eq!(cache.flush().unwrap().regions, 1, "nor held");
    }

    #[test]
    fn a_hit_in_any_layer_takes_no_lock() {
        let cache = Cache::builder(Dummy::default()).monitor(Explicit).ignore_environment();
        let cache = cache.capacity_pages(1000).max_segments(1).build().unwrap();
        #[expect(unsafe_code, reason = "no transfer is made")]
        let ask = |start: u64, pages: u64| {
            // SAFETY: no transfer is made.
            drop(
                unsafe { cache.acquire((start * PAGE) as *const u8, (pages * PAGE) as usize, Access::LOCAL) }.unwrap(),
            );
        };
        // Each overlaps those before it, and none is merged with another.
        let four = [(1000, 200), (1120, 82), (1170, 34), (1190, 15)];
        four.iter().for_each(|&(start, pages)| ask(start, pages));
        let locked = cache.shared.books.lock().unwrap();
        four.iter().for_each(|&(start, pages)| ask(start, pages));
        ask(1203, 2);
        drop(locked);
        assert_eq!((cache.counters().attempts, cache.counters().decisions.hits()), (4, 5));
    }

    #[test]
    fn a_hit_whose_mark_has_no_sign_still_keeps_its_region() {
        use std::sync::atomic::Ordering;
        let cache = Cache::builder(Dummy::default()).monitor(Explicit).ignore_environment();
        let cache = cache.capacity_pages(2).policy("pindown".parse().unwrap()).build().unwrap();
        #[expect(unsafe_code, reason = "no transfer is made")]
        let ask = |page: u64| {
            // SAFETY: no transfer is made.
            drop(unsafe { cache.acquire((page * PAGE) as *const u8, PAGE as usize, Access::LOCAL) }.unwrap());
        };
        ask(16);
        ask(20);
        ask(16);
        // As if the mark had not been seen yet by who took the sign away.
        assert_eq!(cache.shared.signs[0].swap(0, Ordering::Relaxed), 1);
        ask(24);
        ask(16);
        assert_eq!((cache.counters().attempts, cache.counters().decisions.hits()), (3, 2));
        // Where all were hit, one leaves all the same.
        ask(24);
        cache.shared.signs[0].swap(0, Ordering::Relaxed);
        ask(28);
        assert_eq!((cache.counters().attempts, cache.usage().regions), (4, 2));
    }

    #[expect(unsafe_code, reason = "no transfer is made")]
    fn take(cache: &Cache<Dummy>, page: u64, pages: u64) -> Result<Lease<Dummy>, AcquireError> {
        // SAFETY: no transfer is made.
        unsafe { cache.acquire((page * PAGE) as *const u8, (pages * PAGE) as usize, Access::LOCAL) }
    }

    fn small() -> Cache<Dummy> {
        Cache::builder(Dummy::default()).monitor(Explicit).ignore_environment().capacity_pages(100).build().unwrap()
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
        let cache =
            Cache::builder(Dummy::default()).monitor(Explicit).ignore_environment().fence(true).build().unwrap();
        drop(take(&cache, 16, 1).unwrap());
        let shared = &cache.shared;
        let held = shared.hit(PageRange::new(16, 1).unwrap(), Access::LOCAL);
        let Some((_, Grip::Slot(slot))) = held else { panic!("there is a slot") };
        cache.invalidate((16 * PAGE) as *const u8, PAGE as usize).unwrap();
        shared.lock().unwrap().await_lent(shared.desk());
        assert_eq!((cache.usage().lent, cache.reap().unwrap().regions), (1, 0));
        shared.lock().unwrap().await_lent(shared.desk());
        // As if it had looked for the wish before that came.
        slot.grip(0);
        assert_eq!((cache.reap().unwrap().regions, cache.usage().lent), (1, 0));
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
        let id = cache.shared.readers[0].candidate(16).unwrap();
        assert!(!cache.shared.records[id].counted().any(), "some are counted");
    }
}
