//! The side that has the bytes: it writes what is registered here and offered there, and says DONE.
//!
//! Remote segments and local extents come in any order. Each new one is met with all of the other kind that came before,
//! so that each byte is written once, as soon as both its ends are known.

use super::ends::{Disconnect, Failure};
use super::messages::Out;
use super::transfer::{Extent, Farewell, Transfer, Writer, within};
use super::{Action, Handshake, Process, Refusal, Tag};
use crate::wire::{Offer, Placed, Reason};

impl Handshake {
    pub(super) fn post_crw(&mut self, now: u64, tag: Tag, length: u64) -> Result<(), Refusal> {
        let transfer = self.open_here(tag)?;
        let most = transfer.length;
        let out_of_place = |why| Refusal::OutOfPlace { tag, call: "crw", why };
        let writer = transfer.as_writer().ok_or(out_of_place("this side is the target"))?;
        if writer.length.is_some() {
            return Err(out_of_place("it was posted before"));
        }
        writer.length = Some(length);
        let offered = (writer.all_offered, writer.offered);
        transfer.since = now;
        if length > most {
            let reason = Reason::TooLong { needed: length };
            self.writer_gives_up(tag, Some(reason), Failure::Here(reason));
        } else if offered.0 && offered.1 < length {
            self.writer_gives_up(tag, Some(Reason::Malformed), Failure::Here(Reason::Malformed));
        } else {
            self.wait_for_pieces(now, tag);
            self.conclude(tag);
        }
        Ok(())
    }

    pub(super) fn local_ready(&mut self, now: u64, tag: Tag, offset: u64, length: u64) -> Result<(), Refusal> {
        let transfer = self.open_here(tag)?;
        let out_of_place = |why| Refusal::OutOfPlace { tag, call: "ready", why };
        let writer = transfer.as_writer().ok_or(out_of_place("this side is the target"))?;
        let known = writer.length.ok_or(out_of_place("post the CRW first"))?;
        let end = offset.checked_add(length).filter(|&end| end <= known);
        end.ok_or(out_of_place("it lies outside the buffer"))?;
        let extent = Extent { offset, length };
        let named_before = |other: &Extent| other.offset < offset + length && offset < other.offset + other.length;
        if length == 0 || transfer.extents.iter().any(named_before) {
            return Err(out_of_place("each byte becomes ready once"));
        }
        let Some(writer) = transfer.as_writer() else { return Ok(()) };
        writer.registered += length;
        let submits = writer.may_submit;
        transfer.extents.push(extent);
        if submits {
            for at in 0..self.pieces_of(tag) {
                let piece = self.slots.get(tag).map(|transfer| transfer.pieces[at]);
                if let Some(part) = piece.and_then(|piece| within(piece, extent)) {
                    self.submit_one(tag, part);
                }
            }
        }
        self.wait_for_pieces(now, tag);
        self.conclude(tag);
        Ok(())
    }

    fn pieces_of(&self, tag: Tag) -> usize {
        self.slots.get(tag).map_or(0, |transfer| transfer.pieces.len())
    }

    pub(super) fn submit_writes(&mut self, now: u64, tag: Tag) -> Result<(), Refusal> {
        let transfer = self.open_here(tag)?;
        let out_of_place = |why| Refusal::OutOfPlace { tag, call: "submit", why };
        let writer = transfer.as_writer().ok_or(out_of_place("this side is the target"))?;
        if writer.may_submit {
            return Err(out_of_place("its writes are submitted as keys come"));
        }
        writer.may_submit = true;
        for at in 0..self.pieces_of(tag) {
            let Some(piece) = self.slots.get(tag).map(|transfer| transfer.pieces[at]) else { break };
            self.meet(tag, piece);
        }
        self.wait_for_pieces(now, tag);
        self.conclude(tag);
        Ok(())
    }

