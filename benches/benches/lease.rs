//! The cache compared with the bare core: what a lease costs.
//!
//! `cargo bench -p benches --bench lease`. One operation is an acquire and the end of its lease, with a registrar
//! that does nothing. The core's is a hit alone, without a lease: the floor of both. Pin it (`taskset -c 1`).

use benches::{Layout, regions, requests_inside};
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use mrrc::invalidation::Explicit;
use mrrc::testing::NoopRegistrar;
use mrrc::{Access, Cache, Config, Core, PAGE, PageRange};
use std::hint::black_box;
use std::ptr;
use std::time::{Duration, Instant};

/// Requests drawn in advance, so that drawing is not measured.
const DRAWN: usize = 1 << 18;
const ROOMY: u64 = 1 << 40;
/// Pages of memory where requests are widened: 16 MiB.
const PAGES: u64 = 1 << 12;

/// The two under test.
struct Subjects {
    core: mrrc::Core,
    cache: Cache<NoopRegistrar>,
}

/// Addresses and lengths in bytes.
fn places(ranges: &[PageRange]) -> Vec<(usize, usize)> {
    ranges.iter().map(|range| ((range.start() * PAGE) as usize, (range.pages() * PAGE) as usize)).collect()
}

fn acquire(cache: &Cache<NoopRegistrar>, (address, length): (usize, usize)) -> bool {
    #[expect(unsafe_code, reason = "what is measured")]
    // SAFETY: nothing is transferred: the registrar registers nothing.
    unsafe { cache.acquire(ptr::without_provenance(address), length, Access::LOCAL) }.is_ok()
}

impl Subjects {
    fn new(capacity: u64) -> Self {
        let builder = Cache::builder(NoopRegistrar::new()).ignore_environment().capacity_pages(capacity);
        Self {
            core: Core::new(&Config::new(capacity)).expect("the configuration is good"),
            cache: builder.monitor(Explicit).build().expect("the settings are good"),
        }
    }

    fn fill(&mut self, ranges: &[PageRange]) {
        for &range in ranges {
            self.core.request(range).expect("nothing is held");
        }
        for place in places(ranges) {
            assert!(acquire(&self.cache, place));
        }
    }
}

/// Times `n` operations, over the drawn ones again and again.
fn timed<T: Copy>(n: u64, drawn: &[T], mut operation: impl FnMut(T) -> bool) -> Duration {
    let mut failed = 0_u64;
    let mut left = usize::try_from(n).unwrap_or(usize::MAX);
    let begun = Instant::now();
    while left > 0 {
        let chunk = &drawn[..left.min(drawn.len())];
        for &draw in chunk {
            failed += u64::from(!operation(draw));
        }
        left -= chunk.len();
    }
    let took = begun.elapsed();
    assert_eq!(black_box(failed), 0);
    took
}

fn hits(c: &mut Criterion) {
    let mut group = c.benchmark_group("lease");
    for layout in [Layout::Stride, Layout::Irregular] {
        for count in [1, 1_000, 100_000] {
            let regions = regions(layout, count, 1);
            let requests = requests_inside(&regions, DRAWN, 2);
            let mut subjects = Subjects::new(ROOMY);
            subjects.fill(&regions);
            bench(&mut group, &format!("{layout:?}"), count, subjects, &requests);
        }
    }
}

fn bench(
    group: &mut BenchmarkGroup<'_, WallTime>,
    layout: &str,
    count: usize,
    subjects: Subjects,
    requests: &[PageRange],
) {
    let Subjects { mut core, cache } = subjects;
    let drawn = places(requests);
    group.throughput(Throughput::Elements(1));
    group.bench_function(BenchmarkId::new(format!("{layout}/core, no lease"), count), |b| {
        b.iter_custom(|n| timed(n, requests, |range| core.hit(range).is_some()));
    });
    group.bench_function(BenchmarkId::new(format!("{layout}/concurrent"), count), |b| {
        b.iter_custom(|n| timed(n, &drawn, |place| acquire(&cache, place)));
    });
}

/// Cycles over twice as many regions as fit.
fn churning(c: &mut Criterion) {
    let regions = regions(Layout::Stride, 2_000, 1);
    let mut group = c.benchmark_group("lease, miss+evict");
    bench_churn(&mut group, Subjects::new(1_000 * regions[0].pages()), &regions);
}

fn bench_churn(group: &mut BenchmarkGroup<'_, WallTime>, subjects: Subjects, regions: &[PageRange]) {
    let Subjects { mut core, cache } = subjects;
    let drawn = places(regions);
    group.throughput(Throughput::Elements(1));
    group.bench_function("core, no lease", |b| {
        b.iter_custom(|n| timed(n, regions, |range| core.request(range).is_ok()));
    });
    group.bench_function("concurrent", |b| b.iter_custom(|n| timed(n, &drawn, |place| acquire(&cache, place))));
}

fn short() -> Criterion {
    Criterion::default()
        .sample_size(30)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_millis(1000))
}

/// Asks for single pages of memory, four times as many as fit. Where the cache widens, it looks at what is around a miss: in order
/// that pays, and out of order it only learns.
fn widening(c: &mut Criterion) {
    let memory = vec![1_u8; PAGES as usize * PAGE as usize];
    let first = memory.as_ptr().addr().next_multiple_of(PAGE as usize);
    let mut group = c.benchmark_group("lease, miss+evict");
    group.throughput(Throughput::Elements(1));
    for (name, apart, widens) in
        [("pages", 1, false), ("pages, widened", 1, true), ("pages out of order, widening", 1811, true)]
    {
        let builder = Cache::builder(NoopRegistrar::new()).ignore_environment().capacity_pages(PAGES / 4);
        let cache = builder.monitor(Explicit).widen(widens).build().expect("the settings are good");
        let pages = (0..PAGES - 1).map(|nth| nth * apart % (PAGES - 1));
        let drawn: Vec<_> = pages.map(|page| (first + (page * PAGE) as usize, PAGE as usize)).collect();
        timed(2 * PAGES, &drawn, |place| acquire(&cache, place));
        assert!(apart > 1 || (cache.counters().widened > 0) == widens, "{name}");
        group.bench_function(name, |b| b.iter_custom(|n| timed(n, &drawn, |place| acquire(&cache, place))));
    }
}

criterion_group! { name = benches; config = short(); targets = hits, churning, widening }
criterion_main!(benches);
