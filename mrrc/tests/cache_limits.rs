//! The limits hold: pages and regions, seen from the device; and what a request is told that finds no room.

mod common;

use common::*;
use mrrc::registrar::Limits;
use mrrc::{Access, AcquireError, BuildError, Cache, Lease, PAGE};
use std::time::Duration;

#[test]
fn the_device_never_sees_more_than_the_capacity() {
    for background in [false, true] {
        let device = device();
        let cache = builder(&device, 64)
            .max_regions(16)
            .background(background)
            .capacity_timeout(Duration::from_millis(50))
            .build()
            .unwrap();
        let served = std::sync::atomic::AtomicU64::new(0);
        std::thread::scope(|threads| {
            for thread in 0..4 {
                let (cache, served) = (&cache, &served);
                threads.spawn(move || {
                    let mut numbers = Numbers(thread);
                    let mut held = Vec::new();
                    for _ in 0..1500 {
                        let (start, pages) = (numbers.below(200), numbers.below(8) + 1);
                        match ask(cache, start, pages, Access::LOCAL) {
                            Ok(lease) => held.push(lease),
                            Err(AcquireError::AllInUse { .. }) => held.clear(),
                            Err(error) => panic!("{error}"),
                        }
                        served.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        while held.len() > numbers.below(3) as usize {
                            drop(held.swap_remove(numbers.below(held.len() as u64) as usize));
                        }
                        if numbers.below(20) == 0 {
                            cache.invalidate(address(numbers.below(200)), PAGE as usize).unwrap();
                        }
                    }
                });
            }
        });
        let seen = device.counts();
        assert!(seen.peak_pages <= 64 && seen.peak_regions <= 16, "{seen:?}");
        assert!(seen.deregs > 1000, "there was pressure: {seen:?}");
        let counted = cache.counters();
        assert_eq!((counted.attempts, counted.decisions.failed), (seen.reg_attempts, 0));
        assert_eq!(counted.decisions.requests, served.into_inner());
        assert!(counted.peak_pages <= 64 && counted.peak_pages >= seen.peak_pages);
        cache.flush().unwrap();
        drop(cache);
        assert_eq!((device.counts().regions, device.counts().pages), (0, 0));
    }
}

#[test]
fn what_is_larger_than_the_cache_is_refused_at_once() {
    let device = device();
    let cache = cache(&device, 16);
    fill(&cache, 4, 4);
    let error = ask(&cache, 100, 17, Access::LOCAL).unwrap_err();
    assert!(matches!(error, AcquireError::TooLarge { needed: 17, limit: 16, unit: "pages", .. }), "{error}");
    assert!(all_hit(&cache, 4, 4));
    drop(take(&cache, 100, 16));
    assert_eq!((device.counts().peak_pages, device.counts().regs), (16, 5));
}

/// Holds everything, asks for more, and looks for what is missing afterwards.
fn refused_with_nothing_lost(cache: &Cache<Device>, held: Vec<Lease<Device>>, pages: u64) {
    let before = cache.counters();
    let error = ask(cache, 1000, pages, Access::LOCAL).unwrap_err();
    let AcquireError::AllInUse { source, .. } = &error else { panic!("{error}") };
    assert_eq!(source.asked, range(1000, pages));
    let after = cache.counters();
    assert_eq!(after.attempts, before.attempts, "nothing was tried");
    assert_eq!(after.decisions.deregs, before.decisions.deregs, "nothing left");
    assert_eq!(after.decisions.all_in_use, before.decisions.all_in_use + 1);
    assert!(all_hit(cache, 16, 4), "while they are held");
    drop(held);
    assert!(all_hit(cache, 16, 4), "and afterwards");
    drop(take(cache, 1000, pages));
}

#[test]
fn leases_of_misses_cannot_be_pushed_out() {
    let cache = cache(&device(), 64);
    let held = (0..16).map(|region| take(&cache, region * 4, 4)).collect();
    refused_with_nothing_lost(&cache, held, 1);
}

#[test]
fn leases_of_hits_cannot_be_pushed_out() {
    let cache = cache(&device(), 64);
    fill(&cache, 16, 4);
    let held = (0..16).map(|region| take(&cache, region * 4 + 1, 2)).collect();
    refused_with_nothing_lost(&cache, held, 1);
}

#[test]
fn a_request_that_finds_too_little_room_takes_none() {
    let cache = cache(&device(), 64);
    fill(&cache, 16, 4);
    // Twelve pages could leave, and sixteen are needed.
    let held = (0..13).map(|region| take(&cache, region * 4, 4)).collect();
    refused_with_nothing_lost(&cache, held, 16);
}

