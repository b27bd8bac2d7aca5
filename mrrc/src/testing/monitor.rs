//! A source of invalidation over an [`AddressSpace`] that behaves as userfaultfd does.
//!
//! A change of a watched mapping becomes an event in a queue, and the call that makes the change does not go on
//! until the event was *read*. An unmapping or a move waits when it is done, a discard before it is done. The
//! monitor reads: in a thread of its own, in the thread that makes the change, or step by step as a test says.
//!
//! One lock guards the queue. It is never held while the cache is called.

use super::space::{Announcement, ListenerId, Moment};
use super::{AddressSpace, lock};
use crate::invalidation::{Change, ChangeKind, Monitor, Reports, Unwatched, Watch};
use crate::range::PageRange;
use crate::shim::sync::{Condvar, Mutex, MutexGuard};
use crate::shim::thread;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use std::{fmt, io, mem};

/// A monitor of an [`AddressSpace`]. A clone is the same monitor.
///
/// It reports for one cache. Like userfaultfd it watches mappings, not addresses: what is mapped anew must be
/// [watched](Monitor::watch) anew, and a change that touches nothing watched is not reported.
#[derive(Clone)]
pub struct FakeMonitor {
    shared: Arc<Shared>,
}

struct Shared {
    space: AddressSpace,
    reader: Reader,
    queue: Mutex<Queue>,
    changed: Condvar,
}

/// The reader of events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reader {
    Itself,
    Changer,
    Test,
}

#[derive(Default)]
struct Queue {
    reports: Option<Arc<dyn Reports>>,
    listener: Option<ListenerId>,
    thread: Option<thread::JoinHandle<()>>,
    /// Events that were not read yet. As many at most as threads are changing mappings: each waits for its own.
    pending: Vec<Vec<Change>>,
    queued: u64,
    read: u64,
    /// A thread is reading and reporting. One at a time, as a real monitor is one thread.
    busy: bool,
    stopping: bool,
    never_raises: bool,
    refused: Vec<(PageRange, Unwatched)>,
    hook: Option<Arc<dyn Fn(Stage) + Send + Sync>>,
    watched: u64,
    unwatched: u64,
}

/// The progress of a monitor's report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// The flag is raised, events are not read.
    Raised,
    /// Events are read: the calls that made the changes go on. The cache has not been told.
    Read,
    /// The cache has been told.
    Applied,
    /// The flag is lowered.
    Lowered,
}

impl FakeMonitor {
    /// Reads events in a thread of its own, from start to stop.
    pub fn threaded(space: &AddressSpace) -> Self {
        Self::new(space, Reader::Itself)
    }

    /// Reads and reports each event in the thread that makes the change, before its call returns.
    pub fn inline(space: &AddressSpace) -> Self {
        Self::new(space, Reader::Changer)
    }

    /// Reads events when [`FakeMonitor::step`] is called. Until then the calls that make changes wait.
    pub fn stepped(space: &AddressSpace) -> Self {
        Self::new(space, Reader::Test)
    }

    fn new(space: &AddressSpace, reader: Reader) -> Self {
        let (space, queue, changed) = (space.clone(), Mutex::new(Queue::default()), Condvar::new());
        Self { shared: Arc::new(Shared { space, reader, queue, changed }) }
    }

    /// A broken monitor, to see that a test notices: it reads and applies, and never raises the flag.
    pub fn never_raises(self) -> Self {
        lock(&self.shared.queue).never_raises = true;
        self
    }

    /// Answers that whatever touches this range cannot be watched.
    pub fn refuse(&self, range: PageRange, why: Unwatched) {
        lock(&self.shared.queue).refused.push((range, why));
    }

    /// Calls the hook at every stage of a report, with no lock of the monitor held. It replaces the one before.
    pub fn on_stage(&self, hook: impl Fn(Stage) + Send + Sync + 'static) {
        lock(&self.shared.queue).hook = Some(Arc::new(hook));
    }

    /// Events that were not read yet.
    pub fn pending(&self) -> usize {
        lock(&self.shared.queue).pending.len()
    }

    /// Returns when at least so many events are waiting to be read, or the monitor stops.
    pub fn await_pending(&self, events: usize) {
        let mut queue = lock(&self.shared.queue);
        while queue.pending.len() < events && !queue.stopping {
            queue = self.shared.wait(queue);
        }
    }

    /// Events read so far.
    pub fn events(&self) -> u64 {
        lock(&self.shared.queue).read
    }

    /// Reads and reports whatever is pending. Returns false if there was nothing to do, or another thread is at it.
    pub fn step(&self) -> bool {
        self.shared.step(lock(&self.shared.queue))
    }

    /// How often a range was watched, and how often one was let go of. The same, when nothing is registered.
    pub fn watches(&self) -> (u64, u64) {
        let queue = lock(&self.shared.queue);
        (queue.watched, queue.unwatched)
    }
}

