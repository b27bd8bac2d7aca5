//! The registrars without hardware, through the public interface: what the fake NIC catches, what the model
//! counts and costs, and how the fake monitor reports.
#![cfg(not(any(loom, shuttle)))]

#[path = "common/by_hand.rs"]
mod by_hand;

use by_hand::ByHand;
use mrrc::cost::Linear;
use mrrc::invalidation::{Change, ChangeKind, Reports, Unwatched, Watch};
use mrrc::registrar::{Limits, Registered, Registrar};
use mrrc::testing::{
    AddressSpace, Event, FakeMonitor, FakeNic, Fault, Gate, Landing, Model, Moment, NoopRegistrar, Refused, SpaceError,
    Stage, Transfer,
};
use mrrc::{Access, Config, Core, PAGE, PageRange, Part, RegionId};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::{io, thread};

fn pages(start: u64, pages: u64) -> PageRange {
    PageRange::new(start, pages).unwrap()
}

/// Registers, and remembers what.
fn register<R: Registrar>(registrar: &R, range: PageRange, access: Access) -> io::Result<Registered<R::Registration>> {
    registrar.register(range, access).map(|registration| Registered { range, access, registration })
}

fn errno<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

/// Returns an address space with pages 16 to 32 mapped, and a card.
fn machine() -> (AddressSpace, FakeNic) {
    let space = AddressSpace::new(256);
    space.map(pages(16, 16)).unwrap();
    let nic = FakeNic::new(&space);
    (space, nic)
}

mod landings {
    use super::*;

    fn landing(nic: &FakeNic, key: u64, page: u64) -> Landing {
        let read = Transfer::read(key, page * PAGE, 1);
        nic.perform(&read, &nic.space().begin()).unwrap()[0].landing
    }

    #[test]
    fn transfer_reaches_current_pages() {
        let (space, nic) = machine();
        let registration = register(&nic, pages(16, 4), Access::LOCAL).unwrap();
        let write = Transfer::write(registration.registration.key(), 17 * PAGE - 1, 2, 7);
        let landed = nic.perform(&write, &space.begin()).unwrap();
        assert_eq!(landed.iter().map(|page| page.page).collect::<Vec<_>>(), [16, 17]);
        assert!(landed.iter().all(|page| page.landing == Landing::Current && page.mapped == Some(page.frame)));
        assert_eq!([15, 16, 17, 18].map(|page| space.load(page)), [None, Some(7), Some(7), Some(0)]);
        space.store(pages(18, 1), 9).unwrap();
        let read = Transfer::read(registration.registration.key(), 18 * PAGE, PAGE);
        assert_eq!(nic.perform(&read, &space.begin()).unwrap()[0].word, 9);
    }

    #[test]
    fn key_is_stale_after_each_kind_of_change() {
        type Way = fn(&AddressSpace);
        let ways: [(Way, bool); 5] = [
            (|space| space.unmap(pages(16, 1)), false),
            (|space| space.discard(pages(16, 1)).unwrap(), true),
            (|space| space.remap(pages(16, 1), 100).unwrap(), false),
            (|space| space.remap(pages(20, 1), 16).unwrap(), true),
            (|space| space.map(pages(16, 1)).unwrap(), true),
        ];
        for (change, mapped) in ways {
            let (space, nic) = machine();
            let registration = register(&nic, pages(16, 2), Access::LOCAL).unwrap();
            assert_eq!(landing(&nic, registration.registration.key(), 16), Landing::Current);
            space.store(pages(20, 1), 0).unwrap();
            let before = space.begin();
            change(&space);
            let write = Transfer::write(registration.registration.key(), 16 * PAGE, 2 * PAGE, 7);
            let landed = nic.perform(&write, &space.begin()).unwrap();
            assert_eq!([landed[0].landing, landed[1].landing], [Landing::Stale, Landing::Current]);
            assert_eq!(space.load(16), mapped.then_some(0), "what was written is lost");
            assert_eq!(space.load(17), Some(7));
            if mapped {
                space.store(pages(16, 1), 9).unwrap();
                assert_eq!(
                    landing(&nic, registration.registration.key(), 16),
                    Landing::Stale,
                    "another frame is there by now"
                );
            }
            let racing = nic.perform(&write, &before).unwrap();
            assert_eq!([racing[0].landing, racing[1].landing], [Landing::Racing, Landing::Current]);
            assert_eq!((nic.findings().stale, nic.findings().racing), (1 + u64::from(mapped), 1));
            nic.deregister(&mut vec![registration]).unwrap();
            space.unmap(PageRange::EVERYTHING);
            assert_eq!((space.frames(), nic.findings().pages), (0, 5 + u64::from(mapped)));
        }
    }

