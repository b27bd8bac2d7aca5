//! Deregistration by batches: each is bounded, and frees what it had when it ends.

#![allow(unsafe_code, reason = "a registrar around another")]

mod common;

use common::{Device, ask, builder, device, fill, gate_at, range, take};
use mrrc::cache::Obstacle;
use mrrc::invalidation::Explicit;
use mrrc::registrar::{Limits, Registered, Registrar};
use mrrc::testing::Event;
use mrrc::{Access, AcquireError, Cache, PAGE, PageRange};
use std::io;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const REGIONS: u64 = 15_000;

/// Deregistrations wait here until the test permits as many regions as the batch has.
#[derive(Default)]
struct Permits {
    left: Mutex<(u64, u64)>,
    changed: Condvar,
}

impl Permits {
    fn of(device: &Device) -> Arc<Self> {
        let permits = Arc::new(Self::default());
        let gate = permits.clone();
        device.on_call(move |event| {
            if let &Event::Deregistering { regions, .. } = event {
                let mut left = gate.left.lock().unwrap();
                left.1 += 1;
                gate.changed.notify_all();
                while left.0 < regions {
                    left = gate.changed.wait(left).unwrap();
                }
                left.0 -= regions;
            }
        });
        permits
    }

    /// Permits everything when it is dropped: a test that fails ends.
    fn all_at_the_end(&self) -> impl Drop {
        struct All<'a>(&'a Permits);
        impl Drop for All<'_> {
            fn drop(&mut self) {
                self.0.give(1 << 40);
            }
        }
        All(self)
    }

    fn give(&self, regions: u64) {
        self.left.lock().unwrap().0 += regions;
        self.changed.notify_all();
    }

    /// Returns when so many batches have come.
    fn await_batches(&self, batches: u64) {
        until("another batch", || self.left.lock().unwrap().1 >= batches);
    }
}

/// Waits for what another thread does; not for ever.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(120), "{what} does not happen");
        thread::yield_now();
    }
}

#[test]
fn the_first_region_freed_serves_a_request() {
    let device = device();
    let cache = builder(&device, REGIONS).background(true).build().unwrap();
    fill(&cache, REGIONS, 1);
    let permits = Permits::of(&device);
    thread::scope(|threads| {
        let flush = threads.spawn(|| cache.flush().map(drop));
        let _all = permits.all_at_the_end();
        permits.await_batches(1);
        permits.give(1);
        until("a free page", || cache.usage().pages < REGIONS);
        let answer = ask(&cache, 100_000, 1, Access::LOCAL).map(drop);
        assert_eq!((answer.is_ok(), device.counts().deregs), (true, 1));
        permits.give(1 << 40);
        flush.join().unwrap().unwrap();
    });
    cache.flush().unwrap();
    assert_eq!((device.counts().regions, cache.usage().regions), (0, 0));
}

#[test]
fn requests_deregister_beside_another_thread() {
    let device = device();
    let cache = builder(&device, REGIONS).build().unwrap();
    fill(&cache, REGIONS, 1);
    let permits = Permits::of(&device);
    thread::scope(|threads| {
        let flush = threads.spawn(|| cache.flush().map(drop));
        let _all = permits.all_at_the_end();
        permits.await_batches(1);
        // Nothing is free yet: it begins a batch of its own.
        let request = threads.spawn(|| ask(&cache, 100_000, 1, Access::LOCAL).map(drop));
        permits.await_batches(2);
        assert_eq!(device.counts().deregs, 0);
        permits.give(1 << 40);
        request.join().unwrap().unwrap();
        flush.join().unwrap().unwrap();
    });
}

#[test]
fn a_request_deregisters_a_bounded_part() {
    let device = device();
    let cache = builder(&device, REGIONS).build().unwrap();
    fill(&cache, REGIONS, 1);
    cache.invalidate(common::address(0), (REGIONS * PAGE) as usize).unwrap();
    assert_eq!(cache.usage().leaving, REGIONS);
    // No other thread does it: sixteen batches of 256, at most.
    drop(take(&cache, 100_000, 1));
    let counts = device.counts();
    assert!(counts.deregs >= 1 && counts.deregs <= 16 * 256, "{counts:?}");
    // Later requests do the rest.
    (0..20_000).take_while(|&nth| (cache.usage().leaving > 0, drop(take(&cache, 200_000 + nth, 1))).0).count();
    assert_eq!(cache.usage().leaving, 0);
}

/// A device whose calls take no time by its own clock.
struct Clocked(Device);

// SAFETY: registrations are those of the device.
unsafe impl Registrar for Clocked {
    type Registration = <Device as Registrar>::Registration;

