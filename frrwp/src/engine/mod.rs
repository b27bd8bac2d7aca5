//! Handshake, cache and fabric tied together: transfers between buffers of two processes.
//!
//! An [`Engine`] is one end of one connection. It takes leases of the buffers from an [`mrrc::Cache`], and offers the peer
//! what is registered already while it registers the rest. It writes when the keys have met, and drops leases when the
//! [handshake](crate::handshake) says so. It does nothing by itself: [`Engine::progress`] does what can be done now, and
//! [`Engine::next_event`] returns the results.
//!
//! ```text
//! application ─► open_*, accept_* ─► lease: what is ready, then the gaps ─► handshake
//!                                                                     actions, then messages │
//!             next_event ◄────────── handshake ◄── completions, messages ◄── fabric ◄───────────┘
//! ```
//!
//! # What overlaps what
//!
//! Registering blocks, in the thread that calls: there is no thread here. Each side does so in its own process, after it
//! has sent what it can. So the two registrations and the first writes overlap all the same. Ready parts are written, or
//! offered, before the rest is registered; keys that come while this side registers are used when it has. So a writer that
//! opens with part of its buffer registered does not write that part while it registers the rest. Its transfer ends later
//! by the time of the first part on the network, at most. (One that answers a read does, if the keys came with the
//! request.) Nor does anything else move on this connection meanwhile. Connections that must not wait for each other's
//! registrations are driven by different threads.
//!
//! # Three faces
//!
//! * *Blocking*: [`Engine::run`] waits until something happened, [`Engine::finish`] until a given transfer ended.
//! * *Completion queue*: [`Engine::progress`], then [`Engine::next_event`] until it returns `None`; of many connections, with one
//!   descriptor to wait for, [`queue::CompletionQueue::next_event`].
//! * *Futures*: [`future::Connection`] owns the buffers and needs no runtime.
//!
//! A first program, over the simulated network, where one thread plays both sides. Only the lines that connect are different
//! elsewhere, and that there each side is a process of its own.
//!
//! ```
//! use frrwp::engine::{Engine, Event};
//! use frrwp::fabric::sim::{Costs, Faults, Network};
//! use frrwp::handshake::{Limits, RECEIVES, Side};
//! use mrrc::Cache;
//! use mrrc::invalidation::Explicit;
//!
//! let network = Network::new(1, Costs::default(), Faults::default());
//! let nodes = [network.node(), network.node()];
//! // Nothing is unmapped here behind the caches' back: no monitor has to look out for that.
//! let cache = |node: usize| Cache::builder(nodes[node].domain()).monitor(Explicit).build();
//! let caches = [cache(0)?, cache(1)?];
//! let (source, mut sink) = (vec![7_u8; 100_000], vec![0_u8; 100_000]);
//!
//! let [one, other] = network.connect(&nodes[0], &nodes[1], RECEIVES);
//! let mut client = Engine::new(&caches[0], one, Side::Connecting, Limits::default());
//! let mut server = Engine::new(&caches[1], other, Side::Accepting, Limits::default());
//! // Both buffers live until the transfer has ended, and have no other user meanwhile.
//! let tag = unsafe { client.open_write(source.as_ptr(), source.len(), b"a key") }?;
//!
//! // Blocking: the server waits for a question, and answers it.
//! let Some(Event::Requested { tag: asked, .. }) = server.run() else { panic!("a write was opened") };
//! assert_eq!((asked, server.header(asked)), (tag, Some(&b"a key"[..])));
//! unsafe { server.accept_write(asked, sink.as_mut_ptr(), sink.len()) }?;
//! assert_eq!(client.finish(tag)?, 100_000);
//!
//! // Completion queue: what can be done is done, and then there are events or none.
//! loop {
//!     server.progress();
//!     match server.next_event() {
//!         Some(Event::Completed { result, .. }) => break assert_eq!(result?, 100_000),
//!         Some(other) => panic!("{other:?}"),
//!         None => assert!(network.step(u64::MAX), "more is on its way"),
//!     }
//! }
//! drop((client, server));
//! assert_eq!(source, sink);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Beside the transfers
//!
//! * [`Engine::send_message`] sends a message to the peer's application, which takes it by [`Engine::recv_message`]. In one order with the
//!   transfers: what is said before a transfer is answered is there before its end is told. Messages that are not taken hold the peer
//!   back, which has [no room](crate::handshake::SendError::Full) then to send more; transfers go on.
//! * [`Engine::read_remote`] reads memory of the peer's into a buffer, by a key that the peer's application has said. The peer's
//!   application is not asked, nor woken. [`Engine::write_remote`] writes there.
//!
//! # The contract about memory
//!
//! An application that opens or answers a transfer lends its memory to the engine, to the device, and, at the target, to the peer.
//! It is lent until the end of the transfer is [told](Event::Completed), or [of the read](Event::ReadCompleted), not only until it
//! is cancelled or the call returns:
//!
//! * it stays allocated, and has no other user meanwhile: a writer's is not written, a target's not even read;
//! * it holds what [`Cache::acquire`] asks for, also about what happens to the memory later.
//!
//! A transfer that ended as [quarantined](TransferError::Quarantined) is the exception: its memory stays lent until the peer's
//! process is dead.
//!
//! An engine that is dropped takes its connection down and waits until that is flushed. After the drop all memory is back,
//! except what the provider reports as held (`ShmBuffer::is_quarantined`). One that is forgotten never gives it back. The
//! leases are the engine's: no safe call ends one early. A key of a cached region is valid as long as the region is
//! registered and the connection stands. A peer can use it for bytes that were not offered. See [the crate](crate) on peers
//! that are not trusted.
#![expect(unsafe_code, reason = "buffers of the application are registered and posted by address")]

