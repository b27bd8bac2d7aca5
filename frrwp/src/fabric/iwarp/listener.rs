//! Listening and connecting: from an address to an endpoint.

use super::connection::{Agreed, Connection, NAP};
use super::ddp::ReadRequest;
use super::inbound::Reading;
use super::mpa::{MpaError, Start};
use super::outbound::Post;
use super::provider::Shared;
use super::setup::{Ready, Unfit, agree, reply, request};
use super::socket;
use super::{IwarpDomain, IwarpEndpoint, IwarpError};
use crate::fabric::place::Place;
use std::collections::VecDeque;
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Connections that are being set up at a time, in all and from one address.
const EMBRYOS: usize = 256;
const OF_ONE: usize = 32;
/// The longest start frame.
const START: usize = super::mpa::START + super::mpa::PRIVATE;

/// `iwarp:HOST:PORT`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct IwarpAddress(Place);

impl FromStr for IwarpAddress {
    type Err = IwarpError;

    fn from_str(text: &str) -> Result<Self, IwarpError> {
        Place::parse(text, "iwarp").map(Self).ok_or_else(|| IwarpError::Address { text: text.to_owned() })
    }
}

impl fmt::Display for IwarpAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "iwarp:{}", self.0)
    }
}

impl IwarpAddress {
    fn resolve(&self) -> Result<Vec<SocketAddr>, IwarpError> {
        self.0.resolve().map_err(|error| IwarpError::Resolve { address: self.to_string(), error })
    }

    fn system(&self, what: &'static str, error: io::Error) -> IwarpError {
        IwarpError::System { address: self.to_string(), what, error }
    }
}

/// A connection whose start frame has not come.
struct Embryo {
    socket: TcpStream,
    peer: SocketAddr,
    came: Vec<u8>,
    /// Not looked at before: the address has guessed tags.
    from: Instant,
    until: Instant,
}

/// Takes connections.
pub struct IwarpListener {
    domain: IwarpDomain,
    socket: TcpListener,
    embryos: VecDeque<Embryo>,
    refused: u64,
    last_refused: Option<IwarpError>,
}

impl IwarpDomain {
    /// Listens at an address.
    ///
    /// # Errors
    /// [`IwarpError`].
    pub fn listen(&self, address: &str) -> Result<IwarpListener, IwarpError> {
        let address: IwarpAddress = address.parse()?;
        let found = address.resolve()?;
        let socket = TcpListener::bind(&*found).map_err(|error| match error.kind() {
            ErrorKind::AddrInUse => IwarpError::PortInUse { address: address.to_string() },
            _ => address.system("cannot listen", error),
        })?;
        socket.set_nonblocking(true).map_err(|error| address.system("cannot listen", error))?;
        Ok(IwarpListener { domain: self.clone(), socket, embryos: VecDeque::new(), refused: 0, last_refused: None })
    }

    /// Connects to a listener, with so many receives posted.
    ///
    /// # Errors
    /// [`IwarpError`].
    pub fn connect(&self, address: &str, receives: u16) -> Result<IwarpEndpoint, IwarpError> {
        let address: IwarpAddress = address.parse()?;
        let after = self.provider.shared.options.set_up;
        let deadline = Instant::now() + after;
        let timed_out = |what| IwarpError::TimedOut { address: address.to_string(), what, after };
        let mut failed = None;
        for found in address.resolve()? {
            let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            match TcpStream::connect_timeout(&found, left) {
                Ok(socket) => return self.greet(&address, socket, receives, deadline, &timed_out),
                Err(error) => failed = Some(error),
            }
        }
        let error = failed.unwrap_or_else(|| ErrorKind::NotFound.into());
        Err(match error.kind() {
            ErrorKind::TimedOut | ErrorKind::WouldBlock => timed_out("answer from the host"),
            ErrorKind::ConnectionRefused => IwarpError::Refused { address: address.to_string() },
            _ => address.system("cannot connect", error),
        })
    }

