//! The client's GETs: one-sided over shared memory, by size; and what a message and a socket take beside that.

#[path = "../../rdmakv-server/tests/client/by_hand/mod.rs"]
#[allow(dead_code, reason = "tests use more of it")]
mod by_hand;

use by_hand::Running;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rdmakv_client::{Client, Options, Source};

fn one_sided(criterion: &mut Criterion) {
    let server = Running::over_shm();
    let mut client = Client::new([&server.address]).expect("a client");
    let mut group = criterion.benchmark_group("kv client get over shm");
    for size in [64, 1024, 4096, 65_536] {
        let key = format!("key-{size}");
        server.store.put(key.as_bytes(), &vec![7; size], 0);
        drop(client.get(&key));
        group.throughput(Throughput::Bytes(size as u64));
        group.bench_function(BenchmarkId::new("one-sided", size), |bencher| {
            bencher.iter(|| {
                let value = client.get(&key).expect("an answer").expect("a value");
                debug_assert_eq!(value.source(), Source::OneSided);
                value.len()
            });
        });
    }
    let mut asking =
        Client::with_options([&server.address], Options { one_sided: false, ..Options::default() }).expect("a client");
    group.throughput(Throughput::Bytes(1024));
    group.bench_function(BenchmarkId::new("message", 1024), |bencher| {
        bencher.iter(|| asking.get("key-1024").expect("an answer").expect("a value").len());
    });
    group.finish();
}

criterion_group!(benches, one_sided);
criterion_main!(benches);
