//! The client's GETs: one-sided over shared memory, by size; what a message takes beside that; and values that take the faster of two ways.

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

/// Values that take the faster of two ways, alone and in bursts: the choice, and what is tried of the other way.
fn by_the_faster_way(criterion: &mut Criterion) {
    const SIZE: usize = 64 << 10;
    const AT_ONCE: usize = 8;
    let server = Running::over_shm();
    let options = Options { one_sided: false, ..Options::default() };
    let mut client = Client::with_options([&server.address], options).expect("a client");
    let value = vec![7; SIZE];
    let mut group = criterion.benchmark_group("kv client by the faster way over shm");
    group.throughput(Throughput::Bytes(SIZE as u64));
    group.bench_function(BenchmarkId::new("set", SIZE), |bencher| {
        bencher.iter(|| client.set("key", &value, ()).expect("an answer").is_stored());
    });
    group.bench_function(BenchmarkId::new("get", SIZE), |bencher| {
        bencher.iter(|| client.get("key").expect("an answer").expect("a value").len());
    });
    group.throughput(Throughput::Bytes((AT_ONCE * SIZE) as u64));
    group.bench_function(BenchmarkId::new("get, 8 at once", SIZE), |bencher| {
        bencher.iter(|| {
            let tickets = [(); AT_ONCE].map(|()| client.iget("key").expect("it is sent"));
            tickets.map(|ticket| client.wait(ticket).expect("an answer").expect("a value").len())
        });
    });
    group.finish();
}

criterion_group!(benches, one_sided, by_the_faster_way);
criterion_main!(benches);
