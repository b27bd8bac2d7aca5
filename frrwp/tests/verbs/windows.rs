//! Memory windows: by what keys, for how long, and what the device makes of them.

use super::ends::{alone, done, is_iwarp, next, noise, options, pair};
use super::held::Held;
use super::memory::Memory;
use crate::device::Device;
use frrwp::fabric::Endpoint;
use frrwp::fabric::verbs::{self, VerbsDomain, VerbsOptions, WindowTrial};
use frrwp::wire::MESSAGE;
use std::collections::HashSet;
use std::io::ErrorKind;
use std::sync::Arc;

#[test]
fn windows_are_reused_and_release_their_memory() {
    let (Some(device), _alone) = (Device::get(), alone()) else { return };
    let domain = VerbsDomain::reaching(&device.at(0), VerbsOptions { windows: true, ..options() }).unwrap();
    if !domain.has_windows() {
        assert!(is_iwarp(&domain), "rxe has windows");
        assert_eq!(verbs::try_windows(&domain, &device.at(0)).unwrap(), WindowTrial::Absent);
        return;
    }
    let before = Held::now(Some(&domain));
    // Linux's rxe does not look at their bounds, and keeps other peers out.
    match verbs::try_windows(&domain, &device.at(0)).unwrap() {
        WindowTrial::Fails { what } => assert_eq!(what, "a peer reads behind the bytes that it was let at"),
        other => assert_eq!(other, WindowTrial::Holds),
    }
    before.comes_back(Some(&domain));
    let [mut one, mut other] = pair(&domain, &device);
    let (mut source, mut sink) = (Memory::of(&domain, &noise(8192)), Memory::new(&domain, 4096));
    let start = source.bytes().as_ptr();
    let (keeps, windows) = (Arc::new(()), one.windows().unwrap().clone());
    let (mut keys, mut kept) = (HashSet::new(), Vec::new());
    for round in 0..200_usize {
        if round == 100 {
            // More often than all windows together have keys.
            for _ in 0..600 {
                let open = |_| {
                    let registration = source.registration();
                    // SAFETY: the memory is this test's, and lives longer than the connection.
                    unsafe { windows.open(registration, start, 8192, keeps.clone()) }.unwrap()
                };
                let (had, open) = (Arc::strong_count(&keeps), (0..16).map(open).collect::<Vec<_>>());
                drop(open);
                while Arc::strong_count(&keeps) > had {
                    assert_eq!(one.poll(&mut [0; MESSAGE]), None);
                }
            }
        }
        let address = source.bytes()[round..].as_ptr();
        let registration = source.registration();
        // SAFETY: the memory outlives the windows, and `keeps` keeps it registered.
        let window = unsafe { windows.open(registration, address, 100, keeps.clone()) }.unwrap();
        let told = window.segment();
        if round < 100 {
            assert!(keys.insert(told.key), "none comes again so soon");
        }
        // The end of another makes room for it.
        assert_eq!(one.poll(&mut [0; MESSAGE]), None);
        one.send(b"open").unwrap();
        assert_eq!(next(&mut other, &mut one).1, b"open");
        other.receive(1).unwrap();
        // SAFETY: the memory outlives the connection and has no other user.
        unsafe { other.read(1, &[sink.local(0, 100)], told) }.unwrap();
        done(&mut other, &mut one, 1);
        assert_eq!(sink.bytes()[..100], noise(8192)[round..round + 100]);
        // Some are there when the connection ends.
        if round % 50 == 49 {
            kept.push(window);
        }
    }
    let registration = source.registration();
    // SAFETY: the window is refused before it opens any memory.
    let outside = unsafe { windows.open(registration, std::ptr::dangling(), 1, keeps.clone()) };
    assert_eq!(outside.unwrap_err().kind(), ErrorKind::InvalidInput);
    assert!(Arc::strong_count(&keeps) > 1);
    drop((one, other));
    assert_eq!(Arc::strong_count(&keeps), 1, "nothing is kept for who has gone");
    let registration = source.registration();
    // SAFETY: the window is refused before it opens any memory.
    let late = unsafe { windows.open(registration, start, 1, keeps.clone()) };
    assert_eq!(late.unwrap_err().kind(), ErrorKind::NotConnected);
    drop((kept, windows, source, sink));
    before.comes_back(Some(&domain));
}
