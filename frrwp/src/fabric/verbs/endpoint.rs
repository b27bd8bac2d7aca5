//! One end of a connection: posts, completions, and its end.
//!
//! Whatever the reason for the end, the queue pair is destroyed before [`Completion::Flushed`] is reported. That waits until the device
//! is at nothing that was posted to it. A side that disconnects has its posts sent first, for a short time: the device forgets those
//! that it has not sent.
//!
//! | part | owns |
//! | --- | --- |
//! | `send_queue.rs` | the entries of the send queue, in order, and the memory of messages that are sent |
//! | `receives.rs` | the memory of messages that come, and the room of the receive queue |
//! | `opening.rs` | over iWARP: which side sends first, and probes |
//! | `lifecycle.rs` | the state, and the reason for the end |
//! | `checks.rs` | when the connection manager's events are looked at |
//! | `pieces.rs` | no state: writes and reads in parts that the device takes |

#![expect(unsafe_code, reason = "posting lets the device at memory")]

mod checks;
mod lifecycle;
mod opening;
mod pieces;
mod receives;
mod send_queue;

#[cfg(doc)]
use super::VerbsOptions;
use super::error::VerbsEnd;
use super::manager::{Channel, Event, kind};
use super::pair::{Destination, Pair, RECEIVE, Request};
use super::windows::{Windows, Work};
use super::{VerbsDomain, ib, since_start};
use crate::fabric::attempt::Attempt;
use crate::fabric::poller::Bell;
use crate::fabric::traits::{Armed, Capabilities, Completion, Endpoint, Local};
use crate::wire::{MESSAGE, Segment};
use checks::Checks;
use ib::ibv_wc_status as status;
use ib::ibv_wr_opcode as opcode;
use lifecycle::Lifecycle;
use mrrc::Access;
use mrrc::registrar::verbs::MemoryRegion;
use opening::Opening;
use pieces::{RequestLimits, cut};
use receives::Receives;
use send_queue::{Posted, SendQueue, Staged};
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Entries of the send queue that are kept for probes.
pub(super) const SPARE: u32 = opening::PROBES + 1;

/// One end of a connection over an RDMA device.
///
/// Writes are done when the peer's device has them; over iWARP when they are handed to TCP. A message that is posted behind them
/// arrives after them all the same. A read is not fenced: what is posted after it may be carried out before its bytes are here. A
/// program that needs the order waits for the read.
pub struct VerbsEndpoint {
    /// None once the connection is flushed. Dropped before the slots of the queues.
    pair: Option<Pair>,
    send_queue: SendQueue,
    receives: Receives,
    /// The windows that open memory to the peer by this connection alone, where the device has them.
    windows: Option<Windows>,
    domain: VerbsDomain,
    arrivals: VecDeque<Arrival>,
    lifecycle: Lifecycle,
    opening: Opening,
    checks: Checks,
    /// A bell is to ring.
    armed: bool,
    peer: Option<SocketAddr>,
    destination: Option<Destination>,
}

enum Arrival {
    Message { slot: u32, length: usize },
    Completed(Completion),
}

impl VerbsEndpoint {
    /// Returns an end for a connection about to be made, with so many receives posted.
    pub(super) fn new(
        domain: &VerbsDomain,
        pair: Pair,
        (depth, room): (u32, u32),
        receives: u16,
        destination: Option<Destination>,
    ) -> io::Result<Self> {
        let windows = domain.has_windows().then(|| Windows::new(domain)).transpose()?;
        let mut endpoint = Self {
            windows,
            peer: pair.id.peer(),
            pair: Some(pair),
            send_queue: SendQueue::new(domain, depth),
            receives: Receives::new(domain, room),
            domain: domain.clone(),
            arrivals: VecDeque::new(),
            lifecycle: Lifecycle::new(),
            opening: Opening::new(domain.able().iwarp),
            checks: Checks::new(),
            armed: false,
            destination,
        };
        endpoint.receives.post(endpoint.pair.as_ref(), receives)?;
        Ok(endpoint)
    }

    /// Returns why the connection ended.
    pub fn why(&self) -> Option<&VerbsEnd> {
        self.lifecycle.why()
    }

