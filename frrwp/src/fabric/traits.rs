//! The traits that a provider implements, and their types.

use super::poller::Bell;
use crate::wire::{MESSAGE, Segment};
use mrrc::Access;
use mrrc::registrar::Registrar;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// Registers memory for the connections of one protection domain.
///
/// # Safety
/// As [`Registrar`]; and the segment that [`Domain::remote`] returns opens no bytes but those of its registration.
#[expect(unsafe_code, reason = "a registrar is one")]
pub unsafe trait Domain: Registrar {
    /// Returns the segment that lets a peer access memory of this registration: its address as the fabric counts
    /// addresses, and a key.
    fn remote(&self, registration: &Self::Registration, address: *const u8, length: usize) -> Segment;

    /// Returns whether a peer may still access this memory although its connection is flushed (the quarantine of `shm`).
    /// Over most fabrics none is.
    fn is_held(&self, registration: &Self::Registration) -> bool {
        let _ = registration;
        false
    }
}

/// Registered memory of this side.
#[derive(Clone, Copy)]
pub struct Local<'a, T> {
    /// The first byte.
    pub address: *mut u8,
    /// Bytes, at least one.
    pub length: usize,
    /// The registration that covers them.
    pub registration: &'a T,
}

impl<T> fmt::Debug for Local<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Local").field("address", &self.address).field("length", &self.length).finish_non_exhaustive()
    }
}

/// The capabilities of a provider.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// Pieces of local memory that one write or read takes.
    pub gather: usize,
    /// Whether a write can carry an immediate.
    pub immediate: bool,
    /// The rights that local memory needs for a read to fill it: writing by this side. A device of iWARP wants writing by
    /// the peer too, and passes it the key. There the peer can write to all of the registration, for as long as it is
    /// registered.
    pub sink: Access,
}

/// Something that was posted has ended, or something has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Completion {
    /// A write or read of this name was carried out, or was not.
    Done {
        /// The name.
        id: u64,
        /// Whether the bytes are where they belong.
        succeeded: bool,
    },
    /// A message came: so many bytes of the buffer that was given to [`Endpoint::poll`].
    Message {
        /// Bytes.
        length: usize,
    },
    /// A write of the peer's came, and an immediate with it.
    Immediate(u32),
    /// The connection is gone. Earlier posts may still be carried out.
    Lost,
    /// Nothing that either side posted will be carried out any more.
    Flushed,
}

/// Whether an end that was armed has something to poll.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Armed {
    /// There may be something now: the bell is not rung for it.
    News,
    /// There is nothing. The bell is rung when something comes, once; and the end is to be polled at this time, by its clock, though
    /// nothing comes.
    Quiet {
        /// The time, if time alone can change something.
        until: Option<u64>,
    },
}

/// One end of a reliable, ordered connection.
///
/// Posts are carried out in the order of posting, and complete in that order. `WouldBlock` says that the queue is full:
/// poll, and post again. After any other error the connection is gone, and `Lost` and `Flushed` come.
///
/// # Safety
/// The poster frees memory by two rules. [`Completion::Done`] is reported when neither a device nor the peer uses
/// the local memory of that write or read any more. [`Completion::Flushed`] is reported when nothing that either side has
/// posted will be carried out any more, and no key be used.
///
/// One exception: a peer that cannot be stopped may still be at memory of the provider's own. The provider neither frees
/// nor deregisters that before the peer has ended (the quarantine of `shm`). A connection that is lost, or is disconnected,
/// comes to its `Flushed` by being polled and waited for.
#[expect(unsafe_code, reason = "posting lets a device, or another process, at memory")]
pub unsafe trait Endpoint {
    /// The domain that registers memory for it.
    type Domain: Domain;

    /// Returns its capabilities.
    fn capabilities(&self) -> Capabilities;

    /// Nanoseconds since some start, never fewer than before.
    fn now(&self) -> u64;

    /// Posts a message of at most [`MESSAGE`] bytes, which are copied.
    ///
    /// # Errors
    /// See the trait.
    fn send(&mut self, message: &[u8]) -> io::Result<()>;

    /// Posts receives for so many more messages and immediates.
    ///
    /// # Errors
    /// See the trait.
    fn receive(&mut self, more: u16) -> io::Result<()>;

