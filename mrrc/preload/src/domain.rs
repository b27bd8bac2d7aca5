//! A protection domain of the program's, and the caches of what is registered in it.
//!
//! # Locks and ownership
//!
//! The list of caches is behind a lock that is held while one is made, and only looked at otherwise. Leases are in shadows,
//! which are the program's; what no shadow has is the caches', and goes before the domain does.
#![expect(unsafe_code, reason = "acquiring memory that a program in C answers for")]

use crate::abi::{Context, Mr, Pd};
use crate::benefit::{Benefit, Seen, Served};
use crate::devices::Devices;
use crate::eligibility::{Class, Passed, Request};
use crate::pinner::{self, Pinner};
use crate::real::Real;
use crate::settings::Settings;
use crate::shadow::Backing;
use crate::stats::Stats;
use mrrc::cache::CacheCounters;
use mrrc::registrar::windows::{DomainWindows, Remote};
use mrrc::{AcquireError, BuildError, Cache};
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

pub(crate) struct Domain {
    pd: NonNull<Pd>,
    context: usize,
    settings: Settings,
    devices: &'static Devices,
    /// The windows that give peers their rights, once they were needed. None if the device has none that hold.
    windows: OnceLock<Option<Arc<DomainWindows>>>,
    closed: Arc<AtomicBool>,
    /// Whether the program registers for a while only: [`FRESH`] and the rest, in that order.
    stage: AtomicU8,
    /// The requests until there are caches.
    early: Mutex<Early>,
    caches: RwLock<Vec<(Class, Made)>>,
}

/// Nothing was deregistered yet. Programs that register once and for all stay here, or in the next at their end.
const FRESH: u8 = 0;
/// Something was.
const ENDED: u8 = 1;
/// And something was registered after that.
const AGAIN: u8 = 2;
/// And deregistered, too, or several buffers are on their way: that is a program which registers for each operation. There are caches.
const READY: u8 = 3;

/// Registrations of one length at a time by which a program has several buffers on their way.
const SEVERAL: usize = 2;
/// Lengths that are told apart.
const LENGTHS: usize = 16;

/// The registrations that come before there are caches.
#[derive(Default)]
struct Early {
    classes: Vec<Class>,
    /// Lengths, with the registrations that the program has of each.
    lengths: Vec<(usize, usize)>,
    /// The length of the registration that ended last.
    ended: usize,
}

impl Early {
    /// Notes a request. Returns whether the program has several registrations as long as the one that ended last, which this one is as
    /// well.
    fn begin(&mut self, class: Class, length: usize) -> bool {
        if !self.classes.contains(&class) {
            self.classes.push(class);
        }
        let mut before = 0;
        if let Some((_, count)) = self.lengths.iter_mut().find(|(of, _)| *of == length) {
            before = *count;
            *count += 1;
        } else if self.lengths.len() < LENGTHS {
            self.lengths.push((length, 1));
        }
        length == self.ended && before >= SEVERAL
    }

    fn end(&mut self, length: usize) {
        self.ended = length;
        if let Some((_, count)) = self.lengths.iter_mut().find(|(of, _)| *of == length) {
            *count = count.saturating_sub(1);
        }
    }
}

/// The counts of caches, for metrics.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Totals {
    pub(crate) caches: u64,
    pub(crate) evicted: u64,
    pub(crate) invalidated: u64,
    pub(crate) expired: u64,
    pub(crate) flushed: u64,
    pub(crate) unheld_pages: u64,
    pub(crate) dead_pages: u64,
    pub(crate) windows_bound: u64,
    pub(crate) windows_idle: u64,
    /// The longest time for which pins of a cache were dead.
    pub(crate) longest_dead: Duration,
}

impl Totals {
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            caches: self.caches + other.caches,
            evicted: self.evicted + other.evicted,
            invalidated: self.invalidated + other.invalidated,
            expired: self.expired + other.expired,
            flushed: self.flushed + other.flushed,
            unheld_pages: self.unheld_pages + other.unheld_pages,
            dead_pages: self.dead_pages + other.dead_pages,
            windows_bound: self.windows_bound + other.windows_bound,
            windows_idle: self.windows_idle + other.windows_idle,
            longest_dead: self.longest_dead.max(other.longest_dead),
        }
    }
}

