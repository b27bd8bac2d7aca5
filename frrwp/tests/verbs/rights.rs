//! A key that opens nothing any more.

use super::ends::{RECEIVES, WITHIN, alone, connected, domain, done, is_iwarp, listening, next, noise, rest};
use super::held::Held;
use super::memory::Memory;
use crate::device::Device;
use frrwp::fabric::verbs::{self, VerbsEnd, VerbsError};
use frrwp::fabric::{Completion, Endpoint};
use frrwp::wire::Segment;

#[test]
fn dead_key_ends_only_its_connection() {
    let (Some(device), _alone) = (Device::get(), alone()) else { return };
    let domain = domain(&device);
    let (mut listener, address) = listening(&domain, &device);
    let mut ends = connected(&domain, &mut listener, &address);
    let mut source = Memory::of(&domain, &noise(100_000));
    let [one, other] = &mut ends;
    one.send(b"first").unwrap();
    assert_eq!(next(other, one).1, b"first");
    let held = Held::now(Some(&domain));
    for reads in [false, true, false, true] {
        let [one, other] = &mut ends;
        let mut sink = Memory::new(&domain, 100_000);
        let (good, mut dead) = (sink.remote(0, 100_000), Memory::new(&domain, 100_000));
        let gone = dead.remote(50_000, 10_000);
        dead.deregister();
        for id in 0..6 {
            let to = if id == 3 { gone } else { good };
            let local = [source.local(0, to.length as usize)];
            // SAFETY: the memory is this test's, and lives longer than the connection. No reference leads to memory
            // that is read into.
            let posted = unsafe { if reads { one.read(id, &local, to) } else { one.write(id, &local, to, None) } };
            // It may be over before all are posted.
            assert!(posted.is_ok() || (id > 3 && one.why().is_some()), "{id}: {posted:?}");
        }
        let ended = rest(one);
        let failed = ended.iter().any(|end| matches!(end, Completion::Done { succeeded: false, .. }));
        let why = one.why().unwrap().clone();
        if is_iwarp(&domain) {
            assert!(matches!(why, VerbsEnd::Broken { .. } | VerbsEnd::Closed), "{why:?}");
        } else {
            let Segment { address, length, key } = gone;
            let operation = if reads { "read" } else { "write" };
            assert_eq!(why, VerbsEnd::KeyRefused { operation, address, length, key });
            assert_eq!(ended.iter().filter(|end| matches!(end, Completion::Done { succeeded: true, .. })).count(), 3);
            assert!(failed);
        }
        assert_eq!(ended.iter().filter(|&&end| end == Completion::Lost).count(), 1, "{ended:?}");
        println!("said: {why}");
        let of_other = rest(other);
        println!("said at the other end: {}, {} things", other.why().unwrap(), of_other.len());
        // The connection is made again, and works.
        let again = std::thread::scope(|scope| {
            let accepting = scope.spawn(|| listener.accept(RECEIVES, Some(WITHIN)).unwrap());
            [verbs::connect_again(one).unwrap(), accepting.join().unwrap()]
        });
        assert!(matches!(verbs::connect_again(other), Err(VerbsError::NotOurs { .. })));
        ends = again;
        let [one, other] = &mut ends;
        source.bytes().copy_from_slice(&noise(100_000));
        // SAFETY: the memory outlives the connection and has no other user.
        unsafe { one.write(9, &[source.local(0, 100_000)], good, None) }.unwrap();
        one.send(b"again").unwrap();
        done(one, other, 9);
        assert_eq!(next(other, one).1, b"again");
        assert!(sink.bytes() == noise(100_000));
    }
    held.comes_back(Some(&domain));
}
