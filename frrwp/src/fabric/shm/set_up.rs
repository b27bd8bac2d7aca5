//! Setting a connection up, and which process is at the other end.
//!
//! ```text
//! connecting                               accepting
//!     │ HELLO: table, outbox, a number ──────► │   opens the process that sent it
//!     │ ◄────── HELLO: table, outbox, a number │
//! opens the process that sent it               │
//!     │ PROOF: the other's number ───────────► │   sees that it was the same process
//!     │ ◄─────────── PROOF: the other's number │   stands
//! sees that it was the same process; stands
//! ```
//!
//! The process that counts is the one that speaks, for it maps the peer's memory: that it is dead is what quarantined memory waits for.
//! The socket names another one if a process listens or connects, and a child that it forked, or a process to which it passes
//! the socket, goes on. So each side takes the process from what the kernel attaches to the HELLO:
//!
//! * From Linux 6.5 on that is a descriptor of the process (`SCM_PIDFD`).
//! * Before, it is a process number, and another process may have it by the time that a descriptor is opened by it. PROOF, which is
//!   sent after that, carries the number of its sender. If both numbers are equal, and the descriptor says that its process lives
//!   after the PROOF came, that process had the number all the time from before the PROOF was sent: it sent it.
//! * A number from another PID namespace cannot be seen. Without a descriptor, such a peer is refused.

use super::address::ShmAddress;
use super::domain::ShmDomain;
use super::endpoint::ShmEndpoint;
use super::error::{Foreign, ShmError, system};
use super::failpoints::failpoint;
use super::link::{Link, OUTBOX};
use super::memory::{Mapping, Writers};
use super::packets::{self, Attached, NoPacket, Packet, Sender};
use super::ring::Rings;
use super::table::PeerTable;
use rustix::event::PollFlags;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};
use rustix::rand::GetRandomFlags;
use std::io;
use std::sync::Arc;

/// Which end of a connection this is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    Connecting,
    Accepting,
}

/// A connection that does not stand yet. One with a silent peer costs a descriptor.
pub(super) struct SetUp {
    end: End,
    socket: Arc<OwnedFd>,
    address: ShmAddress,
    /// An accepting end makes it when a HELLO has come.
    own: Option<Own>,
    peer: Option<Peer>,
}

/// This side's half.
struct Own {
    outbox: Mapping,
    rings: Rings,
    number: u64,
}

/// The other side's half, as its HELLO says.
struct Peer {
    outbox: Mapping,
    tags: PeerTable,
    number: u64,
    pid: i32,
    process: OwnedFd,
}

impl SetUp {
    /// Takes a connected socket. A connecting end says hello at once.
    ///
    /// # Errors
    /// The other end is another user's, and what the system says.
    pub(super) fn new(
        domain: &ShmDomain,
        address: &ShmAddress,
        socket: OwnedFd,
        end: End,
        receives: u16,
    ) -> Result<Self, ShmError> {
        let mut set_up = Self { end, socket: Arc::new(socket), address: address.clone(), own: None, peer: None };
        // Nothing is passed to another user, and nothing of its is looked at.
        set_up.check_user(packets::user(&set_up.socket).map_err(failed)?)?;
        packets::identify(&set_up.socket, true).map_err(failed)?;
        if end == End::Connecting {
            set_up.say_hello(domain, receives)?;
        }
        Ok(set_up)
    }

    /// Returns the socket, to wait at.
    pub(super) fn socket(&self) -> &Arc<OwnedFd> {
        &self.socket
    }

    /// Takes what has come. Returns whether the connection can [`stand`](Self::stand).
    pub(super) fn advance(&mut self, domain: &ShmDomain, receives: u16) -> Result<bool, ShmError> {
        loop {
            match packets::receive_attached(&self.socket) {
                Ok((Packet::Hello { table, outbox, number }, attached)) if self.peer.is_none() => {
                    self.peer = Some(self.peer_of(table, outbox, number, attached)?);
                    failpoint();
                    match self.end {
                        End::Accepting => self.say_hello(domain, receives)?,
                        End::Connecting => self.send(Packet::Proof { number }, &[])?,
                    }
                    failpoint();
                }
                Ok((Packet::Proof { number }, attached)) => return self.check_proof(number, attached).map(|()| true),
                Ok(_) => return Err(self.other(if self.peer.is_none() { "no hello" } else { "no proof" })),
                Err(NoPacket::Nothing) => return Ok(false),
                Err(NoPacket::End) => return Err(self.closed()),
                Err(NoPacket::Nonsense(what)) => return Err(self.other(what)),
                Err(NoPacket::Foreign(foreign)) => return Err(self.foreign(foreign)),
                Err(NoPacket::Full) => return Err(failed(Errno::MFILE)),
                Err(NoPacket::Version(theirs)) => {
                    packets::refuse_version(&self.socket);
                    let address = self.address.to_string();
                    let [theirs, own] = [theirs, packets::VERSION].map(char::from);
                    return Err(ShmError::OtherVersion { address, theirs, own });
                }
            }
        }
    }

