//! The side that wants the bytes: it offers its buffer as it is registered, and waits for DONE.
//!
//! Until its first STCRW no peer can write to its buffer, and it may end by a NAK. From then on the peer has keys: the
//! buffer is held until the peer says that nothing more is written, or the connection is gone.

use super::ends::{Disconnect, Failure, Phase};
use super::extents::{self, Extent};
use super::link::{Link, Out};
use super::trip::Trip;
use crate::wire::{Body, MESSAGE, Message, Offer, Placed, Reason, SEGMENTS, Segment, Segments};

/// The condition that a call does not meet.
type Misfit = &'static str;

/// The state of the target.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Target {
    /// Known once the application has given a buffer.
    length: Option<u64>,
    /// Bytes that the application has offered, and those that the peer has been told of.
    given: u64,
    told: u64,
    /// Whether the last segments were given.
    all_given: bool,
    /// Whether an STCRW is queued; whether one was sent.
    queued: bool,
    sent: bool,
    /// A CANCEL is out: why.
    cancelled: Option<Failure>,
}

impl Target {
    /// Makes a target with a buffer of this length, or of one that is not known yet.
    pub(super) fn new(length: Option<u64>) -> Self {
        Self { length, ..Self::default() }
    }

    /// Returns whether an STCRW is to be sent.
    pub(super) fn has_stcrw(&self) -> bool {
        self.cancelled.is_none() && self.queued
    }

    /// Returns the phase that it waits in.
    pub(super) fn phase(&self) -> Phase {
        match self {
            Self { cancelled: Some(_), .. } => Phase::Cancelling,
            Self { sent: false, given: 0, .. } => Phase::Application,
            Self { all_given: false, .. } => Phase::Pieces,
            _ => Phase::Done,
        }
    }

    /// A read is opened: its buffer is known.
    pub(super) fn opened(&mut self, most: u64) {
        if most == 0 {
            // Nothing is registered for nothing.
            (self.all_given, self.queued) = (true, true);
        }
    }

    pub(super) fn accept(&mut self, trip: &mut Trip, link: &mut Link, now: u64, length: u64) -> Result<(), Misfit> {
        if self.length.is_some() {
            return Err("it was accepted before, or opened here");
        }
        let needed = trip.length;
        if length < needed {
            let reason = Reason::TooLong { needed };
            self.give_up(trip, link, now, reason, Failure::Here(reason));
            return Ok(());
        }
        // The peer never writes more than it announced: no more is offered.
        self.length = Some(needed);
        if needed == 0 {
            (self.all_given, self.queued) = (true, true);
            link.enqueue(Out::Stcrw(trip.tag));
        }
        Ok(())
    }

    pub(super) fn offer(
        &mut self,
        trip: &mut Trip,
        link: &mut Link,
        now: u64,
        offset: u64,
        segments: &[Segment],
        more: bool,
    ) -> Result<(), Misfit> {
        let length = self.length.ok_or("accept it first")?;
        if self.cancelled.is_some() {
            return Err("it was given up");
        }
        if self.all_given {
            return Err("its last segments were offered before");
        }
        let mut bytes = 0_u64;
        for segment in segments {
            let wraps = segment.address.checked_add(segment.length.wrapping_sub(1)).is_none();
            if segment.length == 0 || wraps {
                return Err("a segment has bytes, and they do not wrap");
            }
            bytes = bytes.saturating_add(segment.length);
        }
        // In the buffer, and each byte once: so there are never more than it has.
        let given = self.given.saturating_add(bytes);
        offset.checked_add(bytes).filter(|&end| end <= length).ok_or("it ends outside the buffer")?;
        if !more && given < length {
            return Err("the last segments leave bytes of the buffer out");
        }
        if more && segments.is_empty() {
            return Ok(());
        }
        if bytes > 0 && !extents::add(&mut trip.extents, Extent { offset, length: bytes }) {
            return Err("each byte is offered once");
        }
        (self.given, self.all_given) = (given, !more);
        let mut offset = offset;
        for &segment in segments {
            trip.pieces.push(Placed { offset, segment });
            offset += segment.length;
        }
        self.wait_for_done(trip, link, now);
        // Before its SYNC is sent, the segments travel with it.
        if !std::mem::replace(&mut self.queued, true) && trip.said {
            link.enqueue(Out::Stcrw(trip.tag));
        }
        Ok(())
    }

    /// Returns the part of the buffer that goes along with the SYNC, which is about to be sent.
    pub(super) fn with_sync(&self, trip: &Trip) -> Option<Run> {
        let fit = Message::segments_beside(trip.header.len()).min(SEGMENTS);
        let run = Run::first(&trip.pieces, fit, true);
        (self.queued && (run.count > 0 || trip.pieces.is_empty())).then_some(run)
    }

