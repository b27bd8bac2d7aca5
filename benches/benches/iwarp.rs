//! Frames of iWARP: what it costs to make one and to take one apart, with the CRC and without; and reads by a bound key.
//!
//! `cargo bench -p benches --bench iwarp`. A frame is made around bytes that stay where they are, and taken apart where it lies,
//! as the provider does. Sockets and copies are not in it (`side-by-side fabric` has those). A read goes over a socket of
//! this machine: both sides, one or 32 at a time.
#![expect(unsafe_code, reason = "reads into memory by address")]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use frrwp::engine::{Engine, Event};
use frrwp::fabric::iwarp::ddp::{Header, Operation, Place};
use frrwp::fabric::iwarp::mpa::{Fpdu, frame};
use frrwp::fabric::iwarp::{self as fabric, Binding, IwarpDomain, IwarpListener, IwarpOptions};
use frrwp::handshake::{Limits, Side};
use mrrc::Cache;
use mrrc::invalidation::Explicit;
use std::hint::black_box;
use std::sync::Arc;

/// Bytes of payload: a read request's answer of 64 bytes, a full Ethernet frame, a jumbo frame, the longest there is.
const PAYLOADS: [usize; 4] = [64, 1408, 8192, 65_000];

fn frames(c: &mut Criterion) {
    let mut group = c.benchmark_group("iwarp frame");
    let header = Header { operation: Operation::Write, last: true, place: Place::Tagged { tag: 7, offset: 1 << 20 } };
    for length in PAYLOADS {
        group.throughput(Throughput::Bytes(length as u64));
        let payload = vec![7_u8; length];
        for (name, checksums) in [("", false), (" with CRC", true)] {
            group.bench_function(BenchmarkId::new(format!("make{name}"), length), |b| {
                b.iter(|| {
                    let (bytes, used) = black_box(&header).encode();
                    black_box(frame(&[&bytes[..used], black_box(&payload)], checksums))
                });
            });
            let (bytes, used) = header.encode();
            let (start, (end, tail)) = frame(&[&bytes[..used], &payload], checksums);
            let whole = [&start[..], &bytes[..used], &payload, &end[..tail]].concat();
            group.bench_function(BenchmarkId::new(format!("take apart{name}"), length), |b| {
                b.iter(|| {
                    let fpdu = Fpdu::split(black_box(&whole)).expect("it is all there");
                    if checksums {
                        fpdu.check().expect("it is whole");
                    }
                    let (header, rest) = Header::decode(fpdu.ulpdu).expect("it is a segment");
                    assert_eq!(black_box(rest).len(), length);
                    black_box(header)
                });
            });
        }
    }
    group.finish();
}

/// Bytes of a read's memory, and reads at a time.
const READS: [(usize, usize); 4] = [(1 << 10, 1), (1 << 10, 32), (10 << 10, 1), (10 << 10, 32)];

fn reads(c: &mut Criterion) {
    let options = IwarpOptions { checksums: false, ..IwarpOptions::default() };
    let [near, far] = [(); 2].map(|()| IwarpDomain::new(options).expect("a domain"));
    let mut listener = IwarpListener::bind(&far, "iwarp:127.0.0.1:0").expect("a listener");
    let address = format!("iwarp:{}", listener.address().expect("an address"));
    let (connected, served) = std::thread::scope(|scope| {
        let connecting = scope.spawn(|| fabric::connect(&near, &address, 16).expect("it listens"));
        let served = listener.accept(16, None).expect("it connects");
        (connecting.join().expect("no panic"), served)
    });
    let cache = Cache::builder(near).monitor(Explicit).build().expect("a cache");
    let mut engine = Engine::new(&cache, connected, Side::Connecting, Limits::default());
    let mut group = c.benchmark_group("iwarp read by a bound key");
    for (length, at_once) in READS {
        let bytes = vec![7_u8; length];
        // SAFETY: `Binding::new` requires bytes that live while they are bound: they outlive the handle.
        let binding = Arc::new(unsafe { Binding::new(bytes.as_ptr()) });
        let handle = served.own_domain().handle(&binding, length).expect("a key");
        let mut sinks = vec![0_u8; length * at_once];
        group.throughput(Throughput::Elements(at_once as u64));
        group.bench_function(BenchmarkId::new(format!("{at_once} at a time"), length), |b| {
            b.iter(|| {
                engine.cork(true);
                for sink in sinks.chunks_mut(length) {
                    // SAFETY: `read_remote` requires that the sink is left alone until the read has ended, as it is below.
                    let posted = unsafe { engine.read_remote(sink.as_mut_ptr(), length, handle.segment()) };
                    posted.expect("there is room");
                }
                engine.cork(false);
                for _ in 0..at_once {
                    let event = engine.run();
                    assert!(matches!(event, Some(Event::ReadCompleted { succeeded: true, .. })), "{event:?}");
                }
            });
        });
    }
    group.finish();
}

criterion_group! {
    name = iwarp;
    config = Criterion::default()
        .sample_size(30)
        .warm_up_time(std::time::Duration::from_millis(300))
        .measurement_time(std::time::Duration::from_secs(1));
    targets = frames, reads
}
criterion_main!(iwarp);