#[test]
fn replaced_region_stays_when_room_is_missing() {
    let cache = cache(&device(), 64);
    let read = |start| drop(ask(&cache, start, 4, Access::LOCAL_READ).unwrap());
    read(0);
    let held: Vec<_> = (1..16).map(|region| take(&cache, region * 4 + 1000, 4)).collect();
    // More rights for unheld pages of the first, and pages beyond it that find no room.
    let error = ask(&cache, 2, 6, Access::LOCAL).unwrap_err();
    assert!(matches!(error, AcquireError::AllInUse { .. }), "{error}");
    let attempts = cache.counters().attempts;
    read(0);
    assert_eq!(cache.counters().attempts, attempts, "the region that lacks the right was not given up");
    drop(held);
    drop(ask(&cache, 2, 6, Access::LOCAL).unwrap());
    assert_eq!(cache.counters().decisions.upgraded, 1);
}

#[test]
fn a_long_wait_for_room_holds_each_region_once() {
    let cache = builder(&device(), 64).capacity_timeout(Duration::from_millis(100)).build().unwrap();
    let lease = |region: u64| ask(&cache, region * 4, 4, Access::LOCAL_READ).unwrap();
    let held: Vec<_> = (0..16).map(lease).collect();
    // Each look finds the same regions in use: they lack a right, and there is no room for others.
    for _ in 0..3 {
        let error = ask(&cache, 0, 64, Access::LOCAL).unwrap_err();
        assert!(matches!(error, AcquireError::AllInUse { .. }), "{error}");
        assert_eq!(cache.usage().retired, 16);
    }
    drop(held);
    drop(ask(&cache, 0, 64, Access::LOCAL).unwrap());
    assert_eq!(cache.usage().retired, 0);
}

#[test]
fn a_hull_that_finds_no_room_costs_none_of_its_parts() {
    let device = device();
    let cache = builder(&device, 64).max_segments(1).build().unwrap();
    fill(&cache, 4, 4);
    let held: Vec<_> = (0..12).map(|region| take(&cache, 100 + region * 4, 4)).collect();
    // Regions 0 to 3 would give way to a hull of 16 pages and two more, for which there is no room.
    let error = ask(&cache, 0, 18, Access::LOCAL).unwrap_err();
    assert!(matches!(error, AcquireError::AllInUse { .. }), "{error}");
    assert!(all_hit(&cache, 4, 4));
    drop(held);
}

#[test]
fn a_request_waits_for_room_as_long_as_it_is_told_to() {
    let device = device();
    let cache = builder(&device, 16).capacity_timeout(Duration::from_secs(60)).build().unwrap();
    fill(&cache, 2, 4);
    let held = take(&cache, 100, 16 - 4);
    std::thread::scope(|threads| {
        let waiter = threads.spawn(|| ask(&cache, 200, 8, Access::LOCAL).map(drop));
        while cache.counters().waits == 0 {
            std::thread::yield_now();
        }
        drop(held);
        waiter.join().unwrap().unwrap();
    });
    assert_eq!(cache.counters().decisions.requests, 4, "one that waits is still one request");

    let impatient = builder(&device, 16).capacity_timeout(Duration::from_millis(20)).build().unwrap();
    fill(&impatient, 1, 4);
    let held = (take(&impatient, 0, 4), take(&impatient, 100, 12));
    let error = ask(&impatient, 200, 8, Access::LOCAL).unwrap_err();
    let AcquireError::AllInUse { waited, .. } = error else { panic!("{error}") };
    assert!(waited >= Duration::from_millis(20));
    assert_eq!(impatient.counters().waits, 1, "it waited once, however often it looked");
    drop(held);
    assert!(is_hit(&impatient, 0, 4) && is_hit(&impatient, 100, 12));
}

#[test]
fn more_leases_than_slots_hold_their_regions_too() {
    let device = device();
    let cache = cache(&device, 256);
    fill(&cache, 128, 2);
    let held: Vec<_> = (0..128).map(|region| take(&cache, region * 2, 2)).collect();
    let again: Vec<_> = (0..300).map(|_| take(&cache, 254, 2)).collect();
    assert_eq!(device.counts().reg_attempts, 128);
    assert!(matches!(ask(&cache, 1000, 1, Access::LOCAL), Err(AcquireError::AllInUse { .. })));
    drop(held);
    assert!(ask(&cache, 1000, 255, Access::LOCAL).is_err(), "one region is still held, many times");
    drop(again);
    drop(take(&cache, 1000, 256));
    cache.flush().unwrap();
    assert_eq!((device.counts().pages, cache.usage().retired), (0, 0));
}

