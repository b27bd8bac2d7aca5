//! How long the bounds and the LRU curve take: requests for a million objects of 1 to 32 pages, Zipf 0.9.
//!
//! ```text
//! cargo run --release -p tracesim --example bound-speed -- [REQUESTS [OBJECTS [lower|upper|regions|pages|none]]]
//! ```
//!
//! Prints how long it took and the peak of memory (`VmHWM`, Linux) beside the size of the trace. For instructions, run a smaller number
//! under `valgrind --tool=callgrind`.

use mrrc_core::cost::Linear;
use mrrc_core::{Access, PageRange};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::time::Instant;
use traces::{Kind, Process, Step, Trace};
use tracesim::mrc::{Sampling, Unit, curve};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default| arguments.get(at).and_then(|text| text.parse().ok()).unwrap_or(default);
    let (requests, objects) = (number(0, 10_000_000), number(1, 1_000_000));
    let what = arguments.get(2).map_or("lower", String::as_str);
    let started = Instant::now();
    let (trace, footprint) = zipf(requests, objects);
    let made = started.elapsed();
    println!(
        "{requests} requests of {objects} objects, {footprint} pages: made in {made:.1?}, {} MiB",
        (requests * size_of::<Step>()) >> 20
    );
    let capacities: Vec<u64> = [1, 2, 5, 10, 20, 30, 40, 50].map(|percent| (footprint * percent / 100).max(1)).to_vec();
    let ratios = |unit| curve(&trace, &capacities, unit, Sampling::Exact).hit_ratios().map(|point| point.1).collect();
    let started = Instant::now();
    let found: Vec<f64> = match what {
        "lower" => tracesim::bound::lower(&trace, &capacities, &Linear::PAPER),
        "upper" => tracesim::bound::upper(&trace, &capacities[..1], &Linear::PAPER).unwrap_or_default(),
        "regions" => ratios(Unit::Region),
        "pages" => ratios(Unit::Page),
        _ => Vec::new(),
    };
    println!("{what}: {:.2?}, peak of all {} MiB: {found:.3?}", started.elapsed(), peak_mib());
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
    (Trace { name: "zipf".into(), processes: vec![Process { steps }], ..Trace::default() }, next)
}

fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|kib| kib.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) / 1024
}