    #[test]
    fn access_begun_during_change_is_not_stale() {
        let (space, nic) = machine();
        let registration = register(&nic, pages(16, 1), Access::LOCAL).unwrap();
        let read = Transfer::read(registration.registration.key(), 16 * PAGE, 1);
        let before = space.begin();
        let during = Arc::new(Mutex::new(Vec::new()));
        let (noted, watcher) = (Arc::clone(&during), space.clone());
        space.listen(move |_| noted.lock().unwrap().push(watcher.begin()));
        space.unmap(pages(16, 1));
        let after = space.begin();
        let during = during.lock().unwrap();
        assert_eq!(during.len(), 2, "one before the pages went, one after");
        let landings = [&before, &during[0], &during[1], &after].map(|at| nic.perform(&read, at).unwrap()[0].landing);
        assert_eq!(landings, [Landing::Racing, Landing::Racing, Landing::Racing, Landing::Stale]);
    }

    #[test]
    fn change_elsewhere_does_not_excuse_staleness() {
        let (space, nic) = machine();
        let registration = register(&nic, pages(16, 1), Access::LOCAL).unwrap();
        space.unmap(pages(16, 1));
        let (watcher, card, key) = (space.clone(), nic.clone(), registration.registration.key());
        space.listen(move |announced| {
            if announced.moment == Moment::After {
                let read = Transfer::read(key, 16 * PAGE, 1);
                assert_eq!(card.perform(&read, &watcher.begin()).unwrap()[0].landing, Landing::Stale);
            }
        });
        space.unmap(pages(20, 1));
        assert_eq!(nic.findings().stale, 1);
    }

    #[test]
    fn moved_mapping_is_current_only_in_place() {
        let (space, nic) = machine();
        let old = register(&nic, pages(16, 1), Access::LOCAL).unwrap();
        space.remap(pages(16, 1), 100).unwrap();
        let new = register(&nic, pages(100, 1), Access::LOCAL).unwrap();
        assert_eq!(landing(&nic, old.registration.key(), 16), Landing::Stale);
        assert_eq!(landing(&nic, new.registration.key(), 100), Landing::Current);
        space.remap(pages(100, 1), 16).unwrap();
        assert_eq!(landing(&nic, old.registration.key(), 16), Landing::Current);
        assert_eq!(landing(&nic, new.registration.key(), 100), Landing::Stale);
        let away = space.begin();
        space.remap(pages(16, 1), 200).unwrap();
        let read = Transfer::read(old.registration.key(), 16 * PAGE, 1);
        assert_eq!(nic.perform(&read, &away).unwrap()[0].landing, Landing::Racing, "the last change counts");
    }

