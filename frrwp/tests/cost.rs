//! What the machine itself costs: nothing is allocated once it has seen as many transfers as are open together, and a transfer's
//! state is small.

use allocation_counter::measure;
use frrwp::handshake::{Action, Handshake, Limits, Side};
use frrwp::wire::{MESSAGE, Segment};

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
                    Action::Asked { tag, read: true, .. } => {
                        sides[side].crw(0, tag, LENGTH).unwrap();
                        sides[side].ready(0, tag, 0, LENGTH).unwrap();
                    }
                    Action::Asked { tag, read: false, .. } => {
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
