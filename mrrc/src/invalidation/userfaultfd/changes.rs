//! Changes that were read and not yet dealt with. None is lost, and keeping them allocates nothing.

use super::super::ranges::Ranges;
use super::super::{Change, ChangeKind};
use crate::range::{PAGE, PageRange};

/// Messages read in one go, and goes in one session: the changes are applied at least that often.
pub(super) const MESSAGES: usize = 16;
pub(super) const GOES: usize = 8;

/// Changes of one session, at most: a message has two at most.
pub(super) const SESSION: usize = 2 * MESSAGES * GOES;

/// Ranges of each kind that a cache can leave to be told of, while its lock is taken. More are not read for a while.
const PENDING: usize = 1 << 17;

/// Changes that are told at a time.
const CHUNK: usize = 64;

const NOTHING: Change = Change { range: PageRange::EVERYTHING, kind: ChangeKind::Gone };

/// The changes of one session, as they were read.
pub(super) struct Batch {
    list: [Change; SESSION],
    length: usize,
}

impl Batch {
    pub(super) const fn new() -> Self {
        Self { list: [NOTHING; SESSION], length: 0 }
    }

    pub(super) fn as_slice(&self) -> &[Change] {
        &self.list[..self.length]
    }

    pub(super) fn clear(&mut self) {
        self.length = 0;
    }

    pub(super) fn push(&mut self, change: Change) {
        match self.list.get_mut(self.length) {
            Some(place) => *place = change,
            // No session has so many.
            None => return self.list[SESSION - 1] = NOTHING,
        }
        self.length += 1;
    }
}

/// Changes that a cache was not told of yet.
#[derive(Debug)]
pub(super) struct Pending {
    gone: Ranges<()>,
    discarding: Ranges<()>,
}

impl Pending {
    pub(super) fn new() -> Self {
        Self { gone: Ranges::with_room_for(PENDING), discarding: Ranges::with_room_for(PENDING) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.gone.is_empty() && self.discarding.is_empty()
    }

    /// Returns whether another session may be too much to remember exactly.
    pub(super) fn is_full(&self) -> bool {
        self.gone.room().min(self.discarding.room()) < SESSION
    }

    pub(super) fn push(&mut self, change: Change) {
        match change.kind {
            ChangeKind::Gone => self.gone.insert(change.range, ()),
            ChangeKind::Discarding => self.discarding.insert(change.range, ()),
        }
    }

    /// Tells all of them, some at a time, until that is refused. False: the rest is still pending.
    pub(super) fn tell(&mut self, mut tell: impl FnMut(&[Change]) -> bool) -> bool {
        let mut chunk = [NOTHING; CHUNK];
        while !self.is_empty() {
            let mut length = 0;
            while let Some(place) = chunk.get_mut(length)
                && let Some(change) = self.pop()
            {
                *place = change;
                length += 1;
            }
            if !tell(&chunk[..length]) {
                chunk[..length].iter().for_each(|&change| self.push(change));
                return false;
            }
        }
        self.gone.clear();
        self.discarding.clear();
        true
    }

    fn pop(&mut self) -> Option<Change> {
        let change = |kind| move |(range, ())| Change { range, kind };
        let gone = self.gone.pop_first().map(change(ChangeKind::Gone));
        gone.or_else(|| self.discarding.pop_first().map(change(ChangeKind::Discarding)))
    }
}

/// Changes that the table has not applied yet.
#[derive(Debug)]
pub(super) struct News {
    /// Ranges whose registrations have ended.
    gone: Ranges<()>,
    /// Ranges that registered mappings have been moved to or from.
    moved: Ranges<()>,
}

/// One thing that the table has to learn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Learnt {
    /// Registrations have ended on these pages.
    Gone(PageRange),
    /// Registrations have ended on some of these pages.
    PartlyGone(PageRange),
    /// A registered mapping was moved to these pages, or from them.
    Moved(PageRange),
}

impl News {
    pub(super) fn new() -> Self {
        Self { gone: Ranges::with_room_for(PENDING), moved: Ranges::with_room_for(PENDING / 16) }
    }

    pub(super) fn add_gone(&mut self, range: PageRange) {
        self.gone.insert(range, ());
    }

    pub(super) fn add_moved(&mut self, range: PageRange) {
        self.moved.insert(range, ());
    }

