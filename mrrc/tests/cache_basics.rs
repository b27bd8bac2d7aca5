//! One thread's view of the cache: hits, gaps, rights, counters, and the calls besides `acquire`.

mod common;

use common::*;
use mrrc::cache::ChangeError;
use mrrc::registrar::Limits;
use mrrc::testing::Fault;
use mrrc::{Access, AcquireError, Cache, PAGE, RangeError};

/// Returns the cache's counts: exact, subset, covered, partial, miss.
fn found(cache: &Cache<Device>) -> [u64; 5] {
    let counted = cache.counters().decisions;
    let found = [counted.exact, counted.subset, counted.covered, counted.partial, counted.miss];
    assert_eq!(counted.requests, found.iter().sum::<u64>());
    found
}

#[test]
fn a_region_serves_itself_and_what_lies_in_it() {
    let device = device();
    let cache = cache(&device, 64);
    let first = take(&cache, 8, 8);
    for (start, pages) in [(8, 8), (8, 1), (15, 1), (10, 4)] {
        let lease = take(&cache, start, pages);
        assert_eq!(parts(&lease), [(start, pages, range(8, 8))]);
        let key = |lease: &mrrc::Lease<Device>| lease.segments().next().unwrap().registration().key;
        assert_eq!(key(&lease), key(&first), "the same registration");
    }
    assert_eq!((device.counts().reg_attempts, found(&cache)), (1, [1, 3, 0, 0, 1]));
}

#[test]
fn segments_are_clipped_to_requested_bytes() {
    let device = device();
    let cache = cache(&device, 64);
    drop((take(&cache, 0, 4), take(&cache, 4, 4)));
    // From the middle of page 1 into page 6.
    let (start, length) = (address(1) as usize + 100, 5 * PAGE as usize + 7);
    let lease = acquire_at(&cache, start as *const u8, length, Access::LOCAL).unwrap();
    let seen: Vec<_> = lease
        .segments()
        .map(|segment| (segment.address() as usize, segment.len(), segment.registration().range))
        .collect();
    let border = address(4) as usize;
    assert_eq!(seen, [(start, border - start, range(0, 4)), (border, start + length - border, range(4, 4))]);
    assert_eq!((lease.address() as usize, lease.len()), (start, length));
    assert_eq!(found(&cache), [0, 0, 1, 0, 2]);
}

#[test]
fn a_byte_takes_its_page_and_a_border_takes_two() {
    let device = device();
    let cache = cache(&device, 64);
    let at = |byte: usize, length| {
        let lease = acquire_at(&cache, (address(0) as usize + byte) as *const u8, length, Access::LOCAL);
        let lease = lease.unwrap();
        lease.segments().map(|segment| (segment.len(), segment.registration().range)).collect::<Vec<_>>()
    };
    assert_eq!(at(4095, 1), [(1, range(0, 1))]);
    assert_eq!(at(4095, 2), [(1, range(0, 1)), (1, range(1, 1))]);
    assert_eq!(device.counts().pages, 2);
}

#[test]
fn only_the_gaps_of_a_partial_hit_are_registered() {
    let device = device();
    let cache = cache(&device, 64);
    drop((take(&cache, 4, 4), take(&cache, 12, 2)));
    let lease = take(&cache, 0, 16);
    let expected =
        [(0, 4, range(0, 4)), (4, 4, range(4, 4)), (8, 4, range(8, 4)), (12, 2, range(12, 2)), (14, 2, range(14, 2))];
    assert_eq!(parts(&lease), expected);
    assert_eq!((device.counts().reg_attempts, device.counts().pages), (5, 16));
    assert_eq!(found(&cache), [0, 0, 0, 1, 2]);
    assert_eq!(cache.counters().decisions.hit_pages, 6);
}

#[test]
fn last_byte_of_address_space_has_a_segment() {
    let device = device();
    let cache = cache(&device, 64);
    let start = u64::MAX - 2 * PAGE + 1;
    for length in [2 * PAGE, PAGE + 5] {
        let lease = acquire_at(&cache, start as *const u8, length as usize, Access::LOCAL).unwrap();
        let seen: Vec<_> = lease.segments().map(|segment| (segment.address() as u64, segment.len() as u64)).collect();
        assert_eq!(seen, [(start, length)]);
    }
}

