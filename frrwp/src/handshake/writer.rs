//! The side that has the bytes: it writes what is registered here and offered there, and says DONE.
//!
//! Remote segments and local extents come in any order. Each new one is met with all of the other kind that came before,
//! so that each byte is written once, as soon as both its ends are known.

use super::ends::{Disconnect, Failure, Phase};
use super::extents::{self, Extent};
use super::link::{Link, Out};
use super::trip::Trip;
use super::{Action, Process};
use crate::wire::{Offer, Placed, Reason};

/// The condition that a call does not meet.
type Misfit = &'static str;

/// The state of the writer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Writer {
    /// Known from the CRW on.
    length: Option<u64>,
    /// Bytes that the peer has offered, and whether that is all.
    offered: u64,
    all_offered: bool,
    /// Whether any STCRW came.
    met: bool,
    /// Bytes registered here.
    registered: u64,
    /// Bytes for which writes are submitted, and writes that have not completed.
    submitted: u64,
    in_flight: u32,
    /// Whether DONE, or what stands for it, has been submitted.
    done: bool,
    /// Keys have come; and, in the traditional process, the application wants the writes.
    may_submit: bool,
    /// It failed, and this is said to the peer when no write is in flight.
    farewell: Option<Farewell>,
}

/// The words that a failed writer sends last.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Farewell {
    /// To be said, if the peer does not know.
    nak: Option<Reason>,
    failure: Failure,
}

impl Writer {
    /// Makes a writer of a buffer of this length, or of one that is not known yet.
    pub(super) fn new(length: Option<u64>) -> Self {
        Self { length, ..Self::default() }
    }

    /// Returns whether it is given up here.
    pub(super) fn is_given_up(&self) -> bool {
        self.farewell.is_some()
    }

    /// Returns the phase that it waits in.
    pub(super) fn phase(&self, trip: &Trip) -> Phase {
        match self {
            Self { in_flight: 1.., .. } => Phase::Writes,
            Self { length: None, .. } => Phase::Application,
            Self { met: false, .. } if trip.ours => Phase::Answer,
            _ => Phase::Pieces,
        }
    }

    pub(super) fn crw(&mut self, trip: &mut Trip, link: &mut Link, now: u64, length: u64) -> Result<(), Misfit> {
        if self.length.is_some() {
            return Err("it was posted before");
        }
        self.length = Some(length);
        if length > trip.length {
            let reason = Reason::TooLong { needed: length };
            self.give_up(trip, link, Some(reason), Failure::Here(reason));
        } else if self.all_offered && self.offered < length {
            self.give_up(trip, link, Some(Reason::Malformed), Failure::Here(Reason::Malformed));
        } else {
            self.wait_for_pieces(trip, link, now);
            self.conclude(trip, link);
        }
        Ok(())
    }

    pub(super) fn ready(&mut self, trip: &mut Trip, link: &mut Link, now: u64, new: Extent) -> Result<(), Misfit> {
        let known = self.length.ok_or("post the CRW first")?;
        new.offset.checked_add(new.length).filter(|&end| end <= known).ok_or("it lies outside the buffer")?;
        if new.length == 0 || !extents::add(&mut trip.extents, new) {
            return Err("each byte becomes ready once");
        }
        self.registered += new.length;
        if self.may_submit {
            for at in 0..trip.pieces.len() {
                if let Some(part) = new.part_of(trip.pieces[at]) {
                    self.submit(trip, link, part);
                }
            }
        }
        self.wait_for_pieces(trip, link, now);
        self.conclude(trip, link);
        Ok(())
    }

    /// Traditional: the application has seen the keys.
    pub(super) fn go_ahead(&mut self, trip: &mut Trip, link: &mut Link, now: u64) -> Result<(), Misfit> {
        if self.may_submit {
            return Err("its writes are submitted as keys come");
        }
        if !self.met {
            return Err("the peer's keys have not come");
        }
        self.may_submit = true;
        for at in 0..trip.pieces.len() {
            self.meet(trip, link, trip.pieces[at]);
        }
        self.wait_for_pieces(trip, link, now);
        self.conclude(trip, link);
        Ok(())
    }

    /// The peer's segments have come.
    pub(super) fn offer_came(&mut self, trip: &mut Trip, link: &mut Link, now: u64, offer: Offer<'_>) {
        if self.farewell.is_some() {
            // Nothing more is written, whatever is offered.
            link.counters.late += 1;
            return;
        }
        // No more than was asked for: a write asks for its length, a read for its most. Progress, or an end.
        let bytes: u64 = offer.segments.iter().map(|segment| segment.length).sum();
        let end = offer.offset.checked_add(bytes).filter(|&end| end <= trip.length);
        let offered = self.offered.checked_add(bytes).filter(|&offered| offered <= trip.length);
        let says_nothing = offer.more && offer.segments.is_empty();
        let (Some(_), Some(offered), false, false) = (end, offered, self.all_offered, says_nothing) else {
            return self.malformed(trip, link);
        };
        if !offer.more && offered < self.length.unwrap_or(0) {
            return self.malformed(trip, link);
        }
        self.offered = offered;
        self.all_offered = !offer.more;
        let first = !std::mem::replace(&mut self.met, true);
        if link.limits.process == Process::Frrwp {
            self.may_submit = true;
        } else if first {
            link.actions.push_back(Action::KeysCame { tag: trip.tag });
        }
        let mut offset = offer.offset;
        for segment in offer.segments.iter() {
            let piece = Placed { offset, segment };
            offset += segment.length;
            if !self.meet(trip, link, piece) && !self.keep(trip, link, piece) {
                return;
            }
        }
        self.wait_for_pieces(trip, link, now);
        self.conclude(trip, link);
    }

