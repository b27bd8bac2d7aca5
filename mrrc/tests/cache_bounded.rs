//! A request does bounded work for others, and its waits are bounded.

#![allow(unsafe_code, reason = "leases are acquired for no transfer")]

mod common;

use common::*;
use mrrc::invalidation::{Monitor, Reports, Unwatched, Watch};
use mrrc::registrar::Limits;
use mrrc::testing::{Event, Fault};
use mrrc::{Access, Cache, PAGE, PageRange};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

/// Nothing can be watched.
struct Blind;

// SAFETY: it answers `Unwatched` for every range, so it vouches for none.
unsafe impl Monitor for Blind {
    fn name(&self) -> &'static str {
        "blind"
    }

    unsafe fn start(&self, _: Arc<dyn Reports>) -> io::Result<()> {
        Ok(())
    }

    unsafe fn watch(&self, _: PageRange) -> Watch {
        Watch::Unwatched(Unwatched::File)
    }
}

/// Waits for something that another thread does; a minute is as good as never.
fn soon(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}: not in a minute");
        thread::yield_now();
    }
}

#[test]
fn uncached_memory_is_registered_per_request() {
    let device = device();
    let gate = gate_at(&device, |event| matches!(event, Event::Registering { .. }));
    let cache = builder(&device, 64).monitor(Blind).background(false).build().unwrap();
    thread::scope(|threads| {
        let askers: Vec<_> = (0..4).map(|_| threads.spawn(|| drop(take(&cache, 0, 4)))).collect();
        // All four are at the registrar: none waits for another's.
        gate.await_waiting(4);
        gate.open();
        askers.into_iter().for_each(|asker| asker.join().unwrap());
    });
    let counted = cache.counters();
    assert_eq!((counted.attempts, counted.unwatched, counted.changed_in_flight), (4, 4, 0));
    // One that comes while another's placeholder stands finds its pages spoken for, and is no plain miss.
    assert_eq!(counted.decisions.requests, 4);
    cache.reap().unwrap();
    assert_eq!((device.counts().regions, cache.usage().regions), (0, 0));
}

#[test]
fn nested_request_on_own_thread_does_not_wait() {
    let device = device();
    let cache = cache(&device, 64);
    let mut begun = begin_at(&cache, address(0), 8 * PAGE as usize, Access::LOCAL).unwrap();
    let within = take(&cache, 4, 8);
    assert_eq!(parts(&within), [(4, 4, range(4, 4)), (8, 4, range(8, 4))]);
    assert_eq!(cache.counters().waits, 0);
    let lease = begun.finish().unwrap();
    assert_eq!(parts(&lease), [(0, 8, range(0, 8))]);
    drop((within, lease, begun));
    assert!(is_hit(&cache, 0, 8) && is_hit(&cache, 8, 4));
    assert_eq!((cache.reap().unwrap().regions, device.counts().pages), (1, 12));
}

#[test]
fn registrar_acquiring_its_own_pages_does_not_wait() {
    let device = device();
    let (cache, inner) = (Arc::new(cache(&device, 64)), Arc::new(OnceLock::<Arc<Cache<Device>>>::new()));
    inner.set(cache.clone()).unwrap();
    let (calls, within) = (AtomicU64::new(0), inner.clone());
    device.on_call(move |event| {
        if matches!(event, Event::Registering { .. }) && calls.fetch_add(1, Ordering::Relaxed) == 0 {
            drop(take(within.get().unwrap(), 1, 2));
        }
    });
    drop(take(&cache, 0, 4));
    device.on_call(|_| {});
    assert_eq!((cache.counters().attempts, cache.counters().waits), (2, 0));
}

#[test]
fn a_request_works_for_others_once() {
    let device = device();
    let cache = Arc::new(builder(&device, 64).wait_timeout(Duration::ZERO).build().unwrap());
    fill(&cache, 12, 4);
    let (theirs, next) = (cache.clone(), AtomicU64::new(1));
    // Whenever something is deregistered, something else leaves.
    device.on_call(move |event| {
        let region = next.load(Ordering::Relaxed);
        if matches!(event, Event::Deregistering { .. }) && region < 12 {
            next.store(region + 1, Ordering::Relaxed);
            theirs.invalidate(address(region * 4), 1).unwrap();
        }
    });
    cache.invalidate(address(0), 1).unwrap();
    drop(take(&cache, 100, 4));
    assert_eq!((device.counts().dereg_batches, cache.usage().leaving), (1, 1));
    device.on_call(|_| {});
}

#[test]
fn background_retries_failed_deregistration() {
    let device = device();
    let cache = builder(&device, 64).background(true).build().unwrap();
    fill(&cache, 4, 4);
    device.fail_deregister(Fault::next(6, libc::EBUSY));
    cache.flush().unwrap();
    // No call of ours but this reading of the device's books.
    soon("all is deregistered", || device.counts().regions == 0);
    // Not before the last batch has ended: what it had is neither refused nor counted as deregistered until then.
    soon("nothing is registered", || cache.usage().regions == 0);
    assert_eq!((cache.counters().failed_deregs, cache.counters().deregistered), (6, 4));
}

