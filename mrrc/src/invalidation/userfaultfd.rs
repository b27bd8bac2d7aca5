//! Invalidation by userfaultfd: the kernel says when memory is unmapped, moved or discarded.
//!
//! A mapping is *registered* with a userfaultfd in write-protect mode, in which nothing is ever protected: it
//! makes no page faults, only messages of `munmap`, `mmap` over it, `mremap`, `brk` and `madvise`. Mappings are
//! registered whole, once, when the first region in them is made; a registration for each region would split
//! mappings, of which a process may have 65530.
//!
//! # No stale hit after the call returned
//!
//! The kernel removes the mapping, queues a message, and lets the thread that asked return when the message has
//! been *read*, not when it has been dealt with. The monitor's thread, in this order:
//!
//! 1. sees that a message waits, and calls [`Reports::raise`]: from now on look-ups take the cache's lock, and whoever
//!    holds that lock looks at the flag before it uses anything;
//! 2. reads the message: the unmapping thread may return;
//! 3. [`Reports::apply`] strikes the range out, under the cache's lock if that is free. If it is not, its holder may
//!    be waiting in an unmapping of its own, so the thread reads on and tries again, as often as it takes;
//! 4. [`Reports::lower`].
//!
//! Whatever follows the return of the unmapping follows 2, hence 1, and so sees the flag until 3 is done. The flag
//! is written before a system call (the read) that wakes a thread in a system call (the unmapping); the kernel
//! orders what came before the one before what comes after the other. To take the cache's lock *before* reading
//! would give the same promise, and a deadlock when its holder unmaps, or merely frees, watched memory.
//!
//! # The table of what is registered is exact
//!
//! [`Monitor::watch`] answers from a table, so that another miss in the same mapping costs no system call.
//! An entry that outlives its registration would lose messages: unmap, map again at the same address, ask. So:
//!
//! * *Taking out.* The thread that reads cannot edit the table, which allocates and frees. It adds what is gone to
//!   a list of fixed size under a lock of its own (when full, neighbours are drawn together: too much is taken
//!   out, and registered again when asked for, which is harmless). Readers of the table take the list over first.
//!   The counter `sessions` is odd from before a message is read until the list has it. Whoever unmapped and
//!   then asks, asks after the message was read: either the counter is odd, and the table is not believed, or
//!   the list has the entry. If the counter is even since no session has begun, the unmapping has
//!   not returned: then its report is yet to come and strikes out whatever this answer allows.
//! * *Putting in.* The table's lock is held from before the registration until after the entry is made, and the
//!   list is taken over only under that lock: an ending that follows the registration is taken out after the entry
//!   was put in. One that was in the list too early takes out a good entry, which is harmless.
//! * *What is put in.* Between looking up the bounds of a mapping and registering them, part of it may be unmapped,
//!   silently, as it was not registered yet; registering passes over holes. So the bounds are looked up again, and
//!   the entry is made only if now *one* mapping spans all of them, no session began or ended
//!   meanwhile and no change is under way: the registration named at least one mapping, none of those registered has
//!   been unmapped since, mappings that are registered and such that are not never merge, hence the one
//!   mapping is registered. (A finer question to the kernel, such as to unprotect a page, would split huge pages.)
//!   When neighbours change without pause, the answer is given without an entry.
//!
//! The cache must have its placeholder in place before it asks: a change between the answer and the placeholder
//! would strike out nothing.
//!
//! A mapping is unregistered again when no region has needed it for a while: up to a stated number stay. Regions
//! are counted by page, not by mapping (see `table`), and the count changes under the table's lock.
//!
//! # What it does not see
//!
//! * Truncation and punching of files and named shared memory, and `shmdt`: such mappings are refused. Memory shared
//!   with a forked child, or mapped twice by `mremap` with an old size of zero, is watched at the address that was
//!   asked for, while `MADV_REMOVE` through the other mapping takes the same pages.
//! * `MADV_GUARD_INSTALL`, `remap_file_pages`, and `shmat` with `SHM_REMAP` on watched memory: the kernel sends no
//!   message. Report these explicitly, or use an arena.
//! * A thread that maps the same address while another's unmapping has not returned, and a discard that takes longer
//!   than its range is kept out of the cache.
//! * `MADV_REMOVE` lets go of the kernel's lock before the pages go. If the mapping was not registered when it began, it
//!   sends no message, and the mapping can be registered and its pages pinned meanwhile. So shared memory is not
//!   cached for a moment after its registration; such a discard that takes longer is not seen.
//!
//! # Fork, stop and failure
//!
//! A forked child has a copy of the descriptor that leads to the *parent's* memory: there every answer is a refusal
//! and nothing is touched. As such a copy also keeps the userfaultfd alive, a stop does not rely on closing: it
//! unregisters every mapping first. If the thread fails, the cache is told that everything is gone, and messages
//! go on being read, so that no thread of the program ever waits for good.
//!
//! This is the kernel's protocol, of which the checkers of concurrency have no model: the locks are `std`'s.

