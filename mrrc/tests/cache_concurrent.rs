//! A miss blocks no other thread: progress while a registration or a deregistration is in flight.

#![allow(unsafe_code, reason = "leases are acquired for no transfer")]

mod common;

use common::*;
use mrrc::cache::Unusable;
use mrrc::invalidation::Explicit;
use mrrc::registrar::{Limits, Registered, Registrar};
use mrrc::testing::{Event, Fault, Gate};
use mrrc::{Access, AcquireError, Cache, PAGE, PageRange};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

/// Returns a device whose registrations of this page wait at the gate.
fn held_at(page: u64) -> (Device, Gate) {
    let device = device();
    let touches =
        move |event: &Event| matches!(event, Event::Registering { range: asked, .. } if asked.overlaps(range(page, 1)));
    let gate = gate_at(&device, touches);
    (device, gate)
}

/// Waits until a request waits for another's registration.
fn await_wait<R: Registrar>(cache: &Cache<R>, waits: u64) {
    while cache.counters().waits < waits {
        thread::yield_now();
    }
}

#[test]
fn hits_and_other_misses_go_on_while_one_registers() {
    let (device, gate) = held_at(100);
    let cache = cache(&device, 64);
    fill(&cache, 4, 4);
    thread::scope(|threads| {
        let miss = threads.spawn(|| drop(take(&cache, 100, 4)));
        gate.await_waiting(1);
        assert!(all_hit(&cache, 4, 4));
        drop(take(&cache, 200, 4));
        cache.invalidate(address(0), PAGE as usize).unwrap();
        assert_eq!(cache.reap().unwrap().regions, 1);
        drop(take(&cache, 0, 4));
        // Evictions go on beside it, and it keeps its room.
        drop(take(&cache, 300, 48));
        assert_eq!(cache.usage().pages, device.counts().pages + 4);
        gate.open();
        miss.join().unwrap();
    });
    assert!(is_hit(&cache, 100, 4));
    assert!(device.counts().peak_pages <= 64);
}

/// Returns how often this thread went to sleep.
#[cfg(target_os = "linux")]
fn sleeps() -> i64 {
    // SAFETY: zeroes are a value of the C structure, which the call fills in.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &mut usage), 0);
        usage.ru_nvcsw
    }
}

#[test]
#[cfg(target_os = "linux")]
fn registration_wakes_those_that_wait_for_it() {
    const THREADS: u64 = 24;
    let (device, opened) = (device(), Arc::new((Mutex::new(0), Condvar::new())));
    let gate = opened.clone();
    device.on_call(move |event: &Event| {
        if let Event::Registering { range: asked, .. } = event {
            let nth = (asked.start() - range(0, 1).start()) / 100;
            drop(gate.1.wait_while(gate.0.lock().unwrap(), |opened| *opened < nth).unwrap());
        }
    });
    let cache = cache(&device, 1024);
    let slept: i64 = thread::scope(|threads| {
        let cache = &cache;
        let misses: Vec<_> = (1..=THREADS).map(|nth| threads.spawn(move || drop(take(cache, nth * 100, 4)))).collect();
        while cache.usage().regions < THREADS {
            thread::yield_now();
        }
        let waiting = |nth| {
            let before = sleeps();
            drop(take(cache, nth * 100, 4));
            sleeps() - before
        };
        let waiters: Vec<_> = (1..=THREADS).map(|nth| threads.spawn(move || waiting(nth))).collect();
        await_wait(cache, THREADS);
        for (nth, miss) in (1..).zip(misses) {
            *opened.0.lock().unwrap() = nth;
            opened.1.notify_all();
            miss.join().unwrap();
        }
        waiters.into_iter().map(|waiter| waiter.join().unwrap()).sum()
    });
    println!("{THREADS} threads slept {slept} times");
    // Once each, and now and then for the lock.
    assert!(slept < 4 * THREADS as i64, "{THREADS} threads slept {slept} times");
}

