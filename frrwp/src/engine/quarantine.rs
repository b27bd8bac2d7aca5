//! Buffers that a peer may still be at though their connection is gone.
//!
//! Over most fabrics a connection that is flushed leaves memory to its owner. Over `shm` the peer's own CPU copies, and a
//! process that is stopped in mid-copy can go on any time; until it is dead, the memory is the provider's.

use super::{Engine, TransferError};
use crate::fabric::{Domain, Endpoint};
use crate::handshake::Tag;

impl<E: Endpoint> Engine<'_, E> {
    /// What a transfer that failed is told, its buffer not yet released.
    pub(super) fn held_or_free(&self, tag: Tag, error: TransferError) -> TransferError {
        let domain = self.cache.registrar();
        let is_held = |buffer: &super::Buffer<'_, E::Domain>| {
            buffer.segments().any(|(_, _, registration)| domain.is_held(registration))
        };
        match self.buffers.get(&tag).is_some_and(is_held) {
            true => TransferError::Quarantined { tag, why: Box::new(error) },
            false => error,
        }
    }
}
