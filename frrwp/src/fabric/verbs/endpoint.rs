//! One end of a connection: what is posted, in order; what came; and how it ends.

#![expect(unsafe_code, reason = "posting lets the device at memory")]

mod completions;
mod ends;
mod opened;
mod pieces;

#[cfg(doc)]
use super::VerbsOptions;
use super::error::VerbsEnd;
use super::pair::{Pair, Request, Way};
use super::slots::Slots;
use super::windows::Windows;
use super::{VerbsDomain, VerbsError, ib, since_start};
use crate::fabric::poller::Bell;
use crate::fabric::traits::{Armed, Capabilities, Completion, Endpoint, Local};
use crate::wire::{MESSAGE, Segment};
use ib::ibv_wr_opcode as opcode;
use mrrc::Access;
use mrrc::registrar::verbs::MemoryRegion;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Polls between two looks at what the connection manager says, which is a system call.
const PATIENCE: u32 = 64;
/// And the longest between them while things complete: a device in software may carry out each within the call that posts it.
const TICK: Duration = Duration::from_millis(5);
/// Probes, and the time before the first; each next one takes four times as long.
const PROBES: u32 = 4;
const FIRST_PROBE: Duration = Duration::from_millis(4);
/// The time for which the accepting side waits for the first message. Under emulation a peer was seen to take a fifth of a
/// second to look at a reply.
const LISTENS: Duration = Duration::from_millis(500);
/// Entries of the send queue that are kept for probes.
pub(super) const SPARE: u32 = PROBES + 1;
/// Bytes a second below which something that was posted counts as standing still.
const LOWEST_RATE: u64 = 10_000_000;

/// One end of a connection over an RDMA device.
///
/// Writes are done when the peer's device has them; over iWARP when they are handed to TCP, and a message that is posted
/// behind them arrives after them all the same. A read is not fenced: what is posted after it may be carried out before its
/// bytes are here. A program that needs the order waits for the read.
pub struct VerbsEndpoint {
    /// Gone when the connection is flushed. Goes before the slots.
    pub(super) pair: Option<Pair>,
    out: Slots,
    into: Slots,
    /// The windows that open memory to the peer by this connection alone, where the device has them.
    windows: Option<Windows>,
    pub(super) domain: VerbsDomain,
    /// The send queue, in order, the number of its first entry, and since when that is the first.
    posted: VecDeque<Queued>,
    first: u64,
    first_since: Instant,
    /// Entries of the queues, and receives that are posted or with a message that was not taken yet.
    depth: usize,
    room: usize,
    receiving: usize,
    arrivals: VecDeque<Arrival>,
    state: State,
    why: Option<VerbsEnd>,
    /// The device's reason for a bad completion.
    failed: Option<VerbsEnd>,
    /// Over iWARP: when this side began to speak, and was nudging last.
    spoke: Option<Instant>,
    /// Over iWARP, of the side that accepted: until when it says nothing unless it has heard something.
    listens: Option<Instant>,
    heard: bool,
    probes_sent: u32,
    polls: u32,
    /// A bell is to ring.
    armed: bool,
    ticked: Instant,
    peer: Option<SocketAddr>,
    pub(super) way: Option<Way>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Stands,
    /// This side disconnects; what was posted may leave until then.
    Leaves(Instant),
    Flushed,
}

enum Arrival {
    Message { slot: u32, length: usize },
    Told(Completion),
}

/// Something on the send queue, and how the device says that it ended. Over siw what is posted behind a read may end before it.
struct Queued {
    what: Posted,
    ended: Option<ib::ibv_wc_status::Type>,
}

/// An entry of the send queue.
enum Posted {
    /// With its slot, where it did not go inline.
    Message(Option<u32>),
    /// A write or read, or a part of one.
    Part {
        id: u64,
        is_last: bool,
        reads: bool,
        to: Segment,
    },
    Probe,
    /// A window, by its number, is bound; or its key opens nothing any more.
    Bind,
    Invalidate(usize),
}

impl Posted {
    fn name(&self) -> &'static str {
        match self {
            Self::Message(_) => "message",
            Self::Part { reads: true, .. } => "read",
            Self::Part { .. } | Self::Probe => "write",
            Self::Bind | Self::Invalidate(_) => "window",
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            Self::Part { to, .. } => to.length,
            _ => 0,
        }
    }
}

