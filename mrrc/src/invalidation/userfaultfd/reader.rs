//! The monitor's thread: reads what changed and tells the cache.
//!
//! A thread of the program that unmaps watched memory waits until this one has read the message. So this thread may not
//! wait for anything that such a thread can hold: it never allocates or frees, it never takes the table's lock, it only
//! *tries* the caches' locks (in [`Reports::apply`]) and reads on while one is taken. No thread holds one of the two
//! locks that it takes, [`Shared::news`] and that of the [subscribers](super::subscribers), while it allocates, frees or unmaps
//! memory.
//!
//! [`Reports::apply`]: super::super::Reports::apply

use super::super::{Change, ChangeKind};
use super::calls::{self, Bell, Descriptor, Event, Message};
use super::changes::{Batch, GOES, Learnt, MESSAGES, News};
use super::lock;
use super::subscribers::Subscribers;
use crate::fork::ForkGuard;
use crate::range::PageRange;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long messages are not read because a cache, whose lock is taken, has as much pending as can be remembered exactly.
/// Threads that unmap wait so long. Then they are read all the same: the holder of the lock may be one of those threads.
const BACK_PRESSURE: Duration = Duration::from_secs(1);

/// How long a stop waits for the cache's lock before what was read is left unapplied, with the flag raised.
const LAST_ATTEMPTS: Duration = Duration::from_secs(1);

/// The data shared by the thread and the callers of the monitor.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) descriptor: Descriptor,
    pub(super) bell: Bell,
    /// The process whose memory is watched: a forked child has a copy of all this, and no thread.
    pub(super) process: ForkGuard,
    state: AtomicU8,
    /// Odd from before messages are taken until those of them that end registrations are in `news`.
    sessions: AtomicU64,
    news: Mutex<News>,
    /// The caches to report to.
    pub(super) subscribers: Subscribers,
}

#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    New,
    Running,
    /// Messages are read, so that no thread waits for them, and no longer reported.
    Failed,
    /// Mappings are being unregistered; nothing new is registered, and messages are read as before.
    Stopping,
    /// The thread ends.
    Stopped,
}

impl Shared {
    /// # Errors
    /// As [`ForkGuard::new`].
    pub(super) fn new(descriptor: Descriptor, bell: Bell) -> io::Result<Self> {
        Ok(Self {
            descriptor,
            bell,
            process: ForkGuard::new()?,
            state: AtomicU8::new(State::New as u8),
            sessions: AtomicU64::new(0),
            news: Mutex::new(News::new()),
            subscribers: Subscribers::new(),
        })
    }

    pub(super) fn is(&self, state: State) -> bool {
        self.state.load(Ordering::SeqCst) == state as u8
    }

    pub(super) fn set(&self, state: State) {
        self.state.store(state as u8, Ordering::SeqCst);
    }

    /// Only with this answer does the table speak the truth, once it has learnt the `news`.
    pub(super) fn quiet(&self) -> Option<u64> {
        Some(self.sessions.load(Ordering::SeqCst)).filter(|session| session.is_multiple_of(2))
    }

    /// Takes the next thing that the table has to learn.
    pub(super) fn take_news(&self) -> Option<Learnt> {
        lock(&self.news).pop()
    }
}

pub(super) struct Reader {
    shared: Arc<Shared>,
    batch: Batch,
    /// Since when some cache has too much pending.
    full_since: Option<Instant>,
    deadline: Option<Instant>,
}

