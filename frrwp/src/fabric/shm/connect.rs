//! Connections: listened for, made, and refused.
//!
//! Only processes of this user are admitted, at both ends: the socket says who made the other one. A socket file can be
//! connected to by its owner only, besides. Who listens before us at a path is told from a file that a dead process left
//! behind by connecting to it, under a lock of the directory, so that of two who find such a file one replaces it, and
//! the other finds the first.

use super::address::ShmAddress;
use super::domain::ShmDomain;
use super::endpoint::ShmEndpoint;
use super::error::{ShmError, system};
use super::link::{Link, OUTBOX};
use super::memory::{Mapping, Writers};
use super::packets::{self, NoPacket, Packet};
use super::ring::Rings;
use super::steps::step;
use super::table::PeerTable;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;
/// How long who connects has to say hello at least.
const SETTING_UP: Duration = Duration::from_secs(1);
/// How long somebody else may be busy replacing a socket file of the same directory.
const REPLACING: Duration = Duration::from_secs(2);

/// Where peers connect to a domain. Its socket file goes when it is dropped.
pub struct ShmListener {
    domain: ShmDomain,
    address: ShmAddress,
    socket: OwnedFd,
    /// The socket file, as it was made.
    file: Option<rustix::fs::Stat>,
    process: u32,
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
        let Some(path) = address.path() else {
            return match rustix::net::bind(&socket, &place) {
                Err(Errno::ADDRINUSE) => Err(ShmError::InUse { address: address.to_string() }),
                bound => {
                    bound.and_then(|()| rustix::net::listen(&socket, BACKLOG)).map_err(&doing)?;
                    let process = std::process::id();
                    Ok(Self { domain: domain.clone(), address: address.clone(), socket, file: None, process })
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
        // Nobody can connect before `listen`.
        rustix::fs::chmod(path, Mode::RUSR | Mode::WUSR).map_err(&doing)?;
        rustix::net::listen(&socket, BACKLOG).map_err(&doing)?;
        let file = Some(rustix::fs::lstat(path).map_err(&doing)?);
        Ok(Self { domain: domain.clone(), address: address.clone(), socket, file, process: std::process::id() })
    }

    /// The next connection, with so many receives posted at this end. Its set-up counts in the time, but who comes at its end
    /// has a second all the same.
    ///
    /// # Errors
    /// [`ShmError::TimedOut`] if nobody comes, or does not finish; and what is wrong with who comes. The listener goes on.
    pub fn accept(&self, receives: u16, within: Duration) -> Result<ShmEndpoint, ShmError> {
        let until = Instant::now() + within;
        let doing = system("accept a connection", "raise the limit on open files (ulimit -n)");
        let socket = loop {
            if !ready(&self.socket, until) {
                return Err(timed_out("accept a connection", &self.address, within));
            }
            match rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC) {
                Ok(socket) => break socket,
                Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
                Err(error) => return Err(doing(error)),
            }
        };
        let until = until.max(Instant::now() + SETTING_UP);
        set_up(&self.domain, &self.address, socket, receives, until, within)
    }

    /// Where it listens.
    pub fn address(&self) -> &ShmAddress {
        &self.address
    }
}

impl Drop for ShmListener {
    fn drop(&mut self) {
        let Some(path) = self.address.path() else { return };
        // Somebody may have put his own in its place; and a child that was forked has a copy of this, while its parent listens.
        if self.process == std::process::id()
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

/// Connects a domain to the one that listens at an address, with so many receives posted at this end.
///
/// # Errors
/// [`ShmError`].
pub fn connect(
    domain: &ShmDomain,
    address: &ShmAddress,
    receives: u16,
    within: Duration,
) -> Result<ShmEndpoint, ShmError> {
    let until = Instant::now() + within;
    let socket = reach(address, until, within)?;
    set_up(domain, address, socket, receives, until, within)
}

/// A connected socket. A full backlog is waited for.
fn reach(address: &ShmAddress, until: Instant, within: Duration) -> Result<OwnedFd, ShmError> {
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
            Err(Errno::AGAIN | Errno::INTR) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(Errno::AGAIN | Errno::INTR) => return Err(timed_out("connect", address, within)),
            Err(error) => return Err(doing(error)),
        }
    }
}

/// Both ends say who they are and pass what they made, then look at what the other passed.
fn set_up(
    domain: &ShmDomain,
    address: &ShmAddress,
    socket: OwnedFd,
    receives: u16,
    until: Instant,
    within: Duration,
) -> Result<ShmEndpoint, ShmError> {
    let doing = system("set a connection up", "see whether the other side still runs, and ulimit -n");
    let own = rustix::process::geteuid().as_raw();
    // Nothing is passed to another user, and nothing of his is looked at.
    let uid = packets::user(&socket).map_err(&doing)?;
    if uid != own {
        return Err(ShmError::OtherUser { address: address.to_string(), uid, own });
    }
    let process = packets::process(&socket).map_err(&doing)?;
    let (file, outbox) = Mapping::create("frrwp-outbox", OUTBOX, Writers::Maker)?;
    let rings = Rings::new(&outbox, receives);
    step();
    let other = |what| ShmError::OtherProtocol { address: address.to_string(), what };
    const CLOSED: &str = "it closed before it said hello";
    domain
        .with_table(|table, bytes| {
            let hello = Packet::Hello { table: bytes, outbox: OUTBOX as u64 };
            packets::send(&socket, hello, &[table.as_fd(), file.as_fd()])
        })
        .map_err(|error| if error == Errno::PIPE { other(CLOSED) } else { doing(error.into()) })?;
    step();
    let foreign = |foreign| ShmError::Foreign { address: address.to_string(), foreign };
    let (table, peer_outbox) = loop {
        match packets::receive(&socket) {
            Ok((Packet::Hello { table, outbox }, files)) => {
                let [tags, outbox_file] = &files[..] else { return Err(other("no descriptors")) };
                if outbox != OUTBOX as u64 {
                    return Err(other("an outbox of another size"));
                }
                let table = Mapping::admit(tags, table, false).map_err(foreign)?;
                break (table, Mapping::admit(outbox_file, outbox, false).map_err(foreign)?);
            }
            Ok(_) => return Err(other("no hello")),
            Err(NoPacket::Nothing) => {
                if !ready(&socket, until) {
                    return Err(timed_out("set a connection up", address, within));
                }
            }
            Err(NoPacket::End) => return Err(other(CLOSED)),
            Err(NoPacket::Nonsense(what)) => return Err(other(what)),
            Err(NoPacket::Foreign(what)) => return Err(foreign(what)),
        }
    };
    step();
    let tags = PeerTable::new(table).map_err(other)?;
    let link = Arc::new(Link::new(outbox, peer_outbox, tags, socket, process));
    ShmEndpoint::new(domain.clone(), link, rings)
}

fn new_socket() -> Result<OwnedFd, ShmError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(system("make a socket", "raise the limit on open files (ulimit -n)"))
}

