//! One-sided reads: memory of the peer's by a key, into a buffer of the application's.
//!
//! The path is short, as a read over `shm` takes less than the rest would: a lease, one post, one completion, one event. What is
//! under way waits in a queue, because a fabric completes in the order of posting. A read of a buffer in more pieces than
//! the fabric takes at a time is posted in parts; where the fabric is full in between, the rest follows by progress.
//!
//! # Reads that are given up
//!
//! A read that was posted cannot be recalled. One that is cancelled, or whose time is over, is told of at once, and its buffer
//! stays here, in quarantine, until the fabric has completed it or the connection is flushed. As reads complete in order, one
//! that the peer never answers stops all that come after it: so the connection is closed where one is still there
//! [`sync_time`](crate::handshake::Limits::sync_time) after its time was over. Bytes that come of anything else prolong nothing.
//!
//! A read begins to wait at the first progress after it was posted: one that has completed by then, as all do over `shm`,
//! asks for no time at all.
#![expect(unsafe_code, reason = "the memory is the application's, by address")]

use super::{Engine, Event, OpenError};
use crate::fabric::{Abilities, Endpoint, Local};
use crate::handshake::{Disconnect, Expired, Limits, Operation, Phase, Refusal};
use crate::wire::Segment;
use mrrc::registrar::Registrar;
use mrrc::{Access, Lease};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::io::ErrorKind;

/// Names of reads among those of what is posted.
const FETCH: u64 = 1 << 63;

/// One-sided reads that are under way.
pub(super) struct Fetches<D: Registrar> {
    under_way: VecDeque<Fetch<D>>,
    most: usize,
    next: u64,
    gather: usize,
    sink: Access,
    limits: Limits,
    /// The connection is closed for their sake: they end with it.
    revoked: bool,
}

struct Fetch<D: Registrar> {
    id: u64,
    /// Parts that are posted and have not completed.
    parts: u32,
    succeeded: bool,
    /// What is not posted: from where, and to.
    left: Segment,
    to: *mut u8,
    /// None where the caller holds it.
    lease: Option<Lease<D>>,
    bytes: u64,
    /// When it began to wait, and when its time is over.
    waits: Option<(u64, u64)>,
    /// The application gave it up.
    given_up: bool,
}

// SAFETY: an address, which the engine uses in one thread at a time, and a lease, which may be sent.
unsafe impl<D: Registrar> Send for Fetch<D> {}

/// What is to be done about reads whose time is over.
pub(super) enum Overdue {
    /// One is given up.
    GivenUp(Expired),
    /// One was given up, and has not ended for so long that the connection is to.
    Stuck,
}

impl<D: Registrar> Fetch<D> {
    /// No more of it is posted. Where nothing of it is on its way, [`Engine::end_given_up`] ends it.
    fn give_up(&mut self) {
        self.given_up = true;
        self.left.length = 0;
        self.succeeded = false;
    }
}

/// Part of a buffer: few pieces, as a rule one.
type Pieces<'a, T> = SmallVec<[Local<'a, T>; 2]>;

impl<D: Registrar> Fetches<D> {
    pub(super) fn new(limits: Limits, Abilities { gather, sink, .. }: Abilities) -> Self {
        Self {
            under_way: VecDeque::new(),
            most: limits.fetches,
            next: 0,
            gather: gather.max(1),
            sink,
            limits,
            revoked: false,
        }
    }

    /// The reads that have just been posted begin to wait.
    pub(super) fn begin_to_wait(&mut self, now: u64) {
        let mut bytes = 0_u64;
        for fetch in &mut self.under_way {
            bytes = bytes.saturating_add(fetch.bytes);
            let over = now.saturating_add(self.limits.time_for(self.limits.read_time, bytes));
            fetch.waits.get_or_insert((now, over));
        }
    }

    /// Whether some read has not begun to wait.
    #[inline]
    pub(super) fn has_new(&self) -> bool {
        self.under_way.back().is_some_and(|last| last.waits.is_none())
    }

    /// When [`Fetches::overdue`] has something at the earliest.
    pub(super) fn next_deadline(&self) -> Option<u64> {
        self.under_way.iter().filter_map(|fetch| self.deadline(fetch)).min()
    }

    fn deadline(&self, fetch: &Fetch<D>) -> Option<u64> {
        if self.revoked {
            return None;
        }
        let grace = if fetch.given_up { self.limits.sync_time } else { 0 };
        fetch.waits.map(|(_, over)| over.saturating_add(grace))
    }

