//! The part of a region that a hit reads: half a line of 64 bytes, in memory that never moves.
//!
//! The table is as long as the cache may have regions, and made once. The system gives memory to a page
//! of it when the first region there is registered. So a thread that follows a name that is out of date
//! still reads a record, and sees in it that the region is not *live*, or another.
//!
//! # Which thread may do what
//!
//! * Under the cache's lock a record is filled, made live, hidden and emptied.
//! * Any thread may look at the atomics at any time.
//! * Only a *holder* of the region may look at the registration in a record: a thread that announced it in a
//!   slot and then found it live, or holds the lock. It is taken out only under the lock, by the thread that
//!   hid the record and then found no slot and no count that names it. `hit/mod.rs` has the argument why these
//!   exclude each other.
#![expect(unsafe_code, reason = "cells that are guarded by the protocol of holds")]

use crate::access::Access;
use crate::range::PageRange;
use crate::regions::RegionId;
use crate::shim::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::cell::UnsafeCell;
use std::io;
use std::mem::MaybeUninit;
use table::Table;

/// See the [module](self).
#[repr(C, align(32))]
pub(crate) struct Record<T> {
    /// The number of pages, the rights that the region lacks, and whether look-ups must leave it. 0, which is no page,
    /// in a record that was never used.
    facts: AtomicU64,
    start: AtomicU64,
    /// Leases that found no free slot.
    counted: LeaseCount,
    /// How often it was hit since the core was last told; saturates.
    touched: AtomicU32,
    registration: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: the registration is shared with holders and moved by the holder of the lock; see the module.
unsafe impl<T: Send + Sync> Sync for Record<T> {}

const HIDDEN: u64 = 1 << 8;
const PAGES_SHIFT: u32 = 9;

/// The facts of a record, as they were when they were read.
#[derive(Clone, Copy)]
pub(crate) struct Facts(u64);

impl Facts {
    /// Returns whether the region is live and grants the rights, which are some, or there are no pages: one test.
    #[inline(always)]
    pub(crate) fn grant(self, access: Access) -> bool {
        self.0 & (HIDDEN | u64::from(access.bits())) == 0
    }

    #[inline(always)]
    pub(crate) fn pages(self) -> u64 {
        self.0 >> PAGES_SHIFT
    }
}

impl<T> Record<T> {
    /// Returns the record's facts now. Acquire: what it was filled with before it was made live is seen.
    #[inline(always)]
    pub(crate) fn facts(&self) -> Facts {
        Facts(self.facts.load(Ordering::Acquire))
    }

    /// Returns the start of the region; meaningful to a holder.
    #[inline(always)]
    pub(crate) fn start(&self) -> u64 {
        self.start.load(Ordering::Relaxed)
    }

    /// Returns the pages of the region; meaningful to a holder.
    pub(crate) fn range(&self) -> PageRange {
        let start = self.start();
        PageRange::between(start, start + Facts(self.facts.load(Ordering::Relaxed)).pages())
    }

    /// Returns the rights of the region; meaningful to a holder.
    pub(crate) fn access(&self) -> Access {
        Access::from_bits_retain(!self.facts.load(Ordering::Relaxed) as u8)
    }

    /// Leaves a mark that it was hit, if there is room for one more: then no store. True if it left one.
    #[inline(always)]
    pub(crate) fn touch(&self, most: u32) -> bool {
        let touched = self.touched.load(Ordering::Relaxed);
        if touched < most {
            self.touched.store(touched + 1, Ordering::Relaxed);
        }
        touched < most
    }

    /// Takes the marks away.
    #[inline]
    pub(crate) fn take_touched(&self) -> u32 {
        // Mostly there are none, and to swap takes several times as long as to look.
        if self.touched.load(Ordering::Relaxed) == 0 { 0 } else { self.touched.swap(0, Ordering::Relaxed) }
    }

    /// Leases that are counted here because they found no slot.
    pub(crate) fn counted(&self) -> &LeaseCount {
        &self.counted
    }