impl Reader {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, batch: Batch::new(), full_since: None, deadline: None }
    }

    /// Until the monitor is stopped.
    pub(super) fn run(mut self) {
        let report = catch_unwind(AssertUnwindSafe(|| self.report()));
        // A panic's content is not freed: this thread does not free.
        match report.unwrap_or_else(|panic| {
            std::mem::forget(panic);
            Err(Stop::Panicked)
        }) {
            Ok(()) => {}
            Err(Stop::Unreadable) => self.fail(false),
            Err(Stop::Panicked) => self.fail(true),
        }
    }

    fn report(&mut self) -> Result<(), Stop> {
        // How often some cache could not be told, since the last time that all of them were.
        let mut attempt = 0;
        loop {
            let readable = if attempt == 0 {
                calls::wait(&self.shared.descriptor, Some(&self.shared.bell), None)
            } else {
                self.pause(attempt - 1, !self.is_held_back())
            };
            if self.shared.is(State::Stopped) && (attempt == 0 || self.out_of_time()) {
                return Ok(());
            }
            // Only where there is a message: a cache that has been told of all others serves hits meanwhile.
            if readable {
                // First this, because the change that is read next is over for the thread that made it.
                self.shared.subscribers.raise();
                self.read()?;
            }
            if self.shared.subscribers.tell(self.batch.as_slice()) {
                (attempt, self.full_since) = (0, None);
            } else {
                attempt += 1;
                if self.full_since.is_none() && self.shared.subscribers.is_full() {
                    self.full_since = Some(Instant::now());
                }
            }
            self.batch.clear();
        }
    }

    /// Returns whether nothing is read for now, because it could not be remembered exactly.
    fn is_held_back(&self) -> bool {
        self.full_since.is_some_and(|since| since.elapsed() < BACK_PRESSURE)
    }

    /// Takes the messages that wait, or a good many of them.
    fn read(&mut self) -> io::Result<()> {
        self.shared.sessions.fetch_add(1, Ordering::SeqCst);
        let read = self.read_some();
        self.shared.sessions.fetch_add(1, Ordering::SeqCst);
        read
    }

    fn read_some(&mut self) -> io::Result<()> {
        let mut messages = [Message::EMPTY; MESSAGES];
        for _ in 0..GOES {
            let read = self.shared.descriptor.read(&mut messages)?;
            for message in &messages[..read] {
                match message.event() {
                    Event::Gone(range) => self.gone(range),
                    Event::Moved { from, to } => {
                        self.gone(from);
                        self.gone(to);
                        // The old place too: `MREMAP_DONTUNMAP` leaves a registered mapping behind.
                        for range in [from, to] {
                            lock(&self.shared.news).add_moved(range);
                        }
                    }
                    Event::Discarding(range) => {
                        self.batch.push(Change { range, kind: ChangeKind::Discarding });
                    }
                    Event::Fault(address) => self.shared.descriptor.resolve(address),
                    Event::Nothing => {}
                }
            }
            if read < MESSAGES {
                break;
            }
        }
        Ok(())
    }

    fn gone(&mut self, range: PageRange) {
        let change = Change { range, kind: ChangeKind::Gone };
        self.batch.push(change);
        lock(&self.shared.news).add_gone(range);
    }

    /// Between attempts: briefly at work at first, then asleep unless a message comes. Returns whether there
    /// may be one.
    fn pause(&self, attempt: u32, readable: bool) -> bool {
        const SPINS: u32 = 4;
        let time = Duration::from_micros(50 << attempt.saturating_sub(SPINS).min(4));
        if attempt < SPINS {
            (0..16 << attempt).for_each(|_| std::hint::spin_loop());
            readable && calls::wait(&self.shared.descriptor, None, Some(Duration::ZERO))
        } else if readable {
            calls::wait(&self.shared.descriptor, None, Some(time))
        } else {
            std::thread::sleep(time);
            false
        }
    }

    fn out_of_time(&mut self) -> bool {
        self.shared.is(State::Stopped)
            && Instant::now() > *self.deadline.get_or_insert_with(|| Instant::now() + LAST_ATTEMPTS)
    }

    /// Something in here panicked, or the descriptor is no userfaultfd any longer. Nothing that is cached can
    /// be trusted, and still no thread may wait for this one: so messages are read as long as there are any.
    /// Closing the descriptor would not do, as a forked child may hold a copy that keeps it alive.
    fn fail(mut self, mut readable: bool) {
        let _ = self.shared.state.compare_exchange(
            State::Running as u8,
            State::Failed as u8,
            Ordering::SeqCst,
            Ordering::SeqCst,
        );
        self.shared.subscribers.raise();
        let everything = [Change { range: PageRange::EVERYTHING, kind: ChangeKind::Gone }];
        let mut untold = &everything[..];
        for attempt in 0.. {
            readable = readable && self.read().is_ok();
            self.batch.clear();
            if self.shared.subscribers.tell(untold) || self.out_of_time() {
                break;
            }
            untold = &[];
            self.pause(attempt, readable);
        }
        while readable && !self.shared.is(State::Stopped) {
            calls::wait(&self.shared.descriptor, Some(&self.shared.bell), None);
            readable = self.read().is_ok();
            self.batch.clear();
        }
    }
}

/// Why the thread reports no more.
enum Stop {
    /// The descriptor is no userfaultfd any longer.
    Unreadable,
    /// Something in here panicked.
    Panicked,
}

impl From<io::Error> for Stop {
    fn from(_: io::Error) -> Self {
        Self::Unreadable
    }
}
