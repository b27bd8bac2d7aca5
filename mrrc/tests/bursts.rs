//! A burst of changes invalidates the regions that it touches and no others, and keeps no other memory out of the cache,
//! however many changes there are.

#![allow(unsafe_code, reason = "memory is warmed, unmapped and discarded by hand, and a monitor is implemented")]
#![cfg(not(any(loom, shuttle)))]

#[path = "common/told.rs"]
mod told;

use mrrc::invalidation::{Change, ChangeKind};
use mrrc::testing::NoopRegistrar;
use mrrc::{Access, Cache, PAGE, PageRange};
use std::time::Duration;
use told::Told;

/// Longer than a test takes.
const LONG: Duration = Duration::from_secs(3600);

fn warm(cache: &Cache<NoopRegistrar>, page: u64) {
    // SAFETY: `warm` restricts uses of the memory during later transfers; this test makes none.
    unsafe { cache.warm((page * PAGE) as *const u8, PAGE as usize, Access::LOCAL) }.unwrap();
}

/// So many changes of a page each, one by one or all at once, of which no request hears before the last.
fn burst(count: u64, kind: ChangeKind, between: bool, at_once: bool) {
    let case = format!("{count} {kind:?}, regions between: {between}, at once: {at_once}");
    let monitor = Told::default();
    let builder = Cache::builder(NoopRegistrar::default()).ignore_environment().monitor(monitor.clone());
    let builder = builder.capacity_pages(4 * count + 10_000).max_regions(4 * count + 10_000);
    let cache = builder.background(false).discard_grace(LONG).build().unwrap();
    // Not in the order of their addresses, and none beside another.
    let touched: Vec<u64> = (0..count).map(|nth| 0x1000 + nth * 7919 % count * 4).collect();
    let untouched: Vec<u64> = match between {
        true => touched.iter().step_by((count / 10_000).max(1) as usize).map(|page| page + 2).collect(),
        false => (0..1000).map(|nth| 0x1000 + 4 * (count + nth)).collect(),
    };
    touched.iter().chain(&untouched).for_each(|&page| warm(&cache, page));
    let before = cache.counters();
    let changes: Vec<_> =
        touched.iter().map(|&page| Change { range: PageRange::new(page, 1).unwrap(), kind }).collect();
    if at_once {
        monitor.report(&changes);
    } else {
        changes.chunks(1).for_each(|change| monitor.report(change));
    }
    untouched.iter().for_each(|&page| warm(&cache, page));
    // A range that never was registered, too.
    untouched.iter().for_each(|&page| warm(&cache, page + 1));
    untouched.iter().for_each(|&page| warm(&cache, page + 1));
    let after = cache.counters();
    let registered = after.attempts - before.attempts - untouched.len() as u64;
    assert_eq!((registered, after.discarded), (0, 0), "{case}");
    let invalidated = after.decisions.invalidated_pages - before.decisions.invalidated_pages;
    assert!((count..=2 * count).contains(&invalidated), "{case}: {invalidated} pages were invalidated");
    touched.iter().for_each(|&page| warm(&cache, page));
    let again = cache.counters();
    assert_eq!(again.attempts - after.attempts, count, "{case}: none of those is found");
    assert_eq!(again.discarded, if kind == ChangeKind::Discarding { count } else { 0 }, "{case}");
}

#[test]
fn ten_changes_touch_ten_regions() {
    for kind in [ChangeKind::Gone, ChangeKind::Discarding] {
        for between in [false, true] {
            [false, true].into_iter().for_each(|at_once| burst(10, kind, between, at_once));
        }
    }
}

#[test]
fn a_thousand_changes_touch_a_thousand_regions() {
    for kind in [ChangeKind::Gone, ChangeKind::Discarding] {
        for between in [false, true] {
            [false, true].into_iter().for_each(|at_once| burst(1_000, kind, between, at_once));
        }
    }
}

#[test]
fn a_hundred_thousand_unmappings_touch_as_many() {
    [false, true].into_iter().for_each(|between| burst(100_000, ChangeKind::Gone, between, between));
}

#[test]
fn a_hundred_thousand_discards_touch_as_many() {
    [false, true].into_iter().for_each(|between| burst(100_000, ChangeKind::Discarding, between, between));
}

/// Under userfaultfd, with real memory.
#[cfg(target_os = "linux")]
mod real {
    use super::*;

    /// So many pages of memory. They stay: what was unmapped may be another test's by now.
    struct Memory(*mut u8, u64);

