//! Large ranges ahead of their use: their pages are made present, and registered, by several threads.
//!
//! Registering fresh memory is mostly the work of finding and zeroing its pages, which several threads can do at once. Some
//! registrars register at once, too. That of an io_uring takes turns.
//!
//! The threads are the library's own: ordinary ones, on the CPUs of the process, whatever the caller is bound to.

use crate::access::Access;
use crate::effective::EffectiveSettings;
use crate::error::{AcquireError, Unusable};
use crate::lease;
use crate::own_thread;
use crate::range::{PAGE, PageRange};
use crate::registrar::Registrar;
use crate::shim::thread::JoinHandle;
use crate::state::shared::Shared;
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Pages that are made present by one call: 32 MiB.
const PIECE: u64 = 8192;
/// The most threads unless set, and the most that can be set.
const THREADS: usize = 4;
const MOST_THREADS: usize = 64;

/// How [`Cache::warm_with`](crate::Cache::warm_with) registers a large range.
///
/// ```
/// use mrrc::cache::Warm;
/// let how = Warm::new().threads(2).chunk(256 << 20).huge(true);
/// # let _ = how;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Warm {
    threads: usize,
    chunk_pages: u64,
    prefault: bool,
    huge: bool,
}

impl Default for Warm {
    fn default() -> Self {
        Self { threads: 0, chunk_pages: (1 << 30) / PAGE, prefault: true, huge: false }
    }
}

impl Warm {
    /// Returns the defaults: up to 4 threads, chunks of 1 GiB, pages made present, no hint about huge pages.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the number of threads, of which there are at most 64. Default, or 0: the CPUs of the process, at most 4.
    #[must_use]
    pub fn threads(self, threads: usize) -> Self {
        Self { threads, ..self }
    }

    /// Sets the bytes that are registered by one call, rounded up to pages. A lease of more has several segments. The chunks are larger where
    /// a lease has fewer segments ([`Builder::max_segments`](crate::cache::Builder::max_segments)). With one, the range is one chunk.
    /// Default: 1 GiB.
    #[must_use]
    pub fn chunk(self, bytes: u64) -> Self {
        Self { chunk_pages: bytes.div_ceil(PAGE).max(1), ..self }
    }

    /// Sets whether pages are made present first, in parallel (`MADV_POPULATE_WRITE`; Linux 5.14, before that a registration does it).
    /// Memory that cannot be written is only read. Default: yes.
    #[must_use]
    pub fn prefault(self, on: bool) -> Self {
        Self { prefault: on, ..self }
    }

    /// Sets whether the system is given the hint to use huge pages there (`MADV_HUGEPAGE`). They are found faster, and pinned whole.
    /// The hint stays with the memory. Default: no.
    #[must_use]
    pub fn huge(self, on: bool) -> Self {
        Self { huge: on, ..self }
    }

    /// Returns the threads for so many steps.
    fn threads_for(&self, steps: u64) -> usize {
        let threads = if self.threads == 0 { own_thread::cpus().min(THREADS) } else { self.threads.min(MOST_THREADS) };
        usize::try_from(steps).map_or(threads, |steps| steps.min(threads))
    }
}

/// Why a range was not registered as a whole. Chunks that were registered before stay cached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WarmError {
    /// A chunk could not be acquired.
    #[error("warm: {0}")]
    Acquire(#[from] AcquireError),
    /// A page cannot be made present.
    #[error(
        "warm {range}: the page at {address:#x} cannot be made present: {source}: give a range that is mapped as a whole"
    )]
    Page {
        /// The requested range.
        range: PageRange,
        /// The first such page.
        address: u64,
        /// The system's error.
        source: io::Error,
    },
}

impl WarmError {
    /// Returns whether it says more than another error of the same range: the first bad page says most.
    fn comes_before(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Page { address, .. }, Self::Page { address: other, .. }) => address < other,
            (Self::Page { .. }, Self::Acquire(_)) => true,
            (Self::Acquire(_), _) => false,
        }
    }
}

/// The steps of one range: pieces whose pages are made present, then chunks that are registered. Each has a number.
#[derive(Clone, Copy, Debug)]
struct Steps {
    range: PageRange,
    /// Pages of a piece and of a chunk. No pieces where nothing is made present.
    piece: Option<u64>,
    chunk: u64,
}