mod events;
pub mod future;
mod messages;
pub mod queue;
mod remote_reads;
mod send_queue;
mod transfers;

use crate::fabric::poller::Bell;
use crate::fabric::{Armed, Completion, Endpoint};
use crate::handshake::{Action, Disconnect, Failure, Handshake, Limits, Refusal, SendError, Side, Tag};
use crate::wire::{Reason, Segment};
use events::Events;
pub use events::{Event, OpenError, TransferError};
use messages::Messages;
use mrrc::{Access, Cache, Lease};
use remote_reads::RemoteReads;
pub use send_queue::{PIECE, PIECES};
use send_queue::{SendQueue, Sent};
use std::fmt;
use std::io;
use transfers::{Buffer, Transfers};

/// One end of a connection on which transfers run.
///
/// Each part owns its fields, and has the operations on them; the engine calls them in the one order of the connection. The handshake
/// is lent to the parts that tell it something.
pub struct Engine<'cache, E: Endpoint> {
    handshake: Handshake,
    /// Dropped before the leases of those below.
    queue: SendQueue<E>,
    transfers: Transfers<'cache, E::Domain>,
    reads: RemoteReads<'cache, E::Domain>,
    messages: Messages,
    events: Events,
    /// Rings when there may be something to do, where one thread sleeps for many connections.
    bell: Option<Bell>,
}

/// Completions that one [`Engine::progress`] answers before it falls silent, and soon comes to its end.
const AT_ONCE: u32 = 256;

/// The rights of a target's buffer.
const TARGET: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE);

impl<'cache, E: Endpoint> Engine<'cache, E> {
    /// Makes an engine on a connection at which as many receives as the [limits](Limits::receives) say are posted: the number that
    /// the endpoint was connected with. Immediates are used where the limits [ask](Limits::immediate) for them and the fabric has
    /// them.
    pub fn new(cache: &'cache Cache<E::Domain>, endpoint: E, side: Side, limits: Limits) -> Self {
        let capabilities = endpoint.capabilities();
        let limits = Limits { immediate: limits.immediate && capabilities.immediate, ..limits };
        Self {
            handshake: Handshake::new(side, limits),
            queue: SendQueue::new(endpoint),
            transfers: Transfers::new(cache, limits.process),
            reads: RemoteReads::new(cache, limits, capabilities),
            messages: Messages::new(limits.send_time),
            events: Events::default(),
            bell: None,
        }
    }

