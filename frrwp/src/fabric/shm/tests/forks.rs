//! Processes that fork, and listen for others: the peer is the process that speaks.
//!
//! Each test runs twice: with what the system says of processes since Linux 6.5, and without.

use super::super::connect::raw_socket;
use super::super::endpoint::ShmEndpoint;
use super::super::link::OUTBOX;
use super::super::packets::{self, NoPacket, Packet};
use super::super::{Sharing, ShmAddress, ShmArena, ShmDomain, ShmError, ShmListener, accept_passed, connect};
use super::hostile::{TABLE, hello, sealed};
use super::{Peer, Registration, WITHIN, decode, domain, encode, fresh};
use crate::fabric::traits::{Completion, Endpoint, Local};
use crate::handshake::RECEIVES;
use crate::wire::MESSAGE;
use mrrc::Access;
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

const ADDRESS: &str = "FRRWP_SHM_ADDRESS";
const BYTES: usize = 4 << 20;
const RIGHTS: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE);
const WORKERS: u8 = 3;
/// After so long without a client, a server that was forked ends.
const IDLE: Duration = Duration::from_secs(8);

/// Runs a test both ways. The other process is one of this module's.
fn both_ways(child: &str, run: impl Fn(&ShmAddress, &mut Peer)) {
    for older in [false, true] {
        let address = fresh();
        let mut words = vec![(ADDRESS, address.to_string())];
        words.extend(older.then(|| ("FRRWP_SHM_NO_PIDFD", String::from("1"))));
        run(&address, &mut Peer::of(&format!("fabric::shm::tests::forks::{child}"), &words));
    }
}

fn called() -> Option<ShmAddress> {
    Some(std::env::var(ADDRESS).ok()?.parse().expect("an address"))
}

fn fork() -> bool {
    // SAFETY: the test runs in a process of its own, whose other thread waits for it and has no lock.
    match unsafe { libc::fork() } {
        -1 => panic!("no fork"),
        child => child == 0,
    }
}

fn exit() -> ! {
    // SAFETY: `_exit` ends this child without destructors.
    unsafe { libc::_exit(0) }
}

/// Ends this process when its parent's parent has had enough: a child of a child is not killed by the test.
fn end_in_time() {
    // SAFETY: `alarm` takes a number; its signal ends this process.
    unsafe { libc::alarm(60) };
}

fn reach(domain: &ShmDomain, address: &ShmAddress) -> ShmEndpoint {
    let until = Instant::now() + WITHIN;
    loop {
        match connect(domain, address, RECEIVES, WITHIN) {
            Ok(endpoint) => return endpoint,
            Err(ShmError::NobodyListens { .. }) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(2));
            }
            Err(error) => panic!("{error}"),
        }
    }
}

fn next(endpoint: &mut ShmEndpoint, message: &mut [u8; MESSAGE]) -> Completion {
    let until = Instant::now() + WITHIN;
    loop {
        assert!(Instant::now() < until, "nothing comes");
        match endpoint.poll(message) {
            Some(completion) => return completion,
            None => endpoint.wait(Some(endpoint.now() + 10_000_000)),
        }
    }
}

/// Writes what it is offered, again and again, until it may not.
fn write_on(mut endpoint: ShmEndpoint, domain: &ShmDomain) {
    let mut message = Box::new([0; MESSAGE]);
    let Completion::Message { length: 24 } = next(&mut endpoint, &mut message) else { return };
    let to = decode(&message[..24]);
    let memories = [vec![0x11_u8; BYTES], vec![0x22_u8; BYTES]];
    let near = [0, 1].map(|at: usize| {
        Registration::new(domain, memories[at].as_ptr(), BYTES, Access::LOCAL_READ).expect("registered")
    });
    for round in 0.. {
        let at = round % 2;
        let address = memories[at].as_ptr().cast_mut();
        let local = [Local { address, length: BYTES, registration: near[at].key() }];
        // SAFETY: registered, only ever read, and what is posted has ended when the call returns.
        if unsafe { endpoint.write(1, &local, to, None) }.is_err() {
            return;
        }
        if endpoint.poll(&mut message) != Some(Completion::Done { id: 1, succeeded: true }) {
            return;
        }
    }
}