/// The bounds of chunks.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// The segments of a lease.
    most: u64,
    /// Pages of the longest region, and of a page of the device.
    longest: u64,
    unit: u64,
}

impl Bounds {
    fn of(settings: &EffectiveSettings) -> Self {
        Self { most: settings.max_segments as u64, longest: settings.region_pages, unit: settings.unit }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Prefault(PageRange),
    Register(PageRange),
}

impl Steps {
    /// If the range can be leased, it has no more chunks than a lease has segments, and none is larger than a region may be.
    fn new(range: PageRange, how: &Warm, bounds: Bounds) -> Self {
        let least = range.pages().div_ceil(bounds.most.max(1));
        let chunk = how.chunk_pages.min(bounds.longest).max(least).next_multiple_of(bounds.unit.max(1));
        Self { range, piece: how.prefault.then_some(PIECE), chunk }
    }

    fn count(&self) -> u64 {
        self.pieces() + self.range.pages().div_ceil(self.chunk)
    }

    fn pieces(&self) -> u64 {
        self.piece.map_or(0, |piece| self.range.pages().div_ceil(piece))
    }

    /// Returns the step with this number.
    fn nth(&self, nth: u64) -> Option<Step> {
        let pieces = self.pieces();
        if nth < pieces {
            return self.part(nth, self.piece?).map(Step::Prefault);
        }
        self.part(nth - pieces, self.chunk).map(Step::Register)
    }

    fn part(&self, nth: u64, pages: u64) -> Option<PageRange> {
        let start = self.range.start() + nth.checked_mul(pages)?;
        (start < self.range.end()).then(|| PageRange::between(start, self.range.end().min(start.saturating_add(pages))))
    }

    /// Returns the bytes of all steps.
    fn total(&self) -> u64 {
        bytes(self.range).saturating_mul(1 + u64::from(self.piece.is_some()))
    }
}

/// Returns the number of bytes. The whole address space has one more than there are numbers.
fn bytes(range: PageRange) -> u64 {
    range.pages().saturating_mul(PAGE)
}

/// Returns the address and length of a buffer that has these pages. None is at the null address.
fn buffer(range: PageRange) -> (usize, usize) {
    let address = (range.start() * PAGE).max(1);
    let last = (range.end() - 1) * PAGE + (PAGE - 1);
    (address as usize, (last - address + 1) as usize)
}

/// The steps that threads share, and how far they are.
struct Job<R: Registrar> {
    shared: Arc<Shared<R>>,
    steps: Steps,
    access: Access,
    next: AtomicU64,
    is_stopped: AtomicBool,
    registered: AtomicU64,
}

/// A result of a step: its bytes.
type Taken = Result<u64, WarmError>;

impl<R: Registrar> Job<R> {
    /// Takes steps until none is left. Each result goes to the caller's thread.
    fn work(&self, results: &SyncSender<Taken>) {
        let _stop = StopOnPanic(&self.is_stopped);
        while let Some(result) = self.take_next() {
            if results.send(result).is_err() {
                return;
            }
        }
    }

    /// Takes the next step. None is left after an error, or when it was stopped.
    fn take_next(&self) -> Option<Taken> {
        if self.is_stopped.load(Ordering::Relaxed) {
            return None;
        }
        let result = self.take(self.steps.nth(self.next.fetch_add(1, Ordering::Relaxed))?);
        if result.is_err() {
            self.stop();
        }
        Some(result)
    }

    fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    fn is_forked(&self) -> bool {
        self.shared.tables.gate.is_forked()
    }

    /// Takes a step. Returns its bytes.
    fn take(&self, step: Step) -> Taken {
        if self.is_forked() {
            return Err(forked());
        }
        match step {
            Step::Prefault(piece) => {
                populate(piece).map_err(|(address, source)| WarmError::Page {
                    range: self.steps.range,
                    address,
                    source,
                })?;
                Ok(bytes(piece))
            }
            Step::Register(chunk) => {
                let (address, length) = buffer(chunk);
                drop(lease::acquire(&self.shared, address, length, self.access, None)?);
                self.registered.fetch_add(bytes(chunk), Ordering::Relaxed);
                Ok(bytes(chunk))
            }
        }
    }
}

fn forked() -> WarmError {
    AcquireError::from(Unusable::Forked).into()
}

/// Stops the other threads of a job whose registrar panics in this one.
struct StopOnPanic<'a>(&'a AtomicBool);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

