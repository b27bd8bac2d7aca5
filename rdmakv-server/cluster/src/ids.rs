//! The numbers of servers, runs, epochs, writes and versions.

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

/// The number of one write of one client.
///
/// Its outcome is known for as long as the client may ask for it. A client that never learned an outcome goes on under a new client
/// number. So it never closes a write that others may still have to complete.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WriteId {
    /// The client.
    pub client: u64,
    /// Its write, counted from 1.
    pub sequence: u64,
}

/// The version of a value: the epoch that ordered its write, above a count of the server that did.
///
/// One server orders the writes of a key in one epoch, so versions of a key are its writes in their order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Version(pub u64);

impl Version {
    /// The version of a key that was never written.
    pub const ABSENT: Self = Self(0);

    const COUNT_BITS: u32 = 40;

    /// The largest count: writes of one server in one epoch. Before it is reached the server asks for another epoch.
    pub const MAX_COUNT: u64 = (1 << Self::COUNT_BITS) - 1;

    /// Returns a version of an epoch. The count is at most [`Self::MAX_COUNT`].
    pub fn new(epoch: Epoch, count: u64) -> Self {
        Self((u64::from(epoch.0) << Self::COUNT_BITS) | (count & Self::MAX_COUNT))
    }

    /// Returns the epoch that ordered the write.
    pub fn epoch(self) -> Epoch {
        Epoch((self.0 >> Self::COUNT_BITS) as u32)
    }
}