    #[test]
    fn pins_survive_unmapping_until_deregistered() {
        let (space, nic) = machine();
        space.store(pages(16, 2), 5).unwrap();
        let mut batch = vec![register(&nic, pages(16, 2), Access::LOCAL).unwrap()];
        batch.push(register(&nic, pages(17, 2), Access::LOCAL).unwrap());
        space.unmap(pages(16, 16));
        assert_eq!((nic.pinned_pages(), space.pinned_pages(), space.frames()), (4, 4, 3));
        let read = Transfer::read(batch[0].registration.key(), 16 * PAGE, 2 * PAGE);
        let landed = nic.perform(&read, &space.begin()).unwrap();
        assert!(landed.iter().all(|page| page.word == 5 && page.mapped.is_none()));
        space.map(pages(16, 16)).unwrap();
        space.store(pages(16, 16), 6).unwrap();
        assert!((16..32).all(|page| landed.iter().all(|pinned| space.frame(page) != Some(pinned.frame))));
        nic.deregister(&mut batch).unwrap();
        assert_eq!((nic.pinned_pages(), nic.registrations(), space.pinned_pages()), (0, 0, 0));
        space.unmap(PageRange::EVERYTHING);
        assert_eq!(space.frames(), 0, "nothing is left behind");
    }

    #[test]
    fn fork_gives_the_child_new_pages() {
        let (space, nic) = machine();
        space.store(pages(16, 2), 5).unwrap();
        let registration = register(&nic, pages(16, 2), Access::LOCAL).unwrap();
        let child = space.fork();
        assert_eq!((child.load(16), child.load(31), child.load(32)), (Some(5), Some(0), None));
        assert_ne!(child.frame(16), space.frame(16));
        let write = Transfer::write(registration.registration.key(), 16 * PAGE, 2 * PAGE, 7);
        let landed = nic.perform(&write, &space.begin()).unwrap();
        assert!(landed.iter().all(|page| page.landing == Landing::Current));
        assert_eq!((space.load(16), child.load(16)), (Some(7), Some(5)));
        child.unmap(pages(16, 16));
        assert_eq!((nic.pinned_pages(), child.frames(), space.load(17)), (2, 0, Some(7)));
        let card = FakeNic::new(&child);
        let write = card.perform(&write, &child.begin());
        assert_eq!(
            write,
            Err(Refused::Unknown { key: registration.registration.key() }),
            "a parent's key is no key of the child"
        );
        assert_eq!(card.findings().unknown, 1);
    }
}

mod refusals {
    use super::*;

    #[test]
    fn dead_key_is_refused_for_ever() {
        let (space, nic) = machine();
        let registration = register(&nic, pages(16, 1), Access::LOCAL).unwrap();
        let key = registration.registration.key();
        nic.deregister(&mut vec![registration]).unwrap();
        let again = register(&nic, pages(16, 1), Access::LOCAL).unwrap();
        assert_ne!(again.registration.key(), key);
        let use_it = |key| nic.perform(&Transfer::read(key, 16 * PAGE, 1), &space.begin());
        assert_eq!(use_it(key), Err(Refused::Deregistered { key }));
        assert_eq!(use_it(again.registration.key() + 1), Err(Refused::Unknown { key: again.registration.key() + 1 }));
        assert_eq!(use_it(0), Err(Refused::Unknown { key: 0 }));
        assert_eq!((nic.findings().deregistered, nic.findings().unknown), (1, 2));
    }

    #[test]
    fn a_transfer_stays_inside_its_registration() {
        let (space, nic) = machine();
        let key = register(&nic, pages(17, 2), Access::LOCAL).unwrap().registration.key();
        let read = |address, length| nic.perform(&Transfer::read(key, address, length), &space.begin()).is_ok();
        assert!(read(17 * PAGE, 2 * PAGE) && read(19 * PAGE - 1, 1));
        let outside = [(17 * PAGE - 1, 2), (19 * PAGE - 1, 2), (17 * PAGE, 0), (u64::MAX, 2), (0, u64::MAX)];
        assert!(outside.iter().all(|&(address, length)| !read(address, length)));
        assert_eq!(nic.findings().outside, 5);
    }

