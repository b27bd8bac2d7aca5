//! Ends of connections without a culprit: a side goes, many come and go, a process forks.

use super::ends::{RECEIVES, alone, connected, domain, listening, next, noise, pair, rest, say};
use super::held::Held;
use super::memory::Memory;
use crate::device::Device;
use frrwp::fabric::{Completion, Endpoint};
use frrwp::wire::MESSAGE;

#[test]
fn messages_before_disconnect_arrive_first() {
    let (Some(device), _alone) = (Device::get(), alone()) else { return };
    let domain = domain(&device);
    for connecting_leaves in [true, false] {
        let [one, other] = pair(&domain, &device);
        let (mut leaves, mut stays) = if connecting_leaves { (one, other) } else { (other, one) };
        let sent: Vec<_> = (0..RECEIVES as usize).map(|number| noise(100 * number + 1)).collect();
        sent.iter().for_each(|message| say(&mut leaves, message));
        drop(leaves);
        let mut message = Box::new([0; MESSAGE]);
        let mut came = Vec::new();
        while stays.why().is_none() || came.len() < sent.len() {
            match stays.poll(&mut message) {
                Some(Completion::Message { length }) => came.push(message[..length].to_vec()),
                Some(Completion::Lost) => break,
                Some(other) => panic!("{other:?}"),
                None => stays.wait(Some(stays.now() + 50_000_000)),
            }
        }
        assert!(came == sent, "{} of {} came: {:?}", came.len(), sent.len(), stays.why());
        assert_eq!(rest(&mut stays).last(), Some(&Completion::Flushed));
        assert!(stays.send(b"too late").is_err());
    }
}

#[test]
fn connections_that_come_and_go_leave_nothing_behind() {
    let (Some(device), _alone) = (Device::get(), alone()) else { return };
    let domain = domain(&device);
    let (mut listener, address) = listening(&domain, &device);
    drop(connected(&domain, &mut listener, &address));
    let held = Held::now(Some(&domain));
    let mut probes = 0;
    for number in 0..20 {
        let [mut one, mut other] = connected(&domain, &mut listener, &address);
        one.send(b"here").unwrap();
        assert_eq!(next(&mut other, &mut one).1, b"here");
        other.send(b"there").unwrap();
        assert_eq!(next(&mut one, &mut other).1, b"there");
        probes += one.probes_sent() + other.probes_sent();
        // Either may be the first to go.
        if number % 2 == 0 { drop((one, other)) } else { drop((other, one)) }
    }
    println!("{probes} probes");
    assert_eq!(domain.registrations(), 0);
    held.comes_back(Some(&domain));
}

#[test]
fn child_drop_leaves_parent_endpoints() {
    let (Some(device), _alone) = (Device::get(), alone()) else { return };
    let domain = domain(&device);
    let (listener, _) = listening(&domain, &device);
    let mut ends = pair(&domain, &device);
    let memory = Memory::of(&domain, &noise(1000));
    // SAFETY: the child drops, allocates little, and ends without running anything else of the test's.
    match unsafe { libc::fork() } {
        0 => {
            // As an engine that is dropped: it waits for the end.
            ends[0].disconnect();
            let told = [(); 2].map(|()| ends[0].poll(&mut [0; MESSAGE]));
            drop((ends, listener, domain));
            // SAFETY: `_exit` ends this child without destructors; no other thread of it exists.
            unsafe { libc::_exit(i32::from(told != [Some(Completion::Lost), Some(Completion::Flushed)])) };
        }
        child => {
            let mut status = 0;
            // SAFETY: `waitpid` may write to `status`, which is local.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0);
        }
    }
    let [mut one, mut other] = ends;
    one.send(b"still here").unwrap();
    assert_eq!(next(&mut other, &mut one).1, b"still here");
    drop((listener, memory));
}
