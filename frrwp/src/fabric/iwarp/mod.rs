//! iWARP in user space, over TCP: what Linux's siw and iWARP cards speak.
//!
//! [`mpa`] frames the stream (RFC 5044, RFC 6581). [`ddp`] has where bytes belong and what is done with them (RFC 5041, RFC
//! 5040), [`terminate`] the reports of errors. All of it reads bytes where they lie, and none of it does input or output.
//!
//! ```no_run
//! use frrwp::fabric::iwarp::{IwarpDomain, IwarpListener, IwarpOptions, connect};
//!
//! let domain = IwarpDomain::new(IwarpOptions::default())?;
//! let mut listener = IwarpListener::bind(&domain, "iwarp:0.0.0.0:7471")?;
//! let served = listener.accept(64, None)?;
//! // On the other machine:
//! let connected = connect(&domain, "iwarp:server.example:7471", 64)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A domain has a thread that serves what peers do to its memory, so that no application is woken for it. Posts go to the
//! socket from the posting thread, and the waiting thread reads the socket itself, unless it waits
//! [passively](IwarpOptions::passive).
//!
//! # Peers that overlook what comes first
//!
//! Linux's siw replies to a connection's request and only then listens for frames: one that comes in between waits until
//! another does. So a side that has connected and sent something, and receives nothing, sends an empty write. The first
//! goes after 4 ms, then 16, 64 and 256; [`IwarpEndpoint::probes_sent`] counts them. The lab's tests against siw stalled in
//! a third of their connections without.
//!
//! # What a registration opens
//!
//! A registration of a cache covers whole pages and, as a rule, more than one transfer. Over [`IwarpDomain::new`] its key
//! serves every connection of the domain: right where all peers are trusted alike. For others there is
//!
//! * [`IwarpEndpoint::own_domain`]: keys that one connection alone can use. A cache of its own for each such peer;
//! * [`IwarpDomain::open`]: exact registration, to the byte, for as long as the caller says;
//! * [`IwarpDomain::handle`]: a key of one connection that stays while what it names is replaced: see [`Binding`].
//!
//! The memory that this side reads into is open to no peer. The peer gets a key that opens nothing, and no address; its
//! answers are known by their order.
//!
//! A key is what the RFCs call a steering tag (STag). Every placement is checked against its key. A breach is answered with the Terminate that the RFC names and ends the
//! connection. Nothing is encrypted: a host on the path can read and forge, so keep others off it (RFC 5042, section 5.4.3).
//!
//! # Keys that are guessed
//!
//! A key has 32 random bits. An IPv4 address, or an IPv6 /64, makes at most 64 guesses in any second, by whatever number of
//! connections. Against 1,024 live keys the first hit takes 18 hours on average. An access past this limit waits before its
//! key is looked up. Connecting never waits. Nor does an access by a key of the connection's own, or by one that it has
//! used while the limit was on. A key that the connection had, and that was taken back, is no guess. Each connection, and
//! the domain, recognizes at least the last 61,440 keys that it was given. [`IwarpDomain::tag_guesses`] counts, and
//! [`IwarpDomain::next_throttled`] tells of each source that begins to be limited.
//!
//! Nothing is pinned: a registration is a range of addresses. Where memory is unmapped while it is registered, a peer's access
//! ends its connection, as all of it goes through the kernel, which notices. But until the cache's monitor has ended the
//! registration, memory that is mapped at the same place meanwhile can be reached in its stead. A program that unmaps memory
//! for which untrusted peers hold keys invalidates it in the cache first.
//!
//! # Checksums
//!
//! CRCs are on unless both sides do without ([`IwarpOptions::checksums`]). They find what TCP's checksum lets pass, and
//! cost a pass over every byte at both ends. Registered memory that peers write or read is copied, because it may change
//! while it is summed up, or be unmapped. A frame's payload is placed before its CRC has come; a wrong one ends the
//! connection before anything is told of it. Without CRCs, large payloads go between socket and registered memory without a
//! copy of ours. Payloads of up to 4 KiB that come together with their headers are copied from there.
//!
//! # Forks
//!
//! A child of a fork has copies of its parent's endpoints, and not the thread that serves them. They are of no use there: posting
//! fails, polling returns the end, and dropping one does nothing to the connection.
//!
//! # System calls
//!
//! A read takes four: each side sends once, and receives once, in which it sleeps. The domain's thread does so too where it
//! serves one busy connection. With several it asks first which of them is ready, once for all that are. CRCs add one where
//! the bytes are, for the copy. A large write takes about two calls for each MiB at its source, and one for each frame (64
//! KiB) at its destination. With CRCs a frame is one copy, and what is received at a time is more.

mod binding;
mod common;
mod connect;
mod connection;
mod crc;
pub mod ddp;
mod endpoint;
mod handle;
mod inbound;
mod memory;
pub mod mpa;
mod outbound;
mod provider;
mod reach;
mod registrar;
mod setup;
mod socket;
mod tags;
pub mod terminate;
mod throttle;

pub use binding::Binding;
pub(in crate::fabric) use connect::connect_within;
pub use connect::{IwarpAddress, IwarpListener, connect};
pub use endpoint::IwarpEndpoint;
pub use handle::Handle;
pub use registrar::{Exact, IwarpDomain, IwarpKey};
pub use throttle::{TagGuesses, TagSource};

use mpa::MpaError;
use std::io;
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use terminate::Terminate;

