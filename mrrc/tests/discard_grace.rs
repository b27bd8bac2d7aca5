//! Pages that are being discarded are kept out of the cache, however long a registration of them takes.

#![allow(unsafe_code, reason = "memory is warmed by hand")]
#![cfg(not(any(loom, shuttle)))]

#[path = "common/told.rs"]
mod told;

use mrrc::cost::Linear;
use mrrc::invalidation::{Change, ChangeKind};
use mrrc::testing::{Event, Gate, Model};
use mrrc::{Access, Cache, PAGE, PageRange};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use told::Told;

const GRACE: Duration = Duration::from_millis(100);

#[test]
fn registration_outlasting_grace_is_not_cached() {
    loop {
        let (model, gate, begun) = (Model::new(Linear::PAPER), Gate::closed(), Arc::new(Mutex::new(None)));
        let (held, noted) = (gate.clone(), begun.clone());
        model.on_call(move |event| {
            if matches!(event, Event::Registering { .. }) {
                noted.lock().unwrap().get_or_insert_with(Instant::now);
                held.pass();
            }
        });
        let monitor = Told::default();
        let cache =
            Cache::builder(model).ignore_environment().monitor(monitor.clone()).discard_grace(GRACE).build().unwrap();
        let told = Instant::now();
        let range = PageRange::new(16, 1).unwrap();
        // SAFETY: `warm` restricts uses of the memory during later transfers; this test makes none.
        let warm = || unsafe { cache.warm((16 * PAGE) as *const u8, PAGE as usize, Access::LOCAL) }.unwrap();
        std::thread::scope(|threads| {
            // `madvise` has begun, and its event is read; the pages are still there when they are pinned.
            monitor.report(&[Change { range, kind: ChangeKind::Discarding }]);
            threads.spawn(warm);
            gate.await_waiting(1);
            // They go, and the grace period ends, while the registration goes on.
            std::thread::sleep(GRACE);
            gate.open();
        });
        let begun = begun.lock().unwrap().expect("a registration");
        if begun.duration_since(told) > GRACE {
            // A slow machine: it began after the grace period.
            continue;
        }
        let counters = cache.counters();
        assert_eq!((counters.attempts, counters.discarded, counters.changed_in_flight), (1, 1, 0));
        warm();
        assert_eq!(cache.counters().attempts, 2, "the old pages were not found");
        warm();
        assert_eq!(cache.counters().attempts, 2, "the new ones were");
        return;
    }
}
