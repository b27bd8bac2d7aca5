//! Dead pins: what is registered although its memory changed, and that no lease has. They are few, and go soon.
//!
//! `src/state/reclaimer.rs` has when the background is woken, and `cache_pins.rs` real pins. Here nothing asserts a time: each test
//! waits for what is to come, with much patience.

#![allow(unsafe_code, reason = "leases are acquired for no transfer")]

mod common;

use common::*;
use mrrc::testing::{Event, Fault};
use mrrc::{Access, Cache, PAGE};
use std::time::{Duration, Instant};

/// From so many pages on misses help.
const MOST: u64 = (64 << 20) / PAGE;

/// Waits until it is true.
#[track_caller]
fn wait_until(what: &str, mut is_true: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_true() {
        assert!(Instant::now() < end, "waited for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn invalidate(cache: &Cache<Device>, start: u64, pages: u64) {
    cache.invalidate(address(start), (pages * PAGE) as usize).unwrap();
}

#[test]
fn pins_of_changed_memory_are_dead_until_deregistered() {
    let device = device();
    let cache = cache(&device, 64);
    fill(&cache, 3, 4);
    let held = take(&cache, 8, 4);
    invalidate(&cache, 0, 4);
    invalidate(&cache, 8, 4);
    assert_eq!((cache.usage().dead_pages, cache.usage().retired), (4, 1), "a lease has the other one");
    drop(held);
    // A page that is not there: it looks for leases that ended.
    cache.reap().unwrap();
    let counters = cache.counters();
    assert_eq!((cache.usage().dead_pages, counters.peak_dead_pages), (0, 8));
    assert!(counters.longest_dead > Duration::ZERO && cache.counters() == counters);
    assert!(is_hit(&cache, 4, 4));
}

#[test]
fn pins_of_unchanged_memory_are_not_dead() {
    let device = device();
    let cache = cache(&device, 16);
    // Evicted, registered for one lease, and emptied.
    fill(&cache, 40, 2);
    let change = cache.begin_change(address(200), PAGE as usize).unwrap();
    drop(take(&cache, 200, 1));
    cache.reap().unwrap();
    drop(change);
    fill(&cache, 4, 2);
    cache.flush().unwrap();
    fill(&cache, 4, 2);
    cache.invalidate(std::ptr::without_provenance(1), usize::MAX).unwrap();
    let (counters, usage) = (cache.counters(), cache.usage());
    assert_eq!((counters.peak_dead_pages, counters.longest_dead, usage.dead_pages), (0, Duration::ZERO, 0));
}

#[test]
fn evicted_memory_that_changes_leaves_dead_pins() {
    let device = device();
    let cache = cache(&device, 64);
    fill(&cache, 4, 16);
    // Evicted, and pinned on.
    device.fail_deregister(Fault::always(libc::EBUSY));
    assert_eq!(cache.flush().unwrap().regions, 0);
    assert_eq!((cache.usage().dead_pages, device.counts().regions), (0, 4));
    invalidate(&cache, 15, 2);
    assert_eq!(cache.usage().dead_pages, 32, "the pages of two regions");
    device.heal();
    cache.reap().unwrap();
    cache.reap().unwrap();
    assert_eq!((cache.usage().dead_pages, device.counts().regions), (0, 0));
}

#[test]
fn refused_pins_stay_dead() {
    let device = device();
    let cache = cache(&device, 64);
    fill(&cache, 2, 8);
    device.fail_deregister(Fault::next(1, libc::EBUSY));
    invalidate(&cache, 0, 16);
    cache.reap().unwrap();
    let (first, usage) = (cache.counters().longest_dead, cache.usage());
    assert_eq!((usage.refused, usage.dead_pages), (1, 8));
    wait_until("a later moment", || cache.counters().longest_dead > first);
    cache.reap().unwrap();
    let counters = cache.counters();
    assert_eq!((cache.usage().dead_pages, counters.peak_dead_pages), (0, 16));
    assert!(cache.counters().longest_dead == counters.longest_dead, "none is left");
}

#[test]
fn misses_deregister_what_the_background_cannot() {
    const PIECE: u64 = 1024;
    let (device, test) = (device(), std::thread::current().id());
    let gate = gate_at(&device, move |event| {
        matches!(event, Event::Deregistering { .. }) && std::thread::current().id() != test
    });
    let cache = builder(&device, 1 << 20).background(true).build().unwrap();
    for nth in 0..128 {
        drop(take(&cache, nth * PIECE, PIECE));
        invalidate(&cache, nth * PIECE, PIECE);
    }
    let (peak, dead, kept) = (cache.counters().peak_dead_pages, cache.usage().dead_pages, device.counts().pages);
    gate.open();
    assert!(dead <= kept && kept <= peak);
    // What the background has in its hands may be one region, and one more was invalidated since the last miss.
    assert!((MOST..=MOST + 2 * PIECE).contains(&peak), "{peak} pages were dead at once");
    wait_until("no dead pins", || cache.usage().dead_pages == 0 && device.counts().pages == 0);
    assert_eq!(cache.counters().peak_dead_pages, peak);
}

#[test]
fn regions_leave_although_the_background_looks_rarely() {
    let device = device();
    let config = mrrc::Config { policy: mrrc::policy::PolicyKind::Mrrc, evict: 0.5, ..mrrc::Config::new(100) };
    // It looks for unheld regions each hour.
    let builder = builder(&device, 100).config(config).max_unheld(u64::MAX, Duration::from_secs(1 << 20));
    let cache = builder.build().unwrap();
    // Each of these evicts many, and deregisters what it needs.
    for nth in 0..400 {
        drop(ask(&cache, nth, 1, Access::LOCAL).unwrap());
        // One of the requests that found all full. The background waits then for regions without a lease.
        if nth % 100 == 0 {
            wait_until("all that left to be deregistered", || cache.usage().leaving == 0);
            // Longer than it naps.
            std::thread::sleep(Duration::from_millis(600));
        }
    }
    assert!(cache.counters().deregistered >= 250);
}