#[test]
fn builders_are_shared_between_threads() {
    fn shared<T: Send + Sync>(_: &T) {}
    shared(&builder(&device(), 1));
}

#[test]
fn who_asks_for_what_is_being_registered_shares_it() {
    let (device, gate) = held_at(100);
    let cache = cache(&device, 64);
    thread::scope(|threads| {
        let first = threads.spawn(|| drop(take(&cache, 100, 4)));
        gate.await_waiting(1);
        let others: Vec<_> = (0..3).map(|_| threads.spawn(|| drop(take(&cache, 101, 2)))).collect();
        await_wait(&cache, 3);
        gate.open();
        first.join().unwrap();
        others.into_iter().for_each(|other| other.join().unwrap());
    });
    assert_eq!(device.counts().reg_attempts, 1);
    let counted = cache.counters();
    assert_eq!((counted.decisions.requests, counted.waits), (4, 3), "each waited once");
}

#[test]
fn who_needs_more_registers_its_own_part_first() {
    let (device, gate) = held_at(100);
    let cache = cache(&device, 64);
    thread::scope(|threads| {
        let first = threads.spawn(|| drop(take(&cache, 100, 4)));
        gate.await_waiting(1);
        let second = threads.spawn(|| parts(&take(&cache, 98, 8)));
        await_wait(&cache, 1);
        assert_eq!(device.counts().regs, 2, "the parts before and after");
        gate.open();
        first.join().unwrap();
        assert_eq!(second.join().unwrap(), [(98, 2, range(98, 2)), (100, 4, range(100, 4)), (104, 2, range(104, 2))]);
    });
    assert_eq!(device.counts().reg_attempts, 3);
}

#[test]
fn two_that_need_parts_of_each_other_both_get_them() {
    let device = device();
    let cache = builder(&device, 64).wait_timeout(Duration::from_secs(60)).build().unwrap();
    let mut numbers = Numbers(1);
    for _ in 0..200 {
        let shift = numbers.below(4);
        thread::scope(|threads| {
            threads.spawn(|| drop(take(&cache, 0, 8)));
            threads.spawn(|| drop(take(&cache, 8 - shift, 8)));
            threads.spawn(|| drop(take(&cache, 2, 12)));
        });
        cache.flush().unwrap();
        assert_eq!(device.counts().pages, 0);
    }
}

#[test]
fn wait_timeout_loses_nothing() {
    let (device, gate) = held_at(100);
    let cache = builder(&device, 64).wait_timeout(Duration::from_millis(30)).build().unwrap();
    thread::scope(|threads| {
        let first = threads.spawn(|| drop(take(&cache, 100, 4)));
        gate.await_waiting(1);
        let error = ask(&cache, 98, 4, Access::LOCAL).unwrap_err();
        let AcquireError::TimedOut { waited, .. } = error else { panic!("{error}") };
        assert!(waited >= Duration::from_millis(30));
        assert!(is_hit(&cache, 98, 2), "its own part it had registered");
        gate.open();
        first.join().unwrap();
    });
    assert!(is_hit(&cache, 98, 6));
}

#[test]
fn time_that_the_caller_took_is_no_waiting() {
    let device = device();
    let cache = builder(&device, 8).wait_timeout(Duration::from_secs(3)).build().unwrap();
    fill(&cache, 2, 4);
    // Everything leaves, and stays on its way until the gate is opened.
    let gate = gate_at(&device, |event| matches!(event, Event::Deregistering { .. }));
    let mut pending = begin_at(&cache, address(100), 4 * PAGE as usize, Access::LOCAL).unwrap();
    thread::sleep(Duration::from_millis(3010));
    thread::scope(|threads| {
        let flush = threads.spawn(|| cache.flush().unwrap());
        gate.await_waiting(1);
        let opener = threads.spawn(|| {
            thread::sleep(Duration::from_millis(50));
            gate.open();
        });
        drop(pending.finish().unwrap());
        flush.join().unwrap();
        opener.join().unwrap();
    });
}

