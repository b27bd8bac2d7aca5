//! The edge to the kernel: several datagrams in one system call.
#![expect(unsafe_code, reason = "system calls that take addresses of buffers")]

use crate::fabric::traits::Peer;
use std::io;
use std::mem::{offset_of, size_of, zeroed};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::null_mut;

/// Datagrams of one system call.
pub(super) const BATCH: usize = 32;

/// An address as the system has it.
type Name = libc::sockaddr_in6;

const _: () = assert!(size_of::<libc::sockaddr_in>() <= size_of::<Name>());
const _: () = assert!(offset_of!(libc::sockaddr_in, sin_family) == offset_of!(Name, sin6_family));

fn nothing<T: Plain>() -> T {
    // SAFETY: `zeroed` requires that all zeros are a value, which `Plain` promises.
    unsafe { zeroed() }
}

/// Types of the system's that may be all zeros.
///
/// # Safety
/// All zeros are a value of the type.
unsafe trait Plain {}

// SAFETY: `Plain` requires that all zeros are a value: the address consists of numbers.
unsafe impl Plain for Name {}
// SAFETY: `Plain` requires that all zeros are a value: the header consists of numbers and pointers, which may be null.
unsafe impl Plain for libc::mmsghdr {}

fn to_name(peer: Peer, is_v6: bool) -> Name {
    let mut name: Name = nothing();
    match SocketAddr::from(peer) {
        SocketAddr::V4(address) if !is_v6 => {
            let four = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: address.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from(*address.ip()).to_be() },
                sin_zero: [0; 8],
            };
            // SAFETY: `write` requires room for the value: the larger address has it, and its alignment.
            unsafe { std::ptr::from_mut(&mut name).cast::<libc::sockaddr_in>().write(four) };
        }
        address => {
            let (ip, scope) = match address {
                SocketAddr::V4(address) => (address.ip().to_ipv6_mapped(), 0),
                SocketAddr::V6(address) => (*address.ip(), address.scope_id()),
            };
            name.sin6_family = libc::AF_INET6 as libc::sa_family_t;
            name.sin6_port = address.port().to_be();
            name.sin6_addr.s6_addr = ip.octets();
            name.sin6_scope_id = scope;
        }
    }
    name
}

fn to_peer(name: &Name) -> Option<Peer> {
    let family = libc::c_int::from(name.sin6_family);
    if family == libc::AF_INET {
        // SAFETY: `read` requires a value that is initialized there: all of the larger address is, and the type is numbers.
        let four = unsafe { std::ptr::from_ref(name).cast::<libc::sockaddr_in>().read() };
        let ip = Ipv4Addr::from(u32::from_be(four.sin_addr.s_addr));
        return Some(SocketAddr::V4(SocketAddrV4::new(ip, u16::from_be(four.sin_port))).into());
    }
    let (ip, port) = (name.sin6_addr.s6_addr.into(), u16::from_be(name.sin6_port));
    (family == libc::AF_INET6).then(|| SocketAddr::V6(SocketAddrV6::new(ip, port, 0, name.sin6_scope_id)).into())
}

/// Returns the headers of datagrams, each with a name of this length and one piece of bytes. They point to both.
fn headers(names: &mut [Name; BATCH], vectors: &mut [libc::iovec; BATCH], length: usize) -> [libc::mmsghdr; BATCH] {
    let mut headers: [libc::mmsghdr; BATCH] = [nothing(); BATCH];
    for (header, (name, vector)) in headers.iter_mut().zip(names.iter_mut().zip(vectors)) {
        header.msg_hdr.msg_name = std::ptr::from_mut(name).cast();
        header.msg_hdr.msg_namelen = length as libc::socklen_t;
        header.msg_hdr.msg_iov = vector;
        header.msg_hdr.msg_iovlen = 1;
    }
    headers
}