    fn register(&self, range: PageRange, access: Access) -> io::Result<Self::Registration> {
        self.0.register(range, access)
    }

    fn deregister(&self, batch: &mut Vec<Registered<Self::Registration>>) -> io::Result<()> {
        self.0.deregister(batch)
    }

    fn clock(&self) -> Option<Duration> {
        Some(Duration::ZERO)
    }

    fn limits(&self) -> Limits {
        self.0.limits()
    }

    fn name(&self) -> &'static str {
        "clocked"
    }
}

#[test]
fn batches_follow_the_registrars_own_clock() {
    let device = device();
    // Batches would stay small by the system's clock: they are slow, and single regions are not.
    device.on_call(|event| {
        if matches!(event, Event::Deregistering { regions: 2.., .. }) {
            thread::sleep(Duration::from_millis(5));
        }
    });
    let cache = Cache::builder(Clocked(device.clone()))
        .policy(mrrc::policy::PolicyKind::Mrrc)
        .capacity_pages(REGIONS)
        .monitor(Explicit)
        .ignore_environment();
    let cache = cache.build().unwrap();
    fill(&cache, REGIONS, 1);
    assert_eq!(cache.flush().unwrap().regions, REGIONS);
    let batches = device.counts().dereg_batches;
    assert!(batches < REGIONS / 256 + 16, "{batches} batches");
}

#[test]
fn a_quick_registrar_gets_large_batches() {
    let device = device();
    let cache = builder(&device, REGIONS).build().unwrap();
    fill(&cache, REGIONS, 1);
    assert_eq!(cache.flush().unwrap().regions, REGIONS);
    let counted = cache.counters();
    // 256 a batch is 59. Others may have had the CPU meanwhile, so that some took long.
    assert!(counted.dereg_batches < REGIONS / 16, "{counted}");
    assert_eq!(device.counts().regions, 0);
}

#[test]
fn timed_out_tells_of_deregistrations() {
    let device = device();
    let cache = builder(&device, 8).wait_timeout(Duration::from_millis(20)).build().unwrap();
    drop(take(&cache, 0, 4));
    let held = take(&cache, 100, 4);
    let gate = gate_at(&device, |event| matches!(event, Event::Deregistering { .. }));
    thread::scope(|threads| {
        let flush = threads.spawn(|| cache.flush().map(drop));
        gate.await_waiting(1);
        let error = ask(&cache, 200, 2, Access::LOCAL).unwrap_err();
        gate.open();
        flush.join().unwrap().unwrap();
        let AcquireError::TimedOut { obstacle, .. } = &error else { panic!("{error}") };
        let Obstacle::Deregistering { missing_pages, under_way_pages, under_way_regions, waiting_regions, .. } =
            *obstacle
        else {
            panic!("{error}")
        };
        assert_eq!((missing_pages, under_way_pages, under_way_regions, waiting_regions), (2, 4, 1, 0));
        let said = error.to_string();
        for part in
            ["4 pages and 1 region left the cache", "2 pages were missing", "MRRC_WAIT_TIMEOUT", "MRRC_HEADROOM"]
        {
            assert!(said.contains(part), "no {part} in {said}");
        }
    });
    drop(held);
}

#[test]
fn timed_out_tells_of_a_registration() {
    let device = device();
    let cache = builder(&device, 64).wait_timeout(Duration::from_millis(20)).build().unwrap();
    let gate = gate_at(&device, |event| matches!(event, Event::Registering { range, .. } if range.pages() == 4));
    thread::scope(|threads| {
        let first = threads.spawn(|| drop(take(&cache, 0, 4)));
        gate.await_waiting(1);
        let error = ask(&cache, 2, 4, Access::LOCAL).unwrap_err();
        gate.open();
        first.join().unwrap();
        let AcquireError::TimedOut { obstacle: Obstacle::Registering { range: part }, .. } = &error else {
            panic!("{error}")
        };
        assert!(range(0, 4).contains(*part), "{part}");
        assert!(error.to_string().contains(&format!("another thread registered {part}")), "{error}");
    });
}

#[test]
fn memory_of_an_arena_waits_for_its_batch() {
    let device = device();
    let cache = builder(&device, 4096).build().unwrap();
    let arena = cache.arena(100 * PAGE as usize).unwrap();
    for page in (0..100).step_by(2) {
        drop(arena.acquire(page * PAGE as usize..(page + 1) * PAGE as usize, Access::LOCAL).unwrap());
    }
    fill(&cache, 100, 1);
    cache.invalidate(common::address(0), 100 * PAGE as usize).unwrap();
    drop(arena);
    let usage = cache.usage();
    assert_eq!((usage.regions, usage.leaving, usage.retired, device.counts().regions), (0, 0, 0, 0));
}
