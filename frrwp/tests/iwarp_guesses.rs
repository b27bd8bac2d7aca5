//! Peers that guess tags: how often they may, and that no other pays for it.
#![allow(unsafe_code, reason = "memory is opened by address")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod frames;

use frames::{SOON, end_of, greet, last_words, read, untagged, write};
use frrwp::fabric::iwarp::ddp::Operation;
use frrwp::fabric::iwarp::mpa::{self, Start};
use frrwp::fabric::iwarp::terminate::Terminate;
use frrwp::fabric::iwarp::{self, IwarpDomain, IwarpEndpoint, IwarpListener, IwarpOptions};
use frrwp::fabric::{Completion, Endpoint};
use frrwp::wire::MESSAGE;
use mrrc::Access;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Returns a server with connections that its domain's thread serves alone.
fn serving() -> (IwarpDomain, IwarpListener) {
    let domain = IwarpDomain::new(IwarpOptions { passive: true, ..IwarpOptions::default() }).unwrap();
    let listener = IwarpListener::bind(&domain, "iwarp:127.0.0.1:0").unwrap();
    (domain, listener)
}

/// Returns a connection by hand, set up.
fn connected(listener: &mut IwarpListener) -> (IwarpEndpoint, TcpStream) {
    let mut peer = greet(listener.address().unwrap());
    let endpoint = listener.accept(64, Some(SOON)).unwrap();
    let mut reply = [0; 24];
    peer.read_exact(&mut reply).unwrap();
    assert!(Start::decode(&reply).unwrap().is_some());
    (endpoint, peer)
}

fn guess(listener: &mut IwarpListener, tag: u32) -> (IwarpEndpoint, TcpStream) {
    let (endpoint, mut peer) = connected(listener);
    peer.write_all(&read(1, tag, 0, 1)).unwrap();
    (endpoint, peer)
}