#[test]
fn the_failure_of_one_is_not_handed_to_another() {
    let (device, gate) = held_at(100);
    let cache = cache(&device, 64);
    device.fail_register(Fault::next(1, libc::EFAULT));
    thread::scope(|threads| {
        let first = threads.spawn(|| ask(&cache, 100, 4, Access::LOCAL).map(drop));
        gate.await_waiting(1);
        let second = threads.spawn(|| parts(&take(&cache, 101, 2)));
        await_wait(&cache, 1);
        gate.open();
        assert!(matches!(first.join().unwrap(), Err(AcquireError::Register { attempts: 1, .. })));
        assert_eq!(second.join().unwrap(), [(101, 2, range(101, 2))], "planned and registered for itself");
    });
    assert_eq!((device.counts().reg_attempts, cache.counters().decisions.requests), (2, 2));
}

#[test]
fn the_placeholders_of_one_that_panics_are_taken_back() {
    let device = device();
    let gate = Gate::closed();
    let (held, calls) = (gate.clone(), AtomicUsize::new(0));
    device.on_call(move |event| {
        if matches!(event, Event::Registering { .. }) && calls.fetch_add(1, Ordering::Relaxed) == 0 {
            held.pass();
            panic!("told to");
        }
    });
    let cache = cache(&device, 8);
    thread::scope(|threads| {
        let first = threads.spawn(|| drop(take(&cache, 100, 8)));
        gate.await_waiting(1);
        let second = threads.spawn(|| drop(take(&cache, 100, 8)));
        await_wait(&cache, 1);
        gate.open();
        assert!(first.join().is_err());
        second.join().unwrap();
    });
    assert_eq!(cache.usage().pages, 8);
}

#[test]
fn pages_changed_in_flight_are_not_cached() {
    let (device, gate) = held_at(100);
    let cache = cache(&device, 64);
    thread::scope(|threads| {
        let first = threads.spawn(|| take(&cache, 100, 4));
        gate.await_waiting(1);
        cache.invalidate(address(103), 1).unwrap();
        gate.open();
        let lease = first.join().unwrap();
        assert_eq!(parts(&lease), [(100, 4, range(100, 4))], "its own lease has it");
        assert!(!is_hit(&cache, 100, 4));
        assert_eq!(cache.counters().changed_in_flight, 1);
        drop(lease);
    });
    assert_eq!((cache.reap().unwrap().regions, device.counts().regions), (1, 1));
    assert!(is_hit(&cache, 100, 4), "the second one is cached");
}

#[test]
fn waiter_on_invalidated_registers_anew() {
    let (device, gate) = held_at(100);
    let cache = cache(&device, 64);
    let keys = thread::scope(|threads| {
        let key = || take(&cache, 100, 4).segments().next().unwrap().registration().key;
        let first = threads.spawn(key);
        gate.await_waiting(1);
        let second = threads.spawn(key);
        await_wait(&cache, 1);
        cache.invalidate(address(100), 1).unwrap();
        gate.open();
        [first.join().unwrap(), second.join().unwrap()]
    });
    assert_ne!(keys[0], keys[1]);
    assert_eq!(device.counts().reg_attempts, 2);
}

#[test]
fn eviction_blocks_only_requests_needing_its_room() {
    let device = device();
    let cache = cache(&device, 64);
    fill(&cache, 12, 4);
    let gate = gate_at(&device, |event| matches!(event, Event::Deregistering { .. }));
    cache.invalidate(address(0), 4 * PAGE as usize).unwrap();
    thread::scope(|threads| {
        let reap = threads.spawn(|| cache.reap().unwrap());
        gate.await_waiting(1);
        assert!((1..12).all(|region| is_hit(&cache, region * 4, 4)));
        drop(take(&cache, 100, 16));
        let needy = threads.spawn(|| drop(take(&cache, 200, 4)));
        while !needy.is_finished() && cache.usage().pages < 64 {
            thread::yield_now();
        }
        assert!(device.counts().pages <= 64);
        gate.open();
        needy.join().unwrap();
        assert_eq!(reap.join().unwrap().regions, 1);
    });
    assert!(device.counts().peak_pages <= 64);
}

