//! A peer of bytes: everything that it may not do is answered with the Terminate that the RFC names, and not one byte
//! outside of what was offered is touched or told.
#![allow(unsafe_code, reason = "memory is opened by address")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod frames;

use frames::{SOON, end_of, fpdu, greet, last_words, read, untagged, write};
use frrwp::fabric::iwarp::ddp::{Header, Operation, Place, ReadRequest};
use frrwp::fabric::iwarp::mpa::{self, Fpdu, Start};
use frrwp::fabric::iwarp::terminate::Terminate;
use frrwp::fabric::iwarp::{Binding, Exact, IwarpDomain, IwarpEnd, IwarpEndpoint, IwarpListener, IwarpOptions};
use frrwp::fabric::{Domain, Endpoint, Local};
use frrwp::wire::{MESSAGE, Segment};
use mrrc::registrar::Registrar;
use mrrc::{Access, PageRange};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

/// This part of the memory is offered.
const OFFERED: std::ops::Range<usize> = 1000..3000;

/// A side that is to hold, and a peer that sends what it likes.
struct Scene {
    domain: IwarpDomain,
    endpoint: IwarpEndpoint,
    peer: TcpStream,
    memory: Box<[u8]>,
    offer: Exact,
    read_only: Exact,
    own: Exact,
    /// Of another connection.
    foreign: Exact,
    _other: (IwarpEndpoint, TcpStream),
}

fn accept(listener: &mut IwarpListener, receives: u16) -> (IwarpEndpoint, TcpStream) {
    let mut peer = greet(listener.address().unwrap());
    let endpoint = listener.accept(receives, Some(SOON)).unwrap();
    let mut reply = [0; 24];
    peer.read_exact(&mut reply).unwrap();
    let (start, _) = Start::decode(&reply).unwrap().unwrap();
    assert_eq!(start.enhanced.unwrap().inbound, 2);
    (endpoint, peer)
}

fn scene(receives: u16) -> Scene {
    let domain = IwarpDomain::new(IwarpOptions { inbound: 2, ..IwarpOptions::default() }).unwrap();
    let mut listener = IwarpListener::bind(&domain, "iwarp:127.0.0.1:0").unwrap();
    let (endpoint, peer) = accept(&mut listener, receives);
    let other = accept(&mut listener, 4);
    let mut memory = vec![7_u8; 1 << 16].into_boxed_slice();
    let start = memory[OFFERED].as_mut_ptr();
    let open = |domain: &IwarpDomain, access| {
        // SAFETY: the memory lives as long as the scene, and longer than what is open.
        unsafe { domain.open(start, OFFERED.len(), access) }.unwrap()
    };
    let offer = open(&domain, Access::REMOTE_READ | Access::REMOTE_WRITE);
    let read_only = open(&domain, Access::REMOTE_READ);
    let own = open(&endpoint.own_domain(), Access::REMOTE_WRITE);
    let foreign = open(&other.0.own_domain(), Access::REMOTE_READ | Access::REMOTE_WRITE);
    Scene { domain, endpoint, peer, memory, offer, read_only, own, foreign, _other: other }
}

fn check(name: &str, expected: Terminate, misdeed: impl Fn(&Scene) -> Vec<u8>) {
    let mut scene = scene(2);
    let bytes = misdeed(&scene);
    scene.peer.write_all(&bytes).unwrap();
    assert_eq!(last_words(&mut scene.peer), Some(expected), "{name}");
    assert_eq!(end_of(&mut scene.endpoint).1, Some(IwarpEnd::Breach(expected)), "{name}");
    let outside = scene.memory[..OFFERED.start].iter().chain(&scene.memory[OFFERED.end..]);
    assert!(outside.copied().all(|byte| byte == 7), "{name}");
    assert!(scene.domain.connections() >= 1);
}

