//! The peer is killed, or stopped, at every step of everything that it does.

use super::super::failpoints;
use super::super::{Sharing, ShmArena, ShmDomain, ShmEndpoint, ShmError, ShmListener, connect};
use super::{Peer, Registration, STALL, WITHIN, decode, domain, encode, fresh};
use crate::engine::{Engine, Event, TransferError};
use crate::fabric::traits::{Completion, Endpoint, Local};
use crate::handshake::{Limits, RECEIVES, Side};
use crate::wire::{MESSAGE, Segment};
use mrrc::invalidation::Explicit;
use mrrc::{Access, Cache};
use std::time::{Duration, Instant};

const ADDRESS: &str = "FRRWP_SHM_ADDRESS";
const STEP: &str = "FRRWP_SHM_STEP";
const SIGNAL: &str = "FRRWP_SHM_SIGNAL";
/// More than one chunk, so that there is a middle of a copy.
const BYTES: usize = 150_000;
const RIGHTS: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);

/// Returns the parent's order: the address to connect to.
fn called() -> Option<super::ShmAddress> {
    let word = |name| std::env::var(name).ok();
    let address = word(ADDRESS)?.parse().expect("an address");
    failpoints::arm(word(STEP)?.parse().expect("a number"), word(SIGNAL)?.parse().expect("a number"));
    Some(address)
}

fn peer(test: &str, listener: &ShmListener, step: u64, signal: i32) -> Peer {
    let words = [(ADDRESS, listener.address().to_string()), (STEP, step.to_string()), (SIGNAL, signal.to_string())];
    Peer::of(&format!("fabric::shm::tests::faults::{test}"), &words)
}

