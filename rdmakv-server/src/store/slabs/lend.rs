//! Chunks that are lent: neither freed nor used again until they are given back.

use std::sync::Arc;

use super::super::arena::Arena;
use super::super::chunk::{Chunk, Id, LEASED};
use super::{Slabs, State};

/// A chunk that is being filled: the owner's alone until it is published or given up.
#[derive(Debug)]
#[must_use = "a chunk that is neither published nor abandoned is lost to the store"]
pub struct ChunkWriter {
    arena: Arc<Arena>,
    id: Id,
}

impl ChunkWriter {
    /// Returns where the value goes.
    pub fn value(&mut self) -> &mut [u8] {
        self.chunk().value_mut()
    }
    /// Returns when it will end, in Unix seconds; 0 is never.
    pub fn expiry(&self) -> u64 {
        self.chunk().expiry()
    }
    /// Returns the key that it will be stored under.
    pub fn key(&self) -> &[u8] {
        self.chunk().key()
    }
    pub(in crate::store) fn chunk(&self) -> Chunk<'_> {
        Chunk::new(&self.arena, self.id)
    }
    pub(in crate::store) fn id(&self) -> Id {
        self.id
    }
}

/// A published chunk that stays as it is until it is given back to its store.
#[derive(Debug)]
#[must_use = "a chunk that is not released is lost to the store"]
pub struct ChunkRef {
    arena: Arc<Arena>,
    id: Id,
}

impl ChunkRef {
    /// Returns the value.
    pub fn value(&self) -> &[u8] {
        Chunk::new(&self.arena, self.id).value()
    }
}

impl Slabs {
    /// Lends a chunk in which an item was begun.
    pub(in crate::store) fn writer(&self, id: Id) -> ChunkWriter {
        ChunkWriter { arena: self.arena.clone(), id }
    }
    /// Takes back a chunk to publish it.
    pub(in crate::store) fn take(&self, writer: &ChunkWriter) -> Id {
        assert!(Arc::ptr_eq(&self.arena, &writer.arena), "a chunk goes back to the store that lent it");
        writer.id
    }
    /// Takes back a chunk that is not published, and frees it.
    pub(in crate::store) fn abandon(&mut self, writer: ChunkWriter) {
        let id = self.take(&writer);
        self.free(id);
    }

    /// Lends a published chunk; `None` if it has as many holders as it can.
    pub(in crate::store) fn hold(&mut self, id: Id) -> Option<ChunkRef> {
        let chunk = self.chunk(id);
        // One that is dead for others, but was still looked at, is leased: it stays as it is.
        let stays = chunk.state() == State::Alive || chunk.marked(LEASED);
        assert!(stays, "a handle is good until the store changes");
        // More would not fit into its field: the caller copies the value then.
        self.add_holder(id).then(|| ChunkRef { arena: self.arena.clone(), id })
    }
    /// Returns the chunk that was lent.
    pub(in crate::store) fn lent(&self, held: &ChunkRef) -> Id {
        assert!(Arc::ptr_eq(&self.arena, &held.arena), "a chunk goes back to the store that lent it");
        held.id
    }
    /// Takes back a published chunk.
    pub(in crate::store) fn release(&mut self, held: ChunkRef) {
        let id = self.lent(&held);
        self.drop_holder(id);
    }
}
