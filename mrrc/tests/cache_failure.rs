//! Failure is bounded: what an attempt that fails may cost, and what becomes of a registrar's lies.

#![allow(unsafe_code, reason = "leases are acquired for no transfer")]

mod common;

use common::*;
use mrrc::registrar::{Limits, Registered, Registrar};
use mrrc::testing::{AddressSpace, Event, FakeMonitor, FakeNic, Fault, Model};
use mrrc::{Access, AcquireError, Cache, PAGE, PageRange};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[track_caller]
fn refused(result: Result<mrrc::Lease<Device>, AcquireError>) -> (u32, Option<i32>) {
    match result {
        Err(AcquireError::Register { attempts, source, .. }) => (attempts, source.raw_os_error()),
        Err(other) => panic!("{other}"),
        Ok(lease) => panic!("{lease:?}"),
    }
}

#[test]
fn a_bad_address_costs_one_attempt_and_no_eviction() {
    let device = device();
    let cache = cache(&device, 64);
    fill(&cache, 16, 4);
    for errno in [libc::EFAULT, libc::EINVAL, libc::EPERM, libc::EIO] {
        device.fail_register(Fault::within(range(500, 8), errno));
        let before = (device.counts(), cache.counters());
        // Where there is room, so that no room needs be made before it is tried; and beside what is cached.
        cache.invalidate(address(60), PAGE as usize).unwrap();
        cache.reap().unwrap();
        assert_eq!(refused(ask(&cache, 502, 2, Access::LOCAL)), (1, Some(errno)));
        let after = (device.counts(), cache.counters());
        assert_eq!(after.0.reg_attempts - before.0.reg_attempts, 1);
        assert_eq!(after.1.retries, before.1.retries);
        assert_eq!(after.0.deregs - before.0.deregs, 1, "the one that was invalidated");
        assert!(all_hit(&cache, 15, 4), "all that was cached still is");
        drop(take(&cache, 60, 4));
        device.heal();
    }
    assert_eq!(cache.usage().pages, 64);
}

#[test]
fn error_without_errno_is_final_unless_oom() {
    let device = device();
    let cache = builder(&device, 64).retries(2).build().unwrap();
    fill(&cache, 4, 4);
    device.fail_register(Fault::always(0).of_kind(io::ErrorKind::Unsupported));
    assert_eq!(refused(ask(&cache, 100, 1, Access::LOCAL)).0, 1);
    device.heal();
    assert!(all_hit(&cache, 4, 4));
    device.fail_register(Fault::always(0).of_kind(io::ErrorKind::OutOfMemory));
    assert_eq!(refused(ask(&cache, 100, 1, Access::LOCAL)).0, 3);
}

#[test]
fn failed_gap_keeps_the_registered_ones() {
    let device = device();
    let cache = cache(&device, 64);
    drop(take(&cache, 4, 4));
    device.fail_register(Fault::within(range(9, 1), libc::EFAULT));
    // The gap before the cached region is registered, the one after it fails.
    assert_eq!(refused(ask(&cache, 0, 12, Access::LOCAL)), (1, Some(libc::EFAULT)));
    assert!(is_hit(&cache, 0, 8), "what was registered is a region like others");
    assert_eq!((cache.usage().pages, device.counts().pages), (8, 8));
    device.heal();
    drop(take(&cache, 0, 12));
    let counted = cache.counters();
    assert_eq!((counted.attempts, counted.decisions.regs, counted.decisions.failed), (4, 4, 1));
}

#[test]
fn out_of_resources_evicts_a_batch_and_retries() {
    for errno in [libc::ENOMEM, libc::EAGAIN, libc::ENOSPC] {
        let device = device();
        let cache = cache(&device, 64);
        fill(&cache, 8, 4);
        device.fail_register(Fault::next(2, errno));
        drop(take(&cache, 100, 4));
        let counted = cache.counters();
        assert_eq!((counted.attempts, counted.retries), (8 + 3, 2));
        assert!(counted.deregistered >= 2 && is_hit(&cache, 100, 4));
    }
}

#[test]
fn retries_end() {
    for retries in [0, 1, 3] {
        let device = device();
        let cache = builder(&device, 68).retries(retries).build().unwrap();
        fill(&cache, 16, 4);
        device.fail_register(Fault::always(libc::ENOMEM));
        assert_eq!(refused(ask(&cache, 100, 1, Access::LOCAL)), (retries + 1, Some(libc::ENOMEM)));
        assert_eq!(device.counts().reg_attempts, 16 + u64::from(retries) + 1);
        assert_eq!(cache.counters().retries, u64::from(retries));
        if retries == 0 {
            assert_eq!(device.counts().deregs, 0);
            device.heal();
            assert!(all_hit(&cache, 16, 4));
        }
    }
}

#[test]
fn with_nothing_to_evict_it_is_not_tried_again() {
    let device = device();
    let cache = cache(&device, 64);
    let held = take(&cache, 0, 4);
    device.fail_register(Fault::always(libc::ENOMEM));
    assert_eq!(refused(ask(&cache, 100, 1, Access::LOCAL)), (1, Some(libc::ENOMEM)));
    assert_eq!(cache.counters().retries, 0, "none was made");
    device.heal();
    assert_eq!(parts(&held), [(0, 4, range(0, 4))]);
    drop(take(&cache, 100, 1));
}

