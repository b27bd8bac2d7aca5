//! One-sided reads: memory of the peer's by a key, into a buffer of the application's. And one-sided writes, the other way.
//! Both are posted and completed in one order. So all that is said of reads holds for writes too.
//!
//! The path is short, as a read over `shm` takes less than the rest would: a lease, one post, one completion, one event. Reads
//! in flight wait in a queue, because a fabric completes in the order of posting. A read of a buffer in more pieces than the
//! fabric takes at a time is posted in parts. Where the fabric is full in between, the rest follows by progress.
//!
//! # Reads that are given up
//!
//! A read that was posted cannot be recalled. One that is cancelled, or out of time, is reported at once. Its buffer stays
//! here, in quarantine, until the fabric has completed it or the connection is flushed. Reads complete in order, so one
//! that the peer never answers stops all that come after it. The connection is closed if one is still there
//! [`sync_time`](crate::handshake::Limits::sync_time) after its time was over. Bytes that come of anything else prolong
//! nothing.
//!
//! A read begins to wait at the first progress after it was posted. One that has completed by then, as all do over `shm`,
//! asks for no time at all.
#![expect(unsafe_code, reason = "the memory is the application's, by address")]

use super::events::{Event, Events, OpenError};
use super::send_queue::SendQueue;
use crate::fabric::{Capabilities, Domain, Endpoint, Local};
use crate::handshake::{Expired, Limits, Operation, Phase, Refusal};
use crate::wire::Segment;
use mrrc::registrar::Registrar;
use mrrc::{Access, Cache, Lease};
use smallvec::SmallVec;
use std::collections::VecDeque;

/// Names of reads among those of what is posted.
const READ: u64 = 1 << 63;

/// One-sided reads that are under way.
pub(super) struct RemoteReads<'cache, D: Domain> {
    cache: &'cache Cache<D>,
    under_way: VecDeque<RemoteRead<D>>,
    most: usize,
    next: u64,
    gather: usize,
    sink: Access,
    limits: Limits,
    /// The connection is closed for their sake: they end with it.
    revoked: bool,
    /// Whether a read was refused for want of room, and the application waits for an event.
    refused: bool,
}

struct RemoteRead<D: Registrar> {
    id: u64,
    /// Parts that are posted and have not completed.
    parts: u32,
    succeeded: bool,
    /// Whether it is a write.
    writes: bool,
    /// The part that is not posted: the peer's memory and this side's.
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

// SAFETY: `Send` requires that the parts of a read may be used by another thread. The address is used by the engine, in one thread at
// a time, and a lease is `Send`.
unsafe impl<D: Registrar> Send for RemoteRead<D> {}

/// Returns the event of an end.
#[inline]
fn ended(writes: bool, id: u64, succeeded: bool) -> Event {
    if writes { Event::WriteCompleted { id, succeeded } } else { Event::ReadCompleted { id, succeeded } }
}

/// Posts a read, or a write.
///
/// # Safety
/// As [`Endpoint::read`], or [`Endpoint::write`].
#[inline]
unsafe fn post_pieces<E: Endpoint>(
    queue: &mut SendQueue<E>,
    writes: bool,
    id: u64,
    pieces: &Pieces<'_, <E::Domain as Registrar>::Registration>,
    remote: Segment,
) -> std::io::Result<bool> {
    // SAFETY: this function requires of its caller what the two calls require.
    unsafe { if writes { queue.write(id, pieces, remote) } else { queue.read(id, pieces, remote) } }
}

impl<D: Registrar> RemoteRead<D> {
    /// Gives it up: no more of it is posted. Where nothing of it is on its way, [`RemoteReads::end_given_up`] ends it.
    fn give_up(&mut self) {
        self.given_up = true;
        self.left.length = 0;
        self.succeeded = false;
    }
}

/// Part of a buffer: few pieces, as a rule one.
type Pieces<'a, T> = SmallVec<[Local<'a, T>; 2]>;

impl<'cache, D: Domain> RemoteReads<'cache, D> {
    pub(super) fn new(cache: &'cache Cache<D>, limits: Limits, capabilities: Capabilities) -> Self {
        let Capabilities { gather, sink, .. } = capabilities;
        Self {
            cache,
            under_way: VecDeque::new(),
            most: limits.reads,
            next: 0,
            gather: gather.max(1),
            sink,
            limits,
            revoked: false,
            refused: false,
        }
    }

