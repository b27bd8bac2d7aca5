//! On what terms things are done, and what became of them.

use rdmakv_proto::commands::Mode;

/// Why there is no chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The item is larger than items may be.
    TooLarge,
    /// Nothing could be evicted, or nothing may be.
    NoMemory,
}

/// All the terms of a store.
#[derive(Clone, Copy, Debug, Default)]
pub struct Terms {
    /// See [`Mode`].
    pub mode: Mode,
    /// Only if the item that is there has this version.
    pub cas: Option<u64>,
    /// With `cas`: an older version is stored too, but as stale.
    pub invalidate: bool,
    /// The version that it gets, instead of the next one.
    pub version: Option<u64>,
    /// Stores the value itself where there is nothing to append to.
    pub vivify: bool,
    /// The key came as base64, and goes back as such.
    pub binary: bool,
}

/// The effect of `md` on an item instead of its deletion.
#[derive(Clone, Copy, Debug, Default)]
pub struct Keep {
    /// It becomes stale.
    pub stale: bool,
    /// It loses its value and its client's flags.
    pub empty: bool,
    /// It gets this end.
    pub expiry: Option<u64>,
    /// It gets this version, instead of the next one.
    pub version: Option<u64>,
}

/// The outcome of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Stored, as this version.
    Stored(u64),
    /// The mode did not allow it.
    NotStored,
    /// The version was another.
    Exists,
    /// There was nothing to compare with.
    NotFound,
    /// There was no room.
    Refused(Refused),
}

/// The outcome of a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deleted {
    /// Gone, or marked as stale.
    Done,
    /// There was none.
    NotFound,
    /// The version was another.
    Exists,
}
