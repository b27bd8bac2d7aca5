//! The rules of the two sides, as a state machine of one connection.
//!
//! A [`Handshake`] takes local calls, messages, the ends of registrations and writes, and the time. It answers with
//! [`Action`]s and messages. It holds no socket, no clock and no memory of the application. So the same code is explored to
//! the last interleaving, fuzzed, simulated and shipped.
//!
//! Its driver obeys four rules:
//!
//! 1. *Actions come before messages.* After each call, carry out [`Handshake::next_action`] until there is none. Then send
//!    [`Handshake::take_message`] until there is none. All go on the one ordered connection: a DONE says that the writes
//!    before it are all.
//! 2. *A lease lives until [`Action::Release`].* It comes exactly once for each transfer that was opened here or
//!    [requested](Action::Requested), also where nothing was registered yet. Nothing else ends a lease.
//! 3. *A receive is posted again before the next call.* [`RECEIVES`] stand before the connection does; each message
//!    tells the peer how many were added. That of a message in which the peer's application [says](Handshake::send_message) something is
//!    posted again when this side's has [taken](Handshake::message_taken) it.
//! 4. After [`Action::Disconnect`], tear the connection down, call [`Handshake::lost`], and [`Handshake::flushed`] when
//!    neither side's writes can be placed any more.
//!
//! # The trip of a transfer
//!
//! ```text
//! writer:  write / crw ─► local pieces ready ─┐
//!                       STCRW, STCRW, … ──────┴─► Write, Write, … ─► DONE ─► writes completed ─► Release
//! target:  read / accept ─► offer, offer, … ─► STCRW, STCRW, … ─► … ─► DONE received ─► Release
//! ```
//!
//! The target that gives up after its first STCRW has sent keys. Its lease is released by DONE, by the writer's NAK (which
//! follows its last completed write), or by the end of the connection. The writer that gives up has nothing out but its own
//! writes.

mod application;
mod calls;
mod credits;
mod ends;
mod extents;
mod limits;
mod link;
mod messages;
mod slots;
mod target;
mod transfer;
mod transfers;
mod trip;
mod writer;

use crate::wire::{HEADER, MESSAGE, Reason, Segment};
pub use application::SendError;
pub use calls::{Action, Refusal};
pub use credits::RECEIVES;
pub use ends::{Counters, Disconnect, Expired, Failure, Operation, Phase};
use extents::Extent;
pub use limits::{Limits, Process};
use link::{Connection, Link, Out};
use messages::Messages;
use slots::At;
use target::Target;
use transfer::Role;
use transfers::Transfers;
use trip::Trip;
use writer::Writer;

/// The name of a transfer, unique in a connection's life: odd where the connecting side opened it, else even.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Tag(pub u64);

/// Which end of the connection this is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Side {
    /// It connected: its tags are odd.
    Connecting,
    /// It accepted: its tags are even.
    Accepting,
}

/// The state of one side of one connection.
///
/// A call finds its transfer once. The rules of the two roles then work on it and on what all transfers share. They
/// allocate nothing once the lists have grown to what a connection needs.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Handshake {
    transfers: Transfers,
    link: Link,
}

impl Handshake {
    /// Returns one side of a connection on which [`RECEIVES`] receives, or as many as the limits say, are posted.
    pub fn new(side: Side, limits: Limits) -> Self {
        Self { transfers: Transfers::new(side), link: Link::new(limits) }
    }

    /// Returns the transfer of a local call.
    fn here(&self, tag: Tag) -> Result<At, Refusal> {
        if !self.link.stands() {
            return Err(Refusal::Disconnected);
        }
        self.transfers.find_open(tag).ok_or(Refusal::NotOpen { tag })
    }

    fn writer(
        &mut self,
        tag: Tag,
        call: &'static str,
        rule: impl FnOnce(&mut Writer, &mut Trip, &mut Link) -> Result<(), &'static str>,
    ) -> Result<(), Refusal> {
        let at = self.here(tag)?;
        let done = self.transfers.apply(&mut self.link, at, |transfer, link| match &mut transfer.role {
            Role::Writer(writer) => rule(writer, &mut transfer.trip, link),
            Role::Target(_) => Err("this side is the target"),
        });
        done.map_err(|why| Refusal::OutOfPlace { tag, call, why })
    }

