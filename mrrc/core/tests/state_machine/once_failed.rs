//! The shortest cases of what this test found once, in place of the random cases that found it.

use crate::every_policy::{Step, keeps_honest_books};
use mrrc_core::policy::Matching;
use mrrc_core::{Config, PageRange};
use tracesim_policies::AnyPolicy;

fn range(start: u64, end: u64) -> PageRange {
    PageRange::new(start, end - start).expect("not empty")
}

#[test]
fn refusals_are_counted() {
    let config = Config::new(8);
    keeps_honest_books(AnyPolicy::Mrrc, &config, &[Step::Lease(range(0, 8)), Step::Request(range(10, 11))]);
}

#[test]
fn what_is_matched_exactly_and_cut_is_registered_once() {
    let config = Config { matching: Some(Matching::Exact), max_region_pages: Some(1), ..Config::new(8) };
    keeps_honest_books(AnyPolicy::Mrrc, &config, &[Step::Request(range(0, 2)), Step::Request(range(0, 2))]);
}

#[test]
fn a_group_that_is_matched_exactly_is_registered_once() {
    let config = Config { matching: Some(Matching::Exact), ..Config::new(70) };
    let list = vec![range(8, 16), range(0, 8)];
    keeps_honest_books(AnyPolicy::Ogr, &config, &[Step::List(list.clone()), Step::List(list)]);
}

#[test]
fn run_of_held_regions_is_not_the_end() {
    // At the end a region of the resorting section is held that no request touched for it, and it is all
    // that the section holds. The rest of the cache is idle.
    let config = Config { resort: 0.1, evict: 0.0, ..Config::new(34) };
    let asked = [(1, 7), (105, 108), (103, 131), (7, 8), (11, 19), (106, 109), (19, 20)];
    let mut steps: Vec<_> = asked.into_iter().map(|(start, end)| Step::Request(range(start, end))).collect();
    steps.extend([Step::Hold(range(11, 19)), Step::Request(range(0, 1))]);
    keeps_honest_books(AnyPolicy::Mrrc, &config, &steps);
}

#[test]
fn a_bucket_is_no_larger_than_a_region_can_be() {
    let config = Config { bucket_pages: 16, max_region_pages: Some(4), ..Config::new(28) };
    let asked = [(0, 1), (16, 17), (4, 12)];
    keeps_honest_books(AnyPolicy::Firehose, &config, &asked.map(|(start, end)| Step::Request(range(start, end))));
}
