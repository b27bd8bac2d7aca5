//! Invalidation by userfaultfd: the kernel says when memory is unmapped, moved or discarded.
//!
//! A mapping is *registered* with a userfaultfd in write-protect mode, in which nothing is ever protected. It makes
//! no page faults, only messages of `munmap`, `mmap` over it, `mremap`, `brk` and `madvise`. Mappings are registered
//! whole, once, when the first region in them is made. A registration for each region would split mappings, of which
//! a process may have 65530.
//!
//! # No stale hit after the call returned
//!
//! The kernel removes the mapping, queues a message, and waits. The thread that asked returns when the message has
//! been *read*, not when it has been dealt with. The monitor's thread, in this order:
//!
//! 1. sees that a message waits, and calls [`Reports::raise`]. From now on look-ups take the cache's lock, and a
//!    holder of that lock looks at the flag before it uses anything;
//! 2. reads the message: the unmapping thread may return;
//! 3. [`Reports::apply`] strikes the range out, under the cache's lock if that is free. If it is not, its holder may
//!    be waiting in an unmapping of its own. So the thread reads on and tries again, as often as it takes;
//! 4. [`Reports::lower`].
//!
//! Whatever follows the return of the unmapping follows 2, hence 1, and so sees the flag until 3 is done. The flag
//! is written before a system call (the read) that wakes a thread in a system call (the unmapping). The kernel
//! orders what came before the one before what comes after the other. To take the cache's lock *before* reading
//! would give the same promise, and a deadlock when its holder unmaps, or merely frees, watched memory.
//!
//! # A burst of changes
//!
//! A change invalidates the regions that it touches and no others, however many changes come at once. The cache names each
//! region that a change hides, and has room for all its regions; a change that touches none is not remembered. Where a
//! cache's lock is taken, its changes wait in its subscription, in order and merged where they touch, 131,072 ranges of either kind.
//! When these are used up, messages are not read for a second, so that threads which unmap wait. If the lock is not free by
//! then, its holder may be one of those threads: messages are read again, and neighbours are drawn together.
//!
//! # The table of what is registered is exact
//!
//! [`Monitor::watch`] answers from a table, so that another miss in the same mapping costs no system call.
//! An entry that outlives its registration would lose messages: unmap, map again at the same address, ask. So:
//!
//! * *Taking out.* The thread that reads cannot edit the table, which allocates and frees. It adds dead ranges in memory of fixed size under a lock of its own
//!   (`ranges`). If more than 131,072 ranges end before the next query, neighbours are merged. Then too much is taken
//!   out, and registered again on request, which is harmless. Readers of the table take the list over first. The
//!   counter `sessions` is odd from before a message is read until the list has it. A query after an unmapping comes
//!   after the message was read. Either the counter is odd, and the table is not believed, or the list has the entry.
//!   If the counter is even since no session has begun, the unmapping has not returned. Then its report is yet to come
//!   and strikes out whatever this answer allows.
//! * *Putting in.* The table's lock is held from before the registration until after the entry is made. The list is
//!   taken over only under that lock. So an ending that follows the registration is taken out after the entry was put
//!   in. One that was in the list too early takes out a good entry, which is harmless.
//! * *The entry.* Between looking up the bounds of a mapping and registering them, part of it may be unmapped. That
//!   is silent, as it was not registered yet. Registering passes over holes. So the bounds are looked up again, and
//!   the entry is made only if three things hold. *One* mapping spans all of them now, no session began or ended
//!   meanwhile, and no change is in progress. The registration named at least one mapping, and none of those
//!   registered has been unmapped since. Mappings that are registered and such that are not never merge, hence the
//!   one mapping is registered. (A finer question to the kernel, such as to unprotect a page, would split huge
//!   pages.) When neighbours change without pause, the answer is given without an entry.
//!
//! The cache must issue its ticket before it asks: a change between the answer and the ticket
//! would mark no region.
//!
//! A mapping is unregistered again when no region has needed it for a while: up to a stated number stay. Regions
//! are counted by page, not by mapping (see `wanted`), and the count changes under the table's lock.
//!
//! # What it does not see
//!
//! * Truncation and punching of files and named shared memory, and `shmdt`: such mappings are refused. Memfds that are
//!   sealed against both (`seals`) are watched, and shared memory that the user trusts. Memory shared with a forked child, or mapped twice by `mremap` with an old size of zero, is watched at the requested address.
//!   `MADV_REMOVE` through the other mapping takes the same pages.
//! * `MADV_GUARD_INSTALL`, `remap_file_pages`, and `shmat` with `SHM_REMAP` on watched memory: the kernel sends no
//!   message. Report these explicitly, or use an arena.
//! * A thread that maps the same address while another's unmapping has not returned. A discard that takes longer than
//!   its range is kept out of the cache is one, too.
//! * `MADV_REMOVE` lets go of the kernel's lock before the pages go. If the mapping was not registered when it began, it
//!   sends no message, and the mapping can be registered and its pages pinned meanwhile. So shared memory is not
//!   cached for a moment after its registration; such a discard that takes longer is not seen.
//!
//! # Mappings without access
//!
//! Reserved address space (`PROT_NONE`, as runtimes of accelerators reserve hundreds of gigabytes) is refused before
//! it is registered. Its pages cannot be pinned, and watching it would slow down every mapping made in it. A mapping
//! that loses its rights later stays watched: that is no change of its pages, and regions in it go on to be found.
//!
//! # Several caches
//!
//! A mapping belongs to one userfaultfd. Caches over the same memory therefore share one. Each has its own
//! [`Userfaultfd`], and clones of one lead to the same descriptor, table and thread (`watcher`). That thread reports
//! every change to all of them (`subscribers`). It ends with the last of them. The price of sharing: while one cache
//! keeps the thread waiting for its lock, the others serve no hits without theirs.
//!
//! # Fork, stop and failure
//!
//! A copy of the descriptor in a forked child leads to the *parent's* memory. There every answer is a refusal
//! and nothing is touched. As such a copy also keeps the userfaultfd alive, a stop does not rely on closing: it
//! unregisters every mapping first. If the thread fails, the cache learns that everything is gone, and messages go on
//! being read. So no thread of the program ever waits for good.
//!
//! A program may close the descriptor, as servers do that close all their files. The next message fails the thread then:
//! nothing is cached any longer. Before each read the thread compares the file with the one it opened, so it takes nothing from
//! another file of that number. An unmapping by another thread can return just before the thread has seen the close.
//! A forked child closes its copy of the descriptor at once (`copies`). With a copy the kernel goes on to send messages.
//! No thread can read them, and an unmapping of watched memory waits. Children of a raw `clone` keep theirs: no hook runs there.
//! Those of `vfork` and `posix_spawn` keep theirs up to `exec`.
//!
//! This is the kernel's protocol, of which the checkers of concurrency have no model: the locks are `std`'s.

