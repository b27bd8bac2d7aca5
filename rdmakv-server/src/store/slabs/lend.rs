//! Chunks that are lent: neither freed nor used again until they are given back.

use std::sync::Arc;

use super::super::arena::Arena;
use super::super::chunk::{Chunk, Id};

/// A chunk that is being filled: the owner's alone until it is published or given up.
#[derive(Debug)]
#[must_use = "a chunk that is neither published nor abandoned is lost to the store"]
pub struct ChunkWriter {
    arena: Arc<Arena>,
    id: Id,
}

impl ChunkWriter {
    /// Lends a chunk in which an item was begun.
    pub(super) fn new(arena: &Arc<Arena>, id: Id) -> Self {
        Self { arena: arena.clone(), id }
    }
    /// Returns the chunk, to its own store.
    pub(super) fn lent_by(&self, arena: &Arc<Arena>) -> Id {
        assert!(Arc::ptr_eq(arena, &self.arena), "a chunk goes back to the store that lent it");
        self.id
    }
    /// Returns where the value goes.
    pub fn value(&mut self) -> &mut [u8] {
        self.chunk().value_mut()
    }
    /// Returns the value as far as it was filled.
    pub fn bytes(&self) -> &[u8] {
        self.chunk().value()
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
    /// Lends a published chunk that has one holder more for it.
    pub(super) fn new(arena: &Arc<Arena>, id: Id) -> Self {
        Self { arena: arena.clone(), id }
    }
    /// Returns the chunk, to its own store.
    pub(super) fn lent_by(&self, arena: &Arc<Arena>) -> Id {
        assert!(Arc::ptr_eq(arena, &self.arena), "a chunk goes back to the store that lent it");
        self.id
    }
    /// Returns the value.
    pub fn value(&self) -> &[u8] {
        Chunk::new(&self.arena, self.id).value()
    }
}