    fn malformed(&mut self, trip: &mut Trip, link: &mut Link) {
        self.give_up(trip, link, Some(Reason::Malformed), Failure::Here(Reason::Malformed));
        link.count_stranger();
    }

    /// Writes what is registered of a piece. Whether that is all that will ever be.
    fn meet(&mut self, trip: &mut Trip, link: &mut Link, piece: Placed) -> bool {
        if !self.may_submit {
            return false;
        }
        for at in 0..trip.extents.len() {
            if let Some(part) = trip.extents[at].part_of(piece) {
                self.submit(trip, link, part);
            }
        }
        Some(self.registered) == self.length
    }

    /// Keeps a piece until the local bytes are there. False where the bound is reached: the transfer is given up.
    fn keep(&mut self, trip: &mut Trip, link: &mut Link, piece: Placed) -> bool {
        const BYTES: usize = size_of::<Placed>();
        if link.early_bytes + BYTES > link.limits.early_bytes {
            link.counters.busy += 1;
            self.give_up(trip, link, Some(Reason::Busy), Failure::Here(Reason::Busy));
            return false;
        }
        trip.pieces.push(piece);
        trip.early_bytes += BYTES;
        link.early_bytes += BYTES;
        true
    }

    fn submit(&mut self, trip: &Trip, link: &mut Link, part: Placed) {
        if self.farewell.is_some() || self.done {
            return;
        }
        // A target that offers bytes twice gets no more than there are.
        let left = self.length.map_or(0, |length| length - self.submitted);
        let mut remote = part.segment;
        remote.length = remote.length.min(left);
        if remote.length == 0 {
            return;
        }
        self.submitted += remote.length;
        self.in_flight += 1;
        // An immediate says only that all of what the writer's SYNC announced was written.
        let is_all = remote.length == left && trip.ours && self.length == Some(trip.length);
        self.done = is_all && link.limits.immediate && link.credits.spend_silently();
        let immediate = self.done.then_some(trip.tag.0 as u32);
        link.actions.push_back(Action::Write { tag: trip.tag, remote, offset: part.offset, immediate });
    }

    /// Says DONE when all is submitted, and ends the transfer when all has completed.
    fn conclude(&mut self, trip: &mut Trip, link: &mut Link) {
        let Some(length) = self.length.filter(|&length| self.submitted == length) else { return };
        if !self.may_submit || self.farewell.is_some() {
            return;
        }
        if !std::mem::replace(&mut self.done, true) {
            link.say_done(trip.tag, length);
        }
        if self.in_flight == 0 {
            trip.finish(link, Ok(length));
        }
    }

    /// A write has completed, or has not come about.
    pub(super) fn written(&mut self, trip: &mut Trip, link: &mut Link, succeeded: bool) {
        self.in_flight = self.in_flight.saturating_sub(1);
        if !succeeded {
            // An ordered connection does nothing after a write that failed; the lease goes with it.
            trip.end(link, Err(Failure::Lost));
            return link.disconnect(Disconnect::WriteFailed);
        }
        match self.farewell {
            Some(farewell) if self.in_flight == 0 => self.take_leave(trip, link, farewell),
            Some(_) => {}
            None => self.conclude(trip, link),
        }
    }

    /// Nothing more is written; the peer hears of it when nothing is on its way any more.
    pub(super) fn give_up(&mut self, trip: &mut Trip, link: &mut Link, nak: Option<Reason>, failure: Failure) {
        if self.farewell.is_some() {
            return;
        }
        if self.done {
            // All was submitted. A driver need not post a write that it has not posted yet, as long as the peer was not
            // told of it.
            if !link.take_done_back(trip.tag) {
                return;
            }
            self.done = false;
        }
        let farewell = Farewell { nak, failure };
        self.farewell = Some(farewell);
        if self.in_flight == 0 {
            self.take_leave(trip, link, farewell);
        }
    }

    fn take_leave(&mut self, trip: &mut Trip, link: &mut Link, Farewell { nak, failure }: Farewell) {
        // A transfer that the peer has not heard of is taken back in silence.
        if let Some(reason) = nak.filter(|_| trip.said) {
            link.enqueue(Out::Nak { tag: trip.tag, reason });
        }
        trip.finish(link, Err(failure));
    }

    pub(super) fn expired(&mut self, trip: &mut Trip, link: &mut Link, failure: Failure) {
        if self.in_flight > 0 {
            let failure = self.farewell.map_or(failure, |farewell| farewell.failure);
            trip.end(link, Err(failure));
            link.disconnect(Disconnect::WriteFailed);
        } else {
            self.give_up(trip, link, Some(Reason::TimedOut), failure);
        }
    }

    /// The wait for keys, and for local pieces, begins anew with each that comes.
    fn wait_for_pieces(&mut self, trip: &mut Trip, link: &mut Link, now: u64) {
        if let Some(length) = self.length.filter(|_| self.met) {
            trip.wait(link, now, link.time_for(length));
        }
    }
}