mod calls;
mod changes;
mod copies;
mod reader;
mod subscribers;
mod table;
mod wanted;
mod watcher;

use super::{Monitor, Reports, SharedMemory, Unwatched, VouchError, Watch};
use crate::range::PageRange;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use watcher::Watcher;

/// A [`Monitor`] by userfaultfd. Linux 5.7 and later; from 5.11 on it needs no privilege, from 5.19 on it watches shared
/// anonymous and huge pages too.
///
/// Each call that unmaps, moves or discards memory of a mapping with regions, now or lately, costs a switch to the
/// monitor's thread and back. It costs nothing else.
///
/// The kernel lets one userfaultfd watch a mapping. Caches that may meet in the same memory share one, each with a
/// clone of its own. The default of a cache is [`Userfaultfd::of_process`], so default caches share one anyway.
/// Memory that another userfaultfd of the program watches (a garbage collector, a checkpointer) is not cached
/// ([`Unwatched::Taken`]).
///
/// The kernel does not tell it of everything. Keep these away from registered memory, or announce them
/// ([`Cache::begin_change`](crate::Cache::begin_change)): `MADV_GUARD_INSTALL`, `remap_file_pages` and `shmat` with
/// `SHM_REMAP`; `MADV_REMOVE` through another mapping of the same shared memory. Others are mapping an address anew
/// while another thread's unmapping of it has not returned, and a discard that takes longer than
/// [`Builder::discard_grace`](crate::cache::Builder::discard_grace).
///
/// ```
/// use mrrc::Cache;
/// use mrrc::invalidation::{Monitor, Userfaultfd};
/// use mrrc::testing::NoopRegistrar;
/// match Userfaultfd::new() {
///     Ok(monitor) => {
///         println!("{} watches", monitor.name());
///         let first = Cache::builder(NoopRegistrar::default()).monitor(monitor.clone()).build()?;
///         let second = Cache::builder(NoopRegistrar::default()).monitor(monitor).build()?;
///     }
///     Err(error) => println!("{error}"), // says what forbids it, and what to do
/// }
/// # Ok::<(), mrrc::BuildError>(())
/// ```
#[derive(Debug)]
pub struct Userfaultfd {
    watcher: Arc<Watcher>,
    /// The number of the cache's subscriber; [`NEW`] before it has one, [`GONE`] after.
    subscriber: AtomicU64,
    /// The named shared memory that the cache keeps, if that was stated.
    kept: OnceLock<SharedMemory>,
}

const NEW: u64 = 0;
const GONE: u64 = u64::MAX;

/// The watcher that the caches of this process share unless they are told otherwise.
static OF_PROCESS: Mutex<Weak<Watcher>> = Mutex::new(Weak::new());

