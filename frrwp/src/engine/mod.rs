//! Handshake, cache and fabric tied together: transfers between buffers of two processes.
//!
//! An [`Engine`] is one end of one connection. It takes leases of the buffers from an [`mrrc::Cache`], tells the peer what
//! is registered already while it registers the rest, writes when the keys have met, and lets leases go when the
//! [handshake](crate::handshake) says so. It does nothing by itself: [`Engine::progress`] does what can be done now, and
//! [`Engine::next_event`] tells what became of it.
//!
//! ```text
//! application ─► write, read, accept, supply ─► lease: what is ready, then the gaps ─► handshake
//!                                                                     actions, then messages │
//!             next_event ◄────────── handshake ◄── completions, messages ◄── fabric ◄───────────┘
//! ```
//!
//! # What overlaps what
//!
//! Registering blocks, and whoever calls does it: there is no thread here. Each side does so in its own process, after it has
//! said what it can, so the two registrations and the first writes overlap all the same. What is ready is written, or offered,
//! before the rest is registered; keys that come while this side registers are used when it has. So a writer that opens with
//! part of its buffer registered does not write that part while it registers the rest, though its peer has sent the keys:
//! its transfer ends later by what the first part takes on the network, at most. (One that supplies does, where the keys came
//! with the question.) Nor does anything else move on this connection meanwhile; connections that must not wait for each
//! other's registrations are driven by different threads.
//!
//! # Three faces
//!
//! * *Blocking*: [`Engine::run`] waits until something happened, [`Engine::finish`] until a given transfer ended.
//! * *Completion queue*: [`Engine::progress`], then [`Engine::next_event`] until it returns `None`; of many connections, with one
//!   descriptor to wait for, [`queue::CompletionQueue::next_event`].
//! * *Futures*: [`future::Transfers`] owns the buffers and needs no runtime.
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
//! // Both buffers live until the transfer has ended, and nobody else uses them meanwhile.
//! let tag = unsafe { client.write(source.as_ptr(), source.len(), b"a key") }?;
//!
//! // Blocking: the server waits for a question, and answers it.
//! let Some(Event::Asked { tag: asked, .. }) = server.run() else { panic!("a write was opened") };
//! assert_eq!((asked, server.header(asked)), (tag, Some(&b"a key"[..])));
//! unsafe { server.accept(asked, sink.as_mut_ptr(), sink.len()) }?;
//! assert_eq!(client.finish(tag)?, 100_000);
//!
//! // Completion queue: what can be done is done, and then there are events or none.
//! loop {
//!     server.progress();
//!     match server.next_event() {
//!         Some(Event::Ended { result, .. }) => break assert_eq!(result?, 100_000),
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
//! * [`Engine::say`] sends a message to the peer's application, which takes it by [`Engine::heard`]. In one order with the
//!   transfers: what is said before a transfer is answered is there before its end is told. What is not taken holds the peer
//!   back, which has [no room](crate::handshake::Unsaid::Full) then to say more; transfers go on.
//! * [`Engine::fetch`] reads memory of the peer's into a buffer, by a key that the peer's application has said. The peer's
//!   application is not asked, nor woken.
//!
//! # The contract about memory
//!
//! Whoever opens or answers a transfer lends its memory to the engine, to the device, and, at the target, to the peer. It
//! is lent until the end of the transfer is [told](Event::Ended), or [of the read](Event::Fetched), not only until it is
//! cancelled or the call returns:
//!
//! * it stays allocated, and is used by nobody else meanwhile: a writer's is not written, a target's not even read;
//! * it holds what [`Cache::acquire`] asks for, also about what happens to the memory later.
//!
//! A transfer that ended as [quarantined](TransferError::Quarantined) is the exception: its memory stays lent until the peer's
//! process is dead.
//!
//! An engine that is dropped takes its connection down and waits until that is flushed, so after the drop all memory is back,
//! but what the provider says that it holds (`ShmBuffer::is_quarantined`).
//! One that is forgotten never gives it back. The leases are the engine's: no safe call ends one early. A peer that was
//! given a key of a cached region can use it as long as the region is registered and the connection stands, also for bytes
//! that were not offered: see [the crate](crate) on peers that are not trusted.
#![expect(unsafe_code, reason = "buffers of the application are registered and posted by address")]

