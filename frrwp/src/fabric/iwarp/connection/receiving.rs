//! The receiving half at work: from the socket to where bytes belong.
//!
//! The first bytes go to the thread's buffer, and small payloads from there to their place. A large payload goes from the
//! socket straight to its place, one call a frame. The end of its frame and the header after it come with it. A payload
//! that is summed up while its memory may change (a peer's write, with CRCs) goes through the buffer. Many frames are
//! received at a time, summed up there while the processor's cache has them, and then placed.
//!
//! The buffer is the thread's and not the connection's. So a thousand connections need no thousand buffers. A thread may
//! sleep in the receiving call itself without holding a connection's lock.

use super::super::ddp::{ReadRequest, TAGGED};
use super::super::since_start;
use super::super::terminate::AtFault;
use super::super::{memory, mpa};
use super::*;
use std::io;

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

impl Connection {
    /// Sleeps without the lock until something comes, receives it and does what it says, or until the socket's time is over.
    /// The core, and whether anything came.
    ///
    /// For one thread at a time, and where [`Core::may_sleep`] says so.
    pub(in super::super) fn sleep(&self) -> (MutexGuard<'_, Core>, bool) {
        let slept = Buffer::with(|buffer| {
            let slept = (&self.socket).read(&mut buffer[FRONT..FRONT + AHEAD]);
            let came = slept.is_ok();
            let mut core = self.lock();
            let received = core.receive(self, buffer, Some(slept));
            (core, came, received)
        });
        let (mut core, came, received) = match slept {
            Ok((core, came, received)) => (core, came, Ok(received)),
            Err(error) => (self.lock(), false, Err(error)),
        };
        core.received(self, received);
        (core, came)
    }
}

impl Core {
    /// Returns whether what comes next belongs in the thread's buffer, so that [`Connection::sleep`] may receive it.
    pub(in super::super) fn may_sleep(&self) -> bool {
        self.phase == Phase::Open && !self.blocked && !self.is_held() && self.inbound.is_between()
    }

    /// Looks at what came in sleep, or reads what is there, and does what it says.
    pub(super) fn receive(
        &mut self,
        connection: &Connection,
        buffer: &mut Buffer,
        slept: Option<io::Result<usize>>,
    ) -> Result<(), Stop> {
        if self.phase != Phase::Open {
            return Ok(());
        }
        let has_slept = slept.is_some();
        let came = match slept {
            Some(slept) => self.came(slept)?,
            None if self.is_held() => self.look_again(connection, buffer)?,
            None => Some(0),
        };
        let Some(came) = came else { return Ok(()) };
        let mut wanted = self.digest(connection, buffer, came)?;
        if has_slept && came < AHEAD {
            return Ok(());
        }
        for _ in 0..ROUNDS {
            if self.is_held() {
                break;
            }
            let Some((came, more)) = self.read(connection, buffer, wanted)? else { break };
            wanted = self.digest(connection, buffer, came)?;
            // Emptied: the socket's next readiness brings the rest.
            if !more {
                break;
            }
        }
        Ok(())
    }

    /// Looks again at what waited, if its time has come. The bytes in the buffer that were put aside, unless it waits still.
    fn look_again(&mut self, connection: &Connection, buffer: &mut Buffer) -> Result<Option<usize>, Stop> {
        if self.held_until().is_some_and(|at| at.as_nanos() as u64 > since_start(Instant::now())) {
            return Ok(None);
        }
        if let Some(event) = self.vetting.begin()
            && !self.happened(connection, event)?
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
        let Some(came) = self.came(received)? else { return Ok(None) };
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

    /// How much came, if anything did.
    fn came(&mut self, received: io::Result<usize>) -> Result<Option<usize>, Stop> {
        match received {
            Ok(0) => Err(Stop::Lost(IwarpEnd::Closed)),
            Ok(came) => {
                self.progress = Instant::now();
                self.probe = None;
                Ok(Some(came))
            }
            // An interrupted event is reported again.
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(None),
            Err(error) => Err(Stop::Lost(IwarpEnd::Broken(error.kind()))),
        }
    }

    /// Looks at what was held over and at so many bytes in the buffer. Gives the payload that is to come, if one has begun.
    fn digest(&mut self, connection: &Connection, buffer: &mut Buffer, came: usize) -> Result<Wanted, Stop> {
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
                    self.outbound.may_speak = true;
                    if !self.happened(connection, event)? {
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
    fn happened(&mut self, connection: &Connection, event: Event) -> Result<bool, Stop> {
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
                let buffer = self.outbound.buffer();
                let mut message = std::mem::replace(&mut self.message, buffer);
                message.truncate(length);
                self.inbox.push_back(Arrival::Message(message));
            }
            Event::Request(request) => {
                // An empty read looks at no tag (RFC 5040, section 5.2).
                let mut bound = false;
                if request.length > 0 {
                    let ReadRequest { source_tag, source_offset, length, .. } = request;
                    let pin = || connection.pin(source_tag, source_offset, length.into(), Wish::Read);
                    match self.vetting.access(&connection.common, source_tag, pin) {
                        Ok(pin) => bound = pin.binding().is_some(),
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
                if !self.outbound.answer(request, bound) {
                    return Err(breach(&self.inbound, Terminate::NO_BUFFER).into());
                }
            }
            Event::Read { sequence } => {
                self.outbound.read_ended();
                self.part_done(sequence);
            }
            Event::Terminated(why) => return Err(Stop::Lost(IwarpEnd::Terminated(why))),
        }
        Ok(true)
    }
}
