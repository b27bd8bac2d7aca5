//! The ways into the cache besides plain acquiring: arenas, scopes, lists, and changes that the program announces.

#![allow(unsafe_code, reason = "memory is acquired, mapped and unmapped by address")]

use mrrc::cache::{ArenaError, ChangeError, OutsideArena, Unusable};
use mrrc::cost::Linear;
use mrrc::invalidation::{Explicit, Monitor, Reports, Unwatched, Watch};
use mrrc::registrar::Limits;
use mrrc::registrar::model::{Event, Fault, Gate, Model};
use mrrc::{Access, AcquireError, Arena, Cache, PAGE, PageRange};
use std::collections::HashSet;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What is mapped and pinned is of the whole process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

const PAGE_BYTES: usize = PAGE as usize;

/// Addresses that nothing is done with: the model registers whatever it is asked for.
fn page(number: usize) -> *const u8 {
    (number * PAGE_BYTES) as *const u8
}

/// A cache over a model, which the program tells of changes.
fn explicit() -> (Model, Cache<Model>) {
    let model = Model::new(Linear::PAPER);
    let cache = Cache::builder(model.clone()).capacity_pages(100_000).monitor(Explicit).ignore_environment();
    (model, cache.build().unwrap())
}

/// A cache over a model, with a monitor that watches.
fn told() -> (Model, Told, Cache<Model>) {
    let (model, told) = (Model::new(Linear::PAPER), Told::default());
    let cache = Cache::builder(model.clone()).capacity_pages(100_000).monitor(told.clone()).background(false);
    (model, told, cache.ignore_environment().build().unwrap())
}

/// Regions that are registered now.
fn registered(model: &Model) -> u64 {
    model.counts().regs - model.counts().deregs
}

/// Watches what a test tells it to, and notes what it was asked.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    asked: Vec<PageRange>,
    refuses: bool,
}

// SAFETY: there is no device.
unsafe impl Monitor for Told {
    fn name(&self) -> &'static str {
        "told"
    }

    unsafe fn start(&self, _: Arc<dyn Reports>) -> io::Result<()> {
        Ok(())
    }

    unsafe fn watch(&self, range: PageRange) -> Watch {
        let mut state = self.0.lock().unwrap();
        state.asked.push(range);
        if state.refuses { Watch::Unwatched(Unwatched::SharedMemory) } else { Watch::Watched }
    }
}

/// Holds the registrations of a model until the gate is opened.
fn held(model: &Model) -> Gate {
    let gate = Gate::closed();
    let passed = gate.clone();
    model.on_call(move |event| {
        if matches!(event, Event::Registering { .. }) {
            passed.pass();
        }
    });
    gate
}

#[test]
fn what_one_region_cannot_hold_is_cut_also_where_parts_are_few() {
    let _alone = alone();
    let model = Model::new(Linear::PAPER);
    model.limit(Limits { region_pages: Some(4), ..Limits::NONE });
    let cache = Cache::builder(model).max_segments(3).monitor(Explicit).ignore_environment().build().unwrap();
    for warm in [102, 107] {
        // SAFETY: no transfer is made.
        unsafe { cache.warm(page(warm), PAGE_BYTES, Access::LOCAL) }.unwrap();
    }
    // SAFETY: nothing is transferred.
    let lease = unsafe { cache.acquire(page(100), 12 * PAGE_BYTES, Access::LOCAL) }.unwrap();
    assert_eq!(lease.segments().count(), 3);
    // SAFETY: as above.
    let refused = unsafe { cache.acquire(page(200), 13 * PAGE_BYTES, Access::LOCAL) };
    assert!(matches!(refused, Err(AcquireError::TooLarge { .. })), "{refused:?}");
    let slice = vec![0; 13 * PAGE_BYTES];
    assert!(matches!(cache.with_slice(&slice, |_| ()), Err(AcquireError::TooLarge { .. })));
}

mod arena {
    use super::*;

    /// Larger than what a thread maps for itself: if all of it is mapped, it is the arena.
    const LARGE: usize = 64 << 20;

    fn is_mapped(address: *const u8) -> bool {
        let mut pages = vec![0_u8; LARGE / PAGE_BYTES];
        // SAFETY: asks about a range of addresses, whatever is there.
        unsafe { libc::mincore(address.cast_mut().cast(), LARGE, pages.as_mut_ptr()) == 0 }
    }

