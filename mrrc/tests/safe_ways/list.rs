//! Lists: several ranges in one request.

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
    let leases = acquire_list(cache, buffers, access).unwrap();
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
fn neighbours_share_one_registration() {
    let _alone = alone();
    let (model, cache) = explicit();
    let arena = cache.arena(100 * PAGE_BYTES).unwrap();
    let asked = buffers(&arena, &[(20, 4), (0, 4), (5, 4), (25, 8), (21, 1), (60, 2)]);
    assert_eq!(acquired(&cache, &asked, Access::LOCAL), (3, 6));
    assert_eq!(cache.usage().pages, 9 + 13 + 2);
    let leases = acquire_list(&cache, &asked, Access::LOCAL).unwrap();
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
fn group_lease_holds_its_region_alone() {
    let _alone = alone();
    let (model, cache) = explicit();
    let arena = cache.arena(100 * PAGE_BYTES).unwrap();
    let asked = buffers(&arena, &[(0, 4), (5, 4), (10, 4)]);
    let mut leases = acquire_list(&cache, &asked, Access::LOCAL).unwrap();
    cache.flush().unwrap();
    while leases.len() > 1 {
        drop(leases.remove(0));
        cache.reap().unwrap();
        assert_eq!(registered(&model), 1);
    }
    leases.clear();
    cache.reap().unwrap();
    assert_eq!(registered(&model), 0);
}

#[test]
fn gaps_are_bridged_only_when_cheap_and_local() {
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
fn refused_group_is_acquired_one_by_one() {
    let _alone = alone();
    let (model, cache) = explicit();
    let arena = cache.arena(100 * PAGE_BYTES).unwrap();
    model.fail_register(Fault::when(libc::EFAULT, |range| range.pages() > 4));
    assert_eq!(acquired(&cache, &buffers(&arena, &[(0, 4), (5, 4), (10, 3)]), Access::LOCAL), (4, 3));
    assert_eq!((cache.usage().pages, registered(&model)), (11, 3));
}

#[test]
fn group_without_room_is_acquired_one_by_one() {
    let _alone = alone();
    let model = Model::new(Linear::PAPER);
    let cache = Cache::builder(model).capacity_pages(10).monitor(Explicit).ignore_environment().build().unwrap();
    let arena = cache.arena(100 * PAGE_BYTES).unwrap();
    let other = arena.acquire(50 * PAGE_BYTES..52 * PAGE_BYTES, Access::LOCAL).unwrap();
    assert_eq!(acquired(&cache, &buffers(&arena, &[(0, 4), (5, 4)]), Access::LOCAL), (2, 2));
    drop(other);
    let too_many = buffers(&arena, &[(0, 4), (5, 4), (20, 4)]);
    let refused = acquire_list(&cache, &too_many, Access::LOCAL);
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
    let refused = acquire_list(&cache, &asked, Access::LOCAL);
    assert!(matches!(refused, Err(AcquireError::Register { attempts: 1, .. })), "{refused:?}");
    cache.flush().unwrap();
    assert_eq!((registered(&model), cache.usage().retired), (0, 0));
    let empty = acquire_list(&cache, &[asked[0], (asked[1].0, 0)], Access::LOCAL);
    assert!(matches!(empty, Err(AcquireError::Range(_))));
    assert_eq!(registered(&model), 0, "looked at before anything is done");
}

#[test]
fn uncacheable_group_registers_once() {
    let _alone = alone();
    let (model, told, cache) = told();
    told.0.lock().unwrap().refuses = true;
    let arena = cache.arena(100 * PAGE_BYTES).unwrap();
    let asked = buffers(&arena, &[(0, 4), (5, 4), (10, 4)]);
    let mut leases = acquire_list(&cache, &asked, Access::LOCAL).unwrap();
    assert_eq!(model.counts().regs, 1);
    leases.truncate(1);
    cache.reap().unwrap();
    assert_eq!(registered(&model), 1);
    leases.clear();
    cache.reap().unwrap();
    assert_eq!(registered(&model), 0);
}

#[test]
fn group_reuses_cached_and_keeps_segment_limit() {
    let _alone = alone();
    for most in [1, 2, usize::MAX] {
        let model = Model::new(Linear::PAPER);
        let cache = Cache::builder(model.clone()).max_segments(most).monitor(Explicit).ignore_environment();
        let cache = cache.build().unwrap();
        let arena = cache.arena(100 * PAGE_BYTES).unwrap();
        drop(arena.acquire(2 * PAGE_BYTES..6 * PAGE_BYTES, Access::LOCAL).unwrap());
        let asked = buffers(&arena, &[(0, 4), (5, 8), (3, 1)]);
        let leases = acquire_list(&cache, &asked, Access::LOCAL).unwrap();
        assert!(leases.iter().all(|lease| lease.segments().count() <= most));
        assert_eq!(cache.counters().decisions.requests, 4, "at most {most}");
    }
}