/// Datagrams that were received and not looked at yet.
#[derive(Debug)]
pub(super) struct Received {
    bytes: Vec<u8>,
    part: usize,
    /// Sender and length; no sender of one that is to be left out.
    datagrams: [(Option<Peer>, usize); BATCH],
    next: usize,
    count: usize,
}

impl Received {
    pub(super) fn new(part: usize) -> Self {
        Self { bytes: vec![0; part * BATCH], part, datagrams: [(None, 0); BATCH], next: 0, count: 0 }
    }

    /// Returns whether there may be one that was not looked at.
    pub(super) fn has_next(&self) -> bool {
        self.next < self.count
    }

    /// Returns the next datagram.
    pub(super) fn pop(&mut self) -> Option<(Peer, &[u8])> {
        while self.next < self.count {
            let at = self.next;
            self.next += 1;
            if let (Some(peer), length) = self.datagrams[at] {
                return Some((peer, &self.bytes[at * self.part..at * self.part + length]));
            }
        }
        None
    }

    /// Receives the datagrams that have arrived, without waiting. Returns their count.
    pub(super) fn fill(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        (self.next, self.count) = (0, 0);
        let mut names: [Name; BATCH] = [nothing(); BATCH];
        let mut vectors: [libc::iovec; BATCH] = std::array::from_fn(|at| libc::iovec {
            iov_base: self.bytes[at * self.part..].as_mut_ptr().cast(),
            iov_len: self.part,
        });
        let mut headers = headers(&mut names, &mut vectors, size_of::<Name>());
        let flags = libc::MSG_DONTWAIT;
        // SAFETY: `recvmmsg` writes to the headers, and through them to the names and to one piece of `bytes` for each
        // header. All of these live and are used by nothing else across the call.
        let count = unsafe {
            libc::recvmmsg(socket.as_raw_fd(), headers.as_mut_ptr(), BATCH as libc::c_uint, flags as _, null_mut())
        };
        let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
        for (at, header) in headers.iter().enumerate().take(count) {
            // A datagram that was cut off is longer than ours are: skip it.
            let is_whole = header.msg_hdr.msg_flags & libc::MSG_TRUNC == 0;
            self.datagrams[at] = (to_peer(&names[at]).filter(|_| is_whole), header.msg_len as usize);
        }
        self.count = count;
        Ok(count)
    }
}

/// Datagrams that are to be sent.
#[derive(Debug)]
pub(super) struct Sending {
    bytes: Vec<u8>,
    ends: Vec<(Peer, usize)>,
    is_v6: bool,
}

impl Sending {
    pub(super) fn new(part: usize, is_v6: bool) -> Self {
        Self { bytes: Vec::with_capacity(part * BATCH), ends: Vec::with_capacity(BATCH), is_v6 }
    }

    pub(super) fn push(&mut self, to: Peer, datagram: &[u8]) {
        self.bytes.extend_from_slice(datagram);
        self.ends.push((to, self.bytes.len()));
    }

    pub(super) fn is_full(&self) -> bool {
        self.ends.len() >= BATCH
    }