    /// The mapping goes when the last that was registered in it has been deregistered, which another thread may do.
    #[track_caller]
    fn goes(address: *const u8) {
        let end = Instant::now() + Duration::from_secs(10);
        while is_mapped(address) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!is_mapped(address));
    }

    #[test]
    fn what_is_written_is_read() {
        let _alone = alone();
        let (_, cache) = explicit();
        let arena = cache.arena(10_000).unwrap();
        assert_eq!(arena.len(), 12_288);
        let text: Vec<u8> = (0..1000).map(|n| n as u8).collect();
        for offset in [0, 1, 4095, 4097, arena.len() - text.len()] {
            arena.write_at(offset, &text).unwrap();
            let mut back = vec![0; text.len()];
            arena.read_at(offset, &mut back).unwrap();
            assert_eq!(back, text);
        }
        let mut none = [];
        arena.read_at(arena.len(), &mut none).unwrap();
        let mut fresh = [1; 8];
        cache.arena(1).unwrap().read_at(0, &mut fresh).unwrap();
        assert_eq!(fresh, [0; 8]);
    }

    #[test]
    fn what_lies_outside_is_an_error() {
        let _alone = alone();
        let (model, cache) = explicit();
        let arena = cache.arena(2 * PAGE_BYTES).unwrap();
        let outside = |start, end| OutsideArena { start, end, bytes: 2 * PAGE_BYTES };
        assert_eq!(arena.write_at(8190, &[0; 3]), Err(outside(8190, 8193)));
        assert_eq!(arena.read_at(usize::MAX, &mut [0; 3]), Err(outside(usize::MAX, usize::MAX)));
        assert!(matches!(
            arena.acquire(8000..9000, Access::LOCAL),
            Err(AcquireError::Outside(what)) if what == outside(8000, 9000)
        ));
        assert!(matches!(arena.acquire(..=usize::MAX, Access::LOCAL), Err(AcquireError::Outside(_))));
        assert!(matches!(arena.acquire(7..7, Access::LOCAL), Err(AcquireError::Range(_))));
        #[expect(clippy::reversed_empty_ranges, reason = "bad input")]
        let reversed = arena.acquire(9..7, Access::LOCAL);
        assert!(matches!(&reversed, Err(AcquireError::Outside(what)) if *what == outside(9, 7)));
        let said = reversed.unwrap_err().to_string();
        assert!(said.contains("bytes 9..7") && said.contains("ends before it begins"), "{said}");
        assert_eq!(model.counts().reg_attempts, 0);
        assert_eq!(arena.acquire(.., Access::LOCAL).unwrap().len(), 2 * PAGE_BYTES);

        assert!(matches!(cache.arena(0), Err(ArenaError::Size { bytes: 0 })));
        assert!(matches!(cache.arena(usize::MAX), Err(ArenaError::Size { .. })));
        assert!(matches!(cache.arena(isize::MAX as usize), Err(ArenaError::Size { .. } | ArenaError::Memory { .. })));
        let error = cache.arena(1 << 60).unwrap_err();
        assert!(error.to_string().contains("raise RLIMIT_AS"), "{error}");
    }

    #[test]
    fn the_same_bytes_are_registered_once_though_nobody_watches_them() {
        let _alone = alone();
        let (model, told, cache) = told();
        told.0.lock().unwrap().refuses = true;
        let arena = cache.arena(8 * PAGE_BYTES).unwrap();
        for _ in 0..3 {
            let lease = arena.acquire(100..5000, Access::LOCAL | Access::REMOTE_READ).unwrap();
            assert_eq!((lease.address().addr(), lease.len()), (arena.as_ptr().addr() + 100, 4900));
        }
        assert_eq!((model.counts().reg_attempts, cache.counters().decisions.hits()), (1, 2));
        assert_eq!((told.0.lock().unwrap().asked.len(), cache.counters().unwatched), (0, 0));
    }

    #[test]
    fn what_is_merged_with_memory_of_others_is_watched() {
        let _alone = alone();
        let told = Told::default();
        let cache = Cache::builder(Model::new(Linear::PAPER)).monitor(told.clone()).max_segments(1);
        let cache = cache.background(false).ignore_environment().build().unwrap();
        let arena = cache.arena(4 * PAGE_BYTES).unwrap();
        let last = arena.as_ptr().wrapping_add(3 * PAGE_BYTES);
        // SAFETY: nothing is transferred.
        drop(unsafe { cache.acquire(last, 2 * PAGE_BYTES, Access::LOCAL) }.unwrap());
        drop(arena.acquire(2 * PAGE_BYTES.., Access::LOCAL).unwrap());
        let asked = told.0.lock().unwrap().asked.clone();
        assert_eq!(asked.iter().map(|range| range.pages()).collect::<Vec<_>>(), [2, 3]);
    }

    #[test]
    fn an_arena_that_goes_takes_its_registrations_and_its_memory_along() {
        let _alone = alone();
        let (model, cache) = explicit();
        let arena = cache.arena(LARGE).unwrap();
        let address = arena.as_ptr();
        drop(arena.acquire(..1 << 20, Access::LOCAL).unwrap());
        drop(arena.acquire(2 << 20..3 << 20, Access::LOCAL).unwrap());
        assert!(is_mapped(address));
        assert_eq!((registered(&model), cache.usage().pages), (2, 512));
        drop(arena);
        assert!(!is_mapped(address));
        assert_eq!((registered(&model), cache.usage().pages), (0, 0));
        // Most likely at the same address.
        let next = cache.arena(LARGE).unwrap();
        drop(next.acquire(..1 << 20, Access::LOCAL).unwrap());
        assert_eq!((model.counts().regs, cache.counters().barred), (3, 0));
        assert_eq!(next.acquire(..1 << 20, Access::LOCAL).map(drop).unwrap(), ());
        assert_eq!(model.counts().regs, 3, "the memory is cached like any other");
    }

    #[test]
    fn a_lease_keeps_the_memory_of_an_arena_that_is_gone() {
        let _alone = alone();
        let (model, cache) = explicit();
        let arena = cache.arena(LARGE).unwrap();
        arena.write_at(0, b"still here").unwrap();
        let hit =
            arena.acquire(..PAGE_BYTES, Access::LOCAL).map(|_| arena.acquire(..10, Access::LOCAL).unwrap()).unwrap();
        let other = arena.acquire(2 * PAGE_BYTES..4 * PAGE_BYTES, Access::LOCAL).unwrap();
        drop(arena);
        let address = hit.address();
        assert!(is_mapped(address));
        assert_eq!((registered(&model), hit.segments().count()), (2, 1));
        // SAFETY: the lease keeps it mapped, and nothing is transferred.
        assert_eq!(unsafe { std::slice::from_raw_parts(address, 10) }, b"still here");
        drop(other);
        cache.reap().unwrap();
        assert!(is_mapped(address));
        assert_eq!(registered(&model), 1);
        std::thread::spawn(move || drop(hit)).join().unwrap();
        cache.reap().unwrap();
        assert!(!is_mapped(address));
        assert_eq!((registered(&model), cache.usage().lent), (0, 0));
    }

    #[test]
    fn memory_whose_registration_could_not_be_ended_stays_mapped_until_it_is() {
        let _alone = alone();
        let (model, cache) = explicit();
        let arena = cache.arena(LARGE).unwrap();
        let address = arena.as_ptr();
        let kept = PageRange::of_bytes(address.addr() as u64, PAGE_BYTES as u64).unwrap();
        drop(arena.acquire(..PAGE_BYTES, Access::LOCAL).unwrap());
        model.fail_deregister(Fault::always(libc::EBUSY));
        drop(arena);
        cache.reap().unwrap();
        assert!(is_mapped(address), "the device could still write there");
        // Another batch, in which it is not tried again.
        let other = cache.arena(LARGE).unwrap();
        (0..LARGE).step_by(LARGE / 2).for_each(|at| drop(other.acquire(at..at + LARGE / 2, Access::LOCAL).unwrap()));
        model.heal();
        model.fail_deregister(Fault::within(kept, libc::EBUSY));
        drop(other);
        assert!(is_mapped(address), "whatever else leaves");
        assert_eq!((registered(&model), cache.usage().parked), (1, 1));
        model.heal();
        cache.reap().unwrap();
        assert!(!is_mapped(address));
        assert_eq!((registered(&model), cache.usage().parked), (0, 0));
    }

    #[test]
    fn what_others_left_at_the_address_is_not_found_in_a_new_arena() {
        let _alone = alone();
        let (model, cache) = explicit();
        // Freed by a program that does not say so: every address above may be the arena's.
        let old = cache.arena(LARGE).unwrap();
        let address = old.as_ptr().cast_const();
        drop(old);
        // SAFETY: no transfer is made.
        unsafe { cache.warm(address, LARGE, Access::LOCAL) }.unwrap();
        let new = cache.arena(LARGE).unwrap();
        if new.as_ptr().cast_const() != address {
            println!("not run: the system put the second arena elsewhere");
            return;
        }
        drop(new.acquire(..10, Access::LOCAL).unwrap());
        assert_eq!(model.counts().regs, 2, "served by pages that are gone");
    }

    #[test]
    fn an_arena_whose_cache_is_gone_registers_nothing_more() {
        let _alone = alone();
        let (model, cache) = explicit();
        let arena = cache.arena(LARGE).unwrap();
        let lease = arena.acquire(..PAGE_BYTES, Access::LOCAL).unwrap();
        drop(arena.acquire(4 * PAGE_BYTES..5 * PAGE_BYTES, Access::LOCAL).unwrap());
        let address = arena.as_ptr();
        drop(cache);
        assert_eq!(registered(&model), 1, "what no lease has is deregistered");
        for range in [0..10, 4 * PAGE_BYTES..5 * PAGE_BYTES, 9 * PAGE_BYTES..10 * PAGE_BYTES] {
            let again = arena.acquire(range, Access::LOCAL);
            assert!(matches!(again, Err(AcquireError::Unusable(Unusable::Closed))), "{again:?}");
        }
        arena.write_at(0, b"mine").unwrap();
        drop(arena);
        assert!(is_mapped(address));
        drop(lease);
        goes(address);
        assert_eq!(registered(&model), 0);
    }

    #[test]
    fn what_is_being_registered_when_its_cache_goes_is_leased_and_deregistered_after_that() {
        let _alone = alone();
        let (model, cache) = explicit();
        let arena = cache.arena(LARGE).unwrap();
        let address = arena.as_ptr();
        let gate = held(&model);
        let lease = std::thread::scope(|scope| {
            let miss = scope.spawn(|| arena.acquire(..10, Access::LOCAL));
            gate.await_waiting(1);
            drop(cache);
            gate.open();
            miss.join().unwrap().unwrap()
        });
        drop(arena);
        assert!(is_mapped(address) && lease.segments().count() == 1);
        drop(lease);
        goes(address);
        assert_eq!(registered(&model), 0);
    }

    #[test]
    fn nothing_stays_when_cache_and_arena_go_while_threads_acquire() {
        let _alone = alone();
        for round in 0..30 {
            let (model, cache) = explicit();
            let arena = cache.arena(64 * PAGE_BYTES).unwrap();
            std::thread::scope(|scope| {
                for thread in 0..3_usize {
                    let arena = &arena;
                    scope.spawn(move || {
                        for step in 0.. {
                            let page = (thread * 7 + step * 5) % 60;
                            let range = page * PAGE_BYTES..(page + 1 + step % 4) * PAGE_BYTES;
                            match arena.acquire(range.clone(), Access::LOCAL) {
                                Ok(lease) => assert!(lease.segments().count() > 0),
                                Err(AcquireError::Unusable(Unusable::Closed)) => break,
                                Err(error) => panic!("{error}"),
                            }
                            arena.write_at(range.start, &[round; 9]).unwrap();
                        }
                    });
                }
                std::thread::sleep(Duration::from_micros(u64::from(round) * 30));
                drop(cache);
            });
            drop(arena);
            let end = Instant::now() + Duration::from_secs(10);
            while registered(&model) > 0 && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(registered(&model), 0);
        }
    }

    #[test]
    fn threads_may_read_and_write_the_same_bytes() {
        let _alone = alone();
        let (_, cache) = explicit();
        let arena = cache.arena(PAGE_BYTES).unwrap();
        std::thread::scope(|scope| {
            for byte in [1_u8, 2] {
                let arena = &arena;
                scope.spawn(move || (0..1000).for_each(|_| arena.write_at(3, &[byte; 999]).unwrap()));
            }
            let mut seen = [0; 999];
            for _ in 0..1000 {
                arena.read_at(3, &mut seen).unwrap();
                assert!(seen.iter().all(|byte| [0, 1, 2].contains(byte)));
            }
        });
    }

    #[test]
    fn pages_of_the_device_and_huge_pages_are_not_shared_with_others() {
        let _alone = alone();
        let model = Model::new(Linear::PAPER);
        model.limit(Limits { page_size: 64 << 10, ..Limits::NONE });
        let cache = Cache::builder(model).monitor(Explicit).ignore_environment().build().unwrap();
        let arena = cache.arena(1).unwrap();
        assert_eq!((arena.len(), arena.as_ptr().addr() % (64 << 10)), (64 << 10, 0));
        let huge = cache.huge_arena(1).unwrap();
        assert_eq!((huge.len(), huge.as_ptr().addr() % (2 << 20)), (2 << 20, 0));
        huge.write_at(huge.len() - 1, &[1]).unwrap();
    }
}

