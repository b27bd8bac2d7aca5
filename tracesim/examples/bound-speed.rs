//! How long the bounds and the LRU curve take: requests for a million objects of 1 to 32 pages, Zipf 0.9.
//!
//! ```text
//! cargo run --release -p tracesim --example bound-speed -- [REQUESTS [OBJECTS [lower|upper|mrc]]]
//! ```
//!
//! Prints user CPU seconds and what memory rose by beyond the trace (`VmHWM`, Linux). For instructions, run a smaller number under
//! `valgrind --tool=callgrind`.

use mrrc::cost::Linear;
use mrrc::{Access, PageRange};
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use std::time::Instant;
use traces::{Kind, Process, Step, Trace};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default| arguments.get(at).and_then(|text| text.parse().ok()).unwrap_or(default);
    let (requests, objects) = (number(0, 10_000_000), number(1, 1_000_000));
    let what = arguments.get(2).map_or("lower", String::as_str);
    let started = Instant::now();
    let (trace, footprint) = zipf(requests, objects);
    let before = peak_mib();
    println!(
        "{requests} requests of {objects} objects, {footprint} pages: made in {:.1?}, peak {before} MiB",
        started.elapsed()
    );
    let capacities: Vec<u64> = [1, 2, 5, 10, 20, 30, 40, 50].map(|percent| (footprint * percent / 100).max(1)).to_vec();
    let started = Instant::now();
    let found = match what {
        "lower" => tracesim::bound::lower(&trace, &capacities, &Linear::PAPER),
        "upper" => tracesim::bound::upper(&trace, &capacities[..1], &Linear::PAPER).unwrap_or_default(),
        "none" => Vec::new(),
        other => panic!("{other}: lower or upper"),
    };
    let took = started.elapsed();
    println!("{what}: {took:.2?}, peak {} MiB beyond the trace: {found:.0?} µs", peak_mib() - before);
}

/// Objects that lie one after the other, the k-th most popular with weight k^-0.9, in no order of popularity.
fn zipf(requests: usize, objects: usize) -> (Trace, u64) {
    let mut random = StdRng::seed_from_u64(1);
    let mut next = 0;
    let ranges: Vec<PageRange> = (0..objects)
        .map(|_| {
            let range = PageRange::new(next, random.random_range(1..=32)).unwrap_or(PageRange::EVERYTHING);
            next = range.end();
            range
        })
        .collect();
    let mut sum = 0.0;
    let sums: Vec<f64> = (1..=objects)
        .map(|rank| {
            sum += (rank as f64).powf(-0.9);
            sum
        })
        .collect();
    let step = |random: &mut StdRng| {
        let rank = sums.partition_point(|&upto| upto <= random.random_range(0.0..sum)).min(objects - 1);
        Step::new(Kind::Request, ranges[rank], Access::LOCAL_READ, false)
    };
    let steps = (0..requests).map(|_| step(&mut random)).collect();
    let _ = random.next_u32();
    (Trace { name: "zipf".into(), processes: vec![Process { steps }], ..Trace::default() }, next)
}

fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|kib| kib.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) / 1024
}
