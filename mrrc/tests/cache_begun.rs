//! Requests that are begun and finished later: their holds meanwhile and afterwards, and the waits between them.

mod common;

use common::*;
use mrrc::cache::PendingLease;
use mrrc::testing::{Event, Fault};
use mrrc::{Access, AcquireError, Cache, PAGE};
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

fn begin(cache: &Cache<Device>, page: u64, pages: u64) -> PendingLease<'_, Device> {
    begin_at(cache, address(page), (pages * PAGE) as usize, Access::LOCAL).unwrap()
}

#[test]
fn failed_request_can_be_finished_again() {
    let device = device();
    let cache = cache(&device, 16);
    drop(take(&cache, 0, 4));
    let mut begun = begin(&cache, 0, 8);
    device.fail_register(Fault::always(libc::EFAULT));
    for _ in 0..2 {
        assert!(matches!(begun.finish(), Err(AcquireError::Register { .. })));
    }
    device.heal();
    let lease = begun.finish().unwrap();
    assert_eq!(parts(&lease), [(0, 4, range(0, 4)), (4, 4, range(4, 4))]);
    drop((lease, begun));
    assert_eq!(cache.flush().unwrap().pages, 8);
    assert_eq!((device.counts().pages, cache.usage().pages), (0, 0), "nothing is left held");
}

#[test]
fn a_request_that_timed_out_can_be_finished_once_more() {
    let device = device();
    let cache = builder(&device, 64).wait_timeout(Duration::from_millis(20)).build().unwrap();
    drop(take(&cache, 0, 4));
    let gate =
        gate_at(&device, |event| matches!(event, Event::Registering { range: asked, .. } if *asked == range(4, 4)));
    thread::scope(|threads| {
        let slow = threads.spawn(|| drop(take(&cache, 4, 4)));
        gate.await_waiting(1);
        let mut begun = begin(&cache, 0, 8);
        for _ in 0..2 {
            assert!(matches!(begun.finish(), Err(AcquireError::TimedOut { .. })));
        }
        gate.open();
        slow.join().unwrap();
        assert_eq!(parts(&begun.finish().unwrap()), [(0, 4, range(0, 4)), (4, 4, range(4, 4))]);
    });
}

#[test]
fn panicked_finish_can_be_repeated() {
    let device = device();
    let cache = cache(&device, 16);
    drop(take(&cache, 0, 4));
    let mut begun = begin(&cache, 0, 8);
    device.on_call(|event| assert!(!matches!(event, Event::Registering { .. }), "told to"));
    let finish = std::panic::AssertUnwindSafe(|| begun.finish().map(drop));
    assert!(std::panic::catch_unwind(finish).is_err());
    device.on_call(|_| {});
    assert_eq!(begun.finish().unwrap().segments().map(|segment| segment.len()).sum::<usize>(), 8 * PAGE as usize);
    drop(begun);
    cache.flush().unwrap();
    assert_eq!((device.counts().pages, cache.usage().pages), (0, 0));
}

#[test]
fn second_finish_reports_finished() {
    let device = device();
    let cache = cache(&device, 16);
    let mut begun = begin(&cache, 0, 8);
    let lease = begun.finish().unwrap();
    for _ in 0..2 {
        let error = begun.finish().unwrap_err();
        assert!(matches!(error, AcquireError::Finished { range: asked } if asked == range(0, 8)), "{error}");
    }
    assert_eq!(begun.ready().count(), 0);
    assert_eq!(parts(&lease), [(0, 8, range(0, 8))]);
}

#[test]
fn what_was_ready_is_the_leases_when_it_is_finished() {
    let device = device();
    let cache = cache(&device, 16);
    drop(take(&cache, 0, 4));
    let mut begun = begin(&cache, 0, 8);
    assert_eq!(begun.ready().count(), 1);
    let lease = begun.finish().unwrap();
    assert!(ask(&cache, 100, 16, Access::LOCAL).is_err(), "the lease has it");
    drop(lease);
    drop(take(&cache, 100, 16));
    drop(begun);
}

#[test]
fn crossing_begun_requests_do_not_wait() {
    let device = device();
    // A wait would last for good.
    let cache = builder(&device, 64).wait_timeout(Duration::from_secs(3600)).build().unwrap();
    let both = Barrier::new(2);
    thread::scope(|threads| {
        for (mine, theirs) in [(0, 10), (10, 0)] {
            let (cache, both) = (&cache, &both);
            threads.spawn(move || {
                let mut begun = begin(cache, mine, 4);
                both.wait();
                assert_eq!(parts(&take(cache, theirs, 4)), [(theirs, 4, range(theirs, 4))]);
                both.wait();
                assert_eq!(parts(&begun.finish().unwrap()), [(mine, 4, range(mine, 4))]);
            });
        }
    });
    assert!(is_hit(&cache, 0, 4) && is_hit(&cache, 10, 4), "what was begun is cached");
    let counted = cache.counters();
    assert_eq!((counted.attempts, counted.waits, counted.unwatched, counted.changed_in_flight), (4, 0, 0, 0));
}