mod changing {
    use super::*;

    #[test]
    fn nothing_is_found_or_cached_from_before_the_change_until_after_it() {
        let _alone = alone();
        let (model, cache) = explicit();
        // SAFETY: nothing is transferred.
        let acquire = || unsafe { cache.acquire(page(100), 3 * PAGE_BYTES, Access::LOCAL) }.map(drop).unwrap();
        acquire();
        let changing = cache.changing(page(102), 10).unwrap();
        acquire();
        acquire();
        // SAFETY: as above.
        unsafe { cache.acquire(page(200), PAGE_BYTES, Access::LOCAL) }.map(drop).unwrap();
        assert_eq!((model.counts().regs, cache.counters().barred), (4, 2));
        drop(changing);
        acquire();
        acquire();
        assert_eq!(model.counts().regs, 5);
        // SAFETY: as above.
        unsafe { cache.acquire(page(200), PAGE_BYTES, Access::LOCAL) }.map(drop).unwrap();
        assert_eq!(model.counts().regs, 5, "what does not change stays");
    }

    #[test]
    fn what_is_registered_across_an_end_of_the_change_is_not_cached() {
        let _alone = alone();
        for begins_before in [true, false] {
            let (model, cache) = explicit();
            let gate = held(&model);
            // SAFETY: nothing is transferred.
            let acquire = || unsafe { cache.acquire(page(100), PAGE_BYTES, Access::LOCAL) }.map(drop).unwrap();
            std::thread::scope(|scope| {
                let early = begins_before.then(|| scope.spawn(acquire));
                gate.await_waiting(usize::from(begins_before));
                let changing = cache.changing(page(100), PAGE_BYTES).unwrap();
                let late = (!begins_before).then(|| scope.spawn(acquire));
                gate.await_waiting(1);
                drop(changing);
                gate.open();
                early.into_iter().chain(late).for_each(|thread| thread.join().unwrap());
            });
            acquire();
            assert_eq!(model.counts().regs, 2, "old pages are served");
            acquire();
            assert_eq!(model.counts().regs, 2);
        }
    }

