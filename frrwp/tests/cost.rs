//! The cost of the machine itself: nothing is allocated once it has seen as many transfers as are open together, and a
//! transfer's state is small. Nor by what engines do beside transfers, over shared memory.
#![allow(unsafe_code, reason = "memory is lent to engines by address")]

use allocation_counter::measure;
use frrwp::handshake::{Action, Handshake, Limits, Side};
use frrwp::wire::{MESSAGE, Segment};
#[cfg(target_os = "linux")]
use frrwp::{
    engine::{Engine, Event},
    fabric::Domain,
    fabric::shm::{Sharing, ShmDomain, ShmEndpoint, ShmListener, ShmOptions, connect},
    handshake::RECEIVES,
};
#[cfg(target_os = "linux")]
use mrrc::{Access, Cache, invalidation::Explicit};
#[cfg(target_os = "linux")]
use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

const LENGTH: u64 = 64 << 10;

/// Carries out what both sides want, until there is nothing.
fn settle(sides: &mut [Handshake; 2], message: &mut [u8; MESSAGE]) {
    let half = |at: u64| Segment { address: 0x10_0000 + at, length: LENGTH / 2, key: 7 };
    loop {
        let mut quiet = true;
        for side in 0..2 {
            while let Some(action) = sides[side].next_action() {
                quiet = false;
                match action {
                    Action::Requested { tag, read: true, .. } => {
                        sides[side].crw(0, tag, LENGTH).unwrap();
                        sides[side].ready(0, tag, 0, LENGTH).unwrap();
                    }
                    Action::Requested { tag, read: false, .. } => {
                        sides[side].accept(0, tag, LENGTH).unwrap();
                        // In two pieces, as a partial hit.
                        sides[side].offer(0, tag, 0, &[half(0)], true).unwrap();
                        sides[side].offer(0, tag, LENGTH / 2, &[half(LENGTH / 2)], false).unwrap();
                    }
                    Action::Write { tag, immediate, .. } => {
                        if let Some(immediate) = immediate {
                            sides[1 - side].received_immediate(0, immediate);
                        }
                        sides[side].written(tag, true);
                    }
                    _ => {}
                }
            }
            while let Some(length) = sides[side].take_message(0, message) {
                quiet = false;
                sides[1 - side].received(0, &message[..length]);
            }
        }
        if quiet {
            return;
        }
    }
}

/// Writes and reads, eight open at a time.
fn round(sides: &mut [Handshake; 2], message: &mut [u8; MESSAGE]) {
    for _ in 0..4 {
        let write = sides[0].write(0, LENGTH, b"sixteen bytes or").unwrap();
        sides[0].ready(0, write, 0, LENGTH).unwrap();
        let read = sides[0].read(0, LENGTH, b"so, for a key").unwrap();
        let all = Segment { address: 0, length: LENGTH, key: 3 };
        sides[0].offer(0, read, 0, &[all], false).unwrap();
    }
    settle(sides, message);
}

#[test]
fn a_transfer_allocates_nothing_in_steady_state() {
    for immediate in [false, true] {
        let limits = Limits { immediate, ..Limits::default() };
        let mut sides = [Side::Connecting, Side::Accepting].map(|side| Handshake::new(side, limits));
        let mut message = [0; MESSAGE];
        for _ in 0..4 {
            round(&mut sides, &mut message);
        }
        let allocated = measure(|| (0..1_000).for_each(|_| round(&mut sides, &mut message)));
        assert_eq!(allocated.count_total, 0, "immediate {immediate}");
        for side in &sides {
            assert_eq!((side.open_transfers(), side.counters().completed), (0, 8 * 1_004));
        }
    }
}

/// Returns the allocations of so many rounds between two engines over shared memory, after the first.
#[cfg(target_os = "linux")]
fn allocated_over_shm(round: impl Fn(&mut [Engine<'_, ShmEndpoint>; 2], Segment, &mut [u8], &mut Vec<u8>)) -> u64 {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let domains = [0, 1].map(|_| ShmDomain::new(ShmOptions::default()).unwrap());
    let caches = domains.each_ref().map(|domain| Cache::builder(domain.clone()).monitor(Explicit).build().unwrap());
    let name = format!("shm:@frrwp-cost-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let listener = ShmListener::bind(&domains[1], &name.parse().unwrap()).unwrap();
    let within = Duration::from_secs(20);
    let [one, other] = std::thread::scope(|scope| {
        let accepting = scope.spawn(|| listener.accept(RECEIVES, within).unwrap());
        let connected = connect(&domains[0], listener.address(), RECEIVES, within).unwrap();
        [connected, accepting.join().unwrap()]
    });
    let arena = domains[1].arena(1 << 20, Sharing::Readable).unwrap();
    let buffer = arena.buffer(4096).unwrap();
    buffer.write_at(0, &[7; 4096]).unwrap();
    // SAFETY: the buffer lives longer than the lease, and is not written.
    let lease = unsafe { caches[1].acquire(buffer.as_ptr(), 4096, Access::REMOTE_READ) }.unwrap();
    let offered = lease.segments().next().unwrap();
    let from = domains[1].remote(offered.registration(), offered.address(), 1024);
    let mut sink = vec![0; 1024];
    let client = Engine::new(&caches[0], one, Side::Connecting, Limits::default());
    let mut engines = [client, Engine::new(&caches[1], other, Side::Accepting, Limits::default())];
    let mut said = Vec::new();
    (0..100).for_each(|_| round(&mut engines, from, &mut sink, &mut said));
    let allocated = measure(|| (0..1_000).for_each(|_| round(&mut engines, from, &mut sink, &mut said)));
    drop(engines);
    allocated.count_total
}

#[test]
#[cfg(target_os = "linux")]
fn a_read_of_the_peer_s_memory_allocates_nothing() {
    let allocated = allocated_over_shm(|[client, _], from, sink, _| {
        // SAFETY: the sink lives longer than the engine, and has no other user.
        let id = unsafe { client.read_remote(sink.as_mut_ptr(), sink.len(), from) }.unwrap();
        client.progress();
        assert!(matches!(client.next_event(), Some(Event::ReadCompleted { id: told, succeeded: true }) if told == id));
        assert_eq!(sink[0], 7);
    });
    assert_eq!(allocated, 0);
}

#[test]
#[cfg(target_os = "linux")]
fn what_is_said_and_taken_allocates_nothing() {
    let allocated = allocated_over_shm(|engines, _, _, said| {
        for side in 0..2 {
            engines[side].send_message(&[7; 1000]).unwrap();
            engines[1 - side].progress();
            assert!(matches!(engines[1 - side].next_event(), Some(Event::Message)));
            assert!(engines[1 - side].recv_message(said) && said.len() == 1000);
        }
    });
    assert_eq!(allocated, 0);
}

#[test]
fn an_open_transfer_takes_a_few_hundred_bytes() {
    let mut side = Handshake::new(Side::Connecting, Limits { receives: 2_000, ..Limits::default() });
    for _ in 0..1_024 {
        let tag = side.write(0, LENGTH, b"").unwrap();
        side.ready(0, tag, 0, LENGTH).unwrap();
    }
    let each = side.memory() / 1_024;
    println!("{each} bytes an open transfer");
    assert!(each <= 512, "{each} bytes");
}