    /// Posts a read, into memory that is registered here, or a write from such memory, and returns its name.
    ///
    /// # Safety
    /// The [contract about memory](super#the-contract-about-memory).
    #[inline]
    pub(super) unsafe fn post<const WRITES: bool, E: Endpoint<Domain = D>>(
        &mut self,
        queue: &mut SendQueue<E>,
        memory: *mut u8,
        length: usize,
        from: Segment,
        events: &mut Events,
    ) -> Result<u64, OpenError> {
        self.may_begin(length, from)?;
        if from.length == 0 {
            return Ok(self.complete_nothing(WRITES, events));
        }
        let access = if WRITES { Access::LOCAL_READ } else { self.sink };
        // SAFETY: `Cache::acquire` requires a part of the contract about memory, which the caller promises.
        let lease = unsafe { self.cache.acquire(memory, from.length as usize, access) };
        let lease = lease.map_err(OpenError::Registration)?;
        let (pieces, bytes) = pieces(&lease, memory, from.length, self.gather);
        let remote = Segment { length: bytes, ..from };
        // SAFETY: `post_pieces` requires that nothing changes the memory, nor uses that of a read, and that it stays registered, until the
        // completion or the flush of the connection. The caller promises the first; the lease is kept until then.
        let posted = unsafe { post_pieces(queue, WRITES, READ | self.next, &pieces, remote) };
        drop(pieces);
        if !self.is_posted(posted)? {
            return Err(self.refuse());
        }
        let (to, left) = (memory.wrapping_add(bytes as usize), rest(from, bytes));
        let id = self.begin(WRITES, left, to, Some(lease), from.length);
        if bytes < from.length {
            self.post_rest(queue);
        }
        Ok(id)
    }

    /// Posts a read into memory of which the caller holds a lease, and returns its name.
    ///
    /// # Safety
    /// As [`RemoteReads::post`]; and the lease is held until the end of the read is told, or the engine is dropped.
    #[inline]
    pub(super) unsafe fn post_leased<E: Endpoint<Domain = D>>(
        &mut self,
        queue: &mut SendQueue<E>,
        lease: &Lease<D>,
        memory: *mut u8,
        from: Segment,
        events: &mut Events,
    ) -> Result<u64, OpenError> {
        self.may_begin(usize::MAX, from)?;
        if from.length == 0 {
            return Ok(self.complete_nothing(false, events));
        }
        let (pieces, bytes) = pieces(lease, memory, from.length, self.gather);
        self.is_covered(bytes, from)?;
        // SAFETY: `Endpoint::read` requires that nothing uses the memory, and that it stays registered, until the read has completed or
        // the connection is flushed. The caller promises both.
        let posted = unsafe { queue.read(READ | self.next, &pieces, from) };
        if !self.is_posted(posted)? {
            return Err(self.refuse());
        }
        Ok(self.begin(false, Segment { length: 0, ..from }, memory, None, from.length))
    }

    /// Reads before it returns: see [`Endpoint::read_now`].
    ///
    /// # Safety
    /// The memory may be written, and nothing else uses it, until this returns.
    #[inline]
    pub(super) unsafe fn read_now<E: Endpoint<Domain = D>>(
        &mut self,
        queue: &mut SendQueue<E>,
        memory: *mut u8,
        length: usize,
        from: Segment,
    ) -> Result<Option<bool>, OpenError> {
        self.may_begin(length, from)?;
        // SAFETY: `Cache::acquire` requires a part of the contract about memory until the lease is dropped, which is before this returns:
        // the caller promises it until then.
        let lease = unsafe { self.cache.acquire(memory, from.length as usize, self.sink) };
        let lease = lease.map_err(OpenError::Registration)?;
        let (pieces, bytes) = pieces(&lease, memory, from.length, self.gather);
        self.is_covered(bytes, from)?;
        // SAFETY: `Endpoint::read_now` requires that nothing uses the memory, and that it stays registered, until it returns. The caller
        // promises the first; the lease keeps the pieces registered.
        let read = unsafe { queue.read_now(&pieces, from) };
        // The connection's end is told by a completion.
        read.map_err(|_| Refusal::Disconnected.into())
    }