    #[test]
    fn changes_nest() {
        let _alone = alone();
        let (model, cache) = explicit();
        // SAFETY: nothing is transferred.
        let acquire = || unsafe { cache.acquire(page(100), PAGE_BYTES, Access::LOCAL) }.map(drop).unwrap();
        let outer = cache.changing(page(90), 20 * PAGE_BYTES).unwrap();
        drop(cache.changing(page(100), PAGE_BYTES).unwrap());
        acquire();
        acquire();
        assert_eq!(model.counts().regs, 2);
        drop(outer);
        assert!(matches!(cache.changing(page(100), 0), Err(ChangeError::Range(_))));
    }
}

mod scope {
    use super::*;

    #[test]
    fn a_slice_that_nobody_watches_is_registered_for_the_call_alone() {
        let _alone = alone();
        let (model, cache) = explicit();
        let mut buffer = vec![0_u8; 50_000];
        for round in 1..=3 {
            let seen = cache
                .with_slice_mut(&mut buffer, |lease| {
                    assert_eq!((registered(&model), lease.segments().count()), (1, 1));
                    (lease.address().addr(), lease.len())
                })
                .unwrap();
            assert_eq!(seen, (buffer.as_ptr().addr(), buffer.len()));
            let counters = cache.counters();
            assert_eq!((model.counts().regs, registered(&model), cache.usage().pages), (round, 0, 0));
            assert_eq!((counters.unwatched, counters.overtaken, counters.decisions.requests), (round, 0, round));
        }
    }

    #[test]
    fn what_safe_code_left_behind_serves_no_slice() {
        let _alone = alone();
        let (model, cache) = explicit();
        let buffer = vec![0_u8; 50_000];
        // SAFETY: no transfer is made.
        unsafe { cache.warm(buffer.as_ptr(), buffer.len(), Access::LOCAL) }.unwrap();
        // As if it had been freed, and this were another.
        cache.with_slice(&buffer[5000..6000], |lease| assert_eq!(lease.len(), 1000)).unwrap();
        assert_eq!((model.counts().regs, registered(&model)), (2, 1));
        // SAFETY: no transfer is made.
        unsafe { cache.warm(buffer.as_ptr(), buffer.len(), Access::LOCAL) }.unwrap();
        assert_eq!(model.counts().regs, 2, "what was warm stays so");
    }

