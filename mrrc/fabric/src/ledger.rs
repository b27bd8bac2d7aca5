//! The memory that libfabric subscribed to: which entries of its cache are valid, and which changes it has to be told of.
//!
//! Pure decisions: no clock, thread or system call. Memory is kept as *pieces*, which do not overlap. A piece is the unit of watching.
//! A change of any of its pages ends all of it, so libfabric is told of the whole piece.
//!
//! ```text
//! Asked ──> Watched ──> Due ──> Told ──> gone
//!   └─────> Changed ──> gone
//! ```
//!
//! An entry is valid if each of its pages is in a piece that is watched. No piece begins where another is due or told. So a piece is
//! younger than every change that libfabric was not told of, and so is each entry that it makes valid.

use mrrc::PageRange;
use mrrc::invalidation::{Change, ChangeKind};
use std::collections::{BTreeMap, VecDeque};

/// The most pieces. libfabric does not report the end of an entry, so pieces of memory that never changes would add up.
const MAX_PIECES: usize = 65_536;

/// The most changes that wait for a look. More are drawn together.
const MAX_ARRIVED: usize = 1024;

/// The most ranges that are barred. More are drawn together.
const MAX_BARS: usize = 256;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// The monitor is being asked whether it watches the piece.
    Asked,
    /// It changed while the monitor was asked.
    Changed,
    /// No page has changed since the piece was made.
    Watched,
    /// It changed: libfabric has to be told.
    Due,
    /// libfabric is being told.
    Told,
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    end: u64,
    state: State,
}

/// A change at a time, in milliseconds.
#[derive(Clone, Copy, Debug)]
struct Arrived {
    range: PageRange,
    at: u64,
    /// The pages may go after the report: see [`ChangeKind::Discarding`].
    goes_on: bool,
}

/// Why a subscription is refused. libfabric then uses the registration once, and does not cache it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// Part of it has changed, and libfabric was not told yet.
    Changing,
    /// There are as many pieces as can be remembered. All end now.
    Full,
}

pub(crate) struct Ledger {
    /// By their first page.
    pieces: BTreeMap<u64, Piece>,
    /// First pages of those that are due.
    due: VecDeque<u64>,
    /// Never longer than the room that it was made with.
    arrived: Vec<Arrived>,
    /// Ranges where no piece begins, until a time.
    bars: Vec<(PageRange, u64)>,
    grace: u64,
    max_pieces: usize,
}

impl Ledger {
    /// Returns an empty one. No piece begins for `grace` milliseconds after a discard was reported.
    pub(crate) fn new(grace: u64) -> Self {
        Self::with_room(grace, MAX_PIECES)
    }

    fn with_room(grace: u64, max_pieces: usize) -> Self {
        let arrived = Vec::with_capacity(MAX_ARRIVED);
        Self { pieces: BTreeMap::new(), due: VecDeque::new(), arrived, bars: Vec::new(), grace, max_pieces }
    }

    /// Takes changes that the monitor reports. It neither allocates nor frees: the thread that reports must not.
    pub(crate) fn report(&mut self, changes: &[Change], now: u64) {
        for change in changes {
            let next = Arrived { range: change.range, at: now, goes_on: change.kind == ChangeKind::Discarding };
            if self.arrived.len() == MAX_ARRIVED {
                let all = self.arrived.drain(..).fold(next, Arrived::with);
                self.arrived.push(all);
            } else {
                self.arrived.push(next);
            }
        }
    }

    /// Applies the changes that were reported. Each of the other methods needs that first.
    pub(crate) fn settle(&mut self, now: u64) {
        self.bars.retain(|&(_, until)| until > now);
        for at in 0..self.arrived.len() {
            let Arrived { range, at, goes_on } = self.arrived[at];
            self.change(range);
            let until = at.saturating_add(self.grace);
            if goes_on && until > now {
                self.bar(range, until);
            }
        }
        self.arrived.clear();
    }

