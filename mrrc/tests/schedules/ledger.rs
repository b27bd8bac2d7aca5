//! A registrar that writes everything down, and complains at once.
//!
//! It knows the registered and used regions, and since when, and checks the cache's promises at every
//! call. Never more pages than the capacity, no deregistration in use or twice, no lease of something
//! that is gone or older than the last invalidation.
//!
//! Its lock is one of `std`, never held where shuttle can switch: so looking into it is no step of the program under
//! test. Where a real registrar would take its time there is a step instead.

use mrrc::registrar::{Limits, Registered, Registrar};
use mrrc::{Access, Cache, Lease, PAGE, PageRange};
use shuttle::sync::atomic::{AtomicU64, Ordering};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

/// Addresses in the tests are below this page.
const PAGES: usize = 64;

/// A lease's key.
#[derive(Debug)]
pub(crate) struct Key(u64);

#[derive(Clone)]
pub(crate) struct Ledger(Arc<Shared>);

struct Shared {
    table: Mutex<Table>,
    step: AtomicU64,
}

struct Table {
    capacity: u64,
    /// Pages registered, being registered and being deregistered.
    pages: u64,
    live: BTreeMap<u64, Entry>,
    /// Counts registrations and invalidations.
    clock: u64,
    /// By page: when the last invalidation that has returned began.
    floors: [u64; PAGES],
    attempts: u64,
    bad: Option<PageRange>,
    exhausted: u32,
    refusals: u32,
    hook: Option<Arc<dyn Fn() + Send + Sync>>,
}

struct Entry {
    range: PageRange,
    access: Access,
    made: u64,
    users: u64,
}

/// The state before a request.
pub(crate) struct Before([u64; PAGES]);

/// The keys of a lease that is in use.
#[must_use]
pub(crate) struct Using<'a>(&'a Ledger, Vec<u64>);

impl Ledger {
    pub(crate) fn new(capacity: u64) -> Self {
        let table = Table {
            capacity,
            pages: 0,
            live: BTreeMap::new(),
            clock: 1,
            floors: [0; PAGES],
            attempts: 0,
            bad: None,
            exhausted: 0,
            refusals: 0,
            hook: None,
        };
        Self(Arc::new(Shared { table: Mutex::new(table), step: AtomicU64::new(0) }))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.table.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Others may have a turn here.
    pub(crate) fn step(&self) {
        self.0.step.fetch_add(1, Ordering::Relaxed);
    }

    /// Registrations that touch this range fail with `EFAULT`.
    pub(crate) fn refuse(&self, range: PageRange) {
        self.table().bad = Some(range);
    }

    /// So many of the next registrations fail with `ENOMEM`.
    pub(crate) fn exhaust(&self, registrations: u32) {
        self.table().exhausted = registrations;
    }

    /// So many of the next deregistrations fail, and leave all but one of the batch registered.
    pub(crate) fn refuse_to_deregister(&self, batches: u32) {
        self.table().refusals = batches;
    }

    /// Called while the next registration is under way.
    pub(crate) fn on_register(&self, hook: impl Fn() + Send + Sync + 'static) {
        self.table().hook = Some(Arc::new(hook));
    }

    pub(crate) fn attempts(&self) -> u64 {
        self.table().attempts
    }

    pub(crate) fn pages(&self) -> u64 {
        self.table().pages
    }

    pub(crate) fn before(&self) -> Before {
        Before(self.table().floors)
    }

    /// Invalidates, and remembers since when.
    pub(crate) fn invalidate(&self, cache: &Cache<Self>, range: PageRange) {
        let began = {
            let mut table = self.table();
            table.clock += 1;
            table.clock
        };
        cache.invalidate(address(range.start()), bytes(range.pages())).unwrap();
        self.table().raise_floor(range, began);
    }

    /// A change of memory has returned that a monitor reports.
    pub(crate) fn changed(&self, range: PageRange) {
        let mut table = self.table();
        table.clock += 1;
        let now = table.clock;
        table.raise_floor(range, now);
    }

    /// Notes that the lease's keys are used until the answer is dropped. Everything that a lease promises is checked.
    pub(crate) fn using(&self, lease: &Lease<Self>, asked: Access, before: &Before) -> Using<'_> {
        // Before the table is locked: looking at a lease has steps.
        let segments: Vec<_> = lease.segments().collect();
        let mut table = self.table();
        let mut at = lease.address() as u64;
        let mut keys = Vec::new();
        for segment in segments {
            assert_eq!(segment.address() as u64, at, "the segments follow one another");
            let range = PageRange::of_bytes(at, segment.len() as u64).unwrap();
            at += segment.len() as u64;
            let key = segment.registration().0;
            let entry = table.live.get_mut(&key).expect("a lease has the key of a registration that is gone");
            assert!(entry.range.contains(range), "the registration covers {:?}, the segment is {range:?}", entry.range);
            assert!(entry.access.contains(asked), "{asked:?} was asked for, {:?} is had", entry.access);
            entry.users += 1;
            let floor = before.0[range.start() as usize..range.end() as usize].iter().max();
            assert!(
                entry.made >= *floor.unwrap(),
                "a lease of {range:?} got a registration from before an invalidation that had returned"
            );
            keys.push(key);
        }
        assert_eq!(at, lease.address() as u64 + lease.len() as u64, "the segments cover what was asked");
        Using(self, keys)
    }
}

