//! One connection: both halves of the protocol, a socket, and what its application is told.
//!
//! One lock guards all of it; its holder may read and write the socket, and no system call made under it blocks. The
//! provider's thread, and the application's when it posts, polls or waits, take turns. A thread that waits may sleep in the
//! receiving call, but without the lock, and in a buffer of its own.
#![expect(unsafe_code, reason = "places bytes in registered memory")]

use super::IwarpEnd;
use super::common::Common;
use super::inbound::{Breach, Inbound};
use super::memory::Buffer;
use super::outbound::{Ends, Outbound, Post, Sources};
use super::socket::{self, Room};
use super::tags::{Pin, Wish};
use super::terminate::Terminate;
use crate::fabric::poller::Bell;
use crate::wire::MESSAGE;
use rustix::event::epoll::EventFlags;
use smallvec::SmallVec;
use std::io::{self, ErrorKind, Read};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

mod completions;
mod progress;
mod receiving;
mod vetting;

pub(super) use completions::{Arrival, Completions};
use progress::Progress;
use receiving::{Effects, Receiver, Stop};
use vetting::Vetting;

/// Things that are posted and have not ended, or not left.
pub(super) const QUEUE: usize = 256;
/// Times that bytes are thrown away before others have their turn.
const WORDS: usize = 32;
/// How long a thread sleeps in the receiving call at a time: one call where to watch the socket first would be two. A
/// caller that may sleep less than that watches.
pub(super) const NAP: Duration = Duration::from_millis(250);
/// How long the peer may take to hear last words.
const LINGER: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Open,
    /// Last words are sent; what still comes is thrown away, so that the peer's system does not throw the words away.
    Parting {
        until: Instant,
    },
    Closed,
}

/// A connection.
pub(super) struct Connection {
    pub(super) number: u64,
    pub(super) socket: TcpStream,
    /// Known from the start: a socket that was reset does not tell any more.
    pub(super) peer: SocketAddr,
    pub(super) common: Arc<Common>,
    /// The sink tag that the peer's answers to reads carry. It opens nothing.
    sink: OnceLock<u32>,
    core: Mutex<Core>,
    /// Told when the provider's thread does not stay at the connection any more.
    pub(super) left: Condvar,
    /// Told when there is something for an application that waits passively.
    pub(super) news: Condvar,
}

/// The state that the lock guards.
pub(super) struct Core {
    receiver: Receiver,
    pub(super) outbound: Outbound,
    pub(super) completions: Completions,
    phase: Phase,
    pub(super) why: Option<IwarpEnd>,
    /// Whether the socket takes no more now.
    blocked: bool,
    /// Whether what the application posts waits for more to leave with.
    pub(super) corked: bool,
    /// Something found the queue full, and is posted again when there is room.
    pub(super) wants_room: bool,
    /// The application's thread serves the socket, and the provider's keeps away.
    pub(super) claim: Claim,
    /// Whether a waiting application leaves the connection to the provider's thread.
    pub(super) passive: bool,
    /// Rung when there is something for an application that waits for many connections; and whether it waits.
    pub(super) bell: Option<Bell>,
    pub(super) armed: bool,
    /// The events that wake the provider's thread.
    pub(super) watched: EventFlags,
    /// The provider's thread looks after it.
    pub(super) attended: bool,
    progress: Progress,
}

/// The thread that serves a connection.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Claim {
    /// The application.
    pub(super) held: bool,
    /// It sleeps on the socket.
    pub(super) waiting: bool,
    /// The provider has stopped watching whether it comes back: it gives the claim back when it wakes.
    pub(super) parked: bool,
    /// It was here since the provider looked.
    pub(super) active: bool,
    /// The provider's thread sleeps in the receiving call, and the application's is to wait until it has left.
    pub(super) stayed: bool,
    /// The application sleeps until it gets a completion: the serving thread wakes it.
    pub(super) passive: bool,
}

impl Sources for Connection {
    fn pin(&self, tag: u32, at: u64, length: u64) -> Result<Pin, Terminate> {
        self.pin(tag, at, length, Wish::Read)
    }
}

