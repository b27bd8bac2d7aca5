//! The first part of a miss, with the lock: the core is asked, what stands is held, what is missing is reserved.

use super::wait::Naps;
use super::{Acquiring, Apart, Awaited, Lock, Placeholder, Stage};
use crate::cache::books::{Books, Entry};
use crate::cache::error::{AcquireError, Unusable};
use crate::cache::hit::TooMany;
use crate::cache::lease::Hold;
use crate::cache::tally::Amount;
use crate::cache::who;
use crate::core::{Ask, Part, Sharing};
use crate::invalidation::Watch;
use crate::range::PageRange;
use crate::registrar::Registrar;

impl<'cache, R: Registrar> Acquiring<'cache, R> {
    /// Finds out what there is of the range, holds that, and reserves the rest.
    pub(super) fn plan(
        &mut self,
        range: PageRange,
        again: bool,
        members: &[PageRange],
        sharing: Sharing,
    ) -> Result<(), AcquireError> {
        let books = self.shared.lock()?;
        self.plan_under(books, range, again, members, sharing)
    }

    /// The same, with the lock.
    pub(super) fn plan_under(
        &mut self,
        books: Lock<'cache, R>,
        range: PageRange,
        again: bool,
        members: &[PageRange],
        sharing: Sharing,
    ) -> Result<(), AcquireError> {
        let Self { shared, wish, .. } = *self;
        let ask = Ask { range, access: wish.access, max_segments: shared.terms.max_segments, again, sharing };
        let mut books = self.decide(books, ask, members)?;
        let is_held = self.take_in(&mut books);
        self.reserve(&mut books);
        // What is reserved is taken back when the request is dropped.
        if is_held { Ok(()) } else { Err(AcquireError::TooManyLeases { range }) }
    }

    /// Asks the core until it has an answer. Where all that is registered is in use, room is looked for, or waited for.
    fn decide(
        &mut self,
        mut books: Lock<'cache, R>,
        mut ask: Ask,
        members: &[PageRange],
    ) -> Result<Lock<'cache, R>, AcquireError> {
        let desk = self.shared.desk();
        let mut naps = Naps::new();
        let mut probed = false;
        loop {
            is_open(&books)?;
            if books.core.may_evict_for(&ask) {
                books.sweep(desk);
                if !probed {
                    probed = true;
                    books = self.probe(books, &ask, members)?;
                }
            }
            let (core, mut leases) = books.parts(desk);
            let answer = if members.is_empty() || ask.again {
                core.ask(&ask, &mut leases).map(drop)
            } else {
                core.ask_group(&ask, members, &mut leases).map(drop)
            };
            books.collect_outcome(desk);
            let Err(refusal) = answer else { return Ok(books) };
            ask.again = true;
            let lent = books.lent.len();
            books.look_at_all_lent(desk);
            if books.lent.len() < lent || books.give_up_comebacks(desk) {
                // Leases have ended since it was last looked, or there is room that nobody uses.
                books.core.take_back_refusal();
            } else {
                books = self.wait_for_room(books, &mut naps, refusal)?;
            }
        }
    }

    /// Somebody may have to leave for this: not for an address that cannot be registered.
    fn probe(
        &mut self,
        books: Lock<'cache, R>,
        ask: &Ask,
        members: &[PageRange],
    ) -> Result<Lock<'cache, R>, AcquireError> {
        let shared = self.shared;
        let &Ask { range, access, .. } = ask;
        drop(books);
        let refused = shared.registrar.probe(range, access);
        let mut books = shared.lock()?;
        // Nothing of this request was in the books meanwhile: the end of the cache did not wait for it.
        is_open(&books)?;
        if let Err(source) = refused
            && books.core.refuse_missing(ask, members)
        {
            self.attempts += 1;
            let registrar = shared.registrar.name();
            return Err(AcquireError::Register { range, access, registrar, attempts: 1, source });
        }
        Ok(books)
    }

    /// Takes in what the core has answered: holds what stands, notes what others register and what is for this to do.
    /// False: something that stands has as many leases as can be counted.
    fn take_in(&mut self, books: &mut Books<R::Registration>) -> bool {
        let shared = self.shared;
        let mut is_held = true;
        for &part in books.core.outcome().parts() {
            match part {
                Part::Ready { region: id, range } => match books.entries[id.index()] {
                    Entry::Pending { ticket, owner, .. } => {
                        self.awaited.push(Awaited { id, ticket, range, own: owner == who::am_i() });
                    }
                    _ => match shared.grip(id) {
                        Ok(grip) => self.holds.push(Hold::new(id, grip)),
                        Err(TooMany) => is_held = false,
                    },
                },
                Part::Gap { region: Some(id), range, access } => {
                    // Asked before the pages are looked up: a registration can outlast the bar. What is discarded from
                    // here on makes the placeholder stale.
                    let barred = books.is_changing(range) || !self.wish.answers_for(range) && books.is_barred(range);
                    let apart = if barred {
                        Some(Apart::Changing)
                    } else if !shared.terms.caches {
                        Some(Apart::NothingKept)
                    } else if books.core.is_cached(id) {
                        None
                    } else if self.wish.sharing == Sharing::Nothing && self.wish.owned.is_none() {
                        // Borrowed memory, of whose changes nobody vouches to hear.
                        Some(Apart::Unwatched)
                    } else {
                        Some(Apart::ByItself)
                    };
                    let watch = Watch::Watched;
                    self.mine.push(Placeholder { id, range, access, apart, watch, watched: false });
                }
                Part::Gap { region: None, .. } => unreachable!("under a hard limit every gap becomes a region"),
            }
        }
        is_held
    }

    /// Puts placeholders in the books, and takes the room for them if it is there.
    fn reserve(&mut self, books: &mut Books<R::Registration>) {
        let shared = self.shared;
        let mut amount = Amount::default();
        for placeholder in &self.mine {
            amount.add(placeholder.range.pages());
            books.core.hold(placeholder.id);
            let ticket = books.new_ticket();
            books.set_entry(placeholder.id, Entry::Pending { ticket, stale: false, owner: who::am_i() });
            if placeholder.apart.is_some() {
                books.core.withdraw(placeholder.id);
            }
        }
        if self.stage == Stage::Begun && !self.mine.is_empty() {
            let me = who::am_i();
            books.beginners.push(me);
            self.beginner = Some(me);
        }
        books.note_yielding(shared.desk(), &mut self.yielding);
        if shared.terms.background
            && shared.terms.capacity.pages.saturating_sub(books.registered.pages) < shared.terms.headroom
        {
            shared.work.notify_one();
        }
        // Mostly there is room, and nothing to deregister first.
        if (!books.has_leavers() || shared.terms.background) && books.reserve(amount, shared.terms.capacity) {
            self.reserved = amount;
        }
    }
}

/// Whether the cache is there. Asked each time that the lock was taken before anything of a request is in the books: what
/// is there keeps the state of the cache, and nothing else does.
fn is_open<T>(books: &Books<T>) -> Result<(), Unusable> {
    if books.closed { Err(Unusable::Closed) } else { Ok(()) }
}
