//! The numbers of servers, runs and epochs.

/// The most servers of a cluster.
pub const MAX_SERVERS: usize = 64;

/// The largest epoch: a version has 24 bits for it.
pub const MAX_EPOCH: u32 = (1 << 24) - 1;

/// The number of one membership of a cluster.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Epoch(pub u32);

/// The number of a server in its cluster, below [`MAX_SERVERS`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ServerId(pub u8);

/// The number of one run of a server.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Incarnation(pub u64);
