//! The shim's state in one process: settings, the program's protection domains, and counters.
//!
//! A forked child has a copy of all that, with locks that may never be released. So it never touches it. It makes a
//! new one at the first call, leaves the old one where it is, and caches registrations in domains that it opens
//! itself.
//!
//! # Locks and ownership
//!
//! The domains are behind a lock that is held to look one up, and for nothing else. None of these is ever freed.

use crate::abi::{Context, FORK_ENABLED, Mr, Pd};
use crate::devices::Devices;
use crate::domain::{Domain, Totals};
use crate::eligibility::{Passed, Request};
use crate::fork::kernel_copies_pinned_pages;
use crate::lineage::parent_reported;
use crate::output::SummaryFile;
use crate::real::Real;
use crate::reentrancy::Inside;
use crate::settings::{Settings, Target};
use crate::shadow::{self, Backing, Behind, Shadows};
use crate::stack;
use crate::stats::Stats;
use mrrc::BuildError;
use mrrc::ForkGuard;
use rustc_hash::FxHashMap;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

pub(crate) struct Process {
    fork_guard: Option<ForkGuard>,
    /// 0, and one more in each child.
    number: u32,
    settings: Settings,
    /// The destination of the summary, if there is to be one.
    pub(crate) summary: Option<&'static SummaryFile>,
    /// Nothing is cached, for good.
    off: AtomicBool,
    reported: AtomicBool,
    /// Whether the first file of metrics was tried, and whether it was written.
    asked_metrics: AtomicBool,
    has_metrics: AtomicBool,
    /// Held while that file is written: the process may end meanwhile. Not of all processes, because a child would wait for good.
    writing: Mutex<()>,
    pub(crate) shadows: Shadows,
    domains: RwLock<FxHashMap<usize, Arc<Domain>>>,
    /// The counts of domains that are closed. Locked under the lock of the domains.
    gone: Mutex<Totals>,
    pub(crate) stats: &'static Stats,
    devices: &'static Devices,
}

static CURRENT: AtomicPtr<Process> = AtomicPtr::new(std::ptr::null_mut());

/// Domains at once: each may have threads and tables.
const DOMAINS: usize = 64;

/// Returns the state of this process, if any function was called yet.
pub(crate) fn existing() -> Option<&'static Process> {
    parent().filter(|process| process.is_this_process())
}

#[expect(unsafe_code, reason = "what is leaked stays")]
fn parent() -> Option<&'static Process> {
    // SAFETY: `CURRENT` is null or leads to a `Process` that `current` leaked, so it lives for good.
    unsafe { CURRENT.load(Ordering::Acquire).as_ref() }
}

/// Returns the state of this process.
pub(crate) fn current() -> &'static Process {
    let before = parent();
    if let Some(process) = before.filter(|process| process.is_this_process()) {
        return process;
    }
    let new = Box::leak(Box::new(before.map_or_else(Process::first, Process::child_of)));
    let old = before.map_or(std::ptr::null_mut(), |process| std::ptr::from_ref(process).cast_mut());
    match CURRENT.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            new.begin();
            new
        }
        // Two threads at once: one is leaked.
        Err(_) => current(),
    }
}

impl Process {
    fn first() -> Self {
        let (settings, wrong) = match Settings::of_process() {
            Ok(settings) => (settings, None),
            Err(wrong) => (Settings::off(), Some(wrong)),
        };
        // The file of a relative path depends on the directory of the process.
        let is_parents = matches!(&settings.summary, Some(Target::File(path)) if path.is_absolute());
        let (summary, unwritten) = match settings.summary.as_ref().map(SummaryFile::open).transpose() {
            Ok(summary) => (summary.map(|file| &*Box::leak(Box::new(file))), None),
            Err(wrong) => (None, Some(wrong)),
        };
        let process = Self::new(0, settings, summary);
        // The first of a tree of processes prints it.
        if let Some(wrong) = wrong.filter(|_| !parent_reported()) {
            process.report(&format!("{wrong} (nothing is cached)"));
        }
        if let Some(wrong) = unwritten.filter(|_| !is_parents || !parent_reported()) {
            process.report(&format!("{wrong} (there will be no summary)"));
        }
        process
    }