#[test]
fn background_survives_panics() {
    struct Touchy(AtomicU64);
    // SAFETY: there is no memory here that could change.
    unsafe impl Monitor for Touchy {
        fn name(&self) -> &'static str {
            "touchy"
        }

        unsafe fn start(&self, _: Arc<dyn Reports>) -> io::Result<()> {
            Ok(())
        }

        unsafe fn watch(&self, _: PageRange) -> Watch {
            Watch::Watched
        }

        unsafe fn unwatch(&self, _: PageRange) {
            assert!(self.0.fetch_add(1, Ordering::Relaxed) > 0, "told to");
        }
    }
    let device = device();
    let cache = builder(&device, 64).monitor(Touchy(AtomicU64::new(0))).background(true).build().unwrap();
    let calls = AtomicU64::new(0);
    device.on_call(move |event| {
        if matches!(event, Event::Deregistering { .. }) {
            assert!(calls.fetch_add(1, Ordering::Relaxed) > 0, "told to");
        }
    });
    for round in 0..4 {
        fill(&cache, 4, 4);
        cache.invalidate(address(0), 16 * PAGE as usize).unwrap();
        soon("all is deregistered", || device.counts().regions == 0);
        assert!(cache.usage().capacity_pages == 64, "round {round}");
    }
}

#[test]
fn large_device_pages_count_hits_and_misses() {
    let device = device();
    device.limit(Limits { page_size: 4 * PAGE, ..Limits::NONE });
    for histograms in [false, true] {
        let cache = builder(&device, 64).histograms(histograms).build().unwrap();
        drop(take(&cache, 1, 2));
        drop(take(&cache, 1, 2));
        drop(take(&cache, 0, 4));
        drop(take(&cache, 2, 8));
        drop(take(&cache, 2, 2));
        let counted = cache.counters().decisions;
        assert_eq!((counted.requests, counted.miss, counted.exact, counted.partial, counted.subset), (5, 1, 3, 1, 0));
        assert_eq!((counted.pages, counted.hit_pages), (4 + 4 + 4 + 12 + 4, 4 + 4 + 4 + 4));
    }
    let local = builder(&device, 64).background(false).build().unwrap();
    for _ in 0..2 {
        drop(acquire_at(&local, address(1), PAGE as usize, Access::LOCAL).unwrap());
    }
    assert_eq!((local.counters().decisions.exact, local.counters().decisions.pages), (1, 8));
}

#[test]
fn many_touches_are_applied_in_parts() {
    const HOT: u64 = 6000;
    let device = device();
    let cache = builder(&device, 10_000).policy("pindown".parse().unwrap()).build().unwrap();
    fill(&cache, 10_000, 1);
    // More than are handed over at a time; by the order in which they were registered they would be the first to go.
    assert!(all_hit(&cache, HOT, 1));
    let new = 20_000..30_000 - HOT;
    new.clone().for_each(|page| drop(take(&cache, page, 1)));
    assert!(all_hit(&cache, HOT, 1), "what was hit stays");
    assert!(new.clone().all(|page| is_hit(&cache, page, 1)), "in the place of what was not");
    assert_eq!((cache.usage().regions, cache.counters().decisions.deregs), (10_000, 10_000 - HOT));
}

#[test]
fn a_large_batch_takes_nothing_along_that_was_used() {
    const REGIONS: u64 = 20_000;
    const USED: u64 = 17_000;
    let device = device();
    let cache = builder(&device, REGIONS).policy("mrrc".parse().unwrap()).build().unwrap();
    fill(&cache, REGIONS, 1);
    assert!(all_hit(&cache, USED, 1));
    // A tenth leaves, and by the order in which they were registered what was used would be the first to go.
    drop(take(&cache, 30_000, 1));
    assert_eq!(cache.counters().decisions.deregs, REGIONS / 10);
    assert!(all_hit(&cache, USED, 1), "what was hit stays");
}

#[test]
fn one_eviction_suffices_past_many_held() {
    let device = device();
    let cache = builder(&device, 1000).policy("pindown".parse().unwrap()).build().unwrap();
    // In use since they were registered, so nothing moves them up.
    let held: Vec<_> = (0..300).map(|page| take(&cache, page, 1)).collect();
    (300..1000).for_each(|page| drop(take(&cache, page, 1)));
    drop(take(&cache, 2000, 1));
    assert_eq!(cache.counters().decisions.deregs, 1);
    drop(held);
    assert!(all_hit(&cache, 300, 1));
}

