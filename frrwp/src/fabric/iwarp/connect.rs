//! Listening and connecting: from an address to an endpoint.

use super::connection::{Agreed, Connection, NAP};
use super::ddp::ReadRequest;
use super::inbound::Reading;
use super::mpa::{MpaError, Start};
use super::outbound::Post;
use super::reach::reach;
use super::setup::{Ready, Unfit, agree, reply, request};
use super::socket;
use super::{IwarpDomain, IwarpEndpoint, IwarpError};
use crate::fabric::accept::{self, HalfOpen, Limits, Shortage, Source};
use crate::fabric::address::HostPort;
use crate::fabric::attempt::{Attempt, deadline};
use rustix::event::PollFlags;
use std::collections::VecDeque;
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Descriptors that a connection may take when it is set up: a thread that serves its first one makes a file.
const SPARE: usize = 2;
/// The longest start frame.
const START: usize = super::mpa::START + super::mpa::PRIVATE;

/// `iwarp:HOST:PORT`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct IwarpAddress(HostPort);

impl FromStr for IwarpAddress {
    type Err = IwarpError;

    fn from_str(text: &str) -> Result<Self, IwarpError> {
        HostPort::parse(text, "iwarp").map(Self).ok_or_else(|| IwarpError::Address { text: text.to_owned() })
    }
}

impl fmt::Display for IwarpAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "iwarp:{}", self.0)
    }
}

impl IwarpAddress {
    fn resolve(&self, attempt: &Attempt) -> Result<Vec<SocketAddr>, IwarpError> {
        self.0.resolve(attempt).map_err(|error| IwarpError::Resolve { address: self.to_string(), error })
    }

    fn system(&self, what: &'static str, error: io::Error) -> IwarpError {
        IwarpError::System { address: self.to_string(), what, error }
    }
}

/// A connection without its start frame so far.
struct Embryo {
    socket: TcpStream,
    peer: SocketAddr,
    came: Vec<u8>,
}

/// Takes connections.
///
/// Set-ups run in parallel, while a thread is in [`accept`](IwarpListener::accept). At most 256 connections are half open,
/// and at most an eighth of the descriptors that the process may have. One IPv4 address or IPv6 /64 has at most a quarter
/// of that. A new one evicts the oldest of its address, or of the address that has the most, so silent peers lock no other
/// peer out. A listener that runs out of descriptors evicts in the same order, reports [`IwarpError::Descriptors`] once,
/// and goes on.
pub struct IwarpListener {
    domain: IwarpDomain,
    socket: TcpListener,
    half_open: HalfOpen<Source, Embryo>,
    /// Those that would have been evicted, and were found to have a start frame.
    agreed: VecDeque<(Embryo, Agreed, usize)>,
    shortage: Shortage,
    evicted: u64,
    refused: u64,
    last_refused: Option<IwarpError>,
}

/// Connects to a listener, with so many receives posted. It takes no longer than
/// [`IwarpOptions::set_up`](super::IwarpOptions::set_up), whatever the peer does.
///
/// # Errors
/// [`IwarpError`].
pub fn connect(domain: &IwarpDomain, address: &str, receives: u16) -> Result<IwarpEndpoint, IwarpError> {
    connect_within(domain, &address.parse()?, receives, &Attempt::new(domain.options().set_up))
}

/// Connects in the same way, as an attempt that can be stopped.
pub(in crate::fabric) fn connect_within(
    domain: &IwarpDomain,
    address: &IwarpAddress,
    receives: u16,
    attempt: &Attempt,
) -> Result<IwarpEndpoint, IwarpError> {
    let found = address.resolve(attempt)?;
    match reach(&found, attempt) {
        Ok(Some(socket)) => greet(domain, address, socket, receives, attempt),
        Ok(None) => Err(timed_out(address, "answer from the host", attempt)),
        Err(error) => Err(match error.kind() {
            ErrorKind::TimedOut => timed_out(address, "answer from the host", attempt),
            ErrorKind::ConnectionRefused => IwarpError::Refused { address: address.to_string() },
            _ => address.system("cannot connect", error),
        }),
    }
}

