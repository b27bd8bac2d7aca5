//! A monitor at work: between the start and the stop that libfabric calls.
//!
//! libfabric calls `subscribe` and, on each hit, `valid` under a lock of its own, and `notify` takes that lock. The thread that
//! calls them may be one that unmaps memory, which waits until the event is read. So the thread that reads events does not take
//! libfabric's lock, and waits for none of ours. It puts changes in the [ledger](crate::ledger), and another thread notifies.

use crate::ledger::Ledger;
use mrrc::invalidation::{Change, Monitor, Reports, Userfaultfd, Watch};
use mrrc::{ForkGuard, PageRange};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

/// How long nothing is cached where a discard was reported.
const GRACE: Duration = Duration::from_millis(100);

/// How often a call looks whether the monitor has reported what it read, before it answers no.
const LOOKS: u32 = 200;

/// How long it sleeps between two looks, after the first few.
const BETWEEN_LOOKS: Duration = Duration::from_micros(50);

/// The state that the monitor and the thread that notifies share.
pub(crate) struct Shared {
    began: Instant,
    process: ForkGuard,
    ledger: Mutex<Ledger>,
    /// Reports under way: changes that were read, or are read now, and that the ledger may not have.
    raised: AtomicU64,
    notifier: OnceLock<Thread>,
    ends: AtomicBool,
}

/// A monitor that was started.
pub(crate) struct Watching {
    shared: Arc<Shared>,
    monitor: Arc<Userfaultfd>,
    notifier: Option<JoinHandle<()>>,
}

impl Shared {
    fn new() -> io::Result<Self> {
        Ok(Self {
            began: Instant::now(),
            process: ForkGuard::new()?,
            ledger: Mutex::new(Ledger::new(millis(GRACE))),
            raised: AtomicU64::new(0),
            notifier: OnceLock::new(),
            ends: AtomicBool::new(false),
        })
    }

    fn now(&self) -> u64 {
        millis(self.began.elapsed())
    }

    /// Returns the ledger, with all changes applied that were reported.
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        let mut ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        ledger.settle(self.now());
        ledger
    }

    /// Waits until no report is under way. Returns false if there is always one.
    fn await_reports(&self) -> bool {
        const SPINS: u32 = 64;
        for look in 0..LOOKS {
            if self.raised.load(Ordering::SeqCst) == 0 {
                return true;
            }
            if look < SPINS {
                std::hint::spin_loop();
            } else {
                std::thread::sleep(BETWEEN_LOOKS);
            }
        }
        false
    }

    fn wake_notifier(&self) {
        if let Some(thread) = self.notifier.get() {
            thread.unpark();
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl Reports for Shared {
    fn raise(&self) {
        self.raised.fetch_add(1, Ordering::SeqCst);
    }

    fn apply(&self, changes: &[Change]) -> bool {
        let mut ledger = match self.ledger.try_lock() {
            Ok(ledger) => ledger,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        ledger.report(changes, self.now());
        drop(ledger);
        self.wake_notifier();
        true
    }

    fn lower(&self) {
        self.raised.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Watching {
    /// Starts to watch. `notify` is called in a thread of its own for each range that changed.
    ///
    /// # Errors
    /// The system's, with what to do about it.
    pub(crate) fn start(notify: impl Fn(PageRange) + Send + 'static) -> io::Result<Self> {
        let shared = Arc::new(Shared::new()?);
        let monitor = Arc::new(Userfaultfd::of_process()?);
        #[expect(unsafe_code, reason = "the monitor's first call")]
        // SAFETY: `Monitor::start` asks that one user has the monitor: it is made here, and kept private to this value.
        unsafe {
            monitor.start(shared.clone())?;
        }
        let notifier = {
            let (shared, monitor) = (shared.clone(), monitor.clone());
            mrrc::spawn_own_thread("mrrc-fabric", move || run_notifier(&shared, &monitor, notify))?
        };
        // A change before this line waits for the thread's first look, or for the next change.
        let _ = shared.notifier.set(notifier.thread().clone());
        shared.wake_notifier();
        Ok(Self { shared, monitor, notifier: Some(notifier) })
    }

    /// Subscribes to a range. Returns whether it is watched, and nothing of it is changing.
    pub(crate) fn subscribe(&self, range: PageRange) -> bool {
        if self.shared.process.is_forked() || !self.shared.await_reports() {
            return false;
        }
        let begun = self.shared.ledger().begin(range);
        let Ok(gaps) = begun else {
            // There may be pieces that have ended for want of room.
            self.shared.wake_notifier();
            return false;
        };
        let mut all = true;
        for gap in gaps {
            all &= self.watch(gap);
        }
        all
    }

    /// Asks the monitor for a piece of the ledger.
    fn watch(&self, piece: PageRange) -> bool {
        #[expect(unsafe_code, reason = "a call of the monitor")]
        // SAFETY: `Monitor::watch` asks that one user has the monitor: it is private to this value.
        let is_watched = unsafe { self.monitor.watch(piece) } == Watch::Watched;
        let stays = self.shared.ledger().answer(piece, is_watched);
        if is_watched && !stays {
            unwatch(&self.monitor, piece);
        }
        stays
    }

    /// Returns whether nothing has changed in a range since it was subscribed to.
    pub(crate) fn is_valid(&self, range: PageRange) -> bool {
        !self.shared.process.is_forked() && self.shared.await_reports() && self.shared.ledger().is_valid(range)
    }

    /// Ends it. No notification is under way when this returns.
    pub(crate) fn stop(mut self) {
        if self.shared.process.is_forked() {
            // A child has a copy of all this, and no thread.
            std::mem::forget(self);
            return;
        }
        self.shared.ends.store(true, Ordering::SeqCst);
        self.shared.wake_notifier();
        if let Some(notifier) = self.notifier.take() {
            let _ = notifier.join();
        }
        #[expect(unsafe_code, reason = "the monitor's last call")]
        // SAFETY: `Monitor::stop` asks that nothing relies on it any more: libfabric has no cache, so it asks nothing.
        unsafe {
            self.monitor.stop();
        }
    }
}

/// The caller made it watch this piece, and relies on that no more.
fn unwatch(monitor: &Userfaultfd, piece: PageRange) {
    #[expect(unsafe_code, reason = "a call of the monitor")]
    // SAFETY: `Monitor::unwatch` asks that the very range was watched once more often than it was unwatched. The ledger has each
    // piece once, from its watch to the one caller here that took it out.
    unsafe {
        monitor.unwatch(piece);
    }
}

/// Tells libfabric what changed, until the end.
fn run_notifier(shared: &Shared, monitor: &Userfaultfd, notify: impl Fn(PageRange)) {
    while !shared.ends.load(Ordering::SeqCst) {
        let due = shared.ledger().next_due();
        let Some(piece) = due else {
            std::thread::park();
            continue;
        };
        notify(piece);
        shared.ledger().told(piece);
        unwatch(monitor, piece);
    }
}
