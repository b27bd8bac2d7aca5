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
use super::records::Record;
use crate::access::Access;
use crate::range::PageRange;
use crate::shim::sync::atomic::{AtomicU32, Ordering};

/// What a lease has of one region: a slot with its name, or a place in its count.
pub(super) enum Grip<'a> {
    Slot(&'a AtomicU32),
    Counted,
}

/// Takes hold of a region if its record is live, grants the rights and contains the range, and the gate is open.
/// Returns the number of its pages.
///
/// `gate` is asked between the announcement and the record. The name is the record's number; it may be 0, which says
/// nothing in a slot, and whose record is never live.
#[inline(always)]
pub(super) fn take<T>(
    barrier: Barrier,
    slot: &AtomicU32,
    record: &Record<T>,
    name: u32,
    range: PageRange,
    access: Access,
    gate: impl FnOnce() -> bool,
) -> Option<u64> {
    barrier.announce(slot, name);
    if gate()
        && let Some(pages) = serves(record, range, access)
    {
        return Some(pages);
    }
    let_go(slot);
    None
}

/// The same, by the count of the region: for a thread that has no free slot.
pub(super) fn take_counted<T>(
    barrier: Barrier,
    record: &Record<T>,
    range: PageRange,
    access: Access,
    gate: impl FnOnce() -> bool,
) -> Option<u64> {
    barrier.announce_count(record.counted());
    if gate()
        && let Some(pages) = serves(record, range, access)
    {
        return Some(pages);
    }
    let_go_counted(record.counted());
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

/// Ends a hold. Release: whoever finds the slot empty comes after all that was done under the hold.
#[inline(always)]
pub(super) fn let_go(slot: &AtomicU32) {
    slot.store(0, Ordering::Release);
}

/// Ends a hold that was counted.
pub(super) fn let_go_counted(count: &AtomicU32) {
    count.fetch_sub(1, Ordering::Release);
}