    /// The peer's segments have come.
    pub(super) fn offer_came(&mut self, now: u64, tag: Tag, offer: Offer<'_>) {
        let Some(transfer) = self.slots.get_mut(tag) else { return };
        let most = transfer.length;
        let Some(writer) = transfer.as_writer() else { return };
        if writer.farewell.is_some() {
            // Nothing more is written, whatever is offered.
            self.counters.late += 1;
            return;
        }
        // No more than was asked for: a write asks for its length, a read for its most. Progress, or an end.
        let bytes: u64 = offer.segments.iter().map(|segment| segment.length).sum();
        let end = offer.offset.checked_add(bytes).filter(|&end| end <= most);
        let offered = writer.offered.checked_add(bytes).filter(|&offered| offered <= most);
        let needed = writer.length.unwrap_or(0);
        let (Some(_), Some(offered), false, false) =
            (end, offered, writer.all_offered, offer.more && offer.segments.is_empty())
        else {
            return self.malformed_offer(tag);
        };
        if !offer.more && offered < needed {
            return self.malformed_offer(tag);
        }
        writer.offered = offered;
        writer.all_offered = !offer.more;
        let first = !std::mem::replace(&mut writer.met, true);
        if self.limits.process == Process::Frrwp {
            writer.may_submit = true;
        } else if first {
            self.actions.push_back(Action::KeysCame { tag });
        }
        let mut offset = offer.offset;
        for segment in offer.segments.iter() {
            let piece = Placed { offset, segment };
            offset += segment.length;
            if !self.meet(tag, piece) && !self.keep(tag, piece) {
                return;
            }
        }
        self.wait_for_pieces(now, tag);
        self.conclude(tag);
    }

    fn malformed_offer(&mut self, tag: Tag) {
        self.count_stranger();
        self.writer_gives_up(tag, Some(Reason::Malformed), Failure::Here(Reason::Malformed));
    }

    /// Writes what is registered of a piece. Whether that is all that will ever be.
    fn meet(&mut self, tag: Tag, piece: Placed) -> bool {
        let Some(transfer) = self.slots.get_mut(tag) else { return true };
        let Some(&mut Writer { may_submit, registered, length, .. }) = transfer.as_writer() else { return true };
        if !may_submit {
            return false;
        }
        for at in 0..transfer.extents.len() {
            let Some(transfer) = self.slots.get(tag) else { break };
            if let Some(part) = within(piece, transfer.extents[at]) {
                self.submit_one(tag, part);
            }
        }
        Some(registered) == length
    }

    /// Keeps a piece until the local bytes are there. False where the bound is reached: the transfer is given up.
    fn keep(&mut self, tag: Tag, piece: Placed) -> bool {
        const BYTES: usize = size_of::<Placed>();
        if self.early_bytes + BYTES > self.limits.early_bytes {
            self.counters.busy += 1;
            self.writer_gives_up(tag, Some(Reason::Busy), Failure::Here(Reason::Busy));
            return false;
        }
        let Some(transfer) = self.slots.get_mut(tag) else { return false };
        transfer.pieces.push(piece);
        transfer.early_bytes += BYTES;
        self.early_bytes += BYTES;
        true
    }

    fn submit_one(&mut self, tag: Tag, part: Placed) {
        let Some(transfer) = self.slots.get_mut(tag) else { return };
        let (ours, said) = (transfer.ours, transfer.length);
        let Some(writer) = transfer.as_writer().filter(|writer| writer.farewell.is_none() && !writer.done) else {
            return;
        };
        // A target that offers bytes twice gets no more than there are.
        let left = writer.length.map_or(0, |length| length - writer.submitted);
        let mut remote = part.segment;
        remote.length = remote.length.min(left);
        if remote.length == 0 {
            return;
        }
        writer.submitted += remote.length;
        writer.in_flight += 1;
        let is_last = Some(writer.submitted) == writer.length;
        // An immediate says only that all of what the writer's SYNC announced was written.
        let may_be_immediate = is_last && ours && writer.length == Some(said) && self.limits.immediate;
        let immediate = may_be_immediate && self.credits.spend_silently();
        writer.done = immediate;
        let immediate = immediate.then_some(tag.0 as u32);
        self.actions.push_back(Action::Write { tag, remote, offset: part.offset, immediate });
    }

