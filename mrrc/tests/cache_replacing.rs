//! A replaced region serves hits until its replacement is published: a bad address costs one attempt and no region.

#![allow(unsafe_code, reason = "leases are acquired for no transfer")]

mod common;

use common::*;
use mrrc::testing::{Event, Fault};
use mrrc::{Access, AcquireError, Cache, PAGE};
use std::thread;
use tracesim_policies::AnyPolicy;

const MORE: Access = Access::LOCAL.union(Access::REMOTE_READ);
const OTHER: Access = Access::LOCAL.union(Access::REMOTE_WRITE);

fn is_there(cache: &mrrc::Cache<Device>, start: u64, pages: u64, access: Access) -> bool {
    let before = cache.counters().attempts;
    drop(ask(cache, start, pages, access).unwrap());
    cache.counters().attempts == before
}

#[test]
fn an_upgrade_that_fails_leaves_what_there_was() {
    for held in [false, true] {
        let device = device();
        let cache = cache(&device, 64);
        drop(ask(&cache, 0, 8, Access::LOCAL_READ).unwrap());
        let lease = held.then(|| ask(&cache, 0, 8, Access::LOCAL_READ).unwrap());
        for errno in [libc::EFAULT, libc::EPERM] {
            device.fail_register(Fault::always(errno));
            let before = device.counts();
            assert!(ask(&cache, 2, 4, Access::LOCAL).is_err());
            assert!(ask(&cache, 6, 4, Access::LOCAL).is_err());
            let after = device.counts();
            assert_eq!((after.reg_attempts - before.reg_attempts, after.deregs), (2, 0));
            device.heal();
            assert!(is_there(&cache, 0, 8, Access::LOCAL_READ), "it is found again");
        }
        let counted = cache.counters().decisions;
        assert_eq!((counted.upgraded, counted.deregs, cache.usage().regions), (0, 0, 1));
        drop(ask(&cache, 2, 4, Access::LOCAL).unwrap());
        drop(lease);
        cache.reap().unwrap();
        assert_eq!((cache.counters().decisions.upgraded, device.counts().pages, cache.usage().pages), (1, 4, 4));
    }
}

#[test]
fn a_merge_that_fails_leaves_its_parts() {
    let device = device();
    let cache = builder(&device, 64).max_segments(1).build().unwrap();
    fill(&cache, 4, 4);
    device.fail_register(Fault::always(libc::EFAULT));
    assert!(ask(&cache, 0, 20, Access::LOCAL).is_err());
    device.heal();
    assert!(all_hit(&cache, 4, 4));
    assert_eq!((cache.counters().decisions.merged, device.counts().deregs), (0, 0));
    drop(take(&cache, 0, 20));
    cache.reap().unwrap();
    assert_eq!((cache.counters().decisions.merged, device.counts().pages), (4, 20));
}

#[test]
fn a_panic_leaves_what_there_was() {
    let device = device();
    let cache = cache(&device, 64);
    drop(ask(&cache, 0, 8, Access::LOCAL_READ).unwrap());
    device.on_call(|event| assert!(!matches!(event, Event::Registering { .. }), "told to"));
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| ask(&cache, 0, 8, Access::LOCAL)));
    assert!(panicked.is_err());
    device.on_call(|_| {});
    assert!(is_there(&cache, 0, 8, Access::LOCAL_READ));
}

#[test]
fn where_both_have_no_room_the_limit_holds() {
    let device = device();
    let cache = cache(&device, 12);
    drop(ask(&cache, 0, 8, Access::LOCAL_READ).unwrap());
    drop(ask(&cache, 0, 8, Access::LOCAL).unwrap());
    assert_eq!((device.counts().peak_pages, device.counts().deregs), (8, 1));
    drop(ask(&cache, 0, 4, MORE).unwrap());
    assert_eq!((device.counts().peak_pages, cache.counters().decisions.deregs), (12, 1), "of another class");
}

#[test]
fn superseded_region_is_evicted_when_out_of_room() {
    let device = device();
    let cache = cache(&device, 64);
    device.limit_untold(mrrc::registrar::Limits { pages: Some(8), ..mrrc::registrar::Limits::NONE });
    drop(ask(&cache, 0, 8, Access::LOCAL_READ).unwrap());
    drop(ask(&cache, 0, 8, Access::LOCAL).unwrap());
    assert_eq!((cache.counters().retries, device.counts().pages), (1, 8));
}

/// A region that is asked for with more rights, which fails; meanwhile something happens.
fn an_upgrade_fails_while(happens: impl FnOnce(&Cache<Device>)) -> (Device, Cache<Device>) {
    let device = device();
    let cache = cache(&device, 64);
    drop(ask(&cache, 0, 8, Access::LOCAL_READ).unwrap());
    let gate =
        gate_at(&device, |event| matches!(event, Event::Registering { range: asked, .. } if *asked == range(2, 2)));
    device.fail_register(Fault::within(range(2, 2), libc::EFAULT));
    thread::scope(|threads| {
        let upgrade = threads.spawn(|| ask(&cache, 2, 2, Access::LOCAL).map(drop));
        gate.await_waiting(1);
        happens(&cache);
        gate.open();
        assert!(upgrade.join().unwrap().is_err());
    });
    device.heal();
    (device, cache)
}

