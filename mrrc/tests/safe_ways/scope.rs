//! Scopes: a borrowed slice for a closure.

use super::*;

#[test]
fn unwatched_slice_is_registered_per_call() {
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
        assert_eq!((counters.unwatched, counters.changed_in_flight, counters.decisions.requests), (round, 0, round));
    }
}

#[test]
fn what_safe_code_left_behind_serves_no_slice() {
    let _alone = alone();
    let (model, cache) = explicit();
    let buffer = vec![0_u8; 50_000];
    warm(&cache, buffer.as_ptr(), buffer.len(), Access::LOCAL).unwrap();
    // As if it had been freed, and this were another.
    cache.with_slice(&buffer[5000..6000], |lease| assert_eq!(lease.len(), 1000)).unwrap();
    assert_eq!((model.counts().regs, registered(&model)), (2, 1));
    warm(&cache, buffer.as_ptr(), buffer.len(), Access::LOCAL).unwrap();
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
    acquire(&cache, buffer.as_ptr(), 50_000, Access::LOCAL | Access::REMOTE).map(drop).unwrap();
    cache.with_slice_mut(&mut buffer, drop_lease).unwrap();
    cache.with_slice_mut(&mut buffer, drop_lease).unwrap();
    assert_eq!(model.counts().regs, 2);
    acquire(&cache, buffer.as_ptr(), 50_000, Access::LOCAL).map(drop).unwrap();
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
    assert_eq!((registered(&model), cache.usage().retired, cache.usage().pages), (0, 0, 0));
}

#[test]
fn failed_registration_skips_the_closure() {
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
fn long_slice_takes_several_regions() {
    let _alone = alone();
    let model = Model::new(Linear::PAPER);
    model.limit(Limits { region_pages: Some(4), pages: Some(12), ..Limits::NONE });
    let cache = Cache::builder(model.clone()).monitor(Explicit).ignore_environment().build().unwrap();
    let buffer = vec![0_u8; 9 * PAGE_BYTES];
    for other in 0..3 {
        warm(&cache, page(1000 + 10 * other), 4 * PAGE_BYTES, Access::LOCAL).unwrap();
    }
    let covered = cache.with_slice(&buffer, |lease| lease.segments().map(|segment| segment.len()).sum::<usize>());
    assert_eq!(covered.unwrap(), buffer.len());
    assert!(cache.counters().peak_pages <= 12 && cache.usage().pages <= 4);
    cache.with_slice(&buffer[..1], |_| cache.with_slice(&buffer[..1], |_| ()).unwrap()).unwrap();
}
