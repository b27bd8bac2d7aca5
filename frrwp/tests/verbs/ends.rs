//! Both ends of a connection, and what comes at them.

use crate::device::Device;
use frrwp::fabric::verbs::{self, VerbsDomain, VerbsEndpoint, VerbsError, VerbsListener, VerbsOptions};
use frrwp::fabric::{Completion, Endpoint};
use frrwp::wire::MESSAGE;
use mrrc::registrar::verbs::Transport;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub(super) const RECEIVES: u16 = 16;
pub(super) const WITHIN: Duration = Duration::from_secs(20);

/// Makes tests run alone, because the counts are the process's.
pub(super) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn options() -> VerbsOptions {
    // A guest under emulation, on a busy machine, is slow.
    VerbsOptions { set_up: WITHIN, ..VerbsOptions::default() }
}

pub(super) fn domain(device: &Device) -> VerbsDomain {
    VerbsDomain::reaching(&device.at(0), options()).unwrap()
}

pub(super) fn is_iwarp(domain: &VerbsDomain) -> bool {
    domain.attributes().transport == Transport::Iwarp
}

pub(super) fn listening(domain: &VerbsDomain, device: &Device) -> (VerbsListener, String) {
    let listener = VerbsListener::bind(domain, &device.at(0)).unwrap();
    let address = format!("verbs:{}", listener.address().unwrap());
    (listener, address)
}

/// Returns the end that connects and the one that was connected to.
pub(super) fn pair(domain: &VerbsDomain, device: &Device) -> [VerbsEndpoint; 2] {
    let (mut listener, address) = listening(domain, device);
    connected(domain, &mut listener, &address)
}

pub(super) fn connected(domain: &VerbsDomain, listener: &mut VerbsListener, address: &str) -> [VerbsEndpoint; 2] {
    std::thread::scope(|scope| {
        let accepting = scope.spawn(|| listener.accept(RECEIVES, Some(WITHIN)).unwrap());
        [verbs::connect(domain, address, RECEIVES).unwrap(), accepting.join().unwrap()]
    })
}

pub(super) fn noise(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| ((at as u32).wrapping_mul(0x9e37_79b9) >> 24) as u8).collect()
}

/// Returns the next completion at this end, while the other is driven as well.
pub(super) fn next(end: &mut VerbsEndpoint, other: &mut VerbsEndpoint) -> (Completion, Vec<u8>) {
    let mut message = Box::new([0; MESSAGE]);
    let until = Instant::now() + WITHIN;
    loop {
        if let Some(completion) = end.poll(&mut message) {
            let length = if let Completion::Message { length } = completion { length } else { 0 };
            return (completion, message[..length].to_vec());
        }
        assert!(Instant::now() < until, "nothing came: {end:?}, {other:?}");
        // Probes are the other's as well.
        let soon = other.now() + 1_000_000;
        if other.why().is_none() {
            other.wait(Some(soon));
        }
        end.wait(Some(soon + 1_000_000));
    }
}

pub(super) fn done(end: &mut VerbsEndpoint, other: &mut VerbsEndpoint, id: u64) {
    assert_eq!(next(end, other).0, Completion::Done { id, succeeded: true }, "{:?}", end.why());
}

/// Everything to the end of the connection.
pub(super) fn rest(end: &mut VerbsEndpoint) -> Vec<Completion> {
    let mut message = Box::new([0; MESSAGE]);
    let (mut all, until) = (Vec::new(), Instant::now() + WITHIN);
    while all.last() != Some(&Completion::Flushed) {
        match end.poll(&mut message) {
            Some(completion) => all.push(completion),
            None => {
                assert!(Instant::now() < until, "it has no end: {end:?}, {all:?}");
                end.wait(Some(end.now() + 50_000_000));
            }
        }
    }
    all
}

/// Returns the error, which is printed for a reader.
pub(super) fn refused<T>(result: Result<T, VerbsError>) -> VerbsError {
    let error = result.map(drop).unwrap_err();
    println!("said: {error}");
    error
}

/// Sends a message, when the end may speak: over iWARP the one that accepted listens first.
pub(super) fn say(end: &mut VerbsEndpoint, message: &[u8]) {
    for _ in 0..100 {
        match end.send(message) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => end.wait(Some(end.now() + 20_000_000)),
            sent => return sent.unwrap(),
        }
    }
    panic!("there is no room for a message");
}
