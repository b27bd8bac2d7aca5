//! RDMA devices: reliable connections of queue pairs, by libibverbs and librdmacm. Feature `verbs`, or `verbs-linked`.
//!
//! ```no_run
//! use frrwp::fabric::verbs::{VerbsDomain, VerbsListener, VerbsOptions, connect};
//!
//! // One domain a device: of the first that there is, of one by name, or of the one that leads somewhere.
//! let domain = VerbsDomain::open(Some("rxe0"), VerbsOptions::default())?;
//! let mut listener = VerbsListener::bind(&domain, "verbs:0.0.0.0:7471")?;
//! let served = listener.accept(64, None)?;
//! // On the other machine:
//! let address = "verbs:10.0.0.1:7471";
//! let domain = VerbsDomain::reaching(address, VerbsOptions::default())?;
//! let connected = connect(&domain, address, 64)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! There is no thread: an endpoint does its work while it is polled or waited for. [`VerbsOptions::spin`] says how long a wait
//! polls before it sleeps, from not at all to always.
//!
//! # When a connection breaks
//!
//! A key that the peer's device refuses, a peer that dies, or a device that goes ends the connection.
//! [`VerbsEndpoint::why`] returns the reason. Posts are reported as failed; then the connection is
//! [flushed](crate::fabric::Completion::Flushed). By then the queue pair is gone and no device accesses this side's memory
//! by it. [`connect_again`] makes the connection again, for another engine over it.
//!
//! Over iWARP a refused key looks like other breaks. A write is done before the peer's device has looked at its key. The
//! message behind a write is the only news of it.
//!
//! A device that goes away takes its connections with it. Drop what was made over its [`VerbsDomain`], and the domain, so
//! that the kernel can take it away (`rxe` and `siw` wait for that). When it is back, a domain is opened again.
//!
//! # Which side speaks first
//!
//! Over iWARP the side that connected does (RFC 5044, section 7.1.1). The side that accepted takes nothing to send (`WouldBlock`) until
//! something has come, or half a second has gone by. A peer that has not looked at the reply to its request yet would take bytes behind
//! it for a breach, as Linux's siw does.
//!
//! # What a registration opens
//!
//! A key opens its whole registration to every peer of the domain: see [the crate](crate) on peers that are not trusted. A
//! domain for each such peer keeps them apart. A [`Window`] protects as well, if the device has memory windows
//! ([`VerbsOptions::windows`]). Its key opens the bytes that it was asked for, to the peer of one connection, until it is
//! dropped. Not every device that says that it has windows holds its peers to them (Linux's rxe does not look at their
//! bounds): [`try_windows`] finds out.
//!
//! # Memory that is read into
//!
//! Over iWARP the answer to a read is a write of the peer's. Most cards want the memory to be registered with
//! [`REMOTE_WRITE`](mrrc::Access::REMOTE_WRITE) for it; siw does not. The handshake does not read.
//!
//! # Datagrams
//!
//! A [`VerbsUdPort`] carries the datagrams of [`reliability`](crate::fabric::reliability), as a
//! [`UdpPort`](crate::fabric::datagram::UdpPort) does over a socket.
//!
//! # Forks
//!
//! A child of a process with connections has no business with them: dropping them there changes nothing here.

mod address;
mod connect;
mod datagrams;
mod device;
mod domain;
mod endpoint;
mod error;
mod manager;
mod pair;
mod slots;
mod trial;
mod windows;

pub use address::VerbsAddress;
pub(in crate::fabric) use connect::connect_within;
pub use connect::{VerbsListener, connect, connect_again};
pub use datagrams::{VerbsUdAddress, VerbsUdPort};
pub use domain::VerbsDomain;
pub use endpoint::VerbsEndpoint;
pub use error::{VerbsEnd, VerbsError};
pub use trial::{WindowTrial, try_windows};
pub use windows::{Window, Windows};

// The one module that names the crates of the binding is mrrc's.
use mrrc::registrar::verbs::binding as ib;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The options of a domain's connections.
///
/// Fields may be added in a minor release: name those that you set, and write `..Default::default()` for the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VerbsOptions {
    /// How long connecting may take, and a peer that connects: 5 s.
    pub set_up: Duration,
    /// How long something that was posted may stand still, beside the time that its bytes take at 10 MB/s: 10 s. A peer's
    /// device that does not answer at all is given up after half of that, or so.
    pub stall: Duration,
    /// How long what was posted may take to leave when this side disconnects: 250 ms.
    pub linger: Duration,
    /// How long a wait polls before it sleeps: not at all. [`Duration::MAX`] never sleeps, and costs a processor.
    pub spin: Duration,
    /// Messages, writes and reads that are posted at a time: 128, or what the device takes.
    pub depth: u32,
    /// Reads under way at a time, each way: 16, or what the device does.
    pub reads: u8,
    /// Whether [windows](VerbsEndpoint::windows) are wanted, where the device has them: no.
    pub windows: bool,
}

impl Default for VerbsOptions {
    fn default() -> Self {
        Self {
            set_up: Duration::from_secs(5),
            stall: Duration::from_secs(10),
            linger: Duration::from_millis(250),
            spin: Duration::ZERO,
            depth: 128,
            reads: 16,
            windows: false,
        }
    }
}

/// Nanoseconds on the clock that endpoints count by.
fn since_start(at: Instant) -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    u64::try_from(at.saturating_duration_since(*START.get_or_init(Instant::now)).as_nanos()).unwrap_or(u64::MAX)
}
