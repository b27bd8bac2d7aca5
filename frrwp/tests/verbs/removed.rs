//! The device goes away in the middle.

use super::ends::{RECEIVES, WITHIN, alone, connected, domain, listening, next, options, pair, refused, rest};
use super::held::Held;
use super::memory::Memory;
use crate::device::Device;
use frrwp::fabric::verbs::{self, VerbsDomain, VerbsEnd, VerbsError, VerbsListener};
use frrwp::fabric::{Completion, Endpoint};
use frrwp::wire::MESSAGE;
use std::io::ErrorKind;
use std::process::Command;
use std::time::{Duration, Instant};

/// `FRRWP_VERBS_DELETE` and `FRRWP_VERBS_ADD` are the commands that take the device away and bring it back.
#[test]
#[ignore = "for the lab: the device goes away, and comes back"]
fn lost_device_is_reported_and_replaced() {
    let (Ok(delete), Ok(add)) = (std::env::var("FRRWP_VERBS_DELETE"), std::env::var("FRRWP_VERBS_ADD")) else { return };
    let (Some(device), _alone) = (Device::get(), alone()) else { return };
    let begin = Held::now(None);
    for round in 0..2 {
        let domain = domain(&device);
        let (mut listener, address) = listening(&domain, &device);
        // A listener at any address hears of no device from the kernel.
        let mut everywhere = VerbsListener::bind(&domain, "verbs:0.0.0.0:0").unwrap();
        let waiting = std::thread::spawn(move || refused(everywhere.accept(RECEIVES, None)).to_string());
        let [mut one, mut other] = connected(&domain, &mut listener, &address);
        let (mut source, mut sink) = (Memory::new(&domain, 1 << 20), Memory::new(&domain, 1 << 20));
        let mut message = Box::new([0; MESSAGE]);
        let (mut ended, mut going, mut since, mut id) = (0, None, Instant::now(), 0);
        let of_one = loop {
            let to = sink.remote(0, 1 << 20);
            // SAFETY: the memory is this test's, and lives longer than the connection; no reference leads to its bytes.
            match unsafe { one.write(id, &[source.local(0, 1 << 20)], to, None) } {
                Ok(()) => id += 1,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => break rest(&mut one),
            }
            match one.poll(&mut message) {
                Some(Completion::Done { succeeded: true, .. }) => ended += 1,
                Some(Completion::Done { succeeded: false, .. } | Completion::Lost) => break rest(&mut one),
                Some(other) => panic!("{other:?}"),
                None => one.wait(Some(one.now() + 10_000_000)),
            }
            assert!(since.elapsed() < 2 * WITHIN, "it is not noticed");
            if ended == 8 && going.is_none() {
                since = Instant::now();
                going = Some(Command::new("sh").args(["-c", &delete]).spawn().unwrap());
            }
        };
        let noticed = since.elapsed();
        // Both ends are of the device. Over iWARP this one may be told that the other is gone before it is told why.
        let may_hear_of_the_peer = !one.capabilities().immediate;
        assert!(
            match one.why() {
                Some(VerbsEnd::DeviceGone { .. }) => true,
                Some(VerbsEnd::Broken { .. } | VerbsEnd::Closed) => may_hear_of_the_peer,
                _ => false,
            },
            "{:?}",
            one.why()
        );
        println!(
            "round {round}: {ended} ended, {} things to the end; after {noticed:?}: {}",
            of_one.len(),
            one.why().unwrap()
        );
        rest(&mut other);
        let until = Instant::now() + WITHIN;
        while !domain.is_gone() {
            assert!(Instant::now() < until, "the domain does not hear of it");
            std::thread::sleep(Duration::from_millis(1));
        }
        let told = waiting.join().unwrap();
        assert!(told.contains("gone"), "{told}");
        let gone = refused(listener.accept(RECEIVES, Some(Duration::from_millis(100))));
        assert!(gone.to_string().contains("gone"), "{gone:?}");
        assert!(verbs::connect(&domain, &address, RECEIVES).is_err());
        assert!(verbs::connect_again(&one).is_err());
        drop((one, other, listener, source, sink));
        assert_eq!(domain.registrations(), 0);
        drop(domain);
        // The driver waits for all that have the device open: this process.
        let until = Instant::now() + WITHIN;
        let mut going = going.unwrap();
        let status = loop {
            match going.try_wait().unwrap() {
                Some(status) => break status,
                None => assert!(Instant::now() < until, "the device is still held"),
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        assert!(status.success());
        assert!(matches!(refused(VerbsDomain::open(None, options())), VerbsError::Device(_)));
        assert!(Command::new("sh").args(["-c", &add]).status().unwrap().success());
    }
    let domain = domain(&device);
    let [mut one, mut other] = pair(&domain, &device);
    one.send(b"back").unwrap();
    assert_eq!(next(&mut other, &mut one).1, b"back");
    drop((one, other, domain));
    let pinned = Held::now(None).pinned;
    assert_eq!(pinned, begin.pinned);
}