#[test]
fn each_breach_is_named_as_the_rfc_names_it() {
    let at = |scene: &Scene| scene.offer.segment().address;
    let key = |exact: &Exact| exact.segment().key;
    check("a tag that never was", Terminate::DDP_INVALID_TAG, |scene| write(0xdead_beef, at(scene), b"x"));
    check("a dead tag", Terminate::DDP_INVALID_TAG, |scene| {
        let mut byte = 7;
        // SAFETY: the registration is closed at once, and `byte` outlives it.
        let dead = key(&unsafe { scene.domain.open(&raw mut byte, 1, Access::all()) }.unwrap());
        write(dead, at(scene), b"x")
    });
    check("a byte before", Terminate::DDP_BOUNDS, |scene| write(key(&scene.offer), at(scene) - 1, b"x"));
    check("a byte after", Terminate::DDP_BOUNDS, |scene| {
        write(key(&scene.offer), at(scene) + OFFERED.len() as u64 - 3, b"four")
    });
    check("past the end of memory", Terminate::DDP_OFFSET_WRAPS, |scene| write(key(&scene.offer), u64::MAX, b"xx"));
    check("another's tag", Terminate::DDP_NOT_ASSOCIATED, |scene| write(key(&scene.foreign), at(scene), b"x"));
    check("what may be read", Terminate::ACCESS, |scene| write(key(&scene.read_only), at(scene), b"x"));
    check("reading a tag that never was", Terminate::INVALID_TAG, |scene| read(1, 0xdead_beef, at(scene), 1));
    check("reading too far", Terminate::BASE_OR_BOUNDS, |scene| {
        read(1, key(&scene.offer), at(scene), OFFERED.len() as u32 + 1)
    });
    check("reading past the end of memory", Terminate::OFFSET_WRAPS, |scene| read(1, key(&scene.offer), u64::MAX, 2));
    check("reading what may be written", Terminate::ACCESS, |scene| read(1, key(&scene.own), at(scene), 1));
    check("reading another's", Terminate::TAG_NOT_ASSOCIATED, |scene| read(1, key(&scene.foreign), at(scene), 1));
    check("a read response that nobody asked for", Terminate::DDP_INVALID_TAG, |scene| {
        let place = Place::Tagged { tag: key(&scene.offer), offset: at(scene) };
        fpdu(&Header { operation: Operation::ReadResponse, last: true, place }, b"x")
    });
    let send = Operation::Send;
    check("a message out of order", Terminate::NUMBER_OUT_OF_RANGE, |_| untagged(send, true, 2, 0, b"x"));
    check("a part out of order", Terminate::INVALID_OFFSET, |_| {
        [untagged(send, false, 1, 0, b"abc"), untagged(send, true, 1, 2, b"x")].concat()
    });
    check("parts without end", Terminate::INVALID_OFFSET, |_| untagged(send, false, 1, 0, b""));
    check("a message that is too long", Terminate::TOO_LONG, |_| untagged(send, true, 1, 0, &[0; MESSAGE + 1]));
    check("a message without a receive", Terminate::NO_BUFFER, |_| {
        (1..4).flat_map(|number| untagged(send, true, number, 0, b"x")).collect()
    });
    check("a read request out of order", Terminate::NUMBER_OUT_OF_RANGE, |scene| {
        read(2, key(&scene.offer), at(scene), 1)
    });
    check("a read request in parts", Terminate::INVALID_OFFSET, |_| {
        untagged(Operation::ReadRequest, true, 1, 0, &[0; 27])
    });
    check("a read request that is too long", Terminate::TOO_LONG, |_| {
        untagged(Operation::ReadRequest, true, 1, 0, &[0; 29])
    });
    check("a wrong CRC", Terminate::MPA_CRC, |scene| {
        let mut bytes = write(key(&scene.offer), at(scene), b"xxxx");
        *bytes.last_mut().unwrap() ^= 1;
        bytes
    });
    check("ending a tag of all connections", Terminate::CANNOT_INVALIDATE, |scene| {
        let place = Place::Untagged { invalidate: key(&scene.offer), queue: 0, number: 1, offset: 0 };
        fpdu(&Header { operation: Operation::SendInvalidate, last: true, place }, b"")
    });
    let spoilt = |at: usize, value: u8| {
        move |_: &Scene| {
            let mut bytes = untagged(Operation::Send, true, 1, 0, b"x");
            bytes[at] = value;
            bytes
        }
    };
    check("DDP's version", Terminate::DDP_UNTAGGED_VERSION, spoilt(2, 0x42));
    check("RDMAP's version", Terminate::RDMAP_VERSION, spoilt(3, 0x83));
    check("an operation that does not exist", Terminate::UNEXPECTED_OPCODE, spoilt(3, 0x4f));
    check("a queue that does not exist", Terminate::INVALID_QUEUE, spoilt(11, 9));
    check("too short for its header", Terminate::REMOTE_CATASTROPHE, |_| {
        vec![0, 5, 0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0]
    });
}

