//! The turns of workers. The thread of a connection carries a client's batch or procedure out, in the turn of the lane's worker.
//!
//! So as many go on at a time as the server has workers. A lane has its worker by its number, so a client that numbers its lanes by fewer
//! workers uses no others. The threads that wait are bounded by the connections: each has one request under way.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;

use rdmakv_proto::far::messages::Refusal;

/// How often a thread that was served looks whether others were, before it goes on.
const LOOKS: u32 = 16;

/// The workers of a server.
#[derive(Debug)]
pub(super) struct Workers(Box<[Worker]>);

/// A worker, which one thread has at a time.
#[derive(Debug, Default)]
pub(super) struct Worker {
    /// Turns so far.
    turns: Mutex<u64>,
    /// Threads that wait for one.
    waiting: AtomicU32,
}

/// A turn of a worker. It ends when this is dropped.
pub(super) struct Turn<'w>(MutexGuard<'w, u64>);

impl Workers {
    /// Returns so many.
    pub(super) fn new(workers: u32) -> Self {
        Self((0..workers).map(|_| Worker::default()).collect())
    }

    /// Returns the worker of a lane.
    ///
    /// # Errors
    ///
    /// There are no workers.
    pub(super) fn of_lane(&self, lane: u32) -> Result<&Worker, Refusal> {
        let at = (lane as usize).checked_rem(self.0.len()).ok_or(Refusal::Unable)?;
        self.0.get(at).ok_or(Refusal::Unable)
    }
}

impl Worker {
    /// Waits for a turn. `before_waiting` is called if another thread has one now.
    pub(super) fn turn(&self, before_waiting: impl FnOnce()) -> Turn<'_> {
        let mut turns = match self.turns.try_lock() {
            Ok(turns) => turns,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                before_waiting();
                self.waiting.fetch_add(1, Relaxed);
                let turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
                self.waiting.fetch_sub(1, Relaxed);
                turns
            }
        };
        *turns += 1;
        Turn(turns)
    }

    /// Ends a turn, and waits for another one. Those that wait already go first, if the system lets them run meanwhile.
    pub(super) fn next_turn<'w>(&'w self, Turn(turn): Turn<'w>) -> Turn<'w> {
        let had = *turn;
        drop(turn);
        for _ in 0..LOOKS {
            if self.waiting.load(Relaxed) == 0 || *self.turns.lock().unwrap_or_else(PoisonError::into_inner) > had {
                break;
            }
            thread::yield_now();
        }
        self.turn(|| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_share_the_workers_in_turn() {
        let workers = Workers::new(2);
        let at = |lane| std::ptr::from_ref(workers.of_lane(lane).unwrap());
        assert_eq!((at(0), at(1)), (at(4), at(u32::MAX)));
        assert_ne!(at(0), at(1));
        assert_eq!(Workers::new(0).of_lane(0).unwrap_err(), Refusal::Unable);
    }

    #[test]
    fn only_threads_that_wait_are_told() {
        let worker = Worker::default();
        let turn = worker.turn(|| panic!("it is free"));
        let (told, is_told) = std::sync::mpsc::channel();
        thread::scope(|scope| {
            let waits = scope.spawn(|| drop(worker.turn(move || told.send(()).unwrap())));
            is_told.recv().expect("it is told before it has a turn");
            drop(turn);
            waits.join().unwrap();
        });
    }

    #[test]
    fn turns_end_before_others_begin() {
        let worker = Worker::default();
        let inside = AtomicU32::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut turn = worker.turn(|| ());
                    for _ in 0..200 {
                        assert_eq!(inside.fetch_add(1, Relaxed), 0);
                        inside.fetch_sub(1, Relaxed);
                        turn = worker.next_turn(turn);
                    }
                });
            }
        });
        assert_eq!((*worker.turn(|| ()).0, worker.waiting.load(Relaxed)), (4 * 201 + 1, 0));
    }
}
