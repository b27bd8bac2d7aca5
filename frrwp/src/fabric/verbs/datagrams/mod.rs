//! Datagrams over RDMA devices: queue pairs that exchange datagrams with any other, one a thread.
//!
//! | file         | what it has                                                        |
//! |--------------|--------------------------------------------------------------------|
//! | `resolve.rs` | from an address to a queue pair, by the connection manager         |
//! | `queue.rs`   | a queue pair, its completions, its memory                          |
//! | `handles.rs` | address handles by host                                            |
//! | `wire.rs`    | the answer to a client that asks, and the header before a datagram |

mod handles;
mod queue;
mod resolve;
mod wire;

use super::error::VerbsError;
use super::{VerbsDomain, VerbsOptions, ib};
use crate::fabric::address::HostPort;
use crate::fabric::attempt::Attempt;
use crate::fabric::datagram;
use crate::fabric::fork_mark::ForkMark;
use crate::fabric::reliability::wire::MIN_DATAGRAM;
use crate::fabric::traits::{DatagramPort, Peer};
use handles::{Handles, MOST};
use queue::{Depths, Handle, Queue};
use resolve::{Answers, Found, ask, route_from};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;
use wire::Answer;

/// The entries of a server's queue pair.
const SERVER: Depths = Depths { sends: 1024, receives: 1024 };
/// Those of a client's: its window has 64 datagrams.
const CLIENT: Depths = Depths { sends: 64, receives: 128 };
/// The most threads of a server: an id names one with 8 bits.
const THREADS: usize = 256;
/// How often a port that has much to do looks at questions, and one that has not at its device, in nanoseconds.
const ANSWER: u64 = 1_000_000;
const LOOK: u64 = 1_000_000_000;

/// `verbs-ud:HOST:PORT`.
///
/// ```
/// use frrwp::fabric::verbs::VerbsUdAddress;
///
/// let address: VerbsUdAddress = "verbs-ud:10.0.0.1:7471".parse()?;
/// assert_eq!(address.to_string(), "verbs-ud:10.0.0.1:7471");
/// assert!("verbs-ud:rxe0".parse::<VerbsUdAddress>().unwrap_err().to_string().contains("verbs-ud:HOST:PORT"));
/// # Ok::<(), frrwp::fabric::verbs::VerbsError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct VerbsUdAddress(HostPort);

impl FromStr for VerbsUdAddress {
    type Err = VerbsError;

    fn from_str(text: &str) -> Result<Self, VerbsError> {
        let parsed = HostPort::parse(text, "verbs-ud").map(Self);
        parsed.ok_or_else(|| VerbsError::DatagramAddress { text: text.to_owned() })
    }
}

impl fmt::Display for VerbsUdAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "verbs-ud:{}", self.0)
    }
}

impl VerbsUdAddress {
    fn resolve(&self, attempt: &Attempt) -> Result<Vec<SocketAddr>, VerbsError> {
        self.0.resolve(attempt).map_err(|error| VerbsError::Resolve { address: self.to_string(), error })
    }
}

/// A queue pair for datagrams. In a child that was forked it neither sends nor receives: the queue pair is its parent's.
pub struct VerbsUdPort {
    /// Taken only when the port is dropped.
    queue: Option<Queue>,
    handles: Handles<Handle>,
    /// The way to a host that is filled in.
    route: ib::ibv_ah_attr,
    answers: Option<Answers>,
    address: SocketAddr,
    domain: VerbsDomain,
    mark: ForkMark,
    answered: u64,
    looked: u64,
}

