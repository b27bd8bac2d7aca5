//! An idle cache does nothing, however many leases hold retired regions.

#![allow(unsafe_code, reason = "leases are acquired for no transfer")]

mod common;

use common::*;
use mrrc::Cache;
use std::collections::VecDeque;
use std::thread;
use std::time::{Duration, Instant};

/// Waits until the cache has come to rest: until leases were not looked at for half a second. While a thread looks every
/// few milliseconds, that does not come, and after two minutes this panics.
#[track_caller]
fn come_to_rest<R: mrrc::registrar::Registrar>(cache: &Cache<R>) -> u64 {
    let mut before = cache.counters().sweeps;
    for _ in 0..240 {
        thread::sleep(Duration::from_millis(500));
        let now = cache.counters().sweeps;
        if now == before {
            return now;
        }
        before = now;
    }
    panic!("the cache looks at its leases all the time");
}

#[test]
fn long_leases_of_retired_regions_are_left_alone() {
    const REGIONS: u64 = 20_000;
    let device = device();
    let cache = builder(&device, REGIONS).background(true).build().unwrap();
    // Most have a slot, and the rest are counted.
    let mut held: Vec<_> = (0..REGIONS).map(|page| take(&cache, page, 1)).collect();
    cache.invalidate(address(0), (REGIONS * mrrc::PAGE) as usize).unwrap();
    come_to_rest(&cache);
    assert_eq!((device.counts().regions, cache.usage().retired), (REGIONS, REGIONS));
    // Every end reports, whether it had a slot or not: there is no other look.
    for (left, place) in [(REGIONS - 1, 0), (REGIONS - 2, REGIONS as usize - 2)] {
        drop(held.swap_remove(place));
        while device.counts().regions > left {
            thread::yield_now();
        }
    }
    thread::spawn(move || drop(held)).join().unwrap();
    while device.counts().regions > 0 {
        thread::yield_now();
    }
    assert_eq!(cache.usage().retired, 0);
}

#[test]
fn victims_that_are_in_use_are_left_alone() {
    let device = device();
    let cache = builder(&device, 100).background(true).build().unwrap();
    let held: Vec<_> = (0..90).map(|page| take(&cache, page, 1)).collect();
    // All of them are proposed, and stay.
    for page in 200..260 {
        drop(take(&cache, page, 1));
    }
    let retired = cache.usage().retired;
    assert!(retired > 0);
    come_to_rest(&cache);
    assert_eq!(cache.usage().retired, retired);
    // They go on to serve, and hits of one that is awaited are hits.
    assert!((0..90).all(|page| is_hit(&cache, page, 1)));
    // Awaited already, and now to leave.
    cache.invalidate(address(0), (90 * mrrc::PAGE) as usize).unwrap();
    come_to_rest(&cache);
    let registered = device.counts().regions;
    drop(held);
    while cache.usage().retired > 0 || device.counts().regions > registered - 90 {
        thread::yield_now();
    }
}

#[test]
fn misses_do_not_rescan_long_leases() {
    const REGIONS: u64 = 3_000;
    let device = device();
    let cache = builder(&device, REGIONS + 10).build().unwrap();
    let held: Vec<_> = (0..REGIONS).map(|page| take(&cache, page, 1)).collect();
    cache.invalidate(address(0), (REGIONS * mrrc::PAGE) as usize).unwrap();
    let before = cache.counters().sweeps;
    for page in 0..1_000 {
        drop(take(&cache, 10_000 + page, 1));
    }
    assert!(cache.counters().sweeps - before < 100, "{}", cache.counters().sweeps - before);
    drop(held);
    assert_eq!(cache.reap().unwrap().regions, REGIONS);
}

#[test]
fn a_victim_always_in_use_is_looked_at_rarely() {
    let device = device();
    let cache = builder(&device, 8)
        .policy_from(|params| tracesim_policies::AnyPolicy::Fifo.build(params))
        .background(true)
        .build()
        .unwrap();
    // Eight leases of it at each time, of which one after the other ends and begins anew.
    let mut held: VecDeque<_> = (0..8).map(|_| take(&cache, 0, 1)).collect();
    (0..16).for_each(|page| drop(take(&cache, 100 + page, 1)));
    assert_eq!(cache.usage().retired, 1, "it was proposed, and stays");
    let (begun, before) = (Instant::now(), cache.counters().barriers);
    // Also where the background seldom runs, it runs some times.
    while begun.elapsed() < Duration::from_millis(200) || cache.counters().barriers < before + 3 {
        drop(held.pop_front());
        held.push_back(take(&cache, 0, 1));
    }
    let (barriers, most) = (cache.counters().barriers - before, begun.elapsed().as_millis() / 14 + 2);
    assert!(u128::from(barriers) <= most, "{barriers} barriers, of {most} at most");
    assert_eq!(cache.usage().retired, 1);
}
