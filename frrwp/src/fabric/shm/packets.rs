//! What goes over the socket: who is there, memory that is passed, and wake-ups.
//!
//! The socket is a Unix one that keeps packets apart (`SOCK_SEQPACKET`). Numbers are in the order of this machine's bytes:
//!
//! ```text
//! HELLO  0  u64  magic "FRWPshm1"     with two descriptors: the tag table, the outbox (table.rs, link.rs)
//!        8  u64  bytes of the tag table
//!       16  u64  bytes of the outbox
//! ARENA  0  u64  1                    with a descriptor: the arena
//!        8  u64  its number
//!       16  u64  its bytes; the highest bit says that peers may write
//! GONE   0  u64  2
//!        8  u64  the number of an arena that is no more
//!       16  u64  0
//! WAKE   0  u64  3
//!        8       zero (16)
//! ```
//!
//! Wake-ups go this way, and not by an eventfd, because of hostile peers: whether an eventfd blocks is a flag that all who
//! have it share, so a peer could clear it and fill the counter, and the next wake-up would hang. A packet is sent and
//! received without waiting whatever the peer does to his end.
#![expect(unsafe_code, reason = "asks a socket who is at its other end")]

use super::error::Foreign;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use std::io;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;

pub(super) const MAGIC: u64 = u64::from_ne_bytes(*b"FRWPshm1");
const ARENA: u64 = 1;
const GONE: u64 = 2;
const WAKE: u64 = 3;
const WRITABLE: u64 = 1 << 63;
const BYTES: usize = 24;

/// A packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Packet {
    Hello { table: u64, outbox: u64 },
    Arena { number: u64, bytes: u64, writable: bool },
    Gone { number: u64 },
    Wake,
}

/// Why there is no packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NoPacket {
    /// Not yet.
    Nothing,
    /// The other side has closed, or is dead.
    End,
    /// Something else came.
    Nonsense(&'static str),
    /// Descriptors that do not belong.
    Foreign(Foreign),
}

impl Packet {
    fn encode(self) -> [u8; BYTES] {
        let words = match self {
            Self::Hello { table, outbox } => [MAGIC, table, outbox],
            Self::Arena { number, bytes, writable } => [ARENA, number, bytes | if writable { WRITABLE } else { 0 }],
            Self::Gone { number } => [GONE, number, 0],
            Self::Wake => [WAKE, 0, 0],
        };
        let mut bytes = [0; BYTES];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(words) {
            chunk.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; BYTES] = bytes.try_into().ok()?;
        let word = |at: usize| bytes[at..at + 8].try_into().map(u64::from_ne_bytes).ok();
        Some(match (word(0)?, word(8)?, word(16)?) {
            (MAGIC, table, outbox) => Self::Hello { table, outbox },
            (ARENA, number, bytes) => Self::Arena { number, bytes: bytes & !WRITABLE, writable: bytes & WRITABLE != 0 },
            (GONE, number, _) => Self::Gone { number },
            (WAKE, ..) => Self::Wake,
            _ => return None,
        })
    }

    fn descriptors(self) -> usize {
        match self {
            Self::Hello { .. } => 2,
            Self::Arena { .. } => 1,
            Self::Gone { .. } | Self::Wake => 0,
        }
    }
}

/// Sends a packet without waiting.
pub(super) fn send(socket: &OwnedFd, packet: Packet, files: &[BorrowedFd<'_>]) -> rustix::io::Result<()> {
    debug_assert_eq!(files.len(), packet.descriptors());
    let bytes = packet.encode();
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut room);
    if !files.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(files));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::net::sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, flags).map(drop)
}

/// Receives a packet and its descriptors without waiting. Descriptors that do not belong are closed.
pub(super) fn receive(socket: &OwnedFd) -> Result<(Packet, Vec<OwnedFd>), NoPacket> {
    let mut bytes = [0; BYTES + 1];
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = RecvAncillaryBuffer::new(&mut room);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = loop {
        match rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Err(NoPacket::Nothing),
            Err(_) => return Err(NoPacket::End),
            Ok(received) => break received,
        }
    };
    let files: Vec<OwnedFd> = control
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(files) => Some(files),
            _ => None,
        })
        .flatten()
        .collect();
    if received.bytes == 0 {
        return Err(NoPacket::End);
    }
    if received.flags.contains(ReturnFlags::TRUNC) {
        return Err(NoPacket::Nonsense("a packet that is too long"));
    }
    let Some(packet) = bytes.get(..received.bytes).and_then(Packet::decode) else {
        return Err(NoPacket::Nonsense("a packet without sense"));
    };
    if files.len() != packet.descriptors() || received.flags.contains(ReturnFlags::CTRUNC) {
        return Err(NoPacket::Foreign(Foreign::Count { has: files.len(), wanted: packet.descriptors() }));
    }
    Ok((packet, files))
}

/// The user of the process at the other end.
pub(super) fn user(socket: &OwnedFd) -> io::Result<u32> {
    Ok(credentials(socket)?.uid)
}

/// A descriptor that becomes readable when the process at the other end is dead.
pub(super) fn process(socket: &OwnedFd) -> io::Result<OwnedFd> {
    let mut file: libc::c_int = -1;
    match option(socket, libc::SO_PEERPIDFD, &mut file) {
        // SAFETY: the system made this descriptor for us just now.
        Ok(()) if file >= 0 => return Ok(unsafe { OwnedFd::from_raw_fd(file) }),
        _ => {}
    }
    // Before Linux 6.5. Should the process be dead and its number taken by now, its end of the socket is closed too, which
    // is asked afterwards.
    let pid = credentials(socket)?.pid;
    let Some(pid) = rustix::process::Pid::from_raw(pid) else { return Err(io::ErrorKind::NotFound.into()) };
    let file = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?;
    if is_ready(&[socket.as_fd()], rustix::event::PollFlags::HUP) {
        return Err(io::ErrorKind::BrokenPipe.into());
    }
    Ok(file)
}

/// Whether one of the descriptors has such an event now.
pub(super) fn is_ready(files: &[BorrowedFd<'_>], events: rustix::event::PollFlags) -> bool {
    let mut polled: Vec<_> = files.iter().map(|&file| rustix::event::PollFd::from_borrowed_fd(file, events)).collect();
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut polled, Some(&now)).is_ok_and(|ready| ready > 0)
        && polled.iter().any(|file| file.revents().intersects(events))
}

fn credentials(socket: &OwnedFd) -> io::Result<libc::ucred> {
    let mut credentials = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    option(socket, libc::SO_PEERCRED, &mut credentials)?;
    Ok(credentials)
}

fn option<T: Copy>(socket: &OwnedFd, name: libc::c_int, value: &mut T) -> io::Result<()> {
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the system writes at most `length` bytes of plain numbers into the value.
    let done = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, name, std::ptr::from_mut(value).cast(), &mut length)
    };
    if done == 0 && length as usize == size_of::<T>() { Ok(()) } else { Err(io::Error::last_os_error()) }
}