#[test]
fn pages_of_the_device_are_registered_whole() {
    let device = device();
    device.limit(Limits { page_size: 4 * PAGE, ..Limits::NONE });
    let cache = cache(&device, 64);
    let lease = take(&cache, 5, 4);
    assert_eq!(parts(&lease), [(5, 4, range(4, 8))]);
    assert!(is_hit(&cache, 11, 1), "it was registered with its page");
}

#[test]
fn long_range_splits_at_device_pages() {
    let device = device();
    device.limit(Limits { page_size: 4 * PAGE, region_pages: Some(7), ..Limits::NONE });
    let cache = cache(&device, 64);
    let lease = take(&cache, 0, 12);
    assert_eq!(parts(&lease), [(0, 4, range(0, 4)), (4, 4, range(4, 4)), (8, 4, range(8, 4))]);
    drop(lease);
    device.limit(Limits { page_size: 4 * PAGE, region_pages: Some(3), ..Limits::NONE });
    let error = builder(&device, 64).build().unwrap_err();
    assert!(matches!(error, mrrc::BuildError::Registrar { .. }), "{error}");
}

#[test]
fn no_buffer_is_null_empty_or_wraps() {
    let device = device();
    let cache = cache(&device, 64);
    let asked = |address: usize, length: usize| {
        let acquired = acquire_at(&cache, address as *const u8, length, Access::LOCAL).unwrap_err();
        let begun = begin_at(&cache, address as *const u8, length, Access::LOCAL).unwrap_err();
        let warmed = warm_at(&cache, address as *const u8, length, Access::LOCAL).unwrap_err();
        let struck = cache.invalidate(address as *const u8, length).unwrap_err();
        let ChangeError::Range(struck) = struck else { panic!("{struck}") };
        let announced = cache.begin_change(address as *const u8, length).unwrap_err();
        assert_eq!(announced, ChangeError::Range(struck.clone()));
        assert!(
            announced.to_string().starts_with("tell of a change of memory (invalidate, begin_change): "),
            "{announced}"
        );
        let [acquired, begun, warmed] = [acquired, begun, warmed].map(|error| match error {
            AcquireError::Range(why) => why,
            other => panic!("{other}"),
        });
        [acquired, begun, warmed, struck]
    };
    for why in asked(0, 1) {
        assert_eq!(why, RangeError::Null { length: 1 });
    }
    for why in asked(4096, 0) {
        assert_eq!(why, RangeError::Empty { start: 4096 });
    }
    for (address, length) in [(usize::MAX, 2), (4096, usize::MAX), (usize::MAX - 4095, 8192)] {
        for why in asked(address, length) {
            assert!(matches!(why, RangeError::Wraps { .. }), "{why}");
        }
    }
    assert_eq!((device.counts().reg_attempts, cache.counters().decisions.requests), (0, 0));
}

#[test]
fn remote_region_serves_local_but_not_reverse() {
    let device = device();
    let cache = cache(&device, 64);
    let remote = Access::LOCAL | Access::REMOTE_READ;
    drop(ask(&cache, 0, 4, remote).unwrap());
    assert!(is_hit(&cache, 1, 2));
    drop(take(&cache, 8, 4));
    let lease = ask(&cache, 9, 2, remote).unwrap();
    let segment = lease.segments().next().unwrap();
    assert_eq!((segment.registration().range, segment.registration().access), (range(9, 2), remote));
    assert!(is_hit(&cache, 8, 4), "the local region stays");
    assert_eq!(device.counts().regions, 3);
}

#[test]
fn upgrade_covers_request_and_keeps_rights() {
    let device = device();
    let cache = cache(&device, 64);
    let (read, write) = (Access::LOCAL | Access::REMOTE_READ, Access::LOCAL | Access::REMOTE_WRITE);
    drop(ask(&cache, 0, 8, read).unwrap());
    let lease = ask(&cache, 2, 2, write).unwrap();
    let made: Vec<_> = lease.segments().map(|part| (part.registration().range, part.registration().access)).collect();
    assert_eq!(made, [(range(2, 2), read | write)]);
    drop(lease);
    assert_eq!(cache.counters().decisions.upgraded, 1);
    cache.reap().unwrap();
    assert_eq!(device.counts().pages, 2, "the old region is gone");
    // Pages around: no right is left of it, and none was won.
    let lease = ask(&cache, 0, 8, Access::LOCAL | Access::REMOTE_READ).unwrap();
    for part in lease.segments() {
        let expected = if part.registration().range == range(2, 2) { read | write } else { read };
        assert_eq!(part.registration().access, expected, "{part:?}");
    }
    assert_eq!(lease.segments().count(), 3);
}