#[test]
fn region_shortage_evicts_share_of_regions() {
    let device = device();
    let cache = builder(&device, 1_000_000).policy("mrrc".parse().unwrap()).max_regions(100).build().unwrap();
    fill(&cache, 100, 1);
    drop(take(&cache, 2000, 1));
    // A tenth of the pages would be all of them.
    assert_eq!((cache.counters().decisions.deregs, cache.usage().regions), (10, 91));
}

#[test]
fn never_evicting_policy_refuses_at_limit() {
    let device = device();
    let cache =
        builder(&device, 16).policy_from(|params| tracesim_policies::AnyPolicy::Nccl.build(params)).build().unwrap();
    fill(&cache, 4, 4);
    let error = ask(&cache, 100, 1, Access::LOCAL).unwrap_err();
    assert!(matches!(error, mrrc::AcquireError::AllInUse { .. }), "{error}");
    assert!(all_hit(&cache, 4, 4));
    assert_eq!((device.counts().deregs, cache.counters().decisions.all_in_use), (0, 1));
    cache.invalidate(address(0), PAGE as usize).unwrap();
    drop(take(&cache, 100, 1));
}

#[test]
fn never_evicting_policy_refuses_uncached_too() {
    let device = device();
    let cache =
        builder(&device, 16).policy_from(|params| tracesim_policies::AnyPolicy::Nccl.build(params)).build().unwrap();
    fill(&cache, 4, 4);
    let slice = [0_u8; 1];
    // Registered for the call alone, as no monitor vouches for the memory.
    let error = cache.with_slice(&slice, |_| ()).unwrap_err();
    assert!(matches!(error, mrrc::AcquireError::AllInUse { .. }), "{error}");
    assert!(all_hit(&cache, 4, 4));
    assert_eq!(device.counts().deregs, 0);
}

#[test]
fn never_evicting_policy_keeps_all_on_enomem() {
    let device = device();
    let cache =
        builder(&device, 16).policy_from(|params| tracesim_policies::AnyPolicy::Nccl.build(params)).build().unwrap();
    let local = builder(&device, 16)
        .policy_from(|params| tracesim_policies::AnyPolicy::Nccl.build(params))
        .background(false)
        .build()
        .unwrap();
    let ask_local = |page| acquire_at(&local, address(page), PAGE as usize, Access::LOCAL).map(drop);
    fill(&cache, 2, 4);
    ask_local(0).unwrap();
    device.fail_register(Fault::always(libc::ENOMEM));
    let error = ask(&cache, 100, 1, Access::LOCAL).unwrap_err();
    assert!(matches!(error, mrrc::AcquireError::Register { attempts: 1, .. }), "{error}");
    assert!(ask_local(100).is_err());
    assert!(all_hit(&cache, 2, 4));
    assert_eq!((device.counts().deregs, local.usage().regions), (0, 1));
}

#[test]
fn wait_timeout_bounds_slow_deregistration() {
    let device = device();
    let cache = builder(&device, 64).wait_timeout(Duration::from_millis(20)).background(false).build().unwrap();
    drop(take(&cache, 0, 8));
    let gate = gate_at(&device, |event| matches!(event, Event::Deregistering { .. }));
    thread::scope(|threads| {
        let flush = threads.spawn(|| cache.flush().map(drop));
        gate.await_waiting(1);
        device.fail_register(Fault::always(libc::ENOMEM));
        let error = ask(&cache, 100, 4, Access::LOCAL).unwrap_err();
        gate.open();
        flush.join().unwrap().unwrap();
        // It waited as long as it may, was told nothing, tried again, and waited no more.
        assert!(matches!(error, mrrc::AcquireError::Register { attempts: 2, .. }), "{error}");
    });
}

#[test]
fn what_was_ready_stays_held_after_a_failure() {
    let device = device();
    let cache = cache(&device, 16);
    drop(take(&cache, 0, 4));
    let mut begun = begin_at(&cache, address(0), 8 * PAGE as usize, Access::LOCAL).unwrap();
    assert_eq!(begun.ready().count(), 1);
    device.fail_register(Fault::always(libc::EFAULT));
    assert!(begun.finish().is_err());
    device.heal();
    assert!(ask(&cache, 100, 16, Access::LOCAL).is_err(), "the first four pages are held");
    drop(begun);
    drop(take(&cache, 100, 16));
}

#[test]
fn hull_without_room_falls_back_to_request() {
    let device = device();
    let cache = builder(&device, 16).max_segments(1).build().unwrap();
    drop(take(&cache, 0, 4));
    let held = (take(&cache, 100, 6), take(&cache, 0, 4));
    // The hull has eight pages and finds six; the request has six.
    let lease = take(&cache, 2, 6);
    assert_eq!(parts(&lease), [(2, 6, range(2, 6))]);
    drop((held, lease));
    assert!(device.counts().peak_pages <= 16);
}