impl VerbsEndpoint {
    /// Makes an end for a connection about to be made, with so many receives posted.
    pub(super) fn new(
        domain: &VerbsDomain,
        pair: Pair,
        (depth, room): (u32, u32),
        receives: u16,
        way: Option<Way>,
    ) -> io::Result<Self> {
        let windows = domain.has_windows().then(|| Windows::new(domain)).transpose()?;
        let mut endpoint = Self {
            windows,
            peer: pair.id.peer(),
            pair: Some(pair),
            out: Slots::new(domain),
            into: Slots::new(domain),
            domain: domain.clone(),
            posted: VecDeque::new(),
            first: 0,
            first_since: Instant::now(),
            depth: depth as usize,
            room: room as usize,
            receiving: 0,
            arrivals: VecDeque::new(),
            state: State::Stands,
            why: None,
            failed: None,
            spoke: None,
            listens: None,
            heard: false,
            probes_sent: 0,
            polls: 0,
            armed: false,
            ticked: Instant::now(),
            way,
        };
        endpoint.post_receives(receives)?;
        Ok(endpoint)
    }

    /// Why the connection ended.
    pub fn why(&self) -> Option<&VerbsEnd> {
        self.why.as_ref()
    }

    /// Returns the peer's address.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.peer
    }

    /// Returns the domain that it is of.
    pub fn domain(&self) -> &VerbsDomain {
        &self.domain
    }

    /// Returns the windows that open parts of registrations for reading to its peer, and no other. None
    /// where windows were not [asked for](VerbsOptions::windows), or the device has none.
    pub fn windows(&self) -> Option<&Windows> {
        self.windows.as_ref()
    }

    /// How often the peer was probed, with an empty write, because nothing came of it at first. Linux's siw overlooks what comes
    /// while it accepts.
    pub fn probes_sent(&self) -> u32 {
        self.probes_sent
    }

    /// Makes the connection again, to where it led, with as many receives posted: for a connection that ended because a key
    /// was refused, say. It is another connection: keys and messages are to be exchanged anew, and an engine over it is a new
    /// one. This one stays what it was, ended as a rule.
    ///
    /// # Errors
    /// [`VerbsError`]; that this end was connected to, and did not connect, is [`VerbsError::NotOurs`].
    pub fn connect_again(&self) -> Result<Self, VerbsError> {
        let Some(way) = self.way.clone() else { return Err(VerbsError::NotOurs { peer: self.peer }) };
        self.domain.connect(&way.address.to_string(), way.receives)
    }

    fn stands(&self) -> io::Result<&Pair> {
        match (&self.pair, self.state) {
            (Some(pair), State::Stands) => Ok(pair),
            _ => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    fn refuse<T>(&mut self, what: impl Into<String>) -> io::Result<T> {
        self.lose(VerbsEnd::Disconnected);
        Err(io::Error::new(io::ErrorKind::InvalidInput, what.into()))
    }

    /// Whether entries of the send queue are free.
    fn has_room(&mut self, entries: usize) -> io::Result<()> {
        self.stands()?;
        let may_speak = self.heard || self.listens.is_none_or(|until| until <= Instant::now());
        if may_speak {
            self.listens = None;
        }
        let has_room = self.posted.len() + entries <= self.depth;
        if may_speak && has_room { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
    }

    /// Over iWARP the side that accepted may speak once it was spoken to (RFC 5044, section 7.1.1). A peer of siw's that has not got round
    /// to reading the reply yet takes what comes right behind it for a breach, and gives up. That nothing was heard need not mean
    /// that nothing came, as writes are not told of: so after some time it speaks all the same.
    pub(super) fn listen_first(&mut self) {
        if self.domain.0.able.iwarp {
            self.listens = Some(Instant::now() + LISTENS);
        }
    }

    /// # Safety
    /// As [`Pair::post`].
    unsafe fn post(&mut self, what: Posted, mut request: Request<'_>) -> io::Result<()> {
        request.number = self.first + self.posted.len() as u64;
        let posted = match &self.pair {
            // SAFETY: the caller promises that the request's memory stays until it has completed.
            Some(pair) => unsafe { pair.post(request) },
            None => Err(io::ErrorKind::NotConnected.into()),
        };
        match posted {
            Ok(()) => {
                self.queued(what);
                Ok(())
            }
            Err(error) => {
                if let Posted::Message(Some(slot)) = what {
                    self.out.give(slot);
                }
                let end = self.gone().unwrap_or(VerbsEnd::Broken { what: "the device takes nothing more" });
                self.lose(end);
                Err(error)
            }
        }
    }

    /// It is on the send queue.
    fn queued(&mut self, what: Posted) {
        if self.posted.is_empty() {
            self.first_since = Instant::now();
        }
        self.posted.push_back(Queued { what, ended: None });
    }

    fn spoken(&mut self) {
        if self.spoke.is_none() && self.domain.0.able.iwarp {
            self.spoke = Some(Instant::now());
        }
    }

    fn post_receives(&mut self, more: u16) -> io::Result<()> {
        if self.receiving + usize::from(more) > self.room {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        for _ in 0..more {
            let slot = self.into.take()?;
            let (Some((at, key)), Some(pair)) = (self.into.at(slot), &self.pair) else {
                return Err(io::ErrorKind::NotConnected.into());
            };
            let into = ib::ibv_sge { addr: at as u64, length: MESSAGE as u32, lkey: key };
            // SAFETY: the slot is this receive's until it has completed or the pair is ended, and goes after the pair.
            unsafe { pair.post_receive(slot.into(), into) }?;
            self.receiving += 1;
        }
        Ok(())
    }

    fn released(&mut self, slot: u32) {
        self.into.give(slot);
        self.receiving -= 1;
    }
}

// SAFETY: a write or read is done when its last part has completed, which the device tells when it does not use the local
// memory any more; parts complete in order. `Flushed` is told after the queue pair was destroyed, which waits until the
// device is at nothing by it, neither for this side nor for the peer.
unsafe impl Endpoint for VerbsEndpoint {
    type Domain = VerbsDomain;

    fn capabilities(&self) -> Capabilities {
        let able = self.domain.0.able;
        // Devices of iWARP fill the memory of a read as if the peer wrote it.
        let sink = if able.iwarp { Access::LOCAL_WRITE | Access::REMOTE_WRITE } else { Access::LOCAL_WRITE };
        Capabilities { gather: able.gather, immediate: !able.iwarp, sink }
    }

    fn now(&self) -> u64 {
        since_start(Instant::now())
    }

    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        // The message may say their keys.
        self.post_windows()?;
        self.has_room(1)?;
        if message.len() > MESSAGE {
            return self
                .refuse(format!("a message of {} bytes is longer than {MESSAGE}: send it in parts", message.len()));
        }
        let inline = message.len() <= self.stands()?.inline;
        let (slot, at, key) = if inline {
            (None, message.as_ptr(), 0)
        } else {
            let slot = match self.out.take() {
                Ok(slot) => slot,
                // Room comes when others have left.
                Err(_) if self.posted.iter().any(|posted| matches!(posted.what, Posted::Message(Some(_)))) => {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                Err(error) => {
                    self.lose(VerbsEnd::Local { operation: "message", what: "no memory can be registered for it" });
                    return Err(error);
                }
            };
            let Some((at, key)) = self.out.at(slot) else { return Err(io::ErrorKind::NotConnected.into()) };
            // SAFETY: the slot is this message's alone, and holds the longest.
            unsafe { std::ptr::copy_nonoverlapping(message.as_ptr(), at, message.len()) };
            (Some(slot), at.cast_const(), key)
        };
        let mut parts = [ib::ibv_sge { addr: at as u64, length: message.len() as u32, lkey: key }];
        let parts = if message.is_empty() { &mut parts[..0] } else { &mut parts[..] };
        let request = Request {
            number: 0,
            opcode: opcode::IBV_WR_SEND,
            parts,
            remote: (0, 0),
            immediate: 0,
            inline: inline && !message.is_empty(),
        };
        // SAFETY: the slot is given back when the message has completed, and goes after the pair; inline, it is copied.
        unsafe { self.post(Posted::Message(slot), request) }?;
        self.spoken();
        Ok(())
    }

    fn receive(&mut self, more: u16) -> io::Result<()> {
        self.stands()?;
        match self.post_receives(more) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                let end = self.gone().unwrap_or(VerbsEnd::Local { operation: "receive", what: "it was not taken" });
                self.lose(end);
                Err(error)
            }
            result => result,
        }
    }

    unsafe fn write(
        &mut self,
        id: u64,
        from: &[Local<'_, MemoryRegion>],
        to: Segment,
        immediate: Option<u32>,
    ) -> io::Result<()> {
        if immediate.is_some() && self.domain.0.able.iwarp {
            return self.refuse("iWARP writes carry no immediate: send a message behind it");
        }
        // SAFETY: the caller promises that the local memory stays, with no other user, until the request has completed.
        unsafe { self.place(id, from, to, false, immediate) }
    }

    unsafe fn read(&mut self, id: u64, into: &[Local<'_, MemoryRegion>], from: Segment) -> io::Result<()> {
        // SAFETY: the caller promises that the local memory stays, with no other user, until the request has completed.
        unsafe { self.place(id, into, from, true, None) }
    }

    fn poll(&mut self, message: &mut [u8; MESSAGE]) -> Option<Completion> {
        if std::mem::take(&mut self.armed) {
            if let Some(pair) = &self.pair {
                pair.acknowledge();
            }
            self.tick();
        }
        self.polls += 1;
        if self.polls >= PATIENCE {
            // Also where there is always something to poll: that the device goes is told by nothing else.
            self.polls = 0;
            self.tick();
        }
        if self.arrivals.is_empty() {
            self.harvest();
            self.leave();
        }
        let arrival = self.arrivals.pop_front()?;
        Some(match arrival {
            Arrival::Told(completion) => completion,
            Arrival::Message { slot, length } => {
                if let Some((at, _)) = self.into.at(slot) {
                    // SAFETY: the device has filled so much of the slot, and is done with it.
                    unsafe { std::ptr::copy_nonoverlapping(at, message.as_mut_ptr(), length) };
                }
                self.released(slot);
                Completion::Message { length }
            }
        })
    }

    fn wait(&mut self, until: Option<u64>) {
        if self.state == State::Flushed || !self.arrivals.is_empty() {
            return;
        }
        let begun = Instant::now();
        let spin = self.domain.0.options.spin;
        let left = |now: Instant| until.map(|until| Duration::from_nanos(until.saturating_sub(since_start(now))));
        loop {
            self.harvest();
            let now = Instant::now();
            let is_over = left(now) == Some(Duration::ZERO);
            if !self.arrivals.is_empty() || is_over || now.saturating_duration_since(begun) >= spin {
                break;
            }
            self.polls += 1;
            if self.polls >= PATIENCE {
                self.polls = 0;
                self.tick();
                self.leave();
            }
            // A device in software needs this processor.
            std::thread::yield_now();
        }
        let Some(pair) = &self.pair else { return };
        pair.arm();
        self.harvest();
        self.tick();
        self.leave();
        let now = Instant::now();
        let own = self.acts_at(now).map(|at| at.saturating_duration_since(now));
        let time = left(now).into_iter().chain(own).min();
        if self.arrivals.is_empty()
            && let Some(pair) = &self.pair
        {
            // Where there is no room for what is wanted of windows, completions make some.
            let has_room = self.state == State::Stands && self.posted.len() < self.depth && self.listens.is_none();
            pair.sleep(self.windows.as_ref().filter(|_| has_room).map(Windows::file), time);
            self.harvest();
            self.tick();
            self.leave();
        }
    }

    fn attach(&mut self, bell: &Bell) -> io::Result<()> {
        let pair = self.stands()?;
        pair.files().into_iter().try_for_each(|file| bell.watch(file))?;
        self.windows.iter().try_for_each(|windows| bell.watch(windows.file()))
    }

    fn arm(&mut self) -> Armed {
        if let Some(pair) = &self.pair {
            pair.arm();
            // The channel's events from now on are noted, also where no thread sleeps.
            self.armed = true;
            self.harvest();
            self.tick();
            self.leave();
        }
        if !self.arrivals.is_empty() {
            return Armed::News;
        }
        Armed::Quiet { until: self.acts_at(Instant::now()).map(since_start) }
    }

    fn disconnect(&mut self) {
        if self.state != State::Stands {
            return;
        }
        // A child that was forked has a copy, and may not look at the device.
        if !self.domain.is_here() {
            (self.state, self.armed, self.polls) = (State::Flushed, false, 0);
            self.arrivals = [Completion::Lost, Completion::Flushed].map(Arrival::Told).into();
            return;
        }
        // Messages that have come are heard.
        self.harvest();
        if self.state == State::Stands {
            self.why.get_or_insert(VerbsEnd::Disconnected);
            self.arrivals.push_back(Arrival::Told(Completion::Lost));
            self.state = State::Leaves(Instant::now() + self.domain.0.options.linger);
            self.leave();
        }
    }
}

impl Drop for VerbsEndpoint {
    /// A child that was forked has a copy of this, and the parent's connection is none of its business.
    fn drop(&mut self) {
        if self.domain.is_here() {
            self.leave_now();
        }
    }
}

impl fmt::Debug for VerbsEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { peer, state, why, .. } = self;
        f.debug_struct("VerbsEndpoint")
            .field("peer", peer)
            .field("state", state)
            .field("why", why)
            .finish_non_exhaustive()
    }
}