    fn child_of(parent: &'static Self) -> Self {
        let child = Self::new(parent.number + 1, parent.settings.clone(), parent.summary);
        if parent.off.load(Ordering::Relaxed) {
            child.off.store(true, Ordering::Relaxed);
        }
        child
    }

    fn new(number: u32, settings: Settings, summary: Option<&'static SummaryFile>) -> Self {
        let fork_guard = ForkGuard::new().ok();
        Self {
            // Where children would not be known, nothing is cached.
            off: AtomicBool::new(settings.off || fork_guard.is_none()),
            fork_guard,
            number,
            settings,
            summary,
            reported: AtomicBool::new(false),
            asked_metrics: AtomicBool::new(false),
            has_metrics: AtomicBool::new(false),
            writing: Mutex::default(),
            shadows: Shadows::new(number),
            domains: RwLock::default(),
            gone: Mutex::default(),
            stats: Box::leak(Box::new(Stats::new())),
            devices: Box::leak(Box::new(Devices::new(report))),
        }
    }

    /// Called once it is the state that all threads find.
    fn begin(&self) {
        if !self.off.load(Ordering::Relaxed) && !kernel_copies_pinned_pages() {
            self.turn_off("this kernel (before Linux 5.12) parts pinned pages from their memory when a process forks");
        }
    }

    fn is_this_process(&self) -> bool {
        !self.fork_guard.as_ref().is_some_and(ForkGuard::is_forked)
    }

    /// Writes one line to standard error, for the user of the program. In one piece, as many processes may say it at
    /// once.
    pub(crate) fn report(&self, line: &str) {
        report(line);
    }

    /// Returns whether the durations of calls are recorded.
    pub(crate) fn times_calls(&self) -> bool {
        self.summary.is_some() || self.settings.metrics.is_some()
    }

    /// Returns the name of the file of metrics if one was asked for, and this is the first call.
    pub(crate) fn begin_metrics(&self) -> Option<PathBuf> {
        let file = self.settings.metrics_file()?;
        (!self.asked_metrics.swap(true, Ordering::Relaxed)).then_some(file)
    }

    /// The first file of metrics was written: others follow.
    pub(crate) fn keep_metrics(&self) {
        self.has_metrics.store(true, Ordering::Relaxed);
    }

    /// Returns the name of the file of metrics, if it is written.
    pub(crate) fn metrics_file(&self) -> Option<PathBuf> {
        self.settings.metrics_file().filter(|_| self.has_metrics.load(Ordering::Relaxed))
    }

    /// Keeps other threads from writing the file of metrics.
    pub(crate) fn writing(&self) -> MutexGuard<'_, ()> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the counts of all caches so far.
    pub(crate) fn totals(&self) -> Totals {
        let domains = self.domains.read().unwrap_or_else(PoisonError::into_inner);
        // Under the lock: a domain that closes is in one of the two.
        let gone = *self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        let all: Vec<_> = domains.values().cloned().collect();
        drop(domains);
        all.iter().fold(gone, |sum, domain| sum.plus(domain.totals()))
    }

    pub(crate) fn is_off(&self) -> bool {
        self.off.load(Ordering::Relaxed)
    }

    /// For good, and said once.
    pub(crate) fn turn_off(&self, why: &str) {
        self.off.store(true, Ordering::Relaxed);
        if !self.reported.swap(true, Ordering::Relaxed) {
            self.report(&format!("{why}; nothing is cached"));
        }
    }

    /// Returns whether libibverbs was asked to hide registered memory from children, and does so. Memory that stays
    /// registered would be missing in children that the program forks later.
    fn hides_from_children(real: &Real) -> bool {
        #[expect(unsafe_code, reason = "a call of libibverbs")]
        match real.is_fork_initialized {
            // SAFETY: `ibv_is_fork_initialized` takes no arguments and passes no memory.
            Some(ask) => unsafe { ask() == FORK_ENABLED },
            None => ["RDMAV_FORK_SAFE", "IBV_FORK_SAFE"].into_iter().any(|name| std::env::var_os(name).is_some()),
        }
    }

