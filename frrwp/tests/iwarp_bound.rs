//! Tags that follow what they name: what is read by them is what was bound when the read began, whole, whatever is bound since.
#![allow(unsafe_code, reason = "memory is opened by address")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod frames;

use frames::{SOON, greet, greet_with, read, write};
use frrwp::engine::{Engine, Event};
use frrwp::fabric::iwarp::ddp::{Header, Operation, Place};
use frrwp::fabric::iwarp::mpa::Fpdu;
use frrwp::fabric::iwarp::{self, Binding, Handle, IwarpDomain, IwarpEndpoint, IwarpListener, IwarpOptions};
use frrwp::handshake::{Limits, Side};
use frrwp::wire::Segment;
use mrrc::Cache;
use mrrc::invalidation::Explicit;
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

fn variants() -> [IwarpOptions; 2] {
    [true, false].map(|checksums| IwarpOptions { checksums, passive: checksums, ..IwarpOptions::default() })
}

fn listening(options: IwarpOptions) -> (IwarpDomain, IwarpListener) {
    let domain = IwarpDomain::new(options).unwrap();
    let listener = IwarpListener::bind(&domain, "iwarp:127.0.0.1:0").unwrap();
    (domain, listener)
}

fn connected(client: &IwarpDomain, listener: &mut IwarpListener) -> [IwarpEndpoint; 2] {
    let address = format!("iwarp:{}", listener.address().unwrap());
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| iwarp::connect(client, &address, 16).unwrap());
        let served = listener.accept(16, Some(SOON)).unwrap();
        [connecting.join().unwrap(), served]
    })
}

/// One whole version after another: all words of one are its number.
fn version(number: u64, bytes: usize) -> Vec<u8> {
    number.to_le_bytes().into_iter().cycle().take(bytes).collect()
}

/// Returns the memory at this tag, read by an engine.
fn fetched(engine: &mut Engine<'_, IwarpEndpoint>, from: Segment) -> Vec<u8> {
    let mut sink = vec![0; from.length as usize];
    // SAFETY: the sink is used again when the read has ended.
    let id = unsafe { engine.read_remote(sink.as_mut_ptr(), sink.len(), from) }.unwrap();
    match engine.run() {
        Some(Event::ReadCompleted { id: told, succeeded: true }) if told == id => sink,
        other => panic!("{other:?}: {:?}", engine.endpoint().why()),
    }
}

fn cache(domain: &IwarpDomain) -> Cache<IwarpDomain> {
    Cache::builder(domain.clone()).ignore_environment().monitor(Explicit).build().unwrap()
}

#[test]
fn bound_tag_follows_rebinding_and_counts_reads() {
    for options in variants() {
        let client = IwarpDomain::new(IwarpOptions { passive: false, ..options }).unwrap();
        let cache = cache(&client);
        let (domain, mut listener) = listening(options);
        let pairs = [(); 2].map(|()| connected(&client, &mut listener));
        let mut served = Vec::new();
        let mut engines = pairs.map(|[connected, accepted]| {
            served.push(accepted);
            Engine::new(&cache, connected, Side::Connecting, Limits::default())
        });
        for bytes in [1, 8, 1000, 8192, 8193, 65_472, 65_473, 300_000, Handle::LONGEST] {
            let versions: Vec<_> = (0..3).map(|number| version(number, bytes)).collect();
            // SAFETY: the versions outlive the handles.
            let binding = Arc::new(unsafe { Binding::new(versions[0].as_ptr()) });
            let handles: Vec<_> = served.iter().map(|end| end.own_domain().handle(&binding, bytes).unwrap()).collect();
            for (number, bound) in versions.iter().enumerate() {
                // SAFETY: `bind` requires bytes that live while they are bound: the versions outlive the binding.
                unsafe { binding.bind(bound.as_ptr()) };
                // The bytes may be here before the call that sent them has returned there.
                while !binding.is_idle() {
                    std::thread::yield_now();
                }
                for (engine, handle) in engines.iter_mut().zip(&handles) {
                    assert!(fetched(engine, handle.segment()) == *bound, "version {number} of {bytes} bytes");
                    // And a part of it.
                    let at = bytes as u64 / 3;
                    let part = Segment { address: at, length: bytes as u64 - at, ..handle.segment() };
                    assert!(fetched(engine, part) == bound[at as usize..], "from {at} on, of {bytes}");
                }
            }
            assert_eq!(binding.reads(), 3 * 2 * 2);
            assert_eq!(domain.registrations(), 2);
            drop(handles);
            assert_eq!((domain.registrations(), Arc::strong_count(&binding)), (0, 1));
        }
        assert_eq!(
            served.iter().map(IwarpEndpoint::reads_taken).collect::<Vec<_>>(),
            [9 * 3 * 2; 2],
            "of each connection"
        );
        drop(engines);
    }
}

