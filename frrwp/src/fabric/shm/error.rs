//! Errors and their remedies.

use mrrc::PageRange;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why there is no listener, no connection, no arena.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShmError {
    /// An address that does not parse.
    #[error("address {text:?}: {what}")]
    Address {
        /// The address.
        text: String,
        /// The fault, and the right form.
        what: &'static str,
    },
    /// Another process listens there already.
    #[error("listen at {address}: another process listens there: end it, or choose another path")]
    InUse {
        /// The address.
        address: String,
    },
    /// There is a file that is no socket.
    #[error("listen at {}: there is a file that is no socket, and it is left alone: choose another path, or remove it", path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// There is no listener.
    #[error("connect to {address}: no process listens there: start the other side first, and compare the paths")]
    NobodyListens {
        /// The address.
        address: String,
    },
    /// A process of another user.
    #[error(
        "{address}: the other side runs as user {uid}, and only this user's processes ({own}) share memory: run both as one user, or use iwarp: between users"
    )]
    OtherUser {
        /// The address.
        address: String,
        /// The other's user.
        uid: u32,
        /// Ours.
        own: u32,
    },
    /// A user that this user namespace does not know, as which every such user appears.
    #[error(
        "{address}: the other side runs as user {uid}, which stands for every user that this user namespace does not know: run both sides as a user that it maps"
    )]
    UnknownUser {
        /// The address.
        address: String,
        /// The user.
        uid: u32,
    },
    /// The system does not say which process the other side is.
    #[error(
        "{address}: the process at the other side cannot be identified ({what}): run both sides in one PID namespace, and let the process that says hello keep its connection"
    )]
    Unidentified {
        /// The address.
        address: String,
        /// Why.
        what: &'static str,
    },
    /// The other side speaks another version of this protocol.
    #[error(
        "{address}: the other side speaks version {theirs} of this protocol, and this side version {own}: update the older one"
    )]
    OtherVersion {
        /// The address.
        address: String,
        /// Theirs.
        theirs: char,
        /// Ours.
        own: char,
    },
    /// The listener has no descriptors left. It evicts half-open connections, and goes on. Reported once for each time of want.
    #[error(
        "accept at {address}: no descriptors are left: raise the limit on open files (ulimit -n); the listener goes on"
    )]
    Descriptors {
        /// The address.
        address: String,
    },
    /// Memory that peers map is a file, and the limit on file sizes (`RLIMIT_FSIZE`) is smaller.
    #[error("make {bytes} bytes of shared memory: the limit on file sizes does not allow it: raise it (ulimit -f)")]
    FileSize {
        /// The requested size.
        bytes: usize,
    },
    /// The other side closed the connection before it was set up. A server at a limit does so, and one that ends.
    #[error(
        "{address}: the other side closed the connection before it was set up: see whether it still runs, and whether it is at a limit on connections or descriptors"
    )]
    ClosedEarly {
        /// The address of the listener.
        address: String,
    },
    /// The other side speaks something else.
    #[error(
        "{address}: the other side does not speak this protocol ({what}): see what program listens or connects there"
    )]
    OtherProtocol {
        /// The address.
        address: String,
        /// The evidence.
        what: &'static str,
    },
    /// The other side passed something that cannot be shared safely.
    #[error("{address}: the other side passed {foreign}; the connection is refused")]
    Foreign {
        /// The address.
        address: String,
        /// The kind of the other protocol.
        foreign: Foreign,
    },
    /// Time ran out.
    #[error("{doing} at {address}: nothing came within {waited:?}: see whether the other side runs, or wait longer")]
    TimedOut {
        /// The awaited step.
        doing: &'static str,
        /// The address.
        address: String,
        /// How long.
        waited: Duration,
    },
    /// A bound of the domain's.
    #[error("{doing}: the domain has {most} already: {remedy}")]
    Full {
        /// The wanted step.
        doing: &'static str,
        /// The bound.
        most: usize,
        /// The remedy.
        remedy: &'static str,
    },
    /// A size that no arena has.
    #[error("arena of {bytes} bytes: ask for one byte at least, and for 1 TiB at most")]
    Size {
        /// The requested size.
        bytes: usize,
    },
    /// The system refused.
    #[error("{doing}: {source}: {remedy}")]
    System {
        /// The operation.
        doing: &'static str,
        /// The remedy.
        remedy: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

/// A descriptor that is not mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Foreign {
    /// Not a memory file.
    #[error("a descriptor that is no memory file")]
    Kind,
    /// Its size could change.
    #[error("a memory file that is not sealed against shrinking and growing")]
    Unsealed,
    /// Of another size than was said.
    #[error("a memory file of {has} bytes where {said} were announced")]
    Size {
        /// The announced number.
        said: u64,
        /// The actual number.
        has: u64,
    },
    /// The system does not map it, or not with the rights that were announced.
    #[error("a memory file that cannot be mapped with the rights that were announced")]
    Unmappable,
    /// Not as many descriptors as the packet should carry.
    #[error("a packet with {has} descriptors where {wanted} belong")]
    Count {
        /// The received size.
        has: usize,
        /// The right size.
        wanted: usize,
    },
}

/// Why memory is not registered with rights for peers. Inside of the [`io::Error`] that the registrar returns.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotOffered {
    /// Outside of every arena.
    #[error(
        "{range} is not all in one arena of this domain, and other memory cannot be shared with another process: take buffers for peers from ShmDomain::arena"
    )]
    NotShared {
        /// The requested range.
        range: PageRange,
    },
    /// The arena is for reading.
    #[error(
        "{range} is in an arena that peers may only read: take buffers that peers write from an arena made with Sharing::Writable"
    )]
    ReadOnly {
        /// The requested range.
        range: PageRange,
    },
    /// Pages that were taken back from a peer that stalled.
    #[error("{range} holds pages that ShmArena::take_back made private: use other pages of the arena, or a new arena")]
    Private {
        /// The requested range.
        range: PageRange,
    },
    /// Too much memory waits for the death of peers that stalled.
    #[error("{bytes} bytes wait for the death of {peers} stalled peers, and {most} may: end those processes")]
    Quarantine {
        /// Bytes of registrations that such peers are at.
        bytes: u64,
        /// Peers.
        peers: usize,
        /// The bound.
        most: u64,
    },
}

impl From<NotOffered> for io::Error {
    fn from(error: NotOffered) -> Self {
        Self::new(io::ErrorKind::InvalidInput, error)
    }
}

/// Wraps an error of the system.
pub(super) fn system<E: Into<io::Error>>(doing: &'static str, remedy: &'static str) -> impl Fn(E) -> ShmError {
    move |source| ShmError::System { doing, remedy, source: source.into() }
}