#[test]
fn a_limit_below_the_capacity_is_lived_with() {
    let device = device();
    let cache = cache(&device, 64);
    device.limit_untold(Limits { pages: Some(20), ..Limits::NONE });
    for round in 0..3 {
        for region in 0..16 {
            drop(take(&cache, region * 4, 4));
        }
        assert!(device.counts().peak_pages <= 20, "round {round}");
    }
}

#[test]
fn failed_deregistration_is_pending_and_retried() {
    let device = device();
    let cache = cache(&device, 16);
    fill(&cache, 4, 4);
    device.fail_deregister(Fault::within(range(0, 4), libc::EBUSY));
    cache.flush().unwrap();
    assert_eq!((cache.usage().refused, cache.usage().pages, device.counts().pages), (1, 4, 4));
    assert_eq!((cache.counters().failed_deregs, cache.counters().deregistered), (1, 3));
    // It is not found any more, and its room is not given to others.
    let held = (take(&cache, 100, 12), cache.counters().attempts);
    let error = ask(&cache, 0, 4, Access::LOCAL).unwrap_err();
    assert!(matches!(error, AcquireError::DeregistrationFailed { pages: 4, regions: 1, .. }), "{error}");
    assert!(error.to_string().contains("1 region of 4 pages left the cache and could not be deregistered"), "{error}");
    let explained = cache.explain(address(0), 4 * PAGE as usize, Access::LOCAL).to_string();
    assert!(explained.contains("1 region of 4 pages left the cache and could not be deregistered"), "{explained}");
    assert!(device.counts().peak_pages <= 16);
    assert_eq!(cache.counters().attempts, held.1);
    device.heal();
    drop(take(&cache, 0, 4));
    assert_eq!((cache.usage().refused, cache.usage().pages), (0, 16));
}

#[test]
fn reap_tries_refused_regions_again() {
    let device = device();
    let cache = cache(&device, 16);
    fill(&cache, 4, 4);
    device.fail_deregister(Fault::always(libc::EBUSY));
    assert_eq!(cache.flush().unwrap().regions, 0);
    assert_eq!(cache.reap().unwrap().regions, 0);
    assert_eq!((cache.usage().refused, cache.counters().failed_deregs), (4, 8));
    device.heal();
    assert_eq!((cache.reap().unwrap().regions, cache.usage().refused, device.counts().pages), (4, 0, 0));
}

#[test]
fn untold_failures_are_detected_by_effect() {
    let device = device();
    let cache = cache(&device, 16);
    fill(&cache, 4, 4);
    // All is well, it says, and it leaves one.
    device.fail_deregister(Fault::within(range(0, 4), libc::EIO).untold());
    assert_eq!(cache.flush().unwrap().regions, 3);
    assert_eq!((cache.usage().refused, cache.usage().pages), (1, 4));
    device.heal();
    assert_eq!(cache.reap().unwrap().regions, 1);
    // All went wrong, it says, and nothing is left.
    fill(&cache, 4, 4);
    device.fail_deregister(Fault::always(libc::EIO).false_alarm());
    assert_eq!(cache.flush().unwrap().regions, 4);
    assert_eq!((cache.usage().refused, cache.usage().pages, device.counts().pages), (0, 0, 0));
    assert_eq!(cache.counters().failed_deregs, 2);
}

/// Puts more into a batch than it was given.
struct Inventive {
    calls: AtomicU64,
}

// SAFETY: its registrations name no memory: there is no device.
unsafe impl Registrar for Inventive {
    type Registration = u64;

    fn register(&self, _: PageRange, _: Access) -> io::Result<u64> {
        Ok(self.calls.fetch_add(1, Ordering::Relaxed))
    }

    fn deregister(&self, batch: &mut Vec<Registered<u64>>) -> io::Result<()> {
        if self.calls.fetch_add(1, Ordering::Relaxed) < 3 {
            batch.push(Registered { range: range(0, 1), access: Access::LOCAL, registration: 99 });
        } else {
            batch.clear();
        }
        Ok(())
    }

    fn limits(&self) -> Limits {
        Limits::NONE
    }

    fn name(&self) -> &'static str {
        "inventive"
    }
}

#[test]
fn excess_returned_regions_are_ignored() {
    let registrar = Inventive { calls: AtomicU64::new(0) };
    let cache = Cache::builder(registrar)
        .capacity_pages(16)
        .policy(mrrc::policy::PolicyKind::Mrrc)
        .monitor(mrrc::invalidation::Explicit);
    let cache = cache.ignore_environment().build().unwrap();
    fill(&cache, 1, 4);
    cache.flush().unwrap();
    cache.reap().unwrap();
    cache.reap().unwrap();
    fill(&cache, 4, 4);
    assert!(all_hit(&cache, 4, 4));
    cache.flush().unwrap();
    assert_eq!((cache.usage().regions, cache.usage().pages), (0, 0));
}