mod buffers;
mod drive;
mod events;
mod fetches;
pub mod future;
mod posts;
mod quarantine;
pub mod queue;
mod saying;

use crate::fabric::poller::Bell;
use crate::fabric::{Armed, Completion, Domain, Endpoint};
use crate::handshake::{Disconnect, Failure, Handshake, Limits, Process, Refusal, Side, Tag};
use crate::wire::{MESSAGE, Reason};
use buffers::Buffer;
pub use events::{Event, OpenError, TransferError};
use fetches::Fetches;
use mrrc::cache::AcquireError;
use mrrc::{Access, Cache};
use posts::Posts;
pub use posts::{PIECE, PIECES};
use rustc_hash::FxHashMap;
use saying::{Said, Wants};
use std::collections::VecDeque;
use std::fmt;
use std::io;

/// One end of a connection on which transfers run.
pub struct Engine<'cache, E: Endpoint> {
    cache: &'cache Cache<E::Domain>,
    handshake: Handshake,
    endpoint: E,
    process: Process,
    say_time: u64,
    buffers: FxHashMap<Tag, Buffer<'cache, E::Domain>>,
    posts: Posts,
    fetches: Fetches<E::Domain>,
    said: Said,
    /// What was refused for want of room, and is waited for.
    wants: Wants,
    events: VecDeque<Event>,
    /// What the transfer is told at its end in the place of what the handshake says.
    errors: FxHashMap<Tag, AcquireError>,
    /// Ends that are told when the buffer is free.
    ends: FxHashMap<Tag, Result<u64, Failure>>,
    message: Box<[u8; MESSAGE]>,
    why: Option<Disconnect>,
    closed: bool,
    /// Whether the application holds what it posts.
    holds: bool,
    /// What rings when there may be something to do, where one thread sleeps for many connections.
    bell: Option<Bell>,
}

impl<'cache, E: Endpoint> Engine<'cache, E> {
    /// An engine on a connection at which as many receives as the [limits](Limits::receives) say are posted: the number that the
    /// endpoint was connected with. Immediates are used where the limits [ask](Limits::immediate) for them and the fabric has
    /// them.
    pub fn new(cache: &'cache Cache<E::Domain>, endpoint: E, side: Side, limits: Limits) -> Self {
        let limits = Limits { immediate: limits.immediate && endpoint.abilities().immediate, ..limits };
        Self {
            cache,
            handshake: Handshake::new(side, limits),
            process: limits.process,
            say_time: limits.say_time,
            buffers: FxHashMap::default(),
            posts: Posts::default(),
            fetches: Fetches::new(limits, endpoint.abilities()),
            said: Said::default(),
            wants: Wants::default(),
            events: VecDeque::new(),
            errors: FxHashMap::default(),
            ends: FxHashMap::default(),
            message: Box::new([0; MESSAGE]),
            why: None,
            closed: false,
            holds: false,
            bell: None,
            endpoint,
        }
    }

    /// Opens a transfer of this memory to the peer.
    ///
    /// # Errors
    /// [`Refusal`], and in the traditional process what the cache says: it registers first.
    ///
    /// # Safety
    /// The [contract about memory](self#the-contract-about-memory).
    pub unsafe fn write(&mut self, memory: *const u8, length: usize, header: &[u8]) -> Result<Tag, OpenError> {
        // SAFETY: the caller's promise.
        unsafe { self.open(memory.cast_mut(), length, header, false) }
    }