impl Table {
    fn raise_floor(&mut self, range: PageRange, since: u64) {
        for floor in &mut self.floors[range.start() as usize..range.end() as usize] {
            *floor = since.max(*floor);
        }
    }
}

impl Drop for Using<'_> {
    fn drop(&mut self) {
        let mut table = self.0.table();
        for key in &self.1 {
            // Not there: its deregistration was reported already.
            if let Some(entry) = table.live.get_mut(key) {
                entry.users -= 1;
            }
        }
    }
}

pub(crate) fn address(page: u64) -> *const u8 {
    std::ptr::without_provenance((page * PAGE) as usize)
}

pub(crate) fn bytes(pages: u64) -> usize {
    (pages * PAGE) as usize
}

// SAFETY: there is no memory behind it, and keys are counted up.
unsafe impl Registrar for Ledger {
    type Registration = Key;

    fn register(&self, range: PageRange, access: Access) -> io::Result<Key> {
        let made = {
            let mut table = self.table();
            table.attempts += 1;
            table.pages += range.pages();
            let Table { pages, capacity, .. } = *table;
            assert!(pages <= capacity, "{pages} pages are registered, the capacity is {capacity}");
            table.clock += 1;
            table.clock
        };
        self.step();
        let hook = self.table().hook.take();
        if let Some(hook) = hook {
            hook();
        }
        let mut table = self.table();
        let refused = table.bad.is_some_and(|bad| bad.overlaps(range));
        if refused || table.exhausted > 0 {
            table.exhausted -= u32::from(!refused);
            table.pages -= range.pages();
            return Err(io::Error::from_raw_os_error(if refused { libc::EFAULT } else { libc::ENOMEM }));
        }
        table.live.insert(made, Entry { range, access, made, users: 0 });
        drop(table);
        self.step();
        Ok(Key(made))
    }

    fn deregister(&self, batch: &mut Vec<Registered<Key>>) -> io::Result<()> {
        self.step();
        let refused = {
            let mut table = self.table();
            let refused = table.refusals > 0;
            table.refusals -= u32::from(refused);
            let kept = if refused { 1.max(batch.len() - 1) } else { 0 };
            for Registered { range, access, registration } in batch.drain(kept..) {
                let entry = table.live.remove(&registration.0).expect("deregistered twice");
                assert_eq!((entry.range, entry.access), (range, access), "another registration's facts");
                assert_eq!(entry.users, 0, "{range:?} is deregistered while a lease uses it");
                table.pages -= range.pages();
            }
            refused
        };
        self.step();
        if refused { Err(io::Error::from_raw_os_error(libc::EBUSY)) } else { Ok(()) }
    }

    fn limits(&self) -> Limits {
        Limits::NONE
    }

    fn name(&self) -> &'static str {
        "ledger"
    }
}
