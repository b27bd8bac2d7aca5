//! The address chooses the provider.
//!
//! ```
//! use frrwp::fabric::{connect, listen};
//! use std::time::Duration;
//!
//! let mut listener = listen("iwarp:127.0.0.1:0")?;
//! let address = listener.address();
//! let connecting = std::thread::spawn(move || connect(&address, 64, Duration::from_secs(5)));
//! let (_there, served) = (listener.domain().clone(), listener.accept(64, None)?);
//! let (_here, connected) = connecting.join().expect("it does not panic")?;
//! # drop((served, connected));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A [`FabricDomain`] is the domain of the provider that an address names, and [`FabricEndpoint`] an end of its
//! connections. An engine over them is one type, whatever the address. A program that knows its provider uses that one's
//! own types, which have more to offer. [`Connector`] and [`Listener`] are what all of them have in common.

/// Does something with what is the provider's, whichever it is.
macro_rules! each {
    ($of:ident, $value:expr, $inner:ident => $work:expr) => {
        match $value {
            #[cfg(target_os = "linux")]
            $of::Shm($inner) => $work,
            $of::Iwarp($inner) => $work,
            #[cfg(all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux"))]
            $of::Verbs($inner) => $work,
        }
    };
}

/// Does something with two things that are the same provider's; where they are not, the last.
macro_rules! both {
    ($of:ident, $with:ident, $values:expr, ($inner:ident, $other:pat) => $work:expr, $none:expr) => {
        match $values {
            #[cfg(target_os = "linux")]
            ($of::Shm($inner), $with::Shm($other)) => $work,
            ($of::Iwarp($inner), $with::Iwarp($other)) => $work,
            #[cfg(all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux"))]
            ($of::Verbs($inner), $with::Verbs($other)) => $work,
            _ => $none,
        }
    };
}

mod domain;
mod endpoint;
mod providers;

pub use domain::{FabricDomain, FabricKey};
pub use endpoint::{FabricEndpoint, FabricListener};

use super::attempt::Attempt;
use super::connecting::Connecting;
use super::connector::{Connector, FabricMemory, Listener};
use super::iwarp::{IwarpAddress, IwarpError, IwarpOptions};
#[cfg(target_os = "linux")]
use super::shm::{ShmAddress, ShmError, ShmOptions};
#[cfg(all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux"))]
use super::verbs::{VerbsAddress, VerbsError, VerbsOptions};
use std::fmt;
use std::io;
use std::str::FromStr;
use std::time::Duration;

/// The forms of addresses.
const KNOWN: &str = "shm:PATH, shm:@NAME or iwarp:HOST:PORT, or verbs:HOST:PORT";

/// An address, and with it a provider.
///
/// ```
/// use frrwp::fabric::FabricAddress;
///
/// let address: FabricAddress = "iwarp:10.0.0.1:7471".parse()?;
/// assert_eq!((address.scheme(), address.to_string().as_str()), ("iwarp", "iwarp:10.0.0.1:7471"));
/// let error = "tcp:10.0.0.1".parse::<FabricAddress>().unwrap_err();
/// assert!(error.to_string().contains("shm:PATH"));
/// # Ok::<(), frrwp::fabric::FabricError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum FabricAddress {
    /// Shared memory.
    #[cfg(target_os = "linux")]
    Shm(ShmAddress),
    /// iWARP over TCP.
    Iwarp(IwarpAddress),
    /// An RDMA device.
    #[cfg(all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux"))]
    Verbs(VerbsAddress),
}

impl FabricAddress {
    /// Returns the provider's name: what stands before the first colon.
    pub fn scheme(&self) -> &'static str {
        match self {
            #[cfg(target_os = "linux")]
            Self::Shm(_) => "shm",
            Self::Iwarp(_) => "iwarp",
            #[cfg(all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux"))]
            Self::Verbs(_) => "verbs",
        }
    }
}

impl FromStr for FabricAddress {
    type Err = FabricError;

    fn from_str(text: &str) -> Result<Self, FabricError> {
        match text.split_once(':').map(|(scheme, _)| scheme) {
            #[cfg(target_os = "linux")]
            Some("shm") => Ok(Self::Shm(text.parse()?)),
            #[cfg(not(target_os = "linux"))]
            Some("shm") => Err(not_built(text, "shm", "run on Linux")),
            Some("iwarp") => Ok(Self::Iwarp(text.parse()?)),
            #[cfg(all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux"))]
            Some("verbs") => Ok(Self::Verbs(text.parse()?)),
            #[cfg(not(all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux")))]
            Some("verbs") => Err(not_built(text, "verbs", "build with the feature verbs")),
            _ => Err(FabricError::Scheme { address: text.to_owned() }),
        }
    }
}

#[cfg(not(all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux")))]
fn not_built(address: &str, fabric: &'static str, remedy: &'static str) -> FabricError {
    FabricError::NotBuilt { address: address.to_owned(), fabric, remedy }
}

impl fmt::Display for FabricAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        each!(Self, self, address => address.fmt(f))
    }
}

