//! The memory for the pieces of calls to a server of a cluster.

use super::Shards;
use crate::store::{ChunkWriter, Reserved};

/// The memory for the piece of a call.
#[derive(Debug)]
pub(super) enum Room {
    /// It has no piece.
    None,
    Chunk(ChunkWriter),
    /// There is no chunk for it.
    Reserve(Reserved),
    /// There is no memory, so its bytes are skipped.
    Skipped,
}

impl Room {
    /// Returns where the bytes of the piece go.
    pub(super) fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        match self {
            Self::Chunk(writer) => Some(writer.value()),
            Self::Reserve(bytes) => Some(bytes),
            Self::None | Self::Skipped => None,
        }
    }

    /// Returns the bytes of the piece.
    pub(super) fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Chunk(writer) => Some(writer.bytes()),
            Self::Reserve(bytes) => Some(bytes),
            Self::None | Self::Skipped => None,
        }
    }

    /// Returns the chunk with the bytes of the piece, if there is one.
    pub(super) fn writer(&self) -> Option<&ChunkWriter> {
        if let Self::Chunk(writer) = self { Some(writer) } else { None }
    }

    /// Gives the memory back.
    pub(super) fn abandon(self, shards: &Shards, shard: usize) {
        if let Self::Chunk(writer) = self {
            shards.at(shard).abandon(writer);
        }
    }
}
