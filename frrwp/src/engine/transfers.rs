//! Transfers that are open: their buffers, from an address to leases and from leases to what the handshake is told, and how they end.
#![expect(unsafe_code, reason = "the memory is the application's, by address")]

use super::events::{OpenError, TransferError};
use crate::fabric::Domain;
use crate::handshake::{Failure, Handshake, Process, Tag};
use crate::wire::{Reason, Segment};
use mrrc::cache::{AcquireError, PendingLease};
use mrrc::registrar::Registrar;
use mrrc::{Access, Cache, Lease};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// The open transfers of a connection.
pub(super) struct Transfers<'cache, D: Domain> {
    cache: &'cache Cache<D>,
    process: Process,
    buffers: FxHashMap<Tag, Buffer<'cache, D>>,
    /// Errors that transfers end with in the place of the handshake's.
    errors: FxHashMap<Tag, AcquireError>,
    /// Results of transfers whose buffers are not free yet.
    ends: FxHashMap<Tag, Result<u64, Failure>>,
}

/// The application's memory, and what keeps it registered.
pub(super) struct Buffer<'cache, D: Registrar> {
    address: *mut u8,
    length: usize,
    access: Access,
    /// Holds what was ready before the rest was registered: a peer may have its keys, also where the rest failed.
    pending: Option<PendingLease<'cache, D>>,
    lease: Option<Lease<D>>,
    /// Writes from it that are not posted, or not wholly.
    unposted: u32,
}

// SAFETY: `Send` requires that the parts of a buffer may be used by another thread. The address is used by the engine, in one thread
// at a time, and a lease is `Send`. A request for a lease is finished before the call returns that began it, so afterwards it only
// holds regions, as a lease does.
unsafe impl<D: Registrar> Send for Buffer<'_, D> {}

impl<D: Registrar> Buffer<'_, D> {
    /// Makes a buffer of memory that is lent to a transfer.
    ///
    /// # Safety
    /// The [contract about memory](super#the-contract-about-memory) holds from now on, until the buffer is dropped.
    pub(super) unsafe fn new(address: *mut u8, length: usize, access: Access) -> Self {
        Self { address, length, access, pending: None, lease: None, unposted: 0 }
    }

    pub(super) fn address(&self) -> *mut u8 {
        self.address
    }

    /// Returns the registered parts, as addresses, lengths and registrations.
    pub(super) fn segments(&self) -> impl Iterator<Item = (*const u8, usize, &D::Registration)> {
        let ready = self.pending.iter().filter(|_| self.lease.is_none()).flat_map(PendingLease::ready);
        let leased = self.lease.iter().flat_map(Lease::segments);
        ready.chain(leased).map(|segment| (segment.address(), segment.len(), segment.registration()))
    }

    fn parts(&self, domain: &D) -> Parts
    where
        D: Domain,
    {
        let part = |(at, bytes, registration): (*const u8, usize, &_)| Part {
            offset: at as u64 - self.address as u64,
            length: bytes as u64,
            remote: domain.remote(registration, at, bytes),
        };
        self.segments().map(part).collect()
    }

    /// Tells the handshake of parts that are registered. Refused where the transfer has ended meanwhile.
    fn tell(&self, tag: Tag, parts: &[Part], more: bool, handshake: &mut Handshake, now: u64) {
        if self.access.is_remote() {
            offer(handshake, now, tag, parts, more);
        } else {
            for part in parts {
                let _ = handshake.ready(now, tag, part.offset, part.length);
            }
        }
    }
}

/// A registered part of a buffer.
#[derive(Clone, Copy)]
pub(super) struct Part {
    offset: u64,
    length: u64,
    remote: Segment,
}

/// Few, as a rule: a buffer that is in one region is one.
pub(super) type Parts = SmallVec<[Part; 4]>;