    fn target(
        &mut self,
        tag: Tag,
        call: &'static str,
        rule: impl FnOnce(&mut Target, &mut Trip, &mut Link) -> Result<(), &'static str>,
    ) -> Result<(), Refusal> {
        let at = self.here(tag)?;
        let done = self.transfers.apply(&mut self.link, at, |transfer, link| match &mut transfer.role {
            Role::Target(target) => rule(target, &mut transfer.trip, link),
            Role::Writer(_) => Err("this side is the writer"),
        });
        done.map_err(|why| Refusal::OutOfPlace { tag, call, why })
    }

    /// Opens a transfer of a buffer of this length to the peer. The buffer's pieces come by [`Handshake::ready`]: the
    /// conditional write is posted by this call.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn write(&mut self, now: u64, length: u64, header: &[u8]) -> Result<Tag, Refusal> {
        self.open(now, Role::writer(Some(length)), length, header)
    }

    /// Asks the peer for bytes, at most this many. The buffer is offered by [`Handshake::offer`].
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn read(&mut self, now: u64, most: u64, header: &[u8]) -> Result<Tag, Refusal> {
        let mut role = Role::target(Some(most));
        if let Role::Target(target) = &mut role {
            target.opened(most);
        }
        self.open(now, role, most, header)
    }

    fn open(&mut self, now: u64, role: Role, length: u64, header: &[u8]) -> Result<Tag, Refusal> {
        if !self.link.stands() {
            return Err(Refusal::Disconnected);
        }
        if header.len() > HEADER {
            return Err(Refusal::HeaderTooLong { length: header.len() });
        }
        let open = self.transfers.own_open();
        if open >= self.link.limits.open {
            return Err(Refusal::TooManyOpen { open });
        }
        let deadline = self.link.deadline(now, self.link.limits.sync_time);
        let tag = self.transfers.open(role, length, header, now, deadline);
        self.link.out.push_back(Out::Sync(tag));
        Ok(tag)
    }

    /// Returns the header with which the peer's application opened the transfer.
    pub fn header(&self, tag: Tag) -> Option<&[u8]> {
        self.transfers.get(tag).map(|transfer| &transfer.trip.header[..])
    }

    /// Returns its SYNC's length: that of the buffer, or the most that is accepted.
    pub fn length(&self, tag: Tag) -> Option<u64> {
        self.transfers.get(tag).map(|transfer| transfer.trip.length)
    }

    /// Takes a write that the peer asked for into a buffer of this length; then [offer](Handshake::offer) it. A buffer that is
    /// too small ends the transfer on both sides.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn accept(&mut self, now: u64, tag: Tag, length: u64) -> Result<(), Refusal> {
        self.target(tag, "accept", |target, trip, link| target.accept(trip, link, now, length))
    }

    /// Answers a read of the peer's with a buffer of this length, "write this when the keys are known"; its pieces come by
    /// [`Handshake::ready`]. One that is longer than the peer accepts ends the transfer on both sides.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn crw(&mut self, now: u64, tag: Tag, length: u64) -> Result<(), Refusal> {
        self.writer(tag, "crw", |writer, trip, link| writer.crw(trip, link, now, length))
    }

    /// Bytes of the writer's buffer are registered. Each byte is named once, in any order.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn ready(&mut self, now: u64, tag: Tag, offset: u64, length: u64) -> Result<(), Refusal> {
        let extent = Extent { offset, length };
        self.writer(tag, "ready", |writer, trip, link| writer.ready(trip, link, now, extent))
    }

    /// In the traditional process: the application has the keys and wants the write.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn submit(&mut self, now: u64, tag: Tag) -> Result<(), Refusal> {
        self.writer(tag, "submit", |writer, trip, link| writer.go_ahead(trip, link, now))
    }

    /// Segments of the target's buffer are registered: one after another they begin at `offset`. Each byte is offered
    /// once, in any order; `more` says that these are not the last.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn offer(&mut self, now: u64, tag: Tag, offset: u64, segments: &[Segment], more: bool) -> Result<(), Refusal> {
        self.target(tag, "offer", |target, trip, link| target.offer(trip, link, now, offset, segments, more))
    }

    /// The transfer cannot go on here: its memory cannot be registered, or the application does not want it.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn fail(&mut self, now: u64, tag: Tag, reason: Reason) -> Result<(), Refusal> {
        self.give_up(now, tag, reason, Failure::Here(reason))
    }

    /// Gives the transfer up. It ends as cancelled, unless all was written already.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn cancel(&mut self, now: u64, tag: Tag) -> Result<(), Refusal> {
        self.give_up(now, tag, Reason::Cancelled, Failure::Here(Reason::Cancelled))
    }

    fn give_up(&mut self, now: u64, tag: Tag, reason: Reason, failure: Failure) -> Result<(), Refusal> {
        // Also where the connection ends: it is an end that the application sees.
        let at = self.transfers.find_open(tag).ok_or(Refusal::NotOpen { tag })?;
        self.transfers.apply(&mut self.link, at, |transfer, link| transfer.give_up(link, now, reason, failure));
        Ok(())
    }

    /// The transfer is given up at this time if it has not ended, as if it was [cancelled](Handshake::cancel) then, but as timed out. Its
    /// own waits have the times that they always have.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn set_deadline(&mut self, tag: Tag, over: u64) -> Result<(), Refusal> {
        let at = self.here(tag)?;
        self.transfers.set_limit(at, over);
        self.link.earliest = self.link.earliest.min(over);
        Ok(())
    }

    /// Returns whether the transfer is given up here. A write of it that is not posted yet need not be: it is
    /// [reported](Handshake::written) without.
    pub fn gives_up(&self, tag: Tag) -> bool {
        let transfer = self.transfers.get(tag);
        transfer.is_some_and(|transfer| matches!(transfer.role, Role::Writer(writer) if writer.is_given_up()))
    }

    /// A write has completed, or has not come about.
    pub fn written(&mut self, tag: Tag, succeeded: bool) {
        if let Some(at) = self.transfers.find(tag) {
            self.transfers.apply(&mut self.link, at, |transfer, link| {
                if let Role::Writer(writer) = &mut transfer.role {
                    writer.written(&mut transfer.trip, link, succeeded);
                }
            });
        }
    }

    /// Returns the next thing to do.
    pub fn next_action(&mut self) -> Option<Action> {
        self.link.actions.pop_front()
    }

    /// When [`Handshake::expire`] has something to do at the earliest.
    pub fn next_deadline(&self) -> Option<u64> {
        (self.link.earliest != u64::MAX).then_some(self.link.earliest)
    }

    /// Ends what has waited too long.
    pub fn expire(&mut self, now: u64) {
        if now < self.link.earliest || !self.link.stands() {
            return;
        }
        // Deadlines only come closer by new ones, which are noted as they are set, so this look is rare.
        let (due, earliest) = self.transfers.due(now);
        self.link.earliest = earliest;
        for at in due {
            self.link.counters.expired += 1;
            if let Some(at) = self.transfers.find(at) {
                self.transfers.apply(&mut self.link, at, |transfer, link| {
                    let expired = transfer.expired(link, now);
                    // An answer to a CANCEL that does not come ends it.
                    if !transfer.trip.ended {
                        link.expired.push_back(expired);
                        // Also where no new wait has begun.
                        link.deadline(0, transfer.trip.deadline);
                    }
                });
            }
        }
    }

    /// Returns the next transfer that has waited too long, and is cancelled but has not ended: its end follows as any
    /// other's.
    pub fn next_expired(&mut self) -> Option<Expired> {
        self.link.expired.pop_front()
    }

    /// The connection is gone: everything that is open has failed. Leases live until [`Handshake::flushed`].
    pub fn lost(&mut self) {
        if matches!(self.link.state, Connection::Lost | Connection::Flushed) {
            return;
        }
        self.link.state = Connection::Lost;
        self.link.earliest = u64::MAX;
        self.link.fall_silent();
        self.transfers.apply_to_all(&mut self.link, |transfer, link| transfer.trip.end(link, Err(Failure::Lost)));
    }

    /// Nothing that either side has posted can be placed any more: all leases may go.
    pub fn flushed(&mut self) {
        self.lost();
        self.link.state = Connection::Flushed;
        self.transfers.apply_to_all(&mut self.link, |transfer, link| transfer.trip.release(link));
    }

    /// Returns whether the connection stands, as far as this side knows.
    pub fn stands(&self) -> bool {
        self.link.stands()
    }

    /// Transfers that are open, or have ended and still hold a lease.
    pub fn open_transfers(&self) -> usize {
        self.transfers.len()
    }

    /// Returns the counters so far.
    pub fn counters(&self) -> Counters {
        self.link.counters
    }

    /// Bytes allocated, for the state of all transfers.
    pub fn memory(&self) -> usize {
        self.transfers.memory() + self.link.memory()
    }

    // ---- Messages in and out -------------------------------------------------------------------------

    /// Returns what the peer's application said in a message that came, if it said something.
    ///
    /// The message's receive is posted again before the next call. That of a message of the peer's application is posted
    /// again once this side's has taken it; [`Handshake::message_taken`] follows.
    pub fn received<'bytes>(&mut self, now: u64, bytes: &'bytes [u8]) -> Option<&'bytes [u8]> {
        self.messages(now).received(bytes)
    }

    /// Takes the immediate of a write of the peer's. Its receive is posted again before the next call.
    pub fn received_immediate(&mut self, now: u64, immediate: u32) {
        self.messages(now).received_immediate(immediate);
    }

    fn messages(&mut self, now: u64) -> Messages<'_> {
        Messages { transfers: &mut self.transfers, link: &mut self.link, now }
    }

    /// Returns whether [`Handshake::take_message`] may have something to send.
    pub fn has_to_send(&self) -> bool {
        self.link.has_to_send()
    }

    /// Returns the length of the next message to send, which is in `into`. `None`: there is none, or the peer has no
    /// receive for it yet.
    pub fn take_message(&mut self, now: u64, into: &mut [u8; MESSAGE]) -> Option<usize> {
        self.take_message_where(now, into, |_| true)
    }

    /// Returns the length of the next DONE, and whether one waits for a credit. It passes other messages.
    ///
    /// `posted` says of a transfer whether all of its writes are posted. A driver calls this before it
    /// [sends a message ahead](Handshake::send_message_ahead), so that the peer learns first of transfers that have ended.
    pub fn take_done_where(&mut self, into: &mut [u8; MESSAGE], posted: impl Fn(Tag) -> bool) -> (Option<usize>, bool) {
        if !self.link.stands() || !self.link.done_is_next(posted, true) {
            return (None, false);
        }
        let taken = self.link.take_done(into);
        (taken, taken.is_none())
    }

    /// Returns the same as [`Handshake::take_message`], for a driver that posts writes late.
    ///
    /// A DONE is not taken before `posted` says that all of the transfer's writes are posted. Other messages do not wait
    /// for writes.
    pub fn take_message_where(
        &mut self,
        now: u64,
        into: &mut [u8; MESSAGE],
        posted: impl Fn(Tag) -> bool,
    ) -> Option<usize> {
        self.messages(now).take(into, posted)
    }

    // ---- What applications say -----------------------------------------------------------------------

    /// Returns the length of a message to the peer's application, which is in `into`. It is to be sent at once, behind all
    /// that was [taken](Handshake::take_message).
    ///
    /// # Errors
    /// [`SendError`]: also where actions or messages wait, which come first.
    pub fn send_message(&mut self, bytes: &[u8], into: &mut [u8; MESSAGE]) -> Result<usize, SendError> {
        self.link.may_ever_send(bytes.len())?;
        if !self.link.may_send() {
            return Err(SendError::Full);
        }
        self.link.send_message_ahead(bytes, into)
    }

    /// Returns the same, before the actions and messages that wait. None of those concerns this message. But the peer
    /// hears after it of what was opened before.
    ///
    /// # Errors
    /// [`SendError`].
    pub fn send_message_ahead(&mut self, bytes: &[u8], into: &mut [u8; MESSAGE]) -> Result<usize, SendError> {
        self.link.send_message_ahead(bytes, into)
    }

    /// Returns whether one more message may wait behind so many to be [sent ahead](Handshake::send_message_ahead).
    ///
    /// All that they wait for is a credit each, which comes whether the peer's application takes messages or not.
    pub fn may_wait_to_send(&self, waiting: usize) -> bool {
        self.link.may_wait_to_send(waiting)
    }

    /// Returns whether a message can be [sent ahead](Handshake::send_message_ahead) now, if it is not too long.
    pub fn may_send_ahead(&self) -> bool {
        self.link.may_send_ahead()
    }

    /// Checks that a message of so many bytes could be sent, if there were room.
    ///
    /// # Errors
    /// [`SendError`], but not for want of room.
    pub fn may_ever_send(&self, length: usize) -> Result<(), SendError> {
        self.link.may_ever_send(length)
    }

    /// Returns whether a message can be sent now, if it is not too long.
    pub fn may_send(&self) -> bool {
        self.link.may_send()
    }

    /// Notes that the application has taken a message of the peer's. Its receive is posted again before this.
    pub fn message_taken(&mut self) {
        self.link.credits.let_go();
    }
}