    #[test]
    fn a_transfer_needs_its_right() {
        let (space, nic) = machine();
        for granted in [Access::empty(), Access::LOCAL_WRITE, Access::REMOTE_READ, Access::LOCAL | Access::REMOTE_WRITE]
        {
            let key = register(&nic, pages(16, 1), granted).unwrap().registration.key();
            let (read, write) = (Transfer::read(key, 16 * PAGE, 1), Transfer::write(key, 16 * PAGE, 1, 3));
            let ways = [read, write, read.by_peer(), write.by_peer()];
            let allowed = ways.map(|transfer| nic.perform(&transfer, &space.begin()).is_ok());
            let wanted = [Access::LOCAL_READ, Access::LOCAL_WRITE, Access::REMOTE_READ, Access::REMOTE_WRITE];
            assert_eq!(allowed, wanted.map(|right| (granted | Access::LOCAL_READ).contains(right)), "{granted}");
        }
        assert_eq!(nic.findings().rights, 3 + 2 + 2 + 1);
    }

    #[test]
    fn unmapped_and_full_memory_are_distinct_errors() {
        let space = AddressSpace::new(8);
        let nic = FakeNic::new(&space);
        space.map(pages(16, 4)).unwrap();
        assert_eq!(errno(register(&nic, pages(15, 2), Access::LOCAL)), Some(libc::EFAULT));
        assert_eq!(errno(register(&nic, pages(19, 2), Access::LOCAL)), Some(libc::EFAULT));
        assert_eq!(errno(register(&nic, PageRange::EVERYTHING, Access::LOCAL)), Some(libc::EFAULT));
        let mut batch = vec![register(&nic, pages(16, 4), Access::LOCAL).unwrap()];
        assert_eq!(space.map(pages(100, 5)), Err(SpaceError::Full { range: pages(100, 5) }));
        // Unmapped but pinned memory still takes room.
        space.unmap(pages(16, 4));
        space.map(pages(16, 8)).unwrap();
        assert_eq!(errno(register(&nic, pages(16, 5), Access::LOCAL)), Some(libc::ENOMEM));
        assert_eq!((nic.registrations(), space.pinned_pages(), space.frames()), (1, 4, 4), "all or nothing");
        nic.deregister(&mut batch).unwrap();
        assert!(register(&nic, pages(16, 5), Access::LOCAL).is_ok());
    }

    #[test]
    fn a_card_leaves_the_registrations_of_another() {
        let (space, nic) = machine();
        let other = FakeNic::new(&space);
        let mut batch = vec![register(&nic, pages(16, 1), Access::LOCAL).unwrap()];
        batch.push(register(&other, pages(16, 1), Access::LOCAL).unwrap());
        assert_ne!(batch[0].registration.key(), batch[1].registration.key());
        let theirs = batch[1].registration.key();
        assert_eq!(errno(nic.deregister(&mut batch)), Some(libc::EINVAL));
        assert_eq!((batch.len(), batch[0].registration.key(), nic.findings().foreign), (1, theirs, 1));
        other.deregister(&mut batch).unwrap();
        assert_eq!(space.pinned_pages(), 0);
    }

    #[test]
    fn an_address_space_says_what_it_cannot_do() {
        let (space, _) = machine();
        assert_eq!(space.discard(pages(15, 2)), Err(SpaceError::Unmapped { range: pages(15, 2) }));
        assert_eq!(space.store(PageRange::EVERYTHING, 1), Err(SpaceError::Unmapped { range: PageRange::EVERYTHING }));
        assert_eq!(space.remap(pages(40, 1), 50), Err(SpaceError::Unmapped { range: pages(40, 1) }));
        for to in [15, 17, u64::MAX, (1 << 52) - 1] {
            assert_eq!(space.remap(pages(16, 2), to), Err(SpaceError::Target { from: pages(16, 2), to }));
        }
        let error = space.remap(pages(16, 2), 17).unwrap_err().to_string();
        assert!(error.contains("choose a target"), "{error}");
    }
}

mod books {
    use super::*;

