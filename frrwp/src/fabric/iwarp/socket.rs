//! The edge to the kernel: bytes between a socket and memory, without a copy of ours.
#![expect(unsafe_code, reason = "system calls that take addresses of registered memory")]

use rustix::event::epoll::EventFlags;
use rustix::net::sockopt;
use smallvec::SmallVec;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

/// Memory of this process, as the system's calls want it (an `iovec`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Piece {
    pub(super) address: *const u8,
    pub(super) length: usize,
}

// SAFETY: `Send` requires that another thread may use the address. The poster promised (`Endpoint::write`) that the memory may be read
// until the post is done, by any thread.
unsafe impl Send for Piece {}

impl Piece {
    /// Returns the bytes.
    ///
    /// # Safety
    /// The memory may be read, and is not written, for as long as they are used.
    pub(super) unsafe fn bytes<'a>(self) -> &'a [u8] {
        // SAFETY: the caller promises that the piece's memory stays until it is sent.
        unsafe { std::slice::from_raw_parts(self.address, self.length) }
    }
}

/// Memory to receive into.
#[derive(Clone, Copy)]
pub(super) struct Room {
    pub(super) address: *mut u8,
    pub(super) length: usize,
}

const _: () = assert!(
    size_of::<Piece>() == size_of::<libc::iovec>()
        && std::mem::offset_of!(Piece, address) == std::mem::offset_of!(libc::iovec, iov_base)
        && std::mem::offset_of!(Piece, length) == std::mem::offset_of!(libc::iovec, iov_len)
);

fn result(returned: isize) -> io::Result<usize> {
    usize::try_from(returned).map_err(|_| io::Error::last_os_error())
}

/// Receives what is there into pieces of memory, one after the other. Never blocks.
///
/// # Safety
/// The memory may be written until this returns.
pub(super) unsafe fn receive(socket: BorrowedFd<'_>, rooms: &[Room]) -> io::Result<usize> {
    if let &[Room { address, length }] = rooms {
        // A vector of one would take longer.
        // SAFETY: the memory may be written: the caller's promise.
        return result(unsafe { libc::recv(socket.as_raw_fd(), address.cast(), length, libc::MSG_DONTWAIT) });
    }
    let mut vector: SmallVec<[libc::iovec; 2]> =
        rooms.iter().map(|room| libc::iovec { iov_base: room.address.cast(), iov_len: room.length }).collect();
    // SAFETY: all zeroes is a header without anything.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = vector.as_mut_ptr();
    message.msg_iovlen = vector.len() as _;
    // SAFETY: the vector lives, and the memory may be written: the caller's promise.
    result(unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_DONTWAIT) })
}

/// Sends pieces of memory, one after the other, as much as goes. Never blocks.
///
/// # Safety
/// The memory may be read until this returns.
pub(super) unsafe fn send(socket: BorrowedFd<'_>, pieces: &[Piece]) -> io::Result<usize> {
    const FLAGS: libc::c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    if let &[Piece { address, length }] = pieces {
        // SAFETY: the memory may be read: the caller's promise.
        return result(unsafe { libc::send(socket.as_raw_fd(), address.cast(), length, FLAGS) });
    }
    // SAFETY: all zeroes is a header without anything.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    // A piece is laid out as the system has it, and the system only reads.
    message.msg_iov = pieces.as_ptr().cast_mut().cast();
    message.msg_iovlen = pieces.len() as _;
    // SAFETY: the pieces live, and the memory may be read: the caller's promise.
    result(unsafe { libc::sendmsg(socket.as_raw_fd(), &message, FLAGS) })
}

/// Sleeps until one of the sockets can be read, or written where that is asked for, or the time is over.
pub(super) fn sleep(sockets: &mut [libc::pollfd], time: Option<Duration>) -> io::Result<usize> {
    let time = time.map(|time| libc::timespec {
        tv_sec: libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: time.subsec_nanos().into(),
    });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: `sockets` and `time` live across the call.
    let ready = unsafe { libc::ppoll(sockets.as_mut_ptr(), sockets.len() as libc::nfds_t, time, std::ptr::null()) };
    result(ready as isize)
}

/// Has the system end a connection with a peer that is out of reach for this long, though nothing is to come from it.
/// Cables are pulled and hosts fall without a message. It asks an idle peer from half of the time on, some times where that
/// is seconds.
pub(super) fn enable_keepalive(socket: &impl AsFd, patience: Duration) -> io::Result<()> {
    // The system counts in seconds here, up to 32,767.
    let seconds = |time: Duration| Duration::from_secs(time.as_secs().clamp(1, 32_767));
    sockopt::set_tcp_keepidle(socket, seconds(patience / 2))?;
    sockopt::set_tcp_keepintvl(socket, seconds(patience / 8))?;
    let milliseconds = patience.max(Duration::from_millis(1)).as_millis();
    sockopt::set_tcp_user_timeout(socket, u32::try_from(milliseconds).unwrap_or(i32::MAX as u32).min(i32::MAX as u32))?;
    Ok(sockopt::set_socket_keepalive(socket, true)?)
}

/// Returns an entry for [`sleep`] that can be read.
pub(super) fn watched(socket: &impl AsRawFd, writing: bool) -> libc::pollfd {
    let events = libc::POLLIN | if writing { libc::POLLOUT } else { 0 };
    libc::pollfd { fd: socket.as_raw_fd(), events, revents: 0 }
}

/// Returns an entry for [`sleep`], as an epoll would watch it.
pub(super) fn watched_for(socket: &impl AsRawFd, interest: EventFlags) -> libc::pollfd {
    // The low bits of both interfaces are the same; which are asked for fits.
    libc::pollfd { fd: socket.as_raw_fd(), events: interest.bits() as libc::c_short, revents: 0 }
}

/// Returns whether a socket that was slept on says that its peer has gone.
pub(super) fn hung_up(watched: &libc::pollfd) -> bool {
    watched.revents & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) != 0
}