    /// Sends all, without waiting. Those that the system does not take are lost, as others are on their way.
    ///
    /// # Errors
    /// The socket cannot be used.
    pub(super) fn flush(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        if self.ends.is_empty() {
            return Ok(());
        }
        let mut names: [Name; BATCH] = [nothing(); BATCH];
        let mut start = 0;
        let mut vectors = [libc::iovec { iov_base: null_mut(), iov_len: 0 }; BATCH];
        let count = self.ends.len().min(BATCH);
        for (at, &(to, end)) in self.ends.iter().enumerate().take(count) {
            names[at] = to_name(to, self.is_v6);
            // The system only reads.
            let bytes = &self.bytes[start..end];
            vectors[at] = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
            start = end;
        }
        let length = if self.is_v6 { size_of::<Name>() } else { size_of::<libc::sockaddr_in>() };
        let mut headers = headers(&mut names, &mut vectors, length);
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let mut sent = 0;
        let mut result = Ok(());
        while sent < count {
            let left = (count - sent) as libc::c_uint;
            // SAFETY: `sendmmsg` reads the headers from `sent` on, of which there are `left`, and through them names and bytes.
            // All of these live across the call; it writes the headers' lengths only.
            let done = unsafe { libc::sendmmsg(socket.as_raw_fd(), headers[sent..].as_mut_ptr(), left, flags as _) };
            match usize::try_from(done) {
                Ok(done) => sent += done.max(1),
                Err(_) => match io::Error::last_os_error() {
                    error if error.raw_os_error() == Some(libc::EINTR) => {}
                    error if matches!(error.raw_os_error(), Some(libc::EBADF | libc::ENOTSOCK | libc::EFAULT)) => {
                        result = Err(error);
                        break;
                    }
                    error if error.kind() == io::ErrorKind::WouldBlock => break,
                    // The first of them cannot be sent: its receiver is out of reach, or may not be asked.
                    _ => sent += 1,
                },
            }
        }
        self.bytes.clear();
        self.ends.clear();
        result
    }
}

/// Has the kernel deliver each datagram to the socket that its client's id names, of the `threads` that share an address. A
/// HELLO, which has no id yet, goes by its nonce.
pub(super) fn steer(socket: BorrowedFd<'_>, threads: u32) -> io::Result<()> {
    const LOAD_WORD: u16 = 0x20;
    const LOAD_BYTE: u16 = 0x30;
    const IF_EQUAL: u16 = 0x15;
    const MODULO: u16 = 0x94;
    const RETURN: u16 = 0x16;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut program = [
        step(LOAD_WORD, 0, 0, 8),
        step(IF_EQUAL, 0, 2, 0),
        step(LOAD_WORD, 0, 0, 12),
        step(IF_EQUAL, 2, 0, 0),
        // The lowest byte of an id is the thread.
        step(LOAD_BYTE, 0, 0, 8),
        step(RETURN, 0, 0, 0),
        step(LOAD_BYTE, 0, 0, 16),
        step(MODULO, 0, 0, threads),
        step(RETURN, 0, 0, 0),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    set_option(socket, libc::SO_ATTACH_REUSEPORT_CBPF, &program)
}

/// Asks the kernel for room for this many bytes. It may give less.
pub(super) fn set_room(socket: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
    set_option(socket, libc::SO_RCVBUF, &(bytes as libc::c_int))
}

fn set_option<T>(socket: BorrowedFd<'_>, option: libc::c_int, value: &T) -> io::Result<()> {
    let length = size_of::<T>() as libc::socklen_t;
    let value = std::ptr::from_ref(value).cast();
    // SAFETY: `setsockopt` reads `length` bytes of a value that lives, and what a filter's program points to, which does, too.
    let set = unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, value, length) };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns the bytes that wait in a socket, as the kernel counts them, and how many may wait.
pub(super) fn waiting(socket: BorrowedFd<'_>) -> Option<[u32; 2]> {
    const SO_MEMINFO: libc::c_int = 55;
    let mut values = [0_u32; 9];
    let mut length = size_of_val(&values) as libc::socklen_t;
    // SAFETY: `getsockopt` writes at most `length` bytes to the values.
    let got = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_MEMINFO, values.as_mut_ptr().cast(), &mut length)
    };
    (got == 0).then_some([values[0], values[1]])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_their_peers() {
        for text in ["127.0.0.1:1", "255.1.2.3:65535", "[::1]:9", "[fe80::1%3]:80", "[2001:db8::7]:1"] {
            let peer = Peer::from(text.parse::<SocketAddr>().unwrap());
            assert_eq!(to_peer(&to_name(peer, true)), Some(peer), "{text}");
            if peer.to_bytes()[10] == 0xff {
                assert_eq!(to_peer(&to_name(peer, false)), Some(peer), "{text}");
            }
        }
    }
}
