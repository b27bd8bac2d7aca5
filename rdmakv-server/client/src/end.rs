//! This side's end of a connection, whatever its fabric: an engine and the cache that it registers by.
#![expect(unsafe_code, reason = "lends memory to engines, and keeps what an engine borrows beside it")]

use frrwp::engine::{Engine, Event, OpenError};
use frrwp::fabric::{Domain, Endpoint};
use frrwp::handshake::{Limits, SendError, Side, Tag};
use frrwp::wire::Segment;
use mrrc::cache::AcquireError;
use mrrc::{Access, Cache};
use rdmakv_proto::messages::RemoteSegment;
use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

/// Messages and immediates that a server may have on their way here.
pub(crate) const RECEIVES: u16 = 64;

/// An engine, as far as a client needs one.
pub(crate) trait End: Send {
    fn say(&mut self, bytes: &[u8]) -> Result<(), SendError>;

    fn heard(&mut self, into: &mut Vec<u8>) -> bool;

    /// Reads `from.length` bytes of the server's.
    ///
    /// # Safety
    /// As [`Engine::fetch`]: so many bytes from `memory` on are lent until the end of the read is told or this end is dropped.
    unsafe fn fetch(&mut self, memory: *mut u8, from: RemoteSegment) -> Result<u64, OpenError>;

    /// Writes `to.length` bytes into the server's memory.
    ///
    /// # Safety
    /// As [`Engine::write_remote`]: so many bytes from `memory` on are not written until the end of the write is told or this end is dropped.
    unsafe fn put(&mut self, memory: *const u8, to: RemoteSegment) -> Result<u64, OpenError>;

    /// Reads `from.length` bytes of the server's before it returns: none where the fabric cannot, or not now, else whether they were read.
    ///
    /// # Safety
    /// As [`Engine::read_remote_now`]: no other code uses so many bytes from `memory` on until this returns.
    unsafe fn read_now(&mut self, memory: *mut u8, from: RemoteSegment) -> Option<bool>;

    /// Asks for a transfer.
    ///
    /// # Safety
    /// As [`Engine::read`]: the memory is lent until the end of the transfer is told or this end is dropped.
    unsafe fn read(&mut self, memory: *mut u8, length: usize, header: &[u8]) -> Result<Tag, OpenError>;

    /// Lets the server read this memory, by these segments, until what is returned is dropped.
    ///
    /// # Safety
    /// As [`Cache::acquire`].
    unsafe fn offer(
        &mut self,
        memory: *const u8,
        length: usize,
        segments: &mut Vec<RemoteSegment>,
    ) -> Result<Box<dyn Any + Send>, AcquireError>;

    /// Does not want what the server asks for.
    fn refuse(&mut self, tag: Tag);

    fn progress(&mut self);

    fn next_event(&mut self) -> Option<Event>;

    /// As [`Engine::cork`].
    fn cork(&mut self, corked: bool);

    fn wait(&mut self, longest: Duration);

    /// Bytes that are registered.
    fn registered(&self) -> u64;

    /// Takes the token by which the server offers a connection, where one came.
    fn take_token(&mut self) -> Option<u64> {
        None
    }

    /// Takes the id of a request that ended without an answer, and whether the server may have carried it out. All others go on.
    fn take_unanswered(&mut self) -> Option<(u32, bool)> {
        None
    }

    /// Ends the request of this id, which has no answer. Returns whether the others go on; else nothing has changed.
    fn cancel(&mut self, _: u32) -> bool {
        false
    }

    /// Returns whether anything of the request of this id, which this end took, may have left.
    fn was_sent(&self, _: u32) -> bool {
        true
    }

    /// Returns whether no request of unknown outcome can be carried out any more.
    fn is_settled(&self) -> bool {
        true
    }

    /// Ends all requests, of which nothing more is sent. Returns whether one of them may still be carried out. Then this end goes on until
    /// [`End::is_settled`], and no memory is lent to it.
    fn give_up(&mut self) -> bool {
        false
    }

    /// Returns why it is of no use any more, where no event tells that.
    fn broken(&self) -> Option<&str> {
        None
    }
}

/// Returns the fabric's name of a segment in a message.
#[inline]
fn named(RemoteSegment { address, length, key }: RemoteSegment) -> Segment {
    Segment { address, length, key }
}

