//! One userfaultfd: its descriptor, what is registered with it, and its thread. Every [`Userfaultfd`](super::Userfaultfd)
//! of it is a *user*; it stops with the last one.

use super::super::mappings::{Kind, Mapping, Mappings};
use super::super::seals::Seals;
use super::super::{Reports, SharedMemory, Unwatched};
use super::calls::{Bell, Descriptor};
use super::changes::Learnt;
use super::lock;
use super::reader::{Reader, Shared, State};
use super::table::{Backing, Table};
use crate::own_thread;
use crate::range::PageRange;
use rangemap::RangeSet;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Attempts to find a mapping at rest, and to enter it into the table.
const ATTEMPTS: u32 = 4;

/// How long shared memory is not cached after its registration: a discard of it that began before is over then.
const YOUTH: Duration = Duration::from_millis(100);

/// How long a stop waits for the thread, which the cache may keep busy.
const PATIENCE: Duration = Duration::from_secs(5);

/// Room for [`Reports::apply`], and no more.
const STACK: usize = 256 << 10;

#[derive(Debug)]
pub(super) struct Watcher {
    shared: Arc<Shared>,
    mappings: Mappings,
    pub(super) seals: Seals,
    /// Users that have not stopped yet, started or not.
    users: AtomicUsize,
    /// Never taken by the monitor's thread, so memory may be allocated and freed under it.
    table: Mutex<Table>,
    thread: Mutex<Option<Running>>,
}

#[derive(Debug)]
struct Running {
    thread: JoinHandle<()>,
    _kept: Kept,
}

/// Data that the thread uses and must not be the last to drop: a drop frees.
struct Kept(#[expect(dead_code, reason = "kept alive")] Arc<Barrier>);

impl std::fmt::Debug for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Kept")
    }
}

impl Watcher {
    /// With one user.
    pub(super) fn open() -> io::Result<Self> {
        let descriptor = Descriptor::open()?;
        let bell = Bell::new()?;
        let mappings = Mappings::open().map_err(|error| {
            io::Error::new(error.kind(), format!("/proc/self/maps: {error}; mount /proc, or invalidate explicitly"))
        })?;
        let shared = Arc::new(Shared::new(descriptor, bell)?);
        Ok(Self {
            shared,
            mappings,
            seals: Seals::default(),
            users: AtomicUsize::new(1),
            table: Mutex::default(),
            thread: Mutex::default(),
        })
    }

    pub(super) fn in_child(&self) -> bool {
        self.shared.process.is_forked()
    }

    /// Lets the table learn what has happened. True if the table speaks the truth now.
    fn settle(&self, table: &mut Table) -> bool {
        // In this order: a session that ended before the look at the counter has left its list.
        let quiet = self.shared.quiet();
        // No session has begun since: the list is as empty as it was left.
        if quiet.is_some() && table.settled == quiet {
            return true;
        }
        while let Some(learnt) = self.shared.take_news() {
            match learnt {
                Learnt::Gone(range) => table.remove(range),
                Learnt::PartlyGone(range) => table.doubt(range),
                Learnt::Moved(range) => table.stray(range),
            }
        }
        table.settled = quiet;
        quiet.is_some()
    }

    /// For a cache that keeps this shared memory.
    pub(super) fn try_watch(&self, range: PageRange, kept: SharedMemory) -> Result<(), Unwatched> {
        const NO_THREAD: Unwatched = Unwatched::Refused(libc::ESRCH);
        if self.in_child() {
            return Err(NO_THREAD);
        }
        let mut table = lock(&self.table);
        if !self.shared.is(State::Running) {
            return Err(NO_THREAD);
        }
        if !(self.settle(&mut table) && table.covers(range, kept)) {
            let mut next = range.start();
            while next < range.end() {
                next = self.register(&mut table, next, kept)?;
            }
        }
        if table.is_young(range) {
            return Err(Unwatched::Young);
        }
        table.want(range);
        // If the thread failed before this look, the cache may have been told before it had anything in the range.
        if self.shared.is(State::Running) {
            return Ok(());
        }
        table.release(range);
        Err(NO_THREAD)
    }

