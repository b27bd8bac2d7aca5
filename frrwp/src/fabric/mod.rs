//! The engine's interface to a network: small, and shaped like verbs.
//!
//! A [`Domain`] registers memory: it is an [`mrrc::registrar::Registrar`] with registrations that have keys. An
//! [`Endpoint`] is one end of a reliable connection on which everything that is posted is carried out in order:
//! messages, writes, reads. A write or read goes to memory of the peer's by a key and never wakes the peer's
//! application.
//!
//! There are four providers. [`sim`] runs in this process, with a clock of its own; [`iwarp`] over TCP. `shm` connects
//! processes of one machine, on Linux. `verbs` is over RDMA devices, with the feature of that name.
//!
//! The address chooses the provider: [`connect`] and [`listen`] take `shm:PATH`, `iwarp:HOST:PORT` or `verbs:HOST:PORT`. A program
//! that chooses its provider by type has all that this one offers; [`Connector`], [`Listener`] and [`Endpoint`] are what they have
//! in common.

mod accept;
mod address;
mod attempt;
mod connect;
mod connecting;
mod connector;
pub mod datagram;
mod file_size;
#[cfg(target_os = "linux")]
mod fork_mark;
pub mod iwarp;
mod lookup;
pub mod poller;
pub mod reliability;
#[cfg(target_os = "linux")]
pub mod shm;
pub mod sim;
mod siw;
mod traits;
#[cfg(all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux"))]
pub mod verbs;

pub use connect::{
    FabricAddress, FabricDomain, FabricEndpoint, FabricError, FabricKey, FabricListener, FabricOptions, begin_connect,
    connect, listen,
};
pub use connecting::Connecting;
pub use connector::{Connector, FabricMemory, Listener};
pub use file_size::{GrowError, grow_file};
pub use traits::{Armed, Capabilities, Completion, DatagramPort, Domain, Endpoint, Local, Peer};