/// None where a cache could not be made.
type Made = Option<Arc<DomainCache>>;

/// A cache, and its benefit so far.
struct DomainCache {
    cache: Cache<Pinner>,
    benefit: Benefit,
    /// Regions that left because others needed their room.
    flushed: AtomicU64,
}

impl DomainCache {
    /// Empties the cache if it is of no use.
    #[cold]
    fn look(&self) {
        if self.benefit.look(self.seen()) {
            // Its present content is not asked for again. Its thread deregisters that, so that this request need not. A cache
            // that is of no use any more has nothing to lose.
            let _ = self.cache.invalidate(EVERYWHERE, usize::MAX);
            if !self.cache.has_background() {
                let _ = self.cache.reap();
            }
            self.benefit.left(self.seen());
        }
    }

    fn seen(&self) -> Seen {
        let (counters, flushed) = (self.cache.counters(), self.flushed.load(Ordering::Relaxed));
        Seen {
            unmapped: counters.decisions.invalidated.saturating_sub(flushed + counters.expired),
            evicted: counters.decisions.evicted + flushed,
            unkept: counters.unwatched + counters.discarded + counters.changed_in_flight,
            regions: self.cache.usage().regions,
        }
    }

    fn totals(&self) -> Totals {
        let flushed = self.flushed.load(Ordering::Relaxed);
        let CacheCounters { expired, decisions, longest_dead, .. } = self.cache.counters();
        let invalidated = decisions.invalidated.saturating_sub(flushed + expired);
        let (unheld_pages, dead_pages) = (self.cache.unheld_pages(), self.cache.usage().dead_pages);
        let evicted = decisions.evicted;
        Totals {
            caches: 1,
            evicted,
            invalidated,
            expired,
            flushed,
            unheld_pages,
            dead_pages,
            longest_dead,
            ..Totals::default()
        }
    }

    /// Deregisters what no shadow has, so that others have its room.
    fn flush(&self) {
        let invalidated = || self.cache.counters().decisions.invalidated;
        let before = invalidated();
        // Regions that are in use now stay, and libibverbs will report that the domain is in use.
        let _ = self.cache.flush();
        self.flushed.fetch_add(invalidated().saturating_sub(before), Ordering::Relaxed);
    }
}

// SAFETY: libibverbs' domains belong to no thread.
unsafe impl Send for Domain {}
// SAFETY: what it refers to of libibverbs belongs to no thread, and the rest is behind locks and atomics.
unsafe impl Sync for Domain {}

/// The first address that memory can have.
const EVERYWHERE: *const u8 = std::ptr::without_provenance(1);

/// Classes of one domain that are cached: the local one, and a few sets of rights for peers.
const CLASSES: usize = 8;

impl Domain {
    /// # Safety
    /// libibverbs has just made the domain; it is told to this when it is gone.
    pub(crate) unsafe fn new(pd: NonNull<Pd>, settings: Settings, devices: &'static Devices) -> Self {
        // SAFETY: `new` requires that libibverbs has just made the domain, so its context can be read.
        let context = unsafe { (*pd.as_ptr()).context } as usize;
        let (closed, stage) = (Arc::default(), AtomicU8::new(FRESH));
        let (windows, early, caches) = (OnceLock::new(), Mutex::default(), RwLock::default());
        Self { pd, context, settings, devices, windows, closed, stage, early, caches }
    }

    /// Returns the device that it is of.
    pub(crate) fn context(&self) -> usize {
        self.context
    }

