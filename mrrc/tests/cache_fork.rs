//! A forked child has nothing of its parent's cache, by whatever call it was made, and can have one of its own.
//!
//! Children run under an alarm: one that waits for a lock that is never released dies of it. A child reports by
//! its exit status, the number of the first statement that does not hold.

#![cfg(target_os = "linux")]
#![allow(unsafe_code, reason = "it forks")]

mod common;

use common::*;
use mrrc::cache::{ChangeError, Unusable};
use mrrc::testing::{AddressSpace, Event, FakeMonitor, Gate};
use mrrc::{Access, AcquireError, Cache, PAGE};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex, MutexGuard, PoisonError};
use std::thread;

/// One test at a time: a raw clone beside other threads may find their allocator's locks held.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Fork {
    Fork,
    /// Past the C library and its hooks.
    RawClone,
}

/// Runs it in a child, which ends with its answer.
#[track_caller]
fn in_child(fork: Fork, run: impl FnOnce() -> i32) {
    // SAFETY: the child runs what it is given and ends. Allocators are fit for `fork`; what runs after a raw clone
    // beside other threads must not allocate.
    let child = unsafe {
        match fork {
            Fork::Fork => libc::fork(),
            Fork::RawClone => libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as libc::pid_t,
        }
    };
    if child == 0 {
        // SAFETY: numbers only; the process ends without its parent's destructors.
        unsafe {
            libc::alarm(5);
            libc::_exit(run());
        }
    }
    assert!(child > 0, "fork: {}", std::io::Error::last_os_error());
    let mut status = 0;
    // SAFETY: our child, and an integer to write to.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(!libc::WIFSIGNALED(status), "the child died of signal {}: it waited for a lock", libc::WTERMSIG(status));
    assert_eq!(libc::WEXITSTATUS(status), 0, "the first statement that does not hold in the child ({fork:?})");
}

fn is_forked<T>(result: Result<T, AcquireError>) -> bool {
    matches!(result, Err(AcquireError::Unusable(Unusable::Forked)))
}

/// Returns the number of the first that is false.
fn first_false(holds: &[bool]) -> i32 {
    holds.iter().position(|holds| !holds).map_or(0, |at| at as i32 + 1)
}

#[test]
fn a_child_is_told_so_and_changes_nothing() {
    let _alone = alone();
    for fork in [Fork::Fork, Fork::RawClone] {
        let device = device();
        let cache = builder(&device, 64).histograms(true).background(fork == Fork::Fork).build().unwrap();
        fill(&cache, 4, 4);
        let lease = take(&cache, 2, 4);
        let mut pending = begin_at(&cache, address(12), 8 * PAGE as usize, Access::LOCAL).unwrap();
        let before = device.counts();
        in_child(fork, || {
            let told = [
                is_forked(ask(&cache, 0, 4, Access::LOCAL)),
                is_forked(ask(&cache, 200, 4, Access::LOCAL)),
                is_forked(warm_at(&cache, address(0), 1, Access::LOCAL)),
                cache.invalidate(address(0), 1) == Err(ChangeError::Unusable(Unusable::Forked)),
                cache.reap() == Err(Unusable::Forked),
                cache.flush() == Err(Unusable::Forked),
                lease.segments().next().is_none(),
                lease.len() == 4 * PAGE as usize,
                pending.ready().next().is_none(),
                cache.usage() == mrrc::cache::Usage::default(),
                cache.latencies().is_none(),
                cache.explain(address(0), 1, Access::LOCAL).findings()
                    == [mrrc::cache::Finding::Unusable(Unusable::Forked)],
            ];
            drop(lease);
            let not_finished = is_forked(pending.finish());
            let after = device.counts();
            first_false(&[&told[..], &[not_finished, after == before]].concat())
        });
    }
}

#[test]
fn a_child_leaves_its_parent_as_it_was() {
    let _alone = alone();
    for fork in [Fork::Fork, Fork::RawClone] {
        let device = device();
        let cache = cache(&device, 16);
        fill(&cache, 4, 4);
        let lease = take(&cache, 0, 4);
        in_child(fork, || {
            // The drops too are the child's; the parent has its own.
            // SAFETY: both are forgotten in the child, which ends without running destructors.
            unsafe {
                drop(std::ptr::read(&lease));
                drop(std::ptr::read(&cache));
            }
            0
        });
        assert_eq!((device.counts().regions, parts(&lease).len()), (4, 1));
        assert!(all_hit(&cache, 4, 4));
        drop(lease);
        drop(take(&cache, 100, 16));
        assert_eq!(cache.flush().unwrap().pages, 16);
    }
}

#[test]
fn a_child_can_have_a_cache_of_its_own() {
    let _alone = alone();
    for fork in [Fork::Fork, Fork::RawClone] {
        let parents = cache(&device(), 16);
        fill(&parents, 4, 4);
        in_child(fork, || {
            let device = device();
            let own = cache(&device, 16);
            fill(&own, 4, 4);
            let hits = all_hit(&own, 4, 4);
            // Evictions, with the heavy barrier.
            (0..8).for_each(|region| drop(take(&own, 100 + region * 4, 4)));
            let evicted = device.counts().deregs >= 4;
            let lease = take(&own, 100, 4);
            let shown = lease.segments().count() == 1;
            drop(lease);
            drop(own);
            first_false(&[hits, evicted, shown, device.counts().pages == 0])
        });
        assert!(all_hit(&parents, 4, 4));
    }
}