    /// Drives a core over a registrar as [`mrrc::Outcome`] says: batches first, gaps then.
    fn drive<R: Registrar>(core: &mut Core, registrar: &R, trace: impl IntoIterator<Item = PageRange>) {
        let mut held: HashMap<RegionId, Registered<R::Registration>> = HashMap::new();
        for asked in trace {
            let outcome = core.request(asked).unwrap();
            for batch in outcome.batches() {
                let mut batch: Vec<_> = batch.iter().map(|gone| held.remove(&gone.region).unwrap()).collect();
                registrar.deregister(&mut batch).unwrap();
            }
            for segment in outcome.parts() {
                if let Part::Gap { region: Some(region), range, access } = *segment {
                    held.insert(region, register(registrar, range, access).unwrap());
                }
            }
        }
    }

    fn requests(n: u64) -> impl Iterator<Item = PageRange> {
        let mut random = 1u64;
        (0..n).map(move |_| {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            pages(1 + (random >> 33) % 400, 1 + (random >> 20) % 7)
        })
    }

    #[test]
    fn virtual_clock_matches_core_costs() {
        for cost in [Linear::PAPER, Linear::IO_URING] {
            let mut core = Core::new(&Config::new(128)).unwrap();
            let space = AddressSpace::new(512);
            space.map(pages(1, 410)).unwrap();
            let nic = FakeNic::new(&space);
            let model = Model::over(cost, nic.clone());
            model.limit(Limits { pages: Some(128), ..Limits::NONE });
            drive(&mut core, &model, requests(5_000));
            let (said, counted) = (core.counters(), model.counts());
            assert!(said.dereg_batches > 100 && said.deregs > said.dereg_batches, "the trace does something");
            assert_eq!(model.clock_us(), said.cost(&cost).total_us());
            assert_eq!((counted.regs, counted.reg_pages), (said.regs, said.reg_pages));
            assert_eq!((counted.deregs, counted.dereg_batches), (said.deregs, said.dereg_batches));
            assert_eq!((counted.peak_pages, counted.pages), (said.peak_pages, core.used_pages()));
            assert_eq!((nic.pinned_pages(), nic.registrations()), (core.used_pages(), core.used_regions()));
        }
    }

    #[test]
    fn a_request_under_way_is_in_the_books_already() {
        let (space, nic) = machine();
        let model = Model::over(Linear::PAPER, nic);
        let (gate, held) = (Gate::closed(), Gate::closed());
        let waits = (gate.clone(), held.clone());
        model.on_call(move |event| match event {
            Event::Registered { done, .. } => {
                assert!(*done);
                waits.0.pass();
            }
            Event::Deregistering { .. } => waits.1.pass(),
            _ => {}
        });
        thread::scope(|scope| {
            let register = scope.spawn(|| register(&model, pages(16, 4), Access::LOCAL).unwrap());
            gate.await_waiting(1);
            let under_way = (model.counts().pages, space.pinned_pages());
            gate.open(); // so that what fails below fails, and does not hang
            let registration = register.join().unwrap();
            assert_eq!(under_way, (4, 4));
            let deregister = scope.spawn(|| model.deregister(&mut vec![registration]).unwrap());
            held.await_waiting(1);
            let under_way = (model.counts().dereg_attempts, model.counts().pages);
            held.open();
            deregister.join().unwrap();
            assert_eq!(under_way, (1, 4));
        });
        let counts = model.counts();
        assert_eq!((counts.pages, counts.peak_pages, counts.peak_regions), (0, 4, 1));
    }

