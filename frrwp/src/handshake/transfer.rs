//! The state of one transfer.

use super::ends::{Expired, Failure, Operation, Phase};
use super::extents::Extent;
use super::link::{Link, Out};
use super::{Action, Tag};
use crate::wire::{Body, MESSAGE, Message, Placed, Reason};

/// A transfer that is open, or has ended and still holds its lease.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Transfer {
    pub(super) trip: Trip,
    pub(super) role: Role,
}

/// What both ends of a transfer know of it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Trip {
    pub(super) tag: Tag,
    /// Whether it was opened here.
    pub(super) ours: bool,
    /// Whether the peer knows of it: its SYNC was sent, or came.
    pub(super) said: bool,
    /// Whether the application knows its end.
    pub(super) ended: bool,
    /// Whether its lease may go: it is to be forgotten.
    pub(super) released: bool,
    /// What its SYNC said.
    pub(super) length: u64,
    /// When the present wait began, and when it ends.
    pub(super) since: u64,
    pub(super) deadline: u64,
    /// When the application gives it up, whatever it waits for then.
    pub(super) limit: u64,
    /// The application's, from the SYNC.
    pub(super) header: Vec<u8>,
    /// Writer: segments of the peer's for which local bytes may still come. Target: segments to be sent.
    pub(super) pieces: Vec<Placed>,
    /// Writer: what is registered of the local buffer. Target: what was offered of it.
    pub(super) extents: Vec<Extent>,
    /// Counted against the bound on early segments.
    pub(super) early_bytes: usize,
}