#[test]
fn what_changes_meanwhile_does_not_come_back() {
    // A page of the region that the upgrade does not touch.
    let (device, cache) = an_upgrade_fails_while(|cache| cache.invalidate(address(7), PAGE as usize).unwrap());
    assert!(!is_there(&cache, 0, 8, Access::LOCAL_READ));
    cache.flush().unwrap();
    assert_eq!((device.counts().regions, cache.usage().regions), (0, 0));
}

#[test]
fn what_others_registered_meanwhile_stays_theirs() {
    let (device, cache) = an_upgrade_fails_while(|cache| drop(take(cache, 6, 4)));
    assert!(is_hit(&cache, 6, 4));
    cache.flush().unwrap();
    assert_eq!((device.counts().regions, cache.usage().regions), (0, 0));
}

#[test]
fn single_segment_merge_keeps_rights_per_page() {
    let device = device();
    let cache = builder(&device, 64).max_segments(1).build().unwrap();
    drop(ask(&cache, 0, 4, MORE).unwrap());
    // One region cannot have both: each has its own, and they overlap.
    let lease = ask(&cache, 2, 4, OTHER).unwrap();
    assert_eq!(lease.segments().next().unwrap().registration().access, OTHER);
    assert_eq!(parts(&lease), [(2, 4, range(2, 4))]);
    drop(lease);
    assert!(is_there(&cache, 0, 4, MORE), "the right is still there");
    assert!(is_there(&cache, 2, 4, OTHER), "and so is the other");
    // Where all pages come to the same rights, one region has them.
    let lease = ask(&cache, 1, 2, OTHER).unwrap();
    assert_eq!(lease.segments().next().unwrap().registration().access, MORE | OTHER);
    drop(lease);
    assert!(is_there(&cache, 1, 2, MORE | OTHER));
    // A region with fewer rights than requested gives way.
    drop(ask(&cache, 20, 4, Access::LOCAL_READ).unwrap());
    drop(ask(&cache, 22, 4, Access::LOCAL).unwrap());
    assert!(is_there(&cache, 22, 4, Access::LOCAL));
}

#[test]
fn merging_policies_keep_rights_per_page() {
    for policy in [AnyPolicy::Ucx, AnyPolicy::Libfabric] {
        let device = device();
        let cache = builder(&device, 64).policy_from(move |params| policy.build(params)).build().unwrap();
        drop(ask(&cache, 0, 4, MORE).unwrap());
        let lease = ask(&cache, 2, 4, OTHER).unwrap();
        let rights: Vec<_> =
            lease.segments().map(|part| (part.registration().range, part.registration().access)).collect();
        assert_eq!(rights, [(range(2, 2), MORE | OTHER), (range(4, 2), OTHER)], "{policy}");
    }
}

#[test]
fn hull_is_tried_before_any_eviction() {
    // Eight pages are free, and the request has four; but its hull has more.
    let space = mrrc::testing::AddressSpace::new(128);
    space.map(range(0, 66)).unwrap();
    let device = mrrc::testing::Model::over(mrrc::cost::Linear::PAPER, mrrc::testing::FakeNic::new(&space));
    let cache = mrrc::Cache::builder(device.clone())
        .capacity_pages(64)
        .policy(mrrc::policy::PolicyKind::Mrrc)
        .max_segments(1)
        .ignore_environment();
    let cache = cache.monitor(mrrc::invalidation::Explicit).build().unwrap();
    fill(&cache, 5, 8);
    drop(take(&cache, 50, 16));
    let error = ask(&cache, 64, 4, Access::LOCAL).unwrap_err();
    assert!(matches!(error, AcquireError::Register { attempts: 1, .. }), "{error}");
    assert_eq!((cache.counters().decisions.deregs, device.counts().deregs), (0, 0));
    let counted = cache.counters();
    assert_eq!((counted.attempts, counted.decisions.requests, counted.decisions.partial), (7, 7, 1), "it is counted");
    assert!(all_hit(&cache, 5, 8) && is_hit(&cache, 50, 16));
}

#[test]
fn what_only_waits_to_come_back_is_room_for_others() {
    for fails in [false, true] {
        let device = device();
        let cache = cache(&device, 16);
        drop(ask(&cache, 0, 8, Access::LOCAL_READ).unwrap());
        let gate =
            gate_at(&device, |event| matches!(event, Event::Registering { range: asked, .. } if *asked == range(0, 8)));
        if fails {
            device.fail_register(Fault::within(range(0, 8), libc::EFAULT));
        }
        thread::scope(|threads| {
            let upgrade = threads.spawn(|| ask(&cache, 0, 8, Access::LOCAL).map(drop));
            gate.await_waiting(1);
            // Eight pages are registered, eight are being registered in their place.
            let other = ask(&cache, 100, 4, Access::LOCAL).map(drop);
            gate.open();
            assert_eq!(upgrade.join().unwrap().is_ok(), !fails);
            other.unwrap();
        });
        assert_eq!(cache.flush().unwrap().pages, if fails { 4 } else { 12 });
        assert_eq!((device.counts().pages, cache.usage().pages), (0, 0));
        assert!(device.counts().peak_pages <= 16);
    }
}