    #[test]
    fn faults_compose_and_the_first_that_strikes_speaks() {
        let (_, nic) = machine();
        let model = Model::over(Linear::PAPER, nic.clone());
        model.fail_register(Fault::within(pages(16, 1), libc::EFAULT));
        model.fail_register(Fault::next(1, libc::ENOMEM));
        model.fail_register(Fault::when(libc::EINVAL, |range| range.pages() == 3));
        let try_it = |start, count| errno(register(&model, pages(start, count), Access::LOCAL));
        assert_eq!(try_it(16, 2), Some(libc::EFAULT));
        assert_eq!([try_it(18, 3), try_it(18, 3), try_it(18, 2)], [Some(libc::ENOMEM), Some(libc::EINVAL), None]);
        model.fail_register(Fault::always(0).of_kind(io::ErrorKind::OutOfMemory));
        let error = register(&model, pages(20, 1), Access::LOCAL).unwrap_err();
        assert_eq!((error.kind(), error.raw_os_error()), (io::ErrorKind::OutOfMemory, None));
        model.heal();
        assert_eq!(try_it(16, 3), None);
        assert_eq!(try_it(40, 1), Some(libc::EFAULT), "the card has errors of its own");
        let counts = model.counts();
        assert_eq!((counts.reg_attempts, counts.regs, counts.pages, nic.pinned_pages()), (7, 2, 5, 5));
        assert_eq!(model.clock_us(), counts.cost(&Linear::PAPER).total_us(), "what fails takes no time");
    }

    #[test]
    fn threads_that_fail_by_chance_leave_balanced_books() {
        let (space, nic) = machine();
        let model = Model::over(Linear::PAPER, nic.clone());
        model.limit(Limits { regions: Some(6), pages: Some(20), ..Limits::NONE });
        model.fail_register(Fault::chance(0.2, 1, libc::EAGAIN));
        model.fail_deregister(Fault::chance(0.2, 2, libc::EIO));
        thread::scope(|scope| {
            for thread in 0..4u64 {
                let model = model.clone();
                scope.spawn(move || {
                    let mut batch = Vec::new();
                    for n in 0..2_000 {
                        let range = pages(16 + (n + thread) % 12, 1 + n % 4);
                        batch.extend(register(&model, range, Access::LOCAL));
                        if n % 3 == 0 {
                            let _ = model.deregister(&mut batch);
                        }
                    }
                    while model.deregister(&mut batch).is_err() {}
                });
            }
        });
        let counts = model.counts();
        assert_eq!((counts.pages, counts.regions, nic.pinned_pages(), space.pinned_pages()), (0, 0, 0, 0));
        assert_eq!((counts.regs, counts.reg_pages), (counts.deregs, counts.dereg_pages));
        assert!(counts.regs < counts.reg_attempts && counts.dereg_failures > 0);
        assert!(counts.peak_pages <= 20 && counts.peak_regions <= 6);
        assert_eq!(nic.findings(), Default::default());
    }

    #[test]
    fn a_dummy_never_gives_a_key_twice() {
        let dummy = NoopRegistrar::with_limits(Limits { regions: Some(1), ..Limits::NONE });
        assert_eq!(dummy.limits().regions, Some(1));
        let keys = Mutex::new(HashSet::new());
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut batch: Vec<_> =
                        (0..500).map(|_| register(&dummy, pages(1, 2), Access::LOCAL_WRITE).unwrap()).collect();
                    keys.lock().unwrap().extend(batch.iter().map(|registration| registration.registration.key()));
                    dummy.deregister(&mut batch).unwrap();
                    assert!(batch.is_empty());
                });
            }
        });
        assert_eq!(keys.lock().unwrap().len(), 2_000);
    }
}

mod monitors {
    use super::*;

    /// A cache that only writes down what it hears.
    #[derive(Default)]
    struct Heard {
        log: Mutex<Vec<String>>,
        /// How often it is busy before it listens.
        busy: AtomicU64,
    }

    impl Heard {
        fn say(&self, what: impl Into<String>) {
            self.log.lock().unwrap().push(what.into());
        }

        fn log(&self) -> Vec<String> {
            self.log.lock().unwrap().clone()
        }
    }

    impl Reports for Heard {
        fn raise(&self) {
            self.say("raise");
        }

        fn apply(&self, changes: &[Change]) -> bool {
            if self.busy.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok() {
                self.say("busy");
                return false;
            }
            for change in changes {
                let how = if change.kind == ChangeKind::Gone { "gone" } else { "discarding" };
                self.say(format!("{how} {:?}", change.range));
            }
            true
        }

