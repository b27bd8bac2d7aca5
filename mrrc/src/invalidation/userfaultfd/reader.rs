//! The monitor's thread: reads what changed and tells the cache.
//!
//! A thread of the program that unmaps watched memory waits until this one has read the message. So this one may
//! not wait for anything that such a thread can hold: it never allocates or frees, it never takes the table's lock,
//! it only *tries* the caches' locks (in [`Reports::apply`]) and reads on while one is taken, and the two locks that it
//! takes, [`Shared::news`] and that of the [seats](super::seats), are never held by anybody while memory is allocated,
//! freed or unmapped.
//!
//! [`Reports::apply`]: super::super::Reports::apply

use super::super::{Change, ChangeKind};
use super::calls::{self, Bell, Descriptor, Event, Message};
use super::changes::Changes;
use super::lock;
use super::seats::Seats;
use crate::range::PageRange;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Messages read in one go, and goes in one session: the changes are applied at least that often.
const MESSAGES: usize = 16;
const GOES: usize = 8;

/// How long a stop waits for the cache's lock before what was read is left unapplied, with the flag raised.
const LAST_ATTEMPTS: Duration = Duration::from_secs(1);

/// What the thread shares with the callers of the monitor.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) descriptor: Descriptor,
    pub(super) bell: Bell,
    /// The process whose memory is watched: a child that was forked off has a copy of all this, and no thread.
    pub(super) process: u32,
    state: AtomicU8,
    /// Odd from before messages are taken until those of them that end registrations are in `news`.
    sessions: AtomicU64,
    news: Mutex<News>,
    /// Who is told.
    pub(super) seats: Seats,
}

/// What the table has to learn.
#[derive(Clone, Debug)]
pub(super) struct News {
    /// Where registrations have ended.
    pub(super) gone: Changes,
    /// Where registered mappings have been moved to, or from.
    pub(super) moved: Changes,
}

#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    New,
    Running,
    /// Messages are read, so that nobody waits for them, and no longer reported.
    Failed,
    /// Mappings are being unregistered; nothing new is registered, and messages are read as before.
    Stopping,
    /// The thread ends.
    Stopped,
}

impl Shared {
    pub(super) fn new(descriptor: Descriptor, bell: Bell) -> Self {
        Self {
            descriptor,
            bell,
            process: std::process::id(),
            state: AtomicU8::new(State::New as u8),
            sessions: AtomicU64::new(0),
            news: Mutex::new(News { gone: Changes::new(), moved: Changes::new() }),
            seats: Seats::new(),
        }
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

    pub(super) fn take_news(&self) -> Option<News> {
        let mut news = lock(&self.news);
        if news.gone.is_empty() && news.moved.is_empty() {
            return None;
        }
        let taken = news.clone();
        news.gone.clear();
        news.moved.clear();
        Some(taken)
    }
}

pub(super) struct Reader {
    shared: Arc<Shared>,
    batch: Changes,
    /// Whether something came to the batch that nobody was told of.
    fresh: bool,
    deadline: Option<Instant>,
}

impl Reader {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, batch: Changes::new(), fresh: false, deadline: None }
    }

    /// Until the monitor is stopped.
    pub(super) fn run(mut self) {
        let report = catch_unwind(AssertUnwindSafe(|| self.report()));
        // What a panic carries is not freed: this thread does not free.
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
        loop {
            calls::wait(&self.shared.descriptor, Some(&self.shared.bell), None);
            if self.shared.is(State::Stopped) {
                return Ok(());
            }
            // First this, for the change that is read next is over for whoever made it.
            self.shared.seats.raise();
            let mut attempt = 0;
            loop {
                self.read()?;
                let fresh = std::mem::take(&mut self.fresh);
                if self.batch.is_empty() || self.shared.seats.apply(self.batch.as_slice(), fresh) {
                    break;
                }
                if self.out_of_time() {
                    return Ok(());
                }
                self.pause(attempt, true);
                attempt += 1;
            }
            self.batch.clear();
            self.shared.seats.lower();
        }
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
                            lock(&self.shared.news).moved.push(Change { range, kind: ChangeKind::Gone });
                        }
                    }
                    Event::Discarding(range) => {
                        self.batch.push(Change { range, kind: ChangeKind::Discarding });
                        self.fresh = true;
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
        self.fresh = true;
        lock(&self.shared.news).gone.push(change);
    }

    /// Between attempts: briefly at work at first, then asleep unless a message comes.
    fn pause(&self, attempt: u32, readable: bool) {
        const SPINS: u32 = 4;
        let time = Duration::from_micros(50 << attempt.saturating_sub(SPINS).min(4));
        if attempt < SPINS {
            (0..16 << attempt).for_each(|_| std::hint::spin_loop());
        } else if readable {
            calls::wait(&self.shared.descriptor, None, Some(time));
        } else {
            std::thread::sleep(time);
        }
    }

    fn out_of_time(&mut self) -> bool {
        self.shared.is(State::Stopped)
            && Instant::now() > *self.deadline.get_or_insert_with(|| Instant::now() + LAST_ATTEMPTS)
    }

    /// Something in here panicked, or the descriptor is no userfaultfd any longer. Nothing that is
    /// cached can be trusted, and still nobody may wait for this thread: so messages are read as long as there
    /// are any. Closing the descriptor would not do, as a forked child may hold a copy that keeps it alive.
    fn fail(mut self, mut readable: bool) {
        let _ = self.shared.state.compare_exchange(
            State::Running as u8,
            State::Failed as u8,
            Ordering::SeqCst,
            Ordering::SeqCst,
        );
        self.shared.seats.raise();
        let everything = [Change { range: PageRange::EVERYTHING, kind: ChangeKind::Gone }];
        for attempt in 0.. {
            readable = readable && self.read().is_ok();
            self.batch.clear();
            if self.shared.seats.apply(&everything, attempt == 0) {
                self.shared.seats.lower();
                break;
            }
            if self.out_of_time() {
                break;
            }
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
