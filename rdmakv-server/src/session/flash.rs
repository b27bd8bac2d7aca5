//! Requests for items on flash: such a request is run again when its item was read, and other connections go on meanwhile.
//!
//! A session stops before the key whose item has to be read. Its request stays in the input, and the keys that are answered already are
//! counted. The driver of the session is told by the [bell](Bell) of its thread when to go on.

use std::fmt;
use std::fs::File;
use std::io;
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use crate::store::{Load, Recall, Store, Waiter};

/// How often a request may come for the same item before it is refused.
const ROUNDS: u8 = 3;
/// How long a request waits for one item, in seconds.
const PATIENCE: u64 = 5;
/// Reads that a request begins ahead.
pub(super) const HINTS: usize = 64;
/// Bits of a waiter that are its turn; the others are its thread's number.
const TURN: u32 = 48;

/// The driver of the devices.
pub trait Reads: fmt::Debug + Send + Sync {
    /// Returns the files, for a thread that reads by itself.
    ///
    /// # Errors
    ///
    /// Those of the system.
    fn files(&self) -> io::Result<Vec<File>>;
    /// Returns the bytes that such a thread may keep for later reads.
    fn kept(&self) -> usize;
    /// Begins reads for these shards, and takes them out of the list. Their ends are reported to the stores, and their waiters to the
    /// [bells](Bell).
    fn begin(&self, loads: &mut Vec<(usize, Load)>);
}

/// Tells a thread which of its sessions go on.
#[derive(Default)]
pub struct Bell {
    turns: Mutex<Vec<u64>>,
    rung: Condvar,
    /// Wakes a thread that waits for something else.
    ring: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl fmt::Debug for Bell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bell").field("turns", &self.turns).finish_non_exhaustive()
    }
}

impl Bell {
    /// Has this called, too, from now on.
    pub fn set_ring(&self, ring: impl Fn() + Send + Sync + 'static) {
        // A thread that was started again has the same way.
        let _ = self.ring.set(Box::new(ring));
    }
    /// Has this turn go on.
    pub(super) fn wake(&self, turn: u64) {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner).push(turn);
        self.rung.notify_all();
        if let Some(ring) = self.ring.get() {
            ring();
        }
    }
    /// Returns the turns that go on.
    pub fn take(&self) -> Vec<u64> {
        std::mem::take(&mut *self.turns.lock().unwrap_or_else(PoisonError::into_inner))
    }
    /// Waits until this turn goes on, or for so long; returns whether it does.
    pub fn wait(&self, turn: u64, most: Duration) -> bool {
        let turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.rung.wait_timeout_while(turns, most, |turns| !turns.contains(&turn));
        waited.is_ok_and(|(mut turns, timeout)| {
            if !timeout.timed_out() {
                turns.clear();
            }
            !timeout.timed_out()
        })
    }
}

/// Returns the number of the bell that a waiter has, and its turn there.
pub(super) fn place(waiter: Waiter) -> (usize, u64) {
    ((waiter.0 >> TURN) as usize, waiter.0 & ((1 << TURN) - 1))
}

/// The place where a request stopped.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stopped {
    /// Keys of the request that are answered.
    pub(super) cursor: usize,
    rounds: u8,
    /// When it began to wait for the next key, in Unix seconds.
    since: u64,
}

/// The reads of a session's turn.
#[derive(Debug, Default)]
pub struct Waits {
    /// Names the turn to the bell; no other turn of the thread has its number.
    pub turn: u64,
    /// Whether the thread begins the reads itself, after the turn.
    pub has_own: bool,
    /// Whether the turn was named to a store.
    pub is_used: bool,
    /// Whether the session cannot be kept until an item was read: no store is to name it.
    pub has_no_place: bool,
    /// Whether the session waits no longer: what is not there is refused.
    pub gives_up: bool,
    pub(super) stopped: Stopped,
    away: bool,
    is_in_line: bool,
    loads: Vec<(usize, Load)>,
}

/// Whether a command may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recalled {
    /// Nothing of the key is on flash only.
    Here,
    /// The command has to run again: nothing of it may be done or counted.
    Away,
    /// The item is there, and there is no memory for it.
    Failed,
}

impl Waits {
    /// Before a command of this thread that needs the value of a key, under the lock of its store.
    pub(super) fn recall(
        &mut self,
        store: &mut Store,
        (shard, key): (usize, &[u8]),
        thread: usize,
        now: u64,
    ) -> Recalled {
        let Stopped { since, rounds, .. } = self.stopped;
        let is_patient = !self.gives_up && (since == 0 || now <= since + PATIENCE);
        let waiter = Waiter((thread as u64) << TURN | self.turn);
        let recall = store.recall(key, Some(waiter).filter(|_| is_patient && !self.has_no_place), now);
        match recall {
            Recall::Here => return Recalled::Here,
            Recall::NoMemory => return Recalled::Failed,
            Recall::Busy => {}
            Recall::Away(load) => self.loads.extend(load.map(|load| (shard, load))),
        }
        self.is_in_line = recall == Recall::Busy;
        if !is_patient || (rounds >= ROUNDS && !self.is_in_line) {
            return Recalled::Failed;
        }
        self.is_used |= !self.has_no_place;
        self.away = true;
        Recalled::Away
    }

    /// Adds a read that was begun ahead; returns whether there may be more.
    pub(super) fn add(&mut self, shard: usize, load: Option<Load>) -> bool {
        self.loads.extend(load.map(|load| (shard, load)));
        self.loads.len() < HINTS
    }

    /// Returns the reads that were asked for and not begun.
    pub fn take_loads(&mut self) -> Vec<(usize, Load)> {
        std::mem::take(&mut self.loads)
    }

    /// Before a request that may have stopped.
    #[inline]
    pub(super) fn go_on(&mut self, stopped: Stopped) {
        (self.stopped, self.away) = (stopped, false);
    }
    /// Returns whether the request has to wait.
    #[inline]
    pub(super) fn is_away(&self) -> bool {
        self.away
    }
    /// After a request that has to wait: returns where to go on.
    pub(super) fn stop(&self, before: Stopped, now: u64) -> Stopped {
        let cursor = self.stopped.cursor;
        let is_same = cursor == before.cursor && before.since > 0;
        let (rounds, since) = if is_same { (before.rounds, before.since) } else { (0, now) };
        Stopped { cursor, rounds: rounds + u8::from(!self.is_in_line), since }
    }
    /// Begins the reads that were asked for.
    #[inline]
    pub(super) fn begin(&mut self, reads: Option<&dyn Reads>) {
        if let Some(reads) = reads.filter(|_| !self.loads.is_empty() && !self.has_own) {
            reads.begin(&mut self.loads);
        }
    }
}
