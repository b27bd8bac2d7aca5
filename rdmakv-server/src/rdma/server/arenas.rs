//! Where the stores' memory is: which shard has an address.

use crate::session::Shards;

/// The stores' arenas, in the order of the shards.
#[derive(Debug)]
pub(super) struct Arenas(Vec<Arena>);

#[derive(Clone, Copy, Debug)]
struct Arena {
    base: u64,
    bytes: u64,
}

impl Arenas {
    /// Those of these shards.
    pub(super) fn of(shards: &Shards) -> Self {
        let arena = |shard| {
            let (base, bytes) = shards.at(shard).arena();
            Arena { base: base as u64, bytes: bytes as u64 }
        };
        Self((0..shards.count()).map(arena).collect())
    }

    /// The shard whose memory it is.
    pub(super) fn shard(&self, address: u64) -> Option<usize> {
        let within = |arena: &Arena| address.checked_sub(arena.base).is_some_and(|at| at < arena.bytes);
        self.0.iter().position(within)
    }

    /// Where each begins, and its bytes.
    pub(super) fn places(&self) -> Vec<(u64, u64)> {
        self.0.iter().map(|arena| (arena.base, arena.bytes)).collect()
    }
}