/// Panics in the first call that concerns the page, whatever it is.
fn panic_at(device: &Device, page: u64) {
    device.on_call(move |event| match event {
        Event::Registering { range, .. } if range.start() == BASE + page => panic!("told to"),
        _ => {}
    });
}

fn quietly<T>(run: impl FnOnce() -> T) -> std::thread::Result<T> {
    catch_unwind(AssertUnwindSafe(run))
}

#[test]
fn a_registrar_that_panics_leaves_a_cache_that_works() {
    let device = device();
    let cache = cache(&device, 32);
    drop(take(&cache, 4, 4));
    panic_at(&device, 8);
    // The gap before the cached region is registered by then.
    assert!(quietly(|| drop(take(&cache, 0, 12))).is_err());
    device.on_call(|_| {});
    assert_eq!(cache.counters().attempts, device.counts().reg_attempts, "the attempt is counted");
    assert_eq!(cache.usage().pages, device.counts().pages, "what is registered is known");
    drop(take(&cache, 0, 12));
    assert!(is_hit(&cache, 4, 4));
    drop(take(&cache, 100, 32));
    assert_eq!((device.counts().peak_pages, cache.counters().waits), (32, 0));
    cache.flush().unwrap();
    assert_eq!((device.counts().pages, cache.usage().pages), (0, 0), "nothing was lost");
}

#[test]
fn panic_in_deregister_leaves_cache_working() {
    let device = device();
    let cache = builder(&device, 16).wait_timeout(std::time::Duration::from_millis(50)).build().unwrap();
    fill(&cache, 4, 4);
    device.on_call(|event| assert!(!matches!(event, Event::Deregistering { .. }), "told to"));
    assert!(quietly(|| cache.flush()).is_err());
    device.on_call(|_| {});
    // The batch that it panicked in is tried again; the rest was in none.
    assert_eq!((cache.usage().refused, cache.usage().leaving, cache.usage().pages), (1, 3, 16));
    drop(take(&cache, 100, 16));
    assert_eq!((device.counts().peak_pages, cache.usage().refused), (16, 0));
}

/// Panics in the first calls to deregister, so many.
fn panic_while_deregistering(device: &Device, times: u64) {
    let calls = AtomicU64::new(0);
    device.on_call(move |event| {
        let told_to = matches!(event, Event::Deregistering { .. }) && calls.fetch_add(1, Ordering::Relaxed) < times;
        assert!(!told_to, "told to");
    });
}

#[track_caller]
fn comes_to_nothing(device: &Device) {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while device.counts().pages > 0 {
        assert!(std::time::Instant::now() < end, "{:?}", device.counts());
        std::thread::yield_now();
    }
}

#[test]
fn panic_in_deregister_at_drop_is_contained() {
    for times in [1, 3] {
        let device = device();
        let cache = cache(&device, 16);
        fill(&cache, 4, 4);
        panic_while_deregistering(&device, times);
        assert!(quietly(|| drop(cache)).is_ok(), "nobody who drops is told");
        comes_to_nothing(&device);
    }
}

#[test]
fn panic_in_drop_during_unwind_does_not_abort() {
    let device = device();
    let owner = cache(&device, 16);
    fill(&owner, 4, 4);
    panic_while_deregistering(&device, 1);
    let first = quietly(|| {
        let _owner = owner;
        panic!("the first");
    });
    assert_eq!(first.unwrap_err().downcast_ref(), Some(&"the first"));
    comes_to_nothing(&device);
}

#[test]
fn what_fails_to_be_registered_is_watched_no_longer() {
    let space = AddressSpace::new(64);
    let (monitor, device) = (FakeMonitor::inline(&space), Model::over(mrrc::cost::Linear::PAPER, FakeNic::new(&space)));
    space.map(range(0, 32)).unwrap();
    let cache = Cache::builder(device.clone())
        .capacity_pages(16)
        .policy(mrrc::policy::PolicyKind::Mrrc)
        .monitor(monitor.clone())
        .background(false);
    let cache = cache.ignore_environment().build().unwrap();
    device.fail_register(Fault::within(range(9, 1), libc::EFAULT));
    drop(take(&cache, 4, 4));
    assert!(ask(&cache, 0, 12, Access::LOCAL).is_err());
    device.on_call(|event| assert!(!matches!(event, Event::Registering { .. }), "told to"));
    assert!(quietly(|| ask(&cache, 20, 4, Access::LOCAL)).is_err());
    cache.flush().unwrap();
    let (watched, unwatched) = monitor.watches();
    assert_eq!(watched, unwatched);
    assert_eq!(device.counts().pages, 0);
}

#[test]
fn a_panic_elsewhere_does_not_break_the_cache() {
    let device = device();
    let cache = Arc::new(cache(&device, 16));
    let theirs = cache.clone();
    let thread = std::thread::spawn(move || {
        let _held = take(&theirs, 0, 4);
        panic!("told to");
    });
    assert!(thread.join().is_err());
    assert!(is_hit(&cache, 0, 4));
    drop(take(&cache, 100, 16));
}