/// Why there is no domain, listener or connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// No provider has this name.
    #[error("open {address:?}: no fabric has this name: write {KNOWN}")]
    Scheme {
        /// The address.
        address: String,
    },
    /// The provider is not in this program.
    #[error("open {address:?}: this build has no {fabric}: {remedy}")]
    NotBuilt {
        /// The address.
        address: String,
        /// The provider.
        fabric: &'static str,
        /// The remedy.
        remedy: &'static str,
    },
    /// The domain is another provider's.
    #[error("open {address:?}: the domain is one of {domain}: make a domain for this address")]
    OtherFabric {
        /// The address.
        address: String,
        /// The domain's provider.
        domain: &'static str,
    },
    /// There is no thread, or no descriptor, to connect by.
    #[error(
        "begin to connect to {address}: {error}: raise the limits on open files (ulimit -n) and threads (ulimit -u)"
    )]
    NotBegun {
        /// The address.
        address: String,
        /// The system's error.
        error: io::Error,
    },
    /// No connection came.
    #[error("accept at {address}: no connection came within {} ms: start a client, or wait longer", .after.as_millis())]
    TimedOut {
        /// The address.
        address: String,
        /// How long one was waited for.
        after: Duration,
    },
    /// Shared memory's.
    #[cfg(target_os = "linux")]
    #[error(transparent)]
    Shm(#[from] ShmError),
    /// iWARP's.
    #[error(transparent)]
    Iwarp(#[from] IwarpError),
    /// RDMA devices'.
    #[cfg(all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux"))]
    #[error(transparent)]
    Verbs(#[from] VerbsError),
}

/// The options of domains of any provider.
///
/// Fields may be added in a minor release: name those that you set, and write `..Default::default()` for the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FabricOptions {
    /// How long a peer that connects may take, and a host's name may be looked up for a listener: 5 s. It goes before those of the
    /// providers.
    pub set_up: Duration,
    /// Of shared memory.
    #[cfg(target_os = "linux")]
    pub shm: ShmOptions,
    /// Of iWARP.
    pub iwarp: IwarpOptions,
    /// Of RDMA devices.
    #[cfg(all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux"))]
    pub verbs: VerbsOptions,
}

impl Default for FabricOptions {
    fn default() -> Self {
        Self {
            set_up: Duration::from_secs(5),
            #[cfg(target_os = "linux")]
            shm: ShmOptions::default(),
            iwarp: IwarpOptions::default(),
            #[cfg(all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux"))]
            verbs: VerbsOptions::default(),
        }
    }
}

/// The operation that fails where a connection cannot even be begun.
const BEGIN: &str = "begin to connect";

/// Connects to a listener, with so many receives posted, in a domain of its own. All of it takes no longer than this, whatever the
/// peer does: looking the host's name up, connecting, and agreeing with the peer.
///
/// # Errors
/// [`FabricError`]. Those for time that is over name the operation, the address, and a remedy.
pub fn connect(address: &str, receives: u16, within: Duration) -> Result<(FabricDomain, FabricEndpoint), FabricError> {
    connected(&address.parse()?, receives, &Attempt::new(within))
}

/// The same on a thread of its own, to wait for it together with others. Dropping it cancels it.
///
/// ```
/// use frrwp::fabric::{Connecting, begin_connect};
/// use std::time::Duration;
///
/// // Two ways to one server; the first that stands is taken.
/// let mut ways = ["shm:@frrwp-doc-nobody", "iwarp:127.0.0.1:1"]
///     .map(|address| begin_connect(address, 16, Duration::from_secs(5)))
///     .into_iter()
///     .collect::<Result<Vec<_>, _>>()?;
/// while !ways.is_empty() {
///     // A program of more than an example polls their descriptors, or awaits them.
///     if let Some(ended) = ways.iter().position(Connecting::has_ended) {
///         let error = ways.swap_remove(ended).wait().unwrap_err();
///         assert!(error.to_string().contains("start the"), "{error}");
///     }
/// }
/// # Ok::<(), frrwp::fabric::FabricError>(())
/// ```
///
/// # Errors
/// [`FabricError`], for an address that does not parse; and there is no thread, or no descriptor, for it.
pub fn begin_connect(
    address: &str,
    receives: u16,
    within: Duration,
) -> Result<Connecting<(FabricDomain, FabricEndpoint), FabricError>, FabricError> {
    let address: FabricAddress = address.parse()?;
    let name = address.to_string();
    Connecting::begin(within, move |attempt| connected(&address, receives, attempt))
        .map_err(|error| FabricDomain::not_begun(name, error))
}

fn connected(
    address: &FabricAddress,
    receives: u16,
    attempt: &Attempt,
) -> Result<(FabricDomain, FabricEndpoint), FabricError> {
    let domain = FabricDomain::reached(address, FabricOptions::default(), attempt)?;
    let endpoint = domain.try_connect(address, receives, attempt)?;
    Ok((domain, endpoint))
}

/// Listens at an address, in a domain of its own.
///
/// # Errors
/// [`FabricError`].
pub fn listen(address: &str) -> Result<FabricListener, FabricError> {
    FabricDomain::new(&address.parse()?, FabricOptions::default())?.listen_at(address)
}

/// Returns the error of a key of another provider.
fn foreign<T>() -> io::Result<T> {
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        "a registration of another fabric: register with this connection's domain",
    ))
}