#[test]
fn a_peer_that_overruns_its_read_depth_is_ended() {
    let mut scene = scene(2);
    // Large enough that the answers do not fit into the socket, and are not read.
    let mut memory = vec![0; 16 << 20];
    // SAFETY: the memory outlives the registration, and is not written meanwhile.
    let large = unsafe { scene.domain.open(memory.as_mut_ptr(), memory.len(), Access::REMOTE_READ) }.unwrap();
    let segment = large.segment();
    let requests: Vec<u8> =
        (1..=3).flat_map(|number| read(number, segment.key, segment.address, segment.length as u32)).collect();
    scene.peer.write_all(&requests).unwrap();
    assert_eq!(end_of(&mut scene.endpoint).1, Some(IwarpEnd::Breach(Terminate::NO_BUFFER)));
}

#[test]
fn what_is_allowed_is_done_up_to_the_last_byte() {
    let mut scene = scene(2);
    let segment = scene.offer.segment();
    let payload: Vec<u8> = (0..OFFERED.len()).map(|at| at as u8).collect();
    scene.peer.write_all(&write(segment.key, segment.address, &payload)).unwrap();
    scene.peer.write_all(&write(0xdead_beef, 0, b"")).unwrap();
    scene.peer.write_all(&read(1, segment.key, segment.address, segment.length as u32)).unwrap();
    let mut response = vec![0; mpa::framed(14 + OFFERED.len())];
    scene.peer.read_exact(&mut response).unwrap();
    let fpdu = Fpdu::split(&response).unwrap();
    fpdu.check().unwrap();
    let (header, bytes) = Header::decode(fpdu.ulpdu).unwrap();
    assert_eq!((header.operation, header.last), (Operation::ReadResponse, true));
    assert!(bytes == payload && scene.memory[OFFERED] == payload);
    drop(scene.peer);
    assert_eq!(end_of(&mut scene.endpoint).1, Some(IwarpEnd::Closed));
}

/// Returns a request of this side's, as the peer hears it.
fn heard_request(peer: &mut TcpStream) -> ReadRequest {
    let mut bytes = vec![0; mpa::framed(18 + 28)];
    peer.read_exact(&mut bytes).unwrap();
    let fpdu = Fpdu::split(&bytes).unwrap();
    let (header, payload) = Header::decode(fpdu.ulpdu).unwrap();
    assert_eq!(header.operation, Operation::ReadRequest);
    ReadRequest::decode(payload).unwrap()
}

fn answer(request: ReadRequest, from: u32, last: bool, payload: &[u8]) -> Vec<u8> {
    let place = Place::Tagged { tag: request.sink_tag, offset: request.sink_offset + u64::from(from) };
    fpdu(&Header { operation: Operation::ReadResponse, last, place }, payload)
}