    /// Takes the next. Ended registrations come first: where something was moved to, registrations ended before.
    pub(super) fn pop(&mut self) -> Option<Learnt> {
        let is_exact = self.gone.is_exact();
        if let Some((range, ())) = self.gone.pop_first() {
            return Some(if is_exact { Learnt::Gone(range) } else { Learnt::PartlyGone(range) });
        }
        self.gone.clear();
        self.moved.pop_first().map(|(range, ())| Learnt::Moved(range))
    }
}

/// Returns the pages that the bytes from `start` to `end` touch; everything if they wrap.
pub(super) fn pages(start: u64, end: u64) -> Option<PageRange> {
    if start == end {
        return None;
    }
    let first = start / PAGE;
    let pages = end.div_ceil(PAGE).checked_sub(first);
    Some(pages.and_then(|pages| PageRange::new(first, pages).ok()).unwrap_or(PageRange::EVERYTHING))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(start: u64, kind: ChangeKind) -> Change {
        Change { range: PageRange::between(start, start + 1), kind }
    }

    #[test]
    fn what_is_refused_stays_pending() {
        let mut pending = Pending::new();
        let kinds = [ChangeKind::Gone, ChangeKind::Discarding];
        (0..1000).for_each(|nth| pending.push(change(nth * 7919 % 10_000, kinds[nth as usize % 2])));
        let mut told = Vec::new();
        assert!(!pending.tell(|_| false) && !pending.is_empty());
        let mut left = 5;
        let some = pending.tell(|changes| {
            left -= 1;
            told.extend_from_slice(if left > 0 { changes } else { &[] });
            left > 0
        });
        assert!(!some && told.len() == 4 * CHUNK);
        assert!(pending.tell(|changes| {
            told.extend_from_slice(changes);
            true
        }));
        told.sort_by_key(|change| change.range.start());
        let mut expected: Vec<_> = (0..1000).map(|nth| change(nth * 7919 % 10_000, kinds[nth as usize % 2])).collect();
        expected.sort_by_key(|change| change.range.start());
        assert!(pending.is_empty() && told == expected);
    }

    #[test]
    fn a_hundred_thousand_are_pending_one_by_one() {
        let mut pending = Pending::new();
        (0..100_000).for_each(|nth| pending.push(change(2 * nth, ChangeKind::Gone)));
        assert!(!pending.is_full());
        let (mut changes, mut pages) = (0, 0);
        assert!(pending.tell(|told| {
            changes += told.len();
            pages += told.iter().map(|change| change.range.pages()).sum::<u64>();
            true
        }));
        assert_eq!((changes, pages), (100_000, 100_000));
        (0..1 << 17).for_each(|nth| pending.push(change(2 * nth, ChangeKind::Discarding)));
        assert!(pending.is_full());
    }

    #[test]
    fn what_ended_is_learnt_before_what_moved() {
        let mut news = News::new();
        let range = |start| PageRange::between(start, start + 1);
        news.add_moved(range(5));
        news.add_gone(range(7));
        news.add_gone(range(3));
        let learnt: Vec<_> = std::iter::from_fn(|| news.pop()).collect();
        assert_eq!(learnt, [Learnt::Gone(range(3)), Learnt::Gone(range(7)), Learnt::Moved(range(5))]);
        (0..1 << 17).for_each(|nth| news.add_gone(range(2 * nth)));
        assert!(matches!(news.pop(), Some(Learnt::PartlyGone(_))));
    }

    #[test]
    fn a_session_that_is_too_long_is_everything() {
        let mut batch = Batch::new();
        (0..SESSION as u64).for_each(|nth| batch.push(change(nth, ChangeKind::Discarding)));
        assert_eq!(batch.as_slice().len(), SESSION);
        batch.push(change(0, ChangeKind::Gone));
        assert_eq!(batch.as_slice().last(), Some(&NOTHING));
    }

    #[test]
    fn bytes_round_out_and_nonsense_is_everything() {
        assert_eq!(pages(4096, 8192), Some(PageRange::between(1, 2)));
        assert_eq!(pages(4097, 8193), Some(PageRange::between(1, 3)));
        assert_eq!(pages(4096, 4096), None);
        assert_eq!(pages(8192, 0), Some(PageRange::EVERYTHING));
        assert_eq!(pages(0, u64::MAX), Some(PageRange::EVERYTHING));
    }
}