    #[test]
    fn a_slice_that_is_watched_is_cached() {
        let _alone = alone();
        let (model, _, cache) = told();
        let buffer = vec![0_u8; 50_000];
        for _ in 0..3 {
            cache.with_slice(&buffer, |lease| assert_eq!(lease.segments().count(), 1)).unwrap();
        }
        assert_eq!((model.counts().regs, registered(&model), cache.counters().decisions.hits()), (1, 1, 2));
    }

    #[test]
    fn a_region_that_peers_have_rights_to_serves_no_slice() {
        let _alone = alone();
        let (model, _, cache) = told();
        let mut buffer = vec![0_u8; 50_000];
        // SAFETY: nothing is transferred.
        unsafe { cache.acquire(buffer.as_ptr(), 50_000, Access::LOCAL | Access::REMOTE) }.map(drop).unwrap();
        cache.with_slice_mut(&mut buffer, drop_lease).unwrap();
        cache.with_slice_mut(&mut buffer, drop_lease).unwrap();
        assert_eq!(model.counts().regs, 2);
        // SAFETY: as above.
        unsafe { cache.acquire(buffer.as_ptr(), 50_000, Access::LOCAL) }.map(drop).unwrap();
        assert_eq!(model.counts().regs, 2);
    }

    fn drop_lease(_: &mrrc::Lease<Model>) {}

    #[test]
    fn a_panic_ends_the_lease() {
        let _alone = alone();
        let (model, cache) = explicit();
        let buffer = vec![0_u8; 5000];
        let result = catch_unwind(AssertUnwindSafe(|| cache.with_slice(&buffer, |_| panic!("on purpose"))));
        assert!(result.is_err());
        assert_eq!((registered(&model), cache.usage().lent, cache.usage().pages), (0, 0, 0));
    }

    #[test]
    fn what_cannot_be_registered_is_an_error_and_the_closure_does_not_run() {
        let _alone = alone();
        let (model, cache) = explicit();
        let mut buffer = vec![0_u8; 5000];
        let never = |_: &mrrc::Lease<Model>| unreachable!("there is no lease");
        assert!(matches!(cache.with_slice(&[], never), Err(AcquireError::Range(_))));
        model.fail_register(Fault::always(libc::EFAULT));
        assert!(matches!(cache.with_slice_mut(&mut buffer, never), Err(AcquireError::Register { .. })));
        model.heal();
        assert_eq!((cache.usage().pages, registered(&model)), (0, 0));
        let large = vec![0_u8; 100_001 * PAGE_BYTES];
        assert!(matches!(cache.with_slice(&large, never), Err(AcquireError::TooLarge { .. })));
        cache.with_slice(&buffer, |_| ()).unwrap();
    }

    #[test]
    fn a_slice_longer_than_a_region_takes_several_and_evicts_for_them() {
        let _alone = alone();
        let model = Model::new(Linear::PAPER);
        model.limit(Limits { region_pages: Some(4), pages: Some(12), ..Limits::NONE });
        let cache = Cache::builder(model.clone()).monitor(Explicit).ignore_environment().build().unwrap();
        let buffer = vec![0_u8; 9 * PAGE_BYTES];
        for other in 0..3 {
            // SAFETY: no transfer is made.
            unsafe { cache.warm(page(1000 + 10 * other), 4 * PAGE_BYTES, Access::LOCAL) }.unwrap();
        }
        let covered = cache.with_slice(&buffer, |lease| lease.segments().map(|segment| segment.len()).sum::<usize>());
        assert_eq!(covered.unwrap(), buffer.len());
        assert!(cache.counters().peak_pages <= 12 && cache.usage().pages <= 4);
        cache.with_slice(&buffer[..1], |_| cache.with_slice(&buffer[..1], |_| ()).unwrap()).unwrap();
    }
}

mod list {
    use super::*;

    /// Buffers of an arena: their first pages, and how many.
    fn buffers(arena: &Arena<Model>, of: &[(usize, usize)]) -> Vec<(*const u8, usize)> {
        let buffer = |&(first, pages): &(usize, usize)| {
            // A little inside of its pages.
            (arena.as_ptr().wrapping_add(first * PAGE_BYTES + 5).cast_const(), pages * PAGE_BYTES - 9)
        };
        of.iter().map(buffer).collect()
    }

    /// Acquires, and answers how many registrations were attempted and how many requests counted.
    fn acquired(cache: &Cache<Model>, buffers: &[(*const u8, usize)], access: Access) -> (u64, u64) {
        let before = cache.counters();
        // SAFETY: nothing is transferred.
        let leases = unsafe { cache.acquire_list(buffers, access) }.unwrap();
        assert_eq!(leases.iter().map(|lease| (lease.address(), lease.len())).collect::<Vec<_>>(), buffers);
        for lease in &leases {
            assert_eq!(lease.segments().map(|segment| segment.len()).sum::<usize>(), lease.len());
        }
        let after = cache.counters();
        (after.attempts - before.attempts, after.decisions.requests - before.decisions.requests)
    }

    fn key(lease: &mrrc::Lease<Model>) -> u64 {
        lease.segments().next().unwrap().registration().key()
    }