fn timed_out(doing: &'static str, address: &ShmAddress, waited: Duration) -> ShmError {
    ShmError::TimedOut { doing, address: address.to_string(), waited }
}

/// Waits until there is something to receive. False where the time came first.
fn ready(socket: &OwnedFd, until: Instant) -> bool {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left =
            Timespec { tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX), tv_nsec: left.subsec_nanos() as _ };
        let mut files = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)];
        match rustix::event::poll(&mut files, Some(&left)) {
            Err(Errno::INTR) => {}
            Ok(0) | Err(_) => return false,
            Ok(_) => return true,
        }
    }
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

/// Removes a socket file at which nobody listens.
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
    let own = rustix::process::geteuid().as_raw();
    if file.st_uid != own {
        return Err(ShmError::OtherUser { address: address.to_string(), uid: file.st_uid, own });
    }
    match rustix::net::connect(new_socket()?, &address.socket().map_err(&doing)?) {
        Err(Errno::CONNREFUSED) => rustix::fs::unlink(path).map_err(&doing),
        Err(Errno::NOENT) => Ok(()),
        // Somebody took it, has a full backlog, or listens by another kind of socket.
        _ => Err(ShmError::InUse { address: address.to_string() }),
    }
}

/// A connected socket, for tests that speak by hand.
#[cfg(test)]
pub(super) fn raw_socket(address: &ShmAddress) -> OwnedFd {
    let within = Duration::from_secs(5);
    reach(address, Instant::now() + within, within).expect("connected")
}
