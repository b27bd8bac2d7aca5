//! A connection over TCP to the first of a host's addresses that answers.
//!
//! A host may have addresses that do not answer: of a network that is down, or filtered. So each address has a short time before the
//! next one is tried as well, and none is given up for that (as RFC 8305 has it).

use crate::fabric::attempt::{Attempt, Waited};
use rustix::event::PollFlags;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// How long an address is waited for before the next one is tried too.
const STAGGER: Duration = Duration::from_millis(250);
/// Addresses that are tried at a time.
const MOST: usize = 8;

/// Returns a socket that is connected and does not block; None if the attempt is over first.
///
/// # Errors
/// The system's error for the last address that failed, if all did.
pub(super) fn reach(found: &[SocketAddr], attempt: &Attempt) -> io::Result<Option<TcpStream>> {
    let mut left = found.iter();
    let mut tried: Vec<OwnedFd> = Vec::new();
    let mut failed = io::Error::from(io::ErrorKind::NotFound);
    let mut next = Instant::now();
    loop {
        let now = Instant::now();
        if tried.len() < MOST
            && (now >= next || tried.is_empty())
            && let Some(&address) = left.next()
        {
            next = now + STAGGER;
            match begin(address) {
                Ok(socket) => tried.push(socket),
                Err(error) => {
                    failed = error.into();
                    next = now;
                }
            }
            continue;
        }
        if tried.is_empty() {
            return Err(failed);
        }
        let may_try = tried.len() < MOST && left.len() > 0;
        let files: Vec<_> = tried.iter().map(|socket| (socket.as_fd(), PollFlags::OUT)).collect();
        if attempt.wait_for(&files, may_try.then(|| next.saturating_duration_since(now))) == Waited::Over {
            return Ok(None);
        }
        let mut at = 0;
        while let Some(socket) = tried.get(at) {
            match state(socket) {
                Ok(false) => at += 1,
                Ok(true) => return Ok(Some(tried.swap_remove(at).into())),
                Err(error) => {
                    failed = error.into();
                    tried.swap_remove(at);
                    next = Instant::now();
                }
            }
        }
    }
}

/// Begins to connect.
fn begin(address: SocketAddr) -> rustix::io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(socket),
        Err(error) => Err(error),
    }
}

/// Returns whether it is connected.
fn state(socket: &OwnedFd) -> rustix::io::Result<bool> {
    sockopt::socket_error(socket)??;
    match rustix::net::getpeername(socket) {
        Ok(_) => Ok(true),
        Err(Errno::NOTCONN) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    const HOUR: Duration = Duration::from_secs(3600);

    /// Returns a listener with a full backlog: further connections get no answer. And what fills it.
    fn silent() -> (OwnedFd, SocketAddr, Vec<OwnedFd>) {
        let socket =
            rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::bind(&socket, &"127.0.0.1:0".parse::<SocketAddr>().unwrap()).unwrap();
        rustix::net::listen(&socket, 0).unwrap();
        let address = rustix::net::getsockname(&socket).unwrap().try_into().unwrap();
        let mut filling = Vec::new();
        loop {
            let one = begin(address).unwrap();
            let has_come = Attempt::new(Duration::from_millis(200)).wait(&one, PollFlags::OUT);
            filling.push(one);
            if !has_come {
                return (socket, address, filling);
            }
        }
    }

    #[test]
    fn a_silent_address_delays_no_other() {
        let (_listener, silent, _filling) = silent();
        assert!(reach(&[silent], &Attempt::new(Duration::from_millis(300))).unwrap().is_none(), "it is silent");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let there = listener.local_addr().unwrap();
        let socket = reach(&[silent, silent, there], &Attempt::new(HOUR)).unwrap().unwrap();
        assert_eq!(socket.peer_addr().unwrap(), there);
    }

    #[test]
    fn all_refused_is_refused() {
        let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let error = reach(&[gone; 20], &Attempt::new(HOUR)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let there = listener.local_addr().unwrap();
        assert_eq!(reach(&[gone, there], &Attempt::new(HOUR)).unwrap().unwrap().peer_addr().unwrap(), there);
        assert_eq!(reach(&[], &Attempt::new(HOUR)).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