    impl Memory {
        fn new(pages: u64) -> Self {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: it is mapped where nothing is.
            let at = unsafe { libc::mmap(std::ptr::null_mut(), (pages * PAGE) as usize, rights, flags, -1, 0) };
            assert_ne!(at, libc::MAP_FAILED);
            Self(at.cast(), pages)
        }

        fn page(&self, page: u64) -> *mut u8 {
            assert!(page < self.1);
            self.0.wrapping_add((page * PAGE) as usize)
        }

        fn unmap(&self, page: u64) {
            // SAFETY: a page of this test's own, to which nothing refers.
            assert_eq!(unsafe { libc::munmap(self.page(page).cast(), PAGE as usize) }, 0);
        }

        fn discard(&self, page: u64) {
            // SAFETY: the page is in the test's own mapping, to which no reference leads.
            assert_eq!(unsafe { libc::madvise(self.page(page).cast(), PAGE as usize, libc::MADV_DONTNEED) }, 0);
        }

        fn warm(&self, cache: &Cache<NoopRegistrar>, page: u64) {
            super::warm(cache, self.page(page) as u64 / PAGE);
        }
    }

    fn cache() -> Option<Cache<NoopRegistrar>> {
        let monitor = mrrc::invalidation::Userfaultfd::new().map_err(|error| println!("skipped: {error}")).ok()?;
        let builder =
            Cache::builder(NoopRegistrar::default()).ignore_environment().monitor(monitor).capacity_pages(1 << 20);
        Some(builder.background(false).discard_grace(LONG).build().unwrap())
    }

    #[test]
    fn three_hundred_unmapped_leave_seven_hundred() {
        let Some(cache) = cache() else { return };
        let memory = Memory::new(2000);
        (0..1000).for_each(|nth| memory.warm(&cache, 2 * nth));
        (0..300).for_each(|nth| memory.unmap(2 * nth * 3));
        let before = cache.counters();
        let untouched = (0..1000).filter(|nth| nth % 3 != 0 || *nth >= 900);
        untouched.for_each(|nth| memory.warm(&cache, 2 * nth));
        let after = cache.counters();
        assert_eq!(after.attempts - before.attempts, 0, "of 700 regions that nothing touched");
        assert!(after.decisions.invalidated_pages <= 600, "{after}");
    }

    #[test]
    fn two_hundred_discards_leave_the_rest() {
        let Some(cache) = cache() else { return };
        let memory = Memory::new(4000);
        memory.warm(&cache, 0);
        (0..200).for_each(|nth| memory.discard(20 * nth));
        let others = || (0..4000).filter(|page| page % 20 != 0);
        others().for_each(|page| memory.warm(&cache, page));
        assert_eq!(cache.counters().discarded, 0, "of {} requests", others().count());
        others().for_each(|page| memory.warm(&cache, page));
        assert_eq!(cache.counters().attempts, 1 + others().count() as u64);
        (0..200).for_each(|nth| memory.warm(&cache, 20 * nth));
        assert_eq!(cache.counters().discarded, 200);
    }

    #[test]
    fn a_hundred_thousand_discards_leave_the_rest() {
        const COUNT: u64 = 100_000;
        let Some(cache) = cache() else { return };
        let memory = Memory::new(4 * COUNT);
        memory.warm(&cache, 2);
        (0..COUNT).for_each(|nth| memory.discard(4 * nth));
        (0..COUNT).for_each(|nth| memory.warm(&cache, 4 * nth + 2));
        assert_eq!((cache.counters().discarded, cache.counters().attempts), (0, COUNT));
        (0..1000).for_each(|nth| memory.warm(&cache, 400 * nth));
        assert_eq!(cache.counters().discarded, 1000);
    }

    #[test]
    fn twenty_thousand_unmappings_leave_the_rest() {
        // A process may have 65,530 mappings.
        const COUNT: u64 = 20_000;
        let Some(cache) = cache() else { return };
        let memory = Memory::new(2 * COUNT);
        (0..COUNT).for_each(|nth| memory.warm(&cache, 2 * nth));
        let before = cache.counters();
        (0..COUNT).for_each(|nth| memory.unmap(2 * (nth * 7919 % COUNT) + 1));
        (0..COUNT).for_each(|nth| memory.warm(&cache, 2 * nth));
        assert_eq!(cache.counters().attempts, before.attempts);
        assert_eq!(cache.counters().changes - before.changes, COUNT);
        // The mappings that are left are known to be watched.
        (0..COUNT).for_each(|nth| memory.unmap(2 * nth));
        assert_eq!(cache.usage().regions, COUNT);
        cache.reap().unwrap();
        assert_eq!(cache.usage().regions, 0);
    }
}
