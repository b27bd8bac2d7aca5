//! The receiving side: from the bytes of a connection to placements, messages, read requests and last words.
//!
//! No input or output: [`Inbound::next`] takes headers and ends of frames from the bytes that are there. It returns where
//! the bytes between belong. The driver puts them there, straight from the socket if it likes, and reports it. A header is
//! checked whole before the first byte of its payload is placed:
//!
//! * untagged segments follow each other: their message's number and offset are the next ones of their queue (RFC 5041,
//!   section 5.3), a message needs a receive, and no message is longer than its buffer;
//! * a write's tag opens every byte that it names (RFC 5041, section 8);
//! * a read response is the next of the oldest read that is on its way (RFC 5040, section 5.5), and its length is what was
//!   asked for. The tag that the peer was told for it opens nothing: there is no other way to these bytes.
//!
//! The CRC ends the frame, so bytes are placed before it is checked, as siw and cards do. It protects what the application
//! is told; the tag protects where bytes go.

use super::crc;
use super::ddp::{Header, Operation, Place, READ_REQUEST, ReadRequest, TAGGED, UNTAGGED};
use super::mpa::padding;
use super::terminate::{AtFault, Terminate};
use std::collections::VecDeque;

/// Bytes of last words that are kept: a Terminate with both headers.
const CONTROL: usize = 4 + 2 + UNTAGGED + READ_REQUEST;

/// The destination of bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Landing {
    /// In the memory of a tag.
    Tag {
        /// The tag.
        tag: u32,
        /// The first byte.
        at: u64,
    },
    /// In memory that this side reads into.
    Read {
        /// The first byte's address.
        at: usize,
    },
    /// In the message that is coming.
    Message {
        /// From which byte on.
        at: usize,
    },
    /// Nowhere.
    Nowhere,
}

/// A frame that is complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Event {
    /// Part of something, or a write of the peer's: it is not reported.
    Placed,
    /// A message is complete.
    Message {
        /// Bytes.
        length: usize,
        /// A tag that ends.
        invalidate: Option<u32>,
    },
    /// The peer wants to read.
    Request(ReadRequest),
    /// A read of this side's is complete.
    Read {
        /// As it was named by [`Inbound::expect`].
        sequence: u64,
    },
    /// The peer has said its last words.
    Terminated(Option<Terminate>),
}

/// The next step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Next {
    /// Not enough bytes are there.
    More,
    /// The peer may not be told yet whether it may write where the next segment wants to: its header stays where it is.
    Later,
    /// The next bytes belong there, so many of them.
    Payload(Landing, usize),
    /// A frame has ended.
    Event(Event),
}

/// A peer's breach, and its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Breach {
    pub(super) terminate: Terminate,
    pub(super) at_fault: Option<AtFault>,
}

/// Why an access is not carried out now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Denied {
    /// It is not allowed.
    Wrong(Terminate),
    /// It waits, because its source has guessed too much.
    Later,
}

impl From<Terminate> for Denied {
    fn from(terminate: Terminate) -> Self {
        Self::Wrong(terminate)
    }
}

/// The checks before anything is placed.
pub(super) trait Gate {
    /// Whether the peer may write there.
    fn may_write(&mut self, tag: u32, at: u64, length: u64) -> Result<(), Denied>;
    /// Takes a receive for a message.
    fn take_receive(&mut self) -> bool;
}

/// A read without a response so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    pub(super) sequence: u64,
    pub(super) tag: u32,
    /// The tag's offset of the next byte, and the byte's address, which stays private.
    pub(super) at: u64,
    pub(super) address: usize,
    pub(super) left: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Head,
    Payload,
    Tail,
}

/// The receiving half of a connection.
pub(super) struct Inbound {
    checksums: bool,
    /// The most bytes of a message.
    message: usize,
    state: State,
    header: Header,
    /// Bytes that the segment carries for DDP.
    carried: u16,
    /// The same of the segment before.
    before: u16,
    landing: Landing,
    /// Payload that has not come.
    left: usize,
    crc: u32,
    /// The numbers of the next message and the next read request.
    sends: u32,
    requests: u32,
    /// Bytes of the message that came.
    offset: u32,
    reads: VecDeque<Reading>,
    control: [u8; CONTROL],
    held: usize,
    /// The peer says with an empty message that it is ready.
    ready_by_send: bool,
}

impl Inbound {
    pub(super) fn new(checksums: bool, message: usize, ready_by_send: bool) -> Self {
        let place = Place::Tagged { tag: 0, offset: 0 };
        Self {
            checksums,
            message,
            state: State::Head,
            header: Header { operation: Operation::Write, last: false, place },
            carried: 0,
            before: 0,
            landing: Landing::Nowhere,
            left: 0,
            crc: 0,
            sends: 1,
            requests: 1,
            offset: 0,
            reads: VecDeque::new(),
            control: [0; CONTROL],
            held: 0,
            ready_by_send,
        }
    }