    /// Fills the record, not live yet. Under the lock, in an empty record.
    pub(crate) fn fill(&self, range: PageRange, access: Access, registration: T) {
        // SAFETY: the record is empty and not live, so it has no holder; the lock keeps others from filling it.
        unsafe { (*self.registration.get()).write(registration) };
        self.touched.store(0, Ordering::Relaxed);
        self.start.store(range.start(), Ordering::Relaxed);
        let facts = range.pages() << PAGES_SHIFT | HIDDEN | u64::from(!access.bits());
        // Release: see `facts`.
        self.facts.store(facts, Ordering::Release);
    }

    /// Look-ups may use it. Under the lock.
    pub(crate) fn show(&self) {
        self.facts.store(self.facts.load(Ordering::Relaxed) & !HIDDEN, Ordering::Release);
    }

    /// Hides it from look-ups; it may still be held. Under the lock.
    pub(crate) fn hide(&self) {
        self.facts.store(self.facts.load(Ordering::Relaxed) | HIDDEN, Ordering::Release);
    }

    /// Returns the registration.
    ///
    /// # Safety
    /// The record is filled, and the caller holds the region for as long as it uses the answer.
    #[inline(always)]
    pub(crate) unsafe fn registration(&self) -> &T {
        // SAFETY: the caller promises that the record is filled and held; it is emptied only once it has no holder.
        unsafe { (*self.registration.get()).assume_init_ref() }
    }

    /// Takes the registration out.
    ///
    /// # Safety
    /// The record is filled and hidden, the region has no holder, and the caller has the lock.
    pub(crate) unsafe fn empty(&self) -> T {
        // SAFETY: the caller promises a filled and hidden record without holders, under the lock: no other thread reads
        // it, and it is not taken twice.
        unsafe { (*self.registration.get()).assume_init_read() }
    }
}

/// Counted leases of one region, and whether their end is to be reported.
///
/// A lease can be forgotten without being dropped, so safe code can make any number of them: a count that is full takes no
/// more.
pub(crate) struct LeaseCount(AtomicU32);

const AWAITED: u32 = 1 << 31;

impl LeaseCount {
    /// The most leases of one region that are counted. The crate's own tests come so far.
    pub(crate) const MOST: u32 = if cfg!(test) { 1 << 7 } else { 1 << 30 };

