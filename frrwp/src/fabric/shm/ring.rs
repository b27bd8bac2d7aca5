//! Messages: a ring in the sender's outbox.
//!
//! ```text
//! record  0  u64  bytes in the low half; in the high half 1: a message, 2: an immediate, which is in the place of the bytes
//!         8       the bytes, filled up to a multiple of 8
//! ```
//!
//! Records follow each other without gaps and may go around the end. `written` and `taken` count bytes for ever, so that a
//! full ring and an empty one differ. Each record takes a receive of the other side's.
//!
//! The peer's bytes are read once and checked against bounds. The connection ends for more than a ring between the
//! two counts, for counts that go back or do not fit records, and for records of no kind or longer than a message.
#![expect(unsafe_code, reason = "copies bytes between the application and memory that the peer may write")]

use super::link::{Link, RECEIVES, RING, ROOM, TAKEN, WRITTEN};
use super::memory::Mapping;
use crate::wire::MESSAGE;
use mrrc::volatile_copy as copy;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::fence;

const MESSAGE_KIND: u64 = 1;
const IMMEDIATE_KIND: u64 = 2;
/// The most receives that a peer may have posted and not used.
const MOST: u64 = 1 << 24;

/// The peer wrote something that cannot be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Broken;

/// A received record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Record {
    Message(usize),
    Immediate(u32),
}

/// A record to send.
#[derive(Clone, Copy)]
pub(super) enum Outgoing<'a> {
    Message(&'a [u8]),
    Immediate(u32),
}

/// The places of this end in the two rings.
#[derive(Default)]
pub(super) struct Rings {
    written: u64,
    taken: u64,
    /// The last that the peer said of what it has taken.
    peer_taken: u64,
    /// Records sent, and the receives that the peer had posted last time.
    sent: u64,
    granted: u64,
    receives: u64,
    received: u64,
}

fn padded(bytes: usize) -> u64 {
    8 + bytes.next_multiple_of(8) as u64
}

impl Rings {
    /// With so many receives posted, before the peer gets the outbox: the connection stands with them.
    pub(super) fn new(outbox: &Mapping, receives: u16) -> Self {
        outbox.word(RECEIVES).store(receives.into(), Release);
        Self { receives: receives.into(), ..Self::default() }
    }

    pub(super) fn post(&mut self, link: &Link, more: u16) {
        self.receives = self.receives.saturating_add(more.into()).min(self.received + MOST);
        link.own.word(RECEIVES).store(self.receives, Release);
    }

    /// Returns whether such a record could be sent now.
    pub(super) fn has_room(&mut self, link: &Link, bytes: usize) -> Result<bool, Broken> {
        if self.sent >= self.granted {
            let granted = link.peer.word(RECEIVES).load(Relaxed);
            if granted < self.granted || granted - self.sent > MOST {
                return Err(Broken);
            }
            self.granted = granted;
        }
        let end = self.written + padded(bytes);
        if end - self.peer_taken > ROOM as u64 {
            let taken = link.peer.word(TAKEN).load(Relaxed);
            if taken < self.peer_taken || taken > self.written {
                return Err(Broken);
            }
            // Taken bytes are read before they are written over.
            fence(Acquire);
            self.peer_taken = taken;
        }
        Ok(self.sent < self.granted && end - self.peer_taken <= ROOM as u64)
    }

    /// Sends what there is room for.
    pub(super) fn send(&mut self, link: &Link, outgoing: Outgoing<'_>) {
        let (header, bytes) = match outgoing {
            Outgoing::Message(bytes) => (MESSAGE_KIND << 32 | bytes.len() as u64, bytes),
            Outgoing::Immediate(immediate) => (IMMEDIATE_KIND << 32 | u64::from(immediate), &[][..]),
        };
        link.own.word(RING + self.written as usize % ROOM).store(header, Relaxed);
        pieces(&link.own, self.written + 8, bytes.len(), |ring, at, length| {
            // SAFETY: both pieces lie within the slice and the ring.
            unsafe { copy(bytes.as_ptr().add(at), ring, length) }
        });
        self.written += padded(bytes.len());
        self.sent += 1;
        link.own.word(WRITTEN).store(self.written, Release);
    }

    /// Returns the next record, if one came: a message's bytes are copied.
    pub(super) fn take(&mut self, link: &Link, message: &mut [u8; MESSAGE]) -> Result<Option<Record>, Broken> {
        let written = link.peer.word(WRITTEN).load(Relaxed);
        fence(Acquire);
        if written == self.taken {
            return Ok(None);
        }
        let there = written.checked_sub(self.taken).filter(|&there| there <= ROOM as u64).ok_or(Broken)?;
        // Receives are only ever taken by what was allowed to come.
        if !there.is_multiple_of(8) || self.received >= self.receives {
            return Err(Broken);
        }
        let header = link.peer.word(RING + self.taken as usize % ROOM).load(Relaxed);
        let low = header as u32;
        let (record, length) = match header >> 32 {
            MESSAGE_KIND if low as usize <= MESSAGE => (Record::Message(low as usize), low as usize),
            IMMEDIATE_KIND => (Record::Immediate(low), 0),
            _ => return Err(Broken),
        };
        if padded(length) > there {
            return Err(Broken);
        }
        pieces(&link.peer, self.taken + 8, length, |ring, at, length| {
            // SAFETY: both pieces lie within the message and the ring.
            unsafe { copy(ring, message.as_mut_ptr().add(at), length) }
        });
        self.taken += padded(length);
        self.received += 1;
        link.own.word(TAKEN).store(self.taken, Release);
        Ok(Some(record))
    }

    /// Returns whether the peer has written something that was not taken.
    #[inline]
    pub(super) fn has_news(&self, link: &Link) -> bool {
        link.peer.word(WRITTEN).load(Relaxed) != self.taken
    }
}

/// The one or two pieces of a ring that such bytes take: where each is, and where in the bytes it begins.
fn pieces(outbox: &Mapping, from: u64, length: usize, mut each: impl FnMut(*mut u8, usize, usize)) {
    let start = from as usize % ROOM;
    let first = length.min(ROOM - start);
    // SAFETY: both offsets are within the ring, which is within the outbox: it was made, or admitted, with this size.
    unsafe {
        let ring = outbox.base().add(RING);
        each(ring.add(start), 0, first);
        each(ring, first, length - first);
    }
}
