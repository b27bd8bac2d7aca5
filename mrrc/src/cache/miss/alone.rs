//! The usual miss: a range that nothing overlaps, and there is room for it.
//!
//! It goes the way of every miss (see [`miss`](super)) with the same locks at the same places; what is known to be one
//! is not kept in lists. Whatever turns out otherwise is handed over to an [`Acquiring`] in the state that it would
//! have reached itself.

use super::publish::stand;
use super::register::attempt;
use super::{Acquiring, Lock, Placeholder, check};
use crate::cache::acquire::Wish;
use crate::cache::books::Entry;
use crate::cache::error::AcquireError;
use crate::cache::lease::Lease;
use crate::cache::shared::Shared;
use crate::cache::tally::Amount;
use crate::cache::who;
use crate::core::Ask;
use crate::invalidation::Watch;
use crate::regions::RegionId;
use crate::registrar::{Registered, Registrar};

/// What a request has come to when the books were looked at for the first time.
pub(in crate::cache) enum Begun<'a, R: Registrar> {
    /// It is one gap, and that is reserved.
    Alone(Alone<'a, R>),
    /// Nothing was done yet.
    Planless(Lock<'a, R>),
}

/// A gap that is all of its request, and stands in the books as pending.
///
/// Dropped before it is finished (the registrar or the monitor panicked), it is taken back.
pub(in crate::cache) struct Alone<'a, R: Registrar> {
    shared: &'a Shared<R>,
    wish: &'a Wish,
    id: RegionId,
    watch: Watch,
    watched: bool,
    attempts: u64,
    made: Option<R::Registration>,
}

impl<'a, R: Registrar> Begun<'a, R> {
    pub(in crate::cache) fn new(shared: &'a Shared<R>, wish: &'a Wish) -> Result<Self, AcquireError> {
        check(shared, wish)?;
        let terms = &shared.terms;
        let mut books = shared.lock()?;
        // What has left is deregistered first, unless somebody else does it.
        let is_quiet = terms.caches && (terms.background || !books.has_leavers()) && books.is_quiet(wish.range);
        let amount = Amount { pages: wish.range.pages(), regions: 1 };
        if !is_quiet || !books.registered.has_room(amount, terms.capacity) {
            return Ok(Self::Planless(books));
        }
        let &Wish { range, access, counted, sharing, .. } = wish;
        let ask = Ask { range, access, max_segments: terms.max_segments, again: counted, sharing };
        let Some(id) = books.core.hold_anew(&ask) else { return Ok(Self::Planless(books)) };
        let ticket = books.new_ticket();
        books.set_entry(id, Entry::Pending { ticket, stale: false, owner: who::am_i() });
        if terms.background && terms.capacity.pages.saturating_sub(books.registered.pages) < terms.headroom {
            shared.work.notify_one();
        }
        let reserved = books.reserve(amount, terms.capacity);
        debug_assert!(reserved, "there was room");
        drop(books);
        let watch = Watch::Watched;
        Ok(Self::Alone(Alone { shared, wish, id, watch, watched: false, attempts: 0, made: None }))
    }
}

impl<'a, R: Registrar> Alone<'a, R> {
    pub(in crate::cache) fn finish(mut self) -> Result<Lease<R>, AcquireError> {
        let Self { shared, wish, .. } = self;
        let (range, access) = (wish.range, wish.access);
        if !wish.answers_for(range) {
            self.watch = shared.watch(range);
            self.watched = self.watch == Watch::Watched;
            if !self.watched {
                return self.hand_over(None);
            }
        }
        // Counted before: the registrar may panic.
        self.attempts = 1;
        match attempt(shared, range, access) {
            Ok(registration) => self.made = Some(registration),
            Err(source) => return self.hand_over(Some(source)),
        }
        let (mut books, sure) = shared.lock_now()?;
        let Some(registration) = self.made.take() else { unreachable!("it was just made") };
        books.tally.attempts += self.attempts;
        let placeholder = self.placeholder();
        // In the books from here on.
        std::mem::forget(self);
        let registered = Registered { range, access, registration };
        let hold = stand(shared, &mut books, &placeholder, registered, sure);
        let waiting = std::mem::take(&mut books.waiting);
        drop(books);
        if waiting > 0 {
            shared.progress.notify_all();
        }
        Ok(Lease::one(shared, wish.address, wish.length, hold))
    }

    fn placeholder(&self) -> Placeholder {
        let &Self { wish: &Wish { range, access, .. }, id, watch, watched, .. } = self;
        Placeholder { id, range, access, apart: None, watch, watched }
    }

    /// The same as a request of any kind. `failed`: it was tried, and this came of it.
    #[cold]
    fn hand_over(self, failed: Option<std::io::Error>) -> Result<Lease<R>, AcquireError> {
        let mut acquiring = std::mem::ManuallyDrop::new(self).widen();
        acquiring.register_watched(failed)?;
        acquiring.complete()
    }

    fn widen(&mut self) -> Acquiring<'a, R> {
        let mut acquiring = Acquiring::new(self.shared, *self.wish);
        let Placeholder { range, access, .. } = self.placeholder();
        acquiring.mine.push(self.placeholder());
        acquiring.attempts = self.attempts;
        match self.made.take() {
            Some(registration) => acquiring.made.push(Registered { range, access, registration }),
            None => acquiring.reserved = Amount { pages: range.pages(), regions: 1 },
        }
        acquiring
    }
}

impl<R: Registrar> Drop for Alone<'_, R> {
    #[cold]
    fn drop(&mut self) {
        drop(self.widen());
    }
}