fn greet(
    domain: &IwarpDomain,
    address: &IwarpAddress,
    mut socket: TcpStream,
    receives: u16,
    attempt: &Attempt,
) -> Result<IwarpEndpoint, IwarpError> {
    let options = domain.options();
    let system = |error: io::Error| match error.kind() {
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => IwarpError::Hung { address: address.to_string() },
        _ => address.system("setting up", error),
    };
    let peer = socket.peer_addr().map_err(system)?;
    socket.set_nodelay(true).map_err(system)?;
    // The first bytes of a connection: there is room for them.
    socket.write_all(&request(options)).map_err(system)?;
    let mut came = Vec::new();
    let mut buffer = [0; START];
    loop {
        let mpa = |error| IwarpError::Mpa { address: address.to_string(), error };
        if let Some((start, length)) = Start::decode(&came).map_err(mpa)? {
            let (agreed, ready) = agree(options, &start).map_err(|unfit| match unfit {
                Unfit::Mpa(error) => mpa(error),
                Unfit::Rejected => IwarpError::Rejected { address: address.to_string() },
                Unfit::Depth(wanted) => {
                    IwarpError::Depth { address: address.to_string(), wanted, answered: options.inbound }
                }
            })?;
            let came = came.split_off(length);
            return endpoint(domain, (socket, peer), agreed, ready, receives, &came).map_err(system);
        }
        // Also if the peer sends a byte at a time.
        if attempt.is_over() {
            return Err(timed_out(address, "MPA reply", attempt));
        }
        match socket.read(&mut buffer) {
            Ok(0) => return Err(IwarpError::Hung { address: address.to_string() }),
            Ok(read) => came.extend_from_slice(&buffer[..read]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                attempt.wait(&socket, PollFlags::IN);
            }
            Err(error) => return Err(system(error)),
        }
    }
}

fn endpoint(
    domain: &IwarpDomain,
    (socket, peer): (TcpStream, SocketAddr),
    agreed: Agreed,
    ready: Option<Ready>,
    receives: u16,
    came: &[u8],
) -> io::Result<IwarpEndpoint> {
    let shared = &domain.provider.shared;
    // A caller that does not want to block says so with each call.
    socket.set_nonblocking(false)?;
    socket.set_read_timeout(Some(NAP))?;
    socket::enable_keepalive(&socket, shared.common.options.stall)?;
    let socket = (socket, peer);
    let connection =
        Connection::new(shared.number(), socket, Arc::clone(&shared.common), agreed, receives.into(), came);
    let connection = Arc::new(connection);
    {
        let mut core = connection.lock();
        match ready {
            // No post waits for these: their names are of nothing that is pending.
            Some(Ready::Write) => {
                let pieces = smallvec::SmallVec::new();
                core.outbound.post(Post::Write { sequence: u64::MAX, pieces, tag: 0, at: 0 });
            }
            Some(Ready::Read) => {
                let reading = Reading { sequence: u64::MAX, tag: 0, at: 0, address: 0, left: 0 };
                let (sink_tag, sink_offset, source_tag, source_offset) = (0, 0, 0, 0);
                let request = ReadRequest { sink_tag, sink_offset, length: 0, source_tag, source_offset };
                core.outbound.post(Post::Read(request, reading));
            }
            Some(Ready::Send) => core.outbound.post(Post::Send { bytes: Vec::new(), invalidate: None }),
            None => {}
        }
        core.serve(&connection);
    }
    shared.add(&connection)?;
    Ok(IwarpEndpoint { connection, provider: Arc::clone(&domain.provider), empty_polls: 0, told: 0 })
}

fn timed_out(address: &IwarpAddress, what: &'static str, attempt: &Attempt) -> IwarpError {
    IwarpError::TimedOut { doing: "connect to", address: address.to_string(), what, after: attempt.within() }
}

impl IwarpListener {
    /// Listens at an address.
    ///
    /// # Errors
    /// [`IwarpError`].
    pub fn bind(domain: &IwarpDomain, address: &str) -> Result<Self, IwarpError> {
        let address: IwarpAddress = address.parse()?;
        let found = address.resolve(&Attempt::new(domain.options().set_up))?;
        let socket = TcpListener::bind(&*found).map_err(|error| match error.kind() {
            ErrorKind::AddrInUse => IwarpError::PortInUse { address: address.to_string() },
            _ => address.system("cannot listen", error),
        })?;
        socket.set_nonblocking(true).map_err(|error| address.system("cannot listen", error))?;
        Ok(Self {
            domain: domain.clone(),
            socket,
            half_open: HalfOpen::new(Limits::of_process()),
            agreed: VecDeque::new(),
            shortage: Shortage::default(),
            evicted: 0,
            refused: 0,
            last_refused: None,
        })
    }

    /// Returns its address, with the port that was chosen for port 0.
    ///
    /// # Errors
    /// The system's.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Returns how many connections were not set up: peers of another protocol, that stalled, or that were evicted.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Returns why the last of those was not.
    pub fn last_refused(&self) -> Option<&IwarpError> {
        self.last_refused.as_ref()
    }