    /// Opens a transfer of this memory to the peer.
    ///
    /// # Errors
    /// [`Refusal`], and in the traditional process the cache's error: it registers first.
    ///
    /// # Safety
    /// The [contract about memory](self#the-contract-about-memory).
    pub unsafe fn open_write(&mut self, memory: *const u8, length: usize, header: &[u8]) -> Result<Tag, OpenError> {
        // SAFETY: `open` requires the contract about memory, which the caller promises.
        unsafe { self.open(memory.cast_mut(), length, header, false) }
    }

    /// Asks the peer for bytes into this memory, as many as it holds at most.
    ///
    /// # Errors
    /// As [`Engine::open_write`].
    ///
    /// # Safety
    /// As [`Engine::open_write`].
    pub unsafe fn open_read(&mut self, memory: *mut u8, length: usize, header: &[u8]) -> Result<Tag, OpenError> {
        // SAFETY: `open` requires the contract about memory, which the caller promises.
        unsafe { self.open(memory, length, header, true) }
    }

    /// Opens a transfer of this memory to the peer of each engine. All peers are asked before the memory is registered here, so all
    /// register at once. The answers are in the order of the engines.
    ///
    /// Engines of one cache register the memory once. Each transfer ends by itself, and the memory is lent until the last has ended.
    ///
    /// # Errors
    /// As [`Engine::open_write`]. An engine that refuses keeps no other from its transfer.
    ///
    /// # Safety
    /// As [`Engine::open_write`].
    pub unsafe fn open_writes(
        engines: &mut [Self],
        memory: *const u8,
        length: usize,
        header: &[u8],
    ) -> Vec<Result<Tag, OpenError>> {
        let ask = |engine: &mut Self| {
            // SAFETY: `Transfers::prepare` requires the contract about memory, which the caller promises.
            let buffer = unsafe { engine.transfers.prepare(memory.cast_mut(), length, Access::LOCAL_READ) }?;
            let tag = engine.handshake.write(engine.queue.now(), length as u64, header)?;
            engine.drive();
            Ok((tag, buffer))
        };
        let asked: Vec<Result<_, OpenError>> = engines.iter_mut().map(ask).collect();
        let lend = |(engine, asked): (&mut Self, Result<_, _>)| {
            let (tag, buffer) = asked?;
            engine.answer(tag, buffer);
            Ok(tag)
        };
        engines.iter_mut().zip(asked).map(lend).collect()
    }

    /// # Safety
    /// As [`Engine::open_write`].
    unsafe fn open(&mut self, memory: *mut u8, length: usize, header: &[u8], read: bool) -> Result<Tag, OpenError> {
        let access = if read { TARGET } else { Access::LOCAL_READ };
        // SAFETY: `Transfers::prepare` requires the contract about memory, which the caller promises.
        let buffer = unsafe { self.transfers.prepare(memory, length, access) }?;
        let now = self.queue.now();
        let tag = match read {
            true => self.handshake.read(now, length as u64, header),
            false => self.handshake.write(now, length as u64, header),
        }?;
        self.register(tag, buffer);
        self.drive();
        Ok(tag)
    }

    /// Takes what the peer writes into this memory.
    ///
    /// # Errors
    /// [`Refusal`].
    ///
    /// # Safety
    /// As [`Engine::open_write`].
    pub unsafe fn accept_write(&mut self, tag: Tag, memory: *mut u8, length: usize) -> Result<(), Refusal> {
        let announced = self.handshake.length(tag).ok_or(Refusal::NotOpen { tag })?;
        self.handshake.accept(self.queue.now(), tag, length as u64)?;
        // No more than was announced is registered.
        let length = length.min(usize::try_from(announced).unwrap_or(usize::MAX));
        // SAFETY: `Buffer::new` requires the contract about memory, which the caller promises.
        self.answer(tag, unsafe { Buffer::new(memory, length, TARGET) });
        Ok(())
    }

    /// Gives the peer the bytes of this memory.
    ///
    /// # Errors
    /// [`Refusal`].
    ///
    /// # Safety
    /// As [`Engine::open_write`].
    pub unsafe fn accept_read(&mut self, tag: Tag, memory: *const u8, length: usize) -> Result<(), Refusal> {
        self.handshake.crw(self.queue.now(), tag, length as u64)?;
        // SAFETY: `Buffer::new` requires the contract about memory, which the caller promises.
        self.answer(tag, unsafe { Buffer::new(memory.cast_mut(), length, Access::LOCAL_READ) });
        Ok(())
    }

