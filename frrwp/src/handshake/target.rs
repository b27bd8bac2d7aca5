//! The side that wants the bytes: it offers its buffer as it is registered, and waits for DONE.
//!
//! Until its first STCRW nobody can write to its buffer, and it may end by a NAK. From then on the peer has keys: the buffer
//! is held until the peer says that nothing more is written, or the connection is gone.

use super::ends::{Disconnect, Failure};
use super::messages::Out;
use super::transfer::{Target, Transfer};
use super::{Handshake, Refusal, Tag};
use crate::wire::{Body, MESSAGE, Message, Offer, Placed, Reason, SEGMENTS, Segment, Segments};

impl Handshake {
    pub(super) fn accept_write(&mut self, now: u64, tag: Tag, length: u64) -> Result<(), Refusal> {
        let transfer = self.open_here(tag)?;
        let needed = transfer.length;
        let out_of_place = |why| Refusal::OutOfPlace { tag, call: "accept", why };
        let target = transfer.as_target().ok_or(out_of_place("this side is the writer"))?;
        if target.length.is_some() {
            return Err(out_of_place("it was accepted before, or opened here"));
        }
        if length < needed {
            let reason = Reason::TooLong { needed };
            self.target_gives_up(now, tag, reason, Failure::Here(reason));
            return Ok(());
        }
        // The peer never writes more than it announced: no more is offered.
        target.length = Some(needed);
        if needed == 0 {
            target.all_given = true;
            target.queued = true;
            self.say(Out::Stcrw(tag));
        }
        Ok(())
    }

    pub(super) fn offer_segments(
        &mut self,
        now: u64,
        tag: Tag,
        offset: u64,
        segments: &[Segment],
        more: bool,
    ) -> Result<(), Refusal> {
        let transfer = self.open_here(tag)?;
        let out_of_place = |why| Refusal::OutOfPlace { tag, call: "offer", why };
        let target = transfer.as_target().ok_or(out_of_place("this side is the writer"))?;
        let length = target.length.ok_or(out_of_place("accept it first"))?;
        if target.all_given {
            return Err(out_of_place("its last segments were offered before"));
        }
        if target.cancelled.is_some() {
            return Err(Refusal::NotOpen { tag });
        }
        let mut bytes = 0_u64;
        for segment in segments {
            let wraps = segment.address.checked_add(segment.length.wrapping_sub(1)).is_none();
            if segment.length == 0 || wraps {
                return Err(out_of_place("a segment has bytes, and they do not wrap"));
            }
            bytes = bytes.saturating_add(segment.length);
        }
        let given = target.given.checked_add(bytes).filter(|&given| given <= length);
        let given = given.ok_or(out_of_place("more bytes than the buffer has"))?;
        offset.checked_add(bytes).filter(|&end| end <= length).ok_or(out_of_place("it ends outside the buffer"))?;
        if !more && given < length {
            return Err(out_of_place("the last segments leave bytes of the buffer out"));
        }
        if more && segments.is_empty() {
            return Ok(());
        }
        target.given = given;
        target.all_given = !more;
        let queued = std::mem::replace(&mut target.queued, true);
        let mut offset = offset;
        for &segment in segments {
            transfer.pieces.push(Placed { offset, segment });
            offset += segment.length;
        }
        let (ours, sent) = (transfer.ours, transfer.as_target().is_some_and(|target| target.sent));
        self.wait_for_done(now, tag);
        // Before its SYNC is sent, the segments travel with it.
        let with_sync = ours && !sent && self.out.contains(&Out::Sync(tag));
        if !queued && !with_sync {
            self.say(Out::Stcrw(tag));
        }
        Ok(())
    }

    pub(super) fn encode_sync(&mut self, now: u64, tag: Tag, credits: u16, into: &mut [u8; MESSAGE]) -> usize {
        let Some(transfer) = self.slots.get_mut(tag) else { return 0 };
        let fit = Message::segments_beside(transfer.header.len());
        let is_target = transfer.as_target().is_some();
        let run = if is_target { first_run(&transfer.pieces, fit.min(SEGMENTS), true) } else { Run::default() };
        let given = transfer.as_target().is_some_and(|target| target.queued);
        let all_given = transfer.as_target().is_some_and(|target| target.all_given);
        let sends = given && (run.count > 0 || transfer.pieces.is_empty());
        let left = transfer.pieces.len() - run.count;
        let segments = Segments::Plain(&transfer.pieces[..run.count]);
        let more = left > 0 || !all_given;
        let offer = sends.then_some(Offer { offset: 0, segments, more });
        let body = Body::Sync { length: transfer.length, read: is_target, header: &transfer.header, offer };
        let length = Message { credits, tag: tag.0, body }.encode(into);
        if sends {
            self.told(now, tag, run);
        } else if given {
            self.say(Out::Stcrw(tag));
        }
        length
    }

