//! The whole cache under shuttle: the code that ships, in thousands of schedules of a few threads.
//!
//! ```text
//! RUSTFLAGS="--cfg shuttle" cargo test -p mrrc --release --test schedules
//! ```
//!
//! | variable | |
//! | --- | --- |
//! | `SCHEDULES` | schedules of each test; the default takes some seconds in all |
//! | `SHUTTLE_RANDOM_SEED` | the seed that a failure printed: the same schedules again |
//! | `SHUTTLE_REPLAY` | the schedule that a failure printed: that one alone, with the name of the test |
//!
//! Under shuttle a thread has two slots, so that leases are counted too. Short waits are over as soon as others had
//! a turn, and long ones never end by themselves: a missed wake-up stands still, and shuttle reports it.
#![cfg(shuttle)]
#![allow(unsafe_code, reason = "acquiring is unsafe; there is no memory here")]

mod ledger;

use ledger::{Ledger, address, bytes};
use mrrc::cache::{Builder, PendingLease};
use mrrc::invalidation::{Change, ChangeKind, Explicit, Monitor, Reports, Watch};
use mrrc::testing::{AddressSpace, FakeMonitor, FakeNic, Stage, Transfer};
use mrrc::{Access, AcquireError, Cache, Lease, PageRange};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::sync::atomic::{AtomicU64, Ordering};
use shuttle::sync::mpsc;
use shuttle::{Runner, thread};
use std::sync::Arc;
use std::time::Duration;

const SCHEDULES: usize = 1_000;
/// Threads are preempted so often in the schedules of the second kind.
const PREEMPTIONS: usize = 3;

/// Runs a test in many schedules: random ones, and such with few preemptions in unlikely places.
fn explore(test: impl Fn() + Copy + Send + Sync + 'static) {
    let mut config = shuttle::Config::new();
    config.stack_size = 1 << 18;
    if let Ok(schedule) = std::env::var("SHUTTLE_REPLAY") {
        return shuttle::replay(test, &schedule);
    }
    let schedules = std::env::var("SCHEDULES").map_or(SCHEDULES, |text| text.parse().expect("SCHEDULES is a number"));
    Runner::new(RandomScheduler::new(schedules), config.clone()).run(test);
    Runner::new(PctScheduler::new(PREEMPTIONS, schedules), config).run(test);
}

fn range(start: u64, pages: u64) -> PageRange {
    PageRange::new(start, pages).unwrap()
}

fn builder(ledger: &Ledger, capacity: u64) -> Builder<Ledger> {
    Cache::builder(ledger.clone()).ignore_environment().capacity_pages(capacity).monitor(Explicit)
}

/// A cache and its registrar, shared by the threads of a test.
#[derive(Clone)]
struct Field {
    ledger: Ledger,
    cache: Arc<Cache<Ledger>>,
}

impl Field {
    fn new(capacity: u64) -> Self {
        Self::with(capacity, |builder| builder)
    }

    fn with(capacity: u64, settings: impl FnOnce(Builder<Ledger>) -> Builder<Ledger>) -> Self {
        let ledger = Ledger::new(capacity);
        let cache = settings(builder(&ledger, capacity)).build().unwrap();
        Self { ledger, cache: Arc::new(cache) }
    }

    fn acquire(&self, start: u64, pages: u64, access: Access) -> Result<Lease<Ledger>, AcquireError> {
        // SAFETY: `acquire` restricts uses of the memory during transfers; the ledger makes none.
        unsafe { self.cache.acquire(address(start), bytes(pages), access) }
    }

