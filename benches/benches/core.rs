//! The core alone, one thread, no registrar: what a decision costs.
//!
//! `cargo bench -p benches --bench core`. Goals: a hit in 15 ns at 1,000 regions and 40 ns at 100,000,
//! wherever they lie; a miss with its eviction in 250 ns at a capacity of 1,000 regions; 150 bytes a
//! region. Pin it (`taskset -c 1`) and give it a quiet machine: a neighbour on the same physical core
//! makes everything 1.7 times slower. The group `floor` says how fast the machine is: a chain of
//! dependent multiplications, a random walk over 6.4 MB.

use benches::{Layout, regions, requests_inside};
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use mrrc::policy::mrrc::Mrrc;
use mrrc::policy::pindown;
use mrrc::policy::{Policy, PolicyKind};
use mrrc::{Config, Core, PageRange};
use std::hint::black_box;
use std::time::Instant;

/// Requests drawn in advance, 4 MiB of them, so that drawing is not measured.
const DRAWN: usize = 1 << 18;

/// Room for everything: nothing is evicted.
fn roomy() -> Config {
    Config::new(1 << 52)
}

fn filled<P: Policy>(config: &Config, policy: P, regions: &[PageRange]) -> Core<P> {
    let mut core = Core::with_policy(config, policy).expect("the configuration is good");
    for &region in regions {
        core.request(region).expect("nothing is held");
    }
    core
}

fn floor(c: &mut Criterion) {
    let mut group = c.benchmark_group("floor");
    let mut product = 1_u64;
    group.bench_function("multiplication", |b| {
        b.iter_custom(|n| {
            time(|| (0..n).for_each(|_| product = black_box(product).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 1))
        });
    });
    let regions = regions(Layout::Stride, 100_000, 1);
    let mut records = vec![[0_u64; 8]; regions.len()];
    let mut seed = 1_u64;
    group.bench_function("random record of 100,000", |b| {
        b.iter_custom(|n| {
            time(|| {
                for _ in 0..n {
                    seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    records[(seed >> 33) as usize % 100_000][0] += 1;
                }
            })
        });
    });
    group.finish();
}

fn time(work: impl FnOnce()) -> std::time::Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

fn hits(c: &mut Criterion) {
    let mut group = c.benchmark_group("hit");
    group.throughput(Throughput::Elements(1));
    for layout in Layout::ALL {
        for count in [1, 1_000, 100_000] {
            let regions = regions(layout, count, 1);
            let requests = requests_inside(&regions, DRAWN, 2);
            let config = roomy();
            let mut core = filled(&config, Mrrc::new(&config.params()), &regions);
            bench_hits(&mut group, &format!("mrrc/{layout:?}"), &mut core, &requests, |core, asked| {
                core.hit(asked).is_some()
            });
            if layout == Layout::Irregular {
                bench_hits(&mut group, "mrrc, whole answer/Irregular", &mut core, &requests, |core, asked| {
                    core.request(asked).is_ok()
                });
                let config = Config { policy: PolicyKind::Mrrc, ..roomy() };
                let mut core = filled(&config, config.policy.build(&config.params()), &regions);
                bench_hits(&mut group, "mrrc, by name/Irregular", &mut core, &requests, |core, asked| {
                    core.hit(asked).is_some()
                });
            }
            let memory = core.memory();
            println!("memory/{layout:?}/{count}: {} bytes a region", memory / count);
            assert_eq!(core.counters().miss, count as u64, "every request after the first fill was a hit");
        }
    }
    group.finish();
}

fn bench_hits<P: Policy>(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    core: &mut Core<P>,
    requests: &[PageRange],
    hit: impl Fn(&mut Core<P>, PageRange) -> bool,
) {
    let count = core.used_regions();
    group.bench_function(BenchmarkId::new(name, count), |b| {
        b.iter_custom(|n| {
            time(|| {
                // Whole rounds through the requests, then the rest: the loop itself is to cost nothing.
                let (rounds, rest) = (n as usize / requests.len(), n as usize % requests.len());
                let rounds = std::iter::repeat_n(requests, rounds).chain([&requests[..rest]]);
                for requests in rounds {
                    for &asked in requests {
                        black_box(hit(core, asked));
                    }
                }
            })
        });
    });
}

/// Cycles over twice as many regions as fit. Under some policies some survive the cycle, so time is counted a
/// miss, not a request.
fn churn(c: &mut Criterion) {
    let mut group = c.benchmark_group("miss+evict");
    group.throughput(Throughput::Elements(1));
    for layout in Layout::ALL {
        let regions = regions(layout, 2_000, 3);
        let pages: u64 = regions.iter().map(|region| region.pages()).sum();
        let config = Config::new(pages / 2);
        bench_churn(&mut group, &format!("mrrc/{layout:?}"), &config, Mrrc::new(&config.params()), &regions);
        bench_churn(&mut group, &format!("mrrc, lean/{layout:?}"), &config, Mrrc::lean(&config.params()), &regions);
        bench_churn(&mut group, &format!("pindown/{layout:?}"), &config, pindown::policy(), &regions);
        let probation = |lean| match lean {
            false => PolicyKind::Probation.build(&config.params()),
            true => PolicyKind::Probation.build_lean(&config.params()),
        };
        bench_churn(&mut group, &format!("probation/{layout:?}"), &config, probation(false), &regions);
        bench_churn(&mut group, &format!("probation, lean/{layout:?}"), &config, probation(true), &regions);
        // What a cache that widens learns from each miss, and asks before it registers.
        let widening = Config { widen: Some(true), ..config.clone() };
        bench_churn(&mut group, &format!("widening/{layout:?}"), &widening, probation(true), &regions);
    }
    group.finish();
}

fn bench_churn<P: Policy>(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    config: &Config,
    policy: P,
    regions: &[PageRange],
) {
    let mut core = filled(config, policy, regions);
    let mut next = 0;
    group.bench_function(name, |b| {
        b.iter_custom(|misses| {
            let goal = core.counters().miss + misses;
            time(|| {
                // `counters` adds things up; a batch of requests at a time keeps that out of the figure.
                while core.counters().miss < goal {
                    for _ in 0..regions.len() {
                        next = if next + 1 == regions.len() { 0 } else { next + 1 };
                        black_box(core.request(regions[next]).is_ok());
                    }
                }
            })
            .mul_f64(misses as f64 / (core.counters().miss - goal + misses) as f64)
        });
    });
}

criterion_group! {
    name = core;
    config = Criterion::default()
        .warm_up_time(std::time::Duration::from_millis(300))
        .measurement_time(std::time::Duration::from_secs(1));
    targets = floor, hits, churn
}
criterion_main!(core);
