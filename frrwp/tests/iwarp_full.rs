//! An end with a full queue is told when there is room, though nothing has come: a wake-up that is lost is the end of the test.
#![allow(clippy::unwrap_used, reason = "tests")]
#![cfg(target_os = "linux")]

mod frames;

use frames::{SOON, greet, write};
use frrwp::fabric::iwarp::{IwarpDomain, IwarpEndpoint, IwarpListener, IwarpOptions};
use frrwp::fabric::poller::Poller;
use frrwp::fabric::{Armed, Endpoint};
use frrwp::handshake::RECEIVES;
use std::io::{ErrorKind, Write};
use std::net::TcpStream;

/// Returns a peer that has said nothing, before which the accepting end may not speak: what that posts waits, until it takes
/// no more.
fn full() -> (IwarpDomain, TcpStream, IwarpEndpoint) {
    let domain = IwarpDomain::new(IwarpOptions::default()).unwrap();
    let mut listener = IwarpListener::bind(&domain, "iwarp:127.0.0.1:0").unwrap();
    let socket = greet(listener.address().unwrap());
    let mut endpoint = listener.accept(RECEIVES, Some(SOON)).unwrap();
    let full = std::iter::repeat_with(|| endpoint.send(b"it waits")).find_map(Result::err);
    assert_eq!(full.unwrap().kind(), ErrorKind::WouldBlock);
    (domain, socket, endpoint)
}

#[test]
fn room_in_a_full_queue_rings_the_bell() {
    let (_domain, mut socket, mut endpoint) = full();
    let poller = Poller::new().unwrap();
    let bell = poller.bell();
    endpoint.attach(&bell).unwrap();
    assert!(matches!(endpoint.arm(), Armed::Quiet { .. }), "nothing has come");
    socket.write_all(&write(0, 0, b"")).unwrap();
    poller.wait(None);
    assert_eq!(poller.next(), Some(bell.name()));
    endpoint.send(b"there is room").unwrap();
    assert!(matches!(endpoint.arm(), Armed::Quiet { .. }), "it is told once");
}

#[test]
fn room_in_a_full_queue_ends_a_wait() {
    let (_domain, mut socket, mut endpoint) = full();
    socket.write_all(&write(0, 0, b"")).unwrap();
    endpoint.wait(None);
    endpoint.send(b"there is room").unwrap();
}