    /// A read is sent: its response comes after those of the reads before.
    pub(super) fn expect(&mut self, reading: Reading) {
        self.reads.push_back(reading);
    }

    /// Goes on with the bytes that are there, and takes from their front what it used.
    pub(super) fn next(&mut self, bytes: &mut &[u8], gate: &mut impl Gate) -> Result<Next, Breach> {
        loop {
            match self.state {
                State::Head => {
                    if let Some(next) = self.head(bytes, gate)? {
                        return Ok(next);
                    }
                }
                State::Payload if self.left == 0 => self.state = State::Tail,
                State::Payload if self.header.operation.queue() == 0 || self.landing != Landing::Nowhere => {
                    return Ok(Next::Payload(self.landing, self.left));
                }
                State::Payload => {
                    // Requests and last words stay here; excess last words are dropped.
                    let (now, rest) = bytes.split_at(self.left.min(bytes.len()));
                    let room = &mut self.control[self.held..];
                    let kept = now.len().min(room.len());
                    room[..kept].copy_from_slice(&now[..kept]);
                    self.held += kept;
                    *bytes = rest;
                    self.landed(now);
                    if self.left > 0 {
                        return Ok(Next::More);
                    }
                }
                State::Tail => {
                    let padding = padding(self.carried.into());
                    let Some((tail, rest)) = bytes.split_at_checked(padding + 4) else { return Ok(Next::More) };
                    let (padding, crc) = tail.split_at(padding);
                    if self.checksums && crc::append(self.crc, padding).to_le_bytes() != *crc {
                        return Err(Breach { terminate: Terminate::MPA_CRC, at_fault: None });
                    }
                    *bytes = rest;
                    self.state = State::Head;
                    return Ok(Next::Event(self.ended()));
                }
            }
        }
    }

    /// The next bytes of the payload are where they belong.
    pub(super) fn landed(&mut self, bytes: &[u8]) {
        if self.checksums {
            self.crc = crc::append(self.crc, bytes);
        }
        self.skipped(bytes.len());
    }

    /// The same, where nothing is summed up.
    pub(super) fn skipped(&mut self, length: usize) {
        self.left -= length;
        match &mut self.landing {
            Landing::Tag { at, .. } => *at += length as u64,
            Landing::Read { at } | Landing::Message { at } => *at += length,
            Landing::Nowhere => {}
        }
    }

    /// Returns whether a header or the end of a frame is to come next, and no payload.
    pub(super) fn is_between(&self) -> bool {
        self.state != State::Payload
    }

    /// Bytes that the frame carries for DDP, or the one before it if they are more: large messages end with small frames.
    pub(super) fn large(&self) -> usize {
        self.carried.max(self.before).into()
    }

    /// Bytes of the frame's end.
    pub(super) fn tail(&self) -> usize {
        padding(self.carried.into()) + 4
    }

    /// Returns whether payload is summed up.
    pub(super) fn checksums(&self) -> bool {
        self.checksums
    }

    /// Returns the segment that is coming, as last words name it.
    pub(super) fn at_fault(&self) -> Option<AtFault> {
        Some(AtFault { header: self.header, length: self.carried, request: None })
    }

    /// Takes a header, unless it is not all there or has to wait.
    fn head(&mut self, bytes: &mut &[u8], gate: &mut impl Gate) -> Result<Option<Next>, Breach> {
        let Some(&[high, low, ddp, _]) = bytes.first_chunk() else { return Ok(Some(Next::More)) };
        let carried = u16::from_be_bytes([high, low]);
        let length = if ddp & 0x80 != 0 { TAGGED } else { UNTAGGED };
        let shown = (usize::from(carried)).min(length);
        let Some(head) = bytes.get(2..2 + shown) else { return Ok(Some(Next::More)) };
        let breach = |terminate| Breach { terminate, at_fault: None };
        let (header, _) = Header::decode(head).map_err(|error| breach(Terminate::for_segment(error)))?;
        if self.checksums {
            self.crc = crc::of(&bytes[..2 + length]);
        }
        self.header = header;
        self.before = std::mem::replace(&mut self.carried, carried);
        self.left = usize::from(carried) - length;
        self.held = 0;
        self.landing = match self.begin(gate) {
            Ok(landing) => landing,
            Err(Denied::Later) => return Ok(Some(Next::Later)),
            Err(Denied::Wrong(terminate)) => return Err(Breach { terminate, at_fault: self.at_fault() }),
        };
        self.state = State::Payload;
        *bytes = &bytes[2 + length..];
        Ok(None)
    }