impl Userfaultfd {
    /// Opens a userfaultfd. Nothing is watched before [`Monitor::start`].
    ///
    /// # Errors
    /// Where the kernel or a container's filter refuses; the message says which, and what to do about it.
    pub fn new() -> io::Result<Self> {
        Watcher::open().map(|watcher| Self::over(Arc::new(watcher)))
    }

    /// Returns the one that caches share by default. Opened where there is none; it ends with the last cache that uses it.
    /// A child that was forked opens its own.
    ///
    /// # Errors
    /// As [`Userfaultfd::new`].
    pub fn of_process() -> io::Result<Self> {
        if let Some(watcher) = lock_soon(&OF_PROCESS).and_then(|known| known.upgrade())
            && watcher.join()
        {
            return Ok(Self::over(watcher));
        }
        let own = Self::new()?;
        // Two threads at once, or a fork while the lock was held: then there are two, which is as before.
        if let Some(mut known) = lock_soon(&OF_PROCESS) {
            *known = Arc::downgrade(&own.watcher);
        }
        Ok(own)
    }

    /// One that counts among the watcher's users.
    fn over(watcher: Arc<Watcher>) -> Self {
        Self { watcher, subscriber: AtomicU64::new(NEW), kept: OnceLock::new() }
    }

    fn is_state(&self) -> bool {
        !matches!(self.subscriber.load(Ordering::SeqCst), NEW | GONE)
    }
}

/// For another cache: the same userfaultfd. Not started, whether this one is or not.
impl Clone for Userfaultfd {
    fn clone(&self) -> Self {
        let watcher = self.watcher.clone();
        // If all caches that used it are gone, it has ended, and says so when it is started.
        let joined = watcher.join();
        Self { watcher, subscriber: AtomicU64::new(if joined { NEW } else { GONE }), kept: OnceLock::new() }
    }
}

// SAFETY: by the argument at the top of this file; what it does not see is stated there and with the type.
#[expect(unsafe_code, reason = "the trait asks for a promise")]
unsafe impl Monitor for Userfaultfd {
    fn name(&self) -> &'static str {
        "userfaultfd"
    }

    unsafe fn start(&self, reports: Arc<dyn Reports>) -> io::Result<()> {
        let refuse = |why| Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("start of userfaultfd: {why}")));
        if self.watcher.in_child() {
            return refuse("it belongs to the parent process; make one after the fork");
        }
        if self.subscriber.load(Ordering::SeqCst) != NEW {
            return refuse("it was started before; make one for each cache, or a clone before the first is gone");
        }
        let subscriber = self.watcher.start(reports)?;
        if self.subscriber.compare_exchange(NEW, subscriber, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            self.watcher.leave(subscriber);
            return refuse("it was started by two threads at once; make one for each cache");
        }
        Ok(())
    }

    unsafe fn watch(&self, range: PageRange) -> Watch {
        // Without a subscriber no change could be reported.
        let kept = self.kept.get().copied().unwrap_or_default();
        let answer =
            if self.is_state() { self.watcher.try_watch(range, kept) } else { Err(Unwatched::Refused(libc::ESRCH)) };
        match answer {
            Ok(()) => Watch::Watched,
            Err(why) => Watch::Unwatched(why),
        }
    }

    fn private_mapping(&self, page: u64) -> Option<PageRange> {
        self.watcher.private_mapping(page)
    }

    fn set_shared_memory(&self, shared: SharedMemory) {
        // A second call changes nothing, as the cache may rely on the first.
        let _ = self.kept.set(shared);
    }

    fn vouch(&self, fd: BorrowedFd<'_>) -> Result<(), VouchError> {
        self.watcher.seals.vouch(fd)
    }

    /// For each range that was answered with [`Watch::Watched`], once, as it was given then.
    unsafe fn unwatch(&self, range: PageRange) {
        self.watcher.unwatch(range);
    }

    unsafe fn stop(&self) {
        if self.watcher.in_child() || !self.is_state() {
            return;
        }
        let subscriber = self.subscriber.swap(GONE, Ordering::SeqCst);
        if subscriber != GONE {
            self.watcher.leave(subscriber);
            self.watcher.part();
        }
    }
}

impl Drop for Userfaultfd {
    fn drop(&mut self) {
        // A child touches nothing of its parent's.
        if self.watcher.in_child() {
            return;
        }
        #[expect(unsafe_code, reason = "the monitor's last call")]
        // SAFETY: it has no owner any more, so nothing relies on it.
        unsafe {
            self.stop();
        }
        if self.subscriber.swap(GONE, Ordering::SeqCst) == NEW {
            self.watcher.part();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a lock that is held for an instant, or was so at a fork and is for ever.
fn lock_soon<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    for _ in 0..1000 {
        match mutex.try_lock() {
            Ok(guard) => return Some(guard),
            Err(std::sync::TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => std::thread::sleep(std::time::Duration::from_micros(50)),
        }
    }
    None
}
