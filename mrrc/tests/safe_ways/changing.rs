//! Changes that the program announces.

use super::*;

#[test]
fn change_hides_older_registrations() {
    let _alone = alone();
    let (model, cache) = explicit();
    let ask = || acquire(&cache, page(100), 3 * PAGE_BYTES, Access::LOCAL).map(drop).unwrap();
    ask();
    let change = cache.begin_change(page(102), 10).unwrap();
    ask();
    ask();
    acquire(&cache, page(200), PAGE_BYTES, Access::LOCAL).map(drop).unwrap();
    assert_eq!((model.counts().regs, cache.counters().discarded), (4, 2));
    drop(change);
    ask();
    ask();
    assert_eq!(model.counts().regs, 5);
    acquire(&cache, page(200), PAGE_BYTES, Access::LOCAL).map(drop).unwrap();
    assert_eq!(model.counts().regs, 5, "what does not change stays");
}

#[test]
fn registration_across_change_end_is_not_cached() {
    let _alone = alone();
    for begins_before in [true, false] {
        let (model, cache) = explicit();
        let gate = held(&model);
        let acquire = || acquire(&cache, page(100), PAGE_BYTES, Access::LOCAL).map(drop).unwrap();
        std::thread::scope(|scope| {
            let early = begins_before.then(|| scope.spawn(acquire));
            gate.await_waiting(usize::from(begins_before));
            let change = cache.begin_change(page(100), PAGE_BYTES).unwrap();
            let late = (!begins_before).then(|| scope.spawn(acquire));
            gate.await_waiting(1);
            drop(change);
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
    let acquire = || acquire(&cache, page(100), PAGE_BYTES, Access::LOCAL).map(drop).unwrap();
    let outer = cache.begin_change(page(90), 20 * PAGE_BYTES).unwrap();
    drop(cache.begin_change(page(100), PAGE_BYTES).unwrap());
    acquire();
    acquire();
    assert_eq!(model.counts().regs, 2);
    drop(outer);
    assert!(matches!(cache.begin_change(page(100), 0), Err(ChangeError::Range(_))));
}