    /// Asks the peer for bytes into this memory, as many as it holds at most.
    ///
    /// # Errors
    /// As [`Engine::write`].
    ///
    /// # Safety
    /// As [`Engine::write`].
    pub unsafe fn read(&mut self, memory: *mut u8, length: usize, header: &[u8]) -> Result<Tag, OpenError> {
        // SAFETY: the caller's promise.
        unsafe { self.open(memory, length, header, true) }
    }

    /// # Safety
    /// As [`Engine::write`].
    unsafe fn open(&mut self, memory: *mut u8, length: usize, header: &[u8], read: bool) -> Result<Tag, OpenError> {
        let access = if read { TARGET } else { Access::LOCAL_READ };
        let early = if self.process == Process::Traditional && length > 0 {
            // SAFETY: the caller's promise.
            Some(unsafe { self.cache.acquire(memory, length, access) }.map_err(OpenError::Registration)?)
        } else {
            None
        };
        let now = self.endpoint.now();
        let tag = match read {
            true => self.handshake.read(now, length as u64, header),
            false => self.handshake.write(now, length as u64, header),
        }?;
        self.buffers.insert(tag, Buffer::new(memory, length, access));
        match early {
            Some(lease) => self.registered_before(tag, lease),
            None => self.register(tag),
        }
        self.drive();
        Ok(tag)
    }

    /// Takes what the peer writes into this memory.
    ///
    /// # Errors
    /// [`Refusal`].
    ///
    /// # Safety
    /// As [`Engine::write`].
    pub unsafe fn accept(&mut self, tag: Tag, memory: *mut u8, length: usize) -> Result<(), Refusal> {
        let now = self.endpoint.now();
        let announced = self.handshake.length(tag).ok_or(Refusal::NotOpen { tag })?;
        self.handshake.accept(now, tag, length as u64)?;
        // No more than was announced is registered.
        let length = length.min(usize::try_from(announced).unwrap_or(usize::MAX));
        self.answer(tag, Buffer::new(memory, length, TARGET));
        Ok(())
    }

    /// Gives the peer the bytes of this memory.
    ///
    /// # Errors
    /// [`Refusal`].
    ///
    /// # Safety
    /// As [`Engine::write`].
    pub unsafe fn supply(&mut self, tag: Tag, memory: *const u8, length: usize) -> Result<(), Refusal> {
        let now = self.endpoint.now();
        self.handshake.crw(now, tag, length as u64)?;
        self.answer(tag, Buffer::new(memory.cast_mut(), length, Access::LOCAL_READ));
        Ok(())
    }

    /// Lends the buffer to a transfer of the peer's, unless it does not fit and has ended the transfer.
    fn answer(&mut self, tag: Tag, buffer: Buffer<'cache, E::Domain>) {
        if self.handshake.length(tag).is_some() {
            self.buffers.insert(tag, buffer);
            self.register(tag);
        }
        self.drive();
    }