    /// Returns how many half-open connections were evicted for newer ones. They count as refused.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Returns how often descriptors ran out. Times of want with less than ten seconds between them count as one.
    pub fn shortages(&self) -> u64 {
        self.shortage.episodes()
    }

    /// Waits for the next connection, with so many receives posted. Peers that do not set theirs up delay no other.
    ///
    /// # Errors
    /// [`IwarpError::TimedOut`] when the time is over; [`IwarpError::Descriptors`], once, when descriptors run out, and the listener
    /// goes on; and what the system says.
    pub fn accept(&mut self, receives: u16, time: Option<Duration>) -> Result<IwarpEndpoint, IwarpError> {
        let deadline = time.map(deadline);
        loop {
            let more = self.take_in()?;
            if let Some(endpoint) = self.look_at_half_open(receives) {
                return Ok(endpoint);
            }
            self.report_shortage()?;
            let now = Instant::now();
            if deadline.is_some_and(|deadline| deadline <= now) {
                let after = time.unwrap_or_default();
                return Err(IwarpError::TimedOut {
                    doing: "accept at",
                    address: self.name(),
                    what: "connection",
                    after,
                });
            }
            if !more {
                self.sleep(deadline, now);
            }
        }
    }

    /// Sleeps until there is something to look at.
    fn sleep(&self, deadline: Option<Instant>, now: Instant) {
        let paused = self.shortage.paused_until(now);
        let mut watched = Vec::with_capacity(1 + self.half_open.len());
        if paused.is_none() {
            watched.push(socket::watched(&self.socket, false));
        }
        let mut wake = deadline;
        let mut by = |at: Instant| wake = Some(wake.map_or(at, |wake| wake.min(at)));
        paused.into_iter().chain(self.half_open.next_expiry()).for_each(&mut by);
        for embryo in self.half_open.iter() {
            watched.push(socket::watched(&embryo.socket, false));
        }
        let _ = socket::sleep(&mut watched, wake.map(|wake| wake.saturating_duration_since(now)));
    }

    pub(in crate::fabric) fn name(&self) -> String {
        self.socket.local_addr().map_or_else(|_| "iwarp:".to_owned(), |address| format!("iwarp:{address}"))
    }

    fn refuse(&mut self, error: IwarpError) {
        self.refused += 1;
        self.last_refused = Some(error);
    }

    /// Takes connections from the system, at most a batch. Returns whether there may be more.
    fn take_in(&mut self) -> Result<bool, IwarpError> {
        if self.shortage.paused_until(Instant::now()).is_some() {
            return Ok(false);
        }
        for _ in 0..self.half_open.batch() {
            match self.socket.accept() {
                Ok((socket, peer)) => self.admit(socket, peer),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                // The error of a connection that has gone already, or never came about.
                Err(error) if is_of_the_peer(&error) => {}
                Err(error) if accept::is_shortage(&error) => {
                    let now = Instant::now();
                    self.shortage.note(now);
                    if !self.evict("descriptors ran out, and it was the oldest that was half open") {
                        self.shortage.pause(now);
                        return Ok(false);
                    }
                }
                Err(error) => {
                    return Err(IwarpError::System { address: self.name(), what: "cannot accept", error });
                }
            }
        }
        Ok(true)
    }

    fn admit(&mut self, socket: TcpStream, peer: SocketAddr) {
        let shared = &self.domain.provider.shared;
        let until = deadline(shared.common.options.set_up);
        let _ = socket.set_nodelay(true);
        if let Err(error) = socket.set_nonblocking(true) {
            let address = format!("iwarp:{peer}");
            return self.refuse(IwarpError::System { address, what: "setting up", error });
        }
        let embryo = Embryo { socket, peer, came: Vec::new() };
        if let Some(evicted) = self.half_open.admit(Source::of(peer.ip()), until, embryo) {
            self.give_up(evicted, "too many others are half open, and it was the oldest of its address");
        }
    }

    /// Evicts a half-open connection. Returns false if every connection is open.
    fn evict(&mut self, why: &'static str) -> bool {
        let evicted = self.half_open.evict(None);
        let is_one = evicted.is_some();
        if let Some(embryo) = evicted {
            self.give_up(embryo, why);
        }
        is_one
    }

