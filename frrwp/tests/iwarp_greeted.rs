//! Bytes with a start frame, before the end, or from many connections at once: none is forgotten when it comes
//! unexpectedly early, late or often.
#![allow(unsafe_code, reason = "memory is opened by address, and sockets are reset")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod frames;

use frames::{SOON, end_of, greet, hello, last_bytes, last_words, read, untagged, write};
use frrwp::fabric::iwarp::ddp::{Operation, READ_REQUEST, ReadRequest};
use frrwp::fabric::iwarp::terminate::Terminate;
use frrwp::fabric::iwarp::{IwarpDomain, IwarpEnd, IwarpListener, IwarpOptions, mpa};
use frrwp::fabric::{Completion, Endpoint};
use frrwp::wire::MESSAGE;
use mrrc::Access;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;

/// Bytes of memory that no socket takes at once.
const LARGE: usize = 16 << 20;

fn listening(options: IwarpOptions) -> (IwarpDomain, IwarpListener, SocketAddr) {
    let domain = IwarpDomain::new(options).unwrap();
    let listener = IwarpListener::bind(&domain, "iwarp:127.0.0.1:0").unwrap();
    let address = listener.address().unwrap();
    (domain, listener, address)
}

/// Two frames that a client says when it is ready: nothing, and a message.
fn ready_and(message: &[u8]) -> Vec<u8> {
    [write(0, 0, b""), untagged(Operation::Send, true, 1, 0, message)].concat()
}

#[test]
fn however_much_comes_with_a_start_frame_is_heard() {
    let (_domain, mut listener, address) = listening(IwarpOptions::default());
    let mut bytes = [hello(), ready_and(&[3; 2000])].concat();
    // A receiving call ends where a byte is urgent, and such a byte is not part of the stream.
    let rest = bytes.split_off(530);
    let mut peer = TcpStream::connect(address).unwrap();
    peer.write_all(&bytes).unwrap();
    // SAFETY: the call reads one byte of a literal.
    let sent = unsafe { libc::send(peer.as_raw_fd(), b"!".as_ptr().cast(), 1, libc::MSG_OOB) };
    assert_eq!(sent, 1);
    peer.write_all(&rest).unwrap();
    let mut endpoint = listener.accept(1, Some(SOON)).unwrap();
    let mut message = [0; MESSAGE];
    loop {
        match endpoint.poll(&mut message) {
            Some(Completion::Message { length }) => break assert_eq!(message[..length], [3; 2000]),
            Some(other) => panic!("{other:?}: {:?}", endpoint.why()),
            None => endpoint.wait(None),
        }
    }
}

#[test]
fn requests_with_start_frame_are_all_answered() {
    let options = IwarpOptions { stall: Duration::from_secs(2), ..IwarpOptions::default() };
    let (domain, mut listener, address) = listening(options);
    let mut memory = vec![5; LARGE];
    // SAFETY: the memory outlives the registration, and is not written meanwhile.
    let large = unsafe { domain.open(memory.as_mut_ptr(), LARGE, Access::REMOTE_READ) }.unwrap();
    let segment = large.segment();
    let asked = read(1, segment.key, segment.address, LARGE as u32);
    let mut peer = TcpStream::connect(address).unwrap();
    peer.write_all(&[hello(), write(0, 0, b""), asked].concat()).unwrap();
    let _endpoint = listener.accept(1, Some(SOON)).unwrap();
    peer.set_read_timeout(Some(SOON)).unwrap();
    peer.read_exact(&mut vec![0; hello().len()]).unwrap();
    let mut came = 0;
    while came < LARGE {
        let mut length = [0; 2];
        peer.read_exact(&mut length).unwrap();
        let carried = usize::from(u16::from_be_bytes(length));
        peer.read_exact(&mut vec![0; mpa::framed(carried) - 2]).unwrap();
        came += carried - 14;
    }
}

#[test]
fn terminate_is_sent_despite_full_socket() {
    let (domain, mut listener, address) = listening(IwarpOptions { inbound: 2, ..IwarpOptions::default() });
    let mut memory = vec![5; LARGE];
    // SAFETY: the memory outlives the registration, and is not written meanwhile.
    let large = unsafe { domain.open(memory.as_mut_ptr(), LARGE, Access::REMOTE_READ) }.unwrap();
    let segment = large.segment();
    let mut peer = greet(address);
    let mut endpoint = listener.accept(1, Some(SOON)).unwrap();
    peer.read_exact(&mut vec![0; hello().len()]).unwrap();
    let waiting = std::thread::spawn(move || (end_of(&mut endpoint).1, endpoint));
    // That it waits by then is likely, and matters only for what this test finds.
    std::thread::sleep(Duration::from_millis(50));
    for number in 1..=3 {
        peer.write_all(&read(number, segment.key, segment.address, LARGE as u32)).unwrap();
        std::thread::sleep(Duration::from_millis(50));
    }
    let (end, _endpoint) = waiting.join().unwrap();
    assert_eq!(end, Some(IwarpEnd::Breach(Terminate::NO_BUFFER)));
    assert_eq!(last_words(&mut peer), Some(Terminate::NO_BUFFER));
}