    /// The next read whose time is over.
    pub(super) fn overdue(&mut self, now: u64) -> Option<Overdue> {
        let is_due = |fetch: &Fetch<D>| self.deadline(fetch).is_some_and(|deadline| deadline <= now);
        let at = self.under_way.iter().position(is_due)?;
        let fetch = &mut self.under_way[at];
        if fetch.given_up {
            self.revoked = true;
            return Some(Overdue::Stuck);
        }
        fetch.give_up();
        let waited = fetch.waits.map_or(0, |(since, _)| now.saturating_sub(since));
        Some(Overdue::GivenUp(Expired { operation: Operation::Fetch(fetch.id), phase: Phase::Reading, waited }))
    }

    fn find(&mut self, id: u64) -> Option<&mut Fetch<D>> {
        self.under_way.iter_mut().find(|fetch| fetch.id == id && !fetch.given_up)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Whether another one may begin: none waits to be posted.
    pub(super) fn have_room(&self) -> bool {
        self.under_way.len() < self.most && self.under_way.back().is_none_or(|last| last.left.length == 0)
    }

    fn busy(&self) -> OpenError {
        OpenError::Busy { under_way: self.under_way.len() }
    }
}

/// The first bytes at `to` that the lease covers, in at most so many pieces: the pieces, and the bytes of them all.
fn pieces<D: Registrar>(lease: &Lease<D>, to: *mut u8, length: u64, most: usize) -> (Pieces<'_, D::Registration>, u64) {
    let (mut pieces, mut bytes) = (Pieces::new(), 0_u64);
    for segment in lease.segments() {
        let start = (to as u64).wrapping_add(bytes);
        let Some(within) = start.checked_sub(segment.address() as u64) else { break };
        let there = (segment.len() as u64).saturating_sub(within).min(length - bytes);
        if there > 0 && pieces.len() < most {
            let address = to.wrapping_add(bytes as usize);
            pieces.push(Local { address, length: there as usize, registration: segment.registration() });
            bytes += there;
        }
    }
    (pieces, bytes)
}

impl<E: Endpoint> Engine<'_, E> {
    /// Reads the peer's memory into this, `from.length` bytes, and names the read: [`Event::Fetched`] tells its end. The
    /// buffer is registered by the cache, with the rights that the [fabric needs](Abilities::sink), until then. A segment
    /// that the peer does not let this side read ends the connection.
    ///
    /// # Errors
    /// [`OpenError`]. Where the fabric is [busy](OpenError::Busy), [`Event::Room`] says when to try again.
    ///
    /// # Safety
    /// The [contract about memory](super#the-contract-about-memory).
    #[inline]
    pub unsafe fn fetch(&mut self, memory: *mut u8, length: usize, from: Segment) -> Result<u64, OpenError> {
        self.may_fetch(length, from)?;
        if from.length == 0 {
            return Ok(self.fetch_nothing());
        }
        // SAFETY: the caller's promise.
        let lease = unsafe { self.cache.acquire(memory, from.length as usize, self.fetches.sink) };
        let lease = lease.map_err(OpenError::Registration)?;
        let id = self.fetches.next;
        // SAFETY: the caller's promise about the memory; the lease is kept beside the read.
        let (posted, bytes) = unsafe { self.post_pieces(id, &lease, memory, from) };
        if posted? {
            let parts = 1;
            let (to, left) = (memory.wrapping_add(bytes as usize), rest(from, bytes));
            let (lease, bytes_of_all) = (Some(lease), from.length);
            self.fetches.under_way.push_back(Fetch {
                id,
                parts,
                succeeded: true,
                left,
                to,
                lease,
                bytes: bytes_of_all,
                waits: None,
                given_up: false,
            });
            self.fetches.next += 1;
            if bytes < from.length {
                self.post_fetches();
            }
            return Ok(id);
        }
        self.wants.to_fetch = true;
        Err(self.fetches.busy())
    }