#[test]
fn segments_stay_few_when_what_was_waited_for_fails() {
    let (device, gate) = held_at(100);
    let cache = builder(&device, 64).max_segments(2).build().unwrap();
    let fault = Arc::new(AtomicUsize::new(0));
    let once = fault.clone();
    device.fail_register(Fault::when(libc::EFAULT, move |asked| {
        asked == range(100, 8) && once.fetch_add(1, Ordering::Relaxed) == 0
    }));
    thread::scope(|threads| {
        let first = threads.spawn(|| ask(&cache, 100, 8, Access::LOCAL).map(drop));
        gate.await_waiting(1);
        // Its own part, and one that it waits for. Meanwhile that one fails; what is there then is in pieces.
        let second = threads.spawn(|| parts(&take(&cache, 96, 12)));
        await_wait(&cache, 1);
        gate.open();
        assert!(first.join().unwrap().is_err());
        let parts = second.join().unwrap();
        assert!(parts.len() <= 2, "{parts:?}");
    });
}

#[test]
fn the_background_deregisters_unasked() {
    let device = device();
    let cache = builder(&device, 64).background(true).build().unwrap();
    fill(&cache, 4, 4);
    let lease = take(&cache, 0, 4);
    cache.invalidate(address(0), 8 * PAGE as usize).unwrap();
    // No call of ours but this reading of the device's books.
    while device.counts().regions > 3 {
        thread::yield_now();
    }
    drop(lease);
    while device.counts().regions > 2 {
        thread::yield_now();
    }
    assert!(is_hit(&cache, 8, 4) && is_hit(&cache, 12, 4));
}

#[test]
fn the_background_keeps_room_free() {
    let device = device();
    let cache = builder(&device, 100).background(true).headroom(0.05).build().unwrap();
    fill(&cache, 25, 4);
    while device.counts().pages > 95 {
        thread::yield_now();
    }
    drop(cache);
    assert_eq!(device.counts().pages, 0);
}

#[test]
fn dropped_cache_leaves_only_leased_regions() {
    for background in [false, true] {
        let device = device();
        let cache = builder(&device, 64).background(background).build().unwrap();
        fill(&cache, 8, 4);
        let lease = take(&cache, 6, 4);
        let counted: Vec<_> = (0..70).map(|_| take(&cache, 0, 4)).collect();
        drop(cache);
        assert_eq!((device.counts().regions, device.counts().pages), (3, 12), "at once");
        assert_eq!(parts(&lease), [(6, 2, range(4, 4)), (8, 2, range(8, 4))], "it is still registered");
        thread::spawn(move || drop((lease, counted))).join().unwrap();
        while device.counts().regions > 0 {
            thread::yield_now();
        }
    }
}

#[test]
fn caches_that_come_and_go_keep_apart() {
    // More caches than a thread has near at hand, over one device, with leases across their ends.
    let device = device();
    let mut held = Vec::new();
    let kept: Vec<_> = (0..6).map(|_| cache(&device, 16)).collect();
    for round in 0..20 {
        let short = cache(&device, 16);
        held.push(take(&short, round, 1));
        kept.iter().for_each(|cache| assert_eq!(is_hit(cache, 0, 4), round > 0));
    }
    assert_eq!(device.counts().regions, 26);
    drop(kept);
    assert_eq!(device.counts().regions, 20);
    drop(held);
    while device.counts().regions > 0 {
        thread::yield_now();
    }
}