    /// The program has a new domain.
    ///
    /// # Safety
    /// libibverbs has just made it.
    #[expect(unsafe_code, reason = "what libibverbs returned")]
    pub(crate) unsafe fn domain_opened(&self, real: &Real, pd: NonNull<Pd>) {
        if !self.is_off() && Self::hides_from_children(real) {
            self.turn_off("registered memory is hidden from forked children (ibv_fork_init, RDMAV_FORK_SAFE)");
        }
        if self.is_off() {
            return;
        }
        // SAFETY: the caller promises that libibverbs has just made the domain, as `Domain::new` requires.
        let domain = Arc::new(unsafe { Domain::new(pd, self.settings.clone(), self.devices) });
        let pd = pd.as_ptr() as usize;
        // An earlier domain at this address is gone, with its regions, and the shim saw no call.
        let before = self.domain(pd);
        let totals = before.as_ref().map(|before| before.end());
        let mut domains = self.domains.write().unwrap_or_else(PoisonError::into_inner);
        if let (Some(before), Some(totals)) = (&before, totals) {
            self.forget(&mut domains, pd, before, totals);
        }
        if domains.len() < DOMAINS {
            domains.insert(pd, domain);
        }
        drop(domains);
        drop(before);
    }

    /// Takes out a domain, unless it has gone. Its counts stay.
    fn forget(&self, domains: &mut FxHashMap<usize, Arc<Domain>>, pd: usize, domain: &Arc<Domain>, totals: Totals) {
        // Another thread may have been given a new one at its address meanwhile.
        if domains.get(&pd).is_some_and(|known| Arc::ptr_eq(known, domain)) {
            domains.remove(&pd);
            let mut gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
            *gone = gone.plus(totals);
        }
    }

    /// Returns the cache's registration for a request as an `ibv_mr`, or why libibverbs has to be asked.
    pub(crate) fn serve(&self, real: &'static Real, request: &Request) -> Result<*mut Mr, Passed> {
        let (mr, behind) = self.acquire(real, request)?;
        self.shadows.show(mr, behind).map_err(|_| Passed::Refused)
    }

    /// As [`Process::serve`], to be shown later.
    pub(crate) fn acquire(&self, real: &'static Real, request: &Request) -> Result<(Mr, Behind), Passed> {
        if self.is_off() {
            return Err(Passed::Off);
        }
        let class = request.class(self.settings.remote)?;
        let domain = self.domain(request.pd).ok_or(Passed::Domain)?;
        if !stack::is_enough() {
            return Err(Passed::Stack);
        }
        let acquired = self.guarded(|| domain.acquire(real, self.stats, request, class, |error| self.cannot(&error)));
        let (mr, backing) = acquired.unwrap_or(Err(Passed::Off))?;
        Ok((mr, Behind { backing, access: request.access }))
    }

    /// A fault of the cache's is no fault of the program's.
    fn guarded<T>(&self, run: impl FnOnce() -> T) -> Option<T> {
        let done = catch_unwind(AssertUnwindSafe(run));
        if done.is_err() {
            self.turn_off("the cache has a fault: please report it");
        }
        done.ok()
    }

    fn cannot(&self, error: &BuildError) {
        self.turn_off(&error.to_string());
    }

    fn domain(&self, pd: usize) -> Option<Arc<Domain>> {
        self.domains.read().unwrap_or_else(PoisonError::into_inner).get(&pd).cloned()
    }