/// The options of a domain's connections.
///
/// Fields may be added in a minor release: name those that you set, and write `..Default::default()` for the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IwarpOptions {
    /// Whether this side asks for CRCs. They are used where either side asks.
    pub checksums: bool,
    /// Whether this side, when it connects, offers to say that it is ready to receive, so that the peer may speak first (RFC
    /// 6581). Without, the peer speaks once this side has.
    pub ready_to_receive: bool,
    /// Reads of a peer's that are answered at a time (IRD), 1 to 16,382.
    pub inbound: u16,
    /// Reads of this side's that are on their way at a time (ORD), 1 to 16,382.
    pub outbound: u16,
    /// How long [`connect`] may take, and a peer that connects: 5 s.
    pub set_up: Duration,
    /// How long a peer may stand still while something is to come from it, and how long it may be out of reach in any case.
    /// The system of an idle peer is probed, at most every second.
    pub stall: Duration,
    /// Whether a waiting application leaves its connection to the domain's thread, and is woken by its own completions
    /// alone. It is for servers with peers that read and write their memory and send few messages. A read of the peer's
    /// then costs no switch to the application's thread, and a message costs one more, from the domain's thread to it.
    pub passive: bool,
}

impl Default for IwarpOptions {
    fn default() -> Self {
        Self {
            checksums: true,
            ready_to_receive: true,
            inbound: 64,
            outbound: 64,
            set_up: Duration::from_secs(5),
            stall: Duration::from_secs(10),
            passive: false,
        }
    }
}

/// Why a connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IwarpEnd {
    /// This side wanted it.
    #[error("this side disconnected")]
    Disconnected,
    /// The peer closed the connection.
    #[error("the peer closed the connection")]
    Closed,
    /// The system says that the connection is broken.
    #[error("the connection broke: {0}")]
    Broken(io::ErrorKind),
    /// The peer found this side at fault.
    #[error("the peer ended the connection: {}", .0.map_or("it did not say why".to_owned(), |why| why.to_string()))]
    Terminated(Option<Terminate>),
    /// The peer did what it may not, and was told so.
    #[error("the peer broke the rules: {0}")]
    Breach(Terminate),
    /// The peer stood still.
    #[error("nothing came from the peer for {} ms, though something had to", .after.as_millis())]
    Stalled {
        /// How long it was waited for.
        after: Duration,
    },
    /// A registration was taken back while the peer was reading it.
    #[error("memory was deregistered while the peer was reading it")]
    Withdrawn,
}

/// Why there is no listener, or no connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IwarpError {
    /// The address is none.
    #[error("`{text}` is no iwarp address: write iwarp:HOST:PORT, such as iwarp:10.0.0.1:7471 or iwarp:[::1]:7471")]
    Address {
        /// The given text.
        text: String,
    },
    /// The host has no address.
    #[error("look up the host of {address}: {error}: write its IP address")]
    Resolve {
        /// The address.
        address: String,
        /// The system's error.
        error: io::Error,
    },
    /// The port is taken.
    #[error("{address}: the port is in use: stop its listener, or choose another port, or 0 for a free one")]
    PortInUse {
        /// The address.
        address: String,
    },
    /// There is no listener.
    #[error("{address}: refused: start the server, and see that it listens on this address and port")]
    Refused {
        /// The address.
        address: String,
    },
    /// The peer did not answer in time.
    #[error(
        "{doing} {address}: no {what} within {} ms: see that the host is up, that no firewall filters the port, and that the \
         listener is an iWARP server", .after.as_millis()
    )]
    TimedOut {
        /// The operation.
        doing: &'static str,
        /// The address.
        address: String,
        /// The missing part.
        what: &'static str,
        /// How long it was waited for.
        after: Duration,
    },
    /// The peer speaks something else, or a dialect that is not spoken here.
    #[error("{address}: {error}")]
    Mpa {
        /// The address.
        address: String,
        /// The fault.
        error: MpaError,
    },
    /// The peer closed the connection before it was set up.
    #[error("{address}: the peer closed the connection before it was set up: see whether it is an iWARP server")]
    Hung {
        /// The address.
        address: String,
    },
    /// The peer does not want this connection.
    #[error("{address}: the peer rejects the connection: see its log")]
    Rejected {
        /// The address.
        address: String,
    },
    /// The peer wants to have more reads at a time than this side answers.
    #[error(
        "{address}: the peer reads {wanted} at a time and this side answers {answered}: raise IwarpOptions::inbound"
    )]
    Depth {
        /// The address.
        address: String,
        /// The revision that the peer wants.
        wanted: u16,
        /// The revision of this side.
        answered: u16,
    },
    /// The listener has no descriptors left. It evicts half-open connections, and goes on. Reported once for each time of want.
    #[error(
        "accept at {address}: no descriptors are left: raise the limit on open files (ulimit -n); the listener goes on"
    )]
    Descriptors {
        /// The address.
        address: String,
    },
    /// Anything else.
    #[error("{address}: {what}: {error}")]
    System {
        /// The address.
        address: String,
        /// The operation.
        what: &'static str,
        /// The system's error.
        error: io::Error,
    },
}

/// Nanoseconds on the clock that endpoints count by.
fn since_start(at: Instant) -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    u64::try_from(at.saturating_duration_since(*START.get_or_init(Instant::now)).as_nanos()).unwrap_or(u64::MAX)
}
