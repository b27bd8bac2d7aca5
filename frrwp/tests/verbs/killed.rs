//! Peers that take nothing, and peers that are killed.

use super::ends::{RECEIVES, WITHIN, alone, connected, domain, is_iwarp, listening, next, noise, options, pair, rest};
use super::held::Held;
use super::memory::Memory;
use crate::device::Device;
use frrwp::fabric::verbs::{self, VerbsDomain, VerbsEnd, VerbsOptions};
use frrwp::fabric::{Completion, Endpoint};
use frrwp::wire::{MESSAGE, Segment};
use std::io::ErrorKind;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

#[test]
fn a_peer_that_takes_nothing_is_given_up_in_time() {
    let (Some(device), _alone) = (Device::get(), alone()) else { return };
    let stall = Duration::from_millis(1500);
    let domain = VerbsDomain::reaching(&device.at(0), VerbsOptions { stall, ..options() }).unwrap();
    let [mut one, other] = pair(&domain, &device);
    // More than the peer has receives for; a device may forgive what it never told of.
    let begun = Instant::now();
    (0..2 * RECEIVES).for_each(|_| drop(one.send(&noise(1000))));
    if is_iwarp(&domain) {
        // iWARP ends the connection at once, or takes it all in.
        drop((one, other));
        return;
    }
    rest(&mut one);
    let why = one.why().unwrap();
    assert!(
        matches!(why, VerbsEnd::Stalled { .. } | VerbsEnd::NotReceiving { .. } | VerbsEnd::Silent { .. }),
        "{why:?}"
    );
    println!("said after {:?}: {why}", begun.elapsed());
    drop(other);
}

/// The peer in a process of its own: writes that it is asked for, for as long as it lives.
#[test]
#[ignore = "is the other process of a test"]
fn the_peer() {
    let Ok(address) = std::env::var("FRRWP_VERBS_PEER") else { return };
    let domain = VerbsDomain::reaching(&address, options()).unwrap();
    let mut memory = Memory::of(&domain, &noise(1 << 20));
    let mut end = verbs::connect(&domain, &address, RECEIVES).unwrap();
    let segment = memory.remote(0, 1 << 20);
    end.send(&[segment.address.to_le_bytes(), u64::from(segment.key).to_le_bytes()].concat()).unwrap();
    loop {
        rest(&mut end);
    }
}

struct Peer(Child);

impl Peer {
    fn start(address: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "killed::the_peer", "--ignored", "--nocapture"]).env("FRRWP_VERBS_PEER", address);
        Self(command.stdout(std::process::Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn killed_verbs_peer_is_noticed_and_replaced() {
    let (Some(device), _alone) = (Device::get(), alone()) else { return };
    let domain = domain(&device);
    let (mut listener, address) = listening(&domain, &device);
    drop(connected(&domain, &mut listener, &address));
    let held = Held::now(Some(&domain));
    for reads in [false, true] {
        let peer = Peer::start(&address);
        let mut end = listener.accept(RECEIVES, Some(WITHIN)).unwrap();
        let mut message = Box::new([0; MESSAGE]);
        while end.poll(&mut message) != Some(Completion::Message { length: 16 }) {
            end.wait(None);
        }
        let word = |at: usize| u64::from_le_bytes(message[at..at + 8].try_into().unwrap());
        let to = Segment { address: word(0), length: 1 << 20, key: word(8) as u32 };
        let mut memory = Memory::new(&domain, 1 << 20);
        let (mut id, mut ended, mut peer) = (0, 0, Some(peer));
        let mut killed = None;
        let all = loop {
            let local = [memory.local(0, 1 << 20)];
            // SAFETY: the memory is this test's, and lives longer than the connection; no reference leads to what comes into it.
            let posted = unsafe { if reads { end.read(id, &local, to) } else { end.write(id, &local, to, None) } };
            match posted {
                Ok(()) if id < 1_000_000 => id += 1,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                _ => break rest(&mut end),
            }
            match end.poll(&mut message) {
                Some(Completion::Done { succeeded: true, .. }) => ended += 1,
                Some(Completion::Done { succeeded: false, .. } | Completion::Lost) => break rest(&mut end),
                Some(other) => panic!("{other:?}"),
                None => end.wait(Some(end.now() + 10_000_000)),
            }
            if ended == 8 && peer.is_some() {
                peer = None;
                killed = Some(Instant::now());
            }
        };
        let (took, why) = (killed.unwrap().elapsed(), end.why().unwrap());
        println!("{id} posted, {ended} ended, {} things to the end; after {took:?}: {why}", all.len());
        assert!(
            matches!(
                why,
                VerbsEnd::Closed | VerbsEnd::Silent { .. } | VerbsEnd::Broken { .. } | VerbsEnd::KeyRefused { .. }
            ),
            "{why:?}"
        );
        assert!(took < WITHIN, "{took:?}");
        drop((end, memory));
        assert_eq!(domain.registrations(), 0);
    }
    held.comes_back(Some(&domain));
    // And another connection goes on.
    let [mut one, mut other] = connected(&domain, &mut listener, &address);
    one.send(b"another").unwrap();
    assert_eq!(next(&mut other, &mut one).1, b"another");
}
