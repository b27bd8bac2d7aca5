//! Memory that was taken back is not written any more.

use super::super::endpoint::ShmEndpoint;
use super::super::{Sharing, ShmDomain, ShmListener, ShmOptions, connect};
use super::{Registration, WITHIN, fresh};
use crate::fabric::traits::{Completion, Domain, Endpoint, Local};
use crate::handshake::RECEIVES;
use crate::wire::{MESSAGE, Segment};
use mrrc::Access;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const BYTES: usize = 256 << 10;
const RIGHTS: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE);

fn pair(domain: &ShmDomain, other: &ShmDomain) -> [ShmEndpoint; 2] {
    let listener = ShmListener::bind(domain, &fresh()).expect("a listener");
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| connect(other, listener.address(), RECEIVES, WITHIN));
        let accepted = listener.accept(RECEIVES, WITHIN).expect("accepted");
        [accepted, connecting.join().expect("no panic").expect("connected")]
    })
}

fn patient() -> ShmDomain {
    ShmDomain::new(ShmOptions { stall: WITHIN, ..ShmOptions::default() }).expect("a domain")
}

#[test]
fn nothing_is_written_after_it_was_taken_back() {
    let [owner, other] = [patient(), patient()];
    let arena = owner.arena(BYTES, Sharing::Writable).expect("an arena");
    let offered: Mutex<Option<Segment>> = Mutex::new(None);
    let done = AtomicBool::new(false);
    let [written, failed] = [AtomicU64::new(0), AtomicU64::new(0)];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let memory = vec![0x11_u8; BYTES];
            let near = Registration::new(&other, memory.as_ptr(), BYTES, Access::LOCAL_READ).expect("registered");
            let local = [Local { address: memory.as_ptr().cast_mut(), length: BYTES, registration: near.key() }];
            let mut message = Box::new([0; MESSAGE]);
            while !done.load(Relaxed) {
                let [accepted, mut connected] = pair(&owner, &other);
                loop {
                    let segment = *offered.lock().expect("not poisoned");
                    let Some(segment) = segment else {
                        if done.load(Relaxed) {
                            break;
                        }
                        std::thread::yield_now();
                        continue;
                    };
                    // SAFETY: registered, only ever read, and what is posted has ended when the call returns.
                    unsafe { connected.write(1, &local, segment, None) }.expect("posted");
                    if connected.poll(&mut message) != Some(Completion::Done { id: 1, succeeded: true }) {
                        failed.fetch_add(1, Relaxed);
                        break;
                    }
                    written.fetch_add(1, Relaxed);
                }
                drop(accepted);
            }
        });
        let until = Instant::now() + Duration::from_secs(1);
        let mut bytes = vec![0; BYTES];
        let mut rounds = 0_u32;
        while Instant::now() < until || failed.load(Relaxed) < 5 || written.load(Relaxed) < 5 {
            rounds += 1;
            let mut registered = Registration::new(&owner, arena.as_ptr(), BYTES, RIGHTS).expect("registered");
            let segment = owner.remote(registered.key(), arena.as_ptr(), BYTES);
            *offered.lock().expect("not poisoned") = Some(segment);
            (0..rounds % 50).for_each(|_| std::thread::yield_now());
            *offered.lock().expect("not poisoned") = None;
            registered.end().expect("it is left soon");
            arena.write_at(0, &[0xee; BYTES]).expect("inside");
            (0..rounds % 3).for_each(|_| std::thread::yield_now());
            arena.read_at(0, &mut bytes).expect("inside");
            if let Some(at) = bytes.iter().position(|&byte| byte != 0xee) {
                done.store(true, Relaxed);
                panic!("byte {at} was written after it was taken back, in round {rounds}");
            }
        }
        done.store(true, Relaxed);
        println!("{rounds} rounds, {written:?} writes, {failed:?} refused");
    });
}

#[test]
fn closed_connection_writes_nothing() {
    let [owner, other] = [patient(), patient()];
    let arena = owner.arena(4096, Sharing::Writable).expect("an arena");
    let registered = Registration::new(&owner, arena.as_ptr(), 4096, RIGHTS).expect("registered");
    let segment = owner.remote(registered.key(), arena.as_ptr(), 4096);
    let memory = vec![0x11_u8; 4096];
    let near = Registration::new(&other, memory.as_ptr(), 4096, Access::LOCAL_READ).expect("registered");
    let local = [Local { address: memory.as_ptr().cast_mut(), length: 4096, registration: near.key() }];
    let [mut accepted, mut connected] = pair(&owner, &other);
    let mut message = Box::new([0; MESSAGE]);
    // SAFETY: the memory outlives the connection and has no other user.
    unsafe { connected.write(1, &local, segment, None) }.expect("posted");
    assert_eq!(connected.poll(&mut message), Some(Completion::Done { id: 1, succeeded: true }));
    accepted.disconnect();
    assert_eq!(accepted.poll(&mut message), Some(Completion::Lost));
    assert_eq!(accepted.poll(&mut message), Some(Completion::Flushed));
    arena.write_at(0, &[0xee; 4096]).expect("inside");
    // SAFETY: the memory outlives the connection and has no other user.
    unsafe { connected.write(2, &local, segment, None) }.expect("it has not heard yet");
    assert_eq!(connected.poll(&mut message), Some(Completion::Done { id: 2, succeeded: false }));
    let mut bytes = [0; 4096];
    arena.read_at(0, &mut bytes).expect("inside");
    assert!(bytes.iter().all(|&byte| byte == 0xee));
}