impl Shared {
    fn wait<'a>(&self, queue: MutexGuard<'a, Queue>) -> MutexGuard<'a, Queue> {
        self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner)
    }

    /// In the thread that makes a change: queues the event and waits until it was read.
    fn hear(&self, announced: &Announcement<'_>) {
        let sent = |change: &&Change| match change.kind {
            ChangeKind::Gone => announced.moment == Moment::After,
            ChangeKind::Discarding => announced.moment == Moment::Before,
        };
        let event: Vec<Change> = announced.changes.iter().filter(sent).copied().collect();
        let mut queue = lock(&self.queue);
        if !announced.watched || event.is_empty() || queue.stopping {
            return;
        }
        queue.pending.push(event);
        queue.queued += 1;
        let mine = queue.queued;
        self.changed.notify_all();
        while queue.read < mine && !queue.stopping {
            if self.reader == Reader::Changer && !queue.busy {
                self.step(queue);
                queue = lock(&self.queue);
            } else {
                queue = self.wait(queue);
            }
        }
    }

    /// In the monitor's own thread.
    fn run(&self) {
        let mut queue = lock(&self.queue);
        while !queue.stopping {
            if queue.pending.is_empty() {
                queue = self.wait(queue);
            } else {
                self.step(queue);
                queue = lock(&self.queue);
            }
        }
    }

    /// Raises, reads, applies, lowers.
    fn step(&self, mut queue: MutexGuard<'_, Queue>) -> bool {
        let Some(reports) = queue.reports.clone().filter(|_| !queue.busy && !queue.pending.is_empty()) else {
            return false;
        };
        queue.busy = true;
        let _reading = Reading(self);
        let (raises, hook) = (!queue.never_raises, queue.hook.clone());
        drop(queue);
        let reached = |stage| {
            if let Some(hook) = &hook {
                hook(stage);
            }
        };
        if raises {
            reports.raise();
        }
        reached(Stage::Raised);
        let mut changes = Vec::new();
        loop {
            // The holder of the cache's lock may be waiting for its own event to be read: so read on each time.
            let first = changes.is_empty();
            self.read(&mut changes);
            if first {
                reached(Stage::Read);
            }
            if reports.apply(&changes) {
                break;
            }
            thread::yield_now();
        }
        reached(Stage::Applied);
        if raises {
            reports.lower();
        }
        reached(Stage::Lowered);
        true
    }

    fn read(&self, changes: &mut Vec<Change>) {
        let mut queue = lock(&self.queue);
        let events = mem::take(&mut queue.pending);
        queue.read += events.len() as u64;
        changes.extend(events.into_iter().flatten());
        self.changed.notify_all();
    }
}

/// Ends a report, also when the cache or a hook panics: then the monitor is broken, and no thread waits for it.
struct Reading<'a>(&'a Shared);

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let mut queue = lock(&self.0.queue);
        queue.busy = false;
        queue.stopping |= std::thread::panicking();
        drop(queue);
        self.0.changed.notify_all();
    }
}

// SAFETY: every change of an address space that touches what is watched is announced to its listeners before the call
// that makes it returns. No device touches memory on account of a model; the broken form is for tests that look for that.
#[expect(unsafe_code, reason = "the trait asks for a promise")]
unsafe impl Monitor for FakeMonitor {
    fn name(&self) -> &'static str {
        "fake userfaultfd"
    }

    unsafe fn start(&self, reports: Arc<dyn Reports>) -> io::Result<()> {
        let shared = &self.shared;
        let mut queue = lock(&shared.queue);
        if queue.reports.is_some() || queue.stopping {
            return Err(io::Error::from_raw_os_error(libc::EBUSY));
        }
        queue.reports = Some(reports);
        // The address space must not keep the cache alive by way of its monitor.
        let weak = Arc::downgrade(shared);
        queue.listener = Some(shared.space.listen(move |announced| {
            if let Some(shared) = weak.upgrade() {
                shared.hear(announced);
            }
        }));
        if shared.reader == Reader::Itself {
            let shared = Arc::clone(shared);
            queue.thread = Some(thread::spawn(move || shared.run()));
        }
        Ok(())
    }

    unsafe fn watch(&self, range: PageRange) -> Watch {
        let refused = lock(&self.shared.queue).refused.iter().find(|(bad, _)| bad.overlaps(range)).map(|(_, why)| *why);
        if let Some(why) = refused {
            return Watch::Unwatched(why);
        }
        if !self.shared.space.watch(range) {
            return Watch::Unwatched(Unwatched::Unmapped);
        }
        lock(&self.shared.queue).watched += 1;
        Watch::Watched
    }

    /// Returns the configured grace: a discard is reported when the pages are gone, or waits until that is dealt with. Tests
    /// look for late reports.
    fn least_grace(&self) -> Duration {
        Duration::ZERO
    }

    unsafe fn unwatch(&self, _: PageRange) {
        lock(&self.shared.queue).unwatched += 1;
    }

    /// Unread events are dropped, and threads that wait for them go on.
    unsafe fn stop(&self) {
        let (thread, listener) = {
            let mut queue = lock(&self.shared.queue);
            queue.stopping = true;
            self.shared.changed.notify_all();
            while queue.busy {
                queue = self.shared.wait(queue);
            }
            queue.pending.clear();
            queue.reports = None;
            (queue.thread.take(), queue.listener.take())
        };
        if let Some(listener) = listener {
            self.shared.space.unlisten(listener);
        }
        if let Some(thread) = thread {
            // It panics only if the cache or a hook did, which has been said already.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for FakeMonitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queue = lock(&self.shared.queue);
        f.debug_struct("FakeMonitor")
            .field("reader", &self.shared.reader)
            .field("pending", &queue.pending.len())
            .field("read", &queue.read)
            .field("stopping", &queue.stopping)
            .finish_non_exhaustive()
    }
}