impl<'cache, D: Domain> Transfers<'cache, D> {
    pub(super) fn new(cache: &'cache Cache<D>, process: Process) -> Self {
        let (buffers, errors, ends) = (FxHashMap::default(), FxHashMap::default(), FxHashMap::default());
        Self { cache, process, buffers, errors, ends }
    }

    /// Makes the buffer of a transfer that is about to be opened. The traditional process registers it first.
    ///
    /// # Safety
    /// As [`Buffer::new`].
    pub(super) unsafe fn prepare(
        &self,
        address: *mut u8,
        length: usize,
        access: Access,
    ) -> Result<Buffer<'cache, D>, OpenError> {
        // SAFETY: the caller promises what `Buffer::new` requires.
        let mut buffer = unsafe { Buffer::new(address, length, access) };
        if self.process == Process::Traditional && length > 0 {
            // SAFETY: `Cache::acquire` requires a part of the contract about memory, which the caller promises.
            let lease = unsafe { self.cache.acquire(address, length, access) };
            buffer.lease = Some(lease.map_err(OpenError::Registration)?);
        }
        Ok(buffer)
    }

    /// Lends a transfer its buffer, and begins to register it. Returns the parts that are registered if there will be more. The
    /// handshake has them already: carry out its actions before [`Transfers::finish`], so that the peer registers meanwhile.
    pub(super) fn begin(
        &mut self,
        tag: Tag,
        mut buffer: Buffer<'cache, D>,
        handshake: &mut Handshake,
        now: impl Fn() -> u64,
    ) -> Option<Parts> {
        if buffer.length == 0 || buffer.lease.is_some() {
            if buffer.lease.is_some() {
                buffer.tell(tag, &buffer.parts(self.cache.registrar()), false, handshake, now());
            }
            self.buffers.insert(tag, buffer);
            return None;
        }
        // SAFETY: `Cache::begin` requires a part of the contract about memory, which the caller of `Buffer::new` promised for as long as
        // the buffer exists; it is kept until the handshake releases it.
        let begun = unsafe { self.cache.begin(buffer.address, buffer.length, buffer.access) };
        buffer.pending = match begun {
            Ok(pending) => Some(pending),
            Err(error) => {
                self.buffers.insert(tag, buffer);
                self.fail(tag, error, handshake, now());
                return None;
            }
        };
        let ready = buffer.parts(self.cache.registrar());
        let is_whole = ready.iter().map(|part| part.length).sum::<u64>() == buffer.length as u64;
        if !is_whole {
            // What is ready may travel with the SYNC.
            buffer.tell(tag, &ready, true, handshake, now());
        }
        self.buffers.insert(tag, buffer);
        if is_whole {
            self.finish(tag, &[], handshake, now);
            return None;
        }
        Some(ready)
    }

    /// Registers the rest of a buffer, and tells the handshake of all but the parts that it was told already. Does nothing if the
    /// transfer has ended meanwhile.
    pub(super) fn finish(&mut self, tag: Tag, told: &[Part], handshake: &mut Handshake, now: impl Fn() -> u64) {
        let Some(buffer) = self.buffers.get_mut(&tag) else { return };
        let Some(finished) = buffer.pending.as_mut().map(PendingLease::finish) else { return };
        match finished {
            Ok(lease) => {
                buffer.lease = Some(lease);
                let parts = buffer.parts(self.cache.registrar());
                let rest: Parts = parts.into_iter().flat_map(|part| without(part, told)).collect();
                buffer.tell(tag, &rest, false, handshake, now());
            }
            Err(error) => self.fail(tag, error, handshake, now()),
        }
    }

    /// Ends a transfer whose buffer cannot be registered.
    fn fail(&mut self, tag: Tag, error: AcquireError, handshake: &mut Handshake, now: u64) {
        self.errors.insert(tag, error);
        // Where the transfer has ended meanwhile, its end is told.
        if handshake.fail(now, tag, Reason::Registration).is_err() {
            self.errors.remove(&tag);
        }
    }

    pub(super) fn buffer(&self, tag: Tag) -> Option<&Buffer<'cache, D>> {
        self.buffers.get(&tag)
    }

    /// Returns whether no buffer is lent.
    pub(super) fn is_empty(&self) -> bool {
        self.buffers.is_empty()
    }

    /// Counts a write from the transfer's buffer that is to be posted.
    pub(super) fn write_queued(&mut self, tag: Tag) {
        if let Some(buffer) = self.buffers.get_mut(&tag) {
            buffer.unposted += 1;
        }
    }

    /// Counts a write that was posted, or need not be any more.
    pub(super) fn write_posted(&mut self, tag: Tag) {
        if let Some(buffer) = self.buffers.get_mut(&tag) {
            buffer.unposted -= 1;
        }
    }

    /// Returns whether all writes of the transfer that were queued are posted.
    pub(super) fn all_posted(&self, tag: Tag) -> bool {
        self.buffers.get(&tag).is_none_or(|buffer| buffer.unposted == 0)
    }

    /// Notes how a transfer ended, whose buffer is not free yet.
    pub(super) fn complete(&mut self, tag: Tag, result: Result<u64, Failure>) {
        self.ends.insert(tag, result);
    }

    /// Forgets the end of a transfer that the application need not know of.
    pub(super) fn forget(&mut self, tag: Tag) {
        self.ends.remove(&tag);
    }

    /// Drops a transfer's buffer, and returns how the transfer ended.
    ///
    /// Over most fabrics a connection that is flushed leaves memory to its owner. Over `shm` the peer's own CPU copies, and a
    /// process that is stopped in mid-copy can go on any time. Until it is dead, the memory is the provider's.
    pub(super) fn end(&mut self, tag: Tag) -> Result<u64, TransferError> {
        let error = self.errors.remove(&tag);
        let buffer = self.buffers.remove(&tag);
        let error = match (self.ends.remove(&tag), error) {
            (Some(Ok(bytes)), _) => return Ok(bytes),
            (_, Some(error)) => TransferError::Registration { tag, error },
            (Some(Err(failure)), None) => TransferError::Failed { tag, failure },
            (None, None) => TransferError::Failed { tag, failure: Failure::Lost },
        };
        let domain = self.cache.registrar();
        let is_held = |buffer: &Buffer<'_, D>| buffer.segments().any(|(.., registration)| domain.is_held(registration));
        match buffer.as_ref().is_some_and(is_held) {
            true => Err(TransferError::Quarantined { tag, why: Box::new(error) }),
            false => Err(error),
        }
    }
}