    fn begin(&self, start: u64, pages: u64) -> Result<PendingLease<'_, Ledger>, AcquireError> {
        // SAFETY: `begin` restricts uses of the memory during transfers; this test makes none.
        unsafe { self.cache.begin(address(start), bytes(pages), Access::LOCAL) }
    }

    /// Acquires, uses and drops a lease.
    fn try_use(&self, start: u64, pages: u64, access: Access) -> Result<(), AcquireError> {
        let before = self.ledger.before();
        let lease = self.acquire(start, pages, access)?;
        let using = self.ledger.using(&lease, access, &before);
        self.ledger.step();
        drop(using);
        Ok(())
    }

    fn use_pages(&self, start: u64, pages: u64) {
        self.try_use(start, pages, Access::LOCAL).unwrap();
    }

    fn invalidate(&self, start: u64, pages: u64) {
        self.ledger.invalidate(&self.cache, range(start, pages));
    }

    fn spawn(&self, work: impl FnOnce(&Self) + Send + 'static) -> thread::JoinHandle<()> {
        let field = self.clone();
        thread::spawn(move || work(&field))
    }

    /// The threads are through and all leases dropped: everything can go, and does. Returns the attempts to register.
    fn end(self) -> u64 {
        let Self { ledger, cache } = self;
        let counters = cache.counters();
        assert_eq!(counters.attempts, ledger.attempts());
        // Some registrars need to be asked twice.
        for _ in 0..3 {
            cache.flush().unwrap();
        }
        let usage = cache.usage();
        assert_eq!((usage.pages, usage.regions, usage.leaving, usage.refused, usage.retired), (0, 0, 0, 0, 0));
        assert_eq!(ledger.pages(), 0, "registered still");
        let cache = Arc::into_inner(cache).expect("the threads are through");
        drop(cache);
        counters.attempts
    }
}

