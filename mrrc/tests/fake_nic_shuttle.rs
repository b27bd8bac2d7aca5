//! A cache of one entry on a fake NIC, under shuttle: the instruments find a stale key in some schedule of a
//! broken protocol, and in none of a sound one.
//!
//! ```text
//! RUSTFLAGS="--cfg shuttle" cargo test -p mrrc --test fake_nic_shuttle
//! ```
#![cfg(shuttle)]

#[path = "common/by_hand.rs"]
mod by_hand;

use by_hand::ByHand;
use mrrc::invalidation::{Change, Reports};
use mrrc::registrar::{Registered, Registrar};
use mrrc::testing::{AddressSpace, FakeMonitor, FakeNic, Findings, Registration, Transfer};
use mrrc::{Access, PAGE, PageRange};
use shuttle::sync::Mutex;
use shuttle::sync::atomic::{AtomicUsize, Ordering};
use shuttle::thread;
use std::sync::Arc;

const SCHEDULES: usize = 2_000;

fn page() -> PageRange {
    PageRange::new(16, 1).unwrap()
}

fn register(nic: &FakeNic) -> std::io::Result<Registered<Registration>> {
    let (range, access) = (page(), Access::LOCAL);
    nic.register(range, access).map(|registration| Registered { range, access, registration })
}

/// Holds one registration, made before the threads start, and never another.
struct OneEntry {
    nic: FakeNic,
    entry: Mutex<Option<Registered<Registration>>>,
    retired: Mutex<Vec<Registered<Registration>>>,
    draining: AtomicUsize,
}

impl OneEntry {
    /// Uses the entry under its lock if it may, or a registration for this access alone.
    fn access(&self) {
        let began = self.nic.space().begin();
        let read = |registration: &Registered<Registration>| {
            self.nic.perform(&Transfer::read(registration.registration.key(), 16 * PAGE, 1), &began).unwrap();
        };
        let entry = self.entry.lock().unwrap();
        match entry.as_ref().filter(|_| self.draining.load(Ordering::SeqCst) == 0) {
            Some(registration) => read(registration),
            None => {
                drop(entry);
                if let Ok(registration) = register(&self.nic) {
                    read(&registration);
                    self.nic.deregister(&mut vec![registration]).unwrap();
                }
            }
        }
    }
}

impl Reports for OneEntry {
    fn raise(&self) {
        self.draining.fetch_add(1, Ordering::SeqCst);
    }

    fn apply(&self, changes: &[Change]) -> bool {
        let Ok(mut entry) = self.entry.try_lock() else { return false };
        if changes.iter().any(|change| change.range.overlaps(page())) {
            self.retired.lock().unwrap().extend(entry.take());
        }
        true
    }

    fn lower(&self) {
        self.draining.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Returns the card's findings over all schedules.
fn explore(monitor: fn(&AddressSpace) -> FakeMonitor, change: fn(&AddressSpace)) -> Findings {
    let seen = Arc::new(std::sync::Mutex::new(Findings::default()));
    let all = Arc::clone(&seen);
    let schedule = move || {
        let space = AddressSpace::new(16);
        space.map(page()).unwrap();
        let nic = FakeNic::new(&space);
        let monitor = monitor(&space);
        let (entry, retired) = (Mutex::new(None), Mutex::new(Vec::new()));
        let cache = Arc::new(OneEntry { nic: nic.clone(), entry, retired, draining: AtomicUsize::new(0) });
        monitor.start(cache.clone()).unwrap();
        monitor.watch(page());
        *cache.entry.lock().unwrap() = Some(register(&nic).unwrap());
        let racing = {
            let cache = Arc::clone(&cache);
            thread::spawn(move || cache.access())
        };
        change(&space);
        cache.access(); // began after the change has returned
        racing.join().unwrap();
        monitor.stop();
        let mut left = std::mem::take(&mut *cache.retired.lock().unwrap());
        left.extend(cache.entry.lock().unwrap().take());
        nic.deregister(&mut left).unwrap();
        assert_eq!((nic.pinned_pages(), space.pinned_pages()), (0, 0));
        let found = nic.findings();
        let mut all = all.lock().unwrap();
        all.stale += found.stale;
        all.racing += found.racing;
        all.transfers += found.transfers;
    };
    shuttle::check_random(schedule, SCHEDULES);
    let seen = seen.lock().unwrap();
    *seen
}

fn replace(space: &AddressSpace) {
    space.unmap(page());
    space.map(page()).unwrap();
}

#[test]
fn flag_before_read_leaves_nothing_stale() {
    for monitor in [FakeMonitor::threaded, FakeMonitor::inline] {
        for change in [replace, |space: &AddressSpace| space.remap(page(), 40).unwrap()] {
            let found = explore(monitor, change);
            assert_eq!(found.stale, 0);
            assert!(found.racing > 0, "some schedule comes close");
        }
    }
}

#[test]
fn without_the_flag_some_schedule_finds_the_old_pages() {
    assert!(explore(|space| FakeMonitor::threaded(space).never_raises(), replace).stale > 0);
}
