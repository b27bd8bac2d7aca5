//! The general policies do what their papers say: hit for hit the same as plain models of them.

mod adaptive;
mod admission;
mod fickle;
mod model;
mod papers;
mod queues;
mod random;
mod ranks;
mod stress;

use model::Model;
use mrrc_core::cost::Linear;
use mrrc_core::policy::Matching;
use mrrc_core::{Config, PageRange};
use random::Random;
use tracesim_policies::AnyPolicy;

/// Cheap and dear at the same time, so that the cost of a page and of a call both matter.
const COST: Linear = Linear { reg_page: 0.5, reg_call: 2.0, dereg_page: 0.25, dereg_call: 1.0 };

/// Requests that favour some objects, shift their favour, and scan now and then.
fn trace(seed: u64, objects: u64, largest: u64, requests: usize) -> Vec<PageRange> {
    let mut random = Random::new(seed);
    let sizes: Vec<_> = (0..objects).map(|_| 1 + random.below(largest)).collect();
    let mut trace = Vec::new();
    while trace.len() < requests {
        let shift = random.below(objects);
        let scan = random.below(5) == 0;
        for step in 0..random.below(200) {
            let popular = random.below(objects) * random.below(objects) / objects;
            let object = (shift + if scan { step } else { popular }) % objects;
            trace.push(PageRange::new(object * 16, sizes[object as usize]).unwrap());
        }
    }
    trace
}

/// Compares every answer of the policy with the model's.
fn compare(policy: AnyPolicy, model: fn(&Config) -> Box<dyn Model>) {
    compare_as(policy, &Config::new(1), model);
}

/// As `compare`, with all of the configuration but its capacity.
fn compare_as(policy: AnyPolicy, base: &Config, model: fn(&Config) -> Box<dyn Model>) {
    // Unit sizes, mixed sizes, and a cache that is nearly large enough.
    for (seed, largest) in [(1, 1), (2, 8), (3, 1)] {
        for capacity in [1, 2, 9, 40, 100, 250, 600] {
            let config = Config { capacity, matching: Some(Matching::Exact), cost: COST, ..base.clone() };
            let mut core = policy.core(&config).unwrap();
            let mut model = model(&config);
            let mut hits = 0;
            let objects = if seed == 3 { capacity + capacity / 20 + 1 } else { capacity.max(200) };
            let requests = if capacity <= 100 { 8_000 } else { 3_000 };
            for (i, asked) in trace(seed + capacity, objects, largest, requests).into_iter().enumerate() {
                let hit = core.request(asked).unwrap().found().is_hit();
                assert_eq!(hit, model.request(asked), "{policy}, {capacity} pages: request {i}, {asked:?}");
                hits += u32::from(hit);
            }
            assert!(hits > 0 || capacity < 40, "{policy}, {capacity} pages: the trace has hits");
        }
    }
}

#[test]
fn fifo() {
    compare(AnyPolicy::Fifo, |config| Box::new(queues::Fifo::new(config.capacity)));
}

#[test]
fn sieve() {
    compare(AnyPolicy::Sieve, |config| Box::new(queues::Sieve::new(config.capacity)));
}

#[test]
fn s3fifo() {
    compare(AnyPolicy::S3Fifo, |config| Box::new(queues::S3Fifo::new(config.capacity)));
}

#[test]
fn two_q() {
    compare(AnyPolicy::TwoQ, |config| Box::new(queues::TwoQ::new(config.capacity)));
}

#[test]
fn gdsf() {
    compare(AnyPolicy::Gdsf, |config| Box::new(ranks::Gdsf::new(config.capacity, config.cost)));
}

#[test]
fn lru_k() {
    for lru_k in 1..=3 {
        let base = Config { lru_k, ..Config::new(1) };
        compare_as(AnyPolicy::LruK, &base, |config| Box::new(ranks::LruK::new(config.capacity, config.lru_k)));
    }
}

#[test]
fn arc() {
    compare(AnyPolicy::Arc, |config| Box::new(adaptive::Arc::new(config.capacity)));
}

#[test]
fn lirs() {
    compare(AnyPolicy::Lirs, |config| Box::new(adaptive::Lirs::new(config.capacity)));
}

#[test]
fn w_tinylfu() {
    compare(AnyPolicy::WTinyLfu, |config| Box::new(admission::WTinyLfu::new(config.capacity)));
}