/// An engine, and the cache that it has borrowed.
struct Held<E: Endpoint + 'static> {
    /// Dropped first.
    engine: Engine<'static, E>,
    cache: Arc<Cache<E::Domain>>,
}

// SAFETY: what keeps an engine from being sent are the addresses of the memory that it was lent; that memory is the client's slots and
// arenas, which belong to no thread.
unsafe impl<E: Endpoint + Send> Send for Held<E> where Cache<E::Domain>: Send + Sync {}

/// This side's end of a connection that was made with [`RECEIVES`] receives.
pub(crate) fn end<E: Endpoint + Send + 'static>(endpoint: E, cache: &Arc<Cache<E::Domain>>) -> Box<dyn End>
where
    Cache<E::Domain>: Send + Sync,
    <E::Domain as mrrc::registrar::Registrar>::Registration: Send + Sync,
{
    let limits = Limits { receives: RECEIVES, ..Limits::default() };
    let cache = cache.clone();
    // SAFETY: the cache is behind an `Arc` that is kept as long as the engine, and dropped after it; no other part of this module
    // lets the engine out.
    let borrowed: &'static Cache<E::Domain> = unsafe { &*Arc::as_ptr(&cache) };
    Box::new(Held { engine: Engine::new(borrowed, endpoint, Side::Connecting, limits), cache })
}

impl<E: Endpoint + Send + 'static> End for Held<E>
where
    Cache<E::Domain>: Send + Sync,
    <E::Domain as mrrc::registrar::Registrar>::Registration: Send + Sync,
{
    fn say(&mut self, bytes: &[u8]) -> Result<(), SendError> {
        self.engine.send_message(bytes)
    }

    fn heard(&mut self, into: &mut Vec<u8>) -> bool {
        self.engine.recv_message(into)
    }

    #[inline]
    unsafe fn fetch(&mut self, memory: *mut u8, from: RemoteSegment) -> Result<u64, OpenError> {
        // SAFETY: the caller promises that the memory stays, with no other user, until the read has ended.
        unsafe { self.engine.read_remote(memory, from.length as usize, named(from)) }
    }

    #[inline]
    unsafe fn put(&mut self, memory: *const u8, to: RemoteSegment) -> Result<u64, OpenError> {
        // SAFETY: the caller promises that the memory stays, and is not written, until the write has ended.
        unsafe { self.engine.write_remote(memory, to.length as usize, named(to)) }
    }

    #[inline]
    unsafe fn read_now(&mut self, memory: *mut u8, from: RemoteSegment) -> Option<bool> {
        // SAFETY: the caller promises that the memory stays, with no other user, until the read has ended.
        unsafe { self.engine.read_remote_now(memory, from.length as usize, named(from)) }.ok().flatten()
    }

    unsafe fn read(&mut self, memory: *mut u8, length: usize, header: &[u8]) -> Result<Tag, OpenError> {
        // SAFETY: the caller promises that the memory stays, with no other user, until the read has ended.
        unsafe { self.engine.open_read(memory, length, header) }
    }

    unsafe fn offer(
        &mut self,
        memory: *const u8,
        length: usize,
        segments: &mut Vec<RemoteSegment>,
    ) -> Result<Box<dyn Any + Send>, AcquireError> {
        // SAFETY: the caller promises that the memory stays until the offer is dropped.
        let lease = unsafe { self.cache.acquire(memory, length, Access::REMOTE_READ) }?;
        let domain = self.cache.registrar();
        segments.extend(lease.segments().map(|part| {
            let Segment { address, length, key } = domain.remote(part.registration(), part.address(), part.len());
            RemoteSegment { address, length, key }
        }));
        Ok(Box::new(lease))
    }

    fn refuse(&mut self, tag: Tag) {
        // Where it has ended meanwhile, its end is told.
        let _ = self.engine.refuse(tag);
    }

    #[inline]
    fn progress(&mut self) {
        self.engine.progress();
    }

    #[inline]
    fn next_event(&mut self) -> Option<Event> {
        self.engine.next_event()
    }

    fn cork(&mut self, corked: bool) {
        self.engine.cork(corked);
    }

    fn wait(&mut self, longest: Duration) {
        self.engine.wait_at_most(u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX));
    }

    fn registered(&self) -> u64 {
        self.cache.usage().pages * mrrc::PAGE
    }
}
