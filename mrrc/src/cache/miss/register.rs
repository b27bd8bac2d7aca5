//! The part of a miss that holds no lock: the monitor is asked, room is made with the registrar, gaps are registered.

use super::{Acquiring, Apart, Placeholder};
use crate::access::Access;
use crate::cache::books::Entry;
use crate::cache::error::{AcquireError, Unusable};
use crate::cache::shared::Shared;
use crate::cache::tally::Amount;
use crate::invalidation::Watch;
use crate::policy::Need;
use crate::range::PageRange;
use crate::registrar::{Failure, Registered, Registrar};
use std::io;
use std::time::Instant;

impl<R: Registrar> Acquiring<'_, R> {
    /// Registers this request's gaps until one fails. Those registered before it stay cached.
    pub(super) fn register_mine(&mut self) -> Result<(), AcquireError> {
        if self.mine.is_empty() {
            return Ok(());
        }
        // The room may have been reserved by the parent of this process.
        if self.shared.gate.is_forked() {
            return Err(Unusable::Forked.into());
        }
        self.watch();
        self.register_watched(None)
    }

    /// The same, when the monitor was asked. `failed`: the first gap was tried, and this came of it.
    pub(super) fn register_watched(&mut self, failed: Option<io::Error>) -> Result<(), AcquireError> {
        self.set_apart()?;
        if self.reserved == Amount::default() {
            self.make_way()?;
        }
        let mut result = Ok(());
        let mut failed = failed;
        for next in 0..self.mine.len() {
            let Placeholder { range, access, .. } = self.mine[next];
            result = self.register(range, access, failed.take());
            if result.is_err() {
                break;
            }
        }
        self.unwatch();
        self.publish()?;
        result
    }

    /// Asks whether changes of the gaps will be heard of.
    fn watch(&mut self) {
        for placeholder in &mut self.mine {
            let Placeholder { range, apart, ref mut watch, ref mut watched, .. } = *placeholder;
            // What nobody will find needs no watching.
            if apart.is_some() || self.wish.answers_for(range) {
                continue;
            }
            *watch = self.shared.watch(range);
            *watched = *watch == Watch::Watched;
        }
    }

    /// What will not be cached, because its changes would not be heard of, is for this request alone from now on:
    /// others who need it do not wait for its registration.
    fn set_apart(&mut self) -> Result<(), Unusable> {
        let shared = self.shared;
        if self.mine.iter().all(|mine| mine.watch == Watch::Watched) {
            return Ok(());
        }
        let (mut books, _) = shared.lock_now()?;
        for Placeholder { id, apart, .. } in self.mine.iter_mut().filter(|mine| mine.watch != Watch::Watched) {
            *apart = Some(Apart::Unwatched);
            books.core.withdraw(*id);
            // Those who wait for the old ticket find that it is gone.
            let Entry::Pending { stale, owner, .. } = books.entry(*id) else {
                unreachable!("{id:?} is not registered")
            };
            let ticket = books.new_ticket();
            books.set_entry(*id, Entry::Pending { ticket, stale, owner });
        }
        let waiting = std::mem::take(&mut books.waiting);
        drop(books);
        if waiting > 0 {
            shared.progress.notify_all();
        }
        Ok(())
    }

    /// What is not registered after all need not be watched. Never with a lock held.
    pub(super) fn unwatch(&mut self) {
        for placeholder in self.mine.iter_mut().skip(self.made.len()) {
            if std::mem::take(&mut placeholder.watched) {
                self.shared.unwatch(placeholder.range);
            }
        }
    }

    /// Deregisters what has left until there is room for this request's gaps, and reserves that.
    ///
    /// Where nobody else does that, a bounded part of what left before is deregistered in any case; more only as long as the
    /// room is not there, and no longer than the request would wait for others.
    fn make_way(&mut self) -> Result<(), AcquireError> {
        let shared = self.shared;
        let limit = shared.terms.capacity;
        let mut amount = Amount::default();
        self.mine.iter().for_each(|placeholder| amount.add(placeholder.range.pages()));
        let mut retried = false;
        let mut books = shared.lock()?;
        books = shared.work_for_others(books)?;
        let mut helped = false;
        loop {
            if books.reserve(amount, limit) {
                self.reserved = amount;
                return Ok(());
            } else if !books.limbo.is_empty() {
                if helped {
                    self.patience_left(|| books.obstacle(amount, limit))?;
                }
                helped = true;
                let begun = Instant::now();
                books = shared.deregister_next(books)?;
                self.waited_for_others += begun.elapsed();
            } else if books.going.regions > 0 {
                // Somebody is deregistering just now.
                books = self.wait(books, |books| books.obstacle(amount, limit))?;
            } else if !retried && !books.parked.is_empty() {
                retried = true;
                books.unpark();
            } else if !self.yielding.is_empty() {
                books.end_yielding(shared.desk(), self.yielding.drain(..), false);
            } else if books.give_up_comebacks(shared.desk()) {
                // What they took is in limbo now.
            } else {
                // What could not be deregistered takes the room.
                let Amount { pages, regions } = Amount::of(&books.parked);
                if regions > 0 {
                    books.tally.not_taken_back += 1;
                    let (registrar, why) = (shared.registrar.name(), books.refusal.clone());
                    return Err(AcquireError::NotTakenBack { range: self.wish.range, pages, regions, registrar, why });
                }
                let source = books.registered.no_room(self.wish.range, amount, limit);
                return Err(AcquireError::AllInUse { source, waited: self.waited_for_room });
            }
        }
    }

    /// Registers one gap; where the system is out of something, makes room and tries again.
    fn register(
        &mut self,
        range: PageRange,
        access: Access,
        mut failed: Option<io::Error>,
    ) -> Result<(), AcquireError> {
        let shared = self.shared;
        let mut attempts = 0;
        loop {
            attempts += 1;
            let result = failed.take().map_or_else(|| self.attempt(range, access), Err);
            let source = match result {
                Ok(registration) => {
                    self.reserved.take(Amount { pages: range.pages(), regions: 1 });
                    self.made.push(Registered { range, access, registration });
                    return Ok(());
                }
                Err(source) => source,
            };
            let last = Failure::of(&source) == Failure::Refused || attempts > shared.terms.retries;
            if last || !self.free_some(range, attempts)? {
                let registrar = shared.registrar.name();
                return Err(AcquireError::Register { range, access, registrar, attempts, source });
            }
        }
    }

    fn attempt(&mut self, range: PageRange, access: Access) -> io::Result<R::Registration> {
        // Counted before: the registrar may panic.
        self.attempts += 1;
        attempt(self.shared, range, access)
    }

    /// The system is out of something: evicts and deregisters a batch. False if nothing could be freed, or others did not
    /// free anything in the time that the request waits for them.
    fn free_some(&mut self, range: PageRange, attempts: u32) -> Result<bool, Unusable> {
        let shared = self.shared;
        let desk = shared.desk();
        let mut books = shared.lock()?;
        books.sweep(desk);
        // More each time: what the system counts need not be what we count.
        let pages = range.pages().saturating_mul(1 << attempts.min(16));
        books.evict(desk, Need { pages, regions: 1 });
        if books.limbo.is_empty() {
            // There is but what the gap is to take the place of.
            books.end_yielding(desk, self.yielding.drain(..), false);
        }
        if books.limbo.is_empty() {
            // Or others'.
            books.give_up_comebacks(desk);
        }
        // Or somebody else may be freeing what is missing.
        let left = shared.terms.patience.saturating_sub(self.waited_for_others);
        let freeing = !books.limbo.is_empty() || books.going.regions > 0 && !left.is_zero();
        if freeing {
            books.tally.retries += 1;
            let begun = Instant::now();
            shared.free(books, pages, left)?;
            self.waited_for_others += begun.elapsed();
        }
        Ok(freeing)
    }
}

/// Asks the registrar, and notes how long it took if that is to be known.
#[inline]
pub(super) fn attempt<R: Registrar>(
    shared: &Shared<R>,
    range: PageRange,
    access: Access,
) -> io::Result<R::Registration> {
    let claim = shared.claim(range)?;
    let begun = shared.times.as_ref().map(|_| Instant::now());
    let result = shared.registrar.register(range, access);
    if let (Some(times), Some(begun)) = (&shared.times, begun) {
        times.registered(begun.elapsed());
    }
    if let (Ok(_), Some(claim)) = (&result, claim) {
        claim.keep();
    }
    result
}
