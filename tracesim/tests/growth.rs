//! Growth, on generated workloads whose memory is one mapping: registrations that it takes, and what it costs where it is of no use.

use mrrc_core::core::{NoHolders, Request};
use mrrc_core::{Access, Config, Core, Counters, PageRange, Part};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use traces::generate::Workload;
use traces::{Kind, Trace};

/// 8 GiB.
const CAPACITY: u64 = 2 << 20;

fn core(widens: bool) -> Core {
    core_of(widens, CAPACITY)
}

fn core_of(widens: bool, capacity: u64) -> Core {
    let config = Config { widen: Some(widens), widen_for_peers: true, ..Config::new(capacity) };
    let mut core = Core::new(&config).unwrap();
    core.use_one_key();
    core
}

/// Asks for a range in a mapping all of which is in memory, as a cache does. Returns whether it was a hit.
fn ask(core: &mut Core, range: PageRange, access: Access, mapping: PageRange) -> bool {
    let request = Request { access, ..Request::new(range) };
    let reach = core.reach_of(&request).and_then(|reach| reach.intersection(mapping));
    let request = Request { mapping: reach.unwrap_or(range), ..request };
    let outcome = core.request_with(&request, &mut NoHolders).unwrap();
    let gaps: Vec<_> = outcome.parts().iter().filter(|part| matches!(part, Part::Gap { .. })).collect();
    let ids: Vec<_> = gaps.iter().filter_map(|part| part.region()).collect();
    let is_hit = ids.is_empty();
    if !is_hit {
        core.publish(&ids, &mut NoHolders);
    }
    is_hit
}

/// Replays a workload of `pages` pages. Returns the counters.
fn replay(core: &mut Core, workload: &str, pages: u64) -> Counters {
    let workload: Workload = workload.parse().unwrap();
    let trace = Trace::load("growth", workload.generate().unwrap(), false).unwrap();
    let mapping = PageRange::new((1 << 32) / mrrc_core::PAGE, pages).unwrap();
    for step in trace.processes[0].steps.iter() {
        assert!(matches!(step.kind(), Kind::Request | Kind::Acquire) && mapping.contains(step.range()));
        ask(core, step.range(), step.access(), mapping);
    }
    core.counters()
}

#[test]
fn views_of_one_tensor_take_few_registrations() {
    let views = "buffers:pattern=views,pages=262144,requests=10000,seed=31";
    let exact = replay(&mut core(false), views, 262_144).regs;
    let counted = replay(&mut core(true), views, 262_144);
    println!("views: {} registrations, and {exact} without widening", counted.regs);
    assert!(exact > 4000 && counted.regs <= 16, "{} and {exact}", counted.regs);
}

#[test]
fn views_take_16_registrations_in_the_mean() {
    let mut regs: Vec<u64> = (20..40)
        .map(|seed| {
            let views = format!("buffers:pattern=views,pages=262144,requests=10000,seed={seed}");
            replay(&mut core(true), &views, 262_144).regs
        })
        .collect();
    regs.sort_unstable();
    let sum: u64 = regs.iter().sum();
    println!("views, 20 seeds: {regs:?}");
    assert!(sum <= 16 * 20 && regs[19] <= 24, "{regs:?}");
}

#[test]
fn views_of_half_the_capacity_take_few_registrations() {
    let views = |seed| format!("buffers:pattern=views,pages=262144,requests=10000,seed={seed}");
    let regs: Vec<u64> = (20..40).map(|seed| replay(&mut core_of(true, 1 << 19), &views(seed), 262_144).regs).collect();
    println!("views, 1 GiB of 2: {regs:?}");
    assert!(regs.iter().sum::<u64>() <= 80 * 20, "{regs:?}");
}

#[test]
fn slides_take_a_logarithm_of_registrations() {
    let slide = |pages: u64| {
        let windows = (pages - 64) / 16 + 1;
        let workload = format!("buffers:pattern=slide,pages={pages},requests={windows},seed=1");
        replay(&mut core(true), &workload, pages).regs
    };
    let (short, long) = (slide(1 << 12), slide(1 << 18));
    println!("slide: {short} registrations for 16 MiB, {long} for 1 GiB");
    assert!(short <= 8 && long <= 14, "{short} {long}");
}

#[test]
fn rights_in_turn_take_two_registrations() {
    let counted = replay(&mut core(true), "buffers:pattern=rights-in-turn,pages=1024,requests=64,seed=1", 1024);
    assert_eq!(counted.regs, 2);
    // Up to 16 buffers of 64 pages each.
    let counted = replay(&mut core(true), "buffers:pattern=rights-in-turn,pages=1024,requests=6400,seed=1", 1024);
    println!("rights in turn, 16 buffers: {} registrations", counted.regs);
    assert!(counted.regs <= 32);
}

/// A heap of 64 MiB. Buffers of 1 to 32 pages are used up to three times, and then their memory is given back.
fn churn(widens: bool) -> Counters {
    let mut core = core(widens);
    let heap = PageRange::new(1 << 20, 1 << 14).unwrap();
    let mut rng = SmallRng::seed_from_u64(7);
    for _ in 0..60_000 {
        let pages = 1 << rng.random_range(0..6);
        let start = heap.start() + rng.random_range(0..heap.pages() - pages);
        let range = PageRange::new(start, pages).unwrap();
        for _ in 0..rng.random_range(1..4) {
            ask(&mut core, range, Access::LOCAL, heap);
        }
        core.invalidate(range);
    }
    core.counters()
}

#[test]
fn churn_of_a_heap_costs_little_more() {
    let (exact, widened) = (churn(false), churn(true));
    println!("churn: {} pages, and {} without widening", widened.reg_pages, exact.reg_pages);
    assert!(widened.reg_pages * 100 <= exact.reg_pages * 101, "{} and {}", widened.reg_pages, exact.reg_pages);
    assert!(widened.regs <= exact.regs);
}