#[test]
fn no_page_is_opened_to_peers_by_its_neighbours() {
    let device = device();
    let cache = builder(&device, 256).max_segments(1).build().unwrap();
    let rights = [Access::LOCAL, Access::LOCAL | Access::REMOTE_READ, Access::LOCAL | Access::REMOTE_WRITE];
    let mut asked = [Access::empty(); 64];
    let mut numbers = Numbers(7);
    for _ in 0..2000 {
        let (start, pages) = (numbers.below(56), numbers.below(8) + 1);
        let access = rights[numbers.below(3) as usize];
        let Ok(lease) = ask(&cache, start, pages, access) else { panic!("all of it fits") };
        asked[start as usize..(start + pages) as usize].iter_mut().for_each(|page| *page |= access);
        for part in lease.segments() {
            let made = part.registration();
            let first = made.range.start() - BASE;
            for page in first..first + made.range.pages() {
                let won = made.access.difference(asked[page as usize] | Access::LOCAL);
                assert!(won.is_empty(), "page {page} has {won} and nobody asked");
            }
        }
    }
}

#[test]
fn ungranted_rights_fail_without_attempt() {
    let device = device();
    device.grant(Access::LOCAL);
    let cache = cache(&device, 64);
    let error = ask(&cache, 0, 4, Access::REMOTE_WRITE).unwrap_err();
    let AcquireError::Rights { asked, offered, .. } = &error else { panic!("{error}") };
    assert_eq!((*asked, *offered), (Access::LOCAL_READ | Access::REMOTE_WRITE, Access::LOCAL));
    assert!(error.to_string().contains("remote-write"), "{error}");
    assert_eq!((device.counts().reg_attempts, cache.counters().attempts), (0, 0));
}

#[test]
fn no_rights_at_all_can_be_read() {
    let device = device();
    let cache = cache(&device, 64);
    let lease = ask(&cache, 0, 1, Access::empty()).unwrap();
    assert_eq!(lease.segments().next().unwrap().registration().access, Access::LOCAL_READ);
}

#[test]
fn ready_parts_are_usable_before_finish() {
    let device = device();
    let cache = cache(&device, 64);
    drop((take(&cache, 2, 2), take(&cache, 6, 2)));
    let mut pending = begin_at(&cache, address(0), (10 * PAGE) as usize, Access::LOCAL).unwrap();
    let ready: Vec<_> = pending.ready().map(|part| (part.len() as u64 / PAGE, part.registration().range)).collect();
    assert_eq!(ready, [(2, range(2, 2)), (2, range(6, 2))]);
    assert_eq!(device.counts().reg_attempts, 2, "nothing more is registered yet");
    let lease = pending.finish().unwrap();
    assert_eq!((parts(&lease).len(), device.counts().reg_attempts), (5, 5));
    assert_eq!(found(&cache), [0, 0, 0, 1, 2]);
}

#[test]
fn what_is_begun_and_dropped_leaves_nothing_behind() {
    let device = device();
    let cache = cache(&device, 16);
    drop(take(&cache, 4, 4));
    drop(begin_at(&cache, address(0), (12 * PAGE) as usize, Access::LOCAL).unwrap());
    assert_eq!((device.counts().reg_attempts, cache.usage().pages), (1, 4));
    assert!(is_hit(&cache, 4, 4), "what was ready stays");
    // All the room is there again, and no placeholder in the way.
    drop(take(&cache, 0, 16));
    assert_eq!(cache.counters().waits, 0);
    assert_eq!((cache.flush().unwrap().pages, device.counts().pages), (16, 0));
}

#[test]
fn invalidated_region_lives_as_long_as_its_lease() {
    let device = device();
    let cache = cache(&device, 64);
    let lease = take(&cache, 0, 4);
    drop(take(&cache, 8, 4));
    cache.invalidate(address(3), 1).unwrap();
    assert_eq!(cache.reap().unwrap().regions, 0, "a lease has it");
    assert_eq!((device.counts().pages, parts(&lease)), (8, vec![(0, 4, range(0, 4))]));
    let new = take(&cache, 0, 4);
    let key = |lease: &mrrc::Lease<Device>| lease.segments().next().unwrap().registration().key;
    assert_ne!(key(&new), key(&lease));
    assert!(is_hit(&cache, 8, 4), "what lies elsewhere stays");
    drop(lease);
    assert_eq!((cache.reap().unwrap().regions, device.counts().pages), (1, 8));
    assert_eq!(cache.counters().decisions.invalidated, 1);
}

