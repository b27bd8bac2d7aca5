//! The core counts exactly what the golden files say, which an independent implementation made.

use mrrc_core::cost::Linear;
use mrrc_core::{Config, Core, PageRange};
use serde::Deserialize;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

#[derive(Deserialize)]
struct Case {
    trace: String,
    policy: String,
    capacity_pages: u64,
    resort: f64,
    evict: f64,
    result: Expected,
}

#[derive(Deserialize, PartialEq, Debug)]
struct Expected {
    #[serde(flatten)]
    counts: Counts,
    hit_ratio: f64,
    reg_us: f64,
    dereg_us: f64,
    total_us: f64,
}

#[derive(Deserialize, PartialEq, Debug)]
struct Counts {
    requests: u64,
    exact: u64,
    subset: u64,
    covered: u64,
    partial: u64,
    miss: u64,
    bypass: u64,
    regs: u64,
    reg_pages: u64,
    deregs: u64,
    dereg_pages: u64,
    dereg_batches: u64,
    pages: u64,
    hit_pages: u64,
    hits: u64,
}

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces/data/golden")
}

fn read_trace(name: &str) -> Vec<PageRange> {
    let mut reader = csv::Reader::from_path(golden().join(name)).expect("the golden traces are part of the repository");
    reader.deserialize().map(|row| row.map(|(start, pages)| PageRange::new(start, pages).unwrap()).unwrap()).collect()
}

fn replay(core: &mut Core, trace: &[PageRange]) {
    for &asked in trace {
        core.request(asked).expect("nothing is held");
        assert!(core.used_pages() <= core.capacity());
    }
}

fn counts_of(core: &Core) -> Counts {
    let c = core.counters();
    Counts {
        requests: c.requests,
        exact: c.exact,
        subset: c.subset,
        covered: c.covered,
        partial: c.partial,
        miss: c.miss,
        bypass: c.bypass,
        regs: c.regs,
        reg_pages: c.reg_pages,
        deregs: c.deregs,
        dereg_pages: c.dereg_pages,
        dereg_batches: c.dereg_batches,
        pages: c.pages,
        hit_pages: c.hit_pages,
        hits: c.hits(),
    }
}

#[test]
fn every_golden_count_is_reproduced() {
    let text =
        std::fs::read_to_string(golden().join("expected.json")).expect("expected.json is part of the repository");
    let cases: Vec<Case> = serde_json::from_str(&text).unwrap();
    assert_eq!(cases.len(), 80);
    let mut traces = HashMap::new();
    for case in cases {
        let trace = traces.entry(case.trace.clone()).or_insert_with(|| read_trace(&case.trace));
        let config = Config {
            policy: case.policy.parse().unwrap(),
            resort: case.resort,
            evict: case.evict,
            ..Config::new(case.capacity_pages)
        };
        let mut core = Core::new(&config).unwrap();
        replay(&mut core, trace);
        let name = format!(
            "{} {} C={} resort={} evict={}",
            case.trace, case.policy, case.capacity_pages, case.resort, case.evict
        );
        assert_eq!(counts_of(&core), case.result.counts, "{name}");
        let cost = core.counters().cost(&Linear::PAPER);
        for (what, ours, theirs) in [
            ("hit_ratio", core.counters().hit_ratio(), case.result.hit_ratio),
            ("reg_us", cost.reg_us, case.result.reg_us),
            ("dereg_us", cost.dereg_us, case.result.dereg_us),
            ("total_us", cost.total_us(), case.result.total_us),
        ] {
            assert!((ours - theirs).abs() <= 1e-6 * theirs.abs(), "{name}: {what} is {ours}, not {theirs}");
        }
    }
}
