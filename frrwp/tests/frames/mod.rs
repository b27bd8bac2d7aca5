//! A peer of iWARP by hand: frames, and what it hears.
#![allow(dead_code, reason = "each test uses what it needs")]
#![allow(clippy::unwrap_used, reason = "tests")]

use frrwp::fabric::iwarp::ddp::{Header, Operation, Place, ReadRequest};
use frrwp::fabric::iwarp::mpa::{self, Fpdu, Start};
use frrwp::fabric::iwarp::terminate::Terminate;
use frrwp::fabric::iwarp::{IwarpEnd, IwarpEndpoint};
use frrwp::fabric::{Completion, Endpoint};
use frrwp::wire::MESSAGE;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

pub(crate) const SOON: Duration = Duration::from_secs(60);

/// Returns a client's first bytes.
pub(crate) fn hello() -> Vec<u8> {
    hello_with(true)
}

/// The same, where CRCs are wanted or not.
pub(crate) fn hello_with(checksums: bool) -> Vec<u8> {
    let enhanced =
        mpa::Enhanced { peer_to_peer: true, inbound: 4, outbound: 2, ready_by_write: true, ..mpa::Enhanced::default() };
    let start = Start {
        role: mpa::Role::Request,
        checksums,
        rejected: false,
        revision: 2,
        enhanced: Some(enhanced),
        private: &[],
    };
    let mut bytes = Vec::new();
    start.encode(&mut bytes);
    bytes
}

/// Connects as a client would.
pub(crate) fn greet(address: std::net::SocketAddr) -> TcpStream {
    greet_with(address, true)
}

/// The same, where CRCs are wanted or not.
pub(crate) fn greet_with(address: std::net::SocketAddr, checksums: bool) -> TcpStream {
    let mut peer = TcpStream::connect(address).unwrap();
    peer.set_read_timeout(Some(SOON)).unwrap();
    peer.write_all(&hello_with(checksums)).unwrap();
    peer
}

pub(crate) fn fpdu(header: &Header, payload: &[u8]) -> Vec<u8> {
    let (head, used) = header.encode();
    let (length, (tail, end)) = mpa::frame(&[&head[..used], payload], true);
    [&length[..], &head[..used], payload, &tail[..end]].concat()
}

pub(crate) fn write(tag: u32, offset: u64, payload: &[u8]) -> Vec<u8> {
    fpdu(&Header { operation: Operation::Write, last: true, place: Place::Tagged { tag, offset } }, payload)
}

pub(crate) fn untagged(operation: Operation, last: bool, number: u32, offset: u32, payload: &[u8]) -> Vec<u8> {
    let place = Place::Untagged { invalidate: 0, queue: operation.queue(), number, offset };
    fpdu(&Header { operation, last, place }, payload)
}

pub(crate) fn read(number: u32, source_tag: u32, source_offset: u64, length: u32) -> Vec<u8> {
    let request = ReadRequest { sink_tag: 1, sink_offset: 0, length, source_tag, source_offset };
    untagged(Operation::ReadRequest, true, number, 0, &request.encode())
}

/// Returns the bytes that the peer hears until the end: its last words, if it hears any.
pub(crate) fn last_words(peer: &mut TcpStream) -> Option<Terminate> {
    last_bytes(peer).and_then(|words| Terminate::decode(&words))
}

/// The same, as bytes.
pub(crate) fn last_bytes(peer: &mut TcpStream) -> Option<Vec<u8>> {
    let mut heard = Vec::new();
    // A reset after the last words is an end too.
    let _ = peer.read_to_end(&mut heard);
    let mut rest = &heard[..];
    while let Some(fpdu) = Fpdu::split(rest) {
        fpdu.check().unwrap();
        let (header, payload) = Header::decode(fpdu.ulpdu).unwrap();
        if header.operation == Operation::Terminate {
            return Some(payload.to_vec());
        }
        rest = &rest[fpdu.length..];
    }
    None
}

pub(crate) fn end_of(endpoint: &mut IwarpEndpoint) -> (usize, Option<IwarpEnd>) {
    let mut message = [0; MESSAGE];
    let mut messages = 0;
    let until = endpoint.now() + SOON.as_nanos() as u64;
    loop {
        match endpoint.poll(&mut message) {
            Some(Completion::Flushed) => return (messages, endpoint.why()),
            Some(Completion::Message { .. }) => messages += 1,
            Some(_) => {}
            None => {
                assert!(endpoint.now() < until);
                endpoint.wait(Some(until));
            }
        }
    }
}