/// Which end of the transfer this is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Role {
    Writer(Writer),
    Target(Target),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Writer {
    /// Known from the CRW on.
    pub(super) length: Option<u64>,
    /// Bytes that the peer has offered, and whether that is all.
    pub(super) offered: u64,
    pub(super) all_offered: bool,
    /// Whether any STCRW came.
    pub(super) met: bool,
    /// Bytes registered here.
    pub(super) registered: u64,
    /// Bytes for which writes are submitted, and writes that have not completed.
    pub(super) submitted: u64,
    pub(super) in_flight: u32,
    /// Whether DONE, or what stands for it, has been submitted.
    pub(super) done: bool,
    /// Keys have come; and, in the traditional process, the application wants the writes.
    pub(super) may_submit: bool,
    /// It failed, and this is said to the peer when no write is in flight.
    pub(super) farewell: Option<Farewell>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Farewell {
    /// To be said, if the peer does not know.
    pub(super) nak: Option<Reason>,
    pub(super) failure: Failure,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Target {
    /// Known once the application has given a buffer.
    pub(super) length: Option<u64>,
    /// Bytes that the application has offered, and those that the peer has been told of.
    pub(super) given: u64,
    pub(super) told: u64,
    /// Whether the last segments were given.
    pub(super) all_given: bool,
    /// Whether an STCRW is queued; whether one was sent.
    pub(super) queued: bool,
    pub(super) sent: bool,
    /// A CANCEL is out: why.
    pub(super) cancelled: Option<Failure>,
}

impl Role {
    pub(super) fn writer(length: Option<u64>) -> Self {
        Self::Writer(Writer { length, ..Writer::default() })
    }

    pub(super) fn target(length: Option<u64>) -> Self {
        Self::Target(Target { length, ..Target::default() })
    }
}

impl Trip {
    pub(super) fn new(tag: Tag, ours: bool, length: u64, since: u64, deadline: u64) -> Self {
        Self {
            tag,
            ours,
            said: !ours,
            ended: false,
            released: false,
            length,
            since,
            deadline,
            limit: u64::MAX,
            header: Vec::new(),
            pieces: Vec::new(),
            extents: Vec::new(),
            early_bytes: 0,
        }
    }

    /// Uses the allocations of one that is gone.
    pub(super) fn take_lists(&mut self, gone: &mut Self) {
        std::mem::swap(&mut self.header, &mut gone.header);
        std::mem::swap(&mut self.pieces, &mut gone.pieces);
        std::mem::swap(&mut self.extents, &mut gone.extents);
    }

    /// Keeps the allocations of so many of each for the next.
    pub(super) fn empty_lists(&mut self, kept: usize) {
        self.header.clear();
        self.pieces.clear();
        self.extents.clear();
        self.pieces.shrink_to(kept);
        self.extents.shrink_to(kept);
    }

    /// When something is to be done about it though nothing comes.
    pub(super) fn next_deadline(&self) -> u64 {
        self.deadline.min(self.limit)
    }

    /// A new wait begins.
    pub(super) fn wait(&mut self, link: &mut Link, now: u64, time: u64) {
        (self.since, self.deadline) = (now, link.deadline(now, time));
    }

    /// Tells the application, once.
    pub(super) fn end(&mut self, link: &mut Link, result: Result<u64, Failure>) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        match result {
            Ok(_) => link.counters.completed += 1,
            Err(_) => link.counters.failed += 1,
        }
        link.actions.push_back(Action::Ended { tag: self.tag, result });
    }

    /// The lease may go, once.
    pub(super) fn release(&mut self, link: &mut Link) {
        if !std::mem::replace(&mut self.released, true) {
            link.early_bytes -= std::mem::take(&mut self.early_bytes);
            if !self.said {
                link.take_back(Out::Sync(self.tag));
            }
            link.actions.push_back(Action::Release { tag: self.tag });
        }
    }

    pub(super) fn finish(&mut self, link: &mut Link, result: Result<u64, Failure>) {
        self.end(link, result);
        self.release(link);
    }
}

impl Transfer {
    /// It cannot go on here.
    pub(super) fn give_up(&mut self, link: &mut Link, now: u64, reason: Reason, failure: Failure) {
        match &mut self.role {
            Role::Writer(writer) => writer.give_up(&mut self.trip, link, Some(reason), failure),
            Role::Target(target) => target.give_up(&mut self.trip, link, now, reason, failure),
        }
    }

    /// The peer says that it cannot go on. That is never answered.
    pub(super) fn nak_came(&mut self, link: &mut Link, reason: Reason) {
        match &mut self.role {
            Role::Writer(writer) => writer.give_up(&mut self.trip, link, None, Failure::Peer(reason)),
            Role::Target(target) => target.nak_came(&mut self.trip, link, reason),
        }
    }

    /// The peer says something that makes no sense.
    pub(super) fn malformed(&mut self, link: &mut Link, now: u64) {
        self.give_up(link, now, Reason::Malformed, Failure::Here(Reason::Malformed));
        link.count_stranger();
    }

    /// Whether its SYNC, or its STCRW, still is to be said.
    pub(super) fn has_to_say(&self, out: Out) -> bool {
        match (out, self.role) {
            _ if self.trip.ended => false,
            (Out::Stcrw(_), Role::Target(target)) => target.cancelled.is_none() && target.queued,
            (Out::Sync(_), _) => true,
            _ => false,
        }
    }

    /// Its SYNC, and as much of a target's buffer as goes along.
    pub(super) fn encode_sync(&mut self, link: &mut Link, now: u64, credits: u16, into: &mut [u8; MESSAGE]) -> usize {
        let Self { trip, role } = self;
        trip.said = true;
        let (tag, length, header) = (trip.tag.0, trip.length, &trip.header[..]);
        match role {
            Role::Writer(_) => {
                let body = Body::Sync { length, read: false, header, offer: None };
                Message { credits, tag, body }.encode(into)
            }
            Role::Target(target) => {
                let with = target.with_sync(trip);
                let offer = with.map(|run| target.offer_of(trip, run, 0));
                let body = Body::Sync { length, read: true, header, offer };
                let length = Message { credits, tag, body }.encode(into);
                target.opening_sent(trip, link, now, with);
                length
            }
        }
    }

    pub(super) fn expired(&mut self, link: &mut Link, now: u64) -> Expired {
        let (phase, waited) = (self.phase(), now.saturating_sub(self.trip.since));
        let failure = Failure::TimedOut { phase, waited };
        let is_given_up = std::mem::replace(&mut self.trip.limit, u64::MAX) <= now && self.trip.deadline > now;
        match &mut self.role {
            // What the fabric is at has the time that it always had.
            _ if is_given_up => self.give_up(link, now, Reason::TimedOut, failure),
            Role::Writer(writer) => writer.expired(&mut self.trip, link, failure),
            Role::Target(target) => target.expired(&mut self.trip, link, now, failure),
        }
        Expired { operation: Operation::Transfer(self.trip.tag), phase, waited }
    }

    /// What it waits for.
    fn phase(&self) -> Phase {
        match self.role {
            Role::Writer(writer) if writer.in_flight > 0 => Phase::Writes,
            Role::Writer(writer) if writer.length.is_none() => Phase::Application,
            Role::Writer(writer) if !writer.met && self.trip.ours => Phase::Answer,
            Role::Writer(_) => Phase::Pieces,
            Role::Target(target) if target.cancelled.is_some() => Phase::Cancelling,
            Role::Target(target) if !target.sent && target.given == 0 => Phase::Application,
            Role::Target(target) if !target.all_given => Phase::Pieces,
            Role::Target(_) => Phase::Done,
        }
    }
}