    fn all(&self) -> Vec<Arc<Domain>> {
        self.domains.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Makes room for a registration or a queue of the program's own: all caches give up their unused regions. Returns whether they
    /// had any region. If not, the call that failed is not made again: programs probe limits by calls that fail.
    pub(crate) fn make_room(&self) -> bool {
        let any = self.stats.budget.pages() > 0;
        if any {
            self.all().iter().for_each(|domain| domain.flush());
        }
        any
    }

    /// The program has ended a registration in this domain that no cache had served.
    pub(crate) fn note_deregistration(&self, real: &'static Real, pd: usize, length: usize) {
        if let Some(domain) = self.domain(pd).filter(|_| !self.is_off() && stack::is_enough()) {
            self.guarded(|| domain.note_deregistration(real, self.stats, length, |error| self.cannot(&error)));
        }
    }

    /// The program wants to be rid of a domain: what is in it without its knowledge goes first. Returns what is to be done
    /// when libibverbs is rid of it.
    pub(crate) fn domain_closing(&self, pd: *mut Pd) -> Option<Arc<Domain>> {
        let domain = self.domain(pd as usize)?;
        self.ending(domain.has_caches(), || domain.flush());
        Some(domain)
    }

    /// The domain is no more.
    pub(crate) fn domain_closed(&self, pd: *mut Pd, domain: Arc<Domain>) {
        self.ending(domain.has_caches(), || {
            let totals = domain.end();
            let mut domains = self.domains.write().unwrap_or_else(PoisonError::into_inner);
            self.forget(&mut domains, pd as usize, &domain, totals);
            drop(domains);
            // With the last of these the caches end, and their threads.
            drop(domain);
        });
    }

    /// Counts the time that the program waits for the end of caches, for the summary.
    fn ending(&self, has_caches: bool, run: impl FnOnce()) {
        let begun = has_caches.then(Instant::now);
        run();
        if let Some(begun) = begun {
            self.stats.ended.add(0, begun.elapsed());
        }
    }

    /// The program closes a device.
    pub(crate) fn device_closing(&self, context: *mut Context) -> Vec<(usize, Arc<Domain>)> {
        let domains = self.domains.read().unwrap_or_else(PoisonError::into_inner);
        let of_device = domains.iter().filter(|(_, domain)| domain.context() == context as usize);
        let of_device: Vec<_> = of_device.map(|(&pd, domain)| (pd, domain.clone())).collect();
        drop(domains);
        of_device.iter().for_each(|(_, domain)| self.ending(domain.has_caches(), || domain.flush()));
        of_device
    }

    /// It is closed, and the kernel has taken back all that was registered with it.
    pub(crate) fn device_closed(&self, domains: Vec<(usize, Arc<Domain>)>) {
        for (pd, domain) in domains {
            self.domain_closed(pd as *mut Pd, domain);
            for held in self.shadows.of_domain(pd) {
                self.shadows.release(held);
            }
        }
    }

    /// The end of a registration that may be a shadow. None if it is a stranger, which libibverbs knows.
    pub(crate) fn dereg(&self, real: &Real, mr: *mut Mr) -> Option<Result<(), i32>> {
        let shadow = shadow::find(mr)?;
        let Some(mut held) = shadow::hold(shadow) else { return Some(Err(libc::EINVAL)) };
        if !self.shadows.owns(shadow) {
            // The parent's, which goes on using it.
            held.abandon();
            return Some(Ok(()));
        }
        let pages = pages_of(&held.mr());
        let begun = self.times_calls().then(Instant::now);
        if let Backing::Own(own) = held.behind().backing {
            #[expect(unsafe_code, reason = "a call of libibverbs")]
            // SAFETY: it came from libibverbs, and the holder of the shadow has it alone.
            let failed = unsafe { (real.dereg_mr)(own.as_ptr()) };
            if failed != 0 {
                // The program has it still.
                return Some(Err(failed));
            }
        }
        if let Err(failed) = held.end_window() {
            // Peers may still have the right: the program has its registration still.
            return Some(Err(failed));
        }
        self.shadows.release(held);
        self.stats.returned.add(pages, begun.map_or(Duration::ZERO, |begun| begun.elapsed()));
        Some(Ok(()))
    }
}

fn report(line: &str) {
    // If that cannot be written, the program runs on without it.
    let _ = std::io::stderr().write_all(format!("mrrc-preload: {line}\n").as_bytes());
}

fn pages_of(mr: &Mr) -> u64 {
    mrrc::PageRange::of_bytes(mr.addr as u64, mr.length as u64).map_or(0, |range| range.pages())
}

/// Returns the program's name, as the kernel has it.
pub(crate) fn program_name() -> String {
    let name = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    if name.trim().is_empty() { "?".into() } else { name.trim().into() }
}

/// At load: a variable that is wrong is told at once, where there is one at all.
pub(crate) fn at_load() {
    let any = std::env::vars_os().any(|(name, _)| name.as_encoded_bytes().starts_with(b"MRRC_"));
    if any {
        let _inside = Inside::again();
        current();
    }
}
