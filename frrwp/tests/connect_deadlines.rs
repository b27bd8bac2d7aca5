//! Connecting ends by its deadline, and when it is dropped, whatever the peer does: with a backlog that is full, silent, or
//! sending a byte now and then.
#![allow(clippy::unwrap_used, reason = "tests")]

use frrwp::engine::future::block_on;
use frrwp::fabric::iwarp::{IwarpError, IwarpOptions};
use frrwp::fabric::shm::ShmError;
use frrwp::fabric::{
    Connecting, Connector, FabricDomain, FabricEndpoint, FabricError, FabricOptions, Listener, begin_connect, connect,
    listen,
};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

/// As good as for ever: a test that needs it hangs.
const HOUR: Duration = Duration::from_secs(3600);
const SHORT: Duration = Duration::from_millis(300);
const RECEIVES: u16 = 4;

/// A socket that listens and does nothing else.
struct Deaf {
    socket: OwnedFd,
    address: String,
}

impl Deaf {
    fn tcp(backlog: i32) -> Self {
        let socket =
            rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::bind(&socket, &"127.0.0.1:0".parse::<SocketAddr>().unwrap()).unwrap();
        rustix::net::listen(&socket, backlog).unwrap();
        let there: SocketAddr = rustix::net::getsockname(&socket).unwrap().try_into().unwrap();
        Self { socket, address: format!("iwarp:{there}") }
    }

    fn unix(name: &str, backlog: i32) -> Self {
        let name = format!("frrwp-deadlines-{name}-{}", std::process::id());
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).unwrap();
        rustix::net::listen(&socket, backlog).unwrap();
        Self { socket, address: format!("shm:@{name}") }
    }

    fn accept(&self) -> OwnedFd {
        rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC).unwrap()
    }

    /// Takes what comes on a connection, and then the end of it.
    fn closes(socket: &OwnedFd) {
        let mut bytes = [0; 256];
        while rustix::net::recv(socket, &mut bytes, RecvFlags::empty()).is_ok_and(|(_, came)| came > 0) {}
    }
}

fn is_time_over(error: &FabricError) -> bool {
    matches!(
        error,
        FabricError::Iwarp(IwarpError::TimedOut { doing: "connect to", .. })
            | FabricError::Shm(ShmError::TimedOut { .. })
    )
}

/// Connects to a peer that does not let it, and checks that the error names the operation, the address and a remedy.
fn times_out(address: &str, operation: &str) {
    let error = connect(address, RECEIVES, SHORT).map(drop).unwrap_err();
    assert!(is_time_over(&error), "{error}");
    let text = error.to_string();
    assert!(text.contains(address) && text.contains(operation) && text.contains(": see "), "{text}");
    // The same on a thread of its own, and with a domain that has longer for others.
    let error = begin_connect(address, RECEIVES, SHORT).unwrap().wait().map(drop).unwrap_err();
    assert!(is_time_over(&error), "{error}");
    let domain = FabricDomain::new(&address.parse().unwrap(), FabricOptions { set_up: HOUR, ..Default::default() });
    let error = domain.unwrap().connect_to(address, RECEIVES, SHORT).map(drop).unwrap_err();
    assert!(is_time_over(&error), "{error}");
}

#[test]
fn silent_peers_end_in_time() {
    times_out(&Deaf::tcp(8).address, "connect to");
    times_out(&Deaf::unix("silent", 8).address, "set a connection up");
}

#[test]
fn full_backlogs_end_in_time() {
    for (peer, operation) in [(Deaf::tcp(0), "connect to"), (Deaf::unix("full", 0), "wait for room in the backlog")] {
        // Linux has room for one more than the backlog; what else comes for it is dropped, or refused for now.
        let filling: Vec<_> = (0..3).map(|_| begin_connect(&peer.address, RECEIVES, HOUR).unwrap()).collect();
        while queued(&peer.socket) == 0 {
            std::thread::yield_now();
        }
        times_out(&peer.address, operation);
        assert!(filling.iter().all(|one| !one.has_ended()), "none of them was accepted");
    }
}

/// Connections that wait to be accepted, at least.
fn queued(listener: &OwnedFd) -> usize {
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&now)).unwrap_or(0)
}

