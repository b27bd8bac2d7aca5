//! What the threads of a cache share, and how its lock is taken.
//!
//! There is one lock, over the [`Books`]. Nobody registers, deregisters, or asks a monitor while holding it. Who
//! takes it looks at the gate first: while a monitor deals with a change the lock is left alone, so that the
//! monitor gets it, and what was found under the lock is not used before the change is in the books. Then
//! come the locks of the slot list (`slots.rs`), after it.

use super::barrier::Barrier;
use super::books::{Books, Desk, GROUP};
use super::budget::Seat;
use super::error::Unusable;
use super::gate::Gate;
use super::notifier::Notifier;
use super::records::Records;
use super::slots::{self, Blocks};
use super::terms::Terms;
use super::times::Times;
use crate::core::Core;
use crate::index::IndexReader;
use crate::invalidation::Monitor;
#[cfg(target_os = "linux")]
use crate::invalidation::mappings::Mappings;
use crate::range::PageRange;
use crate::registrar::Registrar;
use crate::shim::sync::atomic::{AtomicBool, AtomicU32};
use crate::shim::sync::{Condvar, Mutex, MutexGuard};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// In this order: what a hit reads lies in one line.
#[repr(C, align(64))]
pub(super) struct Shared<R: Registrar> {
    // What a hit reads, and nobody writes.
    pub(super) gate: Gate,
    pub(super) records: Records<R::Registration>,
    pub(super) readers: [IndexReader; 2],
    /// The number of the cache where a hit is a plain one: no latency is recorded, and the device's pages are ours. No
    /// cache's where it is not.
    pub(super) quick_number: u64,
    pub(super) most_touches: u32,
    pub(super) barrier: Barrier,
    // Up to here.
    /// Whether rights for peers were ever asked for.
    pub(super) has_remote: AtomicBool,
    pub(super) signs: Box<[AtomicU32]>,
    pub(super) blocks: Arc<Blocks>,
    pub(super) times: Option<Box<Times>>,
    /// The layers above those of `readers`, where regions may overlap. Not on the plain way of a hit.
    pub(super) layers: [Box<[IndexReader]>; 2],
    // The rest.
    pub(super) registrar: R,
    pub(super) monitor: Box<dyn Monitor>,
    pub(super) terms: Terms,
    /// Its place in the budget that it shares with other caches, if it does.
    pub(super) seat: OnceLock<Seat>,
    pub(super) books: Mutex<Books<R::Registration>>,
    /// A registration, a deregistration or a retirement is done.
    pub(super) progress: Condvar,
    /// There is something to deregister or to look at.
    pub(super) work: &'static Notifier,
    pub(super) stopping: AtomicBool,
    /// Opened when first needed; none where the system does not tell.
    #[cfg(target_os = "linux")]
    mappings: OnceLock<Option<Mappings>>,
}

#[cfg(not(any(loom, shuttle)))]
const _: () = assert!(std::mem::offset_of!(Shared<crate::registrar::model::Dummy>, has_remote) <= 64);

type Lock<'a, R> = MutexGuard<'a, Books<<R as Registrar>::Registration>>;

/// How long a thread that finds the gate raised tries before it sleeps, and how long it sleeps.
const SPINS: u32 = 200;
const NAP: Duration = Duration::from_micros(50);
impl<R: Registrar> Shared<R> {
    pub(super) fn new(
        registrar: R,
        monitor: Box<dyn Monitor>,
        mut core: Core,
        barrier: Barrier,
        times: Option<Box<Times>>,
        terms: Terms,
    ) -> std::io::Result<Self> {
        core.limit_hard();
        if terms.max_segments == 1 {
            core.use_one_key();
        }
        let regions = terms.capacity.regions as usize;
        let blocks = Blocks::new();
        let is_plain = times.is_none() && terms.unit == 1;
        Ok(Self {
            gate: Gate::new()?,
            quick_number: if is_plain { blocks.number() } else { slots::NOBODY },
            barrier,
            most_touches: core.most_uses(),
            has_remote: AtomicBool::new(false),
            readers: core.share_index(),
            layers: core.share_layers(),
            records: Records::new(regions)?,
            signs: (0..regions.div_ceil(GROUP)).map(|_| AtomicU32::new(0)).collect(),
            work: blocks.notifier(),
            blocks,
            times,
            registrar,
            monitor,
            terms,
            seat: OnceLock::new(),
            books: Mutex::new(Books::new(core)),
            progress: Condvar::new(),
            stopping: AtomicBool::new(false),
            #[cfg(target_os = "linux")]
            mappings: OnceLock::new(),
        })
    }