    /// Does not want what the peer asks for.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn refuse(&mut self, tag: Tag) -> Result<(), Refusal> {
        self.handshake.fail(self.endpoint.now(), tag, Reason::Refused)?;
        self.drive();
        Ok(())
    }

    /// Gives a transfer up. It ends as cancelled, unless all was written already.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn cancel(&mut self, tag: Tag) -> Result<(), Refusal> {
        self.handshake.cancel(self.endpoint.now(), tag)?;
        self.drive();
        Ok(())
    }

    /// Gives a transfer up at this time, on the clock of [`Endpoint::now`], if it has not ended then: as [`Engine::cancel`] does, but it ends
    /// as timed out, and [`Event::Expired`] tells where that takes longer. False if it has ended.
    pub fn set_transfer_deadline(&mut self, tag: Tag, over: u64) -> bool {
        self.handshake.set_deadline(tag, over).is_ok()
    }

    /// In the traditional process: the application has seen the keys and wants the write.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn submit(&mut self, tag: Tag) -> Result<(), Refusal> {
        self.handshake.submit(self.endpoint.now(), tag)?;
        self.drive();
        Ok(())
    }

    /// What the peer's application said when it opened the transfer.
    pub fn header(&self, tag: Tag) -> Option<&[u8]> {
        self.handshake.header(tag)
    }

    /// What happened.
    #[inline]
    pub fn next_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front();
        if let Some(Event::Said) = event {
            self.said.told();
        }
        event
    }

    /// Does what can be done now. Of the writes that wait it posts only some before it returns, where the fabric carries them out
    /// at once, so that the application can say something in between: [`Engine::wait`] does not sleep then.
    pub fn progress(&mut self) {
        self.posts.refresh();
        let mut came = 0;
        while let Some(completion) = self.endpoint.poll(&mut self.message) {
            if let Completion::Done { id, succeeded } = completion
                && self.fetched(id, succeeded)
            {
                continue;
            }
            if !self.completed(completion) {
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
        // The clock is asked where somebody waits for it.
        if self.next_known_deadline().is_some() || self.fetches.has_new() {
            self.expire(self.endpoint.now());
        }
        // What is posted now is on its way while the application has its turn.
        self.posts.refresh();
        self.drive();
        if self.wants.to_say || self.wants.to_fetch {
            self.look_for_room();
        }
    }

    /// From `true` on, what is opened may wait until this is called with `false`, or until the engine waits, so that it leaves
    /// together: see [`Endpoint::hold`].
    pub fn hold(&mut self, posts: bool) {
        self.holds = posts;
        self.endpoint.hold(posts);
    }

    /// Gives up what has waited too long.
    fn expire(&mut self, now: u64) {
        self.handshake.expire(now);
        while let Some(expired) = self.handshake.next_expired() {
            self.events.push_back(Event::Expired(expired));
        }
        if !self.fetches.is_empty() && !self.closed {
            self.expire_fetches(now);
        }
        self.expire_messages(now);
    }

    /// Sleeps until [`Engine::progress`] may have something to do.
    pub fn wait(&mut self) {
        self.wait_until(None);
    }

    /// As [`Engine::wait`], until this time at most.
    fn wait_until(&mut self, until: Option<u64>) {
        if !self.closed && self.events.is_empty() {
            self.sleep(until);
        }
    }

    fn sleep(&mut self, until: Option<u64>) {
        if self.fetches.has_new() {
            self.fetches.begin_to_wait(self.endpoint.now());
        }
        self.endpoint.wait(self.next_known_deadline().into_iter().chain(until).min());
    }

    /// Has this bell ring when [`Engine::progress`] may have something to do, from now on and after each [`Engine::arm`]: so that
    /// one thread sleeps for many connections. A [`CompletionQueue`](queue::CompletionQueue) does this for its engines.
    ///
    /// # Errors
    /// As [`Endpoint::attach`].
    pub fn attach(&mut self, bell: &Bell) -> io::Result<()> {
        self.endpoint.attach(bell)?;
        bell.ring();
        self.bell = Some(bell.clone());
        Ok(())
    }

    /// Has the bell ring when there is something to do next, also because a time is over. To be called when there are no more
    /// events, and before this side waits for the bell.
    pub fn arm(&mut self) {
        self.arm_until(None);
    }

    /// The same, and at this time.
    fn arm_until(&mut self, more: Option<u64>) {
        let Some(bell) = &self.bell else { return };
        if !self.events.is_empty() {
            return bell.ring();
        }
        if self.closed {
            return bell.ring_at(None, 0);
        }
        if self.fetches.has_new() {
            self.fetches.begin_to_wait(self.endpoint.now());
        }
        match self.endpoint.arm() {
            Armed::News => bell.ring(),
            Armed::Quiet { until } => {
                let time = self.next_known_deadline().into_iter().chain(until).chain(more).min();
                let now = if time.is_some() { self.endpoint.now() } else { 0 };
                bell.ring_at(time, now);
            }
        }
    }

    fn next_known_deadline(&self) -> Option<u64> {
        let deadlines = [self.handshake.next_deadline(), self.fetches.next_deadline(), self.said.next_deadline()];
        deadlines.into_iter().flatten().min()
    }

    /// As [`Engine::wait`], for so many nanoseconds at most.
    pub fn wait_at_most(&mut self, longest: u64) {
        if !self.closed && self.events.is_empty() {
            let until = self.endpoint.now().saturating_add(longest);
            self.sleep(Some(until));
        }
    }

    /// Waits for the end of a transfer. What else happens meanwhile is kept for [`Engine::next_event`]: what the peer opens is
    /// not answered before the caller does so.
    ///
    /// # Errors
    /// As the transfer ended; a transfer whose end was told before, or that never was, is [unknown](Reason::UnknownTag).
    pub fn finish(&mut self, tag: Tag) -> Result<u64, TransferError> {
        let is_its_end = |event: &Event| matches!(event, Event::Ended { tag: ended, .. } if *ended == tag);
        loop {
            self.progress();
            if let Some(at) = self.events.iter().position(is_its_end)
                && let Some(Event::Ended { result, .. }) = self.events.remove(at)
            {
                return result;
            }
            if self.handshake.length(tag).is_none() {
                return Err(TransferError::Failed { tag, failure: Failure::Here(Reason::UnknownTag) });
            }
            self.sleep(None);
        }
    }

    /// Waits for the next event.
    pub fn run(&mut self) -> Option<Event> {
        loop {
            self.progress();
            if let Some(event) = self.next_event() {
                return Some(event);
            }
            if self.closed {
                return None;
            }
            self.sleep(None);
        }
    }

    /// The connection's end, to look at. What is posted and polled is the engine's.
    pub fn endpoint(&self) -> &E {
        &self.endpoint
    }

    /// What was counted so far.
    pub fn counters(&self) -> crate::handshake::Counters {
        self.handshake.counters()
    }

    /// Transfers whose buffers the engine has.
    pub fn open_transfers(&self) -> usize {
        self.handshake.open_transfers()
    }

    /// When [`Engine::progress`] has something to do though nothing comes.
    pub fn next_deadline(&self) -> Option<u64> {
        // A read that was just posted begins to wait at the next progress.
        let new = self.fetches.has_new().then(|| self.endpoint.now());
        self.next_known_deadline().into_iter().chain(new).min()
    }

    /// Ends the connection; go on with [`Engine::run`] until it is [closed](Event::Closed).
    pub fn disconnect(&mut self) {
        self.endpoint.disconnect();
    }
}

impl<E: Endpoint> fmt::Debug for Engine<'_, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("open_transfers", &self.handshake.open_transfers())
            .field("events", &self.events)
            .field("closed", &self.closed)
            .field("why", &self.why)
            .finish_non_exhaustive()
    }
}

impl<E: Endpoint> Drop for Engine<'_, E> {
    /// Leases outlive nothing that may still be written: an engine that is dropped takes its connection down first.
    fn drop(&mut self) {
        self.endpoint.disconnect();
        let lends = !self.buffers.is_empty() || !self.fetches.is_empty();
        while lends && !self.closed {
            match self.endpoint.poll(&mut self.message) {
                Some(Completion::Flushed) => self.closed = true,
                Some(_) => {}
                None => self.endpoint.wait(None),
            }
        }
    }
}

/// So many completions are handled in one [`Engine::progress`] before it goes silent, and soon comes to its end.
const AT_ONCE: u32 = 256;

/// The rights of a target's buffer.
const TARGET: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE);

fn key_of<D: Domain>(domain: &D, registration: &D::Registration, at: *const u8, bytes: usize) -> crate::wire::Segment {
    domain.remote(registration, at, bytes)
}