    /// Returns whether the segment may come, and where its bytes belong.
    fn begin(&mut self, gate: &mut impl Gate) -> Result<Landing, Denied> {
        let length = self.left;
        match (self.header.operation, self.header.place) {
            // An empty write has no effect: its tag is not looked at (RFC 5040, section 5.2).
            (Operation::Write, Place::Tagged { .. }) if length == 0 => Ok(Landing::Nowhere),
            (Operation::Write, Place::Tagged { tag, offset }) => {
                gate.may_write(tag, offset, length as u64)?;
                Ok(Landing::Tag { tag, at: offset })
            }
            (_, Place::Tagged { tag, offset }) => {
                let reading = self.reads.front().filter(|reading| reading.tag == tag);
                let reading = reading.ok_or(Terminate::DDP_INVALID_TAG)?;
                let is_next = reading.at == offset && length <= reading.left as usize;
                if !is_next || self.header.last != (length == reading.left as usize) {
                    return Err(Terminate::DDP_BOUNDS.into());
                }
                Ok(Landing::Read { at: reading.address })
            }
            (Operation::Terminate, Place::Untagged { .. }) => Ok(Landing::Nowhere),
            (Operation::ReadRequest, Place::Untagged { number, offset, .. }) => {
                if number != self.requests {
                    return Err(Terminate::NUMBER_OUT_OF_RANGE.into());
                }
                match (offset, length.cmp(&READ_REQUEST)) {
                    (0, std::cmp::Ordering::Equal) if self.header.last => Ok(Landing::Nowhere),
                    (0, std::cmp::Ordering::Greater) => Err(Terminate::TOO_LONG.into()),
                    _ => Err(Terminate::INVALID_OFFSET.into()),
                }
            }
            (_, Place::Untagged { number, offset, .. }) => {
                if number != self.sends {
                    return Err(Terminate::NUMBER_OUT_OF_RANGE.into());
                }
                if offset != self.offset {
                    return Err(Terminate::INVALID_OFFSET.into());
                }
                let is_ready = self.ready_by_send && number == 1 && length == 0 && self.header.last;
                if offset == 0 && !is_ready && !gate.take_receive() {
                    return Err(Terminate::NO_BUFFER.into());
                }
                if offset as usize + length > self.message {
                    return Err(Terminate::TOO_LONG.into());
                }
                // An empty segment that is not the last leaves the offset where it is, and would take another receive.
                if length == 0 && !self.header.last {
                    return Err(Terminate::INVALID_OFFSET.into());
                }
                Ok(Landing::Message { at: offset as usize })
            }
        }
    }