fn join<T>(threads: impl IntoIterator<Item = thread::JoinHandle<T>>) {
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn concurrent_misses_share_one_registration() {
    explore(|| {
        let field = Field::new(8);
        join([0, 1, 2].map(|_| {
            field.spawn(|field| {
                field.use_pages(10, 2);
                field.use_pages(11, 1);
            })
        }));
        assert_eq!(field.end(), 1);
    });
}

#[test]
fn overlapping_requests_never_deadlock() {
    explore(|| {
        let field = Field::new(8);
        join([(10, 3), (12, 3), (11, 2)].map(|(start, pages)| {
            field.spawn(move |field| {
                field.use_pages(start, pages);
                field.use_pages(24 - start, 2);
            })
        }));
        field.end();
    });
}

#[test]
fn what_is_evicted_is_in_no_lease() {
    explore(|| {
        // A request looks at one region after the other, so it can meet the other thread's one lease twice.
        let field = Field::with(4, |builder| builder.capacity_timeout(Duration::from_secs(100)));
        join([10, 20].map(|start| {
            field.spawn(move |field| {
                for round in 0..4 {
                    field.use_pages(start + 2 * (round % 3), 2);
                    field.use_pages(30, 1);
                }
            })
        }));
        field.end();
    });
}

#[test]
fn all_in_use_waits_or_fails() {
    explore(|| {
        let field = Field::with(4, |builder| builder.capacity_timeout(Duration::from_secs(100)));
        join([10, 20, 30].map(|start| {
            field.spawn(move |field| {
                field.use_pages(start, 3);
                field.use_pages(start + 1, 3);
            })
        }));
        field.end();

        let field = Field::new(4);
        join([10, 20].map(|start| {
            field.spawn(move |field| match field.try_use(start, 3, Access::LOCAL) {
                Ok(()) | Err(AcquireError::AllInUse { .. }) => {}
                Err(other) => panic!("{other}"),
            })
        }));
        field.end();
    });
}

#[test]
fn request_after_invalidation_gets_new_pages() {
    explore(|| {
        let field = Field::new(8);
        let users = [(10, 2), (11, 2)].map(|(start, pages)| {
            field.spawn(move |field| {
                for _ in 0..3 {
                    field.use_pages(start, pages);
                }
            })
        });
        field.invalidate(11, 1);
        field.use_pages(11, 1);
        field.invalidate(10, 3);
        field.use_pages(10, 1);
        join(users);
        field.end();
    });
}

#[test]
fn evictions_and_invalidations_together() {
    explore(|| {
        let field = Field::with(6, |builder| builder.capacity_timeout(Duration::from_secs(100)));
        let users = [10, 12].map(|start| {
            field.spawn(move |field| {
                for round in 0..3 {
                    field.use_pages(start + round, 3);
                }
            })
        });
        let changer = field.spawn(|field| {
            for start in [12, 10, 14] {
                field.invalidate(start, 2);
            }
        });
        join(users);
        join([changer]);
        field.end();
    });
}

#[test]
fn one_bad_address_is_nobody_elses_error() {
    explore(|| {
        let field = Field::new(16);
        field.ledger.refuse(range(14, 1));
        let good = [(10, 3), (12, 2)].map(|(start, pages)| field.spawn(move |field| field.use_pages(start, pages)));
        let bad = [(12, 4), (10, 6)].map(|(start, pages)| {
            field.spawn(move |field| match field.try_use(start, pages, Access::LOCAL) {
                Err(AcquireError::Register { attempts: 1, source, .. }) => {
                    assert_eq!(source.raw_os_error(), Some(libc::EFAULT));
                }
                other => panic!("{other:?}"),
            })
        });
        join(good);
        join(bad);
        field.end();
    });
}

#[test]
fn where_the_system_is_out_of_something_room_is_made() {
    explore(|| {
        let field = Field::new(8);
        field.use_pages(30, 2);
        field.ledger.exhaust(2);
        join([10, 11, 20].map(|start| {
            field.spawn(move |field| match field.try_use(start, 2, Access::LOCAL) {
                // Where nothing can be freed the first failure is the last.
                Ok(()) | Err(AcquireError::Register { .. }) => {}
                Err(other) => panic!("{other}"),
            })
        }));
        field.end();
    });
}

#[test]
fn refused_deregistrations_are_counted_and_retried() {
    explore(|| {
        let field = Field::new(6);
        field.ledger.refuse_to_deregister(2);
        let users = [10, 20].map(|start| {
            field.spawn(move |field| {
                for round in 0..3 {
                    match field.try_use(start + 2 * round, 2, Access::LOCAL) {
                        // Both refusals may fall to one request.
                        Ok(()) | Err(AcquireError::AllInUse { .. } | AcquireError::DeregistrationFailed { .. }) => {}
                        Err(other) => panic!("{other}"),
                    }
                }
            })
        });
        let reaper = field.spawn(|field| {
            field.invalidate(10, 20);
            field.cache.reap().unwrap();
        });
        join(users);
        join([reaper]);
        field.end();
    });
}

/// A thread has two slots here, so the third lease is counted.
#[test]
fn leases_beyond_the_slots_end_on_whatever_thread() {
    explore(|| {
        let field = Field::with(8, |builder| builder.capacity_timeout(Duration::from_secs(100)));
        let (give, take) = mpsc::channel();
        let taker = field.spawn(move |field| {
            let before = field.ledger.before();
            for start in [10, 10, 12, 10] {
                let before = field.ledger.before();
                give.send((before, field.acquire(start, 2, Access::LOCAL).unwrap())).unwrap();
            }
            let last = field.acquire(13, 1, Access::LOCAL).unwrap();
            drop(field.ledger.using(&last, Access::LOCAL, &before));
        });
        let dropper = field.spawn(move |field| {
            for (before, lease) in take {
                let using = field.ledger.using(&lease, Access::LOCAL, &before);
                field.ledger.step();
                drop(using);
            }
        });
        let other = field.spawn(|field| {
            field.use_pages(20, 3);
            field.invalidate(10, 2);
            field.use_pages(22, 3);
        });
        join([taker, dropper, other]);
        field.end();
    });
}

#[test]
fn leases_survive_their_dropped_cache() {
    explore(|| {
        let ledger = Ledger::new(8);
        let field = Field { ledger: ledger.clone(), cache: Arc::new(builder(&ledger, 8).build().unwrap()) };
        let leases =
            [(10, 2), (20, 1), (10, 1)].map(|(start, pages)| field.acquire(start, pages, Access::LOCAL).unwrap());
        let users: Vec<_> = { leases }
            .into_iter()
            .map(|lease| {
                let (ledger, before) = (ledger.clone(), ledger.before());
                thread::spawn(move || {
                    let using = ledger.using(&lease, Access::LOCAL, &before);
                    ledger.step();
                    drop(using);
                })
            })
            .collect();
        drop(field);
        join(users);
        let mut turns = 0;
        while ledger.pages() > 0 {
            turns += 1;
            assert!(turns < 10_000, "{} pages are registered still", ledger.pages());
            thread::yield_now();
        }
    });
}

#[test]
fn requested_rights_are_granted_on_all_pages() {
    explore(|| {
        let field = Field::with(12, |builder| builder.capacity_timeout(Duration::from_secs(100)));
        let asks =
            [(10, 3, Access::LOCAL), (11, 1, Access::LOCAL | Access::REMOTE_READ), (10, 2, Access::REMOTE_WRITE)];
        join(asks.map(|(start, pages, access)| {
            field.spawn(move |field| {
                field.try_use(start, pages, access).unwrap();
                field.try_use(11, 2, access).unwrap();
                field.use_pages(10, 3);
            })
        }));
        field.end();
    });
}

#[test]
fn one_key_for_all_merges_what_there_is() {
    explore(|| {
        let field = Field::with(12, |builder| builder.max_segments(1).capacity_timeout(Duration::from_secs(100)));
        join([(10, 2), (11, 3), (12, 1)].map(|(start, pages)| {
            field.spawn(move |field| {
                let before = field.ledger.before();
                let lease = field.acquire(start, pages, Access::LOCAL).unwrap();
                assert_eq!(lease.segments().count(), 1);
                let using = field.ledger.using(&lease, Access::LOCAL, &before);
                field.ledger.step();
                drop(using);
                drop(lease);
                field.use_pages(11, 1);
            })
        }));
        field.end();
    });
}

#[test]
fn abandoned_begin_is_finished_by_waiter() {
    explore(|| {
        let field = Field::new(8);
        let giver = field.spawn(|field| {
            let begun = field.begin(10, 2).unwrap();
            field.ledger.step();
            drop(begun);
        });
        let finisher = field.spawn(|field| {
            let before = field.ledger.before();
            let mut begun = field.begin(11, 2).unwrap();
            field.ledger.step();
            let lease = begun.finish().unwrap();
            drop(field.ledger.using(&lease, Access::LOCAL, &before));
        });
        let waiter = field.spawn(|field| field.use_pages(10, 3));
        join([giver, finisher, waiter]);
        field.end();
    });
}

#[test]
fn background_deregisters_and_stops() {
    explore(|| {
        let settings = |builder: Builder<_>| builder.background(true).capacity_timeout(Duration::from_secs(100));
        let field = Field::with(6, settings);
        let users = [10, 20].map(|start| {
            field.spawn(move |field| {
                for round in 0..2 {
                    field.use_pages(start + 2 * round, 3);
                }
            })
        });
        field.invalidate(10, 4);
        join(users);
        let Field { ledger, cache } = field;
        drop(cache);
        assert_eq!(ledger.pages(), 0, "registered still");
    });
}

#[test]
fn an_idle_background_hears_of_the_end() {
    explore(|| {
        let Field { cache, .. } = Field::with(6, |builder| builder.background(true));
        // SAFETY: `warm` restricts uses of the memory during later transfers; this test makes none.
        unsafe { cache.warm(address(10), bytes(1), Access::LOCAL) }.unwrap();
        drop(cache);
    });
}

/// A change of memory that userfaultfd would report, and accesses to it by a device that knows which pages
/// the address leads to.
fn changes_of_memory(monitor: fn(&AddressSpace) -> FakeMonitor, change: fn(&AddressSpace)) {
    let space = AddressSpace::new(64);
    space.map(range(10, 4)).unwrap();
    let nic = FakeNic::new(&space);
    let monitor = monitor(&space);
    // The moments between an event that was read and the flag that is lowered are few: here they are more.
    let moments = AtomicU64::new(0);
    monitor.on_stage(move |stage| {
        if matches!(stage, Stage::Read | Stage::Applied) {
            (0..6).for_each(|_| _ = moments.fetch_add(1, Ordering::Relaxed));
        }
    });
    let cache = Cache::builder(nic.clone())
        .ignore_environment()
        .capacity_pages(8)
        .capacity_timeout(Duration::from_secs(100))
        .discard_grace(Duration::from_secs(100))
        .monitor(monitor)
        .build()
        .unwrap();
    let cache = Arc::new(cache);
    let access = |cache: &Cache<FakeNic>, start: u64, pages: u64| {
        let nic = cache.registrar();
        let began = nic.space().begin();
        // SAFETY: `acquire` restricts uses of the memory during transfers; the fake device moves words of its own
        // model.
        match unsafe { cache.acquire(address(start), bytes(pages), Access::LOCAL) } {
            Ok(lease) => {
                for segment in lease.segments() {
                    let (key, at) = (segment.registration().key(), segment.address() as u64);
                    nic.perform(&Transfer::read(key, at, segment.len() as u64), &began).expect("the key is good");
                }
            }
            // Not mapped at this moment.
            Err(AcquireError::Register { source, .. }) => assert_eq!(source.raw_os_error(), Some(libc::EFAULT)),
            Err(other) => panic!("{other}"),
        }
    };
    // A change that began before the mapping was watched is not reported.
    access(&cache, 10, 4);
    let users = [(10, 2), (11, 2)].map(|(start, pages)| {
        let cache = cache.clone();
        thread::spawn(move || {
            for _ in 0..2 {
                access(&cache, start, pages);
            }
        })
    });
    for _ in 0..2 {
        change(&space);
        // The first can be a hit, and the second cannot.
        access(&cache, 11, 1);
        access(&cache, 10, 3);
    }
    join(users);
    let found = nic.findings();
    assert_eq!((found.stale, found.deregistered, found.foreign), (0, 0, 0), "{found:?}");
    drop(cache);
    assert_eq!((nic.pinned_pages(), space.pinned_pages()), (0, 0), "pinned still");
}

/// A monitor that the test plays itself.
#[derive(Clone, Default)]
struct ByHand(Arc<std::sync::OnceLock<Arc<dyn Reports>>>);

// SAFETY: there is no device, so a change that goes unheard harms no memory.
unsafe impl Monitor for ByHand {
    fn name(&self) -> &'static str {
        "by hand"
    }

    unsafe fn start(&self, reports: Arc<dyn Reports>) -> std::io::Result<()> {
        assert!(self.0.set(reports).is_ok(), "started once");
        Ok(())
    }

    unsafe fn watch(&self, _: PageRange) -> Watch {
        Watch::Watched
    }
}

