//! Arenas: memory that the cache owns.

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
    let end = Instant::now() + Duration::from_secs(60);
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
fn same_bytes_register_once_without_monitor() {
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
    drop(acquire(&cache, last, 2 * PAGE_BYTES, Access::LOCAL).unwrap());
    drop(arena.acquire(2 * PAGE_BYTES.., Access::LOCAL).unwrap());
    let asked = told.0.lock().unwrap().asked.clone();
    assert_eq!(asked.iter().map(|range| range.pages()).collect::<Vec<_>>(), [2, 3]);
}

#[test]
fn dropped_arena_takes_registrations_and_memory() {
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
    assert_eq!((model.counts().regs, cache.counters().discarded), (3, 0));
    assert_eq!(next.acquire(..1 << 20, Access::LOCAL).map(drop).unwrap(), ());
    assert_eq!(model.counts().regs, 3, "the memory is cached like any other");
}

#[test]
fn a_lease_keeps_the_memory_of_an_arena_that_is_gone() {
    let _alone = alone();
    let (model, cache) = explicit();
    let arena = cache.arena(LARGE).unwrap();
    arena.write_at(0, b"still here").unwrap();
    let hit = arena.acquire(..PAGE_BYTES, Access::LOCAL).map(|_| arena.acquire(..10, Access::LOCAL).unwrap()).unwrap();
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
    assert_eq!((registered(&model), cache.usage().retired), (0, 0));
}

/// Memory in use is looked at again when a batch has ended, all of it in one go: to compare each arena with each region at each look
/// did not come to an end with three thousand.
#[test]
fn unmaps_many_arenas_when_their_leases_end() {
    let _alone = alone();
    let (model, cache) = explicit();
    let mut kept = Vec::new();
    for _ in 0..1500 {
        let arena = cache.arena(2 * PAGE_BYTES).unwrap();
        let lease = arena.acquire(.., Access::LOCAL).unwrap();
        let address = lease.segments().next().unwrap().address() as usize;
        kept.push((address, lease));
    }
    let is_mapped = |address: usize| {
        let mut pages = [0_u8; 2];
        // SAFETY: asks about a range of addresses, whatever is there.
        unsafe { libc::mincore(address as *mut _, pages.len() * PAGE_BYTES, pages.as_mut_ptr()) == 0 }
    };
    let addresses: Vec<_> = kept.iter().map(|&(address, _)| address).collect();
    while !kept.is_empty() {
        // Some at a time, from both ends.
        kept.drain(..kept.len().min(100));
        kept.truncate(kept.len().saturating_sub(100));
        cache.reap().unwrap();
        assert!(kept.iter().all(|&(address, _)| is_mapped(address)));
        assert_eq!(registered(&model), kept.len() as u64);
    }
    // The allocator may have mapped some anew.
    assert!(addresses.into_iter().filter(|&address| is_mapped(address)).count() < 200);
}

#[test]
fn memory_stays_mapped_until_deregistered() {
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
    assert_eq!((registered(&model), cache.usage().refused), (1, 1));
    model.heal();
    cache.reap().unwrap();
    assert!(!is_mapped(address));
    assert_eq!((registered(&model), cache.usage().refused), (0, 0));
}

#[test]
fn stale_region_is_not_found_in_new_arena() {
    let _alone = alone();
    let (model, cache) = explicit();
    // Freed by a program that does not say so: every address above may be the arena's.
    let old = cache.arena(LARGE).unwrap();
    let address = old.as_ptr().cast_const();
    drop(old);
    warm(&cache, address, LARGE, Access::LOCAL).unwrap();
    let new = cache.arena(LARGE).unwrap();
    if new.as_ptr().cast_const() != address {
        println!("not run: the system put the second arena elsewhere");
        return;
    }
    drop(new.acquire(..10, Access::LOCAL).unwrap());
    assert_eq!(model.counts().regs, 2, "served by pages that are gone");
}

#[test]
fn arena_without_cache_registers_nothing() {
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
fn in_flight_registration_outlives_its_cache() {
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
fn concurrent_drop_leaves_nothing() {
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
        let end = Instant::now() + Duration::from_secs(60);
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
fn arena_uses_whole_device_and_huge_pages() {
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
