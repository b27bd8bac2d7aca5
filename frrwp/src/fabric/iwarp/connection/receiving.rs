//! The receiving half at work: from the socket to where bytes belong.
//!
//! The first bytes go to the thread's buffer, and small payloads from there to their place. A large payload goes from the
//! socket straight to its place, one call a frame. The end of its frame and the header after it come with it. A payload
//! that is summed up while its memory may change (a peer's write, with CRCs) goes through the buffer. Many frames are
//! received at a time, summed up there while the processor's cache has them, and then placed.
//!
//! The buffer is the thread's and not the connection's. So a thousand connections need no thousand buffers. A thread may
//! sleep in the receiving call itself without holding a connection's lock.

use super::super::IwarpEnd;
use super::super::common::Common;
use super::super::ddp::{ReadRequest, TAGGED};
use super::super::inbound::{Breach, Denied, Event, Gate, Inbound, Landing, Next, Reading};
use super::super::memory::{self, Buffer};
use super::super::mpa;
use super::super::outbound::Outbound;
use super::super::since_start;
use super::super::socket::{self, Room};
use super::super::tags::Wish;
use super::super::terminate::{AtFault, Terminate};
use super::Connection;
use super::completions::Completions;
use super::progress::Progress;
use super::vetting::Vetting;
use smallvec::SmallVec;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// The place of received bytes in a thread's buffer; before it lie those that a connection holds over.
const FRONT: usize = 1024;
/// Bytes that came with a start frame are held over too.
const _: () = assert!(mpa::START + mpa::PRIVATE <= FRONT);
/// Bytes that are received ahead of what is known to come.
const AHEAD: usize = 4096;
/// Times that a socket is read before others have their turn.
const ROUNDS: usize = 32;

/// Why receiving ends for good.
pub(super) enum Stop {
    /// The peer broke a rule.
    Breach(Breach),
    /// The connection is no more.
    Lost(IwarpEnd),
}

impl From<Breach> for Stop {
    fn from(breach: Breach) -> Self {
        Self::Breach(breach)
    }
}

/// Payload that is to come.
type Wanted = Option<(Landing, usize)>;

/// The other parts of a connection that received frames change.
pub(super) struct Effects<'a> {
    pub(super) outbound: &'a mut Outbound,
    pub(super) completions: &'a mut Completions,
    pub(super) progress: &'a mut Progress,
}

/// Decides on a frame's accesses for [`Inbound`].
struct Guard<'a> {
    connection: &'a Connection,
    receives: &'a mut u32,
    vetting: &'a mut Vetting,
}

impl Gate for Guard<'_> {
    fn may_write(&mut self, tag: u32, at: u64, length: u64) -> Result<(), Denied> {
        let access = || self.connection.pin(tag, at, length, Wish::Write).map(drop);
        self.vetting.access(&self.connection.common, tag, access)
    }

    fn take_receive(&mut self) -> bool {
        let left = self.receives.checked_sub(1);
        *self.receives = left.unwrap_or(0);
        left.is_some()
    }
}

/// Returns the part of the thread's buffer that [`Receiver::receive`] expects received bytes in.
pub(super) fn room(buffer: &mut Buffer) -> &mut [u8] {
    &mut buffer[FRONT..FRONT + AHEAD]
}

/// The receiving half of a connection.
pub(super) struct Receiver {
    inbound: Inbound,
    /// The bytes of the next header, or of the end of a frame, that have come.
    held: SmallVec<[u8; 64]>,
    /// The message that is being received.
    message: Vec<u8>,
    /// Messages that the application takes.
    receives: u32,
    vetting: Vetting,
}

impl Receiver {
    /// Makes the receiving half, with bytes that came after the start frames.
    pub(super) fn new(inbound: Inbound, vetting: Vetting, receives: u32, came: &[u8]) -> Self {
        Self { inbound, held: came.into(), message: Vec::new(), receives, vetting }
    }

    /// Returns whether frames carry CRCs.
    pub(super) fn checksums(&self) -> bool {
        self.inbound.checksums()
    }

    /// Returns whether what the peer wants waits, because its source has guessed too much.
    pub(super) fn is_held(&self) -> bool {
        self.vetting.again().is_some()
    }

    /// Returns when the access that waits is looked at again.
    pub(super) fn held_until(&self) -> Option<Duration> {
        self.vetting.again().map(Duration::from_nanos)
    }

    /// Returns whether what comes next belongs in the thread's buffer, at its [room](room).
    pub(super) fn is_between(&self) -> bool {
        !self.is_held() && self.inbound.is_between()
    }

    /// Lets the peer send `more` messages.
    pub(super) fn add_receives(&mut self, more: u32) {
        self.receives = self.receives.saturating_add(more);
    }

    /// Expects the answer to a read.
    pub(super) fn expect(&mut self, reading: Reading) {
        self.inbound.expect(reading);
    }

    /// Drops the access that waits: the connection ends.
    pub(super) fn leave(&mut self, common: &Common) {
        self.vetting.leave(common);
    }