/// The agreement of the connection's set-up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Agreed {
    pub(super) checksums: bool,
    /// Whether this side may speak before the other.
    pub(super) may_speak: bool,
    pub(super) ready_by_send: bool,
    /// Reads at a time: of the peer's, of this side's.
    pub(super) inbound: u16,
    pub(super) outbound: u16,
}

impl Connection {
    /// Makes a connection after the exchange of start frames, with bytes that came after them.
    pub(super) fn new(
        number: u64,
        (socket, peer): (TcpStream, SocketAddr),
        common: Arc<Common>,
        agreed: Agreed,
        receives: u32,
        came: &[u8],
    ) -> Self {
        let inbound = Inbound::new(agreed.checksums, MESSAGE, agreed.ready_by_send);
        let core = Core {
            receiver: Receiver::new(inbound, Vetting::new(number, peer.ip().into()), receives, came),
            outbound: Outbound::new(agreed.checksums, agreed.may_speak, agreed.outbound, agreed.inbound),
            completions: Completions::default(),
            phase: Phase::Open,
            why: None,
            blocked: false,
            corked: false,
            wants_room: false,
            claim: Claim::default(),
            passive: common.options.passive,
            bell: None,
            armed: false,
            watched: EventFlags::empty(),
            attended: false,
            progress: Progress::new(),
        };
        common.tags.enter(number);
        let (sink, core) = (OnceLock::new(), Mutex::new(core));
        Self { number, socket, peer, common, sink, core, left: Condvar::new(), news: Condvar::new() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pin(&self, tag: u32, at: u64, length: u64, wish: Wish) -> Result<Pin, Terminate> {
        self.common.tags.pin(tag, at, length, wish, self.number)
    }

    /// Sleeps without the lock until something comes, receives it and does what it says, or until the socket's time is over.
    /// Returns the core, and whether anything came.
    ///
    /// For one thread at a time, and where [`Core::may_sleep`] says so.
    pub(super) fn sleep(&self) -> (MutexGuard<'_, Core>, bool) {
        let slept = Buffer::with(|buffer| {
            let slept = (&self.socket).read(receiving::room(buffer));
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

    /// Wakes an application that waits passively, or for a bell, if there is something for it.
    pub(super) fn tell(&self, core: &mut Core) {
        let has_news = !core.completions.is_empty() || core.room_came();
        if core.claim.passive && (has_news || !core.is_open()) {
            core.claim.passive = false;
            self.news.notify_one();
        }
        if core.armed && has_news {
            core.armed = false;
            core.wants_room &= !core.room_came();
            core.bell.iter().for_each(Bell::ring);
        }
    }

    /// Returns the tag of what this side reads. Answers are known by their order. So the peer gets neither a tag nor an
    /// address by which it could write there out of turn.
    pub(super) fn sink(&self) -> u32 {
        *self.sink.get_or_init(|| self.common.tags.reserve(self.number))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(&sink) = self.sink.get() {
            self.common.tags.release(sink);
        }
        self.common.tags.leave(self.number);
    }
}

impl Core {
    /// Returns whether frames carry CRCs.
    pub(super) fn checksums(&self) -> bool {
        self.receiver.checksums()
    }

    pub(super) fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    pub(super) fn is_closed(&self) -> bool {
        self.phase == Phase::Closed
    }

    /// Returns the events that the socket is to be watched for.
    pub(super) fn interest(&self) -> EventFlags {
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, self.phase != Phase::Closed && !self.is_held());
        // A waiting thread does not wait for a peer that has gone.
        flags.set(EventFlags::RDHUP, self.is_held());
        flags.set(EventFlags::OUT, self.blocked);
        flags
    }

    /// Returns whether what the peer wants waits, because its source has guessed too much.
    pub(super) fn is_held(&self) -> bool {
        self.receiver.is_held()
    }

    /// Returns whether what comes next belongs in the thread's buffer, so that [`Connection::sleep`] may receive it.
    pub(super) fn may_sleep(&self) -> bool {
        self.phase == Phase::Open && !self.blocked && self.receiver.is_between()
    }

    /// Lets the peer send `more` messages.
    pub(super) fn add_receives(&mut self, more: u32) {
        self.receiver.add_receives(more);
    }

    /// Returns the number of probes that were sent.
    pub(super) fn probes_sent(&self) -> u32 {
        self.progress.probes_sent()
    }

    /// Returns whether time alone may change something for the connection.
    pub(super) fn needs_attention(&self, stall: Duration) -> bool {
        self.is_held() || self.stalls_at(stall).is_some() || self.nudges_at().is_some()
    }

    /// When that is looked at again.
    pub(super) fn held_until(&self) -> Option<Duration> {
        self.receiver.held_until()
    }

    /// The socket says that the peer has gone. Held back, nothing else would tell.
    pub(super) fn hung_up(&mut self, connection: &Connection) {
        if self.is_held() {
            self.lose(connection, IwarpEnd::Closed);
        }
    }

    /// The queue is full.
    pub(super) fn blocks(&mut self) -> io::Result<()> {
        self.wants_room = true;
        Err(ErrorKind::WouldBlock.into())
    }

    /// Returns whether what found the queue full finds room. Half of it is free then, so that this is not told of each
    /// place.
    pub(super) fn room_came(&self) -> bool {
        self.wants_room && self.outbound.waiting() <= QUEUE / 2 && self.completions.pending() < QUEUE
    }

    /// Adds a post of `parts` parts, and returns its sequence number.
    pub(super) fn begin(&mut self, id: u64, parts: u32) -> u64 {
        if self.completions.pending() == 0 {
            self.progress.posted();
        }
        self.completions.begin(id, parts)
    }

    /// When the peer has stood still for too long, if something is to come from it.
    pub(super) fn stalls_at(&self, stall: Duration) -> Option<Instant> {
        match self.phase {
            // A connection that is held back cannot go on.
            Phase::Open if self.is_held() => None,
            Phase::Open if self.completions.pending() > 0 || self.blocked => Some(self.progress.last() + stall),
            Phase::Parting { until } => Some(until),
            _ => None,
        }
    }

    /// When the peer is to be probed, if it is.
    pub(super) fn nudges_at(&self) -> Option<Instant> {
        self.progress.probe_at().filter(|_| self.phase == Phase::Open && !self.blocked)
    }

    /// Probes the peer if it is time.
    pub(super) fn send_probe(&mut self, connection: &Connection) {
        if self.nudges_at().is_none_or(|at| at > Instant::now()) {
            return;
        }
        self.progress.probed();
        // No post waits for it: its name is of nothing that is pending.
        self.outbound.post(Post::Write { sequence: u64::MAX, pieces: SmallVec::new(), tag: 0, at: 0 });
        self.flush(connection);
    }

    /// Ends a connection with a stalled peer.
    pub(super) fn expire(&mut self, connection: &Connection) {
        let stall = connection.common.options.stall;
        if self.stalls_at(stall).is_some_and(|at| at <= Instant::now()) {
            match self.phase {
                Phase::Open => self.lose(connection, IwarpEnd::Stalled { after: stall }),
                _ => self.close(connection),
            }
        }
    }

    /// Receives into the parts of an open connection.
    fn receive(
        &mut self,
        connection: &Connection,
        buffer: &mut Buffer,
        slept: Option<io::Result<usize>>,
    ) -> Result<(), Stop> {
        if self.phase != Phase::Open {
            return Ok(());
        }
        let Self { receiver, outbound, completions, progress, .. } = self;
        receiver.receive(connection, buffer, slept, &mut Effects { outbound, completions, progress })
    }

    /// Reads what is there and does what it says, then sends what is to be sent.
    pub(super) fn serve(&mut self, connection: &Connection) {
        let received = Buffer::with(|buffer| self.receive(connection, buffer, None));
        self.received(connection, received);
    }

    /// Does what follows from what was received.
    fn received(&mut self, connection: &Connection, received: io::Result<Result<(), Stop>>) {
        match received {
            Ok(Ok(())) => {}
            Ok(Err(Stop::Breach(breach))) => self.breach(connection, breach),
            Ok(Err(Stop::Lost(why))) => self.lose(connection, why),
            // Without a buffer nothing can be received.
            Err(error) => self.lose(connection, IwarpEnd::Broken(error.kind())),
        }
        if let Phase::Parting { .. } = self.phase {
            self.discard(connection);
        }
        self.flush(connection);
    }

    /// Sends what is to be sent, as much as goes.
    pub(super) fn flush(&mut self, connection: &Connection) {
        self.blocked = false;
        while self.phase != Phase::Closed {
            if let Err(terminate) = self.outbound.fill(connection) {
                // A tag that a peer reads was taken back: the answer cannot be finished. The RFC's word for it is that
                // this side failed.
                let _ = terminate;
                return self.breach(connection, Breach { terminate: Terminate::LOCAL_CATASTROPHE, at_fault: None });
            }
            // Nothing may come of a read before it was asked for.
            for reading in self.outbound.asked.drain(..) {
                self.receiver.expect(reading);
            }
            let mut vector = SmallVec::new();
            let mut pins = SmallVec::new();
            if self.outbound.show(connection, &mut vector, &mut pins).is_err() {
                // In the middle of a frame there is no place for last words.
                return self.lose(connection, IwarpEnd::Withdrawn);
            }
            if vector.is_empty() {
                return;
            }
            // SAFETY: frames are this connection's, a write's memory may be read until it is done as its poster promised,
            // and that of tags is held by the pins.
            match unsafe { socket::send(connection.socket.as_fd(), &vector) } {
                Ok(sent) => {
                    drop(pins);
                    self.progress.sent();
                    let mut ended: SmallVec<[Ends; 8]> = SmallVec::new();
                    self.outbound.sent(sent, |ends| ended.push(ends));
                    for ends in ended {
                        match ends {
                            Ends::Write { sequence } => self.completions.end_part(sequence),
                            Ends::Connection => drop(connection.socket.shutdown(Shutdown::Write)),
                            Ends::Answer | Ends::Nothing => {}
                        }
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.blocked = true;
                    return;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return self.lose(connection, IwarpEnd::Broken(error.kind())),
            }
        }
    }

    /// The peer has broken a rule: it is told which, and the connection ends.
    fn breach(&mut self, connection: &Connection, breach: Breach) {
        if self.phase != Phase::Open {
            return;
        }
        self.outbound.terminate(breach.terminate.encode(breach.at_fault.as_ref()));
        self.phase = Phase::Parting { until: Instant::now() + LINGER };
        self.told(connection, IwarpEnd::Breach(breach.terminate));
        self.claim.held = false;
        self.flush(connection);
    }

    /// Throws away what still comes, until the peer has closed too.
    fn discard(&mut self, connection: &Connection) {
        let mut bytes = [0; 4096];
        for _ in 0..WORDS {
            let room = Room { address: bytes.as_mut_ptr(), length: bytes.len() };
            // SAFETY: the bytes are this function's.
            match unsafe { socket::receive(connection.socket.as_fd(), &[room]) } {
                Ok(0) => return self.close(connection),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => return self.close(connection),
            }
        }
    }

    /// The connection has ended.
    pub(super) fn lose(&mut self, connection: &Connection, why: IwarpEnd) {
        if self.phase == Phase::Open {
            self.told(connection, why);
        }
        self.close(connection);
    }

    fn close(&mut self, connection: &Connection) {
        self.phase = Phase::Closed;
        self.outbound.clear();
        self.blocked = false;
        let _ = connection.socket.shutdown(Shutdown::Both);
    }

    /// Tells the application of the end. Nothing is placed any more: that happens in the open phase only, under the lock that
    /// is held.
    fn told(&mut self, connection: &Connection, why: IwarpEnd) {
        self.receiver.leave(&connection.common);
        self.why = Some(why);
        self.completions.end();
    }
}
