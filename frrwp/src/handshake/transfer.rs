//! One transfer: the state of both ends, and that of this side's.

use super::ends::{Expired, Failure, Operation, Phase};
use super::link::{Link, Out};
use super::target::Target;
use super::trip::Trip;
use super::writer::Writer;
use crate::wire::{Body, MESSAGE, Message, Reason};

/// A transfer that is open, or has ended and still holds its lease.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Transfer {
    pub(super) trip: Trip,
    pub(super) role: Role,
}

/// Which end of the transfer this is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Role {
    Writer(Writer),
    Target(Target),
}

impl Role {
    pub(super) fn writer(length: Option<u64>) -> Self {
        Self::Writer(Writer::new(length))
    }

    pub(super) fn target(length: Option<u64>) -> Self {
        Self::Target(Target::new(length))
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

    /// Returns whether its SYNC, or its STCRW, still is to be said.
    pub(super) fn has_to_send(&self, out: Out) -> bool {
        match (out, self.role) {
            _ if self.trip.ended => false,
            (Out::Stcrw(_), Role::Target(target)) => target.has_stcrw(),
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
            // The fabric's part has the time that it always had.
            _ if is_given_up => self.give_up(link, now, Reason::TimedOut, failure),
            Role::Writer(writer) => writer.expired(&mut self.trip, link, failure),
            Role::Target(target) => target.expired(&mut self.trip, link, now, failure),
        }
        Expired { operation: Operation::Transfer(self.trip.tag), phase, waited }
    }

    /// Returns the phase that it waits in.
    fn phase(&self) -> Phase {
        match &self.role {
            Role::Writer(writer) => writer.phase(&self.trip),
            Role::Target(target) => target.phase(),
        }
    }
}