/// Offers memory to a peer that writes without end, and takes it back: no byte may change after that.
fn hold_still(address: &ShmAddress) {
    let domain = super::domain();
    let arena = domain.arena(BYTES, Sharing::Writable).expect("an arena");
    let [mut then, mut now] = [vec![0; BYTES], vec![0; BYTES]];
    for round in 0..6 {
        arena.write_at(0, &vec![0; BYTES]).expect("inside");
        let mut endpoint = reach(&domain, address);
        let buffer = arena.buffer(BYTES).expect("a buffer");
        let mut offered = Registration::new(&domain, buffer.as_ptr(), BYTES, RIGHTS).expect("registered");
        endpoint.send(&encode(offered.offer(&buffer))).expect("sent");
        // In the middle of a write.
        let until = Instant::now() + WITHIN;
        let mut byte = [0];
        while byte == [0] {
            assert!(Instant::now() < until, "round {round}: it does not write");
            arena.read_at(BYTES / 2 + round * 10_000, &mut byte).expect("inside");
        }
        let taken = offered.end();
        arena.read_at(0, &mut then).expect("inside");
        if taken.is_err() {
            // It took too long to leave: it is in quarantine, and nothing was promised.
            assert_eq!(domain.quarantine().peers, 1);
            let until = Instant::now() + WITHIN;
            while offered.end().is_err() {
                assert!(Instant::now() < until, "it never leaves");
            }
            continue;
        }
        std::thread::sleep(Duration::from_millis(20));
        arena.read_at(0, &mut now).expect("inside");
        let changed = then.iter().zip(&now).filter(|(then, now)| then != now).count();
        assert_eq!(changed, 0, "round {round}: bytes that changed after deregistration returned Ok");
    }
}

#[test]
#[ignore = "the other process of a test"]
fn child_that_listens_and_exits() {
    let Some(address) = called() else { return };
    let domain = domain();
    let listener = ShmListener::bind(&domain, &address).expect("a listener");
    if !fork() {
        exit();
    }
    end_in_time();
    while let Ok(endpoint) = listener.accept(RECEIVES, IDLE) {
        write_on(endpoint, &domain);
    }
    exit();
}

#[test]
fn a_live_server_whose_listener_exited_is_waited_for() {
    both_ways("child_that_listens_and_exits", |address, _| hold_still(address));
}

/// Returns a socket that keeps packets apart, and one that listens at an address, by hand.
fn listening(address: &ShmAddress) -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a socket");
    rustix::net::bind(&socket, &address.socket().expect("an address")).expect("bound");
    rustix::net::listen(&socket, 8).expect("listening");
    socket
}

#[test]
#[ignore = "the other process of a test"]
fn child_that_is_passed_sockets() {
    let Some(address) = called() else { return };
    let flags = SocketFlags::CLOEXEC;
    let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a pair");
    let (helper, worker) = pair;
    if !fork() {
        // The helper listens, and knows nothing of the protocol.
        let socket = listening(&address);
        for _ in 0..6 {
            let accepted = rustix::net::accept_with(&socket, SocketFlags::CLOEXEC).expect("accepted");
            let files = [accepted.as_fd()];
            let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut room);
            control.push(SendAncillaryMessage::ScmRights(&files));
            rustix::net::sendmsg(&helper, &[IoSlice::new(b"x")], &mut control, SendFlags::empty()).expect("passed");
        }
        exit();
    }
    end_in_time();
    let domain = domain();
    drop(helper);
    loop {
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut room);
        let mut byte = [0];
        let mut bytes = [IoSliceMut::new(&mut byte)];
        let received = rustix::net::recvmsg(&worker, &mut bytes, &mut control, RecvFlags::CMSG_CLOEXEC);
        if received.expect("received").bytes == 0 {
            return;
        }
        let passed = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut files) => files.next(),
            _ => None,
        });
        let passed = passed.expect("a socket");
        write_on(accept_passed(&domain, &address, passed, RECEIVES, WITHIN).expect("it stands"), &domain);
    }
}

#[test]
fn a_server_that_is_passed_sockets_is_waited_for() {
    both_ways("child_that_is_passed_sockets", |address, _| hold_still(address));
}