    /// Makes the endpoint of a connection that has [advanced](Self::advance) to its end.
    pub(super) fn stand(self, domain: &ShmDomain) -> Result<ShmEndpoint, ShmError> {
        let Self { end, socket, address, own: Some(own), peer: Some(peer) } = self else {
            return Err(failed(Errno::PROTO));
        };
        if end == End::Accepting {
            let proof = Packet::Proof { number: peer.number };
            packets::send(&socket, proof, &[]).map_err(|error| refused(&address, error))?;
        }
        packets::identify(&socket, false).map_err(failed)?;
        // A waiting thread there waits no more.
        let socket = Arc::try_unwrap(socket).or_else(|socket| socket.try_clone()).map_err(failed)?;
        failpoint();
        let link = Arc::new(Link::new(own.outbox, peer.outbox, peer.tags, socket, peer.process));
        ShmEndpoint::new(domain.clone(), link, own.rings).map_err(|error| match error {
            // Arenas are passed after the set-up, and a listener at a limit closes at that moment.
            ShmError::System { source, .. }
                if matches!(source.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) =>
            {
                ShmError::ClosedEarly { address: address.to_string() }
            }
            error => error,
        })
    }

    fn say_hello(&mut self, domain: &ShmDomain, receives: u16) -> Result<(), ShmError> {
        let (file, outbox) = Mapping::create("frrwp-outbox", OUTBOX, Writers::Maker)?;
        let rings = Rings::new(&outbox, receives);
        let mut number = [0; 8];
        rustix::rand::getrandom(&mut number, GetRandomFlags::empty()).map_err(failed)?;
        let number = u64::from_ne_bytes(number);
        failpoint();
        domain.with_table(|table, bytes| {
            let hello = Packet::Hello { table: bytes, outbox: OUTBOX as u64, number };
            self.send(hello, &[table.as_fd(), file.as_fd()])
        })??;
        failpoint();
        self.own = Some(Own { outbox, rings, number });
        Ok(())
    }

    /// Returns the peer of a HELLO, and the process that sent it.
    fn peer_of(&self, table: u64, outbox: u64, number: u64, attached: Attached) -> Result<Peer, ShmError> {
        let Attached { files, sender } = attached;
        let address = || self.address.to_string();
        let unidentified = |what| ShmError::Unidentified { address: address(), what };
        let Some(Sender { pid, uid, process }) = sender else {
            return Err(unidentified("the system does not say which process sent its hello"));
        };
        self.check_user(uid)?;
        let process = match (process, Pid::from_raw(pid)) {
            (Some(process), _) => process,
            (None, Some(pid)) => match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
                Err(Errno::SRCH) => return Err(self.closed()),
                opened => opened.map_err(failed)?,
            },
            (None, None) => {
                return Err(unidentified(
                    "its process is in another PID namespace, which Linux before 6.5 does not show",
                ));
            }
        };
        let [tags, outbox_file] = &files[..] else { return Err(self.other("no descriptors")) };
        if outbox != OUTBOX as u64 {
            return Err(self.other("an outbox of another size"));
        }
        let admit = |file, bytes| Mapping::admit(file, bytes, false).map_err(|foreign| self.foreign(foreign));
        let tags = PeerTable::new(admit(tags, table)?).map_err(|what| self.other(what))?;
        Ok(Peer { outbox: admit(outbox_file, outbox)?, tags, number, pid, process })
    }

    /// Checks that the process which was taken from the HELLO sent this as well, and lives.
    fn check_proof(&self, number: u64, attached: Attached) -> Result<(), ShmError> {
        let (Some(own), Some(peer)) = (&self.own, &self.peer) else { return Err(self.other("no hello")) };
        let address = self.address.to_string();
        let Some(sender) = attached.sender else {
            return Err(ShmError::Unidentified {
                address,
                what: "the system does not say which process proved itself",
            });
        };
        self.check_user(sender.uid)?;
        if sender.pid != peer.pid || number != own.number {
            return Err(ShmError::Unidentified { address, what: "one process said hello, and another one went on" });
        }
        if packets::is_ready(&[peer.process.as_fd()], PollFlags::IN) {
            return Err(self.closed());
        }
        Ok(())
    }

    fn check_user(&self, uid: u32) -> Result<(), ShmError> {
        check_user(&self.address, uid)
    }

    fn send(&self, packet: Packet, files: &[BorrowedFd<'_>]) -> Result<(), ShmError> {
        packets::send(&self.socket, packet, files).map_err(|error| refused(&self.address, error))
    }

    fn other(&self, what: &'static str) -> ShmError {
        ShmError::OtherProtocol { address: self.address.to_string(), what }
    }

    fn closed(&self) -> ShmError {
        ShmError::ClosedEarly { address: self.address.to_string() }
    }

    fn foreign(&self, foreign: Foreign) -> ShmError {
        ShmError::Foreign { address: self.address.to_string(), foreign }
    }
}

/// Checks that a user is this process's own, and one that the system knows.
pub(super) fn check_user(address: &ShmAddress, uid: u32) -> Result<(), ShmError> {
    let own = rustix::process::geteuid().as_raw();
    let address = || address.to_string();
    if uid != own {
        return Err(ShmError::OtherUser { address: address(), uid, own });
    }
    if uid == overflow_uid() {
        return Err(ShmError::UnknownUser { address: address(), uid });
    }
    Ok(())
}

/// Returns the user that stands for all that this user namespace does not know.
fn overflow_uid() -> u32 {
    const USUAL: u32 = 65_534;
    let text = std::fs::read_to_string("/proc/sys/kernel/overflowuid");
    text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(USUAL)
}

fn failed(error: impl Into<io::Error>) -> ShmError {
    system("set a connection up", "see whether the other side still runs, and ulimit -n")(error)
}

/// Why a packet was not sent.
fn refused(address: &ShmAddress, error: Errno) -> ShmError {
    match error {
        Errno::PIPE | Errno::CONNRESET => ShmError::ClosedEarly { address: address.to_string() },
        error => failed(error),
    }
}