    fn ended(&mut self) -> Event {
        match (self.header.operation, self.header.place) {
            (Operation::Write, _) => Event::Placed,
            (Operation::ReadResponse, _) => {
                let length = u32::from(self.carried) - TAGGED as u32;
                let Some(reading) = self.reads.front_mut() else { return Event::Placed };
                reading.at += u64::from(length);
                reading.address += length as usize;
                reading.left -= length;
                let sequence = reading.sequence;
                if reading.left > 0 {
                    return Event::Placed;
                }
                self.reads.pop_front();
                Event::Read { sequence }
            }
            (Operation::ReadRequest, _) => {
                self.requests = self.requests.wrapping_add(1);
                ReadRequest::decode(&self.control[..self.held]).map_or(Event::Placed, Event::Request)
            }
            (Operation::Terminate, _) => Event::Terminated(Terminate::decode(&self.control[..self.held])),
            (operation, place) => {
                self.offset += u32::from(self.carried) - UNTAGGED as u32;
                if !self.header.last {
                    return Event::Placed;
                }
                let length = std::mem::take(&mut self.offset) as usize;
                self.sends = self.sends.wrapping_add(1);
                if std::mem::take(&mut self.ready_by_send) && length == 0 {
                    return Event::Placed;
                }
                let invalidates = matches!(operation, Operation::SendInvalidate | Operation::SendSolicitedInvalidate);
                let invalidate = match place {
                    Place::Untagged { invalidate, .. } if invalidates => Some(invalidate),
                    _ => None,
                };
                Event::Message { length, invalidate }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::iwarp::mpa;
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    const TAG: u32 = 0x1234_5678;
    const MEMORY: u64 = 4096;
    const MESSAGE: usize = 6000;
    /// The most bytes that may be left: less than a header, or than the end of a frame.
    const HELD: usize = 2 + UNTAGGED;

    /// Lets the peer at one tag, and counts receives.
    struct Open {
        receives: u32,
    }

    impl Gate for Open {
        fn may_write(&mut self, tag: u32, at: u64, length: u64) -> Result<(), Denied> {
            let inside = at.checked_add(length).is_some_and(|end| end <= MEMORY);
            if tag != TAG {
                Err(Terminate::DDP_INVALID_TAG.into())
            } else if inside {
                Ok(())
            } else {
                Err(Terminate::DDP_BOUNDS.into())
            }
        }

        fn take_receive(&mut self) -> bool {
            self.receives = self.receives.wrapping_sub(1);
            self.receives < u32::MAX
        }
    }

    fn fpdu(header: Header, payload: &[u8], into: &mut Vec<u8>) {
        let (head, used) = header.encode();
        let (length, (tail, end)) = mpa::frame(&[&head[..used], payload], true);
        for part in [&length[..], &head[..used], payload, &tail[..end]] {
            into.extend_from_slice(part);
        }
    }

    fn stream(rng: &mut StdRng) -> Vec<u8> {
        let mut bytes = Vec::new();
        let (mut sends, mut requests) = (1, 1);
        for _ in 0..rng.random_range(1..8) {
            let length = rng.random_range(0..300);
            let payload = vec![5; length];
            let untagged = |operation: Operation, number| Header {
                operation,
                last: true,
                place: Place::Untagged { invalidate: 0, queue: operation.queue(), number, offset: 0 },
            };
            match rng.random_range(0..4) {
                0 => {
                    let place = Place::Tagged { tag: TAG, offset: rng.random_range(0..MEMORY - 300) };
                    fpdu(Header { operation: Operation::Write, last: rng.random(), place }, &payload, &mut bytes);
                }
                1 => {
                    fpdu(untagged(Operation::Send, sends), &payload, &mut bytes);
                    sends += 1;
                }
                2 => {
                    fpdu(untagged(Operation::ReadRequest, requests), &[1; READ_REQUEST], &mut bytes);
                    requests += 1;
                }
                _ => {
                    let place = Place::Tagged { tag: 99, offset: 0 };
                    fpdu(Header { operation: Operation::ReadResponse, last: true, place }, &[1; 40], &mut bytes);
                }
            }
        }
        bytes
    }

    /// Feeds bytes in pieces, and checks every placement. How it ended.
    fn feed(bytes: &[u8], rng: &mut StdRng) -> Result<usize, Breach> {
        let mut inbound = Inbound::new(true, MESSAGE, false);
        let reading = Reading { sequence: 0, tag: 99, at: 0, address: 0, left: 40 };
        inbound.expect(reading);
        let mut gate = Open { receives: 5 };
        let (mut start, mut end, mut events) = (0, 0, 0);
        loop {
            let mut there = &bytes[start..end];
            let next = inbound.next(&mut there, &mut gate);
            start = end - there.len();
            match next? {
                Next::More => {
                    assert!(end - start < HELD, "no more is held back than a header");
                    if end == bytes.len() {
                        return Ok(events);
                    }
                    end = (end + rng.random_range(1..200)).min(bytes.len());
                }
                Next::Payload(landing, left) => {
                    let now = left.min(end - start);
                    match landing {
                        Landing::Tag { tag, at } => assert!(tag == TAG && at + left as u64 <= MEMORY),
                        Landing::Read { at } => assert!(at + left <= 40),
                        Landing::Message { at } => assert!(at + left <= MESSAGE),
                        Landing::Nowhere => panic!("payload for nobody"),
                    }
                    if now == 0 {
                        if end == bytes.len() {
                            return Ok(events);
                        }
                        end = (end + rng.random_range(1..200)).min(bytes.len());
                    } else {
                        inbound.landed(&bytes[start..start + now]);
                        start += now;
                    }
                }
                Next::Event(_) => events += 1,
                Next::Later => panic!("nobody has to wait"),
            }
        }
    }

    #[test]
    fn corrupt_streams_place_nothing_out_of_bounds() {
        let rounds: u64 = std::env::var("ROUNDS").ok().map_or(20_000, |text| text.parse().unwrap());
        let mut rng = StdRng::seed_from_u64(5);
        let (mut whole, mut breaches) = (0, std::collections::BTreeMap::<String, u64>::new());
        for _ in 0..rounds {
            let mut bytes = stream(&mut rng);
            for _ in 0..rng.random_range(0..3) {
                let at = rng.random_range(0..bytes.len().max(1)).min(bytes.len().saturating_sub(1));
                match rng.random_range(0..3) {
                    0 => bytes[at] = rng.random(),
                    1 => bytes.truncate(at + 1),
                    _ => bytes[at] ^= 1 << rng.random_range(0..8),
                }
            }
            match feed(&bytes, &mut rng) {
                Ok(_) => whole += 1,
                Err(Breach { terminate, .. }) => *breaches.entry(terminate.to_string()).or_default() += 1,
            }
        }
        println!("{rounds} streams, {whole} without a breach; {breaches:#?}");
        assert!(whole > 0 && breaches.len() > 5);
    }
}
