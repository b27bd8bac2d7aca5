//! The fate of registered memory, for a recording: unmapped, moved or discarded.
//!
//! A cache would have to register such memory anew, and a simulation cannot know by itself. So the recording hears of it as a cache
//! does, by userfaultfd, and notes an invalidation of what was registered there at any time. Changes that userfaultfd does not see
//! or may not be asked for go unnoticed. At most 4,096 different ranges are watched at once: what is registered beyond them is
//! counted in the recording.

use mrrc::PageRange;
use mrrc::invalidation::{Change, Monitor, Reports, Userfaultfd, Watch};
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use traces_record::Recorder;
use traces_record::layout::Operation;

/// Different ranges that are watched, at most.
const MOST: usize = 1 << 12;
/// Times that a thread gives way to one that reports.
const MAX_YIELDS: u32 = 10_000;
/// The number of dead ranges that are unwatched at a time.
const FEW: usize = 16;

/// Watches what is told to it.
pub(crate) struct Unmapped {
    monitor: Userfaultfd,
    reporter: Arc<Reporter>,
}

struct Reporter {
    recorder: &'static Recorder,
    /// Protection domains so far: all of them lose what is unmapped.
    domains: AtomicU32,
    /// Changes that are under way. An unmapping returns before it is reported, but not before it is counted here.
    in_progress: AtomicU32,
    /// Locked for a look. The monitor only tries it: the thread that holds it may be waiting for the monitor.
    watched: Mutex<Watched>,
}

/// With room for all from the start, as the monitor may not allocate.
struct Watched {
    ranges: Vec<Entry>,
    /// Changed, and to be unwatched.
    gone: Vec<PageRange>,
}

struct Entry {
    range: PageRange,
    /// The monitor has answered.
    is_watched: bool,
    /// It changed before that.
    is_changed: bool,
}

impl Unmapped {
    /// Begins to watch.
    ///
    /// # Errors
    /// The system's refusals.
    pub(crate) fn new(recorder: &'static Recorder) -> io::Result<Self> {
        let monitor = Userfaultfd::of_process()?;
        let watched = Watched { ranges: Vec::with_capacity(MOST), gone: Vec::with_capacity(MOST) };
        let [domains, in_progress] = [1, 0].map(AtomicU32::new);
        let reporter = Arc::new(Reporter { recorder, domains, in_progress, watched: Mutex::new(watched) });
        #[expect(unsafe_code, reason = "a monitor is used")]
        // SAFETY: the monitor was just made and is used for this recording alone.
        unsafe {
            monitor.start(Arc::<Reporter>::clone(&reporter))?;
        }
        Ok(Self { monitor, reporter })
    }

    /// Waits until what was unmapped before is recorded: some microseconds, and not for ever.
    pub(crate) fn catch_up(&self) {
        for _ in 0..MAX_YIELDS {
            if self.reporter.in_progress.load(Ordering::Acquire) == 0 {
                return;
            }
            std::thread::yield_now();
        }
    }

    /// Memory was registered in this domain: from now on what becomes of it is recorded.
    pub(crate) fn watch(&self, domain: u8, address: u64, length: u64) {
        let Ok(range) = PageRange::of_bytes(address, length) else { return };
        self.reporter.domains.fetch_max(u32::from(domain) + 1, Ordering::Relaxed);
        let mut watched = self.reporter.lock();
        let mut gone = [None; FEW];
        gone.iter_mut().for_each(|place| *place = watched.gone.pop());
        let known = watched.ranges.iter().any(|entry| entry.range == range);
        let is_new = !known && watched.ranges.len() + watched.gone.len() < MOST;
        if is_new {
            watched.ranges.push(Entry { range, is_watched: false, is_changed: false });
        }
        drop(watched);
        if !known && !is_new {
            self.reporter.recorder.is_unwatched();
        }
        gone.into_iter().flatten().for_each(|range| self.unwatch(range));
        if is_new {
            self.begin(range);
        }
    }

    fn begin(&self, range: PageRange) {
        #[expect(unsafe_code, reason = "a monitor is used")]
        // SAFETY: the monitor is used for this recording alone.
        let answer = unsafe { self.monitor.watch(range) };
        let mut watched = self.reporter.lock();
        let Some(at) = watched.ranges.iter().position(|entry| entry.range == range && !entry.is_watched) else {
            return;
        };
        match (answer, watched.ranges[at].is_changed) {
            (Watch::Watched, false) => watched.ranges[at].is_watched = true,
            (answer, _) => {
                watched.ranges.swap_remove(at);
                drop(watched);
                if answer == Watch::Watched {
                    self.unwatch(range);
                }
            }
        }
    }

    fn unwatch(&self, range: PageRange) {
        #[expect(unsafe_code, reason = "a monitor is used")]
        // SAFETY: the monitor is used for this recording alone, and answered for this range once; it was taken out of the list.
        unsafe {
            self.monitor.unwatch(range);
        }
    }
}

impl Reporter {
    fn lock(&self) -> MutexGuard<'_, Watched> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self, change: &Change) {
        let domains = self.domains.load(Ordering::Relaxed);
        let (address, length) = (change.range.start() * mrrc::PAGE, change.range.pages() * mrrc::PAGE);
        for domain in 0..domains {
            self.recorder.record_in(domain as u8, Operation::Invalidate, 0, address, length);
        }
    }
}

impl Reports for Reporter {
    fn raise(&self) {
        self.in_progress.fetch_add(1, Ordering::SeqCst);
    }

    fn apply(&self, changes: &[Change]) -> bool {
        let Ok(mut watched) = self.watched.try_lock() else { return false };
        let Watched { ranges, gone } = &mut *watched;
        for change in changes {
            let mut is_ours = false;
            let mut at = 0;
            while at < ranges.len() {
                let entry = &mut ranges[at];
                if !entry.range.overlaps(change.range) {
                    at += 1;
                    continue;
                }
                is_ours = true;
                // There is room: what is watched and what is gone are no more than so many together.
                if entry.is_watched && gone.len() < gone.capacity() {
                    gone.push(entry.range);
                    ranges.swap_remove(at);
                } else {
                    entry.is_changed |= !entry.is_watched;
                    at += 1;
                }
            }
            if is_ours {
                self.record(change);
            }
        }
        true
    }

    fn lower(&self) {
        self.in_progress.fetch_sub(1, Ordering::Release);
    }
}