#[test]
fn leases_hold_across_threads() {
    let device = device();
    let cache = cache(&device, 256);
    fill(&cache, 128, 2);
    for round in 0..3 {
        let held = std::thread::scope(|threads| {
            let taker = threads.spawn(|| (0..128).map(|region| take(&cache, region * 2, 2)).collect::<Vec<_>>());
            taker.join().unwrap()
        });
        // Its thread is gone, and another one gets its slots.
        std::thread::scope(|threads| {
            threads.spawn(|| (0..128).for_each(|region| drop(take(&cache, region * 2, 2))));
        });
        assert!(matches!(ask(&cache, 1000, 1, Access::LOCAL), Err(AcquireError::AllInUse { .. })), "round {round}");
        let (first, second) = { held }.into_iter().partition::<Vec<_>, _>(|lease| lease.address().addr() % 16384 == 0);
        std::thread::scope(|threads| {
            threads.spawn(|| drop(first));
            threads.spawn(|| drop(second));
        });
        assert!(all_hit(&cache, 128, 2));
    }
    assert_eq!(device.counts().reg_attempts, 128);
    drop(take(&cache, 1000, 256));
}

#[test]
fn the_number_of_regions_is_a_limit_too() {
    let device = device();
    device.limit(Limits { regions: Some(3), ..Limits::NONE });
    let cache = cache(&device, 64);
    fill(&cache, 8, 1);
    assert_eq!(device.counts().peak_regions, 3);
    let held: Vec<_> = (5..8).map(|region| take(&cache, region, 1)).collect();
    assert!(matches!(ask(&cache, 100, 1, Access::LOCAL), Err(AcquireError::AllInUse { .. })));
    drop(held);
    let many = common::builder(&device, 64).max_regions(1000).build().unwrap();
    assert_eq!(many.usage().capacity_regions, 3, "never more than the registrar's");
}

#[test]
fn a_range_longer_than_a_region_becomes_several() {
    let device = device();
    device.limit(Limits { region_pages: Some(4), regions: Some(8), ..Limits::NONE });
    let cache = cache(&device, 64);
    let lease = take(&cache, 0, 10);
    assert_eq!(parts(&lease), [(0, 4, range(0, 4)), (4, 4, range(4, 4)), (8, 2, range(8, 2))]);
    drop(lease);
    assert!(is_hit(&cache, 0, 10));
    let error = ask(&cache, 100, 33, Access::LOCAL).unwrap_err();
    assert!(matches!(error, AcquireError::TooLarge { needed: 9, limit: 8, unit: "regions", .. }), "{error}");
}

#[test]
fn who_needs_one_key_gets_the_hull_of_what_there_is() {
    let device = device();
    let cache = builder(&device, 64).max_segments(1).build().unwrap();
    drop((take(&cache, 0, 4), take(&cache, 8, 4)));
    let lease = take(&cache, 2, 8);
    assert_eq!(parts(&lease), [(2, 8, range(0, 12))]);
    drop(lease);
    assert!(is_hit(&cache, 0, 12));
    let counted = cache.counters().decisions;
    assert_eq!((counted.merged, counted.requests, counted.partial, counted.subset), (2, 4, 1, 0));
    cache.reap().unwrap();
    assert_eq!((device.counts().regions, device.counts().pages), (1, 12));
}

#[test]
fn a_hull_has_at_most_twice_the_pages_asked_for() {
    let device = device();
    let cache = builder(&device, 16).max_segments(1).build().unwrap();
    drop((take(&cache, 0, 6), take(&cache, 8, 8)));
    let lease = take(&cache, 5, 4);
    assert_eq!(parts(&lease), [(5, 4, range(5, 4))], "16 would be too many, and so are the 9 or 11 with one of them");
    drop(lease);
    cache.flush().unwrap();
    drop((take(&cache, 0, 7), take(&cache, 10, 6)));
    let lease = take(&cache, 5, 6);
    assert_eq!(parts(&lease), [(5, 6, range(0, 11))], "11 are enough, and 16 too many");
    assert!(device.counts().peak_pages <= 16);
}