    /// Does what the bytes say that came in sleep, or that the socket has.
    ///
    /// # Errors
    /// The peer broke a rule, or the connection is lost.
    pub(super) fn receive(
        &mut self,
        connection: &Connection,
        buffer: &mut Buffer,
        slept: Option<io::Result<usize>>,
        effects: &mut Effects<'_>,
    ) -> Result<(), Stop> {
        let has_slept = slept.is_some();
        let came = match slept {
            Some(slept) => came(slept, effects)?,
            None if self.is_held() => self.look_again(connection, buffer, effects)?,
            None => Some(0),
        };
        let Some(came) = came else { return Ok(()) };
        let mut wanted = self.digest(connection, buffer, came, effects)?;
        if has_slept && came < AHEAD {
            return Ok(());
        }
        for _ in 0..ROUNDS {
            if self.is_held() {
                break;
            }
            let Some((came, more)) = self.read(connection, buffer, wanted, effects)? else { break };
            wanted = self.digest(connection, buffer, came, effects)?;
            // Emptied: the socket's next readiness brings the rest.
            if !more {
                break;
            }
        }
        Ok(())
    }

    /// Looks again at what waited, if its time has come. The bytes in the buffer that were put aside, unless it waits still.
    fn look_again(
        &mut self,
        connection: &Connection,
        buffer: &mut Buffer,
        effects: &mut Effects<'_>,
    ) -> Result<Option<usize>, Stop> {
        if self.held_until().is_some_and(|at| at.as_nanos() as u64 > since_start(Instant::now())) {
            return Ok(None);
        }
        if let Some(event) = self.vetting.begin()
            && !self.happened(connection, event, effects)?
        {
            return Ok(None);
        }
        let aside = self.vetting.take_aside();
        // The bytes before the buffer's middle go there again.
        let (before, behind) = aside.split_at(aside.len().saturating_sub(memory::SIZE - FRONT));
        self.held.extend_from_slice(before);
        buffer[FRONT..FRONT + behind.len()].copy_from_slice(behind);
        Ok(Some(behind.len()))
    }