    /// Returns the bounds of the watched mapping of private anonymous memory that holds a page, if the table knows it now.
    pub(super) fn private_mapping(&self, page: u64) -> Option<PageRange> {
        if self.in_child() || !self.shared.is(State::Running) {
            return None;
        }
        let mut table = lock(&self.table);
        if self.settle(&mut table) { table.private_mapping(page) } else { None }
    }

    /// Registers the mapping that holds the page, and answers where it ends. The table's lock is held.
    fn register(&self, table: &mut Table, page: u64, kept: SharedMemory) -> Result<u64, Unwatched> {
        let mut refused = Unwatched::Refused(libc::EAGAIN);
        for attempt in 1..=ATTEMPTS {
            let (mapping, backing) = self.look_up(page, kept)?;
            let session = self.shared.quiet();
            match self.shared.descriptor.register(mapping.pages) {
                Ok(()) => {}
                Err(error) => match error.raw_os_error().unwrap_or(libc::EIO) {
                    libc::EBUSY => return Err(Unwatched::Taken),
                    // It is not what it was a moment ago, perhaps.
                    libc::EINVAL => {
                        refused = Unwatched::Refused(libc::EINVAL);
                        continue;
                    }
                    errno => return Err(Unwatched::Refused(errno)),
                },
            }
            // Of other shared memory no page is discarded: it is sealed, or trusted.
            let shared = backing == Backing::Shared;
            table.set_young(mapping.pages, shared.then(|| Instant::now() + YOUTH));
            // Until it is entered below: it has to be unregistered some day, whatever is answered now.
            table.stray(mapping.pages);
            let (again, _) = self.look_up(page, kept)?;
            if !again.pages.contains(mapping.pages) || again.kind != mapping.kind {
                refused = Unwatched::Refused(libc::EAGAIN);
                continue;
            }
            if session.is_some() && !self.shared.descriptor.changing() && self.shared.quiet() == session {
                table.add_mapping(mapping.pages, backing);
            } else if attempt < ATTEMPTS {
                continue;
            }
            return Ok(mapping.pages.end());
        }
        Err(refused)
    }

    /// Returns the mapping that holds a page, and what it has its pages from.
    fn look_up(&self, page: u64, kept: SharedMemory) -> Result<(Mapping, Backing), Unwatched> {
        match self.mappings.at(page) {
            Ok(Some(mapping)) => Ok((mapping, self.backing(mapping, kept)?)),
            Ok(None) => Err(Unwatched::Unmapped),
            Err(error) => Err(Unwatched::Refused(error.raw_os_error().unwrap_or(libc::EIO))),
        }
    }

    fn backing(&self, mapping: Mapping, kept: SharedMemory) -> Result<Backing, Unwatched> {
        match (mapping.kind, kept) {
            _ if mapping.refusal().is_some() => Err(mapping.refusal().unwrap_or(Unwatched::Special)),
            (Kind::SharedAnonymous, _) => Ok(Backing::Shared),
            (Kind::Memfd(_) | Kind::MemoryFile, SharedMemory::Trusted) => Ok(Backing::Trusted),
            (Kind::Memfd(file), SharedMemory::Sealed) => self.seals.check(file).map(|()| Backing::Sealed),
            (Kind::Memfd(_) | Kind::MemoryFile, _) => Err(Unwatched::SharedMemory),
            _ => Ok(Backing::Private),
        }
    }

    /// Unregisters what is registered here within the ranges. The table's lock is held.
    fn unregister(&self, ranges: &RangeSet<u64>) {
        for range in ranges.iter() {
            let mut next = range.start;
            while next < range.end {
                let Ok(Some(mapping)) = self.mappings.at_or_after(next) else { break };
                let ours = PageRange::between(next, range.end).intersection(mapping.pages);
                next = mapping.pages.end();
                // Registering first: it is refused where the mapping is another's, which older kernels would let
                // us unregister.
                let sure = |&ours: &PageRange| {
                    mapping.kind.refusal().is_none() && self.shared.descriptor.register(ours).is_ok()
                };
                if let Some(ours) = ours.filter(sure) {
                    let _ = self.shared.descriptor.unregister(ours);
                }
            }
        }
    }