    #[test]
    fn neighbours_share_a_registration_and_each_gets_what_it_asked_for() {
        let _alone = alone();
        let (model, cache) = explicit();
        let arena = cache.arena(100 * PAGE_BYTES).unwrap();
        let asked = buffers(&arena, &[(20, 4), (0, 4), (5, 4), (25, 8), (21, 1), (60, 2)]);
        assert_eq!(acquired(&cache, &asked, Access::LOCAL), (3, 6));
        assert_eq!(cache.usage().pages, 9 + 13 + 2);
        // SAFETY: nothing is transferred.
        let leases = unsafe { cache.acquire_list(&asked, Access::LOCAL) }.unwrap();
        let keys: HashSet<u64> = leases.iter().map(key).collect();
        assert_eq!((keys.len(), key(&leases[1]), key(&leases[0])), (3, key(&leases[2]), key(&leases[4])));
        assert_eq!((model.counts().regs, cache.counters().decisions.hits()), (3, 6));
        // Each lease holds by itself.
        cache.flush().unwrap();
        assert_eq!(registered(&model), 3);
        drop(leases);
        cache.reap().unwrap();
        assert_eq!(registered(&model), 0);
    }

    #[test]
    fn a_lease_of_a_group_holds_its_region_when_the_others_are_gone() {
        let _alone = alone();
        let (model, cache) = explicit();
        let arena = cache.arena(100 * PAGE_BYTES).unwrap();
        let asked = buffers(&arena, &[(0, 4), (5, 4), (10, 4)]);
        // SAFETY: nothing is transferred.
        let mut leases = unsafe { cache.acquire_list(&asked, Access::LOCAL) }.unwrap();
        cache.flush().unwrap();
        while leases.len() > 1 {
            leases.remove(0);
            cache.reap().unwrap();
            assert_eq!(registered(&model), 1);
        }
        leases.clear();
        cache.reap().unwrap();
        assert_eq!(registered(&model), 0);
    }

    #[test]
    fn pages_between_are_registered_only_where_that_is_cheap_local_and_one_mapping() {
        let _alone = alone();
        let (_, cache) = explicit();
        let arena = cache.arena(100 * PAGE_BYTES).unwrap();
        let near = [(0, 4), (5, 4)];
        assert_eq!(acquired(&cache, &buffers(&arena, &near), Access::LOCAL | Access::REMOTE_READ), (2, 2));
        assert_eq!(acquired(&cache, &buffers(&arena, &[(20, 4), (26, 1)]), Access::LOCAL), (2, 2), "25 %");
        assert_eq!(acquired(&cache, &buffers(&arena, &[(30, 15), (55, 25)]), Access::LOCAL), (2, 2), "10 pages");
        // SAFETY: the arena's memory, which holds nothing; the protection of one page splits the mapping.
        let split = unsafe { libc::mprotect(arena.as_ptr().add(94 * PAGE_BYTES).cast(), PAGE_BYTES, libc::PROT_READ) };
        assert_eq!(split, 0);
        assert_eq!(acquired(&cache, &buffers(&arena, &[(90, 4), (95, 4)]), Access::LOCAL), (2, 2), "mappings");
        assert_eq!(acquired(&cache, &buffers(&arena, &near), Access::LOCAL), (0, 2), "owners are served by either");
        assert_eq!(acquired(&cache, &[], Access::LOCAL), (0, 0));
    }

    #[test]
    fn a_group_that_is_refused_is_acquired_one_by_one_and_counted_once() {
        let _alone = alone();
        let (model, cache) = explicit();
        let arena = cache.arena(100 * PAGE_BYTES).unwrap();
        model.fail_register(Fault::when(libc::EFAULT, |range| range.pages() > 4));
        assert_eq!(acquired(&cache, &buffers(&arena, &[(0, 4), (5, 4), (10, 3)]), Access::LOCAL), (4, 3));
        assert_eq!((cache.usage().pages, registered(&model)), (11, 3));
    }

    #[test]
    fn a_group_for_which_there_is_no_room_is_acquired_one_by_one() {
        let _alone = alone();
        let model = Model::new(Linear::PAPER);
        let cache = Cache::builder(model).capacity_pages(10).monitor(Explicit).ignore_environment().build().unwrap();
        let arena = cache.arena(100 * PAGE_BYTES).unwrap();
        let other = arena.acquire(50 * PAGE_BYTES..52 * PAGE_BYTES, Access::LOCAL).unwrap();
        assert_eq!(acquired(&cache, &buffers(&arena, &[(0, 4), (5, 4)]), Access::LOCAL), (2, 2));
        drop(other);
        let too_many = buffers(&arena, &[(0, 4), (5, 4), (20, 4)]);
        // SAFETY: nothing is transferred.
        let refused = unsafe { cache.acquire_list(&too_many, Access::LOCAL) };
        assert!(matches!(refused, Err(AcquireError::AllInUse { .. })));
        drop(arena.acquire(..10 * PAGE_BYTES, Access::LOCAL).unwrap());
    }

    #[test]
    fn a_list_is_acquired_whole_or_not_at_all() {
        let _alone = alone();
        let (model, cache) = explicit();
        let arena = cache.arena(100 * PAGE_BYTES).unwrap();
        let asked = buffers(&arena, &[(0, 4), (5, 4), (40, 4)]);
        let last = PageRange::of_bytes(asked[2].0 as u64, 1).unwrap();
        model.fail_register(Fault::within(last, libc::EFAULT));
        // SAFETY: nothing is transferred.
        let refused = unsafe { cache.acquire_list(&asked, Access::LOCAL) };
        assert!(matches!(refused, Err(AcquireError::Register { attempts: 1, .. })), "{refused:?}");
        cache.flush().unwrap();
        assert_eq!((registered(&model), cache.usage().lent), (0, 0));
        // SAFETY: as above.
        let empty = unsafe { cache.acquire_list(&[asked[0], (asked[1].0, 0)], Access::LOCAL) };
        assert!(matches!(empty, Err(AcquireError::Range(_))));
        assert_eq!(registered(&model), 0, "looked at before anything is done");
    }