    /// Posts a write of local memory into the peer's, as many bytes as the peer's segment has.
    ///
    /// # Errors
    /// See the trait.
    ///
    /// # Safety
    /// The local memory may be read, and stays registered, until the write is [done](Completion::Done) or the connection is
    /// [flushed](Completion::Flushed).
    unsafe fn write(
        &mut self,
        id: u64,
        from: &[Local<'_, <Self::Domain as Registrar>::Registration>],
        to: Segment,
        immediate: Option<u32>,
    ) -> io::Result<()>;

    /// Posts a read of the peer's memory into local memory, as many bytes as the peer's segment has.
    ///
    /// # Errors
    /// See the trait.
    ///
    /// # Safety
    /// The local memory has no other user, and stays registered, until the read is [done](Completion::Done) or the
    /// connection is [flushed](Completion::Flushed).
    unsafe fn read(
        &mut self,
        id: u64,
        into: &[Local<'_, <Self::Domain as Registrar>::Registration>],
        from: Segment,
    ) -> io::Result<()>;

    /// Reads the peer's memory into local memory, and returns whether the bytes were read. `None`: reads over this fabric
    /// have to be posted. A read that the peer does not allow ends the connection, as a posted one does. Reads that follow
    /// each other are carried out in that order.
    ///
    /// # Errors
    /// See the trait.
    ///
    /// # Safety
    /// The local memory has no other user, and stays registered, until this returns.
    unsafe fn read_now(
        &mut self,
        into: &[Local<'_, <Self::Domain as Registrar>::Registration>],
        from: Segment,
    ) -> io::Result<Option<bool>> {
        let _ = (into, from);
        Ok(None)
    }

    /// Lets posts be held, with `true`, until this is called with `false` or this side waits. So they leave together, as
    /// the doorbell of a device is rung once for a list. Fabrics without a use for it do nothing.
    fn cork(&mut self, corked: bool) {
        let _ = corked;
    }

    /// Returns the next thing that happened, without waiting.
    fn poll(&mut self, message: &mut [u8; MESSAGE]) -> Option<Completion>;

    /// Sleeps until something may have happened, or this time has come.
    fn wait(&mut self, until: Option<u64>);

    /// Has this bell ring, from the first [`Endpoint::arm`] on, when something may have happened: so that one thread sleeps for many
    /// connections. [`Endpoint::wait`] works as before.
    ///
    /// # Errors
    /// The system's; and [`Unsupported`](io::ErrorKind::Unsupported) of an endpoint that can only be waited for alone.
    fn attach(&mut self, bell: &Bell) -> io::Result<()> {
        let _ = bell;
        Err(io::Error::new(io::ErrorKind::Unsupported, "this endpoint has no bell: wait for it alone"))
    }

    /// This side polls no more before the bell is rung. [Held](Endpoint::cork) posts leave.
    fn arm(&mut self) -> Armed {
        Armed::News
    }

    /// Ends the connection.
    fn disconnect(&mut self);
}

/// The address of a peer that exchanges datagrams: of 24 bytes over every fabric.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Peer {
    host: [u8; 16],
    scope: u32,
    port: u32,
}

impl Peer {
    /// Returns the address as bytes.
    pub fn to_bytes(self) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes[..16].copy_from_slice(&self.host);
        bytes[16..20].copy_from_slice(&self.scope.to_le_bytes());
        bytes[20..].copy_from_slice(&self.port.to_le_bytes());
        bytes
    }

    /// Returns the bytes of what counts as one host: an IPv4 address, an IPv6 /64, or a whole link-local address.
    pub fn host(self) -> [u8; 16] {
        let address = Ipv6Addr::from(self.host);
        let mut host = self.host;
        if address.to_ipv4_mapped().is_none() && !address.is_unicast_link_local() {
            host[8..].fill(0);
        }
        host
    }
}

/// Queue pairs instead of ports.
#[cfg(all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux"))]
impl Peer {
    /// Returns the peer that has this queue pair at this GID.
    pub(super) fn of_queue_pair(gid: [u8; 16], number: u32) -> Self {
        Self { host: gid, scope: 0, port: number }
    }

    /// Returns the GID and the queue pair.
    pub(super) fn queue_pair(self) -> ([u8; 16], u32) {
        (self.host, self.port)
    }
}

impl From<SocketAddr> for Peer {
    fn from(address: SocketAddr) -> Self {
        let (host, scope) = match address {
            SocketAddr::V4(address) => (address.ip().to_ipv6_mapped(), 0),
            SocketAddr::V6(address) => (*address.ip(), address.scope_id()),
        };
        Self { host: host.octets(), scope, port: address.port().into() }
    }
}

impl From<Peer> for SocketAddr {
    fn from(peer: Peer) -> Self {
        let (host, port) = (Ipv6Addr::from(peer.host), peer.port as u16);
        match host.to_ipv4_mapped() {
            Some(host) => Self::new(IpAddr::V4(host), port),
            None => Self::V6(SocketAddrV6::new(host, port, 0, peer.scope)),
        }
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The number of a queue pair may be none of a port.
        let address = SocketAddr::from(*self);
        if u32::from(address.port()) == self.port {
            fmt::Display::fmt(&address, f)
        } else {
            write!(f, "{}, queue pair {}", address.ip(), self.port)
        }
    }
}

/// A place that sends and receives datagrams: some are lost, come twice, late or changed, and the sender is not told.
pub trait DatagramPort {
    /// Returns the most bytes of a datagram.
    fn part(&self) -> usize;

    /// Nanoseconds since some start, never fewer than before.
    fn now(&self) -> u64;

    /// Sends a datagram of at most [`part`](Self::part) bytes, by the next [`poll`](Self::poll) without a result or
    /// [`wait`](Self::wait) at the latest. A datagram that the system has no room for is lost.
    ///
    /// # Errors
    /// The system's, if the port cannot be used any more.
    fn send(&mut self, to: Peer, datagram: &[u8]) -> io::Result<()>;

    /// Returns the next datagram and its sender, without waiting.
    fn poll(&mut self) -> Option<(Peer, &[u8])>;

    /// Returns whether datagrams come faster than they are polled: half of the room for them is full.
    fn is_pressed(&self) -> bool {
        false
    }

    /// Returns whether it will neither send nor receive any more: drop it, and open another.
    fn has_ended(&self) -> bool {
        false
    }

    /// Sleeps until a datagram may have come, or this time has come.
    fn wait(&mut self, until: Option<u64>);
}