    /// Another user, unless this one has ended, failed or belongs to another process.
    pub(super) fn join(&self) -> bool {
        if self.in_child() || !(self.shared.is(State::New) || self.shared.is(State::Running)) {
            return false;
        }
        let more = |users: usize| users.checked_add(1).filter(|&users| users > 1);
        self.users.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok()
    }

    /// One user less. With the last it ends.
    pub(super) fn part(&self) {
        if self.users.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.stop();
        }
    }

    /// Has a cache told from now on, by the thread, which is started if it is not there.
    pub(super) fn start(&self, reports: Arc<dyn Reports>) -> io::Result<u64> {
        let subscriber = self.shared.subscribers.add(reports)?;
        let started = self.start_thread();
        if started.is_err() {
            self.shared.subscribers.remove(subscriber, Duration::ZERO);
        }
        started.map(|()| subscriber)
    }

    /// Nothing is reported to this cache any more, and no report is under way.
    pub(super) fn leave(&self, subscriber: u64) {
        // The thread holds the lock of the subscribers while it tells: it cannot wait for itself.
        let is_thread = |running: &Running| running.thread.thread().id() == thread::current().id();
        if !lock(&self.thread).as_ref().is_some_and(is_thread) {
            self.shared.subscribers.remove(subscriber, PATIENCE);
        }
    }

    fn start_thread(&self) -> io::Result<()> {
        let mut running = lock(&self.thread);
        if self.shared.is(State::Running) {
            return Ok(());
        }
        if !self.shared.is(State::New) {
            let why = "start of userfaultfd: it has failed or was stopped; make a new one";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
        }
        let up = Arc::new(Barrier::new(2));
        let (reader, seen) = (Reader::new(self.shared.clone()), up.clone());
        self.shared.set(State::Running);
        let spawned =
            own_thread::spawn_real(thread::Builder::new().name("mrrc-monitor".into()).stack_size(STACK), move || {
                // A starting thread has allocated its memory before anything is watched.
                seen.wait();
                reader.run();
            });
        match spawned {
            Ok(thread) => {
                up.wait();
                *running = Some(Running { thread, _kept: Kept(up) });
                Ok(())
            }
            Err(error) => {
                self.shared.set(State::Stopped);
                Err(io::Error::new(error.kind(), format!("start of userfaultfd's thread: {error}; raise RLIMIT_NPROC")))
            }
        }
    }

    pub(super) fn unwatch(&self, range: PageRange) {
        if self.in_child() {
            return;
        }
        let mut table = lock(&self.table);
        table.release(range);
        if table.is_crowded() && self.shared.is(State::Running) && self.settle(&mut table) {
            let idle = table.take_idle();
            self.unregister(&idle);
        }
    }

    fn stop(&self) {
        if self.in_child() {
            return;
        }
        let Some(running) = lock(&self.thread).take() else { return };
        self.shared.set(State::Stopping);
        {
            // A later holder of the lock sees the state and registers nothing.
            let mut table = lock(&self.table);
            // Not a stale one: an address of ours may be another monitor's by now. The thread needs but a moment.
            let asked = Instant::now();
            while !self.settle(&mut table) && asked.elapsed() < PATIENCE {
                thread::sleep(Duration::from_micros(50));
            }
            let all = std::mem::take(&mut *table).into_all();
            self.unregister(&all);
        }
        // Up to here the thread reads: the lines above, and other threads, free memory that was watched.
        self.shared.set(State::Stopped);
        self.shared.bell.ring();
        if running.thread.thread().id() == thread::current().id() {
            return;
        }
        let asked = Instant::now();
        while !running.thread.is_finished() {
            if asked.elapsed() > PATIENCE {
                return;
            }
            thread::sleep(Duration::from_micros(50));
        }
        let _ = running.thread.join();
        self.shared.descriptor.retire(&self.shared.bell);
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        if !self.in_child() {
            return self.stop();
        }
        // The thread is not here, and what it owned is never freed: at least the descriptor goes. No lock is
        // taken, for its holder may not be here either.
        self.shared.descriptor.retire(&self.shared.bell);
        std::mem::forget(self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take());
    }
}
