//! A connecting side's remedy for a peer that overlooks its first frames, as Linux's siw does now and then.
#![allow(clippy::unwrap_used, reason = "tests")]

use frrwp::fabric::Endpoint;
use frrwp::fabric::iwarp::ddp::{Header, Operation, Place};
use frrwp::fabric::iwarp::mpa::{self, Enhanced, Role, Start};
use frrwp::fabric::iwarp::{self, IwarpDomain, IwarpEndpoint, IwarpListener, IwarpOptions};
use frrwp::wire::MESSAGE;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

/// Longer than all probes take.
const AFTER: u64 = 800_000_000;
/// A write of nothing, with its length and without a CRC.
const EMPTY_WRITE: usize = 2 + 14 + 4;

/// Returns a connection to a peer that has accepted and says no more.
fn connected(ready: bool) -> (IwarpEndpoint, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let options = IwarpOptions { checksums: false, ready_to_receive: ready, ..IwarpOptions::default() };
    let connecting = std::thread::spawn(move || {
        let domain = IwarpDomain::new(options).unwrap();
        iwarp::connect(&domain, &format!("iwarp:127.0.0.1:{port}"), 4).unwrap()
    });
    let mut peer = listener.accept().unwrap().0;
    let mut request = [0; 24];
    peer.read_exact(&mut request).unwrap();
    let asked = Start::decode(&request).unwrap().unwrap().0.enhanced.unwrap();
    assert_eq!((asked.peer_to_peer, asked.ready_by_write, asked.ready_by_read), (ready, ready, ready));
    let enhanced =
        Enhanced { peer_to_peer: ready, ready_by_write: ready, inbound: 1, outbound: 1, ..Enhanced::default() };
    let start = Start {
        role: Role::Reply,
        checksums: false,
        rejected: false,
        revision: 2,
        enhanced: Some(enhanced),
        private: &[],
    };
    let mut reply = Vec::new();
    start.encode(&mut reply);
    peer.write_all(&reply).unwrap();
    (connecting.join().unwrap(), peer)
}

fn wait_long(endpoint: &mut IwarpEndpoint) {
    let until = endpoint.now() + AFTER;
    while endpoint.now() < until {
        endpoint.poll(&mut [0; MESSAGE]);
        endpoint.wait(Some(until));
    }
}

/// All that came to the peer until the connection ended.
fn heard(endpoint: IwarpEndpoint, mut peer: TcpStream) -> Vec<u8> {
    drop(endpoint);
    let mut heard = Vec::new();
    let _ = peer.read_to_end(&mut heard);
    heard
}

fn is_empty_write(frame: &[u8]) -> bool {
    let (header, payload) = Header::decode(&frame[2..frame.len() - 4]).unwrap();
    payload.is_empty()
        && header.operation == Operation::Write
        && matches!(header.place, Place::Tagged { .. })
        && header.last
}

#[test]
fn silent_peer_is_probed_a_bounded_number_of_times() {
    let (mut endpoint, peer) = connected(true);
    wait_long(&mut endpoint);
    let probes = endpoint.probes_sent();
    assert_eq!(probes, 4);
    wait_long(&mut endpoint);
    assert_eq!(endpoint.probes_sent(), probes);
    let heard = heard(endpoint, peer);
    // The first is the ready-to-receive.
    assert_eq!(heard.len(), 5 * EMPTY_WRITE);
    assert!(heard.chunks(EMPTY_WRITE).all(is_empty_write));
}

#[test]
fn domain_probes_for_a_busy_application() {
    let (endpoint, mut peer) = connected(true);
    peer.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut frames = [0; 2 * EMPTY_WRITE];
    peer.read_exact(&mut frames).unwrap();
    assert!(endpoint.probes_sent() > 0 && frames.chunks(EMPTY_WRITE).all(is_empty_write));
}

#[test]
fn a_peer_that_has_been_heard_of_is_left_alone() {
    let (mut endpoint, mut peer) = connected(true);
    let place = Place::Untagged { invalidate: 0, queue: 0, number: 1, offset: 0 };
    let (header, used) = Header { operation: Operation::Send, last: true, place }.encode();
    let (length, (tail, end)) = mpa::frame(&[&header[..used]], false);
    peer.write_all(&[&length[..], &header[..used], &tail[..end]].concat()).unwrap();
    while endpoint.poll(&mut [0; MESSAGE]).is_none() {
        endpoint.wait(None);
    }
    let before = endpoint.probes_sent();
    wait_long(&mut endpoint);
    assert_eq!(endpoint.probes_sent(), before);
}

#[test]
fn who_has_said_nothing_cannot_have_been_overlooked() {
    let (mut endpoint, peer) = connected(false);
    wait_long(&mut endpoint);
    assert_eq!(endpoint.probes_sent(), 0);
    assert!(heard(endpoint, peer).is_empty());
}

#[test]
fn who_accepts_nudges_nobody() {
    let domain = IwarpDomain::new(IwarpOptions::default()).unwrap();
    let mut listener = IwarpListener::bind(&domain, "iwarp:127.0.0.1:0").unwrap();
    let address = format!("iwarp:{}", listener.address().unwrap());
    let connecting = std::thread::spawn(move || {
        let mut endpoint = iwarp::connect(&IwarpDomain::new(IwarpOptions::default()).unwrap(), &address, 4).unwrap();
        wait_long(&mut endpoint);
        endpoint
    });
    let mut endpoint = listener.accept(4, Some(Duration::from_secs(10))).unwrap();
    endpoint.send(b"so that something was sent").unwrap();
    wait_long(&mut endpoint);
    assert_eq!(endpoint.probes_sent(), 0);
    drop(connecting.join().unwrap());
}