mod calls;
mod changes;
mod reader;
mod table;

use super::mappings::{Kind, Mapping, Mappings};
use super::{Monitor, Reports, Unwatched, Watch};
use crate::range::PageRange;
use calls::{Bell, Descriptor};
use rangemap::RangeSet;
use reader::{Reader, Shared, State};
use std::io;
use std::sync::{Arc, Barrier, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use table::Table;

/// Attempts to find a mapping at rest, and to enter it into the table.
const ATTEMPTS: u32 = 4;

/// How long shared memory is not cached after its registration: a discard of it that began before is over then.
const YOUTH: Duration = Duration::from_millis(100);

/// How long [`Monitor::stop`] waits for its thread, which the cache may keep busy.
const PATIENCE: Duration = Duration::from_secs(5);

/// Room for [`Reports::apply`], and no more.
const STACK: usize = 256 << 10;

/// A [`Monitor`] by userfaultfd. Linux 5.7 and later; from 5.11 on it needs no privilege, from 5.19 on it watches shared
/// anonymous and huge pages too.
///
/// It costs the program a switch to the monitor's thread and back for each call that unmaps, moves or discards memory
/// of a mapping in which a region is or lately was, and nothing else.
///
/// ```
/// use mrrc::invalidation::{Monitor, Userfaultfd};
/// match Userfaultfd::new() {
///     Ok(monitor) => println!("{} watches", monitor.name()),
///     Err(error) => println!("{error}"), // says what forbids it, and what to do
/// }
/// ```
#[derive(Debug)]
pub struct Userfaultfd {
    shared: Arc<Shared>,
    mappings: Mappings,
    /// Never taken by the monitor's thread, so memory may be allocated and freed under it.
    table: Mutex<Table>,
    thread: Mutex<Option<Running>>,
}

#[derive(Debug)]
struct Running {
    thread: JoinHandle<()>,
    _kept: Kept,
}

/// What the thread uses and must not be the last to drop: a drop frees.
struct Kept(
    #[expect(dead_code, reason = "kept alive")] Arc<dyn Reports>,
    #[expect(dead_code, reason = "kept alive")] Arc<Barrier>,
);

impl std::fmt::Debug for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Kept")
    }
}

impl Userfaultfd {
    /// Opens a userfaultfd. Nothing is watched before [`Monitor::start`].
    ///
    /// # Errors
    /// Where the kernel or a container's filter refuses; the message says which, and what to do about it.
    pub fn new() -> io::Result<Self> {
        let descriptor = Descriptor::open()?;
        let bell = Bell::new()?;
        let mappings = Mappings::open().map_err(|error| {
            io::Error::new(error.kind(), format!("/proc/self/maps: {error}; mount /proc, or invalidate explicitly"))
        })?;
        let shared = Arc::new(Shared::new(descriptor, bell));
        Ok(Self { shared, mappings, table: Mutex::default(), thread: Mutex::default() })
    }

    fn in_child(&self) -> bool {
        self.shared.process != std::process::id()
    }

