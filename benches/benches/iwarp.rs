//! Frames of iWARP: what it costs to make one and to take one apart, with the CRC and without.
//!
//! `cargo bench -p benches --bench iwarp`. A frame is made around bytes that stay where they are, and taken apart where it lies,
//! as the provider does. Sockets and copies are not in it (`side-by-side fabric` has those).

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use frrwp::fabric::iwarp::ddp::{Header, Operation, Place};
use frrwp::fabric::iwarp::mpa::{Fpdu, frame};
use std::hint::black_box;

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

criterion_group! {
    name = iwarp;
    config = Criterion::default()
        .sample_size(30)
        .warm_up_time(std::time::Duration::from_millis(300))
        .measurement_time(std::time::Duration::from_secs(1));
    targets = frames
}
criterion_main!(iwarp);