    pub(super) fn desk(&self) -> Desk<'_, R::Registration> {
        Desk { records: &self.records, blocks: &self.blocks, signs: &self.signs, barrier: self.barrier }
    }

    /// The lock, with every change that a monitor reported in the books.
    pub(super) fn lock(&self) -> Result<MutexGuard<'_, Books<R::Registration>>, Unusable> {
        let mut begun = None;
        let mut spins = 0;
        loop {
            // A lock that was held at the fork is never taken in the child.
            if self.gate.is_forked() {
                return Err(Unusable::Forked);
            }
            if !self.gate.is_draining() {
                let mut books = crate::shim::lock(&self.books).map_err(|_| self.broken())?;
                // Again, now that nobody else can: an event that was read since is not in the books yet.
                if !self.gate.is_draining() {
                    books.settle(self.desk());
                    return Ok(books);
                }
            }
            if self.gate.is_broken() {
                return Err(Unusable::Broken);
            }
            let waited = begun.get_or_insert_with(Instant::now).elapsed();
            if waited > self.terms.patience {
                return Err(Unusable::Draining(waited));
            }
            spins += 1;
            if spins < SPINS {
                crate::shim::pause();
            } else {
                crate::shim::thread::sleep(NAP);
            }
        }
    }

    /// The lock at once, to put down what was done. False: a change is being dealt with and is not in the books yet,
    /// so nothing is sure but what leases have.
    pub(super) fn lock_now(&self) -> Result<(Lock<'_, R>, bool), Unusable> {
        if self.gate.is_forked() {
            return Err(Unusable::Forked);
        }
        let mut books = crate::shim::lock(&self.books).map_err(|_| self.broken())?;
        let sure = !self.gate.is_draining();
        if sure {
            books.settle(self.desk());
        }
        Ok((books, sure))
    }

    /// The lock, to look and change nothing. False: there are changes that are not in the books yet.
    pub(super) fn look(&self) -> Result<(Lock<'_, R>, bool), Unusable> {
        if self.gate.is_forked() {
            return Err(Unusable::Forked);
        }
        let books = crate::shim::lock(&self.books).map_err(|_| self.broken())?;
        Ok((books, !self.gate.is_draining()))
    }

    /// Waits for progress, at most so long; the lock is let go meanwhile. What was found before is out of date.
    pub(super) fn wait<'a>(
        &'a self,
        mut books: MutexGuard<'a, Books<R::Registration>>,
        longest: Duration,
    ) -> Result<MutexGuard<'a, Books<R::Registration>>, Unusable> {
        // Whoever makes progress wakes all who wait, and sets this to 0.
        books.waiting += 1;
        if crate::shim::wait(&self.progress, books, longest) { self.lock() } else { Err(self.broken()) }
    }

    /// The lock is poisoned: what was cached is found by no hit from now on, for changes of memory do not get into the
    /// books any more.
    #[cold]
    pub(super) fn broken(&self) -> Unusable {
        self.gate.break_down();
        Unusable::Broken
    }

    /// Whether all of the range lies in one mapping, as far as the system tells.
    #[cfg(target_os = "linux")]
    pub(super) fn is_one_mapping(&self, range: PageRange) -> bool {
        let mappings = self.mappings.get_or_init(|| Mappings::open().ok()).as_ref();
        let mapping = mappings.and_then(|mappings| mappings.at(range.start()).ok().flatten());
        mapping.is_some_and(|mapping| mapping.pages.contains(range))
    }

    /// Whether all of the range lies in one mapping: this system does not tell.
    #[cfg(not(target_os = "linux"))]
    pub(super) fn is_one_mapping(&self, _: PageRange) -> bool {
        false
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use crate::cache::{AcquireError, Unusable};
    use crate::invalidation::Explicit;
    use crate::registrar::model::Dummy;
    use crate::{Access, Cache, PAGE};

    #[test]
    #[cfg(target_os = "linux")]
    #[expect(unsafe_code, reason = "memory is mapped and unmapped by hand")]
    fn a_broken_cache_serves_no_hit_of_what_was_unmapped() {
        let Ok(cache) = Cache::builder(Dummy::default()).ignore_environment().background(false).build() else {
            println!("skipped: no userfaultfd here");
            return;
        };
        let bytes = 64 * PAGE as usize;
        let map = |at: *mut u8, fixed: libc::c_int| {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | fixed;
            // SAFETY: it is mapped where nothing is, or over this test's own mapping, of which no slice is in use.
            unsafe { libc::mmap(at.cast(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0).cast::<u8>() }
        };
        let memory = map(std::ptr::null_mut(), 0);
        // SAFETY: the slice is used where the memory is mapped, and nobody writes there.
        let slice = || unsafe { std::slice::from_raw_parts(memory, bytes) };
        cache.with_slice(slice(), |_| ()).unwrap();
        break_books(&cache);
        // What was there is unmapped and mapped anew in one step: between two, another test's memory might come there.
        assert_eq!(map(memory, libc::MAP_FIXED), memory);
        let answer = cache.with_slice(slice(), |lease| lease.segments().count());
        assert!(matches!(answer, Err(AcquireError::Unusable(Unusable::Broken))), "{answer:?}");
    }

    #[test]
    #[cfg(target_os = "linux")]
    #[expect(unsafe_code, reason = "memory is mapped and unmapped by hand")]
    fn a_busy_cache_keeps_no_other_cache_from_hits() {
        let Ok(monitor) = crate::invalidation::Userfaultfd::new() else {
            println!("skipped: no userfaultfd here");
            return;
        };
        let cache = || {
            let builder = Cache::builder(Dummy::default()).ignore_environment().background(false);
            builder.monitor(monitor.clone()).patience(std::time::Duration::from_secs(2)).build().unwrap()
        };
        let (busy, other) = (cache(), cache());
        let bytes = 4 * PAGE as usize;
        let map = || {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: it is mapped where nothing is.
            unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) }
        };
        let (stays, goes) = (map().cast::<u8>(), map());
        // SAFETY: the memory stays mapped, and nothing writes there.
        let slice = || unsafe { std::slice::from_raw_parts(stays, bytes) };
        other.with_slice(slice(), |_| ()).unwrap();
        // SAFETY: the memory is mapped, and no transfer is made.
        drop(unsafe { other.acquire(goes.cast(), bytes, Access::LOCAL) }.unwrap());
        let books = busy.shared.books.lock().unwrap();
        // SAFETY: the mapping is this test's own, of which no slice is in use.
        assert_eq!(unsafe { libc::munmap(goes, bytes) }, 0);
        let busy_waits = || busy.shared.gate.is_draining();
        assert!(busy_waits(), "the change is not in its books");
        // Once the other cache has the change in its books, its hits need no lock.
        while other.shared.gate.is_draining() {
            other.with_slice(slice(), |_| ()).expect("it waits for no other cache");
        }
        let locked = other.shared.books.lock().unwrap();
        other.with_slice(slice(), |_| ()).unwrap();
        drop(locked);
        assert!(busy_waits());
        drop(books);
        assert_eq!(other.counters().attempts, 2);
        // SAFETY: the mapping is this test's own, and no slice of it is in use.
        assert_eq!(unsafe { libc::munmap(stays.cast(), bytes) }, 0);
    }

    #[test]
    fn a_broken_cache_serves_no_hit_after_a_change_could_not_be_told() {
        let cache = Cache::builder(Dummy::default()).monitor(Explicit).ignore_environment().build().unwrap();
        let address = (16 * PAGE) as *const u8;
        let bytes = PAGE as usize;
        #[expect(unsafe_code, reason = "no transfer is made")]
        // SAFETY: no transfer is made.
        let ask = || unsafe { cache.acquire(address, bytes, Access::LOCAL) }.map(drop);
        ask().unwrap();
        break_books(&cache);
        assert!(cache.invalidate(address, bytes).is_err());
        assert!(matches!(ask(), Err(AcquireError::Unusable(Unusable::Broken))));
    }

    fn break_books(cache: &Cache<Dummy>) {
        let books = &cache.shared.books;
        std::thread::scope(|threads| {
            let panics = || {
                let _books = books.lock().unwrap();
                panic!("under the lock, on purpose");
            };
            assert!(threads.spawn(panics).join().is_err());
        });
    }
}
