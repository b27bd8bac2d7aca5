//! UDP sockets: one a thread, several datagrams in each system call.

use super::messages::{BATCH, Received, Sending, set_room, steer, waiting};
use crate::fabric::address::HostPort;
use crate::fabric::attempt::Attempt;
use crate::fabric::fork_mark::ForkMark;
use crate::fabric::reliability::wire::{MAX_DATAGRAM, MIN_DATAGRAM};
use crate::fabric::traits::{DatagramPort, Peer};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with, sockopt};
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::str::FromStr;
use std::time::Duration;

/// Bytes of datagrams that the kernel is asked to keep for a socket.
const ROOM: usize = 4 << 20;
/// The longest wait of a child that was forked, in nanoseconds.
const CHILD: u64 = 1_000_000_000;
/// The most threads of a server: an id names one with 8 bits.
const THREADS: usize = 256;

/// An error of `udp:`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UdpError {
    /// The text is no address.
    #[error("parse {text:?}: not an address of this fabric: write udp:HOST:PORT")]
    Address {
        /// The text.
        text: String,
    },
    /// The host was not found.
    #[error("resolve {address}: {error}: check the name of the host")]
    Resolve {
        /// The address.
        address: String,
        /// The system's error.
        error: io::Error,
    },
    /// A number of threads that ids cannot tell apart.
    #[error("listen at {address}: {threads} threads: use 1 to {THREADS}")]
    Threads {
        /// The address.
        address: SocketAddr,
        /// Threads.
        threads: usize,
    },
    /// A call of the system's failed.
    #[error("{call} {address}: {error}: check that the address is this machine's, and that the port is free")]
    System {
        /// The call.
        call: &'static str,
        /// The address.
        address: SocketAddr,
        /// The system's error.
        error: io::Error,
    },
}

/// `udp:HOST:PORT`.
///
/// ```
/// use frrwp::fabric::datagram::UdpAddress;
///
/// let address: UdpAddress = "udp:[::1]:11211".parse()?;
/// assert_eq!(address.to_string(), "udp:[::1]:11211");
/// assert!("udp:11211".parse::<UdpAddress>().unwrap_err().to_string().contains("udp:HOST:PORT"));
/// # Ok::<(), frrwp::fabric::datagram::UdpError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct UdpAddress(HostPort);

impl FromStr for UdpAddress {
    type Err = UdpError;

    fn from_str(text: &str) -> Result<Self, UdpError> {
        HostPort::parse(text, "udp").map(Self).ok_or_else(|| UdpError::Address { text: text.to_owned() })
    }
}

impl fmt::Display for UdpAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "udp:{}", self.0)
    }
}

impl UdpAddress {
    /// Returns the addresses of the host, at least one.
    ///
    /// # Errors
    /// The host is not found in this time.
    pub fn resolve(&self, within: Duration) -> Result<Vec<SocketAddr>, UdpError> {
        let attempt = Attempt::new(within);
        self.0.resolve(&attempt).map_err(|error| UdpError::Resolve { address: self.to_string(), error })
    }
}

/// A UDP socket. In a child that was forked it neither sends nor receives: the datagrams are its parent's.
#[derive(Debug)]
pub struct UdpPort {
    socket: OwnedFd,
    mark: ForkMark,
    part: usize,
    received: Received,
    sending: Sending,
    is_pressed: bool,
}

impl UdpPort {
    /// Returns a socket for each of these threads, all at this address. The first is that of thread 0. A second server cannot join
    /// them by accident, not even one of the same user.
    ///
    /// Listen at the address that clients use. From a wildcard (`0.0.0.0`, `[::]`) the kernel chooses the source of each reply
    /// by its routes. A client drops a reply that comes from another address than the one that it asked.
    ///
    /// # Errors
    /// [`UdpError`].
    pub fn listen(address: SocketAddr, threads: usize, part: usize) -> Result<Vec<Self>, UdpError> {
        if !(1..=THREADS).contains(&threads) {
            return Err(UdpError::Threads { address, threads });
        }
        let mut address = address;
        let mut ports = Vec::with_capacity(threads);
        for thread in 0..threads {
            let port = Self::open(address, part, thread > 0)?;
            if thread == 0 {
                address = port.local_address()?;
                if threads > 1 {
                    // From now on others may join. The address was free when it was bound, so the first of another server fails.
                    port.share(address)?;
                }
            }
            ports.push(port);
        }
        if threads > 1 {
            steer(ports[0].socket.as_fd(), threads as u32).map_err(|error| UdpError::System {
                call: "steer datagrams at",
                address,
                error,
            })?;
        }
        Ok(ports)
    }

