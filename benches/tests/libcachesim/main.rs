//! Every policy is what its name says: on real traces it misses as often as libCacheSim's of that name.
//!
//! libCacheSim's figures are in `figures.json`, made by `src/peer/libcachesim/agreement.py`; nothing here needs Python. The
//! traces lie beside the repository, in `../shared/traces`; without them there is nothing to compare, which is said.
//! Differences by design are in [`agreement`], each with its reason; those policies are compared hit for hit with plain
//! implementations in `mrrc/core/tests/modern_policies`.

mod authors;
mod plain;

use mrrc::cost::Linear;
use mrrc::policy::Matching;
use mrrc::{Access, Config, PageRange};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use traces::{Kind, Process, ReadOptions, Step, Trace};
use tracesim::simulate::{Recency, replay};

#[derive(Deserialize)]
struct Figures {
    libcachesim: String,
    rows: Vec<Row>,
}

/// libCacheSim's counts at one capacity.
#[derive(Deserialize)]
struct Row {
    trace: String,
    sizes: Sizes,
    requests: u64,
    capacity: u64,
    misses: BTreeMap<String, u64>,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
enum Sizes {
    One,
    Pages,
}

/// The cost of a miss in libCacheSim's GDSF: the same for every object.
const FLAT: Linear = Linear { reg_page: 0.0, reg_call: 1.0, dereg_page: 0.0, dereg_call: 0.0 };

fn figures() -> Figures {
    serde_json::from_str(include_str!("figures.json")).expect("the script wrote it")
}

/// Returns a trace from beside the repository, if it is there.
fn shared(name: &str) -> Option<Trace> {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared/traces").join(name);
    if !file.exists() {
        eprintln!("skipped: there is no ../shared/traces/{name} beside the repository");
        return None;
    }
    let reader = traces::open(&file, &ReadOptions::default()).expect("it opens");
    Some(Trace::load(name, reader, false).expect("it is a trace"))
}

/// The same with one page for each object: a range is an object, and another range another one.
fn in_objects(trace: &Trace) -> Trace {
    let mut numbers = HashMap::new();
    let mut object = |step: Step| {
        let next = numbers.len() as u64;
        let number = *numbers.entry(step.range()).or_insert(next);
        Step::new(Kind::Request, PageRange::new(number, 1).expect("one page"), Access::LOCAL_READ, false)
    };
    let steps = trace.processes.iter().flat_map(|process| &process.steps).map(&mut object).collect();
    Trace { processes: vec![Process { steps }], ..Trace::default() }
}

fn misses(trace: &Trace, policy: &str, capacity: u64) -> (u64, u64) {
    let config = Config { matching: Some(Matching::Exact), cost: FLAT, ..Config::new(capacity) };
    let counters = replay(trace, &policy.parse().expect("a policy of ours"), &config, Recency::Exact, None)
        .expect("it is replayed")
        .counters;
    (counters.requests, counters.requests - counters.exact)
}

/// How far the miss ratios may lie apart; or why they differ by design. The files of the policies say more.
fn agreement(policy: &str, row: &Row, theirs: u64, largest: u64) -> Result<f64, &'static str> {
    // Where sizes vary, theirs refuses what is larger than one of its queues.
    let small = |times: u64| row.sizes == Sizes::One || largest * times <= row.capacity;
    match policy {
        "pindown" | "fifo" | "sieve" => Ok(0.0),
        "lru-k" => Err("theirs forgets the references of what it evicts: see `lru_k_differs_by_its_history`"),
        "w-tinylfu" => Err("theirs estimates by another, fuller sketch, and refuses what is larger than its window"),
        _ if theirs == row.requests => Err("theirs has a queue without room, and caches nothing"),
        "2q" | "s3fifo" | "gdsf" if row.sizes == Sizes::One => Ok(FOUR_DIGITS),
        "2q" | "s3fifo" | "gdsf" if small(20) => Ok(THREE_DIGITS),
        "2q" | "s3fifo" => Err("theirs refuses what is larger than its queue for newcomers"),
        "gdsf" => Err("theirs raises its clock to the worth of every victim, dearer than the newcomer or not"),
        "arc" if row.sizes == Sizes::Pages => {
            Err("the paper has no sizes, and each of the two has its own way with them")
        }
        // By a region or two: ours moves the target after a ghost's return has made its room, and theirs turns a region out of
        // the stack for each hit on one that is not in it.
        "arc" | "lirs" if row.sizes == Sizes::One && row.capacity < 400 => Ok(0.003),
        "arc" => Ok(THREE_DIGITS),
        "lirs" if small(100) => Ok(THREE_DIGITS),
        "lirs" => Err("theirs refuses what is larger than its 1 % for newcomers"),
        _ => Err("it has no such policy"),
    }
}