    /// Returns a lease of what is asked for, and what the program is to see of it.
    pub(crate) fn acquire(
        &self,
        real: &'static Real,
        stats: &'static Stats,
        request: &Request,
        class: Class,
        wrong: impl Fn(BuildError),
    ) -> Result<(Mr, Backing), Passed> {
        if self.stage.load(Ordering::Relaxed) != READY && !self.is_ready_for(real, stats, request, class, &wrong) {
            return Err(Passed::First);
        }
        if class.has_windows() {
            self.can_bind(real, request)?;
        }
        let kept = self.cache(real, stats, class, wrong).ok_or(Passed::Domain)?;
        let DomainCache { cache, benefit, .. } = &*kept;
        if let Some(cause) = benefit.stands_aside() {
            return Err(Passed::Aside(cause));
        }
        pinner::begin();
        // SAFETY: what a program in C promises with a registration by hand, it promises here: the memory is its own until it
        // deregisters. Changes of it the monitor hears of.
        let lease = unsafe { cache.acquire(request.address as *const u8, request.length, request.rights()) };
        let served = match &lease {
            Ok(_) if pinner::has_pinned() => Served::Miss,
            Ok(_) => Served::Hit,
            Err(AcquireError::Unusable(_)) => return Err(Passed::Off),
            Err(AcquireError::Window { .. }) => return Err(Passed::Unbound),
            Err(_) => Served::Refused,
        };
        if benefit.served(served) {
            kept.look();
        }
        let lease = lease.map_err(|_| Passed::Refused)?;
        let mut segments = lease.segments();
        let (Some(1), Some(segment)) = (segments.size_hint().1, segments.next()) else { return Err(Passed::Refused) };
        let pinned = segment.registration();
        let mr = Mr {
            context: self.context as *mut _,
            pd: self.pd.as_ptr(),
            addr: request.address as *mut c_void,
            length: request.length,
            handle: 0,
            lkey: pinned.lkey,
            rkey: segment.window().unwrap_or(pinned.rkey),
        };
        Ok((mr, Backing::Leased(lease)))
    }

    /// Returns whether windows can give peers the rights of a request.
    fn can_bind(&self, real: &'static Real, request: &Request) -> Result<(), Passed> {
        let windows = self.windows(real).ok_or(Passed::Windows)?;
        if !windows.rights().contains(request.peers_rights()) {
            return Err(Passed::Atomics);
        }
        // A cache would register the memory in vain.
        if windows.trouble().is_some() { Err(Passed::Unbound) } else { Ok(()) }
    }

    /// Returns the windows of the domain. The first call tries the device, unless another domain did.
    fn windows(&self, real: &'static Real) -> Option<&Arc<DomainWindows>> {
        let make = || {
            let context = NonNull::new(self.context as *mut Context)?;
            // SAFETY: the domain is open, because the program registers or deregisters in it.
            let atomics = unsafe { self.devices.windows(real, context) }?;
            // SAFETY: the same; when the domain is closed, `end` has the windows forgotten.
            let windows = unsafe { DomainWindows::new(real.of_windows(), self.pd.cast(), atomics, Box::new(())) };
            windows.map(Arc::new).ok()
        };
        self.windows.get_or_init(make).as_ref()
    }

    /// Returns the windows, if there are any yet.
    fn known_windows(&self) -> Option<&Arc<DomainWindows>> {
        self.windows.get()?.as_ref()
    }

