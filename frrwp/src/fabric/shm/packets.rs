//! The packets over the socket: introductions, memory that is passed, and wake-ups.
//!
//! The socket is a Unix one that keeps packets apart (`SOCK_SEQPACKET`). Each packet is four numbers of 64 bits, in the order of
//! this machine's bytes:
//!
//! ```text
//!         0                  8             16                   24
//! HELLO   magic "FRWPshm3"   tag table's   outbox's bytes       a random number of the sender's
//!                            bytes
//! ARENA   1                  its number    its bytes; the       0
//!                                          highest bit says
//!                                          that peers may write
//! GONE    2                  the number of 0                    0
//!                            an arena
//! WAKE    3                  0             0                    0
//! PROOF   4                  the number in 0                    0
//!                            the peer's HELLO
//! ```
//!
//! HELLO carries two descriptors, the tag table and the outbox (table.rs, link.rs), and ARENA one, the arena. HELLO and PROOF
//! carry what the kernel says of the process that sent them: credentials and, from Linux 6.5 on, a descriptor of the process.
//! set_up.rs has their order. The last byte of the magic is the version of all of this. Version 1 had packets of three numbers, and no
//! PROOF. In version 2 the tag table did not tell whether its owner lives.
//!
//! Wake-ups go this way, and not by an eventfd, because of hostile peers: all holders of an eventfd share the flag for
//! blocking, so a peer could clear it and fill the counter, and the next wake-up would hang. A packet is sent and received
//! without waiting whatever the peer does to his end.
#![expect(
    unsafe_code,
    reason = "asks a socket what is at its other end, and takes what the kernel attaches to packets"
)]

use super::error::Foreign;
use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use std::io;
use std::io::IoSlice;
use std::mem::MaybeUninit;

/// The first bytes of this protocol's HELLOs, in every version.
const FAMILY: [u8; 7] = *b"FRWPshm";
/// The version that is spoken here.
pub(super) const VERSION: u8 = b'3';
pub(super) const MAGIC: u64 = u64::from_ne_bytes(*b"FRWPshm3");
const ARENA: u64 = 1;
const GONE: u64 = 2;
const WAKE: u64 = 3;
const PROOF: u64 = 4;
const WRITABLE: u64 = 1 << 63;
pub(super) const BYTES: usize = 32;
/// Linux's, from 6.5 on.
const SO_PASSPIDFD: libc::c_int = 76;
const SCM_PIDFD: libc::c_int = 4;

/// A packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Packet {
    Hello { table: u64, outbox: u64, number: u64 },
    Arena { number: u64, bytes: u64, writable: bool },
    Gone { number: u64 },
    Wake,
    Proof { number: u64 },
}

/// The process that sent a packet, as the kernel says.
#[derive(Debug)]
pub(super) struct Sender {
    /// Its number in this process's PID namespace; 0 if it is in another one.
    pub(super) pid: i32,
    pub(super) uid: u32,
    /// A descriptor of it, where the system attaches one.
    pub(super) process: Option<OwnedFd>,
}

/// The descriptors that came with a packet.
#[derive(Debug, Default)]
pub(super) struct Attached {
    pub(super) files: Vec<OwnedFd>,
    /// As long as [`identify`] is asked for.
    pub(super) sender: Option<Sender>,
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
    /// A HELLO of another version came.
    Version(u8),
    /// Descriptors of the packet were lost: this process can open no more.
    Full,
    /// Descriptors that do not belong.
    Foreign(Foreign),
}

