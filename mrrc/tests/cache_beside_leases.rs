//! Held regions do not stand in the way of unheld ones.

#![allow(unsafe_code, reason = "a region is registered that safe code could not have")]

mod common;

use common::*;
use mrrc::invalidation::Explicit;
use mrrc::testing::Fault;
use mrrc::{Access, Cache, PAGE};

#[test]
fn out_of_resources_evicts_unheld_only() {
    let device = device();
    let cache = cache(&device, 1000);
    fill(&cache, 10, 10);
    // A hit's lease: the core learns of it only when it proposes the region to leave.
    let held = take(&cache, 0, 10);
    device.fail_register(Fault::next(1, libc::ENOMEM));
    drop(take(&cache, 500, 64));
    assert_eq!((cache.counters().retries, device.counts().reg_attempts), (1, 12));
    assert!(is_hit(&cache, 0, 10));
    drop(held);
}

#[test]
fn a_request_looks_once_more_before_it_is_refused() {
    let device = device();
    let cache = builder(&device, 1000).max_regions(4).build().unwrap();
    drop(take(&cache, 100, 1));
    for start in [10, 20] {
        let lease = take(&cache, start, 1);
        cache.invalidate(address(start), PAGE as usize).unwrap();
        drop(lease);
    }
    // Two gaps beside a region that stands: four places, two of them still taken by what no lease has any more.
    drop(take(&cache, 99, 3));
    assert_eq!(cache.counters().decisions.all_in_use, 0);
}

#[test]
fn arena_key_covers_only_the_arena() {
    let device = device();
    let cache = builder(&device, 1000).monitor(Explicit).build().unwrap();
    let arena = cache.arena(4 * PAGE as usize).unwrap();
    let rights = Access::LOCAL | Access::REMOTE_WRITE;
    // SAFETY: the address is never followed: the device is a model.
    unsafe { cache.warm(arena.as_ptr().cast_const().wrapping_sub(2 * PAGE as usize), 8 * PAGE as usize, rights) }
        .unwrap();
    let lease = arena.acquire(.., rights).unwrap();
    let pages = mrrc::PageRange::of_bytes(lease.address() as u64, lease.len() as u64).unwrap();
    for segment in lease.segments() {
        assert!(pages.contains(segment.registration().range));
    }
    assert!(arena.acquire(.., Access::LOCAL).unwrap().segments().count() >= 1);
}

#[test]
fn figures_of_a_refusal_are_right_the_first_time() {
    let cache: Cache<_> = cache(&device(), 8);
    fill(&cache, 2, 4);
    let _held = [take(&cache, 0, 4), take(&cache, 4, 4)];
    let error = ask(&cache, 100, 1, Access::LOCAL).unwrap_err().to_string();
    assert!(error.contains("(8 pages in 2 regions)"), "{error}");
}