/// Waits for something that other threads do.
fn soon(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < SOON, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn honest_clients_connect_behind_a_guesser() {
    let (domain, mut listener) = serving();
    for tag in 0..8 {
        let (mut endpoint, mut peer) = guess(&mut listener, 0xdead_0000 + tag);
        assert_eq!(last_words(&mut peer), Some(Terminate::INVALID_TAG));
        end_of(&mut endpoint);
    }
    let address = format!("iwarp:{}", listener.address().unwrap());
    let accepting =
        std::thread::spawn(move || (0..16).map(|_| listener.accept(4, Some(SOON)).unwrap()).collect::<Vec<_>>());
    let held = domain.tag_guesses().held;
    let honest = IwarpDomain::new(IwarpOptions { set_up: SOON, ..IwarpOptions::default() }).unwrap();
    let clients: Vec<_> = (0..16).map(|_| iwarp::connect(&honest, &address, 4).unwrap()).collect();
    assert_eq!(domain.tag_guesses().held, held, "none of them was held up");
    assert_eq!((clients.len(), accepting.join().unwrap().len()), (16, 16));
    let counts = domain.tag_guesses();
    assert_eq!((counts.guesses, counts.activations), (8, 1));
    assert_eq!(domain.next_throttled().map(|source| source.to_string()).as_deref(), Some("127.0.0.1"));
    assert_eq!(domain.next_throttled(), None);
}

#[test]
fn a_source_guesses_64_times_a_second() {
    const GUESSERS: usize = 200;
    let (domain, mut listener) = serving();
    let begun = Instant::now();
    let mut peers: Vec<_> = (0..GUESSERS as u32).map(|tag| guess(&mut listener, 0xdead_0000 + tag)).collect();
    for (_, peer) in &mut peers {
        assert_eq!(last_words(peer), Some(Terminate::INVALID_TAG), "each is answered");
        let guesses = domain.tag_guesses().guesses;
        let allowed = 8 + 56 * (begun.elapsed().as_millis() as u64 + 1) / 1000;
        assert!(guesses <= allowed, "{guesses} of {allowed}");
    }
    let counts = domain.tag_guesses();
    println!("{counts:?} in {} ms", begun.elapsed().as_millis());
    assert_eq!((counts.guesses, counts.activations), (GUESSERS as u64, 1));
    assert!(counts.held >= 1 && begun.elapsed() >= Duration::from_secs(3));
}

#[test]
fn own_tags_do_not_wait_behind_a_guesser() {
    // A slow machine may take as long for the guesses as their answers take.
    assert!((0..5).any(|_| own_tags_are_first()), "all guesses were answered before");
}

/// Returns whether guesses still wait when reads by tags of the connection's own have been answered.
fn own_tags_are_first() -> bool {
    let (domain, mut listener) = serving();
    let mut memory = vec![7_u8; 4096];
    let (honest, mut peer) = connected(&mut listener);
    // SAFETY: the memory lives as long as the tags.
    let own = unsafe { honest.own_domain().open(memory.as_mut_ptr(), 64, Access::REMOTE_READ) }.unwrap();
    let flood: Vec<_> = (0..300).map(|tag| guess(&mut listener, 0xdead_0000 + tag)).collect();
    soon("guesses wait", || domain.tag_guesses().held > 0);
    // Few enough to end long before the guesses, of which each second answers 56, on a slow machine, too.
    for number in 1..=20 {
        peer.write_all(&read(number, own.segment().key, own.segment().address, 64)).unwrap();
        let mut response = vec![0; mpa::framed(14 + 64)];
        peer.read_exact(&mut response).unwrap();
    }
    let answered = domain.tag_guesses().guesses;
    drop((flood, own));
    answered < 300
}

#[test]
fn waiting_accesses_are_carried_out_in_order() {
    let (domain, mut listener) = serving();
    let mut memory = vec![7_u8; 4096];
    // SAFETY: the memory lives as long as the tag.
    let shared = unsafe { domain.open(memory.as_mut_ptr(), 4096, Access::REMOTE_WRITE | Access::REMOTE_READ) }.unwrap();
    let segment = shared.segment();
    let (mut endpoint, mut peer) = connected(&mut listener);
    let flood: Vec<_> = (0..40).map(|tag| guess(&mut listener, 0xdead_0000 + tag)).collect();
    soon("guesses wait", || domain.tag_guesses().held > 0);
    // A write and a read by a tag of the domain, with messages around them, in pieces.
    let mut bytes = untagged(Operation::Send, true, 1, 0, b"before");
    bytes.extend(write(segment.key, segment.address, &[9; 600]));
    bytes.extend(untagged(Operation::Send, true, 2, 0, b"between"));
    bytes.extend(read(1, segment.key, segment.address, 600));
    bytes.extend(untagged(Operation::Send, true, 3, 0, b"after"));
    for piece in bytes.chunks(700) {
        peer.write_all(piece).unwrap();
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut response = vec![0; mpa::framed(14 + 600)];
    peer.read_exact(&mut response).unwrap();
    assert!(response[16..616].iter().all(|&byte| byte == 9), "the read comes after the write");
    let mut heard = Vec::new();
    let mut message = [0; MESSAGE];
    let until = endpoint.now() + SOON.as_nanos() as u64;
    while heard.len() < 3 {
        match endpoint.poll(&mut message) {
            Some(Completion::Message { length }) => {
                heard.push(String::from_utf8_lossy(&message[..length]).into_owned())
            }
            Some(other) => panic!("{other:?}"),
            None => endpoint.wait(Some(until)),
        }
        assert!(endpoint.now() < until);
    }
    assert_eq!(heard, ["before", "between", "after"]);
    drop((flood, shared));
    assert!(memory[..600].iter().all(|&byte| byte == 9));
}

#[test]
fn abandoned_guesses_leave_the_queue() {
    let (domain, mut listener) = serving();
    let flood: Vec<_> = (0..300).map(|tag| guess(&mut listener, 0xdead_0000 + tag)).collect();
    soon("guesses wait", || domain.tag_guesses().held > 0);
    let (endpoints, peers): (Vec<_>, Vec<_>) = flood.into_iter().unzip();
    // The peers go; the endpoints are told, though nothing is received from a waiting peer.
    drop(peers);
    for mut endpoint in endpoints {
        end_of(&mut endpoint);
    }
    let answered = domain.tag_guesses().guesses;
    let (_endpoint, mut peer) = guess(&mut listener, 0xdead_beef);
    assert_eq!(last_words(&mut peer), Some(Terminate::INVALID_TAG));
    let after = domain.tag_guesses().guesses;
    println!("{answered} of 300 were answered before, {after} with the next");
    assert!(after - answered < 20, "it did not wait for those that went: {answered}, {after}");
}

#[test]
fn a_late_access_is_no_guess() {
    let (domain, mut listener) = serving();
    let mut byte = 7;
    for (number, shared) in [false, true, false, true].into_iter().enumerate() {
        let (mut endpoint, mut peer) = connected(&mut listener);
        let of = if shared { domain.clone() } else { endpoint.own_domain() };
        // SAFETY: the registration is closed at once, and `byte` outlives it.
        let ended = unsafe { of.open(&raw mut byte, 1, Access::REMOTE_READ) }.unwrap().segment();
        // Many come after it.
        for _ in 0..20_000 {
            // SAFETY: the registration is closed at once, and `byte` outlives it.
            unsafe { of.open(&raw mut byte, 1, Access::REMOTE_READ) }.unwrap();
        }
        peer.write_all(&read(1, ended.key, ended.address, 1)).unwrap();
        assert_eq!(last_words(&mut peer), Some(Terminate::INVALID_TAG));
        end_of(&mut endpoint);
        assert_eq!((domain.tag_guesses().guesses, domain.tag_guesses().late), (0, number as u64 + 1));
    }
    // But of another connection's tags none is known.
    let (other, _peer) = connected(&mut listener);
    // SAFETY: the registration is closed at once, and `byte` outlives it.
    let foreign = unsafe { other.own_domain().open(&raw mut byte, 1, Access::REMOTE_READ) }.unwrap().segment();
    let (_endpoint, mut peer) = guess(&mut listener, foreign.key);
    assert_eq!(last_words(&mut peer), Some(Terminate::INVALID_TAG));
    assert_eq!(domain.tag_guesses().guesses, 1);
    assert_eq!(domain.next_throttled().map(|source| source.to_string()).as_deref(), Some("127.0.0.1"));
}