    /// Reads once: payload straight to where it belongs if it may go there, what follows it into the buffer. The bytes in
    /// the buffer, and whether more may be there; `None` if nothing came.
    fn read(
        &mut self,
        connection: &Connection,
        buffer: &mut Buffer,
        wanted: Wanted,
        effects: &mut Effects<'_>,
    ) -> Result<Option<(usize, bool)>, Stop> {
        let mut pin = None;
        let (target, left) = match wanted {
            Some((Landing::Tag { tag, at }, left)) if !self.inbound.checksums() => {
                let pinned = connection.pin(tag, at, left as u64, Wish::Write);
                let pinned = pinned.map_err(|terminate| Breach { terminate, at_fault: self.inbound.at_fault() })?;
                (pin.insert(pinned).address, left)
            }
            Some((Landing::Read { at }, left)) => (at as *mut u8, left),
            Some((Landing::Message { at }, left)) => {
                self.message.resize(at + left, 0);
                (self.message[at..].as_mut_ptr(), left)
            }
            _ => (std::ptr::null_mut(), 0),
        };
        let ahead = match wanted {
            Some(_) if left == 0 => memory::SIZE - FRONT,
            // The end of the frame and the next one's header, and nothing that would have to be copied.
            Some(_) if self.inbound.large() >= AHEAD => self.inbound.tail() + 2 + TAGGED,
            _ => AHEAD,
        };
        let mut rooms: SmallVec<[Room; 2]> = SmallVec::new();
        if left > 0 {
            rooms.push(Room { address: target, length: left });
        }
        rooms.push(Room { address: buffer[FRONT..].as_mut_ptr(), length: ahead });
        // SAFETY: the payload's memory is held by the pin, or is a read's, which its poster promised to leave to it until it
        // has ended; the message is this connection's, and the buffer, which is longer, this thread's.
        let received = unsafe { socket::receive(connection.socket.as_fd(), &rooms) };
        if pin.is_some() && received.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EFAULT)) {
            // Memory that is not mapped any more is as good as not registered.
            return Err(Breach { terminate: Terminate::DDP_INVALID_TAG, at_fault: self.inbound.at_fault() }.into());
        }
        let Some(came) = came(received, effects)? else { return Ok(None) };
        let placed = came.min(left);
        if pin.is_some() {
            // Without CRCs.
            self.inbound.skipped(placed);
        } else if placed > 0 {
            // SAFETY: the target lies in registered memory for `placed` bytes, which this call has just written.
            self.inbound.landed(unsafe { std::slice::from_raw_parts(target, placed) });
        }
        Ok(Some((came - placed, came == left + ahead)))
    }

    /// Looks at what was held over and at so many bytes in the buffer. Gives the payload that is to come, if one has begun.
    fn digest(
        &mut self,
        connection: &Connection,
        buffer: &mut Buffer,
        came: usize,
        effects: &mut Effects<'_>,
    ) -> Result<Wanted, Stop> {
        let mut at = FRONT - self.held.len();
        let end = FRONT + came;
        buffer[at..FRONT].copy_from_slice(&self.held);
        self.held.clear();
        let wanted = loop {
            let mut bytes = &buffer[at..end];
            let mut guard = Guard { connection, receives: &mut self.receives, vetting: &mut self.vetting };
            let next = self.inbound.next(&mut bytes, &mut guard)?;
            at = end - bytes.len();
            match next {
                Next::More => break None,
                Next::Later => {
                    self.vetting.put_aside(&buffer[at..end]);
                    return Ok(None);
                }
                Next::Payload(landing, left) if at == end => break Some((landing, left)),
                Next::Payload(landing, left) => {
                    let now = at..end.min(at + left);
                    at = now.end;
                    self.put(connection, buffer, landing, now.clone())?;
                    self.inbound.landed(&buffer[now]);
                }
                Next::Event(event) => {
                    effects.outbound.may_speak = true;
                    if !self.happened(connection, event, effects)? {
                        self.vetting.put_aside(&buffer[at..end]);
                        return Ok(None);
                    }
                }
            }
        };
        // Less than a header, or than a frame's end.
        self.held.extend_from_slice(&buffer[at..end]);
        Ok(wanted)
    }

    /// Puts bytes of the buffer where they belong.
    fn put(
        &mut self,
        connection: &Connection,
        buffer: &Buffer,
        landing: Landing,
        bytes: Range<usize>,
    ) -> Result<(), Stop> {
        match landing {
            Landing::Tag { tag, at } => {
                let breach = |terminate| Breach { terminate, at_fault: self.inbound.at_fault() };
                let pin = connection.pin(tag, at, bytes.len() as u64, Wish::Write).map_err(breach)?;
                // SAFETY: the pin says that its owner lets peers write there. Memory that is not
                // mapped any more is as good as not registered.
                unsafe { buffer.put(bytes, pin.address) }.map_err(|_| breach(Terminate::DDP_INVALID_TAG))?;
            }
            Landing::Read { at } => {
                let bytes = &buffer[bytes];
                // SAFETY: the memory is a read's, which its poster promised to leave to it until it has ended.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) };
            }
            Landing::Message { at } => {
                self.message.truncate(at);
                self.message.extend_from_slice(&buffer[bytes]);
            }
            Landing::Nowhere => {}
        }
        Ok(())
    }

    /// Does what a complete frame says; false if it waits, and is looked at [again](Self::look_again).
    fn happened(&mut self, connection: &Connection, event: Event, effects: &mut Effects<'_>) -> Result<bool, Stop> {
        let breach = |inbound: &Inbound, terminate| Breach { terminate, at_fault: inbound.at_fault() };
        match event {
            Event::Placed => {}
            Event::Message { length, invalidate } => {
                if let Some(tag) = invalidate {
                    let tags = &connection.common.tags;
                    let invalidate = || tags.invalidate(tag, connection.number);
                    match self.vetting.access(&connection.common, tag, invalidate) {
                        Ok(()) => {}
                        Err(Denied::Wrong(terminate)) => return Err(breach(&self.inbound, terminate).into()),
                        Err(Denied::Later) => {
                            self.vetting.hold(event);
                            return Ok(false);
                        }
                    }
                }
                let buffer = effects.outbound.buffer();
                let mut message = std::mem::replace(&mut self.message, buffer);
                message.truncate(length);
                effects.completions.deliver(message);
            }
            Event::Request(request) => {
                // An empty read looks at no tag (RFC 5040, section 5.2).
                let mut bound = None;
                if request.length > 0 {
                    let ReadRequest { source_tag, source_offset, length, .. } = request;
                    let pin = || connection.pin(source_tag, source_offset, length.into(), Wish::Read);
                    match self.vetting.access(&connection.common, source_tag, pin) {
                        Ok(pin) => bound = pin.binding().is_some().then_some(pin),
                        Err(Denied::Wrong(terminate)) => {
                            let at_fault = self.inbound.at_fault();
                            let at_fault = at_fault.map(|fault| AtFault { request: Some(request), ..fault });
                            return Err(Breach { terminate, at_fault }.into());
                        }
                        Err(Denied::Later) => {
                            self.vetting.hold(event);
                            return Ok(false);
                        }
                    }
                }
                // More at a time than was agreed: the queue of read requests has no buffer (RFC 5041, section 8).
                if !effects.outbound.answer(request, bound.as_ref()) {
                    return Err(breach(&self.inbound, Terminate::NO_BUFFER).into());
                }
            }
            Event::Read { sequence } => {
                effects.outbound.read_ended();
                effects.completions.end_part(sequence);
            }
            Event::Terminated(why) => return Err(Stop::Lost(IwarpEnd::Terminated(why))),
        }
        Ok(true)
    }
}

/// Returns how many bytes came, or `None` if nothing did.
fn came(received: io::Result<usize>, effects: &mut Effects<'_>) -> Result<Option<usize>, Stop> {
    match received {
        Ok(0) => Err(Stop::Lost(IwarpEnd::Closed)),
        Ok(came) => {
            effects.progress.received();
            Ok(Some(came))
        }
        // An interrupted event is reported again.
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(None),
        Err(error) => Err(Stop::Lost(IwarpEnd::Broken(error.kind()))),
    }
}