    /// Says DONE when all is submitted, and ends the transfer when all has completed.
    fn conclude(&mut self, tag: Tag) {
        let Some(writer) = self.slots.get_mut(tag).and_then(Transfer::as_writer) else { return };
        let Some(length) = writer.length.filter(|&length| writer.submitted == length) else { return };
        if !writer.met || !writer.may_submit || writer.farewell.is_some() {
            return;
        }
        let in_flight = writer.in_flight;
        if !std::mem::replace(&mut writer.done, true) {
            self.say(Out::Done { tag, bytes: length });
        }
        if in_flight == 0 {
            self.finish(tag, Ok(length));
        }
    }

    /// A write has completed, or has not come about.
    pub fn written(&mut self, tag: Tag, succeeded: bool) {
        let Some(writer) = self.slots.get_mut(tag).and_then(Transfer::as_writer) else { return };
        writer.in_flight = writer.in_flight.saturating_sub(1);
        let (idle, farewell) = (writer.in_flight == 0, writer.farewell);
        if !succeeded {
            // An ordered connection does nothing after a write that failed.
            return self.disconnect(Disconnect::WriteFailed);
        }
        match farewell {
            Some(farewell) if idle => self.take_leave(tag, farewell),
            Some(_) => {}
            None => self.conclude(tag),
        }
    }

    /// Nothing more is written; the peer hears of it when nothing is on its way any more.
    pub(super) fn writer_gives_up(&mut self, tag: Tag, nak: Option<Reason>, failure: Failure) {
        let Some(writer) = self.slots.get_mut(tag).and_then(Transfer::as_writer) else { return };
        if writer.done || writer.farewell.is_some() {
            // All was written, or it is giving up already.
            return;
        }
        let farewell = Farewell { nak, failure };
        writer.farewell = Some(farewell);
        if writer.in_flight == 0 {
            self.take_leave(tag, farewell);
        }
    }

    fn take_leave(&mut self, tag: Tag, Farewell { nak, failure }: Farewell) {
        // What the peer has not heard of is taken back in silence.
        let unsaid = self.out.iter().position(|&out| out == Out::Sync(tag));
        match (unsaid, nak) {
            (Some(at), _) => drop(self.out.remove(at)),
            (None, Some(reason)) => self.say(Out::Nak { tag, reason }),
            (None, None) => {}
        }
        self.finish(tag, Err(failure));
    }

    pub(super) fn writer_expired(&mut self, tag: Tag, failure: Failure) {
        let in_flight =
            self.slots.get_mut(tag).and_then(Transfer::as_writer).is_some_and(|writer| writer.in_flight > 0);
        if in_flight {
            self.end(tag, Err(failure));
            self.disconnect(Disconnect::WriteFailed);
        } else {
            self.writer_gives_up(tag, Some(Reason::TimedOut), failure);
        }
    }

    /// The wait for keys, and for local pieces, begins anew with each that comes.
    fn wait_for_pieces(&mut self, now: u64, tag: Tag) {
        let Some(transfer) = self.slots.get_mut(tag) else { return };
        let Some(&mut Writer { met, length, .. }) = transfer.as_writer() else { return };
        let (true, Some(length)) = (met, length) else { return };
        let time = self.time_for(length);
        let deadline = self.deadline(now, time);
        if let Some(transfer) = self.slots.get_mut(tag) {
            (transfer.since, transfer.deadline) = (now, deadline);
        }
    }

    pub(super) fn open_here(&mut self, tag: Tag) -> Result<&mut Transfer, Refusal> {
        if self.state != super::Connection::Stands {
            return Err(Refusal::Disconnected);
        }
        self.slots.get_mut(tag).filter(|transfer| !transfer.ended).ok_or(Refusal::NotOpen { tag })
    }
}