fn filled(domain: &ShmDomain, with: u8) -> ShmArena {
    let arena = domain.arena(64 << 10, Sharing::Readable).expect("an arena");
    arena.write_at(0, &[with; 64 << 10]).expect("inside");
    arena
}

#[test]
#[ignore = "the other process of a test"]
fn child_of_workers() {
    let Some(address) = called() else { return };
    let domain = domain();
    // Of the parent's arenas and tags children have nothing.
    let inherited = filled(&domain, 0xff);
    let listener = ShmListener::bind(&domain, &address).expect("a listener");
    let Some(worker) = (1..=WORKERS).find(|_| fork()) else { exit() };
    end_in_time();
    assert!(inherited.buffer(4096).is_err() && domain.connections() == 0);
    let range = mrrc::PageRange::of_bytes(inherited.as_ptr() as u64, 4096).expect("a range");
    assert!(mrrc::registrar::Registrar::register(&domain, range, Access::REMOTE_READ).is_err());
    let arena = filled(&domain, worker);
    let buffer = arena.buffer(64 << 10).expect("a buffer");
    let offered = Registration::new(&domain, buffer.as_ptr(), 64 << 10, Access::REMOTE_READ).expect("registered");
    let mut endpoints = Vec::new();
    while let Ok(mut endpoint) = listener.accept(RECEIVES, IDLE) {
        let mut message = encode(offered.offer(&buffer)).to_vec();
        message.push(worker);
        endpoint.send(&message).expect("sent");
        endpoints.push(endpoint);
    }
    exit();
}

#[test]
fn workers_that_were_forked_have_tags_of_their_own() {
    both_ways("child_of_workers", |address, _| {
        let domain = super::domain();
        let mut memory = vec![0_u8; 64 << 10];
        let near = Registration::new(&domain, memory.as_ptr(), 64 << 10, Access::LOCAL_WRITE).expect("registered");
        let local = [Local { address: memory.as_mut_ptr(), length: 64 << 10, registration: near.key() }];
        let mut message = Box::new([0; MESSAGE]);
        let mut endpoints: Vec<_> = (0..12).map(|_| reach(&domain, address)).collect();
        for endpoint in &mut endpoints {
            assert_eq!(next(endpoint, &mut message), Completion::Message { length: 25 });
            let (from, worker) = (decode(&message[..24]), message[24]);
            // SAFETY: registered, without another user; what is posted has ended when the call returns.
            unsafe { endpoint.read(1, &local, from) }.expect("posted");
            assert_eq!(next(endpoint, &mut message), Completion::Done { id: 1, succeeded: true });
            assert!(memory.iter().all(|&byte| byte == worker), "worker {worker}'s bytes");
        }
    });
}

#[test]
#[ignore = "the other process of a test"]
fn child_that_connects_and_forks() {
    let Some(address) = called() else { return };
    let domain = domain();
    let mut endpoint = reach(&domain, &address);
    let mut message = Box::new([0; MESSAGE]);
    assert_eq!(next(&mut endpoint, &mut message), Completion::Message { length: 24 });
    let to = decode(&message[..24]);
    let memory = vec![9_u8; to.length as usize];
    let near = Registration::new(&domain, memory.as_ptr(), memory.len(), Access::LOCAL_READ).expect("registered");
    let address_of = memory.as_ptr().cast_mut();
    let local = [Local { address: address_of, length: memory.len(), registration: near.key() }];
    if !fork() {
        // It ends in the middle of a write.
        endpoint.link().enter(to.key);
        exit();
    }
    end_in_time();
    // The copy is of no use, and nothing happens to the connection. SAFETY: the copy of a forked child refuses to post,
    // so no memory is used.
    let written = unsafe { endpoint.write(1, &local, to, None) };
    assert_eq!(written.expect_err("it is the parent's").kind(), std::io::ErrorKind::NotConnected);
    assert!(endpoint.send(b"x").is_err() && endpoint.receive(1).is_err());
    endpoint.wait(None);
    assert_eq!(
        [endpoint.poll(&mut message), endpoint.poll(&mut message)],
        [Some(Completion::Lost), Some(Completion::Flushed)]
    );
    assert_eq!((domain.connections(), domain.quarantine().peers, domain.keys()), (0, 0, 0));
    // It connects anew, with the domain that it inherited.
    let mut own = reach(&domain, &address);
    own.send(b"anew").expect("sent");
    // The socket of the parent's connection stays open until then.
    while next(&mut own, &mut message) != Completion::Flushed {}
    drop(endpoint);
    exit();
}