        fn lower(&self) {
            self.say("lower");
        }
    }

    fn started(monitor: FakeMonitor) -> (FakeMonitor, Arc<Heard>) {
        let heard = Arc::new(Heard::default());
        monitor.start(heard.clone()).unwrap();
        (monitor, heard)
    }

    #[test]
    fn each_change_is_reported_once_and_in_order() {
        let (space, _) = machine();
        for monitor in [FakeMonitor::inline(&space), FakeMonitor::threaded(&space)] {
            space.unmap(PageRange::EVERYTHING);
            space.map(pages(16, 16)).unwrap();
            let (monitor, heard) = started(monitor);
            assert_eq!(monitor.watch(pages(16, 16)), Watch::Watched);
            space.unmap(pages(16, 1));
            space.discard(pages(17, 2)).unwrap();
            space.remap(pages(20, 2), 40).unwrap();
            space.map(pages(41, 1)).unwrap(); // in place of what moved there, with its watch
            monitor.stop();
            space.unmap(pages(22, 1)); // no listener
            let gone = ["gone 16..17", "discarding 17..19", "gone 20..22 gone 40..42", "gone 41..42"];
            let log = heard.log().join(" ");
            assert_eq!(log, gone.map(|gone| format!("raise {gone} lower")).join(" "));
            assert_eq!(monitor.events(), 4);
            assert_eq!(Arc::strong_count(&heard), 1, "a monitor that has stopped lets go of its cache");
        }
    }

    #[test]
    fn a_new_mapping_must_be_watched_anew() {
        let (space, _) = machine();
        let (monitor, heard) = started(FakeMonitor::inline(&space));
        monitor.refuse(pages(30, 1), Unwatched::File);
        assert_eq!(monitor.watch(pages(31, 2)), Watch::Unwatched(Unwatched::Unmapped));
        assert_eq!(monitor.watch(pages(29, 2)), Watch::Unwatched(Unwatched::File));
        space.unmap(pages(20, 2));
        assert_eq!(monitor.watch(pages(16, 2)), Watch::Watched);
        space.unmap(pages(16, 1));
        space.map(pages(16, 1)).unwrap();
        space.unmap(pages(16, 1)); // not watched
        space.map(pages(16, 1)).unwrap();
        assert_eq!(monitor.watch(pages(16, 1)), Watch::Watched);
        space.unmap(pages(16, 1));
        space.unmap(pages(17, 3)); // the first of them is watched
        assert_eq!(
            heard.log().join(" "),
            [16..17, 16..17, 17..20].map(|gone| format!("raise gone {gone:?} lower")).join(" ")
        );
        monitor.unwatch(pages(16, 2));
        assert_eq!(monitor.watches(), (2, 1));
        assert!(monitor.start(heard).is_err(), "one cache");
    }

    #[test]
    fn unmap_waits_for_read_and_discard_keeps_pages() {
        let (space, _) = machine();
        let (monitor, heard) = started(FakeMonitor::stepped(&space));
        let gate = Gate::closed();
        let (held, seen) = (gate.clone(), Arc::new(Mutex::new(Vec::new())));
        let stages = Arc::clone(&seen);
        monitor.on_stage(move |stage| {
            stages.lock().unwrap().push(stage);
            if stage == Stage::Read {
                held.pass();
            }
        });
        assert_eq!(monitor.watch(pages(16, 16)), Watch::Watched);
        space.store(pages(16, 16), 7).unwrap();
        assert!(!monitor.step(), "nothing to do");
        thread::scope(|scope| {
            let unmap = scope.spawn(|| space.unmap(pages(16, 1)));
            let discard = scope.spawn(|| space.discard(pages(20, 1)));
            monitor.await_pending(2);
            let waiting = (space.load(16), space.load(20), unmap.is_finished(), discard.is_finished());
            let step = scope.spawn(|| monitor.step());
            gate.await_waiting(1);
            // Read, and not applied: both calls return.
            unmap.join().unwrap();
            discard.join().unwrap().unwrap();
            let returned = (space.load(20), heard.log());
            gate.open(); // so that what fails below fails, and does not hang
            assert!(step.join().unwrap());
            assert_eq!(waiting, (None, Some(7), false, false), "gone, and not gone yet");
            assert_eq!(returned, (Some(0), vec!["raise".to_owned()]));
        });
        assert_eq!(*seen.lock().unwrap(), [Stage::Raised, Stage::Read, Stage::Applied, Stage::Lowered]);
        let mut log = heard.log();
        log[1..3].sort();
        assert_eq!(log, ["raise", "discarding 20..21", "gone 16..17", "lower"]);
        monitor.stop();
    }