impl VerbsUdPort {
    /// Returns a queue pair for each of these threads, all at this address. The first is that of thread 0, and tells clients of all of
    /// them while it is polled and waited for.
    ///
    /// # Errors
    /// [`VerbsError`]: no device leads there, or one of iWARP; the port is taken; an address that stands for all of the machine's.
    pub fn listen(address: &VerbsUdAddress, threads: usize, within: Duration) -> Result<Vec<Self>, VerbsError> {
        if !(1..=THREADS).contains(&threads) {
            return Err(VerbsError::Threads { address: address.to_string(), threads });
        }
        let attempt = Attempt::new(within);
        let found = address.resolve(&attempt)?;
        if found.iter().any(|found| found.ip().is_unspecified()) {
            return Err(VerbsError::Wildcard { address: address.to_string() });
        }
        let mut failed = None;
        for found in found {
            match Self::listen_at(address, found, threads, &attempt) {
                Ok(ports) => return Ok(ports),
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.unwrap_or(VerbsError::NoWay { address: address.to_string(), what: "listen" }))
    }

    fn listen_at(
        address: &VerbsUdAddress,
        found: SocketAddr,
        threads: usize,
        attempt: &Attempt,
    ) -> Result<Vec<Self>, VerbsError> {
        let system = |what| move |error| VerbsError::System { address: address.to_string(), what, error };
        let domain = open(address, found, attempt)?;
        let mut answers = Answers::listen(&domain, address, found)?;
        let (port, own) = (answers.port(), answers.address());
        let route = route_from(&domain, port, own.ip()).map_err(system("find the GID of this address"))?;
        let part = domain.active_mtu(port);
        let key = key().map_err(system("draw a key"))?;
        let mut ports = Vec::with_capacity(threads);
        for _ in 0..threads {
            let queue = Queue::new(&domain, port, part, key, SERVER).map_err(system("make a queue pair"))?;
            ports.push(Self::new(&domain, queue, route, own).map_err(system("make a queue pair"))?);
        }
        let numbers = ports.iter().filter_map(|port| port.queue.as_ref()).map(Queue::number);
        let part = u16::try_from(part).unwrap_or(u16::MAX);
        answers.set_places(numbers.map(|queue_pair| Answer { queue_pair, key, part }).collect());
        if let Some(first) = ports.first_mut() {
            first.answers = Some(answers);
        }
        Ok(ports)
    }

    /// Returns a queue pair from which this server can be asked, and the server.
    ///
    /// # Errors
    /// [`VerbsError`]: no device leads there, or one of iWARP; no server listens there.
    pub fn connect(address: &VerbsUdAddress, within: Duration) -> Result<(Self, Peer), VerbsError> {
        let attempt = Attempt::new(within);
        let found = address.resolve(&attempt)?;
        let tries = found.len();
        let mut failed = None;
        for (nth, found) in found.into_iter().enumerate() {
            match Self::connect_to(address, found, &attempt.share(tries - nth)) {
                Ok(connected) => return Ok(connected),
                Err(error) => _ = failed.get_or_insert(error),
            }
        }
        Err(failed.unwrap_or(VerbsError::NoWay { address: address.to_string(), what: "connect" }))
    }

    fn connect_to(address: &VerbsUdAddress, found: SocketAddr, attempt: &Attempt) -> Result<(Self, Peer), VerbsError> {
        let system = |what| move |error| VerbsError::System { address: address.to_string(), what, error };
        let domain = open(address, found, attempt)?;
        let place = ask(&domain, address, found, attempt)?;
        let Found { answer, route, port } = place;
        let (own, theirs) = (domain.active_mtu(port), usize::from(answer.part));
        if !(MIN_DATAGRAM..=own).contains(&theirs) {
            return Err(VerbsError::Mtu { address: address.to_string(), theirs, own });
        }
        let host = place.host();
        let queue = Queue::new(&domain, port, theirs, answer.key, CLIENT).map_err(system("make a queue pair"))?;
        let port = Self::new(&domain, queue, route, found).map_err(system("make a queue pair"))?;
        Ok((port, Peer::of_queue_pair(host, answer.queue_pair)))
    }

    fn new(domain: &VerbsDomain, queue: Queue, route: ib::ibv_ah_attr, address: SocketAddr) -> io::Result<Self> {
        let (handles, mark) = (Handles::new(MOST), ForkMark::here()?);
        let (queue, domain) = (Some(queue), domain.clone());
        Ok(Self { queue, handles, route, answers: None, address, domain, mark, answered: 0, looked: 0 })
    }

    /// Returns the address that a server's clients ask, with the port that was chosen for port 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the handle to a host. Makes it where the host has no handle yet.
    fn handle(&mut self, host: [u8; 16]) -> io::Result<Handle> {
        if let Some(handle) = self.handles.get(&host) {
            return Ok(handle);
        }
        let queue = self.queue.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        let mut route = self.route;
        route.grh.dgid = ib::ibv_gid { raw: host };
        let handle = queue.handle(&route)?;
        if let Some(evicted) = self.handles.insert(host, handle) {
            queue.retire(evicted);
        }
        Ok(handle)
    }

    /// Answers clients that ask for the place, and looks whether the device is still there.
    fn attend(&mut self, now: u64) {
        let mut goes = false;
        if let Some(answers) = &mut self.answers
            && now >= self.answered + ANSWER
        {
            self.answered = now;
            goes = answers.answer();
            if goes {
                self.domain.set_gone();
            }
        }
        if goes || now >= self.looked + LOOK {
            self.looked = now;
            if let Some(queue) = self.queue.as_mut().filter(|_| self.domain.is_gone()) {
                queue.end();
            }
        }
    }
}

impl DatagramPort for VerbsUdPort {
    fn part(&self) -> usize {
        self.queue.as_ref().map_or(MIN_DATAGRAM, Queue::part)
    }