    /// Returns the peer's address.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.peer
    }

    /// Returns its domain.
    pub fn domain(&self) -> &VerbsDomain {
        &self.domain
    }

    /// Returns the windows that open parts of registrations to its peer alone, for reading. None: windows were not
    /// [asked for](VerbsOptions::windows), or the device has none.
    pub fn windows(&self) -> Option<&Windows> {
        self.windows.as_ref()
    }

    /// Returns how often the peer was probed, with an empty write, because nothing came of it at first. Linux's siw overlooks what
    /// comes while it accepts.
    pub fn probes_sent(&self) -> u32 {
        self.opening.probes()
    }

    // ---- Setting up ----------------------------------------------------------------------------------

    /// Returns the address that this side connected to, and its receives.
    pub(super) fn destination(&self) -> Option<&Destination> {
        self.destination.as_ref()
    }

    /// Asks the peer for the connection. None: it has ended.
    pub(super) fn connect(&self, reads: (u8, u8)) -> Option<io::Result<()>> {
        self.pair.as_ref().map(|pair| pair.id.connect(reads))
    }

    /// Accepts the peer's request. None: it has ended.
    pub(super) fn accept(&self, reads: (u8, u8)) -> Option<io::Result<()>> {
        self.pair.as_ref().map(|pair| pair.id.accept(reads))
    }

    /// Waits for the next event of a connection that is being set up.
    pub(super) fn next_event(&self, attempt: &Attempt) -> Option<Event> {
        self.pair.as_ref().and_then(|pair| pair.events.as_ref()?.wait(attempt))
    }

    /// Has its events come by a channel of its own. None: it has ended.
    pub(super) fn take_events(&mut self) -> Option<io::Result<()>> {
        let pair = self.pair.as_mut()?;
        let moved = Channel::new().and_then(|channel| pair.id.migrate(&channel).map(|()| channel));
        Some(moved.map(|channel| pair.events = Some(channel)))
    }

    /// Over iWARP the side that accepted may send once it has received something.
    pub(super) fn listen_first(&mut self) {
        self.opening.listen_first();
    }

    /// Returns whether anything came over a connection that is being set up.
    pub(super) fn has_received(&mut self) -> bool {
        self.harvest();
        self.opening.has_received()
    }

    /// Sends an empty write, which does nothing but arrive.
    pub(super) fn send_probe(&mut self) {
        let request = Request {
            number: 0,
            opcode: opcode::IBV_WR_RDMA_WRITE,
            parts: &mut [],
            remote: (0, 0),
            immediate: 0,
            inline: false,
        };
        // SAFETY: `Pair::post` concerns the memory of the parts, and a probe has none.
        let _ = unsafe { self.post(Posted::Probe, request) };
    }

    // ---- Posting -------------------------------------------------------------------------------------

    fn connected(&self) -> io::Result<&Pair> {
        match &self.pair {
            Some(pair) if self.lifecycle.is_connected() => Ok(pair),
            _ => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    fn refuse<T>(&mut self, what: impl Into<String>) -> io::Result<T> {
        self.lose(VerbsEnd::Disconnected);
        Err(io::Error::new(io::ErrorKind::InvalidInput, what.into()))
    }

    /// Checks that so many entries can be posted. `WouldBlock` if the queue is full, or this side may not send yet.
    fn has_room(&mut self, entries: usize) -> io::Result<()> {
        self.connected()?;
        let may_send = self.opening.may_send();
        if may_send && self.send_queue.has_room(entries) { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
    }

    /// # Safety
    /// As [`Pair::post`].
    unsafe fn post(&mut self, what: Posted, mut request: Request<'_>) -> io::Result<()> {
        request.number = self.send_queue.next_number();
        let posted = match &self.pair {
            // SAFETY: `Self::post` requires what `Pair::post` does.
            Some(pair) => unsafe { pair.post(request) },
            None => Err(io::ErrorKind::NotConnected.into()),
        };
        match posted {
            Ok(()) => {
                self.send_queue.push(what);
                Ok(())
            }
            Err(error) => {
                if let Posted::Message(slot) = what {
                    self.send_queue.release(slot);
                }
                self.lose_post();
                Err(error)
            }
        }
    }

    fn lose_post(&mut self) {
        let end = self.gone().unwrap_or(VerbsEnd::Broken { what: "the device takes nothing more" });
        self.lose(end);
    }

    /// Posts what is wanted of windows. `WouldBlock` if not all of it has room.
    fn post_windows(&mut self) -> io::Result<()> {
        while let Some(work) = self.windows.as_ref().and_then(|windows| windows.next()) {
            self.has_room(1)?;
            let number = self.send_queue.next_number();
            let post = |pair: &Pair| match work {
                // SAFETY: `Windows` destroys a window only after the queue pair, and binds one that is free; it keeps the region's
                // owner until the key was taken back or the queue pair is gone.
                Work::Bind { window, key, region, address, length } => unsafe {
                    pair.bind(number, window, key, (region, address, length)).map(|()| Posted::Bind)
                },
                Work::Invalidate { number: index, key } => {
                    pair.invalidate(number, key).map(|()| Posted::Invalidate(index))
                }
            };
            match self.connected().and_then(post) {
                Ok(what) => {
                    self.send_queue.push(what);
                    if let Some(windows) = &self.windows {
                        windows.is_posted();
                    }
                }
                Err(error) => {
                    self.lose_post();
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Posts a write or read, in as many parts as the device needs.
    ///
    /// # Safety
    /// As [`Endpoint::write`] or [`Endpoint::read`].
    unsafe fn post_parts(
        &mut self,
        id: u64,
        local: &[Local<'_, MemoryRegion>],
        remote: Segment,
        reads: bool,
        immediate: Option<u32>,
    ) -> io::Result<()> {
        let longest = self.connected()?.longest;
        let able = self.domain.able();
        if local.iter().any(|local| !local.registration.holds(local.address as u64, local.length as u64)) {
            return self.refuse("local memory that its registration does not cover: register it");
        }
        let pieces = if reads { able.scatter } else { able.gather };
        let Some(cut) = cut(local, remote, reads, RequestLimits { pieces, longest, is_iwarp: able.iwarp }) else {
            return self.refuse("local memory that is shorter than the peer's: post as many bytes as the segment has");
        };
        if cut.len() > self.send_queue.depth() {
            return self
                .refuse("more pieces than the queue has entries: write less at a time, or raise VerbsOptions::depth");
        }
        self.has_room(cut.len())?;
        let last = cut.len() - 1;
        for (number, (mut parts, to)) in cut.into_iter().enumerate() {
            let is_last = number == last;
            let (opcode, immediate) = match (reads, immediate) {
                (true, _) => (opcode::IBV_WR_RDMA_READ, 0),
                (false, Some(immediate)) if is_last => (opcode::IBV_WR_RDMA_WRITE_WITH_IMM, immediate),
                _ => (opcode::IBV_WR_RDMA_WRITE, 0),
            };
            let remote = (to.address, to.key);
            let request = Request { number: 0, opcode, parts: &mut parts, remote, immediate, inline: false };
            // SAFETY: `Endpoint::write` and `read` require that the memory stays until `Done` or `Flushed`; `Done` is reported when
            // the last part has completed, and parts complete in order.
            unsafe { self.post(Posted::Part { id, is_last, reads, to }, request) }?;
        }
        self.opening.sent();
        Ok(())
    }

    // ---- Completions ---------------------------------------------------------------------------------

    /// Takes what has completed.
    fn harvest(&mut self) {
        loop {
            let came = self.pair.as_ref().map(Pair::poll).unwrap_or_default();
            if came.is_empty() {
                break;
            }
            for completion in came {
                match completion.wr_id & RECEIVE {
                    0 => self.sent(&completion),
                    _ => self.received(&completion),
                }
            }
        }
        if let Some(why) = self.lifecycle.take_failure() {
            self.lose(why);
        }
        // Those for which there is no room wait.
        let _ = self.post_windows();
    }

    fn received(&mut self, completion: &ib::ibv_wc) {
        let slot = (completion.wr_id & !RECEIVE) as u32;
        if completion.status != status::IBV_WC_SUCCESS {
            self.receives.release(slot);
            return self.lifecycle.fail(completion.status, "message", None, self.domain.able().iwarp);
        }
        self.opening.received();
        let is_connected = self.lifecycle.is_connected();
        if completion.opcode == ib::ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM {
            self.receives.release(slot);
            // SAFETY: libibverbs fills this field of the union for this opcode.
            let immediate = u32::from_be(unsafe { completion.imm_data_invalidated_rkey_union.imm_data });
            if is_connected {
                self.completed(Completion::Immediate(immediate));
            }
        } else if is_connected {
            let length = (completion.byte_len as usize).min(MESSAGE);
            self.arrivals.push_back(Arrival::Message { slot, length });
        } else {
            self.receives.release(slot);
        }
    }

    /// Takes the end of a post, and reports it when all before it have ended. siw ends a message or a write when it has
    /// left, though a read before it is still on its way.
    fn sent(&mut self, completion: &ib::ibv_wc) {
        self.send_queue.complete(completion.wr_id, completion.status);
        let now = Instant::now();
        while let Some((posted, status)) = self.send_queue.pop_completed(now) {
            self.checks.completed(now);
            self.ended(posted, status);
        }
    }

    fn ended(&mut self, posted: Posted, said: status::Type) {
        let succeeded = said == status::IBV_WC_SUCCESS;
        let (name, mut to) = (posted.name(), None);
        match posted {
            Posted::Message(slot) => self.send_queue.release(slot),
            Posted::Part { id, is_last, reads, to: segment } => {
                if succeeded && reads {
                    self.opening.received();
                }
                to = Some(segment);
                if is_last {
                    self.completed(Completion::Done { id, succeeded });
                }
            }
            Posted::Probe | Posted::Bind => {}
            Posted::Invalidate(number) => {
                if succeeded && let Some(windows) = &self.windows {
                    windows.closed(number);
                }
            }
        }
        if !succeeded {
            self.lifecycle.fail(said, name, to, self.domain.able().iwarp);
        }
    }

    fn completed(&mut self, completion: Completion) {
        self.arrivals.push_back(Arrival::Completed(completion));
    }

    // ---- The end -------------------------------------------------------------------------------------

    /// Returns the reason for an end, if the device is gone.
    fn gone(&self) -> Option<VerbsEnd> {
        self.domain.is_gone().then(|| VerbsEnd::DeviceGone { device: self.domain.device().to_owned() })
    }

    /// Returns the reason for an end by an event of the connection manager.
    fn end_by(&self, event: &Event) -> Option<VerbsEnd> {
        match event.kind {
            kind::RDMA_CM_EVENT_DEVICE_REMOVAL => {
                self.domain.set_gone();
                Some(VerbsEnd::DeviceGone { device: self.domain.device().to_owned() })
            }
            kind::RDMA_CM_EVENT_DISCONNECTED => Some(VerbsEnd::Closed),
            _ => None,
        }
    }

    /// Takes the connection manager's events.
    fn take_manager_events(&mut self) {
        while let Some(event) = self.pair.as_ref().and_then(Pair::next_event) {
            let end = match (self.end_by(&event), event.kind) {
                (Some(end), _) => end,
                (
                    None,
                    kind::RDMA_CM_EVENT_CONNECT_ERROR | kind::RDMA_CM_EVENT_UNREACHABLE | kind::RDMA_CM_EVENT_REJECTED,
                ) => VerbsEnd::Closed,
                // That a port's address has changed, or that an old connection may be forgotten.
                _ => continue,
            };
            // Earlier messages come first.
            self.harvest();
            self.lose(end);
        }
    }

    /// Ends the connection at once.
    fn lose(&mut self, why: VerbsEnd) {
        if self.lifecycle.is_flushed() {
            return;
        }
        // The event that came with a flush says more than the flush.
        let why = match why {
            VerbsEnd::Broken { .. } => {
                let event = self.pair.as_ref().and_then(Pair::next_event);
                event.and_then(|event| self.end_by(&event)).unwrap_or(why)
            }
            why => why,
        };
        if self.lifecycle.close(why, Instant::now()) {
            self.completed(Completion::Lost);
        }
        self.end();
    }

    /// Destroys the queue pair, and reports the ends of all that was posted.
    fn end(&mut self) {
        if let Some(mut pair) = self.pair.take() {
            // First: some devices wait for windows that are bound when their queue pair goes.
            if let Some(windows) = &self.windows {
                windows.end();
            }
            pair.end();
            self.pair = Some(pair);
            self.lifecycle.flush();
            // The last completions; the end is known.
            self.harvest();
            self.lifecycle.take_failure();
            self.pair = None;
            if let Some(windows) = &self.windows {
                windows.release();
            }
        }
        self.lifecycle.flush();
        while let Some(posted) = self.send_queue.pop() {
            match posted {
                Posted::Part { id, is_last: true, .. } => self.completed(Completion::Done { id, succeeded: false }),
                Posted::Message(slot) => self.send_queue.release(slot),
                _ => {}
            }
        }
        self.completed(Completion::Flushed);
    }

    /// Ends a connection that this side closes, once what it posted has left or its time is over.
    fn finish_closing(&mut self) {
        if let Some(until) = self.lifecycle.closes_at()
            && (self.send_queue.is_empty() || until <= Instant::now())
        {
            self.end();
        }
    }

    /// Disconnects, and waits until that is done.
    fn close(&mut self) {
        self.disconnect();
        while !self.lifecycle.is_flushed() {
            self.harvest();
            self.finish_closing();
            // No caller polls them any more, and with them `wait` would not sleep.
            self.arrivals.clear();
            if !self.lifecycle.is_flushed() {
                self.wait(None);
            }
        }
    }

    // ---- Time ----------------------------------------------------------------------------------------

    fn probe_at(&self) -> Option<Instant> {
        self.opening.probe_at().filter(|_| self.lifecycle.is_connected())
    }

    fn stalls_at(&self) -> Option<Instant> {
        self.send_queue.stalls_at(self.domain.options().stall)
    }

    /// Returns when time alone changes something.
    fn acts_at(&self, now: Instant) -> Option<Instant> {
        let closes = self.lifecycle.closes_at();
        [self.probe_at(), self.stalls_at(), closes, self.opening.listens_until(now)].into_iter().flatten().min()
    }

    /// Takes the connection manager's events, and does what is due.
    fn tick(&mut self) {
        self.take_manager_events();
        let now = Instant::now();
        self.checks.done(now);
        if self.probe_at().is_some_and(|at| at <= now) {
            self.opening.probed(now);
            self.send_probe();
        }
        if self.stalls_at().is_some_and(|at| at <= now) {
            let (operation, after) = self.send_queue.first(now);
            self.lose(self.gone().unwrap_or(VerbsEnd::Stalled { operation, after }));
        }
    }
}

// SAFETY: `Done` is reported when the last part has completed: then the device does not use the local memory any more, and parts
// complete in order. `Flushed` is reported after `rdma_destroy_qp`, which waits until the device is at nothing by the queue pair,
// neither for this side nor for the peer.
unsafe impl Endpoint for VerbsEndpoint {
    type Domain = VerbsDomain;

    fn capabilities(&self) -> Capabilities {
        let able = self.domain.able();
        // Devices of iWARP fill the memory of a read as if the peer wrote it.
        let sink = if able.iwarp { Access::LOCAL_WRITE | Access::REMOTE_WRITE } else { Access::LOCAL_WRITE };
        Capabilities { gather: able.gather, immediate: !able.iwarp, sink }
    }

    fn now(&self) -> u64 {
        since_start(Instant::now())
    }

    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        // The message may carry their keys.
        self.post_windows()?;
        self.has_room(1)?;
        if message.len() > MESSAGE {
            return self
                .refuse(format!("a message of {} bytes is longer than {MESSAGE}: send it in parts", message.len()));
        }
        let inline = message.len() <= self.connected()?.inline;
        let (slot, at, key) = if inline {
            (None, message.as_ptr(), 0)
        } else {
            match self.send_queue.stage(message) {
                Ok(Some(Staged { slot, address, key })) => (Some(slot), address, key),
                Ok(None) => return Err(io::ErrorKind::WouldBlock.into()),
                Err(error) => {
                    self.lose(VerbsEnd::Local { operation: "message", what: "no memory can be registered for it" });
                    return Err(error);
                }
            }
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
        // SAFETY: the slot is released when the message has completed, and freed after the pair; inline, the call copies the bytes.
        unsafe { self.post(Posted::Message(slot), request) }?;
        self.opening.sent();
        Ok(())
    }

    fn receive(&mut self, more: u16) -> io::Result<()> {
        self.connected()?;
        match self.receives.post(self.pair.as_ref(), more) {
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
        if immediate.is_some() && self.domain.able().iwarp {
            return self.refuse("iWARP writes carry no immediate: send a message behind it");
        }
        // SAFETY: `Endpoint::write` and `read` require what `post_parts` does.
        unsafe { self.post_parts(id, from, to, false, immediate) }
    }

    unsafe fn read(&mut self, id: u64, into: &[Local<'_, MemoryRegion>], from: Segment) -> io::Result<()> {
        // SAFETY: `Endpoint::write` and `read` require what `post_parts` does.
        unsafe { self.post_parts(id, into, from, true, None) }
    }

    fn poll(&mut self, message: &mut [u8; MESSAGE]) -> Option<Completion> {
        if std::mem::take(&mut self.armed) {
            if let Some(pair) = &self.pair {
                pair.acknowledge();
            }
            self.tick();
        }
        // Also where there is always something to poll: nothing else tells that the device goes.
        if self.checks.polled() {
            self.tick();
        }
        if self.arrivals.is_empty() {
            self.harvest();
            self.finish_closing();
        }
        let arrival = self.arrivals.pop_front()?;
        Some(match arrival {
            Arrival::Completed(completion) => completion,
            Arrival::Message { slot, length } => {
                self.receives.take(slot, length, message);
                Completion::Message { length }
            }
        })
    }

    fn wait(&mut self, until: Option<u64>) {
        if self.lifecycle.is_flushed() || !self.arrivals.is_empty() {
            return;
        }
        let begun = Instant::now();
        let spin = self.domain.options().spin;
        let left = |now: Instant| until.map(|until| Duration::from_nanos(until.saturating_sub(since_start(now))));
        loop {
            self.harvest();
            let now = Instant::now();
            let is_over = left(now) == Some(Duration::ZERO);
            if !self.arrivals.is_empty() || is_over || now.saturating_duration_since(begun) >= spin {
                break;
            }
            if self.checks.polled() {
                self.tick();
                self.finish_closing();
            }
            // A device in software needs this processor.
            std::thread::yield_now();
        }
        let Some(pair) = &self.pair else { return };
        pair.arm();
        self.harvest();
        self.tick();
        self.finish_closing();
        let now = Instant::now();
        let own = self.acts_at(now).map(|at| at.saturating_duration_since(now));
        let time = left(now).into_iter().chain(own).min();
        if self.arrivals.is_empty()
            && let Some(pair) = &self.pair
        {
            // Where there is no room for what is wanted of windows, completions make some.
            let has_room = self.lifecycle.is_connected() && self.send_queue.has_room(1) && !self.opening.is_listening();
            pair.sleep(self.windows.as_ref().filter(|_| has_room).map(Windows::file), time);
            self.harvest();
            self.tick();
            self.finish_closing();
        }
    }

    fn attach(&mut self, bell: &Bell) -> io::Result<()> {
        let pair = self.connected()?;
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
            self.finish_closing();
        }
        if !self.arrivals.is_empty() {
            return Armed::News;
        }
        Armed::Quiet { until: self.acts_at(Instant::now()).map(since_start) }
    }

    fn disconnect(&mut self) {
        if !self.lifecycle.is_connected() {
            return;
        }
        // A child that was forked has a copy, and may not look at the device.
        if !self.domain.is_here() {
            (self.pair, self.windows) = (None, None);
            self.lifecycle.flush();
            (self.armed, self.checks) = (false, Checks::new());
            self.arrivals = [Completion::Lost, Completion::Flushed].map(Arrival::Completed).into();
            return;
        }
        // Messages that have come are reported first.
        self.harvest();
        let until = Instant::now() + self.domain.options().linger;
        if self.lifecycle.is_connected() && self.lifecycle.close(VerbsEnd::Disconnected, until) {
            self.completed(Completion::Lost);
            self.finish_closing();
        }
    }
}

impl Drop for VerbsEndpoint {
    /// A child that was forked has a copy of this, and the parent's connection is none of its business.
    fn drop(&mut self) {
        if self.domain.is_here() {
            self.close();
        }
    }
}

impl fmt::Debug for VerbsEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerbsEndpoint")
            .field("peer", &self.peer)
            .field("state", &self.lifecycle.state())
            .field("why", &self.why())
            .finish_non_exhaustive()
    }
}