/// Few schedules get there by chance: a registration is begun before a change of its pages and published after the
/// change is in the state, or not yet there, with the flag still up.
#[test]
fn what_changed_in_flight_is_nobody_elses() {
    for applied_first in [true, false] {
        let test = move || {
            let monitor = ByHand::default();
            let field = Field::with(8, |builder| builder.monitor(monitor.clone()).background(false));
            let reports = monitor.0.get().unwrap().clone();
            let changes = [Change { range: range(11, 1), kind: ChangeKind::Gone }];
            let (ledger, told) = (field.ledger.clone(), reports.clone());
            field.ledger.on_register(move || {
                told.raise();
                // The event is read; the change may return.
                ledger.changed(range(11, 1));
                assert!(!applied_first || told.apply(&changes), "nobody has the lock");
            });
            let lease = field.acquire(10, 2, Access::LOCAL).unwrap();
            let later = field.spawn(|field| field.use_pages(11, 1));
            assert!(applied_first || reports.apply(&changes), "nobody has the lock");
            reports.lower();
            field.use_pages(11, 1);
            drop(lease);
            join([later]);
            drop(reports);
            field.end();
        };
        explore(test);
    }
}

fn replace(space: &AddressSpace) {
    space.unmap(range(11, 1));
    space.map(range(11, 1)).unwrap();
}

fn move_there_and_back(space: &AddressSpace) {
    space.remap(range(11, 1), 40).unwrap();
    space.remap(range(40, 1), 11).unwrap();
}

#[test]
fn access_after_unmap_finds_no_old_pages() {
    explore(|| changes_of_memory(FakeMonitor::threaded, replace));
}

#[test]
fn inline_monitor_finds_no_old_pages() {
    explore(|| changes_of_memory(FakeMonitor::inline, replace));
}

#[test]
fn nor_after_memory_was_moved() {
    explore(|| changes_of_memory(FakeMonitor::threaded, move_there_and_back));
}

#[test]
fn nor_after_pages_were_discarded() {
    explore(|| changes_of_memory(FakeMonitor::threaded, |space| space.discard(range(11, 1)).unwrap()));
}