    /// Ends the pieces that a range touches.
    fn change(&mut self, range: PageRange) {
        let first = self.first_of(range.start());
        for (&start, piece) in self.pieces.range_mut(first..range.end()) {
            match piece.state {
                State::Watched => {
                    piece.state = State::Due;
                    self.due.push_back(start);
                }
                State::Asked => piece.state = State::Changed,
                // Nothing was cached in it since it was due.
                State::Changed | State::Due | State::Told => {}
            }
        }
    }

    fn bar(&mut self, range: PageRange, until: u64) {
        if self.bars.len() == MAX_BARS {
            let all = self
                .bars
                .drain(..)
                .fold((range, until), |(range, until), (other, later)| (hull(range, other), until.max(later)));
            self.bars.push(all);
        } else {
            self.bars.push((range, until));
        }
    }

    /// Returns the key of the piece that has a page, or the page.
    fn first_of(&self, page: u64) -> u64 {
        match self.pieces.range(..=page).next_back() {
            Some((&start, piece)) if piece.end > page => start,
            _ => page,
        }
    }

    /// Returns whether nothing has changed in the range since libfabric subscribed to it.
    pub(crate) fn is_valid(&self, range: PageRange) -> bool {
        let mut next = range.start();
        for (&start, piece) in self.pieces.range(self.first_of(next)..range.end()) {
            if start > next || piece.state != State::Watched {
                return false;
            }
            next = piece.end;
        }
        next >= range.end()
    }

    /// Begins a subscription: returns the new pieces, which the caller has to ask the monitor for, and to pass to
    /// [`Ledger::answer`], each.
    ///
    /// # Errors
    /// Why libfabric must not cache the range now.
    pub(crate) fn begin(&mut self, range: PageRange) -> Result<Vec<PageRange>, Refusal> {
        if self.bars.iter().any(|(barred, _)| barred.overlaps(range)) {
            return Err(Refusal::Changing);
        }
        let mut gaps = Vec::new();
        let mut next = range.start();
        for (&start, piece) in self.pieces.range(self.first_of(next)..range.end()) {
            if piece.state != State::Watched {
                return Err(Refusal::Changing);
            }
            if start > next {
                gaps.push(PageRange::between(next, start));
            }
            next = piece.end;
        }
        if next < range.end() {
            gaps.push(PageRange::between(next, range.end()));
        }
        if self.pieces.len() + gaps.len() > self.max_pieces {
            self.change(PageRange::EVERYTHING);
            return Err(Refusal::Full);
        }
        for gap in &gaps {
            self.pieces.insert(gap.start(), Piece { end: gap.end(), state: State::Asked });
        }
        Ok(gaps)
    }

    /// Takes the monitor's answer for a piece of [`Ledger::begin`]. Returns whether it is watched now. If not, it is forgotten.
    pub(crate) fn answer(&mut self, piece: PageRange, is_watched: bool) -> bool {
        match self.pieces.get_mut(&piece.start()) {
            Some(found) if is_watched && found.state == State::Asked => {
                found.state = State::Watched;
                true
            }
            _ => {
                self.pieces.remove(&piece.start());
                false
            }
        }
    }

    /// Returns the next piece that libfabric has to be told of. The caller tells it, and passes the piece to [`Ledger::told`].
    pub(crate) fn next_due(&mut self) -> Option<PageRange> {
        let start = self.due.pop_front()?;
        let piece = self.pieces.get_mut(&start)?;
        piece.state = State::Told;
        Some(PageRange::between(start, piece.end))
    }

    /// Forgets a piece that libfabric has been told of.
    pub(crate) fn told(&mut self, piece: PageRange) {
        self.pieces.remove(&piece.start());
    }
}

impl Arrived {
    /// Both at once.
    fn with(self, other: Self) -> Self {
        let range = hull(self.range, other.range);
        Self { range, at: self.at.max(other.at), goes_on: self.goes_on || other.goes_on }
    }
}

/// Returns the least range that has both.
fn hull(one: PageRange, other: PageRange) -> PageRange {
    PageRange::between(one.start().min(other.start()), one.end().max(other.end()))
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
