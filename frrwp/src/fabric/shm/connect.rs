//! Connections: listened for, made, and refused.
//!
//! Only processes of this user are admitted, at both ends: the socket tells the user of the other one. A socket file can
//! be connected to by its owner only, besides. To tell an earlier listener at a path from a file that a dead process
//! left behind, it connects to it, under a lock of the directory. So if two find such a file, one replaces it, and the
//! other finds the first.

use super::accepting::{Accepting, Place};
use super::address::ShmAddress;
use super::domain::ShmDomain;
use super::endpoint::ShmEndpoint;
use super::error::{ShmError, system};
use super::set_up::{End, SetUp, check_user};
use crate::fabric::attempt::{Attempt, deadline};
use crate::fabric::fork_mark::ForkMark;
use rustix::event::PollFlags;
use rustix::fd::OwnedFd;
use rustix::fs::{FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a listener without a limit waits at a time.
const LONG: Duration = Duration::from_secs(3600);
/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;
/// The time for which another process may be busy replacing a socket file of the same directory.
const REPLACING: Duration = Duration::from_secs(2);

/// The place where peers connect to a domain. Its socket file goes when it is dropped.
///
/// Set-ups run in parallel, while a thread is in [`accept`](ShmListener::accept). At most 256 connections are half open,
/// and at most an eighth of the descriptors that the process may have. One process has at most a quarter of that. A new one
/// evicts the oldest of its process, or of the process that has the most, so silent peers lock none out. A listener that
/// runs out of descriptors evicts in the same order, reports [`ShmError::Descriptors`] once, and goes on.
///
/// Children that were forked may accept as well. Each has its own connections.
pub struct ShmListener {
    domain: ShmDomain,
    address: ShmAddress,
    socket: OwnedFd,
    /// The socket file, as it was made.
    file: Option<rustix::fs::Stat>,
    mark: ForkMark,
    accepting: Accepting,
}

impl ShmListener {
    /// Listens. A socket file that a dead process left there is replaced.
    ///
    /// # Errors
    /// [`ShmError::InUse`], [`ShmError::NotASocket`], [`ShmError::OtherUser`], [`ShmError::System`].
    pub fn bind(domain: &ShmDomain, address: &ShmAddress) -> Result<Self, ShmError> {
        let remedy = "see whether the directory is there and belongs to this user, or choose another path";
        let doing = system("listen", remedy);
        let place = address.socket().map_err(&doing)?;
        let socket = new_socket()?;
        let (mark, accepting) = (ForkMark::here().map_err(system("listen", remedy))?, Accepting::new()?);
        let Some(path) = address.path() else {
            return match rustix::net::bind(&socket, &place) {
                Err(Errno::ADDRINUSE) => Err(ShmError::InUse { address: address.to_string() }),
                bound => {
                    bound.and_then(|()| rustix::net::listen(&socket, BACKLOG)).map_err(&doing)?;
                    let (domain, address) = (domain.clone(), address.clone());
                    Ok(Self { domain, address, socket, file: None, mark, accepting })
                }
            };
        };
        let _lock = lock_directory(path)?;
        if let Err(error) = rustix::net::bind(&socket, &place) {
            if error != Errno::ADDRINUSE {
                return Err(doing(error));
            }
            remove_stale(address, path)?;
            rustix::net::bind(&socket, &place).map_err(&doing)?;
        }
        // No peer can connect before `listen`.
        rustix::fs::chmod(path, Mode::RUSR | Mode::WUSR).map_err(&doing)?;
        rustix::net::listen(&socket, BACKLOG).map_err(&doing)?;
        let file = Some(rustix::fs::lstat(path).map_err(&doing)?);
        Ok(Self { domain: domain.clone(), address: address.clone(), socket, file, mark, accepting })
    }

    /// Waits for the next connection, with so many receives posted at this end. Silent peers delay no other.
    ///
    /// # Errors
    /// [`ShmError::TimedOut`] if no peer comes, or does not finish; [`ShmError::Descriptors`], once, when descriptors run out;
    /// and the fault of a peer that comes. The listener goes on.
    pub fn accept(&self, receives: u16, within: Duration) -> Result<ShmEndpoint, ShmError> {
        let Self { domain, address, socket, .. } = self;
        self.accepting.next(&Place { domain, address, socket, receives }, within)?
    }

    /// Waits for the next connection that stands, and counts the others. None if none came.
    pub(in crate::fabric) fn next_standing(
        &self,
        receives: u16,
        within: Option<Duration>,
    ) -> Result<Option<ShmEndpoint>, ShmError> {
        let until = within.map(deadline);
        let Self { domain, address, socket, .. } = self;
        let place = Place { domain, address, socket, receives };
        loop {
            let left = until.map_or(LONG, |until| until.saturating_duration_since(Instant::now()));
            match self.accepting.next(&place, left) {
                Ok(Ok(endpoint)) => return Ok(Some(endpoint)),
                Ok(Err(error)) => self.accepting.refuse(&error),
                Err(ShmError::TimedOut { .. }) if within.is_none() => {}
                Err(ShmError::TimedOut { .. }) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns how many connections were not set up, without an error that told of each: they were evicted for newer ones, or silent
    /// too long; or, for [`Listener::next`](crate::fabric::Listener::next), something was wrong with the peer.
    pub fn refused(&self) -> u64 {
        self.accepting.given_up().1
    }

    /// Returns why the last of those was not set up.
    pub fn last_refused(&self) -> Option<String> {
        self.accepting.last_refused()
    }

    /// Returns how many half-open connections were evicted for newer ones.
    pub fn evicted(&self) -> u64 {
        self.accepting.given_up().0
    }

    /// Returns how often descriptors ran out. Times of want with less than ten seconds between them count as one.
    pub fn shortages(&self) -> u64 {
        self.accepting.shortages().unwrap_or(0)
    }

    /// Returns its address.
    pub fn address(&self) -> &ShmAddress {
        &self.address
    }
}

impl Drop for ShmListener {
    fn drop(&mut self) {
        let Some(path) = self.address.path() else { return };
        // Another process may have put its own in its place; and a forked child has a copy of this, while its parent listens.
        if self.mark.is_here()
            && let Ok(file) = rustix::fs::lstat(path)
            && self.file.is_some_and(|own| (own.st_dev, own.st_ino) == (file.st_dev, file.st_ino))
        {
            let _ = rustix::fs::unlink(path);
        }
    }
}

impl fmt::Debug for ShmListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ShmListener({})", self.address)
    }
}

/// Connects a domain to the one that listens at an address, with so many receives posted at this end. It takes no longer than this,
/// whatever the peer does.
///
/// # Errors
/// [`ShmError`].
pub fn connect(
    domain: &ShmDomain,
    address: &ShmAddress,
    receives: u16,
    within: Duration,
) -> Result<ShmEndpoint, ShmError> {
    connect_within(domain, address, receives, &Attempt::new(within))
}

/// The same, as an attempt that can be stopped.
pub(in crate::fabric) fn connect_within(
    domain: &ShmDomain,
    address: &ShmAddress,
    receives: u16,
    attempt: &Attempt,
) -> Result<ShmEndpoint, ShmError> {
    let socket = reach(address, attempt)?;
    let set_up = SetUp::new(domain, address, socket, End::Connecting, receives)?;
    finish(set_up, domain, address, receives, attempt)
}

/// Returns a connected socket. A full backlog is waited for.
fn reach(address: &ShmAddress, attempt: &Attempt) -> Result<OwnedFd, ShmError> {
    let socket = new_socket()?;
    let doing = system("connect", "see who may reach the path");
    let place = address.socket().map_err(&doing)?;
    loop {
        match rustix::net::connect(&socket, &place) {
            Ok(()) => return Ok(socket),
            Err(Errno::CONNREFUSED | Errno::NOENT) => {
                return Err(ShmError::NobodyListens { address: address.to_string() });
            }
            Err(Errno::PROTOTYPE) => {
                return Err(ShmError::OtherProtocol { address: address.to_string(), what: "a socket of another kind" });
            }
            // The system does not tell when there is room.
            Err(Errno::AGAIN | Errno::INTR) if attempt.pause(Duration::from_millis(1)) => {}
            Err(Errno::AGAIN | Errno::INTR) => return Err(timed_out("wait for room in the backlog", address, attempt)),
            Err(error) => return Err(doing(error)),
        }
    }
}

/// Sets a connection up over a socket that was accepted elsewhere, with so many receives posted at this end: another process
/// listens at the address on behalf of this one, and passes accepted sockets to it.
///
/// # Errors
/// [`ShmError`].
pub fn accept_passed(
    domain: &ShmDomain,
    address: &ShmAddress,
    socket: OwnedFd,
    receives: u16,
    within: Duration,
) -> Result<ShmEndpoint, ShmError> {
    let doing =
        system("take a socket that was passed", "pass a connected socket of the kind that shm listeners accept");
    rustix::io::ioctl_fionbio(&socket, true).map_err(doing)?;
    let attempt = Attempt::new(within);
    let set_up = SetUp::new(domain, address, socket, End::Accepting, receives)?;
    finish(set_up, domain, address, receives, &attempt)
}

/// Takes a set-up to its end.
fn finish(
    mut set_up: SetUp,
    domain: &ShmDomain,
    address: &ShmAddress,
    receives: u16,
    attempt: &Attempt,
) -> Result<ShmEndpoint, ShmError> {
    while !set_up.advance(domain, receives)? {
        if !attempt.wait(&**set_up.socket(), PollFlags::IN) {
            return Err(timed_out("set a connection up", address, attempt));
        }
    }
    set_up.stand(domain)
}

fn new_socket() -> Result<OwnedFd, ShmError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(system("make a socket", "raise the limit on open files (ulimit -n)"))
}

fn timed_out(doing: &'static str, address: &ShmAddress, attempt: &Attempt) -> ShmError {
    ShmError::TimedOut { doing, address: address.to_string(), waited: attempt.within() }
}

/// Keeps others from replacing a socket file of the same directory meanwhile.
fn lock_directory(path: &Path) -> Result<OwnedFd, ShmError> {
    let doing = system("lock the socket's directory", "see whether it is there, or choose another path");
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let directory = rustix::fs::open(directory, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).map_err(&doing)?;
    let until = Instant::now() + REPLACING;
    loop {
        match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(directory),
            Err(Errno::AGAIN | Errno::INTR) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => return Err(doing(error)),
        }
    }
}

/// Removes a socket file without a listener.
fn remove_stale(address: &ShmAddress, path: &Path) -> Result<(), ShmError> {
    let doing = system("replace a socket file", "remove the file by hand, or choose another path");
    let file = match rustix::fs::lstat(path) {
        // It went meanwhile.
        Err(Errno::NOENT) => return Ok(()),
        file => file.map_err(&doing)?,
    };
    if FileType::from_raw_mode(file.st_mode) != FileType::Socket {
        return Err(ShmError::NotASocket { path: path.to_owned() });
    }
    check_user(address, file.st_uid)?;
    match rustix::net::connect(new_socket()?, &address.socket().map_err(&doing)?) {
        Err(Errno::CONNREFUSED) => rustix::fs::unlink(path).map_err(&doing),
        Err(Errno::NOENT) => Ok(()),
        // Another process took it, has a full backlog, or listens by another kind of socket.
        _ => Err(ShmError::InUse { address: address.to_string() }),
    }
}

/// Returns a connected socket, for tests that speak by hand.
#[cfg(test)]
pub(super) fn raw_socket(address: &ShmAddress) -> OwnedFd {
    reach(address, &Attempt::new(Duration::from_secs(5))).expect("connected")
}