    fn greet(
        &self,
        address: &IwarpAddress,
        mut socket: TcpStream,
        receives: u16,
        deadline: Instant,
        timed_out: &dyn Fn(&'static str) -> IwarpError,
    ) -> Result<IwarpEndpoint, IwarpError> {
        let options = &self.provider.shared.options;
        let system = |error: io::Error| match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => timed_out("MPA reply"),
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => IwarpError::Hung { address: address.to_string() },
            _ => address.system("setting up", error),
        };
        let peer = socket.peer_addr().map_err(system)?;
        socket.set_nodelay(true).map_err(system)?;
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
                return self.endpoint((socket, peer), agreed, ready, receives, &came).map_err(system);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(timed_out("MPA reply"));
            }
            socket.set_read_timeout(Some(left)).map_err(system)?;
            match socket.read(&mut buffer) {
                Ok(0) => return Err(IwarpError::Hung { address: address.to_string() }),
                Ok(read) => came.extend_from_slice(&buffer[..read]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(system(error)),
            }
        }
    }

    fn endpoint(
        &self,
        (socket, peer): (TcpStream, SocketAddr),
        agreed: Agreed,
        ready: Option<Ready>,
        receives: u16,
        came: &[u8],
    ) -> io::Result<IwarpEndpoint> {
        let shared = &self.provider.shared;
        // Who means not to block says so with each call.
        socket.set_nonblocking(false)?;
        socket.set_read_timeout(Some(NAP))?;
        socket::look_out(&socket, shared.options.stall)?;
        let socket = (socket, peer);
        let connection = Connection::new(shared.number(), socket, Arc::clone(shared), agreed, receives.into(), came);
        let connection = Arc::new(connection);
        {
            let mut core = connection.lock();
            match ready {
                // Nobody waits for these: their names are of nothing that is pending.
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
        Ok(IwarpEndpoint { connection, provider: Arc::clone(&self.provider), empty_polls: 0 })
    }
}

impl IwarpListener {
    /// Where it listens, with the port that was chosen for port 0.
    ///
    /// # Errors
    /// The system's.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Connections that were not set up: peers of another protocol, that stalled, or that were too many.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Why the last of those was not.
    pub fn last_refused(&self) -> Option<&IwarpError> {
        self.last_refused.as_ref()
    }

    /// Waits for the next connection, with so many receives posted. Peers that do not set theirs up hold nobody back.
    ///
    /// # Errors
    /// [`IwarpError::TimedOut`] when the time is over, and what the system says.
    pub fn accept(&mut self, receives: u16, time: Option<Duration>) -> Result<IwarpEndpoint, IwarpError> {
        let deadline = time.map(|time| Instant::now() + time);
        loop {
            self.take_in()?;
            if let Some(endpoint) = self.look_at_embryos(receives) {
                return Ok(endpoint);
            }
            let now = Instant::now();
            if deadline.is_some_and(|deadline| deadline <= now) {
                let after = time.unwrap_or_default();
                return Err(IwarpError::TimedOut { address: self.name(), what: "connection", after });
            }
            let mut watched = vec![socket::watched(&self.socket, false)];
            let mut wake = deadline;
            for embryo in &self.embryos {
                let is_held = embryo.from > now;
                if !is_held {
                    watched.push(socket::watched(&embryo.socket, false));
                }
                let at = if is_held { embryo.from.min(embryo.until) } else { embryo.until };
                wake = Some(wake.map_or(at, |wake| wake.min(at)));
            }
            let _ = socket::sleep(&mut watched, wake.map(|wake| wake.saturating_duration_since(now)));
        }
    }

    fn name(&self) -> String {
        self.socket.local_addr().map_or_else(|_| "iwarp:".to_owned(), |address| format!("iwarp:{address}"))
    }

    fn refuse(&mut self, error: IwarpError) {
        self.refused += 1;
        self.last_refused = Some(error);
    }

    fn take_in(&mut self) -> Result<(), IwarpError> {
        loop {
            match self.socket.accept() {
                Ok((socket, peer)) => {
                    let of_one = self.embryos.iter().filter(|embryo| embryo.peer.ip() == peer.ip()).count();
                    if self.embryos.len() >= EMBRYOS || of_one >= OF_ONE {
                        let error = io::Error::other("too many connections are being set up; try again");
                        let address = format!("iwarp:{peer}");
                        self.refuse(IwarpError::System { address, what: "not let in", error });
                        continue;
                    }
                    let shared = &self.domain.provider.shared;
                    let now = Instant::now();
                    let from = shared.guesses.until(peer.ip()).map_or(now, |from| from.max(now));
                    let until = from + shared.options.set_up;
                    let _ = socket.set_nodelay(true);
                    if socket.set_nonblocking(true).is_ok() {
                        self.embryos.push_back(Embryo { socket, peer, came: Vec::new(), from, until });
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                // Of a connection that has gone already.
                Err(error) if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => {}
                Err(error) => {
                    return Err(IwarpError::System { address: self.name(), what: "cannot accept", error });
                }
            }
        }
    }

    /// The first whose start frame has come.
    fn look_at_embryos(&mut self, receives: u16) -> Option<IwarpEndpoint> {
        let now = Instant::now();
        let mut at = 0;
        while let Some(embryo) = self.embryos.get_mut(at) {
            match embryo.look(&self.domain, now) {
                Ok(None) => at += 1,
                Ok(Some((agreed, length))) => {
                    let Embryo { socket, peer, came, .. } = self.embryos.remove(at)?;
                    self.domain.provider.shared.guesses.let_in(peer.ip());
                    match self.domain.endpoint((socket, peer), agreed, None, receives, &came[length..]) {
                        Ok(endpoint) => return Some(endpoint),
                        Err(error) => {
                            let address = format!("iwarp:{peer}");
                            self.refuse(IwarpError::System { address, what: "setting up", error });
                        }
                    }
                }
                Err(error) => {
                    self.embryos.remove(at);
                    self.refuse(error);
                }
            }
        }
        None
    }
}

impl fmt::Debug for IwarpListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IwarpListener").field("address", &self.socket.local_addr().ok()).finish_non_exhaustive()
    }
}

impl Embryo {
    /// What was agreed, and the length of the start frame.
    fn look(&mut self, domain: &IwarpDomain, now: Instant) -> Result<Option<(Agreed, usize)>, IwarpError> {
        let Shared { options, guesses, .. } = &*domain.provider.shared;
        let address = || format!("iwarp:{}", self.peer);
        let timed_out = || IwarpError::TimedOut { address: address(), what: "MPA request", after: options.set_up };
        // Another of the same address may have guessed, or been let in, since this one came.
        self.from = guesses.until(self.peer.ip()).map_or(self.from, |from| from.max(self.from));
        if self.from > now {
            return if self.until <= now { Err(timed_out()) } else { Ok(None) };
        }
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
        if self.until <= now {
            return Err(timed_out());
        }
        Ok(None)
    }
}