/// The results so far, as the caller sees them.
struct Tally<P> {
    done: u64,
    total: u64,
    progress: P,
    error: Option<WarmError>,
    is_stopped: bool,
}

impl<P: FnMut(u64, u64) -> ControlFlow<()>> Tally<P> {
    /// Takes a result. Returns whether the work goes on. Progress is not called again once it does not.
    fn take(&mut self, result: Taken) -> bool {
        match result {
            Ok(bytes) => {
                self.done = self.done.saturating_add(bytes);
                self.is_stopped = self.is_stopped || (self.progress)(self.done, self.total).is_break();
            }
            Err(error) => {
                self.is_stopped = true;
                if self.error.as_ref().is_none_or(|first| error.comes_before(first)) {
                    self.error = Some(error);
                }
            }
        }
        !self.is_stopped
    }
}

/// The threads of a job. They end before the call that started them does, however that ends: the caller may unmap the memory then.
struct Crew<R: Registrar> {
    job: Arc<Job<R>>,
    /// There until the threads are joined.
    results: Option<Receiver<Taken>>,
    threads: Vec<JoinHandle<()>>,
}

impl<R: Registrar> Crew<R> {
    /// Starts so many threads, or as many as the system has.
    fn start(job: &Arc<Job<R>>, threads: usize, spawn: impl Fn(Box<dyn FnOnce() + Send>) -> Spawned) -> Self {
        // Bounded: threads wait for a slow caller, and so take few steps after it stops them.
        let (sender, results) = sync_channel(2 * threads);
        let start = |_| {
            let (job, sender) = (job.clone(), sender.clone());
            spawn(Box::new(move || job.work(&sender))).ok()
        };
        Self { job: job.clone(), results: Some(results), threads: (0..threads).map_while(start).collect() }
    }

    /// Waits for the threads.
    ///
    /// # Panics
    /// Where one of them panicked.
    fn join(mut self) {
        let ends: Vec<_> = self.threads.drain(..).map(JoinHandle::join).collect();
        if let Some(panic) = ends.into_iter().find_map(Result::err) {
            std::panic::resume_unwind(panic);
        }
    }
}

impl<R: Registrar> Drop for Crew<R> {
    fn drop(&mut self) {
        self.job.stop();
        let (results, threads) = (self.results.take(), std::mem::take(&mut self.threads));
        if self.job.is_forked() {
            // The threads are the parent's, and one may have been about to hand over a result.
            std::mem::forget((results, threads));
            return;
        }
        // Before the threads: they may wait to hand over a result.
        drop(results);
        threads.into_iter().for_each(|thread| _ = thread.join());
    }
}

type Spawned = io::Result<JoinHandle<()>>;

