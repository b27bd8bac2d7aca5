//! The handshake alone: what a transfer costs on both sides together, without a network and without memory.
//!
//! `cargo bench -p benches --bench frrwp`. One thread plays both sides: every message is encoded, handed over and decoded,
//! every action taken, every write reported as done at once. So the figure is what the rules add to a transfer. Beside the
//! times stand two counts that no load can bend: allocations a transfer in steady state, and bytes of state while one is open.

use allocation_counter::measure;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use frrwp::handshake::{Action, Handshake, Limits, Side, Tag};
use frrwp::wire::{Body, MESSAGE, Message, Offer, Placed, Segment, Segments};
use std::hint::black_box;

const LENGTH: u64 = 64 << 10;
/// Rounds in which allocations are counted.
const ROUNDS: u64 = 100;
const ALL: Segment = Segment { address: 0x10_0000, length: LENGTH, key: 7 };

struct Pair {
    sides: [Handshake; 2],
    message: Box<[u8; MESSAGE]>,
}

impl Pair {
    fn new(immediate: bool) -> Self {
        let limits = Limits { immediate, ..Limits::default() };
        let sides = [Side::Connecting, Side::Accepting].map(|side| Handshake::new(side, limits));
        Self { sides, message: Box::new([0; MESSAGE]) }
    }

    fn open(&mut self, read: bool) -> Tag {
        let side = &mut self.sides[0];
        let tag = if read { side.read(0, LENGTH, b"") } else { side.write(0, LENGTH, b"") };
        let tag = tag.expect("there is room");
        let told = if read { side.offer(0, tag, 0, &[ALL], false) } else { side.ready(0, tag, 0, LENGTH) };
        told.expect("it is open");
        tag
    }

    fn settle(&mut self) {
        while (0..2).any(|side| self.act(side) | self.speak(side)) {}
    }

    fn act(&mut self, at: usize) -> bool {
        let mut acted = false;
        while let Some(action) = self.sides[at].next_action() {
            acted = true;
            let side = &mut self.sides[at];
            let told = match action {
                Action::Requested { tag, read: true, .. } => {
                    side.crw(0, tag, LENGTH).and_then(|()| side.ready(0, tag, 0, LENGTH))
                }
                Action::Requested { tag, read: false, .. } => {
                    side.accept(0, tag, LENGTH).and_then(|()| side.offer(0, tag, 0, &[ALL], false))
                }
                Action::Write { tag, immediate, .. } => {
                    side.written(tag, true);
                    if let Some(immediate) = immediate {
                        self.sides[1 - at].received_immediate(0, immediate);
                    }
                    Ok(())
                }
                other => {
                    black_box(other);
                    Ok(())
                }
            };
            told.expect("it is open");
        }
        acted
    }

    fn speak(&mut self, at: usize) -> bool {
        let mut spoke = false;
        while let Some(length) = self.sides[at].take_message(0, &mut self.message) {
            spoke = true;
            self.sides[1 - at].received(0, &self.message[..length]);
        }
        spoke
    }
}

fn transfers(c: &mut Criterion) {
    let mut group = c.benchmark_group("transfer, both sides");
    for open in [1, 16, 1_000] {
        group.throughput(Throughput::Elements(open));
        for (name, read, immediate) in
            [("write", false, false), ("write, immediate", false, true), ("read", true, false)]
        {
            let mut pair = Pair::new(immediate);
            group.bench_function(BenchmarkId::new(name, format!("{open} at a time")), |b| {
                b.iter(|| {
                    (0..open).for_each(|_| _ = black_box(pair.open(read)));
                    pair.settle();
                });
            });
            // It has seen as many at a time by now.
            let allocated = measure(|| {
                for _ in 0..ROUNDS {
                    (0..open).for_each(|_| _ = pair.open(read));
                    pair.settle();
                }
            });
            println!("  allocations a transfer: {}", allocated.count_total as f64 / (ROUNDS * open) as f64);
            assert!(pair.sides.iter().all(|side| side.open_transfers() == 0 && side.counters().failed == 0));
        }
    }
    group.finish();
    let mut pair = Pair::new(false);
    (0..1_000).for_each(|_| _ = pair.open(false));
    println!("state of an open transfer: {} bytes", pair.sides[0].memory() / 1_000);
}

fn messages(c: &mut Criterion) {
    let mut group = c.benchmark_group("message");
    for segments in [0, 1, 256] {
        let placed = vec![Placed { offset: 0, segment: ALL }; segments];
        let offer = Offer { offset: 0, segments: Segments::Plain(&placed), more: false };
        let message = Message { credits: 1, tag: 7, body: Body::Stcrw(offer) };
        let mut bytes = Box::new([0; MESSAGE]);
        group.bench_function(BenchmarkId::new("encode STCRW", segments), |b| {
            b.iter(|| black_box(black_box(&message).encode(&mut bytes)));
        });
        let length = message.encode(&mut bytes);
        group.bench_function(BenchmarkId::new("decode STCRW", segments), |b| {
            b.iter(|| black_box(Message::decode(black_box(&bytes[..length])).is_ok()));
        });
    }
    group.finish();
}

criterion_group! {
    name = frrwp;
    config = Criterion::default()
        .warm_up_time(std::time::Duration::from_millis(300))
        .measurement_time(std::time::Duration::from_secs(1));
    targets = transfers, messages
}
criterion_main!(frrwp);
