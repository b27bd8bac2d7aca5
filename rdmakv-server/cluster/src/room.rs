//! The room for staged bytes at one server, and its shares.

use std::collections::BTreeMap;

use crate::messages::Piece;

/// Staged bytes after which a server takes no more.
pub const MAX_STAGED: u64 = 64 << 20;

/// Bytes that a staged piece counts for besides its own.
const PIECE: u64 = 256;

/// The owner of staged bytes: a connection, because one that means harm names as many clients as it likes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Owner {
    Connection(u64),
    Client(u64),
}

/// The staged bytes of all keys.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Room {
    used: u64,
    /// Those of each owner that has some.
    by_owner: BTreeMap<Owner, u64>,
}

impl Room {
    /// Takes bytes of an owner. Returns false if there is no room for them.
    ///
    /// Each may have one piece if there is room at all. It may have more if as many bytes are left for the others as it then has.
    /// So one that stages and never orders takes half of the room.
    pub(crate) fn take(&mut self, owner: Owner, piece: &Piece) -> bool {
        let bytes = piece.bytes().saturating_add(PIECE);
        let own = self.by_owner.get(&owner).copied().unwrap_or(0);
        let (used, more) = (self.used.saturating_add(bytes), own.saturating_add(bytes));
        let is_first = own == 0 && self.used < MAX_STAGED;
        if !is_first && more > MAX_STAGED.saturating_sub(used) {
            return false;
        }
        self.used = used;
        self.by_owner.insert(owner, more);
        true
    }

    /// Takes an owner's bytes back.
    pub(crate) fn give_back(&mut self, owner: Owner, piece: &Piece) {
        let bytes = piece.bytes().saturating_add(PIECE);
        self.used = self.used.saturating_sub(bytes);
        let Some(own) = self.by_owner.get_mut(&owner) else { return };
        *own = own.saturating_sub(bytes);
        if *own == 0 {
            self.by_owner.remove(&owner);
        }
    }

    /// Returns how many bytes are taken.
    pub(crate) fn used(&self) -> u64 {
        self.used
    }
}