    #[test]
    fn a_cache_whose_lock_is_taken_is_asked_again() {
        let (space, _) = machine();
        let (monitor, heard) = started(FakeMonitor::inline(&space));
        assert_eq!(monitor.watch(pages(16, 16)), Watch::Watched);
        heard.busy.store(2, Ordering::Relaxed);
        space.unmap(pages(16, 1));
        assert_eq!(heard.log(), ["raise", "busy", "busy", "gone 16..17", "lower"]);
        monitor.stop();
    }

    #[test]
    fn a_broken_monitor_applies_and_never_raises() {
        let (space, _) = machine();
        let (monitor, heard) = started(FakeMonitor::inline(&space).never_raises());
        assert_eq!(monitor.watch(pages(16, 16)), Watch::Watched);
        space.unmap(pages(17, 1));
        assert_eq!(heard.log(), ["gone 17..18"]);
        monitor.stop();
    }

    /// Its lock is held by a thread that unmaps something before it lets go.
    struct HeldAcrossAnUnmapping {
        space: AddressSpace,
        monitor: FakeMonitor,
        holder: Mutex<Option<thread::JoinHandle<()>>>,
        heard: Heard,
    }

    impl Reports for HeldAcrossAnUnmapping {
        fn raise(&self) {}

        fn apply(&self, changes: &[Change]) -> bool {
            let mut holder = self.holder.lock().unwrap();
            match holder.take() {
                None => {
                    let space = self.space.clone();
                    *holder = Some(thread::spawn(move || space.unmap(pages(17, 1))));
                    self.monitor.await_pending(1);
                    false
                }
                Some(holder) => {
                    holder.join().unwrap();
                    self.heard.apply(changes)
                }
            }
        }

        fn lower(&self) {}
    }

    #[test]
    fn a_monitor_reads_on_while_it_waits_for_the_cache() {
        for make in [FakeMonitor::inline, FakeMonitor::threaded] {
            let (space, _) = machine();
            let monitor = make(&space);
            let cache = Arc::new(HeldAcrossAnUnmapping {
                space: space.clone(),
                monitor: monitor.clone(),
                holder: Mutex::default(),
                heard: Heard::default(),
            });
            monitor.start(cache.clone()).unwrap();
            assert_eq!(monitor.watch(pages(16, 16)), Watch::Watched);
            space.unmap(pages(16, 1));
            while cache.heard.log().len() < 2 {
                thread::yield_now();
            }
            monitor.stop();
            assert_eq!((cache.heard.log(), monitor.events()), (vec!["gone 16..17".into(), "gone 17..18".into()], 2));
        }
    }

    #[test]
    fn stopping_frees_those_who_wait() {
        let (space, _) = machine();
        let (monitor, heard) = started(FakeMonitor::stepped(&space));
        assert_eq!(monitor.watch(pages(16, 16)), Watch::Watched);
        thread::scope(|scope| {
            let unmap = scope.spawn(|| space.unmap(pages(16, 1)));
            monitor.await_pending(1);
            monitor.stop();
            unmap.join().unwrap();
        });
        assert_eq!((heard.log().len(), monitor.pending(), monitor.step()), (0, 0, false));
    }
}