    #[cfg(any(loom, shuttle))]
    fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// One more. False, and nothing is done, if there are too many.
    pub(crate) fn add(&self) -> bool {
        let more = |count: u32| (count & !AWAITED < Self::MOST).then_some(count + 1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// One less. Release: a reader that finds none comes after all that was done by them. Returns true if it was the
    /// last, and its end is to be reported.
    pub(crate) fn end(&self) -> bool {
        self.0.fetch_sub(1, Ordering::Release) == AWAITED | 1
    }

    /// Returns whether there are any. Acquire: see [`LeaseCount::end`].
    pub(crate) fn any(&self) -> bool {
        self.0.load(Ordering::Acquire) & !AWAITED != 0
    }

    /// Whether the end of the last is to be told. Under the lock.
    pub(crate) fn set_awaited(&self, awaited: bool) {
        if awaited {
            self.0.fetch_or(AWAITED, Ordering::Relaxed);
        } else {
            self.0.fetch_and(!AWAITED, Ordering::Relaxed);
        }
    }
}

/// The records of one cache, by the names of their regions. Registrations that are still in them when the table
/// goes are forgotten, not dropped: the cache takes them out before.
///
/// A record's number is the name: that of the first, 0, is no region's, and it stays empty.
pub(crate) struct Records<T>(Table<T>);

impl<T> Records<T> {
    /// Returns a table of so many records. Takes address space for all and memory for those that are used.
    ///
    /// # Errors
    /// There is no such address space.
    pub(crate) fn new(regions: usize) -> io::Result<Self> {
        regions.checked_add(1).and_then(Table::new).map(Self).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    #[inline(always)]
    pub(crate) fn get(&self, id: RegionId) -> Option<&Record<T>> {
        self.named(id.raw())
    }

    /// Returns the records of this region and of those after it, so many.
    #[inline]
    pub(crate) fn range(&self, first: RegionId, count: usize) -> &[Record<T>] {
        let first = first.raw() as usize;
        &self.0[first..first + count]
    }

    /// Returns the record of a name, which may be 0.
    #[inline(always)]
    pub(crate) fn named(&self, name: u32) -> Option<&Record<T>> {
        self.0.get(name as usize)
    }
}

impl<T> std::ops::Index<RegionId> for Records<T> {
    type Output = Record<T>;

    fn index(&self, id: RegionId) -> &Record<T> {
        &self.0[id.raw() as usize]
    }
}

#[cfg(not(any(loom, shuttle)))]
mod table {
    use super::Record;
    use std::alloc::Layout;
    use std::ops::Deref;
    use std::ptr::NonNull;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A slice of records that were never used.
    ///
    /// It is a mapping of its own. Allocators fill memory that was freed before with zeroes themselves, so a table in their
    /// memory would take all of it, used or not.
    pub(crate) struct Table<T> {
        records: NonNull<Record<T>>,
        len: usize,
        memory: NonNull<u8>,
    }

    /// Tables begin at places in a page that follow each other by so much. A table has memory of its own from the system,
    /// which begins with a page: were the first records of many caches at the same place in it, they would displace each
    /// other from the processor's first cache.
    const STEP: usize = 64;
    const PAGE: usize = crate::PAGE as usize;
    /// The system fills a huge page with zeroes at its first record. Most caches have few regions, so the first bytes of a table have
    /// small pages.
    const SMALL: usize = 2 << 20;

    // SAFETY: it owns a slice of records, and nothing else.
    unsafe impl<T> Send for Table<T> where Record<T>: Send {}
    // SAFETY: it owns a slice of records and nothing else, and a slice is `Sync` if its items are.
    unsafe impl<T> Sync for Table<T> where Record<T>: Sync {}

    impl<T> Table<T> {
        /// So many records, at least one; `None` if there is no address space for them.
        pub(crate) fn new(len: usize) -> Option<Self> {
            static NEXT: AtomicUsize = AtomicUsize::new(0);
            const { assert!(align_of::<Record<T>>() <= PAGE) };
            let bytes = Self::bytes(len)?;
            let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            // SAFETY: a fresh anonymous mapping touches nothing that exists.
            let mapped = unsafe { libc::mmap(std::ptr::null_mut(), bytes, rights, flags, -1, 0) };
            let memory = NonNull::new(mapped.cast::<u8>()).filter(|_| mapped != libc::MAP_FAILED)?;
            // SAFETY: it is advice on the mapping made above, which a kernel without huge pages refuses.
            #[cfg(target_os = "linux")]
            unsafe {
                libc::madvise(mapped, bytes.min(SMALL), libc::MADV_NOHUGEPAGE)
            };
            let start = NEXT.fetch_add(STEP, Ordering::Relaxed) % PAGE;
            // SAFETY: it is at most a page, by which, and by the alignment, the memory is longer than the records.
            let start = unsafe { memory.add(start) };
            let ahead = start.align_offset(align_of::<Record<T>>());
            // SAFETY: it is less than the alignment, by which the memory is longer still.
            let records = unsafe { start.add(ahead) }.cast();
            Some(Self { records, len, memory })
        }

        fn bytes(len: usize) -> Option<usize> {
            let records = Layout::array::<Record<T>>(len).ok()?;
            records.size().checked_add(records.align() + PAGE)
        }
    }

    impl<T> Deref for Table<T> {
        type Target = [Record<T>];

        #[inline(always)]
        fn deref(&self) -> &[Record<T>] {
            // SAFETY: so many records are there, aligned. All zeroes are a record that was never used: its atomics
            // are 0, and its registration is not initialised.
            unsafe { std::slice::from_raw_parts(self.records.as_ptr(), self.len) }
        }
    }

    impl<T> Drop for Table<T> {
        fn drop(&mut self) {
            let Some(bytes) = Self::bytes(self.len) else { unreachable!("`new` had it of the same length") };
            // SAFETY: `new` mapped so many bytes there, and no reference to them is left. Records have nothing to drop.
            unsafe { libc::munmap(self.memory.as_ptr().cast(), bytes) };
        }
    }
}

/// The checkers' atomics are more than their bytes.
#[cfg(any(loom, shuttle))]
mod table {
    use super::{AtomicU32, AtomicU64, LeaseCount, MaybeUninit, Record, UnsafeCell};
    use std::ops::Deref;

    pub(crate) struct Table<T>(Box<[Record<T>]>);

    impl<T> Table<T> {
        pub(crate) fn new(len: usize) -> Option<Self> {
            let record = || Record {
                facts: AtomicU64::new(0),
                start: AtomicU64::new(0),
                counted: LeaseCount::new(),
                touched: AtomicU32::new(0),
                registration: UnsafeCell::new(MaybeUninit::uninit()),
            };
            Some(Self((0..len).map(|_| record()).collect()))
        }
    }

    impl<T> Deref for Table<T> {
        type Target = [Record<T>];

        fn deref(&self) -> &[Record<T>] {
            &self.0
        }
    }
}

#[cfg(all(test, target_os = "linux", not(any(loom, shuttle, miri))))]
mod tests {
    use super::*;

    /// Returns whether the page of a record has memory.
    fn is_there<T>(record: &Record<T>) -> bool {
        // SAFETY: `sysconf` takes a number and returns one.
        let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let page = std::ptr::from_ref(record).map_addr(|address| address & !(size - 1)).cast_mut();
        let mut answer = 0;
        // SAFETY: it asks about one page, and writes one byte to a place that is ours.
        assert_eq!(unsafe { libc::mincore(page.cast(), 1, &raw mut answer) }, 0);
        answer & 1 == 1
    }

    #[test]
    fn a_record_that_was_never_used_takes_no_memory() {
        let records = Records::<u64>::new(1_000_000).unwrap();
        let id = |index| RegionId::of_index(index);
        records[id(500_000)].fill(PageRange::new(7, 3).unwrap(), Access::LOCAL, 5);
        assert!(is_there(&records[id(500_000)]));
        assert!(!is_there(&records[id(250_000)]) && !is_there(&records[id(999_999)]));
    }

    #[test]
    fn tables_made_after_others_take_no_memory() {
        // An allocator keeps memory of this size when it is freed, and would fill it with zeroes.
        for round in 0..8 {
            let records = Records::<u64>::new(500_000).unwrap();
            records[RegionId::of_index(0)].fill(PageRange::new(7, 3).unwrap(), Access::LOCAL, 5);
            let is_there = |index| is_there(&records[RegionId::of_index(index)]);
            assert!(!is_there(250_000) && !is_there(499_999), "round {round}");
        }
    }

    #[test]
    fn first_records_have_small_pages() {
        let records = Records::<u64>::new(1_000_000).unwrap();
        records[RegionId::of_index(0)].fill(PageRange::new(7, 3).unwrap(), Access::LOCAL, 5);
        let at = std::ptr::from_ref(&records[RegionId::of_index(0)]).addr();
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let bounds = |line: &str| {
            let (first, rest) = line.split_once('-')?;
            let number = |digits| usize::from_str_radix(digits, 16).ok();
            Some(number(first)?..number(rest.split(' ').next()?)?)
        };
        let mut lines = maps.lines().skip_while(|line| bounds(line).is_none_or(|bounds| !bounds.contains(&at)));
        let flags = lines.find(|line| line.starts_with("VmFlags:")).unwrap();
        let has_huge_pages = std::fs::exists("/sys/kernel/mm/transparent_hugepage").unwrap();
        assert!(flags.contains(" nh") || !has_huge_pages, "{flags}");
    }

    #[test]
    fn first_records_of_tables_lie_apart() {
        let tables: Vec<_> = (0..32).map(|_| Records::<u64>::new(1_000_000).unwrap()).collect();
        let line = |table: &Records<u64>| std::ptr::from_ref(&table[RegionId::of_index(0)]).addr() % 4096 / 64;
        let lines: std::collections::HashSet<_> = tables.iter().map(line).collect();
        assert!(lines.len() >= 16, "{lines:?}, where other tests make tables too");
    }

    #[test]
    fn table_has_exactly_one_record_per_region() {
        let records = Records::<u64>::new(3).unwrap();
        assert!(records.get(RegionId::of_index(2)).is_some());
        assert!(records.get(RegionId::of_index(3)).is_none());
        assert!(Records::<u64>::new(0).unwrap().get(RegionId::of_index(0)).is_none());
        assert!(Records::<u64>::new(usize::MAX).is_err());
    }

    #[test]
    fn a_hit_reads_one_line_of_a_record() {
        assert_eq!((size_of::<Record<u64>>(), align_of::<Record<u64>>()), (32, 32));
        assert!(std::mem::offset_of!(Record<[u64; 8]>, registration) <= 32);
    }
}
