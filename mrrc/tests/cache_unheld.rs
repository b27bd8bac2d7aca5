//! A limit on regions without a lease: they end in time, and only so much of them is kept.
//!
//! `src/state/unheld.rs` has the decisions under a simulated clock, and `cache_pins.rs` real pins. Here nothing asserts a time: each
//! test waits for what is to come, with much patience.

mod common;

use common::*;
use mrrc::cache::BuildError;
use mrrc::{Access, PAGE};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_millis(200);
const NEVER: Duration = Duration::from_secs(1 << 40);

/// Waits until it is true.
#[track_caller]
fn wait_until(what: &str, mut is_true: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_true() {
        assert!(Instant::now() < end, "waited for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn regions_end_after_their_leases() {
    let device = device();
    let cache = builder(&device, 64).max_unheld(u64::MAX, SOON).build().unwrap();
    assert!(cache.has_background());
    let held = ask(&cache, 0, 4, Access::LOCAL).unwrap();
    drop(ask(&cache, 10, 2, Access::LOCAL).unwrap());
    wait_until("one region", || device.counts().regions == 1);
    // Longer than any region stays without a lease.
    std::thread::sleep(2 * SOON);
    assert_eq!((device.counts().regions, cache.unheld_pages()), (1, 0), "the one that is held");
    drop(held);
    wait_until("none", || device.counts().regions == 0);
    assert_eq!((cache.counters().expired, cache.usage().pages), (2, 0));
    // And from the beginning.
    drop(ask(&cache, 10, 2, Access::LOCAL).unwrap());
    wait_until("none", || cache.counters().expired == 3 && device.counts().regions == 0);
}

#[test]
fn as_much_as_allowed_stays_unheld() {
    let device = device();
    let cache = builder(&device, 1 << 12).max_unheld(16 * PAGE, NEVER).build().unwrap();
    let held: Vec<_> = (0..32).map(|nth| ask(&cache, 4 * nth, 2, Access::LOCAL).unwrap()).collect();
    (64..256).for_each(|nth| drop(ask(&cache, 4 * nth, 1, Access::LOCAL).unwrap()));
    // An eighth more does not bring a look.
    wait_until("room", || cache.unheld_pages() <= 18);
    wait_until("deregistrations", || device.counts().pages <= 64 + 18);
    assert_eq!(cache.counters().expired, 0);
    assert!(cache.unheld_pages() >= 8, "it keeps what it may");
    assert!((0..32).all(|nth| is_hit(&cache, 4 * nth, 2)));
    drop(held);
}

#[test]
fn without_a_limit_regions_stay() {
    let device = device();
    let cache = builder(&device, 64).background(true).build().unwrap();
    drop(ask(&cache, 0, 4, Access::LOCAL).unwrap());
    std::thread::sleep(SOON);
    assert_eq!((cache.unheld_pages(), cache.counters().expired), (4, 0));
}

#[test]
fn a_limit_needs_the_background() {
    let built = builder(&device(), 64).max_unheld(u64::MAX, SOON).background(false).build();
    let Err(error @ BuildError::Setting { .. }) = built else { panic!("{built:?}") };
    assert!(error.to_string().contains("max_unheld needs the background thread"), "{error}");
}