    /// Lends the buffer to a transfer that was asked for, unless that has ended, as it does where the buffer does not fit.
    fn answer(&mut self, tag: Tag, buffer: Buffer<'cache, E::Domain>) {
        if self.handshake.length(tag).is_some() {
            self.register(tag, buffer);
        }
        self.drive();
    }

    /// Registers the buffer of a transfer. What is ready leaves before the rest is registered: the peer can register while this side
    /// does.
    fn register(&mut self, tag: Tag, buffer: Buffer<'cache, E::Domain>) {
        if let Some(told) = self.transfers.begin(tag, buffer, &mut self.handshake, || self.queue.now()) {
            self.drive();
            self.transfers.finish(tag, &told, &mut self.handshake, || self.queue.now());
        }
    }

    /// Refuses what the peer asks for.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn refuse(&mut self, tag: Tag) -> Result<(), Refusal> {
        self.handshake.fail(self.queue.now(), tag, Reason::Refused)?;
        self.drive();
        Ok(())
    }

    /// Gives a transfer up. It ends as cancelled, unless all was written already.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn cancel(&mut self, tag: Tag) -> Result<(), Refusal> {
        self.handshake.cancel(self.queue.now(), tag)?;
        self.drive();
        Ok(())
    }

    /// Gives a transfer up at this time, on the clock of [`Endpoint::now`], if it has not ended then. It ends as timed out,
    /// otherwise as by [`Engine::cancel`]; [`Event::Expired`] reports an end that takes longer. Returns false if it has
    /// ended.
    pub fn set_transfer_deadline(&mut self, tag: Tag, over: u64) -> bool {
        self.handshake.set_deadline(tag, over).is_ok()
    }

    /// Posts the write of a transfer in the traditional process: the application has seen the keys.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn submit(&mut self, tag: Tag) -> Result<(), Refusal> {
        self.handshake.submit(self.queue.now(), tag)?;
        self.drive();
        Ok(())
    }

    /// Returns the header that the peer's application opened the transfer with.
    pub fn header(&self, tag: Tag) -> Option<&[u8]> {
        self.handshake.header(tag)
    }

    /// Returns how many transfers have a buffer that the engine holds.
    pub fn open_transfers(&self) -> usize {
        self.handshake.open_transfers()
    }

    /// Sends a message to the peer's application, of at most [`MAX_FRAME_PAYLOAD`](crate::wire::MAX_FRAME_PAYLOAD) bytes.
    /// Messages come in the order in which they are sent, and before the end of each transfer that is answered afterwards.
    /// If the peer owes credits or the fabric is full, [`Engine::progress`] sends it, before what was waiting already. At
    /// most [`PIECES`] pieces of writes go before it.
    ///
    /// # Errors
    /// [`SendError`]. Where there is [no room](SendError::Full), because the peer's application does not take what was sent before,
    /// [`Event::Writable`] says when to try again.
    pub fn send_message(&mut self, bytes: &[u8]) -> Result<(), SendError> {
        // Transfers opened before are heard of before, where possible.
        if !self.handshake.may_send() {
            self.drive();
        }
        self.messages.send(bytes, &mut self.handshake, &mut self.queue)
    }

    /// Returns how many messages were sent here: the number of the last.
    pub fn messages(&self) -> u64 {
        self.messages.number()
    }

    /// Takes a message back that waits to be sent. Returns false if it was sent: then the peer receives it.
    pub fn cancel_message(&mut self, number: u64) -> bool {
        self.messages.cancel(number)
    }

    /// Sets when the time of a message that waits to be sent is over, on the clock of [`Endpoint::now`], in the place of the
    /// [limits'](crate::handshake::Limits::send_time). Returns false if it was sent, or taken back.
    pub fn set_message_deadline(&mut self, number: u64, over: u64) -> bool {
        self.messages.set_deadline(number, over)
    }

    /// Returns whether that message waits to be sent.
    fn message_waits(&self, number: u64) -> bool {
        self.messages.waits(number)
    }

    /// Returns whether that message waited when nothing could be sent any more: it is never sent.
    fn message_is_void(&self, number: u64) -> bool {
        self.messages.is_void(number)
    }

    /// Returns why a message of so many bytes can never be sent.
    fn may_ever_send(&self, length: usize) -> Result<(), SendError> {
        self.handshake.may_ever_send(length)
    }

    /// Takes the oldest message of the peer's application: `into` is emptied and kept for messages to come, and the message is there
    /// in its stead. Returns false, and does nothing, where there is none.
    pub fn recv_message(&mut self, into: &mut Vec<u8>) -> bool {
        if !self.messages.take(into, &mut self.events) {
            return false;
        }
        self.queue.repost();
        self.handshake.message_taken();
        // The caller may go to sleep now, and the peer wait for room.
        if self.handshake.has_to_send() {
            self.drive();
        }
        true
    }

    /// Reads the peer's memory into this, `from.length` bytes, and names the read: [`Event::ReadCompleted`] tells its end. The
    /// buffer is registered by the cache, with the rights that the [fabric needs](crate::fabric::Capabilities::sink), until then. A
    /// segment that the peer does not let this side read ends the connection.
    ///
    /// # Errors
    /// [`OpenError`]. Where the fabric is [busy](OpenError::Busy), [`Event::Writable`] says when to try again.
    ///
    /// # Safety
    /// The [contract about memory](self#the-contract-about-memory).
    #[inline]
    pub unsafe fn read_remote(&mut self, memory: *mut u8, length: usize, from: Segment) -> Result<u64, OpenError> {
        self.may_read()?;
        // SAFETY: `RemoteReads::post` requires the contract about memory, which the caller promises.
        unsafe { self.reads.post::<false, _>(&mut self.queue, memory, length, from, &mut self.events) }
    }

    /// Writes this memory into the peer's, `to.length` bytes, and names the write: [`Event::WriteCompleted`] tells its end, and how much
    /// that means. It is in one order with the one-sided reads, and counts among them. The buffer is registered by the cache until its
    /// end. A segment that the peer does not let this side write ends the connection.
    ///
    /// # Errors
    /// As [`Engine::read_remote`].
    ///
    /// # Safety
    /// The [contract about memory](self#the-contract-about-memory).
    pub unsafe fn write_remote(&mut self, memory: *const u8, length: usize, to: Segment) -> Result<u64, OpenError> {
        self.may_read()?;
        // SAFETY: `RemoteReads::post` requires the contract about memory, which the caller promises. A write does not change it.
        unsafe { self.reads.post::<true, _>(&mut self.queue, memory.cast_mut(), length, to, &mut self.events) }
    }

    /// Reads into memory of which the caller holds a lease, with the rights that the [fabric
    /// needs](crate::fabric::Capabilities::sink). Otherwise as [`Engine::read_remote`]; it saves the look into the cache.
    ///
    /// # Errors
    /// As [`Engine::read_remote`], and where the lease does not cover the memory.
    ///
    /// # Safety
    /// As [`Engine::read_remote`]; and the lease is held until the end of the read is reported, or the engine is
    /// dropped.
    #[inline]
    pub unsafe fn read_remote_leased(
        &mut self,
        lease: &Lease<E::Domain>,
        memory: *mut u8,
        from: Segment,
    ) -> Result<u64, OpenError> {
        self.may_read()?;
        // SAFETY: `RemoteReads::post_leased` requires the contract about memory, and a lease that is held until the end of the read is
        // told. The caller promises both.
        unsafe { self.reads.post_leased(&mut self.queue, lease, memory, from, &mut self.events) }
    }

    /// Reads `from.length` bytes of the peer's memory into this, and returns whether they were read. `None`: the [fabric
    /// cannot](Endpoint::read_now) read at once. There is no event of it. Reads that follow each other are carried out in
    /// that order. A later one sees all changes that the peer made before one that an earlier read has seen.
    ///
    /// # Errors
    /// As [`Engine::read_remote`].
    ///
    /// # Safety
    /// The memory may be written, and nothing else uses it, until this returns.
    #[inline]
    pub unsafe fn read_remote_now(
        &mut self,
        memory: *mut u8,
        length: usize,
        from: Segment,
    ) -> Result<Option<bool>, OpenError> {
        self.may_read()?;
        // SAFETY: `RemoteReads::read_now` requires what this function requires of its caller.
        unsafe { self.reads.read_now(&mut self.queue, memory, length, from) }
    }

    #[inline]
    fn may_read(&self) -> Result<(), OpenError> {
        if self.handshake.stands() { Ok(()) } else { Err(Refusal::Disconnected.into()) }
    }

    /// Gives a one-sided read up: no more of it is posted. Its buffer is the application's again when [`Event::ReadCompleted`] tells so,
    /// as what was posted cannot be recalled. Returns false if it has ended, or was given up before.
    pub fn cancel_read(&mut self, id: u64) -> bool {
        self.reads.cancel(id, &mut self.events)
    }

    /// Sets when the time of a one-sided read is over, on the clock of [`Endpoint::now`], in the place of the
    /// [limits'](crate::handshake::Limits::read_time). Returns false if it has ended, or was given up.
    pub fn set_read_deadline(&mut self, id: u64, over: u64) -> bool {
        self.reads.set_deadline(id, over, self.queue.now())
    }

    /// Returns how many one-sided reads are under way.
    pub fn open_reads(&self) -> usize {
        self.reads.len()
    }

    /// Returns how many one-sided reads were given up while the fabric may still be at their buffers. They count among those that are
    /// [under way](Engine::open_reads), of which there are never more than the [limit](crate::handshake::Limits::reads).
    pub fn quarantined_reads(&self) -> usize {
        self.reads.quarantined()
    }

    /// Returns the next event, or None if there is none.
    #[inline]
    pub fn next_event(&mut self) -> Option<Event> {
        let event = self.events.pop();
        if let Some(Event::Message) = event {
            self.messages.told();
        }
        event
    }

    /// Returns whether [`Engine::next_event`] has something to tell.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Does what can be done now. If the fabric carries out writes at once, it posts only some of those that wait, so that
    /// the application can send something in between. [`Engine::wait`] does not sleep then.
    pub fn progress(&mut self) {
        self.queue.refresh();
        let mut came = 0;
        while let Some(completion) = self.queue.poll() {
            // The shortest path is that of a one-sided read.
            if let Completion::Done { id, succeeded } = completion
                && self.reads.complete(id, succeeded, &mut self.events)
            {
                continue;
            }
            if !self.take(completion) {
                continue;
            }
            came += 1;
            // A peer that answers each answer would keep the caller here: it runs out of receives when it hears of no more.
            if came < AT_ONCE {
                self.drive();
            } else {
                self.carry_out();
            }
        }
        // The clock is asked only where something waits for it.
        if self.next_known_deadline().is_some() || self.reads.has_new() {
            self.expire(self.queue.now());
        }
        // Posts of now are on their way while the application has its turn.
        self.queue.refresh();
        self.drive();
        if self.messages.was_refused() || self.reads.was_refused() {
            self.announce_room();
        }
    }

    /// Takes a completion, but of a one-sided read. Returns whether to act on it at once. The end of a part of a write only
    /// makes room for further parts, which leave together when all completions are taken.
    fn take(&mut self, completion: Completion) -> bool {
        match completion {
            Completion::Message { length } => {
                match self.handshake.received(self.queue.now(), self.queue.message(length)) {
                    Some(message) => {
                        self.messages.receive(message);
                        self.events.push(Event::Message);
                    }
                    // Its receive is there again before it is answered.
                    None => self.queue.repost(),
                }
            }
            Completion::Immediate(immediate) => {
                self.queue.repost();
                self.handshake.received_immediate(self.queue.now(), immediate);
            }
            Completion::Done { id, succeeded } => {
                let Some((tag, succeeded)) = self.queue.complete(id, succeeded) else { return false };
                self.handshake.written(tag, succeeded);
            }
            Completion::Lost => self.handshake.lost(),
            Completion::Flushed => {
                self.handshake.flushed();
                self.drive();
                self.reads.flush(&mut self.events);
                self.queue.close();
                self.events.push(Event::Closed { why: self.queue.why() });
            }
        }
        true
    }

    /// Carries out what the handshake wants: actions, then messages, in the one order of the connection. The DONE that speaks of writes
    /// is not taken from the handshake before they have left the queue.
    fn drive(&mut self) {
        // A message of the application's has the next credit.
        if !self.carry_out() || self.messages.any_waits() || !self.handshake.has_to_send() {
            return;
        }
        let now = self.queue.now();
        let Self { handshake, queue, transfers, .. } = self;
        // A message that finds the queue full waits in it, and nothing is taken before it has left.
        while queue.send(|into| handshake.take_message_where(now, into, |tag| transfers.all_posted(tag)))
            == Sent::Posted
        {}
    }

    /// Carries out the actions that the handshake wants, sends the messages that wait, then posts reads and writes, as many as may be.
    /// Returns false if the fabric takes no message.
    fn carry_out(&mut self) -> bool {
        while let Some(action) = self.handshake.next_action() {
            self.act(action);
        }
        self.reads.post_waiting(&mut self.queue);
        if !self.queue.send_unsent() {
            return false;
        }
        let Self { handshake, queue, transfers, messages, .. } = self;
        let sends = messages.send_waiting(handshake, queue, |tag| transfers.all_posted(tag));
        queue.post(handshake, transfers, messages.waits_since());
        sends
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Requested { tag, read, length } => self.events.push(Event::Requested { tag, read, length }),
            Action::KeysCame { tag } => self.events.push(Event::KeysCame { tag }),
            Action::Write { tag, remote, offset, immediate } => {
                self.transfers.write_queued(tag);
                self.queue.queue(tag, remote, offset, immediate);
            }
            Action::Completed { tag, result } => self.transfers.complete(tag, result),
            // The application need not know of a request that it has not seen: else a peer that opens and takes back piles up events
            // before an application that looks at none.
            Action::Release { tag } if self.transfers.buffer(tag).is_none() && self.events.take_back_request(tag) => {
                self.transfers.forget(tag);
            }
            Action::Release { tag } => {
                let result = self.transfers.end(tag);
                self.events.push(Event::Completed { tag, result });
            }
            Action::PeerTooOld { spoken } => self.events.push(Event::PeerTooOld { spoken }),
            Action::Disconnect { why } => self.queue.disconnect(Some(why)),
        }
    }

    /// Tells the application that there is room for what was refused, when there is.
    #[cold]
    fn announce_room(&mut self) {
        let to_send = self.messages.regains_room(&self.handshake, &self.queue);
        let to_read = self.reads.regains_room();
        if to_send || to_read {
            self.events.push(Event::Writable);
        }
    }

    /// Gives up what has waited too long.
    fn expire(&mut self, now: u64) {
        self.handshake.expire(now);
        while let Some(expired) = self.handshake.next_expired() {
            self.events.push(Event::Expired(expired));
        }
        if !self.reads.is_empty() && !self.queue.is_closed() && !self.reads.expire(now, &mut self.events) {
            self.queue.disconnect(self.queue.why().or(Some(Disconnect::ReadFailed)));
        }
        self.messages.expire(now, &mut self.events);
    }

    /// Holds back what is opened, from `true` on, until this is called with `false` or the engine waits, so that it leaves
    /// together: see [`Endpoint::cork`].
    pub fn cork(&mut self, corked: bool) {
        self.queue.cork(corked);
    }

    /// Sleeps until [`Engine::progress`] may have something to do.
    pub fn wait(&mut self) {
        self.wait_until(None);
    }

    /// Sleeps as [`Engine::wait`] does, for so many nanoseconds at most.
    pub fn wait_at_most(&mut self, longest: u64) {
        self.wait_until(Some(self.queue.now().saturating_add(longest)));
    }

    /// Sleeps as [`Engine::wait`] does, until this time at most.
    fn wait_until(&mut self, until: Option<u64>) {
        if !self.queue.is_closed() && self.events.is_empty() {
            self.sleep(until);
        }
    }

    fn sleep(&mut self, until: Option<u64>) {
        if self.reads.has_new() {
            self.reads.begin_to_wait(self.queue.now());
        }
        self.queue.wait(self.next_known_deadline().into_iter().chain(until).min());
    }

    /// Has this bell ring when [`Engine::progress`] may have something to do, from now on and after each [`Engine::arm`].
    /// So one thread sleeps for many connections. A [`CompletionQueue`](queue::CompletionQueue) does this for its engines.
    ///
    /// # Errors
    /// As [`Endpoint::attach`].
    pub fn attach(&mut self, bell: &Bell) -> io::Result<()> {
        self.queue.attach(bell)?;
        bell.ring();
        self.bell = Some(bell.clone());
        Ok(())
    }

    /// Has the bell ring when there is something to do next, also because a time is over. To be called when there are no more
    /// events, and before this side waits for the bell.
    pub fn arm(&mut self) {
        self.arm_until(None);
    }

    /// Has the bell ring as [`Engine::arm`] does, and at this time.
    fn arm_until(&mut self, more: Option<u64>) {
        let Some(bell) = &self.bell else { return };
        if !self.events.is_empty() {
            return bell.ring();
        }
        if self.queue.is_closed() {
            return bell.ring_at(None, 0);
        }
        if self.reads.has_new() {
            self.reads.begin_to_wait(self.queue.now());
        }
        match self.queue.arm() {
            Armed::News => bell.ring(),
            Armed::Quiet { until } => {
                let time = self.next_known_deadline().into_iter().chain(until).chain(more).min();
                let now = if time.is_some() { self.queue.now() } else { 0 };
                bell.ring_at(time, now);
            }
        }
    }

    fn next_known_deadline(&self) -> Option<u64> {
        let deadlines = [self.handshake.next_deadline(), self.reads.next_deadline(), self.messages.next_deadline()];
        deadlines.into_iter().flatten().min()
    }

    /// Returns when [`Engine::progress`] has something to do though nothing comes.
    pub fn next_deadline(&self) -> Option<u64> {
        // A read that was just posted begins to wait at the next progress.
        let new = self.reads.has_new().then(|| self.queue.now());
        self.next_known_deadline().into_iter().chain(new).min()
    }

    /// Waits for the end of a transfer. Other events are kept meanwhile for [`Engine::next_event`]: the peer's requests are
    /// not answered before the caller does so.
    ///
    /// # Errors
    /// Returns the transfer's result; a transfer with a reported end, or one that never was, is
    /// [unknown](Reason::UnknownTag).
    pub fn finish(&mut self, tag: Tag) -> Result<u64, TransferError> {
        loop {
            self.progress();
            if let Some(result) = self.events.take_end(tag) {
                return result;
            }
            if self.handshake.length(tag).is_none() {
                return Err(TransferError::Failed { tag, failure: Failure::Here(Reason::UnknownTag) });
            }
            self.sleep(None);
        }
    }

    /// Waits for the next event, and returns it; None once the connection has come to its end.
    pub fn run(&mut self) -> Option<Event> {
        loop {
            self.progress();
            if let Some(event) = self.next_event() {
                return Some(event);
            }
            if self.queue.is_closed() {
                return None;
            }
            self.sleep(None);
        }
    }

    /// Returns the connection's end, to look at. Posting and polling are the engine's.
    pub fn endpoint(&self) -> &E {
        self.queue.endpoint()
    }

    /// Returns what was counted so far.
    pub fn counters(&self) -> crate::handshake::Counters {
        self.handshake.counters()
    }

    /// Ends the connection; go on with [`Engine::run`] until it is [closed](Event::Closed).
    pub fn disconnect(&mut self) {
        self.queue.disconnect(None);
    }
}

impl<E: Endpoint> fmt::Debug for Engine<'_, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("open_transfers", &self.handshake.open_transfers())
            .field("events", &self.events)
            .field("closed", &self.queue.is_closed())
            .field("why", &self.queue.why())
            .finish_non_exhaustive()
    }
}

impl<E: Endpoint> Drop for Engine<'_, E> {
    /// Takes the connection down first, as leases outlive nothing that may still be written.
    fn drop(&mut self) {
        self.queue.disconnect(None);
        if !self.transfers.is_empty() || !self.reads.is_empty() {
            self.queue.flush();
        }
    }
}