#[test]
fn a_handle_has_bytes_and_a_bound() {
    let (domain, _listener) = listening(IwarpOptions::default());
    // SAFETY: no read uses this binding, so its address is never followed.
    let binding = Arc::new(unsafe { Binding::new(std::ptr::null()) });
    for length in [0, Handle::LONGEST + 1] {
        assert_eq!(domain.handle(&binding, length).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    }
}

/// Returns the answer to a read, all frames of it, with CRCs or without; what was heard of the next stays in `heard`.
fn answered(peer: &mut std::net::TcpStream, heard: &mut Vec<u8>, bytes: usize, checksums: bool) -> Vec<u8> {
    let mut answer = Vec::new();
    loop {
        while let Some(fpdu) = Fpdu::split(heard) {
            assert!(!checksums || fpdu.check().is_ok());
            let (header, payload) = Header::decode(fpdu.ulpdu).unwrap();
            assert_eq!(header.operation, Operation::ReadResponse);
            assert!(matches!(header.place, Place::Tagged { offset, .. } if offset == answer.len() as u64));
            answer.extend_from_slice(payload);
            assert_eq!(header.last, answer.len() == bytes);
            let length = fpdu.length;
            heard.drain(..length);
            if answer.len() == bytes {
                return answer;
            }
        }
        let mut more = vec![0; 1 << 16];
        let came = peer.read(&mut more).unwrap();
        assert!(came > 0, "the connection ended");
        heard.extend_from_slice(&more[..came]);
    }
}

#[test]
fn read_frames_show_one_version_despite_slow_peer() {
    let (_domain, mut listener) = listening(IwarpOptions { passive: true, ..IwarpOptions::default() });
    let mut peer = greet(listener.address().unwrap());
    let served = listener.accept(16, Some(SOON)).unwrap();
    peer.read_exact(&mut [0; 24]).unwrap();
    const BYTES: usize = Handle::LONGEST;
    let mut versions: Vec<_> = (1..=3).map(|number| version(number, BYTES)).collect();
    // SAFETY: the versions outlive the handle.
    let binding = Arc::new(unsafe { Binding::new(versions[0].as_ptr()) });
    let handle = served.own_domain().handle(&binding, BYTES).unwrap();
    // Two, of which the second does not fit into the sockets, so that it is under way for as long as the peer likes.
    peer.write_all(&write(0, 0, b"")).unwrap();
    let requests = [1, 2].map(|number| read(number, handle.segment().key, 0, BYTES as u32)).concat();
    peer.write_all(&requests).unwrap();
    let mut asking = peer.try_clone().unwrap();
    while binding.reads() < 1 {
        std::thread::yield_now();
    }
    // SAFETY: `bind` requires bytes that live while they are bound: the versions outlive the binding.
    unsafe { binding.bind(versions[1].as_ptr()) };
    while !binding.is_idle() {
        std::thread::yield_now();
    }
    // Bound bytes are their owner's again, though not all of them were sent.
    versions[0].fill(0xff);
    let mut heard = Vec::new();
    let mut answered = || answered(&mut peer, &mut heard, BYTES, true);
    assert!(answered() == version(1, BYTES), "every frame is of what was bound when the read began");
    // Sockets may have grown so that the second had begun.
    let second = answered();
    assert!([1, 2].iter().any(|&number| second == version(number, BYTES)), "and so of the second");
    assert_eq!(binding.reads(), 2);
    // A handle that goes with a read half sent: what was copied is sent.
    asking.write_all(&read(3, handle.segment().key, 0, BYTES as u32)).unwrap();
    while binding.reads() < 3 {
        std::thread::yield_now();
    }
    drop(handle);
    versions[1].fill(0xff);
    assert!(answered() == version(2, BYTES));
}

#[test]
fn unsent_bytes_without_crc_become_zeros() {
    let options = IwarpOptions { passive: true, checksums: false, ..IwarpOptions::default() };
    let (_domain, mut listener) = listening(options);
    let mut peer = greet_with(listener.address().unwrap(), false);
    let served = listener.accept(16, Some(SOON)).unwrap();
    peer.read_exact(&mut [0; 24]).unwrap();
    // More than the sockets hold, however large they grow, as nothing is received before all has been asked for.
    const BYTES: usize = Handle::LONGEST;
    const READS: u32 = 2;
    let mut versions: Vec<_> = (1..=2).map(|number| version(number, BYTES)).collect();
    // SAFETY: the versions outlive the handle.
    let binding = Arc::new(unsafe { Binding::new(versions[0].as_ptr()) });
    let handle = served.own_domain().handle(&binding, BYTES).unwrap();
    peer.write_all(&write(0, 0, b"")).unwrap();
    let requests: Vec<u8> =
        (1..=READS).flat_map(|number| read(number, handle.segment().key, 0, BYTES as u32)).collect();
    peer.write_all(&requests).unwrap();
    while binding.reads() < 1 {
        std::thread::yield_now();
    }
    // SAFETY: `bind` requires bytes that live while they are bound: the versions outlive the binding.
    unsafe { binding.bind(versions[1].as_ptr()) };
    while !binding.is_idle() {
        std::thread::yield_now();
    }
    versions[0].fill(0xff);
    let mut heard = Vec::new();
    let mut torn = 0;
    for _ in 0..READS {
        let answer = answered(&mut peer, &mut heard, BYTES, false);
        let (first, second) = (version(1, BYTES), version(2, BYTES));
        // Bytes of the first up to somewhere, and zeros from there on; or of the second, whole.
        let same = answer.iter().zip(&first).take_while(|(one, other)| one == other).count();
        assert!(answer == second || answer[same..].iter().all(|&byte| byte == 0), "two versions are in one answer");
        torn += u32::from(answer != second && answer != first);
    }
    assert!(torn > 0, "an answer was under way when the second was bound");
    drop(handle);
}

#[test]
fn a_reader_never_sees_what_was_taken_back() {
    [true, false].into_iter().for_each(never_what_was_taken_back);
}

fn never_what_was_taken_back(checksums: bool) {
    // One binds version after version and takes the ones before back as soon as the binding is idle; others read all the time.
    const BYTES: usize = 20_000;
    const VERSIONS: usize = 4;
    let options = IwarpOptions { checksums, ..IwarpOptions::default() };
    let client = IwarpDomain::new(options).unwrap();
    let cache = cache(&client);
    let (_domain, mut listener) = listening(IwarpOptions { passive: true, ..options });
    // Words, because they are written while the binding may be read.
    let versions: Vec<Vec<AtomicU64>> =
        (0..VERSIONS).map(|_| (0..BYTES / 8).map(|_| AtomicU64::new(0)).collect()).collect();
    let fill = |version: usize, value: u64| {
        versions[version % VERSIONS].iter().for_each(|word| word.store(value, Ordering::Relaxed));
    };
    let at = |version: usize| versions[version % VERSIONS].as_ptr().cast::<u8>();
    fill(1, 1);
    // SAFETY: the versions outlive the handles.
    let binding = Arc::new(unsafe { Binding::new(at(1)) });
    let ends = AtomicBool::new(false);
    let mut served = Vec::new();
    let clients: Vec<_> = (0..2)
        .map(|_| {
            let [connected, accepted] = connected(&client, &mut listener);
            let handle = accepted.own_domain().handle(&binding, BYTES).unwrap();
            let segment = handle.segment();
            served.push((handle, accepted));
            (Engine::new(&cache, connected, Side::Connecting, Limits::default()), segment)
        })
        .map(|(engine, segment)| (Sent(engine), segment))
        .collect();
    let bound = std::thread::scope(|scope| {
        let readers: Vec<_> = clients
            .into_iter()
            .map(|(mut engine, segment)| {
                let ends = &ends;
                scope.spawn(move || {
                    let engine = engine.get();
                    let mut last = 0;
                    for _ in 0..1_000 {
                        let bytes = fetched(engine, segment);
                        let number = u64::from_le_bytes(bytes[..8].try_into().unwrap());
                        let whole = number > 0 && bytes == version(number, BYTES);
                        // Without CRCs the end may be zeros.
                        let same = bytes.iter().zip(version(number, BYTES)).take_while(|(one, other)| **one == *other);
                        let torn = !checksums && bytes[same.count()..].iter().all(|&byte| byte == 0);
                        if torn {
                            continue;
                        }
                        if !whole || number < last {
                            ends.store(true, Ordering::SeqCst);
                            panic!("{number} after {last}, whole: {whole}");
                        }
                        last = number;
                    }
                    ends.store(true, Ordering::SeqCst);
                })
            })
            .collect();
        let mut number = 1;
        while !ends.load(Ordering::SeqCst) {
            number += 1;
            fill(number, number as u64);
            // SAFETY: `bind` requires bytes that live while they are bound: the versions outlive the binding.
            unsafe { binding.bind(at(number)) };
            while !binding.is_idle() {
                std::thread::yield_now();
            }
            fill(number - 1, 0);
            std::thread::sleep(Duration::from_micros(50));
        }
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        number
    });
    println!("{bound} versions");
    assert!(bound > 10 && binding.reads() >= 1_000);
}

/// An engine that goes to another thread, which alone uses it.
struct Sent<'a>(Engine<'a, IwarpEndpoint>);

