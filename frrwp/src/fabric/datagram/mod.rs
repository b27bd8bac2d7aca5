//! Ports for datagrams: `udp:HOST:PORT` over sockets, anywhere.
//!
//! They carry what the state machines of [`reliability`](crate::fabric::reliability) send. There is no one-sided access: no
//! tags and no transfers. A server has one port a thread, all at one address. The kernel delivers a datagram to the thread
//! that its client's id names, so a client stays with its thread even if its address changes.
//!
//! ```
//! use frrwp::fabric::datagram::UdpPort;
//! use frrwp::fabric::reliability::{Client, ClientLimits, Event, RequestKind, Scope, Secret, Server, ServerLimits};
//! use frrwp::fabric::{DatagramPort, Peer};
//!
//! // A server that answers with the request. Draw the secret and the seed from a cryptographic generator.
//! let limits = ServerLimits::default();
//! let mut ports = UdpPort::listen("127.0.0.1:0".parse()?, 1, limits.format.datagram)?;
//! let mut port = ports.remove(0);
//! let address = port.local_address()?;
//! let mut server: Server<Vec<u8>> = Server::new(limits, Secret::new([7; 16]), 1, 0, |_| RequestKind::Read);
//! std::thread::spawn(move || loop {
//!     let now = port.now();
//!     // A few, so that their replies do not wait for long.
//!     for _ in 0..32 {
//!         let Some((from, datagram)) = port.poll() else { break };
//!         let echo = server.receive(now, from, datagram).map(|request| (request.message.to_vec(), request.work));
//!         if let Some((message, work)) = echo {
//!             server.complete(now, work, &message, None);
//!         }
//!     }
//!     server.outbox().iter().for_each(|(to, datagram)| port.send(to, datagram).unwrap());
//!     server.outbox().clear();
//!     port.wait(None);
//! });
//!
//! let limits = ClientLimits::default();
//! let mut port = UdpPort::connect(address, limits.format.datagram)?;
//! let mut client = Client::new(limits, Peer::from(address), 7);
//! let call = client.call(port.now(), RequestKind::Read, Scope::Key(1), b"hello".to_vec())?;
//! let end = loop {
//!     if let Some(end) = client.next_event() {
//!         break end;
//!     }
//!     client.outbox().iter().for_each(|(to, datagram)| port.send(to, datagram).unwrap());
//!     client.outbox().clear();
//!     port.wait(client.timer());
//!     let now = port.now();
//!     client.tick(now);
//!     while let Some((from, datagram)) = port.poll() {
//!         client.receive(now, from, datagram);
//!     }
//! };
//! assert_eq!(end, Event::Reply { call, message: b"hello".to_vec() });
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod messages;
mod udp;

pub use udp::{UdpAddress, UdpError, UdpPort};

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of the machine's monotonic clock.
pub(super) fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
