//! The last part of a miss, with the lock: what was registered takes the place of its placeholders, or they are taken back.

use super::{Acquiring, Apart, Placeholder};
use crate::cache::books::{Books, Entry};
use crate::cache::error::AcquireError;
use crate::cache::lease::Hold;
use crate::cache::shared::Shared;
use crate::cache::tally::Amount;
use crate::registrar::{Registered, Registrar};

impl<R: Registrar> Acquiring<'_, R> {
    /// Puts what was registered in the place of the placeholders, and takes back those that were not.
    pub(super) fn publish(&mut self) -> Result<(), AcquireError> {
        let shared = self.shared;
        let (mut books, sure) = match shared.lock_now() {
            Ok(locked) => locked,
            Err(unusable) => {
                // Registered, and nobody's to deregister any more: leaked, not dropped.
                self.made.drain(..).for_each(std::mem::forget);
                return Err(unusable.into());
            }
        };
        self.give_back(&mut books);
        let mut placeholders = std::mem::take(&mut self.mine).into_iter();
        let made = std::mem::take(&mut self.made);
        for (registered, placeholder) in made.into_iter().zip(&mut placeholders) {
            self.holds.push(stand(shared, &mut books, &placeholder, registered, sure));
        }
        for Placeholder { id, .. } in placeholders {
            books.set_entry(id, Entry::Vacant);
            books.core.abandon(id);
        }
        books.end_yielding(shared.desk(), self.yielding.drain(..), sure);
        let waiting = std::mem::take(&mut books.waiting);
        drop(books);
        if waiting > 0 {
            shared.progress.notify_all();
        }
        Ok(())
    }

    /// What was reserved and not used is free again, and nobody is down for what is not registered yet.
    fn give_back(&mut self, books: &mut Books<R::Registration>) {
        if let Some(beginner) = self.beginner.take()
            && let Some(place) = books.beginners.iter().position(|&other| other == beginner)
        {
            books.beginners.swap_remove(place);
        }
        books.registered.take(std::mem::take(&mut self.reserved));
        books.tally.attempts += std::mem::take(&mut self.attempts);
    }

    /// Takes back what is planned and not registered.
    pub(super) fn take_back(&mut self) {
        self.awaited.clear();
        self.unwatch();
        let untouched = self.mine.is_empty() && self.yielding.is_empty() && self.attempts == 0;
        if untouched && self.reserved == Amount::default() {
            return;
        }
        if let Ok((mut books, sure)) = self.shared.lock_now() {
            self.give_back(&mut books);
            let mut made = self.made.drain(..);
            for Placeholder { id, watched, .. } in self.mine.drain(..) {
                books.set_entry(id, Entry::Vacant);
                books.core.abandon(id);
                // A registrar or a monitor panicked: what was registered goes.
                if let Some(registered) = made.next() {
                    if watched {
                        books.to_unwatch.push(registered.range);
                    }
                    books.limbo.push_back(registered);
                    books.stir(self.shared.work);
                }
            }
            books.end_yielding(self.shared.desk(), self.yielding.drain(..), sure);
            drop(books);
            self.shared.progress.notify_all();
        } else {
            self.made.drain(..).for_each(std::mem::forget);
        }
    }
}

/// Puts what was registered in the place of its placeholder, held. Sure: no change is under way that is not in the books.
#[inline(always)]
pub(super) fn stand<R: Registrar>(
    shared: &Shared<R>,
    books: &mut Books<R::Registration>,
    placeholder: &Placeholder,
    registered: Registered<R::Registration>,
    sure: bool,
) -> Hold {
    let &Placeholder { id, apart, watched, .. } = placeholder;
    let lone = apart.is_some();
    let Registered { range, access, registration } = registered;
    let Entry::Pending { stale, .. } = books.entry(id) else { unreachable!("{id:?} is this request's own") };
    // Not cached any more: taken in by another region meanwhile, or struck out.
    let merged = !lone && !books.core.is_cached(id);
    let overtaken = !lone && (stale || !sure);
    let cached = !lone && !merged && !overtaken;
    books.tally.overtaken += u64::from(overtaken);
    books.tally.barred += u64::from(apart == Some(Apart::Changing));
    books.tally.unwatched += u64::from(apart == Some(Apart::Unwatched));
    books.set_entry(id, Entry::Standing { stale: !cached, watched });
    shared.records[id].fill(range, access, registration);
    let Ok(grip) = shared.grip(id) else { unreachable!("{id:?} was not found before, so nothing counts leases of it") };
    let hold = Hold::new(id, grip);
    if cached {
        shared.records[id].show();
        books.core.settle(id);
        books.retire_covered(shared.desk(), id);
    } else {
        // For this lease only: the core's hold goes on until the lease ends.
        books.core.withdraw(id);
        books.lent.push(id);
    }
    hold
}