    /// Lets the table learn what has happened. True if the table speaks the truth now.
    fn settle(&self, table: &mut Table) -> bool {
        // In this order: a session that ended before the look at the counter has left its list.
        let quiet = self.shared.quiet().is_some();
        if let Some(news) = self.shared.take_news() {
            for change in news.gone.as_slice() {
                match news.gone.is_exact() {
                    true => table.remove(change.range),
                    false => table.doubt(change.range),
                }
            }
            for change in news.moved.as_slice() {
                table.stray(change.range);
            }
        }
        quiet
    }

    fn try_watch(&self, range: PageRange) -> Result<(), Unwatched> {
        const NO_THREAD: Unwatched = Unwatched::Refused(libc::ESRCH);
        if self.in_child() {
            return Err(NO_THREAD);
        }
        let mut table = lock(&self.table);
        if !self.shared.is(State::Running) {
            return Err(NO_THREAD);
        }
        if !(self.settle(&mut table) && table.covers(range)) {
            let mut next = range.start();
            while next < range.end() {
                next = self.register(&mut table, next)?;
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

    /// Registers the mapping that holds the page, and answers where it ends. The table's lock is held.
    fn register(&self, table: &mut Table, page: u64) -> Result<u64, Unwatched> {
        let mut refused = Unwatched::Refused(libc::EAGAIN);
        for attempt in 1..=ATTEMPTS {
            let mapping = self.look_up(page)?;
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
            let shared = mapping.kind == Kind::SharedAnonymous;
            table.set_young(mapping.pages, shared.then(|| Instant::now() + YOUTH));
            // Until it is entered below: it has to be unregistered some day, whatever is answered now.
            table.stray(mapping.pages);
            if !self.look_up(page)?.pages.contains(mapping.pages) {
                refused = Unwatched::Refused(libc::EAGAIN);
                continue;
            }
            if session.is_some() && !self.shared.descriptor.changing() && self.shared.quiet() == session {
                table.add(mapping.pages);
            } else if attempt < ATTEMPTS {
                continue;
            }
            return Ok(mapping.pages.end());
        }
        Err(refused)
    }

    fn look_up(&self, page: u64) -> Result<Mapping, Unwatched> {
        match self.mappings.at(page) {
            Ok(Some(mapping)) => mapping.kind.refusal().map_or(Ok(mapping), Err),
            Ok(None) => Err(Unwatched::Unmapped),
            Err(error) => Err(Unwatched::Refused(error.raw_os_error().unwrap_or(libc::EIO))),
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
}

impl Monitor for Userfaultfd {
    fn name(&self) -> &'static str {
        "userfaultfd"
    }

    fn start(&self, reports: Arc<dyn Reports>) -> io::Result<()> {
        let refuse = |why| Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("start of userfaultfd: {why}")));
        if self.in_child() {
            return refuse("it belongs to the parent process; make one after the fork");
        }
        let mut running = lock(&self.thread);
        if !self.shared.is(State::New) {
            return refuse("it was started before; make one for each cache");
        }
        let up = Arc::new(Barrier::new(2));
        let (reader, seen) = (Reader::new(self.shared.clone(), reports.clone()), up.clone());
        self.shared.set(State::Running);
        let builder = thread::Builder::new().name("mrrc-monitor".into()).stack_size(STACK);
        let spawned = calls::without_signals(|| {
            builder.spawn(move || {
                // What a thread allocates as it starts, it has allocated before anything is watched.
                seen.wait();
                reader.run();
            })
        });
        match spawned {
            Ok(thread) => {
                up.wait();
                *running = Some(Running { thread, _kept: Kept(reports, up) });
                Ok(())
            }
            Err(error) => {
                self.shared.set(State::Stopped);
                Err(io::Error::new(error.kind(), format!("start of userfaultfd's thread: {error}; raise RLIMIT_NPROC")))
            }
        }
    }

    fn watch(&self, range: PageRange) -> Watch {
        match self.try_watch(range) {
            Ok(()) => Watch::Watched,
            Err(why) => Watch::Unwatched(why),
        }
    }

    /// For each range that was answered with [`Watch::Watched`], once, as it was given then.
    fn unwatch(&self, range: PageRange) {
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
            // Whoever holds the lock later sees the state and registers nothing.
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

impl Drop for Userfaultfd {
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
