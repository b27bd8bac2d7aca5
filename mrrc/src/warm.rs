//! Large ranges ahead of their use: their pages are made present, and registered, by several threads.
//!
//! Registering fresh memory is mostly the work of finding and zeroing its pages, which several threads can do at once. Some
//! registrars register at once, too. That of an io_uring takes turns.
//!
//! The threads are the library's own: ordinary ones, on the CPUs of the process, whatever the caller is bound to.

use crate::access::Access;
use crate::error::AcquireError;
use crate::lease;
use crate::own_thread;
use crate::range::{PAGE, PageRange};
use crate::registrar::Registrar;
use crate::state::shared::Shared;
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};

/// Pages that are made present by one call: 32 MiB.
const PIECE: u64 = 8192;
/// The most threads unless set.
const THREADS: usize = 4;

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

    /// Sets the number of threads. Default, or 0: the CPUs, at most 4.
    #[must_use]
    pub fn threads(self, threads: usize) -> Self {
        Self { threads, ..self }
    }

    /// Sets the bytes that are registered by one call, rounded up to pages. A lease of more has several segments. Where the cache gives
    /// leases of one segment, the range is one chunk. Default: 1 GiB.
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

/// The steps of one range: pieces whose pages are made present, then chunks that are registered. Each has a number.
#[derive(Clone, Copy, Debug)]
struct Steps {
    range: PageRange,
    /// Pages of a piece and of a chunk. No pieces where nothing is made present.
    piece: Option<u64>,
    chunk: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Prefault(PageRange),
    Register(PageRange),
}

impl Steps {
    fn new(range: PageRange, how: &Warm, max_segments: usize) -> Self {
        let chunk = if max_segments == 1 { range.pages() } else { how.chunk_pages };
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
        self.range.pages() * PAGE * (1 + u64::from(self.piece.is_some()))
    }
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

impl<R: Registrar> Job<R> {
    /// Takes steps until none is left. Each result goes to the caller's thread.
    fn work(&self, results: &Sender<Result<u64, WarmError>>) {
        while !self.is_stopped.load(Ordering::Relaxed)
            && let Some(step) = self.steps.nth(self.next.fetch_add(1, Ordering::Relaxed))
        {
            let result = self.take(step);
            let failed = result.is_err();
            if results.send(result).is_err() || failed {
                return;
            }
        }
    }

    /// Takes a step. Returns its bytes.
    fn take(&self, step: Step) -> Result<u64, WarmError> {
        match step {
            Step::Prefault(piece) => {
                populate(piece).map_err(|(address, source)| WarmError::Page {
                    range: self.steps.range,
                    address,
                    source,
                })?;
                Ok(piece.pages() * PAGE)
            }
            Step::Register(chunk) => {
                let (address, bytes) = (chunk.start() * PAGE, chunk.pages() * PAGE);
                drop(lease::acquire(&self.shared, address as usize, bytes as usize, self.access, None)?);
                self.registered.fetch_add(bytes, Ordering::Relaxed);
                Ok(bytes)
            }
        }
    }
}

/// [`Cache::warm_with`](crate::Cache::warm_with).
pub(crate) fn warm<R: Registrar>(
    shared: &Arc<Shared<R>>,
    address: usize,
    length: usize,
    access: Access,
    how: &Warm,
    mut progress: impl FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<u64, WarmError> {
    let range = PageRange::of_bytes(address as u64, length as u64).map_err(AcquireError::from)?;
    let range = range.rounded_out(shared.settings.unit);
    if how.huge {
        advise_huge(range);
    }
    let steps = Steps::new(range, how, shared.settings.max_segments);
    let job = Arc::new(Job {
        shared: shared.clone(),
        steps,
        access,
        next: AtomicU64::new(0),
        is_stopped: AtomicBool::new(false),
        registered: AtomicU64::new(0),
    });
    let cpus = || std::thread::available_parallelism().map_or(1, |cpus| cpus.get().min(THREADS));
    let threads = if how.threads == 0 { cpus() } else { how.threads };
    let (sender, results) = channel();
    let threads: Vec<_> = (0..steps.count().min(threads as u64))
        .map_while(|_| {
            let (job, sender) = (job.clone(), sender.clone());
            own_thread::spawn("mrrc-warm", move || job.work(&sender)).ok()
        })
        .collect();
    if threads.is_empty() {
        // The system has no thread left.
        job.work(&sender);
    }
    drop(sender);
    let (mut done, mut first_error) = (0, None);
    for result in results {
        let goes_on = match result {
            Ok(bytes) => {
                done += bytes;
                progress(done, steps.total()).is_continue()
            }
            Err(error) => {
                first_error = first_error.or(Some(error));
                false
            }
        };
        if !goes_on {
            job.is_stopped.store(true, Ordering::Relaxed);
        }
    }
    for thread in threads {
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    }
    first_error.map_or_else(|| Ok(job.registered.load(Ordering::Relaxed)), Err)
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
    let (start, bytes) = ((range.start() * PAGE) as *mut libc::c_void, (range.pages() * PAGE) as usize);
    #[expect(unsafe_code, reason = "a system call")]
    // SAFETY: `madvise` with these three kinds of advice changes no byte that is there: it makes pages present, or names their size.
    let result = unsafe { libc::madvise(start, bytes, advice) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_cover_the_range_once_each() {
        for (pages, chunk, prefault) in
            [(1, 1, true), (20_000, 8192, true), (20_000, 300, false), (16_384, 1 << 18, true)]
        {
            let range = PageRange::new(77, pages).unwrap();
            let how = Warm { chunk_pages: chunk, prefault, ..Warm::new() };
            let steps = Steps::new(range, &how, usize::MAX);
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
        let steps = Steps::new(PageRange::new(1, 1000).unwrap(), &Warm::new().chunk(4096).prefault(false), 1);
        assert_eq!((steps.count(), steps.nth(0)), (1, Some(Step::Register(steps.range))));
    }
}