    fn go_on(&self, from: u8, to: u8) -> bool {
        self.stage.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Notes a request that comes before there are caches. Returns whether there are some now: they are made if the program has several
    /// buffers on their way. Most of these would be registered again before another is deregistered.
    #[cold]
    fn is_ready_for(
        &self,
        real: &'static Real,
        stats: &'static Stats,
        request: &Request,
        class: Class,
        wrong: impl Fn(BuildError),
    ) -> bool {
        let has_several = self.early().begin(class, request.length);
        if !has_several {
            self.go_on(ENDED, AGAIN);
        } else if self.go_on(ENDED, READY) || self.go_on(AGAIN, READY) {
            self.make_wanted(real, stats, wrong);
        }
        self.stage.load(Ordering::Relaxed) == READY
    }

    /// The program has ended a registration that no cache had served. A cache has threads and tables. A program that registers once
    /// and keeps all does not need them, so there is none at first. It is made here where that shows a program that registers again and
    /// again, because a deregistration is less in the way of a transfer.
    pub(crate) fn note_deregistration(
        &self,
        real: &'static Real,
        stats: &'static Stats,
        length: usize,
        wrong: impl Fn(BuildError),
    ) {
        if self.stage.load(Ordering::Relaxed) == READY {
            return;
        }
        self.early().end(length);
        if !self.go_on(FRESH, ENDED) && self.go_on(AGAIN, READY) {
            self.make_wanted(real, stats, wrong);
        }
    }

    fn early(&self) -> MutexGuard<'_, Early> {
        self.early.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the caches of the classes that were requested so far.
    fn make_wanted(&self, real: &'static Real, stats: &'static Stats, wrong: impl Fn(BuildError)) {
        let classes = std::mem::take(&mut self.early().classes);
        for class in classes {
            let begun = Instant::now();
            if class.has_windows() && self.windows(real).is_none() {
                continue;
            }
            if self.cache(real, stats, class, &wrong).is_some() {
                stats.made.add(0, begun.elapsed());
            }
        }
    }

    fn cache(&self, real: &'static Real, stats: &'static Stats, class: Class, wrong: impl FnOnce(BuildError)) -> Made {
        self.kept(class).unwrap_or_else(|| self.make(real, stats, class, wrong))
    }

    /// Returns the cache of the class, if its creation was tried.
    fn kept(&self, class: Class) -> Option<Made> {
        let caches = self.caches.read().unwrap_or_else(PoisonError::into_inner);
        caches.iter().find(|(of, _)| *of == class).map(|(_, cache)| cache.clone())
    }

    fn make(&self, real: &'static Real, stats: &'static Stats, class: Class, wrong: impl FnOnce(BuildError)) -> Made {
        let mut caches = self.caches.write().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have been faster.
        if let Some((_, cache)) = caches.iter().find(|(of, _)| *of == class) {
            return cache.clone();
        }
        if caches.len() == CLASSES {
            return None;
        }
        // SAFETY: the domain is open: the program registers in it. When it is closed, `closed` says so.
        let pinner = unsafe {
            let windows = self.known_windows().filter(|_| class.has_windows()).cloned();
            Pinner::new(real, self.pd, class, &self.settings, stats, windows, self.closed.clone())
        };
        // Threads of the cache take no signals that are for the program's.
        let remote = if class.has_windows() { Remote::Windows } else { Remote::Trusted };
        let builder = Cache::builder(pinner).budget(&stats.budget).max_segments(1).remote(remote);
        let built = without_signals(|| self.settings.chosen(builder, class.is_for_peers())?.build());
        let cache = match built {
            Ok(cache) => Some(Arc::new(DomainCache { cache, benefit: Benefit::default(), flushed: AtomicU64::new(0) })),
            Err(error) => {
                wrong(error);
                None
            }
        };
        caches.push((class, cache.clone()));
        cache
    }

    /// Deregisters what no shadow has.
    pub(crate) fn flush(&self) {
        self.all().iter().for_each(|kept| kept.flush());
        if let Some(windows) = self.known_windows() {
            windows.close();
        }
    }

    pub(crate) fn totals(&self) -> Totals {
        let (bound, idle) = self.known_windows().map_or((0, 0), |windows| windows.counts());
        let windows = Totals { windows_bound: bound as u64, windows_idle: idle as u64, ..Totals::default() };
        self.all().iter().fold(windows, |sum, kept| sum.plus(kept.totals()))
    }

    pub(crate) fn has_caches(&self) -> bool {
        !self.all().is_empty()
    }

    fn all(&self) -> Vec<Arc<DomainCache>> {
        let caches = self.caches.read().unwrap_or_else(PoisonError::into_inner);
        caches.iter().filter_map(|(_, cache)| cache.clone()).collect()
    }

    /// The program closed it: the kernel has taken everything back, and libibverbs is not asked any more.
    ///
    /// Returns its counts, without what it has no more.
    pub(crate) fn end(&self) -> Totals {
        self.closed.store(true, Ordering::Release);
        if let Some(windows) = self.known_windows() {
            windows.abandon();
        }
        Totals { unheld_pages: 0, dead_pages: 0, caches: 0, windows_bound: 0, windows_idle: 0, ..self.totals() }
    }
}

fn without_signals<T>(run: impl FnOnce() -> T) -> T {
    // SAFETY: sets of signals are plain numbers, and these are this thread's own.
    unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        let blocked = libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before) == 0;
        let done = run();
        if blocked {
            libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        }
        done
    }
}