    /// Looks once more at a connection that was evicted: one that can be set up is not given up.
    fn give_up(&mut self, mut embryo: Embryo, why: &'static str) {
        match embryo.look(&self.domain) {
            Ok(Some((agreed, length))) => self.agreed.push_back((embryo, agreed, length)),
            Ok(None) => {
                self.evicted += 1;
                let address = format!("iwarp:{}", embryo.peer);
                self.refuse(IwarpError::System { address, what: "evicted", error: io::Error::other(why) });
            }
            Err(error) => self.refuse(error),
        }
    }

    /// Sets the first connection up that has its start frame.
    fn look_at_half_open(&mut self, receives: u16) -> Option<IwarpEndpoint> {
        for number in self.half_open.numbers() {
            // Setting one up may evict others.
            let Some(embryo) = self.half_open.get_mut(number) else { continue };
            match embryo.look(&self.domain) {
                Ok(None) => {}
                Ok(Some((agreed, length))) => {
                    let embryo = self.half_open.remove(number)?;
                    self.agreed.push_back((embryo, agreed, length));
                }
                Err(error) => {
                    self.half_open.remove(number);
                    self.refuse(error);
                }
            }
            while let Some((embryo, agreed, length)) = self.agreed.pop_front() {
                if let Some(endpoint) = self.set_up(embryo, agreed, length, receives) {
                    return Some(endpoint);
                }
            }
        }
        let after = self.domain.options().set_up;
        while let Some(embryo) = self.half_open.expire(Instant::now()) {
            let address = format!("iwarp:{}", embryo.peer);
            self.refuse(IwarpError::TimedOut { doing: "accept from", address, what: "MPA request", after });
        }
        None
    }

    /// Makes an endpoint of a connection that is agreed on.
    fn set_up(&mut self, embryo: Embryo, agreed: Agreed, length: usize, receives: u16) -> Option<IwarpEndpoint> {
        let Embryo { socket, peer, came } = embryo;
        while !accept::are_free(&self.socket, SPARE) {
            self.shortage.note(Instant::now());
            if !self.evict("descriptors ran out, and it was the oldest that was half open") {
                break;
            }
        }
        match endpoint(&self.domain, (socket, peer), agreed, None, receives, &came[length..]) {
            Ok(endpoint) => Some(endpoint),
            Err(error) => {
                let address = format!("iwarp:{peer}");
                self.refuse(IwarpError::System { address, what: "setting up", error });
                None
            }
        }
    }

    /// Reports a time without descriptors, once.
    fn report_shortage(&mut self) -> Result<(), IwarpError> {
        if self.shortage.report() { Err(IwarpError::Descriptors { address: self.name() }) } else { Ok(()) }
    }
}

/// Returns whether accepting failed because of the connection that was to be accepted, so that the next one may do.
fn is_of_the_peer(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(
            libc::ECONNABORTED
                | libc::EINTR
                | libc::EPROTO
                | libc::EPERM
                | libc::ENETDOWN
                | libc::ENETUNREACH
                | libc::EHOSTDOWN
                | libc::EHOSTUNREACH
                | libc::ENONET
                | libc::ENOPROTOOPT
                | libc::EOPNOTSUPP
        )
    )
}

impl fmt::Debug for IwarpListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IwarpListener").field("address", &self.socket.local_addr().ok()).finish_non_exhaustive()
    }
}

impl Embryo {
    /// Returns the agreement, and the length of the start frame.
    fn look(&mut self, domain: &IwarpDomain) -> Result<Option<(Agreed, usize)>, IwarpError> {
        let options = domain.options();
        let address = || format!("iwarp:{}", self.peer);
        let mut buffer = [0; START];
        let hung = loop {
            // No more than a start frame: a connection has room for so much of what follows one.
            let room = START.saturating_sub(self.came.len());
            if room == 0 {
                break false;
            }
            match (&self.socket).read(&mut buffer[..room]) {
                Ok(0) => break true,
                Ok(read) => self.came.extend_from_slice(&buffer[..read]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => break true,
            }
        };
        let mpa = |error: MpaError| IwarpError::Mpa { address: address(), error };
        if let Some((start, length)) = Start::decode(&self.came).map_err(mpa)? {
            let (answer, agreed) = reply(options, &start).map_err(mpa)?;
            // A few bytes on a connection that has sent nothing: they go at once, or the peer has gone.
            if (&self.socket).write(&answer).ok() != Some(answer.len()) {
                return Err(IwarpError::Hung { address: address() });
            }
            let agreed = agreed.ok_or_else(|| IwarpError::Rejected { address: address() })?;
            return Ok(Some((agreed, length)));
        }
        if hung {
            return Err(IwarpError::Hung { address: address() });
        }
        Ok(None)
    }
}
