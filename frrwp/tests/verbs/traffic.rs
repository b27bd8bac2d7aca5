//! Messages, writes and reads, as long as all goes well.

use super::ends::{alone, domain, done, is_iwarp, next, noise, options, pair};
use super::memory::Memory;
use crate::device::Device;
use frrwp::fabric::verbs::{VerbsDomain, VerbsOptions};
use frrwp::fabric::{Completion, Endpoint, Local};
use frrwp::wire::{MESSAGE, Segment};
use std::io::ErrorKind;

#[test]
fn all_sizes_arrive_in_order() {
    let (Some(device), _alone) = (Device::get(), alone()) else { return };
    let domain = domain(&device);
    let [mut one, mut other] = pair(&domain, &device);
    for bytes in [0, 1, 127, 128, 129, 4096, MESSAGE] {
        let message = noise(bytes);
        one.send(&message).unwrap();
        assert_eq!(next(&mut other, &mut one), (Completion::Message { length: bytes }, message.clone()));
        other.receive(1).unwrap();
        other.send(&message).unwrap();
        assert_eq!(next(&mut one, &mut other), (Completion::Message { length: bytes }, message));
        one.receive(1).unwrap();
    }
    let gather = one.capabilities().gather;
    let bytes = 100_000 * gather;
    let (mut source, mut sink) = (Memory::of(&domain, &noise(bytes)), Memory::new(&domain, bytes));
    // From pieces in another order, and a byte more than the last of them has.
    let to = sink.remote(0, bytes);
    let pieces: Vec<_> = (0..gather).rev().map(|piece| (piece * 100_000, 100_000)).collect();
    let address = source.bytes().as_mut_ptr();
    let registration = source.registration();
    let locals: Vec<_> = pieces
        .iter()
        .map(|&(from, length)| Local { address: address.wrapping_add(from), length, registration })
        .collect();
    // SAFETY: the memory is this test's, and lives longer than the connection.
    unsafe { one.write(7, &locals, to, None) }.unwrap();
    // SAFETY: empty requests move nothing, and the memory outlives the connection.
    unsafe { one.write(8, &[], Segment { length: 0, ..to }, None) }.unwrap();
    one.send(b"written").unwrap();
    done(&mut one, &mut other, 7);
    done(&mut one, &mut other, 8);
    assert_eq!(next(&mut other, &mut one).1, b"written");
    let expected: Vec<u8> =
        pieces.iter().flat_map(|&(from, length)| noise(bytes)[from..from + length].to_vec()).collect();
    assert!(sink.bytes() == expected, "the message came before the bytes, or they are wrong");
    // A read into two pieces.
    let from = source.remote(10, 50_000);
    let address = sink.bytes().as_mut_ptr();
    let registration = sink.registration();
    let locals = [(60_000, 20_000), (0, 30_000)].map(|(at, length)| Local {
        address: address.wrapping_add(at),
        length,
        registration,
    });
    // SAFETY: the memory outlives the connection and has no other user.
    unsafe { other.read(9, &locals, from) }.unwrap();
    done(&mut other, &mut one, 9);
    assert!(sink.bytes()[60_000..80_000] == noise(bytes)[10..20_010]);
    assert!(sink.bytes()[..30_000] == noise(bytes)[20_010..50_010]);
    drop((one, other));
}

#[test]
fn write_carries_immediate_where_supported() {
    let (Some(device), _alone) = (Device::get(), alone()) else { return };
    let domain = domain(&device);
    let [mut one, mut other] = pair(&domain, &device);
    let (mut source, mut sink) = (Memory::of(&domain, &noise(5000)), Memory::new(&domain, 5000));
    let to = sink.remote(0, 5000);
    // SAFETY: the memory is this test's, and lives longer than the connection.
    let posted = unsafe { one.write(1, &[source.local(0, 5000)], to, Some(0xdead_beef)) };
    if is_iwarp(&domain) {
        assert!(!one.capabilities().immediate && posted.is_err());
        return;
    }
    posted.unwrap();
    assert_eq!(next(&mut other, &mut one).0, Completion::Immediate(0xdead_beef));
    assert!(sink.bytes() == noise(5000));
    done(&mut one, &mut other, 1);
}

#[test]
fn a_full_queue_says_so_and_takes_more_later() {
    let (Some(device), _alone) = (Device::get(), alone()) else { return };
    let domain = VerbsDomain::reaching(&device.at(0), VerbsOptions { depth: 8, ..options() }).unwrap();
    let [mut one, mut other] = pair(&domain, &device);
    let (mut source, mut sink) = (Memory::of(&domain, &noise(100_000)), Memory::new(&domain, 100_000));
    let (mut posted, mut full, mut ended) = (0, 0, 0);
    while ended < 100 {
        let to = sink.remote(0, 100_000);
        // SAFETY: the memory is this test's, and lives longer than the connection.
        match unsafe { one.write(posted, &[source.local(0, 100_000)], to, None) } {
            Ok(()) => posted += 1,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
                full += 1;
                done(&mut one, &mut other, ended);
                ended += 1;
            }
        }
    }
    assert!(full > 50, "{full}");
    assert_eq!(other.receive(1000).unwrap_err().kind(), ErrorKind::WouldBlock, "there is no room for so many receives");
    assert!(other.why().is_none());
}