    /// The same, into memory of which the caller holds a lease with the rights that the [fabric needs](Abilities::sink): it
    /// saves the look into the cache.
    ///
    /// # Errors
    /// As [`Engine::fetch`], and where the lease does not cover the memory.
    ///
    /// # Safety
    /// As [`Engine::fetch`]; and the lease is held until the end of the read is told, or the engine is dropped.
    #[inline]
    pub unsafe fn fetch_leased(
        &mut self,
        lease: &Lease<E::Domain>,
        memory: *mut u8,
        from: Segment,
    ) -> Result<u64, OpenError> {
        self.may_fetch(usize::MAX, from)?;
        if from.length == 0 {
            return Ok(self.fetch_nothing());
        }
        let id = self.fetches.next;
        let (pieces, bytes) = pieces(lease, memory, from.length, self.fetches.gather);
        if bytes < from.length {
            return Err(OpenError::Uncovered { most: self.fetches.gather });
        }
        // SAFETY: the caller's promise.
        let posted = unsafe { self.endpoint.read(FETCH | id, &pieces, from) };
        if !is_posted(posted)? {
            self.wants.to_fetch = true;
            return Err(self.fetches.busy());
        }
        let left = Segment { length: 0, ..from };
        self.fetches.under_way.push_back(Fetch {
            id,
            parts: 1,
            succeeded: true,
            left,
            to: memory,
            lease: None,
            bytes,
            waits: None,
            given_up: false,
        });
        self.fetches.next += 1;
        Ok(id)
    }

    /// Reads the peer's memory into this before it returns, `from.length` bytes, where the [fabric can](Endpoint::read_now): `None` where
    /// it cannot, else whether the bytes were read. There is no event of it. Reads that follow each other are carried out in that order:
    /// what the peer changed before it changed what an earlier read found, a later one finds changed.
    ///
    /// # Errors
    /// As [`Engine::fetch`].
    ///
    /// # Safety
    /// The memory may be written, and nothing else uses it, until this returns.
    #[inline]
    pub unsafe fn fetch_now(
        &mut self,
        memory: *mut u8,
        length: usize,
        from: Segment,
    ) -> Result<Option<bool>, OpenError> {
        self.may_fetch(length, from)?;
        // SAFETY: the caller's promise; the lease is dropped after the read.
        let lease = unsafe { self.cache.acquire(memory, from.length as usize, self.fetches.sink) };
        let lease = lease.map_err(OpenError::Registration)?;
        let (pieces, bytes) = pieces(&lease, memory, from.length, self.fetches.gather);
        if bytes < from.length {
            return Err(OpenError::Uncovered { most: self.fetches.gather });
        }
        // SAFETY: the caller's promise; the lease keeps the pieces registered.
        let read = unsafe { self.endpoint.read_now(&pieces, from) };
        // The connection's end is told by a completion.
        read.map_err(|_| Refusal::Disconnected.into())
    }

    /// Gives a one-sided read up: no more of it is posted. Its buffer is the application's again when [`Event::Fetched`] tells so, as
    /// what was posted cannot be recalled. False if it has ended, or was given up before.
    pub fn cancel_fetch(&mut self, id: u64) -> bool {
        let found = self.fetches.find(id).map(Fetch::give_up).is_some();
        self.end_given_up();
        found
    }

    /// The last read may have waited for room, with all that was posted of it completed: nothing comes of it any more.
    fn end_given_up(&mut self) {
        let Some(&Fetch { id, parts: 0, given_up: true, .. }) = self.fetches.under_way.back() else { return };
        self.fetches.under_way.pop_back();
        self.events.push_back(Event::Fetched { id, succeeded: false });
    }

    /// Sets when the time of a one-sided read is over, on the clock of [`Endpoint::now`], in the place of what the
    /// [limits](crate::handshake::Limits::read_time) say. False if it has ended, or was given up.
    pub fn set_fetch_deadline(&mut self, id: u64, over: u64) -> bool {
        let now = self.endpoint.now();
        // Those before it have their own times, though the last has one.
        if self.fetches.has_new() {
            self.fetches.begin_to_wait(now);
        }
        let found = self.fetches.find(id);
        found.map(|fetch| fetch.waits = Some((fetch.waits.map_or(now, |(since, _)| since), over))).is_some()
    }

    /// One-sided reads that were given up and whose buffers the fabric may still be at. They count among those that are
    /// [under way](Engine::open_fetches), of which there are never more than the [limit](crate::handshake::Limits::fetches).
    pub fn quarantined_fetches(&self) -> usize {
        self.fetches.under_way.iter().filter(|fetch| fetch.given_up).count()
    }

    /// Gives up the reads whose time is over.
    pub(super) fn expire_fetches(&mut self, now: u64) {
        self.fetches.begin_to_wait(now);
        while let Some(overdue) = self.fetches.overdue(now) {
            match overdue {
                Overdue::GivenUp(expired) => {
                    self.events.push_back(Event::Expired(expired));
                    self.end_given_up();
                }
                Overdue::Stuck => {
                    self.why.get_or_insert(Disconnect::ReadFailed);
                    return self.endpoint.disconnect();
                }
            }
        }
    }