impl<'a> Sent<'a> {
    fn get(&mut self) -> &mut Engine<'a, IwarpEndpoint> {
        &mut self.0
    }
}

// SAFETY: nothing of it is of the thread that made it.
unsafe impl Send for Sent<'_> {}

#[test]
fn corked_posts_leave_on_release_or_wait() {
    for options in variants() {
        let client = IwarpDomain::new(IwarpOptions { passive: false, ..options }).unwrap();
        let cache = cache(&client);
        let (_domain, mut listener) = listening(options);
        let [connected, served] = connected(&client, &mut listener);
        let mut engine = Engine::new(&cache, connected, Side::Connecting, Limits::default());
        let bytes = version(7, 1000);
        // SAFETY: the bytes outlive the handle and are not written while they are bound.
        let binding = Arc::new(unsafe { Binding::new(bytes.as_ptr()) });
        let handle = served.own_domain().handle(&binding, bytes.len()).unwrap();
        let mut sinks = [(); 40].map(|()| vec![0; bytes.len()]);
        for round in 1..=3 {
            engine.cork(true);
            for sink in &mut sinks {
                // SAFETY: the sinks are used again when the reads have ended.
                unsafe { engine.read_remote(sink.as_mut_ptr(), sink.len(), handle.segment()) }.unwrap();
                engine.progress();
            }
            assert_eq!(binding.reads(), (round - 1) * 40, "nothing has left");
            if round < 3 {
                engine.cork(false);
            }
            for sink in &mut sinks {
                let told = engine.run();
                assert!(matches!(told, Some(Event::ReadCompleted { succeeded: true, .. })), "{told:?}");
                assert!(*sink == bytes);
                sink.fill(0);
            }
            assert_eq!(binding.reads(), round * 40);
        }
        // The tag goes first.
        drop(handle);
    }
}