#[test]
fn request_over_too_many_regions_replaces_them() {
    let device = device();
    let cache = builder(&device, 64).max_regions(8).build().unwrap();
    (0..8).for_each(|region| drop(take(&cache, region * 4, 2)));
    let lease = take(&cache, 0, 32);
    assert_eq!(parts(&lease), [(0, 32, range(0, 32))]);
    assert!(device.counts().peak_regions <= 8);
}

#[test]
fn lease_respects_max_segments() {
    let device = device();
    let cache = builder(&device, 64).max_segments(2).build().unwrap();
    drop((take(&cache, 0, 4), take(&cache, 8, 4)));
    let lease = take(&cache, 2, 4);
    assert_eq!(parts(&lease).len(), 2, "two are allowed");
    drop(lease);
    let lease = take(&cache, 0, 12);
    assert_eq!(parts(&lease), [(0, 12, range(0, 12))], "four are not");
    drop(lease);
    let counted = cache.counters().decisions;
    assert_eq!((counted.requests, counted.partial, counted.miss), (4, 2, 2), "each request is counted once");
    assert_eq!((counted.merged, counted.failed), (3, 0));
    assert_eq!((counted.regs, device.counts().reg_attempts), (4, 4), "nothing was planned in vain");
}

#[test]
fn what_is_begun_has_no_more_segments_either() {
    let device = device();
    for (segments, expected) in [(1, 1), (2, 1), (3, 3)] {
        let cache = builder(&device, 64).max_segments(segments).build().unwrap();
        drop(take(&cache, 4, 4));
        let mut pending = begin_at(&cache, address(0), 12 * PAGE as usize, Access::LOCAL).unwrap();
        let lease = pending.finish().unwrap();
        assert_eq!(lease.segments().count(), expected, "{segments}");
    }
}

#[test]
fn too_many_segments_are_refused_at_no_cost() {
    let device = device();
    device.limit(Limits { region_pages: Some(8), ..Limits::NONE });
    for segments in [1, 2] {
        let cache = builder(&device, 32).max_segments(segments).build().unwrap();
        fill(&cache, 8, 4);
        let error = ask(&cache, 100, 8 * segments as u64 + 1, Access::LOCAL).unwrap_err();
        assert!(matches!(error, AcquireError::TooLarge { .. }), "{error}");
        assert_eq!(cache.counters().decisions.deregs, 0);
        assert!(all_hit(&cache, 8, 4));
    }
}

#[test]
fn split_request_uses_fewest_regions() {
    let device = device();
    device.limit(Limits { region_pages: Some(8), ..Limits::NONE });
    let cache = builder(&device, 64).max_segments(2).build().unwrap();
    drop(take(&cache, 4, 4));
    // Beside the region in the middle it would be three.
    let lease = take(&cache, 0, 16);
    assert_eq!(parts(&lease), [(0, 8, range(0, 8)), (8, 8, range(8, 8))]);
}

#[test]
fn a_cache_that_cannot_be_is_an_error_and_no_abort() {
    let device = device();
    let refused = |builder: mrrc::cache::Builder<Device>| builder.build().unwrap_err();
    assert!(matches!(refused(builder(&device, 0)), BuildError::Config(_)));
    assert!(matches!(refused(builder(&device, 64).max_regions(0)), BuildError::Config(_)));
    // More records than there is address space, or memory, for.
    let huge = builder(&device, u64::MAX).max_regions(u64::MAX).build();
    if let Err(error) = huge {
        assert!(matches!(error, BuildError::System { .. }), "{error}");
    }
    assert!(matches!(refused(builder(&device, 64).max_segments(0)), BuildError::Config(_)));
    assert!(builder(&device, u64::MAX).build().is_ok());
}

#[test]
fn limits_that_make_no_sense_are_the_registrars_fault() {
    let none = Limits::NONE;
    for limits in [
        Limits { regions: Some(0), ..none },
        Limits { pages: Some(0), ..none },
        Limits { region_pages: Some(0), ..none },
        Limits { page_size: 0, ..none },
        Limits { page_size: 512, ..none },
        Limits { page_size: 12_288, ..none },
        Limits { page_size: u64::MAX, ..none },
    ] {
        let device = device();
        device.limit(limits);
        let error = builder(&device, 64).build().unwrap_err();
        assert!(matches!(error, BuildError::Registrar { registrar: "model", .. }), "{limits:?}: {error}");
    }
    let device = device();
    device.limit(Limits { page_size: 1 << 63, ..none });
    let cache = cache(&device, 64);
    assert!(matches!(ask(&cache, 0, 1, Access::LOCAL), Err(AcquireError::TooLarge { .. })));
}
