//! A monitor, and a cache that only listens to it.

use crate::by_hand::ByHand;
use crate::room::Room;
use mrrc::PageRange;
use mrrc::invalidation::{Change, ChangeKind, Reports, Userfaultfd, Watch};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// A monitor that aborts the run if the test takes too long: a thread that waits in the kernel cannot be helped.
pub(crate) struct Guarded(
    pub(crate) Box<Userfaultfd>,
    i32,
    #[expect(dead_code, reason = "ends the watch")] mpsc::Sender<()>,
);

impl Guarded {
    pub(crate) fn id(&self) -> i32 {
        self.1
    }
}

impl std::ops::Deref for Guarded {
    type Target = Userfaultfd;

    fn deref(&self) -> &Userfaultfd {
        &self.0
    }
}

/// None, and a line, where userfaultfd is refused.
pub(crate) fn monitor() -> Option<(Guarded, Arc<Told>)> {
    let (done, watched) = mpsc::channel();
    let name = thread::current().name().unwrap_or_default().to_owned();
    thread::spawn(move || {
        if watched.recv_timeout(Duration::from_secs(60)) == Err(mpsc::RecvTimeoutError::Timeout) {
            eprintln!("{name} hangs");
            std::process::abort();
        }
    });
    let (monitor, told) = monitor_here()?;
    let id = told.thread.load(SeqCst) as i32;
    Some((Guarded(Box::new(monitor), id, done), told))
}

pub(crate) fn monitor_here() -> Option<(Userfaultfd, Arc<Told>)> {
    let monitor = match Userfaultfd::new() {
        Ok(monitor) => monitor,
        Err(refused) => {
            println!("not tested here: {refused}");
            return None;
        }
    };
    let told = Arc::new(Told::new());
    monitor.start(told.clone()).unwrap();
    // The first report tells which thread it is.
    let room = Room::new();
    assert_eq!(monitor.watch(room.range(0, 1)), Watch::Watched);
    told.expect("the first change", room.range(0, 1), Some(ChangeKind::Gone), || room.unmap(0, 1));
    Some((monitor, told))
}

/// A cache that only listens.
pub(crate) struct Told {
    pub(crate) raised: AtomicI64,
    thread: AtomicU64,
    /// Panics at the next report that is not of everything.
    pub(crate) panic: AtomicBool,
    /// The cache's lock.
    log: Mutex<Log>,
    slots: [Slot; 8],
}

pub(crate) struct Log {
    /// Never grows: it has room for all that a test can report.
    pub(crate) changes: Vec<Change>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mark(pub(crate) usize);

impl Told {
    pub(crate) fn new() -> Self {
        Self {
            raised: AtomicI64::new(0),
            thread: AtomicU64::new(0),
            panic: AtomicBool::new(false),
            log: Mutex::new(Log { changes: Vec::with_capacity(100_000) }),
            slots: std::array::from_fn(|_| Slot::default()),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(crate) fn mark(&self) -> Mark {
        Mark(self.lock().changes.len())
    }

    pub(crate) fn slot(&self, number: usize, range: PageRange) -> Heard<'_> {
        self.slots[number].page.store(range.start(), SeqCst);
        Heard { told: self, slot: &self.slots[number] }
    }

    /// Runs what changes memory, and sees that the range was reported, or nothing was.
    pub(crate) fn expect(&self, name: &str, range: PageRange, kind: Option<ChangeKind>, change: impl FnOnce()) {
        // Changes of an earlier mapping at the same address may still be in flight.
        self.settle();
        let mark = self.mark();
        change();
        self.assert_since(mark, name, range, kind);
    }

    pub(crate) fn assert_since(&self, mark: Mark, name: &str, range: PageRange, kind: Option<ChangeKind>) {
        let raised = self.raised.load(SeqCst) > 0;
        let find = || self.lock().changes[mark.0..].iter().copied().find(|change| change.range.contains(range));
        let found = find();
        assert!(kind.is_none() || raised || found.is_some(), "{name}: returned before it was heard");
        self.settle();
        assert_eq!(find().map(|change| change.kind), kind, "{name}");
    }

    /// Until nothing is raised.
    pub(crate) fn settle(&self) {
        let late = Instant::now() + Duration::from_secs(20);
        while self.raised.load(SeqCst) > 0 {
            assert!(Instant::now() < late, "raised and never lowered");
            thread::yield_now();
        }
        assert_eq!(self.raised.load(SeqCst), 0, "lowered more often than raised");
    }
}

/// Counts the changes of one page.
#[derive(Default)]
pub(crate) struct Slot {
    page: AtomicU64,
    heard: AtomicU64,
}

pub(crate) struct Heard<'a> {
    told: &'a Told,
    slot: &'a Slot,
}

impl Heard<'_> {
    pub(crate) fn count(&self) -> u64 {
        self.slot.heard.load(SeqCst)
    }

    pub(crate) fn expect(&self, name: &str, change: impl FnOnce()) {
        let before = self.count();
        change();
        // In this order: what is lowered was applied.
        let raised = self.told.raised.load(SeqCst) > 0;
        assert!(raised || self.count() > before, "{name}: returned before it was heard");
        self.wait(before);
    }

    pub(crate) fn wait(&self, before: u64) {
        let late = Instant::now() + Duration::from_secs(20);
        while self.count() == before {
            assert!(Instant::now() < late, "a change is lost");
            thread::yield_now();
        }
    }
}

impl Reports for Told {
    fn raise(&self) {
        // SAFETY: `gettid` takes no arguments and reads no memory.
        self.thread.store(unsafe { libc::gettid() } as u64, SeqCst);
        self.raised.fetch_add(1, SeqCst);
    }

    fn apply(&self, changes: &[Change]) -> bool {
        let everything = changes.iter().any(|change| change.range == PageRange::EVERYTHING);
        if !everything && self.panic.swap(false, SeqCst) {
            panic!("on purpose");
        }
        let Ok(mut log) = self.log.try_lock() else { return false };
        for &change in changes {
            assert!(log.changes.len() < log.changes.capacity(), "the log is full");
            log.changes.push(change);
            for slot in &self.slots {
                let page = slot.page.load(SeqCst);
                if PageRange::new(page, 1).is_ok_and(|page| change.range.contains(page)) {
                    slot.heard.fetch_add(1, SeqCst);
                }
            }
        }
        true
    }

    fn lower(&self) {
        self.raised.fetch_sub(1, SeqCst);
    }
}