    /// The SYNC was sent, and part of the buffer with it, or not.
    pub(super) fn opening_sent(&mut self, trip: &mut Trip, link: &mut Link, now: u64, with: Option<Run>) {
        match with {
            Some(run) => self.told(trip, link, now, run),
            None if self.queued => link.enqueue(Out::Stcrw(trip.tag)),
            None => {}
        }
    }

    pub(super) fn encode_stcrw(
        &mut self,
        trip: &mut Trip,
        link: &mut Link,
        now: u64,
        credits: u16,
        into: &mut [u8; MESSAGE],
    ) -> usize {
        let run = Run::first(&trip.pieces, SEGMENTS, false);
        let offset = trip.pieces.first().map_or(0, |piece| piece.offset);
        let body = Body::Stcrw(self.offer_of(trip, run, offset));
        let length = Message { credits, tag: trip.tag.0, body }.encode(into);
        self.told(trip, link, now, run);
        length
    }

    /// Returns the run as it is told to the peer.
    pub(super) fn offer_of<'a>(&self, trip: &'a Trip, run: Run, offset: u64) -> Offer<'a> {
        let more = run.count < trip.pieces.len() || !self.all_given;
        Offer { offset, segments: Segments::Plain(&trip.pieces[..run.count]), more }
    }

    /// The first pieces were sent.
    fn told(&mut self, trip: &mut Trip, link: &mut Link, now: u64, run: Run) {
        trip.pieces.drain(..run.count);
        self.told += run.bytes;
        self.sent = true;
        self.queued = !trip.pieces.is_empty();
        if self.queued {
            link.enqueue(Out::Stcrw(trip.tag));
        }
        self.wait_for_done(trip, link, now);
    }

    /// The peer says that it has written so many bytes, and writes no more.
    pub(super) fn done_came(&mut self, trip: &mut Trip, link: &mut Link, bytes: u64) {
        // All of what it opened to write, or what it had to give for a read; and only what it had keys for.
        let fits = if trip.ours { bytes <= trip.length } else { bytes == trip.length };
        if !self.sent || bytes > self.told || !fits {
            trip.end(link, Err(Failure::Here(Reason::Malformed)));
            return link.disconnect(Disconnect::FalseDone);
        }
        trip.finish(link, Ok(bytes));
    }

    /// The writer says that it cannot go on: no write of its is on the way any more.
    pub(super) fn nak_came(&mut self, trip: &mut Trip, link: &mut Link, reason: Reason) {
        trip.finish(link, Err(self.cancelled.unwrap_or(Failure::Peer(reason))));
    }

    pub(super) fn give_up(&mut self, trip: &mut Trip, link: &mut Link, now: u64, reason: Reason, failure: Failure) {
        if self.cancelled.is_some() {
            return;
        }
        if self.sent {
            self.cancelled = Some(failure);
            self.queued = false;
            trip.pieces.clear();
            link.enqueue(Out::Cancel(trip.tag));
            // The peer answers when what it has posted has completed, and that may take what it might have taken anyway.
            let left = trip.deadline.saturating_sub(now);
            return trip.wait(link, now, left.max(link.limits.sync_time));
        }
        // A transfer that the peer has not heard of is taken back in silence.
        if trip.said {
            link.enqueue(Out::Nak { tag: trip.tag, reason });
        }
        trip.finish(link, Err(failure));
    }

    pub(super) fn expired(&mut self, trip: &mut Trip, link: &mut Link, now: u64, failure: Failure) {
        match self.cancelled {
            Some(why) => {
                trip.end(link, Err(why));
                link.disconnect(Disconnect::Revocation);
            }
            None => self.give_up(trip, link, now, Reason::TimedOut, failure),
        }
    }

    fn wait_for_done(&mut self, trip: &mut Trip, link: &mut Link, now: u64) {
        trip.wait(link, now, link.time_for(trip.length));
    }
}

/// Pieces that one message takes: each begins where the one before ends.
#[derive(Clone, Copy, Default)]
pub(super) struct Run {
    count: usize,
    bytes: u64,
}

impl Run {
    fn first(pieces: &[Placed], most: usize, from_the_start: bool) -> Self {
        let mut run = Self::default();
        let Some(mut end) = pieces.first().map(|piece| piece.offset) else { return run };
        if from_the_start && end != 0 {
            return run;
        }
        for piece in pieces.iter().take(most).take_while(|piece| {
            let follows = piece.offset == end;
            end = piece.offset.saturating_add(piece.segment.length);
            follows
        }) {
            run.count += 1;
            run.bytes += piece.segment.length;
        }
        run
    }
}