#[test]
fn a_byte_now_and_then_is_no_reply() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("iwarp:{}", listener.local_addr().unwrap());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut socket, _) = listener.accept().unwrap();
            // A reply with 512 bytes of private data, which is never whole. It ends when the other side closes.
            let mut reply = b"MPA ID Rep Frame\x40\x01\x02\x00".to_vec();
            reply.resize(reply.len() + 511, 0);
            for byte in reply.chunks(1) {
                if socket.write_all(byte).is_err() {
                    return;
                }
                std::thread::sleep(SHORT / 10);
            }
            let _ = socket.read(&mut [0; 64]);
        });
        let error = connect(&address, RECEIVES, SHORT).map(drop).unwrap_err();
        assert!(is_time_over(&error) && error.to_string().contains("no MPA reply within 300 ms"), "{error}");
    });
}

#[test]
fn half_a_packet_is_no_hello() {
    let peer = Deaf::unix("half", 8);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let socket = peer.accept();
            rustix::net::send(&socket, b"FRWPshm3", SendFlags::NOSIGNAL).unwrap();
            Deaf::closes(&socket);
        });
        let error = connect(&peer.address, RECEIVES, HOUR).map(drop).unwrap_err();
        assert!(matches!(error, FabricError::Shm(ShmError::OtherProtocol { .. })), "{error}");
    });
}

#[test]
fn a_drop_cancels_what_is_set_up() {
    for peer in [Deaf::tcp(8), Deaf::unix("dropped", 8)] {
        let connecting = begin_connect(&peer.address, RECEIVES, HOUR).unwrap();
        let socket = peer.accept();
        // Its hello has come: it waits for an answer.
        assert!(poll(&mut [PollFd::new(&socket, PollFlags::IN)], None).unwrap() > 0);
        assert!(!connecting.has_ended());
        drop(connecting);
        Deaf::closes(&socket);
    }
}

#[test]
fn a_drop_cancels_what_waits_for_room() {
    let peer = Deaf::unix("room", 0);
    let first = begin_connect(&peer.address, RECEIVES, HOUR).unwrap();
    let sockets = [peer.accept()];
    while queued(&peer.socket) == 0 {
        // Fills the one place of the backlog.
        drop(begin_connect(&peer.address, RECEIVES, SHORT).unwrap());
    }
    let mut waiting: Vec<_> = (0..8).map(|_| begin_connect(&peer.address, RECEIVES, HOUR).unwrap()).collect();
    let kept = waiting.pop().unwrap();
    drop(waiting);
    // Those that were dropped do not come any more: the place is for the one that was kept.
    let fills = peer.accept();
    let socket = peer.accept();
    assert!(poll(&mut [PollFd::new(&socket, PollFlags::IN)], None).unwrap() > 0);
    drop(kept);
    Deaf::closes(&socket);
    drop((first, sockets, fills));
}

/// Returns the result of an awaited connection.
fn awaited(connecting: Connecting<(FabricDomain, FabricEndpoint), FabricError>) -> FabricEndpoint {
    block_on(connecting, std::thread::yield_now).unwrap().1
}

#[test]
fn connections_are_awaited_polled_and_waited_for() {
    for address in [format!("shm:@frrwp-awaited-{}", std::process::id()), "iwarp:127.0.0.1:0".to_owned()] {
        let mut listener = listen(&address).unwrap();
        let there = listener.address();
        let begun = [0; 3].map(|_| begin_connect(&there, RECEIVES, HOUR).unwrap());
        let accepted: Vec<_> = (0..3).map(|_| listener.next(RECEIVES, Some(HOUR)).unwrap().unwrap()).collect();
        let [one, two, three] = begun;
        assert!(poll(&mut [PollFd::new(&two, PollFlags::IN)], None).unwrap() > 0);
        assert!(two.has_ended());
        let connected = [awaited(one), two.wait().unwrap().1, three.wait().unwrap().1];
        drop((connected, accepted));
    }
}

#[test]
fn a_deadline_of_nothing_and_of_ever_are_no_panics() {
    let peer = Deaf::tcp(8);
    let error = connect(&peer.address, RECEIVES, Duration::ZERO).map(drop).unwrap_err();
    assert!(is_time_over(&error), "{error}");
    for address in [format!("shm:@frrwp-ever-{}", std::process::id()), "iwarp:127.0.0.1:0".to_owned()] {
        let options =
            FabricOptions { set_up: Duration::MAX, iwarp: IwarpOptions::default(), ..FabricOptions::default() };
        let mut listener = FabricDomain::new(&address.parse().unwrap(), options).unwrap().listen_at(&address).unwrap();
        let there = listener.address();
        let connecting = begin_connect(&there, RECEIVES, Duration::MAX).unwrap();
        let accepted = listener.next(RECEIVES, Some(Duration::MAX)).unwrap().unwrap();
        drop((connecting.wait().unwrap(), accepted));
    }
}
