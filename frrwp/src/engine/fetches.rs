//! One-sided reads: memory of the peer's by a key, into a buffer of the application's.
//!
//! The path is short, as a read over `shm` takes less than the rest would: a lease, one post, one completion, one event. What is
//! under way waits in a queue, because a fabric completes in the order of posting. A read of a buffer in more pieces than
//! the fabric takes at a time is posted in parts; where the fabric is full in between, the rest follows by progress.
#![expect(unsafe_code, reason = "the memory is the application's, by address")]

use super::{Engine, Event, OpenError};
use crate::fabric::{Abilities, Endpoint, Local};
use crate::handshake::Refusal;
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
}

/// Part of a buffer: few pieces, as a rule one.
type Pieces<'a, T> = SmallVec<[Local<'a, T>; 2]>;

impl<D: Registrar> Fetches<D> {
    pub(super) fn new(most: usize, Abilities { gather, sink, .. }: Abilities) -> Self {
        Self { under_way: VecDeque::new(), most, next: 0, gather: gather.max(1), sink }
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
            let lease = Some(lease);
            self.fetches.under_way.push_back(Fetch { id, parts, succeeded: true, left, to, lease });
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
        self.fetches.under_way.push_back(Fetch { id, parts: 1, succeeded: true, left, to: memory, lease: None });
        self.fetches.next += 1;
        Ok(id)
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