/// Does what both sides do when something comes; false at the end.
fn answer(
    endpoint: &mut ShmEndpoint,
    completion: Completion,
    message: &[u8],
    local: &[Local<'_, super::ShmKey>],
    is_child: bool,
) -> bool {
    match completion {
        Completion::Message { length: 24 } => {
            let _ = endpoint.receive(1);
            let to: Segment = decode(&message[..24]);
            // SAFETY: the local memory is registered and has no other user; a call that has returned has ended.
            unsafe {
                let _ = endpoint.read(1, local, to);
                let _ = endpoint.write(2, local, to, None);
                let _ = endpoint.write(3, local, to, Some(9));
            }
            let _ = endpoint.send(b"through");
        }
        Completion::Message { .. } if is_child => endpoint.disconnect(),
        Completion::Flushed => return false,
        _ => {}
    }
    true
}

#[test]
#[ignore = "the other process of a test"]
fn child_of_operations() {
    let Some(address) = called() else { return };
    let domain = domain();
    let Ok(mut endpoint) = connect(&domain, &address, RECEIVES, WITHIN) else { return };
    let arena = domain.arena(BYTES, Sharing::Writable).expect("an arena");
    let buffer = arena.buffer(BYTES).expect("a buffer");
    let mut offered = Registration::new(&domain, buffer.as_ptr(), BYTES, RIGHTS).expect("registered");
    let mut memory = vec![1_u8; BYTES];
    let near = Registration::new(&domain, memory.as_ptr(), BYTES, Access::LOCAL).expect("registered");
    let local = [Local { address: memory.as_mut_ptr(), length: BYTES, registration: near.key() }];
    let _ = endpoint.send(&encode(offered.offer(&buffer)));
    let mut message = Box::new([0; MESSAGE]);
    loop {
        match endpoint.poll(&mut message) {
            Some(completion) => {
                if !answer(&mut endpoint, completion, &message[..], &local, true) {
                    break;
                }
            }
            None => endpoint.wait(None),
        }
    }
    let _ = offered.end();
}

/// One run, in which the child gets the signal at a step. `None` if it came to its end before; otherwise whether
/// something was in quarantine.
fn operations(step: u64, signal: i32) -> Option<bool> {
    let domain = domain();
    let arena = domain.arena(BYTES, Sharing::Writable).expect("an arena");
    let buffer = arena.buffer(BYTES).expect("a buffer");
    let mut offered = Registration::new(&domain, buffer.as_ptr(), BYTES, RIGHTS).expect("registered");
    let mut memory = vec![2_u8; BYTES];
    let near = Registration::new(&domain, memory.as_ptr(), BYTES, Access::LOCAL).expect("registered");
    let local = [Local { address: memory.as_mut_ptr(), length: BYTES, registration: near.key() }];
    let listener = ShmListener::bind(&domain, &fresh()).expect("a listener");
    let mut peer = peer("child_of_operations", &listener, step, signal);
    let endpoint = accept(&listener, &mut peer);
    let mut faulted = endpoint.is_none();
    if let Some(mut endpoint) = endpoint {
        let _ = endpoint.send(&encode(offered.offer(&buffer)));
        let mut message = Box::new([0; MESSAGE]);
        let until = Instant::now() + WITHIN;
        let mut stopped_at = None;
        loop {
            assert!(Instant::now() < until, "step {step}: no error within the time");
            match endpoint.poll(&mut message) {
                Some(completion) => {
                    if !answer(&mut endpoint, completion, &message[..], &local, false) {
                        break;
                    }
                }
                None => endpoint.wait(Some(endpoint.now() + 5_000_000)),
            }
            if stopped_at.is_none() && peer.is_stopped() {
                // As an application's time-out would do.
                stopped_at = Some(Instant::now());
                endpoint.disconnect();
            }
        }
        faulted |= stopped_at.is_some();
    }
    let taken_back = offered.end();
    let quarantine = domain.quarantine();
    let held = quarantine.peers == 1;
    if held {
        assert_eq!(signal, libc::SIGSTOP, "only a peer that lives is waited for");
        assert!(taken_back.is_err() && buffer.is_quarantined() && domain.keys() == 1, "step {step}");
        assert_eq!(quarantine.bytes, (BYTES as u64).next_multiple_of(4096));
        let again = offered.end();
        assert!(again.is_err(), "step {step}: it is held as long as the peer lives");
    } else {
        assert!(taken_back.is_ok() && domain.keys() == 0, "step {step}: {taken_back:?}");
    }
    if faulted {
        peer.kill();
    }
    let status = peer.end();
    offered.end().expect("the peer is dead");
    assert_eq!((domain.quarantine(), domain.connections(), domain.keys()), (Default::default(), 0, 0), "step {step}");
    assert!(!buffer.is_quarantined());
    (!status.success()).then_some(held)
}

/// Returns a connection, unless the child dies or stops before it stands.
fn accept(listener: &ShmListener, peer: &mut Peer) -> Option<ShmEndpoint> {
    let until = Instant::now() + WITHIN;
    loop {
        match listener.accept(RECEIVES, Duration::from_millis(50)) {
            Ok(endpoint) => return Some(endpoint),
            Err(ShmError::TimedOut { .. }) => {
                if peer.is_stopped() || peer.0.try_wait().expect("a status").is_some() {
                    return None;
                }
                assert!(Instant::now() < until, "the child neither comes nor dies");
            }
            Err(_) => return None,
        }
    }
}

/// Runs with a fault at each step, until a run has no such step.
fn at_every_step(signal: i32, mut run: impl FnMut(u64, i32) -> Option<bool>) -> (u64, u64) {
    let mut held = 0;
    for step in 0..2_000 {
        match run(step, signal) {
            Some(quarantined) => held += u64::from(quarantined),
            None => return (step, held),
        }
    }
    panic!("it never ends");
}

#[test]
fn peer_killed_at_any_step_leaves_only_an_error() {
    let (steps, _) = at_every_step(libc::SIGKILL, operations);
    println!("killed at each of {steps} steps");
    assert!(steps > 40, "{steps}");
}

#[test]
fn peer_stopped_at_any_step_quarantines_its_access() {
    let (steps, held) = at_every_step(libc::SIGSTOP, operations);
    println!("stopped at each of {steps} steps, {held} in quarantine");
    assert!(steps > 40 && held >= 20, "{steps} and {held}");
}

// ---- Engines ----------------------------------------------------------------------------------------

fn limits() -> Limits {
    Limits { sync_time: 100_000_000, write_time: 100_000_000, ..Limits::default() }
}

fn cache(domain: &ShmDomain) -> Cache<ShmDomain> {
    let builder = Cache::builder(domain.clone()).ignore_environment().monitor(Explicit).background(false);
    builder.capacity_pages(1_000).build().expect("a cache")
}

/// Answers until everything has ended: how many transfers ended as quarantined.
fn serve(
    engine: &mut Engine<'_, ShmEndpoint>,
    arena: &ShmArena,
    mut ends: u32,
    mut see: impl FnMut() -> bool,
) -> usize {
    let mut buffers = Vec::new();
    let mut quarantined = Vec::new();
    let until = Instant::now() + WITHIN;
    loop {
        assert!(Instant::now() < until, "no end within the time");
        engine.progress();
        match engine.next_event() {
            Some(Event::Requested { tag, read, length }) => {
                let buffer = arena.buffer(length as usize).expect("a buffer");
                // SAFETY: kept until everything has ended.
                let _ = unsafe {
                    if read {
                        engine.accept_read(tag, buffer.as_ptr(), buffer.len())
                    } else {
                        engine.accept_write(tag, buffer.as_ptr(), buffer.len())
                    }
                };
                buffers.push((tag, buffer));
            }
            Some(Event::Completed { tag, result }) => {
                if let Err(TransferError::Quarantined { tag, .. }) = result {
                    quarantined.push(tag);
                }
                let told = quarantined.contains(&tag);
                for (_, buffer) in buffers.iter().filter(|(of, _)| *of == tag) {
                    assert_eq!(buffer.is_quarantined(), told, "an end says whether the buffer is free");
                }
                ends = ends.saturating_sub(1);
                if ends == 0 {
                    engine.disconnect();
                }
            }
            Some(Event::Closed { .. }) => return quarantined.len(),
            Some(_) => {}
            None => {
                // Not for longer: whether the child has stopped is asked too.
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        if see() && engine.open_transfers() == 0 {
            engine.disconnect();
        }
    }
}

#[test]
#[ignore = "the other process of a test"]
fn child_of_engines() {
    let Some(address) = called() else { return };
    let domain = domain();
    let arena = domain.arena(4 * BYTES, Sharing::Writable).expect("an arena");
    let [one, other] = [0, 1].map(|_| arena.buffer(BYTES).expect("a buffer"));
    let cache = cache(&domain);
    let Ok(endpoint) = connect(&domain, &address, RECEIVES, WITHIN) else { return };
    let mut engine = Engine::new(&cache, endpoint, Side::Connecting, limits());
    // SAFETY: both live until the engine is gone.
    unsafe {
        let _ = engine.open_write(one.as_ptr(), BYTES, b"take");
        let _ = engine.open_read(other.as_ptr(), BYTES, b"give");
    }
    serve(&mut engine, &arena, 2, || false);
}

fn engines(step: u64, signal: i32) -> Option<bool> {
    let domain = domain();
    let arena = domain.arena(4 * BYTES, Sharing::Writable).expect("an arena");
    let cache = cache(&domain);
    let listener = ShmListener::bind(&domain, &fresh()).expect("a listener");
    let mut peer = peer("child_of_engines", &listener, step, signal);
    let (mut faulted, mut told) = (true, 0);
    if let Some(endpoint) = accept(&listener, &mut peer) {
        let mut engine = Engine::new(&cache, endpoint, Side::Accepting, limits());
        let mut stopped = false;
        told = serve(&mut engine, &arena, u32::MAX, || {
            stopped |= peer.is_stopped();
            stopped
        });
        assert_eq!(engine.open_transfers(), 0, "step {step}");
        faulted = stopped;
    }
    let _ = cache.flush();
    let quarantine = domain.quarantine();
    let held = quarantine.peers == 1;
    assert!(!held || signal == libc::SIGSTOP);
    assert_eq!(told, usize::from(held), "step {step}: the transfer whose buffer is held is told so, and no other");
    assert!(domain.keys() <= usize::from(held), "step {step}: nothing but what is in quarantine");
    if faulted {
        peer.kill();
    }
    let status = peer.end();
    let _ = cache.flush();
    assert_eq!((domain.quarantine(), domain.connections(), domain.keys()), (Default::default(), 0, 0), "step {step}");
    assert_eq!(cache.usage().regions, 0, "step {step}");
    (!status.success()).then_some(held)
}

#[test]
fn an_engine_outlives_a_peer_killed_at_any_step() {
    let (steps, _) = at_every_step(libc::SIGKILL, engines);
    println!("killed at each of {steps} steps");
    assert!(steps > 25, "{steps}");
}

#[test]
fn an_engine_outlives_a_peer_stopped_at_any_step() {
    let (steps, held) = at_every_step(libc::SIGSTOP, engines);
    println!("stopped at each of {steps} steps, {held} in quarantine");
    assert!(steps > 25 && held >= 5, "{steps} and {held}");
}

// ---- Quarantine -------------------------------------------------------------------------------------

/// Returns a peer of this process that is at memory, and does not leave.
fn stuck(domain: &ShmDomain, other: &ShmDomain, key: u32) -> [ShmEndpoint; 2] {
    let listener = ShmListener::bind(domain, &fresh()).expect("a listener");
    let ends = std::thread::scope(|scope| {
        let connecting = scope.spawn(|| connect(other, listener.address(), RECEIVES, WITHIN));
        let accepted = listener.accept(RECEIVES, WITHIN).expect("accepted");
        [accepted, connecting.join().expect("no panic").expect("connected")]
    });
    ends[1].link().enter(key);
    ends
}

#[test]
fn full_quarantine_stops_offers() {
    let options = super::ShmOptions { stall: STALL, quarantine: 8192, ..Default::default() };
    let [domain, other] = [ShmDomain::new(options), ShmDomain::new(options)].map(|domain| domain.expect("a domain"));
    let arena = domain.arena(64 << 10, Sharing::Writable).expect("an arena");
    let buffer = arena.buffer(8192).expect("a buffer");
    let mut held = Registration::new(&domain, buffer.as_ptr(), 8192, RIGHTS).expect("registered");
    let key = held.offer(&buffer).key;
    let [accepted, connected] = stuck(&domain, &other, key);
    let error = held.end().expect_err("the peer is at it");
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
    assert_eq!(domain.quarantine(), super::super::Quarantine { peers: 1, bytes: 8192 });
    let next = arena.buffer(4096).expect("a buffer");
    let error = Registration::new(&domain, next.as_ptr(), 4096, RIGHTS).err().expect("refused");
    assert!(error.to_string().contains("end those processes"), "{error}");
    assert!(Registration::new(&domain, next.as_ptr(), 4096, Access::LOCAL).is_ok());
    // Pages that are given back are not given out.
    let place = buffer.as_ptr();
    drop(buffer);
    let rest = arena.buffer(arena.len() - 4096 - 8192).expect("the rest");
    let error = arena.buffer(4096).expect_err("kept");
    assert!(error.kept == 8192 && error.to_string().contains("end those processes"), "{error}");
    // Unless they are replaced, where they are, with what they hold.
    arena.write_at(0, b"kept").expect("inside");
    arena.take_back(0..8192).expect("only a stalled peer is at them");
    let mut back = [0; 4];
    arena.read_at(0, &mut back).expect("inside");
    assert_eq!((&back, place), (b"kept", arena.as_ptr()));
    // The peer leaves, and everything is free.
    connected.link().leave();
    held.end().expect("it has left");
    assert_eq!((domain.quarantine(), domain.connections(), domain.keys()), (Default::default(), 0, 0));
    let error = Registration::new(&domain, place, 4096, RIGHTS).err().expect("private now");
    assert!(error.to_string().contains("take_back"), "{error}");
    assert_eq!(arena.buffer(8192).expect("free again").as_ptr(), place);
    drop((accepted, connected, rest));
}

#[test]
fn pages_that_peers_can_reach_are_not_taken_back() {
    let domain = domain();
    let arena = domain.arena(64 << 10, Sharing::Writable).expect("an arena");
    let mut registered = Registration::new(&domain, arena.as_ptr(), 4096, RIGHTS).expect("registered");
    assert!(arena.take_back(0..1).is_err() && arena.take_back(0..1 << 20).is_err());
    arena.take_back(4096..8192).expect("not registered");
    registered.end().expect("nobody is at it");
    arena.take_back(0..1).expect("not any more");
}

/// A successor may have told others that the bytes are something else by now.
#[test]
fn memory_of_a_killed_peer_is_not_read() {
    let domain = domain();
    let listener = ShmListener::bind(&domain, &fresh()).expect("a listener");
    let mut peer = peer("child_of_operations", &listener, u64::MAX, 0);
    let mut endpoint = accept(&listener, &mut peer).expect("a connection");
    let mut memory = vec![2_u8; BYTES];
    let near = Registration::new(&domain, memory.as_ptr(), BYTES, Access::LOCAL).expect("registered");
    let local = [Local { address: memory.as_mut_ptr(), length: BYTES, registration: near.key() }];
    let mut message = Box::new([0; MESSAGE]);
    let until = Instant::now() + WITHIN;
    while endpoint.poll(&mut message) != Some(Completion::Message { length: 24 }) {
        assert!(Instant::now() < until, "it offers nothing");
        endpoint.wait(Some(endpoint.now() + 1_000_000));
    }
    let from = decode(&message[..24]);
    for succeeds in [true, false] {
        if !succeeds {
            peer.kill();
        }
        // SAFETY: the local memory is registered and has no other user; a call that has returned has ended.
        unsafe { endpoint.read(1, &local, from) }.expect("posted");
        assert_eq!(endpoint.poll(&mut message), Some(Completion::Done { id: 1, succeeded: succeeds }));
    }
}