/// Returns a side that reads a hundred bytes, thrice, into the middle of a buffer; its peer has heard of all three.
fn reading(answers: impl Fn([ReadRequest; 3], &Scene) -> Vec<u8>) -> (Scene, Vec<u8>) {
    const MIDDLE: usize = 4096;
    let mut scene = scene(4);
    // The memory is registered for all that there is: the cache has it so for other transfers.
    let sink = vec![7_u8; 4 * MIDDLE].into_boxed_slice();
    let start = MIDDLE - sink.as_ptr() as usize % MIDDLE;
    let range = PageRange::of_bytes(sink[start..].as_ptr() as u64, 2 * MIDDLE as u64).unwrap();
    let registration = scene.domain.register(range, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
    let address = sink[start + 1000..].as_ptr().cast_mut();
    scene.peer.write_all(&write(0, 0, b"")).unwrap();
    for id in 0..3 {
        let at = address.wrapping_add(id * 100);
        let local = Local { address: at, length: 100, registration: &registration };
        let from = Segment { address: 5, length: 100, key: 6 };
        // SAFETY: the sink is looked at when the connection has ended.
        unsafe { scene.endpoint.read(id as u64, &[local], from) }.unwrap();
    }
    let own = scene.domain.remote(&registration, address, 300);
    let requests = [0; 3].map(|_| heard_request(&mut scene.peer));
    for request in requests {
        assert_ne!(request.sink_tag, own.key, "the peer is not told of a tag that opens the memory");
        assert_ne!(request.sink_offset, own.address, "nor where it is");
    }
    let bytes = answers(requests, &scene);
    scene.peer.write_all(&bytes).unwrap();
    let end = last_words(&mut scene.peer);
    assert!(end.is_some());
    assert_eq!(end_of(&mut scene.endpoint).1, end.map(IwarpEnd::Breach));
    // SAFETY: the connection is flushed. By address, because it was written so.
    let placed: Vec<u8> = (0..300).map(|at| unsafe { address.add(at).read_volatile() }).collect();
    for outside in [start..start + 1000, start + 1300..start + 2 * MIDDLE] {
        assert!(sink[outside].iter().all(|&byte| byte == 7), "a byte beside what was read");
    }
    drop(sink);
    (scene, placed)
}

#[test]
fn read_sink_accepts_only_its_answers() {
    let check = |name: &str, expected: Terminate, placed: usize, misdeed: &dyn Fn([ReadRequest; 3]) -> Vec<u8>| {
        let (scene, bytes) = reading(|requests, _| misdeed(requests));
        assert_eq!(scene.endpoint.why(), Some(IwarpEnd::Breach(expected)), "{name}");
        let want: Vec<u8> = (0..300).map(|at| if at < placed { 9 } else { 7 }).collect();
        assert!(bytes == want, "{name}: {bytes:?}");
    };
    let nines = [9; 101];
    check("a write to the tag of the answer", Terminate::DDP_BOUNDS, 0, &|[first, ..]| {
        write(first.sink_tag, first.sink_offset, b"x")
    });
    check("a write there after the answer", Terminate::DDP_BOUNDS, 100, &|[first, ..]| {
        [answer(first, 0, true, &nines[..100]), write(first.sink_tag, first.sink_offset, b"x")].concat()
    });
    check("a read of it", Terminate::BASE_OR_BOUNDS, 0, &|[first, ..]| read(1, first.sink_tag, 0, 1));
    check("ending the tag", Terminate::CANNOT_INVALIDATE, 0, &|[first, ..]| {
        let place = Place::Untagged { invalidate: first.sink_tag, queue: 0, number: 1, offset: 0 };
        fpdu(&Header { operation: Operation::SendInvalidate, last: true, place }, b"")
    });
    check("an answer that is too long", Terminate::DDP_BOUNDS, 0, &|[first, ..]| answer(first, 0, true, &nines));
    check("one that goes on too long", Terminate::DDP_BOUNDS, 60, &|[first, ..]| {
        [answer(first, 0, false, &nines[..60]), answer(first, 60, true, &nines[..41])].concat()
    });
    check("one that leaves bytes out", Terminate::DDP_BOUNDS, 0, &|[first, ..]| answer(first, 1, true, &nines[..99]));
    check("one that ends too early", Terminate::DDP_BOUNDS, 0, &|[first, ..]| answer(first, 0, true, &nines[..99]));
    check("one that does not end", Terminate::DDP_BOUNDS, 0, &|[first, ..]| answer(first, 0, false, &nines[..100]));
    check("one by another tag", Terminate::DDP_INVALID_TAG, 0, &|[first, ..]| {
        answer(ReadRequest { sink_tag: first.sink_tag ^ 1, ..first }, 0, true, &nines[..100])
    });
    check("one more than was asked for", Terminate::DDP_INVALID_TAG, 300, &|requests| {
        let answers = requests.iter().chain(&requests[..1]);
        answers.flat_map(|&request| answer(request, 0, true, &nines[..100])).collect()
    });
}

#[test]
fn what_was_not_asked_for_yet_is_not_answered() {
    let mut scene = scene(4);
    scene.peer.write_all(&write(0, 0, b"")).unwrap();
    // The peer takes four at a time.
    let sink = vec![7_u8; 3 * 4096];
    let range = PageRange::of_bytes(sink.as_ptr() as u64, 8192).unwrap();
    let registration = scene.domain.register(range, Access::LOCAL_WRITE).unwrap();
    for id in 0..5 {
        let local = Local { address: sink.as_ptr().cast_mut(), length: 8, registration: &registration };
        // SAFETY: the local memory outlives the endpoint and has no other user.
        unsafe { scene.endpoint.read(id, &[local], Segment { address: 5, length: 8, key: 6 }) }.unwrap();
    }
    let requests = [0; 4].map(|_| heard_request(&mut scene.peer));
    let answers: Vec<u8> =
        [0, 1, 2, 3, 3].iter().flat_map(|&at: &usize| answer(requests[at], 0, true, b"answered")).collect();
    scene.peer.write_all(&answers).unwrap();
    assert_eq!(end_of(&mut scene.endpoint).1, Some(IwarpEnd::Breach(Terminate::DDP_INVALID_TAG)));
}

#[test]
fn bound_tag_opens_only_reads_within_bounds() {
    let bound = |misdeed: fn(Segment) -> Vec<u8>, of_other: bool, dropped: bool| {
        let mut scene = scene(2);
        // SAFETY: the memory lives as long as the scene.
        let binding = Arc::new(unsafe { Binding::new(scene.memory[OFFERED].as_ptr()) });
        let domain = if of_other { scene._other.0.own_domain() } else { scene.endpoint.own_domain() };
        let handle = domain.handle(&binding, OFFERED.len()).unwrap();
        let segment = handle.segment();
        assert_eq!((segment.address, segment.length), (0, OFFERED.len() as u64));
        let handle = Some(handle).filter(|_| !dropped);
        scene.peer.write_all(&misdeed(segment)).unwrap();
        let heard = last_words(&mut scene.peer);
        assert_eq!(end_of(&mut scene.endpoint).1, heard.map(IwarpEnd::Breach));
        assert!(scene.memory.iter().all(|&byte| byte == 7) && binding.reads() == 0);
        drop(handle);
        assert_eq!(scene.domain.registrations(), 4);
        heard.unwrap()
    };
    assert_eq!(bound(|segment| write(segment.key, 0, b"x"), false, false), Terminate::ACCESS);
    assert_eq!(
        bound(|segment| read(1, segment.key, 0, OFFERED.len() as u32 + 1), false, false),
        Terminate::BASE_OR_BOUNDS
    );
    assert_eq!(bound(|segment| read(1, segment.key, 1, OFFERED.len() as u32), false, false), Terminate::BASE_OR_BOUNDS);
    assert_eq!(bound(|segment| read(1, segment.key, u64::MAX, 2), false, false), Terminate::OFFSET_WRAPS);
    assert_eq!(bound(|segment| read(1, segment.key, 0, 1), true, false), Terminate::TAG_NOT_ASSOCIATED);
    assert_eq!(bound(|segment| write(segment.key, 0, b"x"), true, false), Terminate::DDP_NOT_ASSOCIATED);
    assert_eq!(bound(|segment| read(1, segment.key, 0, 1), false, true), Terminate::INVALID_TAG);
}

/// Streams that were right before they were spoilt.
fn streams(scene: &Scene) -> Vec<u8> {
    let segment = scene.offer.segment();
    let mut bytes = Vec::new();
    for number in 1..4 {
        bytes.extend(write(segment.key, segment.address, &[9; 200]));
        bytes.extend(read(number, segment.key, segment.address + 5, 300));
        bytes.extend(untagged(Operation::Send, false, number, 0, b"one "));
        bytes.extend(untagged(Operation::Send, true, number, 4, b"message"));
    }
    bytes
}

#[test]
fn spoilt_streams_end_and_touch_nothing_else() {
    let seeds: u64 = std::env::var("ROUNDS").ok().map_or(60, |text| text.parse().unwrap());
    let (mut breaches, mut closed) = (0, 0);
    for seed in 0..seeds {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut scene = scene(8);
        let mut bytes = streams(&scene);
        for _ in 0..rng.random_range(0..4) {
            let at = rng.random_range(0..bytes.len());
            match rng.random_range(0..3) {
                0 => bytes[at] = rng.random(),
                1 => bytes.truncate(at + 1),
                _ => drop(bytes.splice(at..at, (0..rng.random_range(1..40)).map(|_| 0))),
            }
        }
        // In arbitrary pieces.
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rng.random_range(1..=rest.len()));
            if scene.peer.write_all(now).is_err() {
                break;
            }
            rest = later;
        }
        let _ = scene.peer.shutdown(std::net::Shutdown::Write);
        let heard = last_words(&mut scene.peer);
        match end_of(&mut scene.endpoint).1 {
            Some(IwarpEnd::Breach(why)) => {
                assert_eq!(heard, Some(why), "seed {seed}");
                breaches += 1;
            }
            _ => closed += 1,
        }
        let outside = scene.memory[..OFFERED.start].iter().chain(&scene.memory[OFFERED.end..]);
        assert!(outside.copied().all(|byte| byte == 7), "seed {seed}");
    }
    println!("{breaches} streams were ended, {closed} ended by themselves");
    assert!(breaches > 0 && closed > 0);
}
