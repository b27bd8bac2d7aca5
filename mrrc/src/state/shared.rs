//! The state that the threads of a cache share, and its lock.
//!
//! There is one lock, over the [`CacheState`]. No thread registers, deregisters, or asks a monitor while holding it.
//! A thread that takes it looks at the gate first: while a monitor deals with a change the lock is left alone, so
//! that the monitor gets it, and findings under the lock are not used before the change is in the state. Then come
//! the locks of the slot list (`slots.rs`), after it.

use crate::budget::{Claim, Seat};
use crate::core::Core;
use crate::effective::EffectiveSettings;
use crate::error::Unusable;
use crate::hit::HitTables;
use crate::hit::barrier::Barrier;
use crate::invalidation::OwnMonitor;
#[cfg(target_os = "linux")]
use crate::invalidation::mappings::{Kind, Mappings};
#[cfg(target_os = "linux")]
use crate::present::PageMap;
use crate::pressure::Shrinks;
use crate::range::PageRange;
use crate::regions::RegionId;
use crate::registrar::Registrar;
use crate::registrar::windows::CacheWindows;
use crate::shim::sync::atomic::{AtomicBool, Ordering};
use crate::shim::sync::{Condvar, Mutex, MutexGuard};
use crate::state::in_flight::GROUPS;
use crate::state::{CacheState, Wakes};
use crate::times::Times;
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The state that the threads of a cache share.
#[repr(C)]
pub(crate) struct Shared<R: Registrar> {
    pub(crate) tables: HitTables<R::Registration>,
    pub(crate) times: Option<Box<Times>>,
    pub(crate) registrar: R,
    /// The windows that give peers their rights, where regions have none.
    pub(crate) windows: Option<Arc<CacheWindows<R::Registration>>>,
    pub(crate) monitor: OwnMonitor,
    pub(crate) settings: EffectiveSettings,
    /// Its place in the budget that it shares with other caches, if it does.
    pub(crate) seat: OnceLock<Seat>,
    pub(super) state: Mutex<CacheState<R::Registration>>,
    /// A registration, a deregistration or a retirement is done; one for each group of waiting threads.
    progress: [Condvar; GROUPS],
    stopping: AtomicBool,
    /// Opened when first needed; none where the system does not tell.
    #[cfg(target_os = "linux")]
    mappings: OnceLock<Option<Mappings>>,
    /// The mapping of private anonymous memory that was asked for last, and the number of changes before. Only where the program reports
    /// changes of all of it.
    #[cfg(target_os = "linux")]
    last_mapping: std::sync::Mutex<Option<(PageRange, u64)>>,
    #[cfg(target_os = "linux")]
    page_map: OnceLock<Option<PageMap>>,
}

/// The lock of a cache's state.
pub(crate) type Lock<'a, R> = MutexGuard<'a, CacheState<<R as Registrar>::Registration>>;

/// How long a thread that finds the gate raised tries before it sleeps, and how long it sleeps.
const SPINS: u32 = 200;
const NAP: Duration = Duration::from_micros(50);

/// Pages of a long reach: more than one look tells of.
#[cfg(target_os = "linux")]
const LONG: u64 = 256;

impl<R: Registrar> Shrinks for Shared<R> {
    fn wake(&self) {
        self.wake_background();
    }
}

impl<R: Registrar> Shared<R> {
    pub(crate) fn new(
        registrar: R,
        windows: Option<Arc<CacheWindows<R::Registration>>>,
        monitor: OwnMonitor,
        mut core: Core,
        barrier: Barrier,
        times: Option<Box<Times>>,
        settings: EffectiveSettings,
    ) -> io::Result<Self> {
        core.limit_hard();
        if settings.max_segments == 1 {
            core.use_one_key();
        }
        let regions = settings.capacity.regions as usize;
        let is_plain = times.is_none() && settings.unit == 1;
        let tables = HitTables::new(regions, &mut core, barrier, is_plain)?;
        Ok(Self {
            tables,
            times,
            registrar,
            windows,
            monitor,
            seat: OnceLock::new(),
            state: Mutex::new(CacheState::new(core, settings.capacity, settings.max_unheld)),
            settings,
            progress: std::array::from_fn(|_| Condvar::new()),
            stopping: AtomicBool::new(false),
            #[cfg(target_os = "linux")]
            mappings: OnceLock::new(),
            #[cfg(target_os = "linux")]
            page_map: OnceLock::new(),
            #[cfg(target_os = "linux")]
            last_mapping: std::sync::Mutex::default(),
        })
    }