#[test]
fn last_words_about_a_read_hold_its_request() {
    let (_domain, mut listener, address) = listening(IwarpOptions::default());
    let mut peer = greet(address);
    let _endpoint = listener.accept(1, Some(SOON)).unwrap();
    peer.read_exact(&mut vec![0; hello().len()]).unwrap();
    peer.write_all(&read(1, 0xdead_beef, 77, 99)).unwrap();
    let words = last_bytes(&mut peer).unwrap();
    assert_eq!(Terminate::decode(&words), Some(Terminate::INVALID_TAG));
    assert_eq!(words[2], 0x80 | 0x40 | 0x20, "length, DDP's header, RDMAP's header");
    let request = ReadRequest::decode(&words[words.len() - READ_REQUEST..]).unwrap();
    assert_eq!((request.source_tag, request.source_offset, request.length), (0xdead_beef, 77, 99));
    assert_eq!(words.len(), 4 + 2 + 18 + READ_REQUEST);
}

#[test]
fn peer_end_after_any_byte_releases_all() {
    let (domain, mut listener, address) = listening(IwarpOptions::default());
    let mut memory = vec![5; 100];
    // SAFETY: the memory outlives the registration, and is not written meanwhile.
    let exact = unsafe { domain.open(memory.as_mut_ptr(), 100, Access::all()) }.unwrap();
    let segment = exact.segment();
    let asked = [write(segment.key, segment.address, &[6; 50]), read(1, segment.key, segment.address, 100)].concat();
    let bytes = [hello(), asked, untagged(Operation::Send, true, 1, 0, b"a message")].concat();
    for cut in 0..=bytes.len() {
        let refused = listener.refused();
        let mut peer = TcpStream::connect(address).unwrap();
        peer.write_all(&bytes[..cut]).unwrap();
        drop(peer);
        if cut < hello().len() {
            while listener.refused() == refused {
                assert!(listener.accept(1, Some(Duration::from_millis(1))).is_err(), "{cut} bytes");
            }
        } else {
            // It is let in, or had gone before that.
            let mut accepted = None;
            while accepted.is_none() && listener.refused() == refused {
                accepted = listener.accept(1, Some(Duration::from_millis(1))).ok();
            }
            if let Some(mut endpoint) = accepted {
                let (_, why) = end_of(&mut endpoint);
                assert!(matches!(why, Some(IwarpEnd::Closed | IwarpEnd::Broken(_))), "{cut} bytes: {why:?}");
            }
        }
    }
    drop(exact);
    let until = std::time::Instant::now() + SOON;
    while domain.connections() > 0 {
        assert!(std::time::Instant::now() < until, "{} connections are held", domain.connections());
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(domain.registrations(), 0);
}

/// Connects, guesses a tag, and resets the connection before its address can be asked for. Whether the guess was heard.
fn guess_and_run(listener: &mut IwarpListener, address: SocketAddr) -> bool {
    let mut peer = greet(address);
    let mut endpoint = listener.accept(1, Some(SOON)).unwrap();
    peer.read_exact(&mut vec![0; hello().len()]).unwrap();
    peer.set_nodelay(true).unwrap();
    let guess = write(0xdead_beef, 0, b"x");
    peer.write_all(&guess[..9]).unwrap();
    // SAFETY: sets an option that says to reset when the socket is closed.
    unsafe {
        let now = libc::linger { l_onoff: 1, l_linger: 0 };
        let size = size_of::<libc::linger>() as libc::socklen_t;
        let value = (&raw const now).cast();
        assert_eq!(libc::setsockopt(peer.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, value, size), 0);
    }
    peer.write_all(&guess[9..]).unwrap();
    drop(peer);
    end_of(&mut endpoint).1 == Some(IwarpEnd::Breach(Terminate::DDP_INVALID_TAG))
}

#[test]
fn guesses_of_reset_connections_count_too() {
    let (domain, mut listener, address) = listening(IwarpOptions::default());
    let start = std::time::Instant::now();
    let guesses = (0..100).filter(|_| guess_and_run(&mut listener, address)).count() as u64;
    // Some were gone before their turn came.
    let allowed = 8 + 56 * (start.elapsed().as_millis() as u64 + 1) / 1000;
    println!("{guesses} guesses of 100 in {} ms", start.elapsed().as_millis());
    assert_eq!(domain.tag_guesses().guesses, guesses);
    assert!((1..=allowed).contains(&guesses), "{guesses} guesses, {allowed} allowed");
}

#[test]
fn who_has_guessed_is_let_in_at_once() {
    let (domain, mut listener, address) = listening(IwarpOptions::default());
    for _ in 0..30 {
        let mut peer = greet(address);
        peer.write_all(&write(0xdead_beef, 0, b"x")).unwrap();
        end_of(&mut listener.accept(1, Some(SOON)).unwrap());
    }
    let counts = domain.tag_guesses();
    assert_eq!(counts.guesses, 30);
    let peers: Vec<_> = (0..10).map(|_| greet(address)).collect();
    let let_in: Vec<_> = (0..10).map(|_| listener.accept(1, Some(SOON)).unwrap()).collect();
    assert_eq!(domain.tag_guesses().held, counts.held, "none of them was held up");
    drop((peers, let_in));
}