#[test]
fn invalidation_hits_all_overlaps_of_any_rights() {
    let device = device();
    let cache = cache(&device, 64);
    drop((take(&cache, 0, 2), take(&cache, 2, 2), take(&cache, 4, 2)));
    drop(ask(&cache, 3, 1, Access::LOCAL | Access::REMOTE_READ).unwrap());
    // One byte of page 1, all of 2, one byte of 3.
    cache.invalidate((address(2) as usize - 1) as *const u8, PAGE as usize + 2).unwrap();
    cache.reap().unwrap();
    assert_eq!((device.counts().regions, is_hit(&cache, 4, 2)), (1, true));
    assert_eq!(cache.counters().decisions.invalidated, 3);
}

#[test]
fn warm_memory_is_a_hit_and_can_be_evicted() {
    let device = device();
    let cache = cache(&device, 8);
    warm_at(&cache, address(0), 4 * PAGE as usize, Access::LOCAL).unwrap();
    assert!(is_hit(&cache, 0, 4));
    drop(take(&cache, 100, 8));
    assert!(!is_hit(&cache, 0, 4));
}

#[test]
fn a_flush_ends_all_that_no_lease_has() {
    let device = device();
    let cache = cache(&device, 64);
    fill(&cache, 8, 2);
    let lease = take(&cache, 2, 2);
    assert_eq!(cache.flush().unwrap(), reaped(7, 14));
    assert_eq!((device.counts().regions, cache.usage().retired), (1, 1));
    drop(lease);
    assert_eq!(cache.reap().unwrap(), reaped(1, 2));
    assert_eq!(cache.usage().pages, 0);
}

fn reaped(regions: u64, pages: u64) -> mrrc::cache::Reaped {
    mrrc::cache::Reaped { regions, pages }
}

#[test]
fn a_reap_ends_only_what_has_left() {
    let device = device();
    let cache = cache(&device, 64);
    fill(&cache, 4, 2);
    assert_eq!(cache.reap().unwrap(), reaped(0, 0));
    cache.invalidate(address(0), 1).unwrap();
    assert_eq!(cache.usage().leaving, 1);
    assert_eq!(cache.reap().unwrap(), reaped(1, 2));
    assert!((1..4).all(|region| is_hit(&cache, region * 2, 2)));
}

#[test]
fn histograms_count_each_operation() {
    let device = device();
    let cache = builder(&device, 8).histograms(true).build().unwrap();
    assert!(common::cache(&device, 8).latencies().is_none(), "only on request");
    fill(&cache, 4, 2);
    fill(&cache, 4, 2);
    device.fail_register(Fault::within(range(50, 1), libc::EFAULT));
    assert!(ask(&cache, 50, 1, Access::LOCAL).is_err());
    cache.flush().unwrap();
    let latencies = cache.latencies().unwrap();
    let counted = cache.counters();
    assert_eq!(latencies.acquire.len(), counted.decisions.requests);
    assert_eq!((latencies.acquire.len(), latencies.register.len()), (9, 5));
    assert_eq!((latencies.register.len(), latencies.deregister.len()), (counted.attempts, counted.dereg_batches));
    assert!(latencies.acquire.max() > 0);
}

#[test]
fn the_counts_of_threads_add_up() {
    let device = device();
    let cache = cache(&device, 1024);
    fill(&cache, 64, 4);
    std::thread::scope(|threads| {
        for thread in 0..4 {
            let cache = &cache;
            threads.spawn(move || {
                let mut numbers = Numbers(thread);
                for _ in 0..5000 {
                    let region = numbers.below(64) * 4;
                    drop(take(cache, region, 4));
                    drop(take(cache, region + 1, 2));
                }
            });
        }
    });
    let counted = cache.counters().decisions;
    assert_eq!(found(&cache), [20_000, 20_000, 0, 0, 64]);
    assert_eq!((counted.pages, counted.hit_pages), (64 * 4 + 20_000 * 6, 20_000 * 6));
}