/// Offers parts that follow each other together.
fn offer(handshake: &mut Handshake, now: u64, tag: Tag, parts: &[Part], more: bool) {
    let mut run = SmallVec::<[Segment; 4]>::new();
    let mut start = parts.first().map_or(0, |part| part.offset);
    let mut end = start;
    for part in parts {
        if part.offset != end {
            let _ = handshake.offer(now, tag, start, &run, true);
            run.clear();
            start = part.offset;
        }
        run.push(part.remote);
        end = part.offset + part.length;
    }
    let _ = handshake.offer(now, tag, start, &run, more);
}

/// Returns the rest of a part without those that were announced already. Both are in the order of their addresses.
fn without(part: Part, told: &[Part]) -> Parts {
    let mut rest = Parts::new();
    let mut at = part.offset;
    let end = part.offset + part.length;
    let cut = |from: u64, to: u64| Part {
        offset: from,
        length: to - from,
        remote: Segment {
            address: part.remote.address + (from - part.offset),
            length: to - from,
            key: part.remote.key,
        },
    };
    for told in told {
        let (from, to) = (told.offset.max(at), (told.offset + told.length).min(end));
        if from >= to {
            continue;
        }
        if at < from {
            rest.push(cut(at, from));
        }
        at = to;
    }
    if at < end {
        rest.push(cut(at, end));
    }
    rest
}