    /// One-sided reads that are under way.
    pub fn open_fetches(&self) -> usize {
        self.fetches.under_way.len()
    }

    #[inline]
    fn may_fetch(&mut self, length: usize, from: Segment) -> Result<(), OpenError> {
        if !self.handshake.stands() {
            return Err(Refusal::Disconnected.into());
        }
        if usize::try_from(from.length).is_ok_and(|wanted| wanted <= length) {
            if self.fetches.have_room() {
                return Ok(());
            }
            self.wants.to_fetch = true;
            return Err(self.fetches.busy());
        }
        Err(OpenError::TooShort { length, wanted: from.length })
    }

    /// Nothing is registered, nor asked of the peer.
    #[cold]
    fn fetch_nothing(&mut self) -> u64 {
        let id = self.fetches.next;
        self.fetches.next += 1;
        self.events.push_back(Event::Fetched { id, succeeded: true });
        id
    }

    /// Posts as much as one gathering takes. Whether it went, and how many bytes that is.
    ///
    /// # Safety
    /// As [`Endpoint::read`]: the lease is held until the read has completed.
    #[inline]
    unsafe fn post_pieces(
        &mut self,
        id: u64,
        lease: &Lease<E::Domain>,
        to: *mut u8,
        from: Segment,
    ) -> (Result<bool, OpenError>, u64) {
        let (pieces, bytes) = pieces(lease, to, from.length, self.fetches.gather);
        // SAFETY: the caller's promise.
        let posted = unsafe { self.endpoint.read(FETCH | id, &pieces, Segment { length: bytes, ..from }) };
        (is_posted(posted), bytes)
    }

    /// Posts what is left of the last read.
    #[inline]
    pub(super) fn post_fetches(&mut self) {
        if self.fetches.under_way.back().is_some_and(|last| last.left.length > 0) {
            self.post_rest();
        }
    }

    #[cold]
    fn post_rest(&mut self) {
        while let Some(mut last) = self.fetches.under_way.pop_back() {
            let lease = last.lease.as_ref().filter(|_| last.left.length > 0 && last.succeeded);
            // SAFETY: whoever began the read promised it for the memory; the lease is kept beside it.
            let posted = lease.map(|lease| unsafe { self.post_pieces(last.id, lease, last.to, last.left) });
            match posted {
                Some((Ok(true), bytes)) => {
                    last.parts += 1;
                    last.to = last.to.wrapping_add(bytes as usize);
                    last.left = rest(last.left, bytes);
                    self.fetches.under_way.push_back(last);
                }
                Some((Ok(false), _)) => {
                    self.fetches.under_way.push_back(last);
                    return;
                }
                // The rest is not read: the connection is gone, which a completion tells.
                Some((Err(_), _)) => {
                    last.left.length = 0;
                    last.succeeded = false;
                    self.fetches.under_way.push_back(last);
                    return;
                }
                None => {
                    self.fetches.under_way.push_back(last);
                    return;
                }
            }
        }
    }

    /// Whether what has completed is a one-sided read, or part of one.
    #[inline]
    pub(super) fn fetched(&mut self, id: u64, succeeded: bool) -> bool {
        if id & FETCH == 0 {
            return false;
        }
        let id = id & !FETCH;
        if let Some(first) = self.fetches.under_way.front_mut().filter(|first| first.id == id) {
            first.parts -= 1;
            first.succeeded &= succeeded;
            // What is not posted of one that failed never is.
            if first.parts == 0 && (first.left.length == 0 || !first.succeeded) {
                let succeeded = first.succeeded;
                self.fetches.under_way.pop_front();
                self.events.push_back(Event::Fetched { id, succeeded });
            }
        }
        true
    }

    /// The connection is flushed: what has not completed never does, and nobody is at its memory any more.
    pub(super) fn flush_fetches(&mut self) {
        while let Some(Fetch { id, .. }) = self.fetches.under_way.pop_front() {
            self.events.push_back(Event::Fetched { id, succeeded: false });
        }
    }
}

fn rest(from: Segment, bytes: u64) -> Segment {
    Segment { address: from.address.wrapping_add(bytes), length: from.length - bytes, ..from }
}

/// False where the fabric is full.
#[inline]
fn is_posted(posted: std::io::Result<()>) -> Result<bool, OpenError> {
    match posted {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
        // The connection's end is told by a completion.
        Err(_) => Err(Refusal::Disconnected.into()),
    }
}
