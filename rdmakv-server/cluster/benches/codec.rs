//! Measures how fast one core encodes and rebuilds, at the sizes of the design: `cargo bench -p rdmakv-cluster`.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rdmakv_cluster::codec::{Code, data_fragments, fragment_length};

fn value(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 + (at >> 8)) as u8).collect()
}

fn encode(c: &mut Criterion) {
    let mut group = c.benchmark_group("codec/encode");
    for (k, m) in [(2, 1), (4, 2), (6, 3)] {
        let code = Code::new(k, m).expect("a small code");
        for length in [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20] {
            let value = value(length);
            let data = data_fragments(&value, k);
            let mut parity = vec![vec![0; fragment_length(length, k)]; m];
            group.throughput(Throughput::Bytes(length as u64));
            group.bench_function(BenchmarkId::new(format!("{k}+{m}"), length), |b| {
                b.iter(|| {
                    let mut parity: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
                    code.encode(black_box(&data), &mut parity).expect("the shape fits");
                });
            });
        }
    }
    group.finish();
}

/// The worst loss: m data fragments, so that all parity is used.
fn rebuild(c: &mut Criterion) {
    let mut group = c.benchmark_group("codec/rebuild-fragment");
    for (k, m) in [(2, 1), (4, 2)] {
        let code = Code::new(k, m).expect("a small code");
        for length in [1 << 10, 16 << 10, 256 << 10] {
            let fragments: Vec<Vec<u8>> = (0..k + m).map(|_| value(length)).collect();
            let present: Vec<(usize, &[u8])> = (m..k + m).map(|index| (index, fragments[index].as_slice())).collect();
            let mut lost = vec![0; length];
            group.throughput(Throughput::Bytes(length as u64));
            group.bench_function(BenchmarkId::new(format!("{k}+{m}"), length), |b| {
                b.iter(|| code.rebuild(length, black_box(&present), &mut [(0, &mut lost)]).expect("k fragments"));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, encode, rebuild);
criterion_main!(benches);