    #[test]
    fn a_group_that_cannot_be_cached_is_registered_once_for_all_its_leases() {
        let _alone = alone();
        let (model, told, cache) = told();
        told.0.lock().unwrap().refuses = true;
        let arena = cache.arena(100 * PAGE_BYTES).unwrap();
        let asked = buffers(&arena, &[(0, 4), (5, 4), (10, 4)]);
        // SAFETY: nothing is transferred.
        let mut leases = unsafe { cache.acquire_list(&asked, Access::LOCAL) }.unwrap();
        assert_eq!(model.counts().regs, 1);
        leases.truncate(1);
        cache.reap().unwrap();
        assert_eq!(registered(&model), 1);
        leases.clear();
        cache.reap().unwrap();
        assert_eq!(registered(&model), 0);
    }

    #[test]
    fn what_is_there_is_used_and_the_number_of_segments_holds() {
        let _alone = alone();
        for most in [1, 2, usize::MAX] {
            let model = Model::new(Linear::PAPER);
            let cache = Cache::builder(model.clone()).max_segments(most).monitor(Explicit).ignore_environment();
            let cache = cache.build().unwrap();
            let arena = cache.arena(100 * PAGE_BYTES).unwrap();
            drop(arena.acquire(2 * PAGE_BYTES..6 * PAGE_BYTES, Access::LOCAL).unwrap());
            let asked = buffers(&arena, &[(0, 4), (5, 8), (3, 1)]);
            // SAFETY: nothing is transferred.
            let leases = unsafe { cache.acquire_list(&asked, Access::LOCAL) }.unwrap();
            assert!(leases.iter().all(|lease| lease.segments().count() <= most));
            assert_eq!(cache.counters().decisions.requests, 4, "at most {most}");
        }
    }
}

/// With pins of the kernel's.
#[cfg(all(feature = "io-uring", target_os = "linux"))]
mod pinned {
    use super::*;
    use ::io_uring::{IoUring, opcode, types};
    use mrrc::registrar::io_uring::IoUringBuffers;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;

    type Pinned = Cache<IoUringBuffers>;

    /// Or a line that says why there is none.
    fn cache() -> Option<(IoUring, Pinned)> {
        let made = IoUring::new(8).map_err(|error| error.to_string()).and_then(|ring| {
            let table = IoUringBuffers::new(&ring, 64).map_err(|error| error.to_string())?;
            Ok((ring, table))
        });
        let (ring, table) = match made {
            Ok(made) => made,
            Err(error) => {
                println!("not run: no fixed buffers of an io_uring here: {error}");
                return None;
            }
        };
        let cache = Cache::builder(table).monitor(Explicit).ignore_environment().build().unwrap();
        if cache.usage().capacity_pages < 256 {
            println!("not run: the process may lock too little");
            return None;
        }
        Some((ring, cache))
    }

    /// Pages that the kernel counts as pinned by this process.
    fn pins() -> u64 {
        let text = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("VmPin:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024 / PAGE
    }

    /// Older kernels unpin a little after a slot was cleared.
    #[track_caller]
    fn comes_to(pages: u64) {
        let end = Instant::now() + Duration::from_secs(10);
        while pins() != pages && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(pins(), pages, "pages pinned");
    }

    /// A mapping of small pages.
    fn map(pages: usize) -> *mut u8 {
        // SAFETY: a new mapping, over none that exists.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let mapped = libc::mmap(std::ptr::null_mut(), pages * PAGE_BYTES, protection, flags, -1, 0);
            assert_ne!(mapped, libc::MAP_FAILED);
            libc::madvise(mapped, pages * PAGE_BYTES, libc::MADV_NOHUGEPAGE);
            mapped.cast()
        }
    }

    fn unmap(address: *mut u8, pages: usize) {
        // SAFETY: the test's own mapping, of which there are no references.
        assert_eq!(unsafe { libc::munmap(address.cast(), pages * PAGE_BYTES) }, 0);
    }

    #[test]
    fn an_arena_takes_its_pins_along_and_a_lease_keeps_them() {
        let _alone = alone();
        let Some((_ring, cache)) = cache() else { return };
        let before = pins();
        let arena = cache.arena(40 * PAGE_BYTES).unwrap();
        let lease = arena.acquire(..3 * PAGE_BYTES, Access::LOCAL).unwrap();
        drop(arena.acquire(10 * PAGE_BYTES..20 * PAGE_BYTES, Access::LOCAL).unwrap());
        comes_to(before + 13);
        drop(arena);
        comes_to(before + 3);
        drop(lease);
        cache.reap().unwrap();
        comes_to(before);
    }