    #[inline]
    fn may_begin(&mut self, length: usize, from: Segment) -> Result<(), OpenError> {
        if usize::try_from(from.length).is_ok_and(|wanted| wanted <= length) {
            if self.has_room() {
                return Ok(());
            }
            return Err(self.refuse());
        }
        Err(OpenError::TooShort { length, wanted: from.length })
    }

    /// Checks that one gathering takes all of the memory. The pieces themselves stay where they were made: moving them costs a read of
    /// 1 KiB over shared memory 4 %.
    #[inline]
    fn is_covered(&self, bytes: u64, from: Segment) -> Result<(), OpenError> {
        if bytes < from.length { Err(OpenError::Uncovered { most: self.gather }) } else { Ok(()) }
    }

    /// Returns false where the fabric is full.
    #[inline]
    fn is_posted(&self, posted: std::io::Result<bool>) -> Result<bool, OpenError> {
        // The connection's end is told by a completion.
        posted.map_err(|_| Refusal::Disconnected.into())
    }

    /// Refuses a read for want of room.
    fn refuse(&mut self) -> OpenError {
        self.refused = true;
        OpenError::Busy { under_way: self.under_way.len() }
    }

    #[inline]
    fn begin(&mut self, writes: bool, left: Segment, to: *mut u8, lease: Option<Lease<D>>, bytes: u64) -> u64 {
        let id = self.next;
        self.next += 1;
        let (parts, succeeded, waits, given_up) = (1, true, None, false);
        let read = RemoteRead { id, parts, succeeded, writes, left, to, lease, bytes, waits, given_up };
        self.under_way.push_back(read);
        id
    }

    /// Completes a read of no bytes: nothing is registered, nor asked of the peer.
    #[cold]
    fn complete_nothing(&mut self, writes: bool, events: &mut Events) -> u64 {
        let id = self.next;
        self.next += 1;
        events.push(ended(writes, id, true));
        id
    }

    /// Posts what is left of the last read.
    #[inline]
    pub(super) fn post_waiting<E: Endpoint<Domain = D>>(&mut self, queue: &mut SendQueue<E>) {
        if self.under_way.back().is_some_and(|last| last.left.length > 0) {
            self.post_rest(queue);
        }
    }

    #[cold]
    fn post_rest<E: Endpoint<Domain = D>>(&mut self, queue: &mut SendQueue<E>) {
        let Some(last) = self.under_way.back_mut() else { return };
        let Some(lease) = &last.lease else { return };
        while last.left.length > 0 && last.succeeded {
            let (pieces, bytes) = pieces(lease, last.to, last.left.length, self.gather);
            let remote = Segment { length: bytes, ..last.left };
            // SAFETY: `post_pieces` requires that nothing changes the memory, nor uses that of a read, and that it stays registered, until
            // the completion or the flush. The caller of `RemoteReads::post` promised the first; the lease is kept with it until then.
            match unsafe { post_pieces(queue, last.writes, READ | last.id, &pieces, remote) } {
                Ok(true) => {
                    last.parts += 1;
                    last.to = last.to.wrapping_add(bytes as usize);
                    last.left = rest(last.left, bytes);
                }
                Ok(false) => return,
                // The rest is not read: the connection is gone, which a completion tells.
                Err(_) => {
                    last.left.length = 0;
                    last.succeeded = false;
                }
            }
        }
    }

    /// Takes a completion. Returns whether it is of a one-sided read, or of part of one.
    #[inline]
    pub(super) fn complete(&mut self, id: u64, succeeded: bool, events: &mut Events) -> bool {
        if id & READ == 0 {
            return false;
        }
        let id = id & !READ;
        if let Some(first) = self.under_way.front_mut().filter(|first| first.id == id) {
            first.parts -= 1;
            first.succeeded &= succeeded;
            // The unposted rest of a failed one is never posted.
            if first.parts == 0 && (first.left.length == 0 || !first.succeeded) {
                let (writes, succeeded) = (first.writes, first.succeeded);
                self.under_way.pop_front();
                events.push(ended(writes, id, succeeded));
            }
        }
        true
    }

    /// Ends all reads, as the connection is flushed: what has not completed never does, and nothing is at its memory any more.
    pub(super) fn flush(&mut self, events: &mut Events) {
        while let Some(RemoteRead { id, writes, .. }) = self.under_way.pop_front() {
            events.push(ended(writes, id, false));
        }
    }