    /// Returns the lock, with every change that a monitor reported in the state.
    pub(crate) fn lock(&self) -> Result<Lock<'_, R>, Unusable> {
        let mut begun = None;
        let mut spins = 0;
        loop {
            // A lock that was held at the fork is never taken in the child.
            if self.tables.gate.is_forked() {
                return Err(Unusable::Forked);
            }
            if !self.tables.gate.is_draining() {
                let mut state = crate::shim::lock(&self.state).map_err(|_| self.broken())?;
                // Look again under the lock: an event that was read since is not in the state yet.
                if !self.tables.gate.is_draining() {
                    state.settle(&self.tables);
                    return Ok(state);
                }
            }
            if self.tables.gate.is_broken() {
                return Err(Unusable::Broken);
            }
            let waited = begun.get_or_insert_with(Instant::now).elapsed();
            if waited > self.settings.wait_timeout {
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

    /// Returns the lock at once, to put down what was done. False: a change is being dealt with and is not in the
    /// state yet, so nothing is sure but what leases have.
    pub(crate) fn lock_now(&self) -> Result<(Lock<'_, R>, bool), Unusable> {
        let (mut state, sure) = self.look()?;
        if sure {
            state.settle(&self.tables);
        }
        Ok((state, sure))
    }

    /// Returns the lock, to look and change nothing. False: there are changes that are not in the state yet.
    #[inline]
    pub(crate) fn look(&self) -> Result<(Lock<'_, R>, bool), Unusable> {
        if self.tables.gate.is_forked() {
            return Err(Unusable::Forked);
        }
        let state = crate::shim::lock(&self.state).map_err(|_| self.broken())?;
        Ok((state, !self.tables.gate.is_draining()))
    }

    /// Takes pages of the budget that the cache shares with others, if it does. With no lock held.
    ///
    /// # Errors
    /// As [`Seat::claim`].
    #[inline]
    pub(crate) fn claim(&self, range: PageRange) -> io::Result<Option<Claim<'_>>> {
        self.seat.get().map(|seat| seat.claim(range.pages())).transpose()
    }

    /// Waits for progress, at most so long; the lock is let go meanwhile. Earlier findings are out of date. The progress is the end
    /// of a ticket of this region, or anything.
    pub(crate) fn wait<'a>(
        &'a self,
        mut state: Lock<'a, R>,
        longest: Duration,
        ticket_of: Option<RegionId>,
    ) -> Result<Lock<'a, R>, Unusable> {
        let group = state.in_flight.add_waiter(ticket_of);
        if crate::shim::wait(&self.progress[group], state, longest) { self.lock() } else { Err(self.broken()) }
    }

    /// Wakes threads that [wait](Shared::wait) for progress. With no lock held, which they take next.
    #[inline]
    pub(crate) fn wake(&self, wakes: Wakes) {
        if !wakes.is_empty() {
            self.wake_groups(wakes);
        }
    }

    #[cold]
    fn wake_groups(&self, wakes: Wakes) {
        wakes.groups().for_each(|group| self.progress[group].notify_all());
    }

    /// Wakes the background, which has something to deregister or to look at.
    pub(crate) fn wake_background(&self) {
        self.tables.notifier().notify_one();
    }

    /// Ends the background.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.wake_background();
    }

    /// Returns whether the background is to end.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// The lock is poisoned: what was cached is found by no hit from now on, for changes of memory do not get into the
    /// state any more.
    #[cold]
    pub(crate) fn broken(&self) -> Unusable {
        self.tables.gate.break_down();
        Unusable::Broken
    }

    /// Returns whether all of the range lies in one mapping, as far as the system tells.
    #[cfg(target_os = "linux")]
    pub(crate) fn is_one_mapping(&self, range: PageRange) -> bool {
        let mappings = self.mappings.get_or_init(|| Mappings::open().ok()).as_ref();
        let mapping = mappings.and_then(|mappings| mappings.at(range.start()).ok().flatten());
        mapping.is_some_and(|mapping| mapping.pages.contains(range))
    }

    /// Returns the range with the pages next to it that can be registered with it, within `reach`. They are in memory, and in the same
    /// mapping of private anonymous memory, or in the memory that the caller answers for. Other processes change shared memory. The
    /// number is that of the changes before the call.
    #[cfg(target_os = "linux")]
    pub(crate) fn surroundings(
        &self,
        range: PageRange,
        reach: PageRange,
        owned: Option<PageRange>,
        number: u64,
    ) -> PageRange {
        let Some(page_map) = self.page_map.get_or_init(|| PageMap::open().ok()) else { return range };
        let reach = owned.map_or(Some(reach), |owned| owned.intersection(reach));
        // Of a long reach only the pages in the mapping are looked at, which may be few.
        let is_long = owned.is_none() && reach.is_some_and(|reach| reach.pages() > LONG);
        let mapping = if is_long { self.private_mapping(range.start(), number) } else { None };
        let reach = if is_long { reach.zip(mapping).and_then(|(a, b)| a.intersection(b)) } else { reach };
        let Some(found) = reach.map(|reach| page_map.around(range, reach)).filter(|&found| found != range) else {
            return range;
        };
        let allowed = match owned {
            Some(_) => Some(found),
            None if is_long => mapping.filter(|mapping| mapping.contains(range)).map(|_| found),
            None => self.private_mapping(range.start(), number).and_then(|mapping| mapping.intersection(found)),
        };
        let Some(allowed) = allowed.filter(|allowed| allowed.contains(range)) else { return range };
        // Whole pages of the device.
        let unit = self.settings.unit;
        PageRange::between(allowed.start().next_multiple_of(unit), allowed.end() / unit * unit)
    }

    /// Returns the bounds of the mapping that holds a page, if it is private anonymous memory. Where the kernel does not answer for one
    /// address, the monitor is asked first, or the last answer holds until a change.
    #[cfg(target_os = "linux")]
    fn private_mapping(&self, page: u64, number: u64) -> Option<PageRange> {
        let mappings = self.mappings.get_or_init(|| Mappings::open().ok()).as_ref()?;
        let ask = || {
            let mapping = mappings.at(page).ok().flatten()?;
            (mapping.refusal().is_none() && mapping.kind == Kind::Anonymous).then_some(mapping.pages)
        };
        if mappings.is_quick() {
            return ask();
        }
        if self.settings.vouched {
            return self.monitor.private_mapping(page).or_else(ask);
        }
        let mut last = self.last_mapping.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let known = last.filter(|(pages, then)| *then == number && (pages.start()..pages.end()).contains(&page));
        if known.is_none() {
            *last = ask().map(|pages| (pages, number));
        }
        last.map(|(pages, _)| pages)
    }

    /// Returns the range: this system does not tell which pages are in memory.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn surroundings(&self, range: PageRange, _: PageRange, _: Option<PageRange>, _: u64) -> PageRange {
        range
    }

    /// Returns whether all of the range lies in one mapping: this system does not tell.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn is_one_mapping(&self, _: PageRange) -> bool {
        false
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use crate::cache::{AcquireError, Unusable};
    use crate::invalidation::Explicit;
    use crate::testing::NoopRegistrar;
    use crate::{Access, Cache, PAGE};

    #[test]
    #[cfg(target_os = "linux")]
    #[expect(unsafe_code, reason = "memory is mapped and unmapped by hand")]
    fn a_broken_cache_serves_no_hit_of_what_was_unmapped() {
        let Ok(cache) = Cache::builder(NoopRegistrar::default()).ignore_environment().background(false).build() else {
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
        // SAFETY: the slice is used where the memory is mapped, and is not written there.
        let slice = || unsafe { std::slice::from_raw_parts(memory, bytes) };
        cache.with_slice(slice(), |_| ()).unwrap();
        break_state(&cache);
        // The old mapping is unmapped and mapped anew in one step: between two, another test's memory might come there.
        assert_eq!(map(memory, libc::MAP_FIXED), memory);
        let answer = cache.with_slice(slice(), |lease| lease.segments().count());
        assert!(matches!(answer, Err(AcquireError::Unusable(Unusable::Broken))), "{answer:?}");
    }

    #[test]
    #[cfg(target_os = "linux")]
    #[expect(unsafe_code, reason = "memory is mapped and leased by hand")]
    fn old_kernels_are_not_asked_at_each_miss() {
        use crate::invalidation::Userfaultfd;
        use crate::invalidation::mappings::{Mappings, TEXTS};
        let builder = || Cache::builder(NoopRegistrar::default()).capacity_pages(8192).ignore_environment();
        let mut caches = vec![builder().monitor(Explicit)];
        caches.extend(Userfaultfd::new().map(|monitor| builder().monitor(monitor).background(false)));
        for builder in caches {
            let cache = builder.widen(true).build().unwrap();
            cache.shared.mappings.set(Some(Mappings::of_text().unwrap())).unwrap();
            let bytes = 2048 * PAGE as usize;
            // SAFETY: it is mapped where nothing is, and stays.
            let memory = unsafe {
                let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
                let memory = libc::mmap(std::ptr::null_mut(), bytes, rights, flags, -1, 0);
                libc::madvise(memory, bytes, libc::MADV_DONTFORK);
                memory.cast::<u8>()
            };
            let page = |nth: usize| memory.wrapping_add(nth * PAGE as usize);
            // SAFETY: the pages are this test's own.
            (0..2048).for_each(|nth| unsafe { page(nth).write(1) });
            // SAFETY: the memory is mapped, and no transfer is made.
            let ask = |nth: usize| drop(unsafe { cache.acquire(page(nth), 1, Access::LOCAL) }.unwrap());
            (0..1024).for_each(ask);
            let before = (TEXTS.get(), cache.counters().widened);
            (1024..2048).for_each(ask);
            let misses = cache.counters().widened - before.1;
            assert!(misses >= 16, "{}: {misses}", cache.monitor());
            assert_eq!(TEXTS.get(), before.0, "{}", cache.monitor());
            // Another mapping may have other bounds after a change.
            cache.invalidate(page(0), bytes).unwrap();
            ask(5);
            assert!(TEXTS.get() <= before.0 + 1);
        }
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
            let builder = Cache::builder(NoopRegistrar::default()).ignore_environment().background(false);
            builder.monitor(monitor.clone()).wait_timeout(std::time::Duration::from_secs(2)).build().unwrap()
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
        let state = busy.shared.state.lock().unwrap();
        // SAFETY: the mapping is this test's own, of which no slice is in use.
        assert_eq!(unsafe { libc::munmap(goes, bytes) }, 0);
        let busy_waits = || busy.shared.tables.gate.is_draining();
        assert!(busy_waits(), "the change is not in its state");
        // Once the other cache has the change in its state, its hits need no lock.
        while other.shared.tables.gate.is_draining() {
            other.with_slice(slice(), |_| ()).expect("it waits for no other cache");
        }
        let locked = other.shared.state.lock().unwrap();
        other.with_slice(slice(), |_| ()).unwrap();
        drop(locked);
        assert!(busy_waits());
        drop(state);
        assert_eq!(other.counters().attempts, 2);
        // SAFETY: the mapping is this test's own, and no slice of it is in use.
        assert_eq!(unsafe { libc::munmap(stays.cast(), bytes) }, 0);
    }

    #[test]
    fn broken_cache_serves_no_hit_after_failed_change() {
        let cache = Cache::builder(NoopRegistrar::default()).monitor(Explicit).ignore_environment().build().unwrap();
        let address = (16 * PAGE) as *const u8;
        let bytes = PAGE as usize;
        #[expect(unsafe_code, reason = "no transfer is made")]
        // SAFETY: `acquire` restricts uses of the memory during transfers; this test makes none.
        let ask = || unsafe { cache.acquire(address, bytes, Access::LOCAL) }.map(drop);
        ask().unwrap();
        break_state(&cache);
        assert!(cache.invalidate(address, bytes).is_err());
        assert!(matches!(ask(), Err(AcquireError::Unusable(Unusable::Broken))));
    }

    fn break_state(cache: &Cache<NoopRegistrar>) {
        let state = &cache.shared.state;
        std::thread::scope(|threads| {
            let panics = || {
                let _state = state.lock().unwrap();
                panic!("under the lock, on purpose");
            };
            assert!(threads.spawn(panics).join().is_err());
        });
    }
}
