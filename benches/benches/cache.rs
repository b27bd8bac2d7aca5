//! The whole cache, from any thread, with a registrar that does nothing; UCX's beside it when it is there.
//!
//! `cargo bench -p benches --bench cache`. Goals: an acquire and release of a cached range in 8 ns at one
//! region, 10 at 1,000, 20 at 100,000 (5 more where membarrier is refused). With two threads half of that, also
//! with evictions going on. A miss with its eviction in 270 ns at a capacity of 1,000 regions.
//!
//! Times are of one operation, all threads together: two threads that take 20 ns each take 10. The threads are pinned.
//! `benches::side_by_side::cache::hit` describes the measurement, and how it differs with `/evicting`. For figures with
//! the peer's use `side-by-side`, which takes turns: this harness measures one after the other.

use benches::Layout;
use benches::peer::Ucx;
use benches::pin::Places;
use benches::side_by_side::cache::churn;
use benches::side_by_side::cache::hit::Ground;
use benches::side_by_side::cache::ours::Ours;
use benches::side_by_side::cache::race::{CHUNK, Stint, together};
use benches::subject::Subject;
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

fn hits(c: &mut Criterion) {
    let places = Places::look().expect("the CPUs of this process are known");
    let threads: Vec<_> = [1, 2].into_iter().filter(|&threads| threads <= places.cpus.len()).collect();
    for layout in [Layout::Stride, Layout::Irregular] {
        for regions in [1, 1_000, 100_000] {
            let ground = Ground::new(layout, regions, 2).expect("there is address space");
            hits_of::<Ours>(c, "mrrc", &ground, &places, &threads, layout, regions);
            hits_of::<Ucx>(c, "ucx", &ground, &places, &threads, layout, regions);
        }
    }
}

fn hits_of<S: Subject>(
    c: &mut Criterion,
    name: &str,
    ground: &Ground,
    places: &Places,
    threads: &[usize],
    layout: Layout,
    regions: usize,
) {
    let roomy = ground.roomy::<S>().expect("the cache can be filled");
    let full = ground.full::<S>().expect("the cache can be filled");
    let (Some(roomy), Some(full)) = (roomy, full) else { return };
    let mut group = c.benchmark_group("hit");
    for &threads in threads {
        let id = |setting| BenchmarkId::new(format!("{name}/{layout:?}/{threads} threads{setting}"), regions);
        bench(&mut group, id(""), threads, places, |stint| ground.hits(&roomy, stint));
        bench(&mut group, id(", evicting"), threads, places, |stint| ground.evicting(&full, stint));
    }
}

/// Cycles over twice as many regions as fit. A policy that keeps some of them shows a lower figure: see
/// `side-by-side` for the time of one miss.
fn churning(c: &mut Criterion) {
    let places = Places::look().expect("the CPUs of this process are known");
    churning_of::<Ours>(c, "mrrc", true, &places);
    churning_of::<Ours>(c, "mrrc, watched", false, &places);
    churning_of::<Ucx>(c, "ucx", true, &places);
}

fn churning_of<S: Subject>(c: &mut Criterion, name: &str, unwatched: bool, places: &Places) {
    let field = churn::field().expect("there is address space");
    let Some(cache) = churn::full::<S>(&field, unwatched).expect("the cache can be filled") else { return };
    let mut group = c.benchmark_group("miss+evict");
    bench(&mut group, BenchmarkId::new(name, 1_000), 1, places, |stint| churn::cycle(&cache, &field, stint));
}

fn bench(
    group: &mut BenchmarkGroup<'_, WallTime>,
    id: BenchmarkId,
    threads: usize,
    places: &Places,
    run: impl Fn(Stint) -> usize + Sync,
) {
    group.throughput(Throughput::Elements(1));
    let next = AtomicUsize::new(0);
    group.bench_function(id, |b| {
        b.iter_custom(|n| {
            // Whole chunks for each thread, and the time of what was asked for.
            let chunks = usize::try_from(n).unwrap_or(usize::MAX).div_ceil(CHUNK * threads);
            let took = together(threads, &places.cpus, chunks, &next, &run).expect("every operation works");
            took.mul_f64(n as f64 / (chunks * CHUNK * threads) as f64)
        });
    });
}

fn short() -> Criterion {
    Criterion::default()
        .sample_size(30)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_millis(1500))
}

criterion_group! { name = benches; config = short(); targets = hits, churning }
criterion_main!(benches);