impl Packet {
    fn encode(self) -> [u8; BYTES] {
        let words = match self {
            Self::Hello { table, outbox, number } => [MAGIC, table, outbox, number],
            Self::Arena { number, bytes, writable } => [ARENA, number, bytes | if writable { WRITABLE } else { 0 }, 0],
            Self::Gone { number } => [GONE, number, 0, 0],
            Self::Wake => [WAKE, 0, 0, 0],
            Self::Proof { number } => [PROOF, number, 0, 0],
        };
        let mut bytes = [0; BYTES];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(words) {
            chunk.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<Self, NoPacket> {
        const SENSELESS: NoPacket = NoPacket::Nonsense("a packet without sense");
        if let Some((family, [version, ..])) = bytes.split_first_chunk()
            && *family == FAMILY
            && *version != VERSION
        {
            return Err(NoPacket::Version(*version));
        }
        if bytes.len() > BYTES {
            return Err(NoPacket::Nonsense("a packet that is too long"));
        }
        let bytes: &[u8; BYTES] = bytes.try_into().map_err(|_| SENSELESS)?;
        let word = |at: usize| bytes[at..at + 8].try_into().map(u64::from_ne_bytes).map_err(|_| SENSELESS);
        Ok(match (word(0)?, word(8)?, word(16)?, word(24)?) {
            (MAGIC, table, outbox, number) => Self::Hello { table, outbox, number },
            (ARENA, number, bytes, _) => {
                Self::Arena { number, bytes: bytes & !WRITABLE, writable: bytes & WRITABLE != 0 }
            }
            (GONE, number, ..) => Self::Gone { number },
            (WAKE, ..) => Self::Wake,
            (PROOF, number, ..) => Self::Proof { number },
            _ => return Err(SENSELESS),
        })
    }

    fn descriptors(self) -> usize {
        match self {
            Self::Hello { .. } => 2,
            Self::Arena { .. } => 1,
            Self::Gone { .. } | Self::Wake | Self::Proof { .. } => 0,
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

/// Tells a peer of another version which one is spoken here, as far as it can understand.
pub(super) fn refuse_version(socket: &OwnedFd) {
    let bytes = Packet::Hello { table: 0, outbox: 0, number: 0 }.encode();
    // A peer that does not hear it finds the socket closed.
    let _ = rustix::net::send(socket, &bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// Receives a packet and its descriptors without waiting. Descriptors that do not belong are closed.
pub(super) fn receive(socket: &OwnedFd) -> Result<(Packet, Vec<OwnedFd>), NoPacket> {
    receive_attached(socket).map(|(packet, attached)| (packet, attached.files))
}

/// The same, with what the kernel says of the sender.
pub(super) fn receive_attached(socket: &OwnedFd) -> Result<(Packet, Attached), NoPacket> {
    // One byte more, to see that a packet is longer.
    let mut bytes = [0; BYTES + 1];
    let (length, flags, attached) = loop {
        match receive_bytes(socket, &mut bytes) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Err(NoPacket::Nothing),
            Err(_) => return Err(NoPacket::End),
            Ok(received) => break received,
        }
    };
    let came = bytes.get(..length).unwrap_or_default();
    if came.is_empty() {
        return Err(NoPacket::End);
    }
    let packet = Packet::decode(came)?;
    let (has, wanted) = (attached.files.len(), packet.descriptors());
    let lost = flags & libc::MSG_CTRUNC != 0;
    if has < wanted && lost {
        return Err(NoPacket::Full);
    }
    if has != wanted || lost {
        return Err(NoPacket::Foreign(Foreign::Count { has, wanted }));
    }
    Ok((packet, attached))
}

/// Receives bytes, with the system's flags and what is attached.
fn receive_bytes(socket: &OwnedFd, bytes: &mut [u8]) -> rustix::io::Result<(usize, libc::c_int, Attached)> {
    // Descriptors, credentials and a process, each with a header of 16 bytes, aligned.
    let mut room = [0_u64; 16];
    let mut piece = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: all zeroes is a header without anything.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut piece, 1);
    (message.msg_control, message.msg_controllen) = (room.as_mut_ptr().cast(), size_of_val(&room) as _);
    // SAFETY: the header names memory that lives, and its size.
    let length =
        unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC) };
    let length =
        usize::try_from(length).map_err(|_| Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))?;
    let mut attached = Attached::default();
    let mut credentials: Option<libc::ucred> = None;
    let mut process = None;
    // SAFETY: the system has filled the header, and what its macros yield lies within `room`. The data of each kind is what the
    // system documents, read where it may lie unaligned; descriptors were made for this process just now.
    unsafe {
        let mut next = libc::CMSG_FIRSTHDR(&message);
        while let Some(header) = next.as_ref() {
            let data = libc::CMSG_DATA(header);
            let bytes = header.cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
            match (header.cmsg_level, header.cmsg_type) {
                (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                    for at in 0..bytes / size_of::<libc::c_int>() {
                        let file = data.cast::<libc::c_int>().add(at).read_unaligned();
                        attached.files.push(OwnedFd::from_raw_fd(file));
                    }
                }
                (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) if bytes >= size_of::<libc::ucred>() => {
                    credentials = Some(data.cast::<libc::ucred>().read_unaligned());
                }
                (libc::SOL_SOCKET, SCM_PIDFD) if bytes >= size_of::<libc::c_int>() => {
                    let file = data.cast::<libc::c_int>().read_unaligned();
                    // Negative: why there is none.
                    process = (file >= 0).then(|| OwnedFd::from_raw_fd(file));
                }
                _ => {}
            }
            next = libc::CMSG_NXTHDR(&message, header);
        }
    }
    attached.sender = credentials.map(|libc::ucred { pid, uid, .. }| Sender { pid, uid, process });
    Ok((length, message.msg_flags, attached))
}

/// Has the system say of each packet which process sent it, or not any more.
///
/// It says that of packets that were sent while either end asks for it, or before the socket was accepted.
pub(super) fn identify(socket: &OwnedFd, asked: bool) -> io::Result<()> {
    set_option(socket, libc::SO_PASSCRED, asked)?;
    // Not before Linux 6.5.
    if has_processes() {
        let _ = set_option(socket, SO_PASSPIDFD, asked);
    }
    Ok(())
}

#[cfg(not(test))]
fn has_processes() -> bool {
    true
}

/// Tests go the way of older systems too.
#[cfg(test)]
fn has_processes() -> bool {
    std::env::var_os("FRRWP_SHM_NO_PIDFD").is_none()
}

/// Returns the user of the process at the other end.
pub(super) fn user(socket: &OwnedFd) -> io::Result<u32> {
    Ok(credentials(socket)?.uid)
}

/// Returns the process that connected, or listened, at the other end: not the one that speaks, if that inherited the socket or was
/// given it.
pub(super) fn other_end(socket: &OwnedFd) -> io::Result<i32> {
    Ok(credentials(socket)?.pid)
}

/// Returns whether one of the descriptors has such an event now.
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

fn set_option(socket: &OwnedFd, name: libc::c_int, value: bool) -> io::Result<()> {
    let value = libc::c_int::from(value);
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the value lives, and is as long as is said.
    let done = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, name, std::ptr::from_ref(&value).cast(), length)
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