    /// The machine's monotonic clock: all threads, and all ports, have the same.
    fn now(&self) -> u64 {
        datagram::now()
    }

    fn send(&mut self, to: Peer, datagram: &[u8]) -> io::Result<()> {
        if !self.mark.is_here() {
            return Err(io::Error::other("send a datagram: the port is the parent's: open one in this process"));
        }
        if self.has_ended() {
            return Err(io::Error::other("send a datagram: the device is going away: open one again"));
        }
        let (host, number) = to.queue_pair();
        // A host that no handle can be made for is one that no datagram reaches.
        let Ok(handle) = self.handle(host) else { return Ok(()) };
        self.queue.as_mut().map_or(Ok(()), |queue| queue.send(handle, number, datagram))
    }

    fn poll(&mut self) -> Option<(Peer, &[u8])> {
        if !self.mark.is_here() {
            return None;
        }
        self.queue.as_mut()?.pop()
    }

    fn is_pressed(&self) -> bool {
        self.queue.as_ref().is_some_and(Queue::is_pressed)
    }

    fn has_ended(&self) -> bool {
        self.queue.as_ref().is_none_or(Queue::has_ended)
    }

    fn wait(&mut self, until: Option<u64>) {
        let now = self.now();
        let is_here = self.mark.is_here();
        if is_here {
            self.attend(now);
        }
        // The device is looked at meanwhile, and a child only sleeps.
        let until = until.unwrap_or(u64::MAX).min(now + LOOK);
        let time = Duration::from_nanos(until.saturating_sub(now));
        let Some(queue) = self.queue.as_mut().filter(|_| is_here) else {
            return super::manager::sleep(&[], Some(time));
        };
        if queue.has_next() || queue.has_ended() {
            return;
        }
        match &self.answers {
            Some(answers) => queue.sleep(&[answers.file()], Some(time)),
            None => queue.sleep(&[], Some(time)),
        }
    }
}

impl Drop for VerbsUdPort {
    fn drop(&mut self) {
        let Some(mut queue) = self.queue.take() else { return };
        if !self.mark.is_here() {
            // All of it is the parent's.
            std::mem::forget((queue, self.answers.take()));
            return;
        }
        self.handles.drain().for_each(|handle| queue.retire(handle));
    }
}

impl fmt::Debug for VerbsUdPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerbsUdPort")
            .field("domain", &self.domain)
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

/// Opens the device by which the address is reached.
fn open(address: &VerbsUdAddress, found: SocketAddr, attempt: &Attempt) -> Result<VerbsDomain, VerbsError> {
    let domain = VerbsDomain::reached_at(address, vec![found], VerbsOptions::default(), attempt)?;
    if domain.able().iwarp {
        return Err(VerbsError::NoDatagrams { address: address.to_string(), device: domain.device().to_owned() });
    }
    Ok(domain)
}

/// Returns a key that a server's datagrams carry. With the highest bit it would be the system's.
fn key() -> io::Result<u32> {
    let mut bytes = [0; 4];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok((u32::from_ne_bytes(bytes) & (u32::MAX >> 1)).max(1))
}
