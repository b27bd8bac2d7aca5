//! Memory of one client's that fabrics reach: what servers read from (values to be stored), and what they write into (large values).
//!
//! Both are arenas of one domain of shared memory, because over `shm` nothing else can be offered to a peer. Other fabrics register the
//! same memory. Memory that is read from cannot be written by others, the kernel sees to that, and is lent as plain bytes. Memory that
//! servers write into is never lent: it is copied from.
#![expect(unsafe_code, reason = "lends bytes of a mapping")]

use super::error::Error;
use frrwp::fabric::shm::{Sharing, ShmArena, ShmBuffer, ShmDomain, ShmOptions};

/// The memory, and the domain that it is of.
pub(super) struct Memory {
    pub(super) domain: ShmDomain,
    sending: ShmArena,
    landing: ShmArena,
}

/// Bytes that servers may read while an operation is under way.
pub(super) struct Sending(ShmBuffer, usize);

fn refused(why: impl std::fmt::Display) -> Error {
    Error::Memory { why: why.to_string() }
}

impl Memory {
    /// So many bytes for each of the two, of which the system gives those that are used.
    pub(super) fn new(bytes: usize) -> Result<Self, Error> {
        let domain = ShmDomain::new(ShmOptions::default()).map_err(refused)?;
        let sending = domain.arena(bytes, Sharing::Readable).map_err(refused)?;
        let landing = domain.arena(bytes, Sharing::Writable).map_err(refused)?;
        Ok(Self { domain, sending, landing })
    }

    /// Memory for data to be stored. Zeroed, or with what was there before.
    pub(super) fn sending(&self, bytes: usize) -> Result<Sending, Error> {
        self.sending.buffer(bytes).map(|buffer| Sending(buffer, bytes)).map_err(refused)
    }

    /// Memory for a value of a server's.
    pub(super) fn landing(&self, bytes: usize) -> Result<ShmBuffer, Error> {
        self.landing.buffer(bytes).map_err(refused)
    }
}

impl Sending {
    pub(super) fn as_ptr(&self) -> *const u8 {
        self.0.as_ptr()
    }

    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: the pages are this buffer's alone, and the file is sealed: no other process can write it, whatever it does.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr(), self.1) }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the memory is this value's own and borrowed alone. Peers may read its bytes at any time, which this
        // process cannot see.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_ptr(), self.1) }
    }
}