const THREE_DIGITS: f64 = 0.0005;
const FOUR_DIGITS: f64 = 0.00005;

/// Returns the cells compared, by policy and trace.
fn compare<'a>(figures: &'a Figures, name: &str) -> BTreeMap<&'a str, u64> {
    let mut cells = BTreeMap::new();
    let Some(trace) = shared(name) else { return cells };
    let objects = in_objects(&trace);
    let largest = trace.processes.iter().flat_map(|process| &process.steps).map(|step| step.range().pages()).max();
    for row in figures.rows.iter().filter(|row| row.trace == name) {
        let trace = if row.sizes == Sizes::One { &objects } else { &trace };
        for (policy, &theirs) in &row.misses {
            let Ok(allowed) = agreement(policy, row, theirs, largest.unwrap_or(0)) else { continue };
            let (requests, ours) = misses(trace, policy, row.capacity);
            assert_eq!(requests, row.requests, "{}: the file is another", row.trace);
            let apart = ours.abs_diff(theirs) as f64 / requests as f64;
            let Row { trace, sizes, capacity, .. } = row;
            assert!(
                apart <= allowed,
                "{policy}, {trace}, {sizes:?}, {capacity} pages: ours misses {ours}, theirs {theirs}"
            );
            *cells.entry(policy).or_default() += u64::from(row.sizes == Sizes::One);
        }
    }
    cells
}

#[test]
fn figures_name_the_running_libcachesim() {
    assert_eq!(figures().libcachesim, benches::peer::libcachesim::VERSION);
}

#[test]
fn short_traces_miss_as_often_as_with_libcachesim() {
    for name in ["lirs_multi1.trace.gz", "nasa_19950701_10k.tsv.zst"] {
        compare(&figures(), name);
    }
}

#[test]
#[cfg_attr(debug_assertions, ignore = "without optimization it takes minutes: cargo test --release -p benches")]
fn every_trace_misses_as_often_as_with_libcachesim() {
    let figures = figures();
    let names: BTreeSet<&str> = figures.rows.iter().map(|row| row.trace.as_str()).collect();
    let cells: Vec<_> = names.iter().map(|name| compare(&figures, name)).filter(|cells| !cells.is_empty()).collect();
    for policy in ["pindown", "fifo", "sieve", "s3fifo", "gdsf", "2q", "arc", "lirs"] {
        let four = cells.iter().filter(|cells| cells.get(policy).is_some_and(|&cells| cells >= 4)).count();
        assert!(four >= 4 || four == cells.len(), "{policy} is compared at four capacities on {four} traces");
    }
}

#[test]
fn lru_k_differs_by_its_history() {
    let figures = figures();
    let short = if cfg!(debug_assertions) { 20_000 } else { u64::MAX };
    for row in figures.rows.iter().filter(|row| row.sizes == Sizes::One && row.requests < short) {
        let Some(trace) = shared(&row.trace) else { continue };
        let trace = in_objects(&trace);
        let plain = |history| plain::Lru2::new(row.capacity, history).misses(&trace);
        assert_eq!(plain(0), row.misses["lru-k"], "{}, {} pages: without a history as theirs", row.trace, row.capacity);
        let (_, ours) = misses(&trace, "lru-k", row.capacity);
        assert_eq!(plain(row.capacity), ours, "{}, {} pages: with one as ours", row.trace, row.capacity);
    }
}