/// [`Cache::warm_with`](crate::Cache::warm_with).
pub(crate) fn warm<R: Registrar>(
    shared: &Arc<Shared<R>>,
    address: usize,
    length: usize,
    access: Access,
    how: &Warm,
    progress: impl FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<u64, WarmError> {
    let range = PageRange::of_bytes(address as u64, length as u64).map_err(AcquireError::from)?;
    let range = range.rounded_out(shared.settings.unit);
    // Before any page is made present.
    shared.settings.check(range, access.with_read(), None, || shared.registrar.name())?;
    if shared.tables.gate.is_forked() {
        return Err(forked());
    }
    if how.huge {
        advise_huge(range);
    }
    // What is registered, without windows: those belong to leases.
    let (access, _) = shared.settings.divided(access);
    warm_by(shared, range, access, how, progress, |work| own_thread::spawn("mrrc-warm", work))
}

/// Warms a range by threads that `spawn` starts. Without any, this thread does the work.
fn warm_by<R: Registrar>(
    shared: &Arc<Shared<R>>,
    range: PageRange,
    access: Access,
    how: &Warm,
    progress: impl FnMut(u64, u64) -> ControlFlow<()>,
    spawn: impl Fn(Box<dyn FnOnce() + Send>) -> Spawned,
) -> Result<u64, WarmError> {
    let steps = Steps::new(range, how, Bounds::of(&shared.settings));
    let job = Arc::new(Job {
        shared: shared.clone(),
        steps,
        access,
        next: AtomicU64::new(0),
        is_stopped: AtomicBool::new(false),
        registered: AtomicU64::new(0),
    });
    let mut tally = Tally { done: 0, total: steps.total(), progress, error: None, is_stopped: false };
    let crew = Crew::start(&job, how.threads_for(steps.count()), spawn);
    if crew.threads.is_empty() {
        // The system has no thread left.
        while let Some(result) = job.take_next()
            && tally.take(result)
        {}
    }
    for result in crew.results.iter().flatten() {
        if !tally.take(result) {
            job.stop();
        }
        // Progress may fork, and no thread sends anything in the child.
        if job.is_forked() {
            return Err(forked());
        }
    }
    crew.join();
    tally.error.map_or_else(|| Ok(job.registered.load(Ordering::Relaxed)), Err)
}

/// Makes pages present, for writing where that is allowed.
///
/// # Errors
/// The first address of a page that cannot be made present, and why.
fn populate(range: PageRange) -> Result<(), (u64, io::Error)> {
    let Err(error) = populate_once(range) else { return Ok(()) };
    if range.pages() == 1 {
        return Err((range.start() * PAGE, error));
    }
    let middle = range.start() + range.pages() / 2;
    populate(PageRange::between(range.start(), middle))?;
    populate(PageRange::between(middle, range.end()))
}

#[cfg(target_os = "linux")]
fn populate_once(range: PageRange) -> io::Result<()> {
    for advice in [libc::MADV_POPULATE_WRITE, libc::MADV_POPULATE_READ] {
        match advise(range, advice) {
            // Memory that cannot be written, or an older system: then a registration does it, or finds why it cannot.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
            result => return result,
        }
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn populate_once(_: PageRange) -> io::Result<()> {
    Ok(())
}

/// That there are no huge pages is no error.
fn advise_huge(range: PageRange) {
    #[cfg(target_os = "linux")]
    let _ = advise(range, libc::MADV_HUGEPAGE);
    #[cfg(not(target_os = "linux"))]
    let _ = range;
}

#[cfg(target_os = "linux")]
fn advise(range: PageRange, advice: libc::c_int) -> io::Result<()> {
    let (start, bytes) = ((range.start() * PAGE) as *mut libc::c_void, bytes(range) as usize);
    #[expect(unsafe_code, reason = "a system call")]
    // SAFETY: `madvise` with these three kinds of advice changes no byte that is there: it makes pages present, or names their size.
    let result = unsafe { libc::madvise(start, bytes, advice) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANY: Bounds = Bounds { most: u64::MAX, longest: u64::MAX, unit: 1 };

    #[test]
    fn steps_cover_the_range_once_each() {
        for (pages, chunk, prefault) in
            [(1, 1, true), (20_000, 8192, true), (20_000, 300, false), (16_384, 1 << 18, true)]
        {
            let range = PageRange::new(77, pages).unwrap();
            let how = Warm { chunk_pages: chunk, prefault, ..Warm::new() };
            let steps = Steps::new(range, &how, ANY);
            let all: Vec<_> = (0..steps.count()).map(|nth| steps.nth(nth).unwrap()).collect();
            assert_eq!(steps.nth(steps.count()), None);
            let (mut present, mut registered) = (range.start(), range.start());
            for step in all {
                let (next, part) = match step {
                    Step::Prefault(part) => (&mut present, part),
                    Step::Register(part) => (&mut registered, part),
                };
                assert_eq!(*next, part.start());
                *next = part.end();
            }
            assert_eq!((present, registered), (if prefault { range.end() } else { range.start() }, range.end()));
            assert_eq!(steps.total(), pages * PAGE * if prefault { 2 } else { 1 });
        }
    }

    #[test]
    fn one_segment_is_one_chunk() {
        let bounds = Bounds { most: 1, ..ANY };
        let steps = Steps::new(PageRange::new(1, 1000).unwrap(), &Warm::new().chunk(4096).prefault(false), bounds);
        assert_eq!((steps.count(), steps.nth(0)), (1, Some(Step::Register(steps.range))));
    }

    #[test]
    fn chunks_keep_to_segments_regions_and_units() {
        let chunk = |pages, chunk, bounds| {
            let how = Warm { chunk_pages: chunk, ..Warm::new() };
            Steps::new(PageRange::new(16, pages).unwrap(), &how, bounds).chunk
        };
        assert_eq!(chunk(1000, 10, Bounds { most: 4, ..ANY }), 250);
        assert_eq!(chunk(1000, 500, Bounds { most: 4, ..ANY }), 500);
        assert_eq!(chunk(1000, 500, Bounds { longest: 300, most: 4, unit: 1 }), 300);
        assert_eq!(chunk(1000, 500, Bounds { longest: 250, most: 4, unit: 1 }), 250);
        assert_eq!(chunk(1024, 10, Bounds { longest: 256, most: 4, unit: 16 }), 256);
        assert_eq!(chunk(1024, 10, Bounds { unit: 16, ..ANY }), 16);
    }

    #[test]
    fn buffers_begin_behind_null_and_end_at_the_last_byte() {
        assert_eq!(buffer(PageRange::new(0, 2).unwrap()), (1, 8191));
        assert_eq!(buffer(PageRange::new(5, 1).unwrap()), (5 * 4096, 4096));
        let last = PageRange::between(PageRange::EVERYTHING.end() - 1, PageRange::EVERYTHING.end());
        assert_eq!(buffer(last), (usize::MAX - 4095, 4096));
        assert_eq!((buffer(PageRange::EVERYTHING), bytes(PageRange::EVERYTHING)), ((1, usize::MAX), u64::MAX));
    }

    #[test]
    fn threads_are_bounded() {
        assert_eq!(Warm::new().threads(usize::MAX).threads_for(u64::MAX), MOST_THREADS);
        assert_eq!(Warm::new().threads(usize::MAX).threads_for(3), 3);
        assert_eq!(Warm::new().threads_for(1), 1);
        assert!((1..=THREADS).contains(&Warm::new().threads_for(u64::MAX)));
    }

    #[test]
    fn first_bad_page_is_kept_and_progress_ends() {
        let page = |address| {
            let range = PageRange::new(1, 9).unwrap();
            Err(WarmError::Page { range, address, source: io::ErrorKind::OutOfMemory.into() })
        };
        for order in [[9, 0, 5], [5, 9, 0], [0, 5, 9]] {
            let progress = |_, _| -> ControlFlow<()> { panic!("it went on after an error") };
            let mut tally = Tally { done: 0, total: 9, progress, error: None, is_stopped: false };
            for address in order {
                assert!(!tally.take(if address == 0 { Err(forked()) } else { page(address) }));
            }
            assert!(!tally.take(Ok(1)));
            assert!(matches!(tally.error, Some(WarmError::Page { address: 5, .. })), "{order:?}: {:?}", tally.error);
        }
    }

    #[cfg(not(any(loom, shuttle)))]
    #[test]
    fn caller_works_and_can_stop_without_threads() {
        let builder = crate::Cache::builder(crate::testing::NoopRegistrar::default());
        let builder = builder.capacity_pages(1000).monitor(crate::invalidation::Explicit).ignore_environment();
        let cache = builder.build().unwrap();
        let warm = |range, until| {
            let how = Warm::new().threads(3).chunk(PAGE).prefault(false);
            let mut seen = 0;
            let progress = |done, total| {
                assert!(done == seen + PAGE && total == 8 * PAGE, "{done} {total}");
                seen = done;
                if done < until { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            };
            let none = |_| Err(io::Error::other("no thread is left"));
            warm_by(&cache.shared, range, Access::LOCAL, &how, progress, none).unwrap()
        };
        assert_eq!(warm(PageRange::new(10, 8).unwrap(), 3 * PAGE), 3 * PAGE);
        assert_eq!(cache.counters().attempts, 3);
        assert_eq!(warm(PageRange::new(20, 8).unwrap(), u64::MAX), 8 * PAGE);
        assert_eq!((cache.counters().attempts, cache.usage().pages), (11, 11));
    }
}