    pub(super) fn encode_stcrw(&mut self, now: u64, tag: Tag, credits: u16, into: &mut [u8; MESSAGE]) -> usize {
        let Some(transfer) = self.slots.get_mut(tag) else { return 0 };
        let run = first_run(&transfer.pieces, SEGMENTS, false);
        let all_given = transfer.as_target().is_some_and(|target| target.all_given);
        let more = run.count < transfer.pieces.len() || !all_given;
        let offset = transfer.pieces.first().map_or(0, |piece| piece.offset);
        let offer = Offer { offset, segments: Segments::Plain(&transfer.pieces[..run.count]), more };
        let length = Message { credits, tag: tag.0, body: Body::Stcrw(offer) }.encode(into);
        self.told(now, tag, run);
        length
    }

    /// The first pieces were sent.
    fn told(&mut self, now: u64, tag: Tag, run: Run) {
        let Some(transfer) = self.slots.get_mut(tag) else { return };
        transfer.pieces.drain(..run.count);
        let goes_on = !transfer.pieces.is_empty();
        if let Some(target) = transfer.as_target() {
            target.told += run.bytes;
            target.sent = true;
            target.queued = goes_on;
        }
        if goes_on {
            self.say(Out::Stcrw(tag));
        }
        self.wait_for_done(now, tag);
    }

    /// The peer says that it has written so many bytes, and writes no more.
    pub(super) fn done_came(&mut self, tag: Tag, bytes: u64) {
        let Some(transfer) = self.slots.get_mut(tag) else { return };
        let (ours, said) = (transfer.ours, transfer.length);
        let Some(&mut Target { sent, told, .. }) = transfer.as_target() else { return };
        // All of what it opened to write, or what it had to give for a read; and only what it had keys for.
        let fits = if ours { bytes <= said } else { bytes == said };
        if !sent || bytes > told || !fits {
            self.end(tag, Err(Failure::Here(Reason::Malformed)));
            return self.disconnect(Disconnect::FalseDone);
        }
        self.finish(tag, Ok(bytes));
    }

    /// The writer says that it cannot go on: no write of its is on the way any more.
    pub(super) fn target_was_refused(&mut self, tag: Tag, reason: Reason) {
        let cancelled = self.slots.get_mut(tag).and_then(Transfer::as_target).and_then(|target| target.cancelled);
        self.finish(tag, Err(cancelled.unwrap_or(Failure::Peer(reason))));
    }

    pub(super) fn target_gives_up(&mut self, now: u64, tag: Tag, reason: Reason, failure: Failure) {
        let unsaid = self.out.iter().position(|&out| out == Out::Sync(tag));
        let Some(target) = self.slots.get_mut(tag).and_then(Transfer::as_target) else { return };
        if target.cancelled.is_some() {
            return;
        }
        if target.sent {
            target.cancelled = Some(failure);
            target.queued = false;
            self.say(Out::Cancel(tag));
            let deadline = self.deadline(now, self.limits.sync_time);
            if let Some(transfer) = self.slots.get_mut(tag) {
                transfer.pieces.clear();
                (transfer.since, transfer.deadline) = (now, deadline);
            }
            return;
        }
        match unsaid {
            Some(at) => drop(self.out.remove(at)),
            None => self.say(Out::Nak { tag, reason }),
        }
        self.finish(tag, Err(failure));
    }

    pub(super) fn target_expired(&mut self, now: u64, tag: Tag, failure: Failure) {
        let cancelled = self.slots.get_mut(tag).and_then(Transfer::as_target).and_then(|target| target.cancelled);
        match cancelled {
            Some(why) => {
                self.end(tag, Err(why));
                self.disconnect(Disconnect::Revocation);
            }
            None => self.target_gives_up(now, tag, Reason::TimedOut, failure),
        }
    }

    fn wait_for_done(&mut self, now: u64, tag: Tag) {
        let Some(length) = self.slots.get(tag).map(|transfer| transfer.length) else { return };
        let time = self.time_for(length);
        let deadline = self.deadline(now, time);
        if let Some(transfer) = self.slots.get_mut(tag) {
            (transfer.since, transfer.deadline) = (now, deadline);
        }
    }
}

/// Pieces that one message takes: each begins where the one before ends.
#[derive(Clone, Copy, Default)]
struct Run {
    count: usize,
    bytes: u64,
}

fn first_run(pieces: &[Placed], most: usize, from_the_start: bool) -> Run {
    let mut run = Run::default();
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