/// Waits in its probe, and has no state of its own.
struct SlowProbe(Gate);

// SAFETY: there is no device; what is registered has no key.
unsafe impl Registrar for SlowProbe {
    type Registration = ();

    fn register(&self, _: PageRange, _: Access) -> io::Result<()> {
        Ok(())
    }

    fn probe(&self, _: PageRange, _: Access) -> io::Result<()> {
        self.0.pass();
        Ok(())
    }

    fn deregister(&self, batch: &mut Vec<Registered<()>>) -> io::Result<()> {
        batch.clear();
        Ok(())
    }

    fn limits(&self) -> Limits {
        Limits::NONE
    }

    fn name(&self) -> &'static str {
        "slow to probe"
    }
}

#[test]
fn dropped_cache_during_probe_leases_nothing() {
    let gate = Gate::closed();
    let registrar = SlowProbe(gate.clone());
    let cache = Cache::builder(registrar)
        .capacity_pages(4)
        .policy(mrrc::policy::PolicyKind::Mrrc)
        .monitor(Explicit)
        .ignore_environment()
        .build()
        .unwrap();
    let arena = cache.arena(8 * PAGE as usize).unwrap();
    drop(arena.acquire(0..PAGE as usize, Access::LOCAL).unwrap());
    thread::scope(|threads| {
        // A region has to leave for it, so it is probed first.
        let asker = threads.spawn(|| arena.acquire(PAGE as usize..5 * PAGE as usize, Access::LOCAL).map(drop));
        gate.await_waiting(1);
        drop(cache);
        gate.open();
        let answer = asker.join().unwrap();
        assert!(matches!(answer, Err(AcquireError::Unusable(Unusable::Closed))), "{answer:?}");
    });
}

/// Returns whether anything is mapped there.
#[cfg(target_os = "linux")]
fn is_mapped(memory: *mut u8, bytes: usize) -> bool {
    // SAFETY: `msync` with MS_ASYNC only asks whether all of these pages are mapped; it touches none.
    unsafe { libc::msync(memory.cast(), bytes, libc::MS_ASYNC) == 0 }
}

#[test]
#[cfg(target_os = "linux")]
fn dropped_arena_unmaps_despite_busy_reclaim() {
    let device = device();
    // A look at what others deregister is a short one.
    let wait_timeout = Duration::from_millis(10);
    let cache = builder(&device, 64).wait_timeout(wait_timeout).background(false).build().unwrap();
    fill(&cache, 2, 4);
    // So large that no other test of this process maps all of it once it is free again.
    let bytes = 64 << 20;
    let arena = cache.arena(bytes).unwrap();
    let memory = arena.as_ptr();
    let lease = arena.acquire(..8 * PAGE as usize, Access::LOCAL).unwrap();
    let gates = [Gate::closed(), Gate::closed()];
    let (held, next) = (gates.clone(), AtomicUsize::new(0));
    device.on_call(move |event| {
        if matches!(event, Event::Deregistering { pages: 4, .. })
            && let Some(gate) = held.get(next.fetch_add(1, Ordering::Relaxed))
        {
            gate.pass();
        }
    });
    thread::scope(|threads| {
        let leave = |region: u64| {
            cache.invalidate(address(region * 4), PAGE as usize).unwrap();
            cache.reap().unwrap();
        };
        let first = threads.spawn(move || leave(0));
        gates[0].await_waiting(1);
        drop(arena);
        drop(lease);
        cache.reap().unwrap();
        assert!(is_mapped(memory, bytes), "the first batch may have some of it");
        let second = threads.spawn(move || leave(1));
        gates[1].await_waiting(1);
        gates[0].open();
        first.join().unwrap();
        cache.reap().unwrap();
        let is_mapped = is_mapped(memory, bytes);
        gates[1].open();
        assert!(!is_mapped, "the second has none of it");
        second.join().unwrap();
    });
}