#[test]
fn child_does_not_wait_for_parent_locks() {
    let _alone = alone();
    let device = device();
    let cache = builder(&device, 64).histograms(true).build().unwrap();
    fill(&cache, 4, 4);
    // Many threads' slots, so that reading them takes a while.
    let all = Barrier::new(100);
    thread::scope(|threads| {
        for _ in 0..100 {
            threads.spawn(|| {
                drop(take(&cache, 0, 4));
                all.wait();
            });
        }
    });
    let stop = AtomicBool::new(false);
    thread::scope(|threads| {
        for number in 0..2 {
            let (cache, stop) = (&cache, &stop);
            threads.spawn(move || {
                // Every lock that there is: of the state, of the threads' slots, of the histograms.
                while !stop.load(Ordering::Relaxed) {
                    cache.counters();
                    _ = ask(cache, number * 4, 4, Access::LOCAL);
                    cache.latencies();
                    _ = ask(cache, 100 + number * 40, 40, Access::LOCAL);
                }
            });
        }
        let _stop = StopAtEnd(&stop);
        for _ in 0..100 {
            // A thread that never used the cache, and so has no slots yet.
            threads
                .spawn(|| {
                    in_child(Fork::Fork, || {
                        let hit = is_forked(ask(&cache, 0, 4, Access::LOCAL));
                        let miss = is_forked(ask(&cache, 500, 4, Access::LOCAL));
                        first_false(&[hit, miss, cache.latencies().is_none(), cache.reap().is_err()])
                    });
                })
                .join()
                .unwrap();
        }
    });
}

struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn child_leaves_in_flight_registration_to_parent() {
    let _alone = alone();
    let device = device();
    let gate = gate_at(&device, |event| matches!(event, Event::Registering { .. }));
    let cache = cache(&device, 64);
    thread::scope(|threads| {
        let miss = threads.spawn(|| drop(take(&cache, 100, 4)));
        gate.await_waiting(1);
        in_child(Fork::Fork, || first_false(&[is_forked(ask(&cache, 100, 4, Access::LOCAL))]));
        gate.open();
        miss.join().unwrap();
    });
    assert!(is_hit(&cache, 100, 4));
}

#[test]
fn child_forked_in_change_does_not_wait() {
    let _alone = alone();
    let space = AddressSpace::new(64);
    space.map(range(0, 32)).unwrap();
    let monitor = FakeMonitor::stepped(&space);
    let device = device();
    let cache = Cache::builder(device.clone()).capacity_pages(64).monitor(monitor.clone()).background(false);
    let cache = cache.ignore_environment().build().unwrap();
    drop(take(&cache, 0, 4));
    let forked = std::sync::Arc::new(AtomicBool::new(false));
    thread::scope(|threads| {
        let (fork_here, done) = (Gate::closed(), forked.clone());
        let held = fork_here.clone();
        monitor.on_stage(move |stage| {
            if stage == mrrc::testing::Stage::Read {
                held.pass();
            }
        });
        threads.spawn(|| space.unmap(range(0, 4)));
        monitor.await_pending(1);
        let stepping = threads.spawn(|| monitor.step());
        fork_here.await_waiting(1);
        in_child(Fork::Fork, || first_false(&[is_forked(ask(&cache, 0, 4, Access::LOCAL))]));
        done.store(true, Ordering::Relaxed);
        fork_here.open();
        stepping.join().unwrap();
    });
    assert!(forked.load(Ordering::Relaxed));
    assert_eq!(cache.reap().unwrap().regions, 1, "the parent goes on");
}

/// Says when it ends.
struct Ending(mrrc::testing::NoopRegistrar, std::sync::Arc<AtomicBool>);

// SAFETY: it passes every call on to a registrar that keeps the contract.
unsafe impl mrrc::registrar::Registrar for Ending {
    type Registration = mrrc::testing::Registration;

    fn register(&self, range: mrrc::PageRange, access: Access) -> std::io::Result<Self::Registration> {
        self.0.register(range, access)
    }

    fn deregister(&self, batch: &mut Vec<mrrc::registrar::Registered<Self::Registration>>) -> std::io::Result<()> {
        self.0.deregister(batch)
    }

    fn limits(&self) -> mrrc::registrar::Limits {
        self.0.limits()
    }

    fn name(&self) -> &'static str {
        "ending"
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.1.store(true, Ordering::Relaxed);
    }
}

#[test]
fn an_arena_dropped_in_a_child_keeps_its_registrar() {
    let _alone = alone();
    for (fork, cache_goes_first) in [(Fork::Fork, false), (Fork::Fork, true), (Fork::RawClone, true)] {
        let ended = std::sync::Arc::new(AtomicBool::new(false));
        let registrar = Ending(mrrc::testing::NoopRegistrar::default(), ended.clone());
        let cache = Cache::builder(registrar).monitor(mrrc::invalidation::Explicit).ignore_environment();
        let mut cache = Some(cache.build().unwrap());
        let mut arena = Some(cache.as_ref().unwrap().arena(PAGE as usize).unwrap());
        if cache_goes_first {
            cache = None;
        }
        in_child(fork, || {
            drop(cache.take());
            drop(arena.take());
            first_false(&[!ended.load(Ordering::Relaxed)])
        });
        assert!(!ended.load(Ordering::Relaxed));
        drop((cache, arena));
        assert!(ended.load(Ordering::Relaxed), "the parent's ends");
    }
}
