//! Changes that the program announces.

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
