//! What leaves the store: a look at an item, and chunks that are lent.
//!
//! A [`View`] borrows the store. A [`Filling`] and a [`Held`] do not: the chunk is neither freed nor reused until it is
//! given back.

use std::sync::Arc;

use super::Store;
use super::arena::Arena;
use super::chunk::{Chunk, Id, LEASED, State};

/// An item as it was when asked for, before the asking left its traces.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// Its value.
    pub value: &'a [u8],
    /// The client's flags.
    pub flags: u32,
    /// Its version (CAS).
    pub version: u64,
    /// When it ends, in Unix seconds; 0 is never.
    pub expiry: u64,
    /// When it was last asked for, in Unix seconds.
    pub accessed: u32,
    /// Whether it was asked for before.
    pub fetched: bool,
    /// Whether it was invalidated.
    pub stale: bool,
    /// Whether somebody was told to renew it.
    pub won: bool,
    /// Whether its key was stored as base64.
    pub binary: bool,
    /// Its size class.
    pub class: usize,
    /// Bytes with the header.
    pub size: usize,
    pub(super) id: Id,
}

impl View<'_> {
    /// What to [`hold`](Store::hold).
    pub fn handle(&self) -> Handle {
        Handle(self.id)
    }
}

/// Names an item just looked at.
#[derive(Clone, Copy, Debug)]
pub struct Handle(pub(super) Id);

/// A chunk that is being filled: the owner's alone until it is published or given up.
#[derive(Debug)]
#[must_use = "a chunk that is neither published nor abandoned is lost to the store"]
pub struct Filling {
    pub(super) arena: Arc<Arena>,
    pub(super) id: Id,
}

impl Filling {
    /// Where the value goes.
    pub fn value(&mut self) -> &mut [u8] {
        Chunk::new(&self.arena, self.id).value_mut()
    }
    /// When it will end, in Unix seconds; 0 is never.
    pub fn expiry(&self) -> u64 {
        Chunk::new(&self.arena, self.id).expiry()
    }
    /// What it will be stored under.
    pub fn key(&self) -> &[u8] {
        Chunk::new(&self.arena, self.id).key()
    }
}

/// A published chunk that stays as it is until it is given back to its store.
#[derive(Debug)]
#[must_use = "a chunk that is not released is lost to the store"]
pub struct Held {
    arena: Arc<Arena>,
    pub(super) id: Id,
}

impl Held {
    /// The value.
    pub fn value(&self) -> &[u8] {
        Chunk::new(&self.arena, self.id).value()
    }
}

impl Store {
    /// Whether this store lent it.
    pub(super) fn lent(&self, held: &Held) -> bool {
        Arc::ptr_eq(&self.arena, &held.arena)
    }

    /// The whole item as one-sided readers find it: header, key, value.
    pub fn image(&self, handle: Handle, out: &mut Vec<u8>) {
        self.chunk(handle.0).image(out);
    }

    /// The value of an item just looked at.
    pub fn value(&self, handle: Handle) -> &[u8] {
        self.chunk(handle.0).value()
    }

    /// Keeps the item's chunk as it is until it is released, whatever becomes of the item.
    ///
    /// # Panics
    ///
    /// If the item is gone: a handle is good until the store changes.
    pub fn hold(&mut self, handle: Handle) -> Option<Held> {
        let chunk = Chunk::new(&self.arena, handle.0);
        // One that is dead for others, but was still looked at, is leased: it stays as it is.
        let stays = chunk.state() == State::Alive || chunk.marked(LEASED);
        assert!(stays, "a handle is good until the store changes");
        let holders = chunk.holders();
        // More would not fit into its field: the caller copies the value then.
        if holders == 0xffff {
            return None;
        }
        chunk.set_holders(holders + 1);
        Some(Held { arena: self.arena.clone(), id: handle.0 })
    }

    /// The holder lets go.
    ///
    /// # Panics
    ///
    /// If another store lent it.
    pub fn release(&mut self, held: Held) {
        assert!(self.lent(&held), "a chunk goes back to the store that lent it");
        let chunk = Chunk::new(&held.arena, held.id);
        let holders = chunk.holders();
        chunk.set_holders(holders - 1);
        if holders == 1 && chunk.state() == State::Dead {
            self.retire(held.id);
        }
    }
}