    fn find(&mut self, id: u64) -> Option<&mut RemoteRead<D>> {
        self.under_way.iter_mut().find(|read| read.id == id && !read.given_up)
    }

    /// Gives a read up. Returns false if it has ended, or was given up before.
    pub(super) fn cancel(&mut self, id: u64, events: &mut Events) -> bool {
        let found = self.find(id).map(RemoteRead::give_up).is_some();
        self.end_given_up(events);
        found
    }

    /// Ends the last read if it was given up and nothing of it is on its way. It may have waited for room, with all of its
    /// posted parts completed.
    fn end_given_up(&mut self, events: &mut Events) {
        let Some(&RemoteRead { id, writes, parts: 0, given_up: true, .. }) = self.under_way.back() else { return };
        self.under_way.pop_back();
        events.push(ended(writes, id, false));
    }

    /// Sets when the time of a read is over. Returns false if it has ended, or was given up.
    pub(super) fn set_deadline(&mut self, id: u64, over: u64, now: u64) -> bool {
        // Those before it have their own times, though the last has one.
        if self.has_new() {
            self.begin_to_wait(now);
        }
        let found = self.find(id);
        found.map(|read| read.waits = Some((read.waits.map_or(now, |(since, _)| since), over))).is_some()
    }

    /// Has the reads that have just been posted begin to wait.
    pub(super) fn begin_to_wait(&mut self, now: u64) {
        let mut bytes = 0_u64;
        for read in &mut self.under_way {
            bytes = bytes.saturating_add(read.bytes);
            let over = now.saturating_add(self.limits.time_for(self.limits.read_time, bytes));
            read.waits.get_or_insert((now, over));
        }
    }

    /// Returns whether some read has not begun to wait.
    #[inline]
    pub(super) fn has_new(&self) -> bool {
        self.under_way.back().is_some_and(|last| last.waits.is_none())
    }

    /// Returns when [`RemoteReads::expire`] has something to do at the earliest.
    pub(super) fn next_deadline(&self) -> Option<u64> {
        self.under_way.iter().filter_map(|read| self.deadline(read)).min()
    }

    fn deadline(&self, read: &RemoteRead<D>) -> Option<u64> {
        if self.revoked {
            return None;
        }
        let grace = if read.given_up { self.limits.sync_time } else { 0 };
        read.waits.map(|(_, over)| over.saturating_add(grace))
    }

    /// Gives up the reads whose time is over. Returns false if one was given up, and has not ended for so long that the connection is
    /// to.
    pub(super) fn expire(&mut self, now: u64, events: &mut Events) -> bool {
        self.begin_to_wait(now);
        let next_due = |reads: &Self| {
            let is_due = |read| reads.deadline(read).is_some_and(|deadline| deadline <= now);
            reads.under_way.iter().position(is_due)
        };
        while let Some(at) = next_due(self) {
            let read = &mut self.under_way[at];
            if read.given_up {
                self.revoked = true;
                return false;
            }
            read.give_up();
            let waited = read.waits.map_or(0, |(since, _)| now.saturating_sub(since));
            let operation = Operation::Read(read.id);
            events.push(Event::Expired(Expired { operation, phase: Phase::Reading, waited }));
            self.end_given_up(events);
        }
        true
    }

    /// Returns whether another one may begin: none waits to be posted.
    fn has_room(&self) -> bool {
        self.under_way.len() < self.most && self.under_way.back().is_none_or(|last| last.left.length == 0)
    }

    /// Returns whether a read was refused for want of room.
    pub(super) fn was_refused(&self) -> bool {
        self.refused
    }

    /// Returns whether there is room for a read that was refused; then the next call returns false.
    pub(super) fn regains_room(&mut self) -> bool {
        let regains = self.refused && self.has_room();
        self.refused &= !regains;
        regains
    }

    pub(super) fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Returns how many reads are under way.
    pub(super) fn len(&self) -> usize {
        self.under_way.len()
    }

    /// Returns how many reads were given up, and have not ended.
    pub(super) fn quarantined(&self) -> usize {
        self.under_way.iter().filter(|read| read.given_up).count()
    }
}

/// Returns the first bytes at `to` that the lease covers, in at most so many pieces, and how many bytes they are.
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

/// Returns a segment without its first bytes.
fn rest(from: Segment, bytes: u64) -> Segment {
    Segment { address: from.address.wrapping_add(bytes), length: from.length - bytes, ..from }
}