#[test]
fn a_child_of_a_dead_client_keeps_nothing_in_use() {
    // A listener of its own, as the child comes to it.
    both_ways("child_that_connects_and_forks", |address, _| {
        let domain = super::domain();
        let arena = domain.arena(64 << 10, Sharing::Writable).expect("an arena");
        let buffer = arena.buffer(64 << 10).expect("a buffer");
        let mut offered = Registration::new(&domain, buffer.as_ptr(), 64 << 10, RIGHTS).expect("registered");
        let listener = ShmListener::bind(&domain, address).expect("a listener");
        let mut first = listener.accept(RECEIVES, WITHIN).expect("accepted");
        first.send(&encode(offered.offer(&buffer))).expect("sent");
        let mut second = listener.accept(RECEIVES, WITHIN).expect("the child of the first");
        let mut message = Box::new([0; MESSAGE]);
        assert_eq!(next(&mut second, &mut message), Completion::Message { length: 4 });
        // The child holds the socket. That its parent is dead is seen by one that never sleeps, too.
        let until = Instant::now() + WITHIN;
        let completion = loop {
            assert!(Instant::now() < until, "the end is not seen");
            if let Some(completion) = first.poll(&mut message) {
                break completion;
            }
        };
        assert_eq!(completion, Completion::Lost);
        assert_eq!(next(&mut first, &mut message), Completion::Flushed);
        offered.end().expect("the peer is dead");
        assert_eq!(domain.quarantine().peers, 0);
        let mut bytes = vec![1; 64 << 10];
        buffer.read_at(0, &mut bytes).expect("inside");
        assert!(bytes.iter().all(|&byte| byte == 0), "the child has written");
    });
}

#[test]
#[ignore = "the other process of a test"]
fn child_whose_child_proves_itself() {
    let Some(address) = called() else { return };
    let socket = raw_socket(&address);
    // As clients do: what is sent between an accept and the other side's asking has its sender with it.
    packets::identify(&socket, true).expect("identified");
    hello(&socket, TABLE, [&sealed(TABLE), &sealed(OUTBOX as u64)]);
    let number = loop {
        match packets::receive(&socket) {
            Ok((Packet::Hello { number, .. }, _)) => break number,
            Err(NoPacket::Nothing) => std::thread::sleep(Duration::from_millis(1)),
            other => panic!("{other:?}"),
        }
    };
    if fork() {
        packets::send(&socket, Packet::Proof { number }, &[]).expect("sent");
        exit();
    }
    // It lives on, and maps what it was passed.
    end_in_time();
    std::thread::sleep(WITHIN);
}

#[test]
fn a_proof_of_another_process_is_refused() {
    let listener = ShmListener::bind(&domain(), &fresh()).expect("a listener");
    let words = [(ADDRESS, listener.address().to_string())];
    let _peer = Peer::of("fabric::shm::tests::forks::child_whose_child_proves_itself", &words);
    let error = listener.accept(RECEIVES, WITHIN).expect_err("two processes");
    assert!(error.to_string().contains("one process said hello, and another one went on"), "{error}");
}

#[test]
fn an_older_peer_is_told_the_versions() {
    let listener = ShmListener::bind(&domain(), &fresh()).expect("a listener");
    let socket = raw_socket(listener.address());
    let mut hello = [0; 24];
    hello[..8].copy_from_slice(b"FRWPshm1");
    rustix::net::send(&socket, &hello, SendFlags::empty()).expect("sent");
    let error = listener.accept(RECEIVES, WITHIN).expect_err("another version");
    assert!(matches!(error, ShmError::OtherVersion { theirs: '1', own: '3', .. }), "{error}");
    let mut answer = [0; 64];
    let (_, length) = rustix::net::recv(&socket, &mut answer, RecvFlags::empty()).expect("an answer");
    assert!(length == 32 && answer.starts_with(b"FRWPshm3"));
}