    /// Returns a socket from which this server can be asked.
    ///
    /// # Errors
    /// [`UdpError`].
    pub fn connect(server: SocketAddr, part: usize) -> Result<Self, UdpError> {
        let any = if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        Self::open(SocketAddr::new(any, 0), part, false)
    }

    fn open(address: SocketAddr, part: usize, is_shared: bool) -> Result<Self, UdpError> {
        let failed = |call| move |error: rustix::io::Errno| UdpError::System { call, address, error: error.into() };
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::DGRAM, flags, None).map_err(failed("open a socket for"))?;
        let mark = ForkMark::here().map_err(|error| UdpError::System { call: "open a socket for", address, error })?;
        let part = part.clamp(MIN_DATAGRAM, MAX_DATAGRAM);
        let sending = Sending::new(part, address.is_ipv6());
        let port = Self { socket, mark, part, received: Received::new(part), sending, is_pressed: false };
        if is_shared {
            port.share(address)?;
        }
        // Less room costs datagrams, which are sent again.
        let _ = set_room(port.as_fd(), ROOM);
        bind(&port.socket, &address).map_err(failed("bind to"))?;
        Ok(port)
    }

    /// Lets sockets of this user that share it, too, bind to the address.
    fn share(&self, address: SocketAddr) -> Result<(), UdpError> {
        let failed = |error: rustix::io::Errno| UdpError::System { call: "share", address, error: error.into() };
        sockopt::set_socket_reuseport(&self.socket, true).map_err(failed)
    }

    /// Returns the address of this end.
    ///
    /// # Errors
    /// The system's.
    pub fn local_address(&self) -> Result<SocketAddr, UdpError> {
        let unknown = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let failed = |error: rustix::io::Errno| UdpError::System {
            call: "find the address of",
            address: unknown,
            error: error.into(),
        };
        let address = getsockname(&self.socket).map_err(failed)?;
        SocketAddr::try_from(address).map_err(failed)
    }
}

impl AsFd for UdpPort {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl DatagramPort for UdpPort {
    fn part(&self) -> usize {
        self.part
    }

    /// The machine's monotonic clock: all threads, and all ports, have the same.
    fn now(&self) -> u64 {
        super::now()
    }

    fn send(&mut self, to: Peer, datagram: &[u8]) -> io::Result<()> {
        if !self.mark.is_here() {
            return Err(io::Error::other("send a datagram: the port is the parent's: open one in this process"));
        }
        self.sending.push(to, datagram);
        if self.sending.is_full() { self.sending.flush(self.socket.as_fd()) } else { Ok(()) }
    }

    fn poll(&mut self) -> Option<(Peer, &[u8])> {
        if !self.mark.is_here() {
            return None;
        }
        if !self.received.has_next() {
            // A socket that cannot send any more reports that to `send`.
            let _ = self.sending.flush(self.socket.as_fd());
            let count = self.received.fill(self.socket.as_fd()).unwrap_or(0);
            // Only a full batch may have left many behind.
            self.is_pressed = count == BATCH
                && waiting(self.socket.as_fd()).is_some_and(|[bytes, most]| u64::from(bytes) * 2 > u64::from(most));
        }
        self.received.pop()
    }

    fn is_pressed(&self) -> bool {
        self.is_pressed
    }

    fn wait(&mut self, until: Option<u64>) {
        let is_here = self.mark.is_here();
        if is_here {
            let _ = self.sending.flush(self.socket.as_fd());
            if self.received.has_next() {
                return;
            }
        }
        // Nothing comes in a child, so it only sleeps.
        let until = if is_here { until } else { Some(until.unwrap_or(u64::MAX).min(self.now() + CHILD)) };
        let left = until.map(|until| Duration::from_nanos(until.saturating_sub(self.now())));
        let left = left.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
        // An interrupted wait is a short one.
        let mut own = [PollFd::new(&self.socket, PollFlags::IN)];
        let _ = poll(&mut own[..usize::from(is_here)], left.as_ref());
    }
}