    #[test]
    fn what_a_device_writes_is_read_in_the_arena_that_has_the_address_now() {
        let _alone = alone();
        let Some((mut ring, cache)) = cache() else { return };
        // SAFETY: makes a file of no name.
        let file = unsafe { libc::memfd_create(c"mrrc".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(file >= 0);
        // SAFETY: the file was just opened, for this.
        let file: std::fs::File = unsafe { std::os::fd::FromRawFd::from_raw_fd(file) };
        // Again at the same address, most likely: the pins are those of the new memory.
        for round in 1..=3_u8 {
            let arena = cache.arena(4 * PAGE_BYTES).unwrap();
            file.write_all_at(&[round; 5000], 0).unwrap();
            let lease = arena.acquire(100..5100, Access::LOCAL).unwrap();
            let segment = lease.segments().next().unwrap();
            let (to, slot) = (segment.address().cast_mut(), segment.registration().index());
            let read = opcode::ReadFixed::new(types::Fd(file.as_raw_fd()), to, 5000, slot).build();
            // SAFETY: the lease keeps the memory until the completion is seen.
            unsafe { ring.submission().push(&read) }.unwrap();
            ring.submit_and_wait(1).unwrap();
            assert_eq!(ring.completion().next().map(|done| done.result()), Some(5000));
            let mut bytes = [9; 5002];
            arena.read_at(99, &mut bytes).unwrap();
            assert_eq!((bytes[0], bytes[5001]), (0, 0));
            assert!(bytes[1..5001].iter().all(|&byte| byte == round));
        }
    }

    #[test]
    fn a_slice_is_pinned_while_the_closure_runs() {
        let _alone = alone();
        let Some((_ring, cache)) = cache() else { return };
        let before = pins();
        let address = map(8);
        // SAFETY: the mapping is alone this test's, and this is the only reference to it.
        let slice = unsafe { std::slice::from_raw_parts_mut(address, 8 * PAGE_BYTES) };
        cache.with_slice_mut(slice, |_| comes_to(before + 8)).unwrap();
        comes_to(before);
        let panics = catch_unwind(AssertUnwindSafe(|| cache.with_slice(slice, |_| panic!("on purpose"))));
        assert!(panics.is_err());
        comes_to(before);
        unmap(address, 8);
        assert!(matches!(cache.with_slice(b"read-only memory", |_| ()), Ok(()) | Err(AcquireError::Register { .. })));
        comes_to(before);
    }

    #[test]
    fn memory_that_shrinks_is_registered_again_as_far_as_it_goes() {
        let _alone = alone();
        let Some((_ring, cache)) = cache() else { return };
        let before = pins();
        let address = map(16);
        // SAFETY: nothing is transferred.
        let acquire = |pages: usize| unsafe { cache.acquire(address, pages * PAGE_BYTES, Access::LOCAL) };
        drop(acquire(16).unwrap());
        comes_to(before + 16);
        let changing = cache.changing(address.wrapping_add(10 * PAGE_BYTES), 6 * PAGE_BYTES).unwrap();
        unmap(address.wrapping_add(10 * PAGE_BYTES), 6);
        drop(changing);
        let refused = acquire(16).unwrap_err();
        assert!(refused.to_string().contains("is not mapped"), "{refused}");
        drop(acquire(10).unwrap());
        assert_eq!(cache.counters().attempts, 3);
        comes_to(before + 10);
        unmap(address, 10);
        drop(cache);
        comes_to(before);
    }

    #[test]
    fn a_list_with_a_hole_is_pinned_one_by_one_and_without_in_one() {
        let _alone = alone();
        let Some((_ring, cache)) = cache() else { return };
        let before = pins();
        let address = map(18);
        let at = |page: usize| address.wrapping_add(page * PAGE_BYTES).cast_const();
        let list = [(at(9), 9 * PAGE_BYTES), (at(0), 8 * PAGE_BYTES)];
        // SAFETY: nothing is transferred.
        let leases = unsafe { cache.acquire_list(&list, Access::LOCAL) }.unwrap();
        let slots: Vec<_> =
            leases.iter().map(|lease| lease.segments().next().unwrap().registration().index()).collect();
        assert_eq!(slots[0], slots[1]);
        comes_to(before + 18);
        drop(leases);
        let changing = cache.changing(at(8), PAGE_BYTES).unwrap();
        unmap(at(8).cast_mut(), 1);
        drop(changing);
        // SAFETY: as above.
        drop(unsafe { cache.acquire_list(&list, Access::LOCAL) }.unwrap());
        assert_eq!(cache.counters().attempts, 3);
        comes_to(before + 17);
        drop(cache);
        comes_to(before);
        unmap(address, 8);
        unmap(at(9).cast_mut(), 9);
    }

    #[test]
    fn a_slice_that_is_freed_is_not_found_by_the_next_one_at_its_address() {
        use mrrc::invalidation::Userfaultfd;
        let _alone = alone();
        let Some((ring, _)) = cache() else { return };
        let monitor = match Userfaultfd::new() {
            Ok(monitor) => monitor,
            Err(error) => {
                println!("not run: {error}");
                return;
            }
        };
        let table = IoUringBuffers::new(&IoUring::new(8).unwrap(), 64).unwrap();
        drop(ring);
        let cache = Cache::builder(table).monitor(monitor).ignore_environment().build().unwrap();
        let mut addresses = HashSet::new();
        for round in 1..=4 {
            let address = map(8);
            addresses.insert(address);
            // SAFETY: the mapping is alone this test's, and this is the only reference to it.
            let slice = unsafe { std::slice::from_raw_parts(address, 8 * PAGE_BYTES) };
            cache.with_slice(slice, |_| ()).unwrap();
            cache.with_slice(slice, |_| ()).unwrap();
            let counters = cache.counters();
            assert_eq!((counters.attempts, counters.decisions.hits(), counters.unwatched), (round, round, 0));
            unmap(address, 8);
        }
        println!("{} addresses in 4 rounds", addresses.len());
    }
}
