//! The waits of a miss: for others to register or deregister, and for leases to end. Each ends by its time-out.

use super::{Acquiring, Awaited, Lock};
use crate::cache::books::{Books, Entry};
use crate::cache::error::{AcquireError, Obstacle};
use crate::cache::who;
use crate::core::AllInUse;
use crate::registrar::Registrar;
use std::time::{Duration, Instant};

/// The shortest and longest time between two looks at leases that may have ended.
const LOOK: Duration = Duration::from_micros(100);
const LOOK_LONGEST: Duration = Duration::from_millis(5);

/// Times between looks: they grow.
pub(super) struct Naps {
    next: Duration,
}

impl Naps {
    pub(super) fn new() -> Self {
        Self { next: LOOK }
    }

    fn next(&mut self) -> Duration {
        let nap = self.next;
        self.next = (nap * 2).min(LOOK_LONGEST);
        nap
    }
}

impl<'cache, R: Registrar> Acquiring<'cache, R> {
    /// Waits until another's placeholder is one no more. False: this thread waits for nobody, because others may wait for
    /// what it has begun, and have begun what this is.
    pub(super) fn wait_for(&mut self, awaited: &Awaited) -> Result<bool, AcquireError> {
        let mut books = self.shared.lock()?;
        while matches!(books.entry(awaited.id), Entry::Pending { ticket, .. } if ticket == awaited.ticket) {
            if books.beginners.contains(&who::am_i()) {
                return Ok(false);
            }
            self.count_as_waiting(&mut books);
            let range = awaited.range;
            books = self.wait(books, |_| Obstacle::Registering { range })?;
        }
        Ok(true)
    }

    /// The core has refused: sleeps a little, and the refusal is none yet; or that was done long enough, and it is one.
    pub(super) fn wait_for_room(
        &mut self,
        mut books: Lock<'cache, R>,
        naps: &mut Naps,
        refusal: AllInUse,
    ) -> Result<Lock<'cache, R>, AcquireError> {
        let waited = self.waited_for_room;
        let left = self.shared.terms.room_wait.saturating_sub(waited);
        if left.is_zero() {
            return Err(AcquireError::AllInUse { source: refusal, waited });
        }
        books.core.take_back_refusal();
        self.count_as_waiting(&mut books);
        // Leases end without a word: looked after at growing intervals.
        let begun = Instant::now();
        let books = self.shared.wait(books, naps.next().min(left))?;
        self.waited_for_room += begun.elapsed();
        Ok(books)
    }

    /// Once a request, however often it looks and whatever it waits for.
    fn count_as_waiting(&mut self, books: &mut Books<R::Registration>) {
        if !std::mem::replace(&mut self.has_waited, true) {
            books.tally.waits += 1;
        }
    }

    /// How much longer this request waits for others, or works for them: an error that says for what, when that is over.
    pub(super) fn patience_left(&self, obstacle: impl FnOnce() -> Obstacle) -> Result<Duration, AcquireError> {
        let waited = self.waited_for_others;
        let left = self.shared.terms.patience.saturating_sub(waited);
        if !left.is_zero() {
            return Ok(left);
        }
        Err(AcquireError::TimedOut { range: self.wish.range, waited, obstacle: obstacle() })
    }

    /// Waits for the progress of others, as long as the patience of the whole request lasts.
    pub(super) fn wait(
        &mut self,
        books: Lock<'cache, R>,
        obstacle: impl FnOnce(&Books<R::Registration>) -> Obstacle,
    ) -> Result<Lock<'cache, R>, AcquireError> {
        let left = self.patience_left(|| obstacle(&books))?;
        let begun = Instant::now();
        let books = self.shared.wait(books, left)?;
        self.waited_for_others += begun.elapsed();
        Ok(books)
    }
}
