//! The table of `docs/algorithm.md`, line by line.

use mrrc::{Config, Core, Found, PageRange};

/// What the request found, and the ranges that left for it.
fn ask(core: &mut Core, start: u64, pages: u64) -> (Found, Vec<PageRange>) {
    let outcome = core.request(range(start, pages)).unwrap();
    (outcome.found(), outcome.batches().flatten().map(|leaving| leaving.range).collect())
}

fn range(start: u64, pages: u64) -> PageRange {
    PageRange::new(start, pages).unwrap()
}

#[test]
fn a_large_region_goes_before_an_older_small_one_and_the_small_one_goes_in_its_time() {
    let mut core = Config::new(8).build().unwrap();
    assert_eq!(ask(&mut core, 0, 4), (Found::Miss, vec![]));
    assert_eq!(ask(&mut core, 8, 2), (Found::Miss, vec![]));
    assert_eq!(ask(&mut core, 1, 2), (Found::Subset, vec![]));
    assert_eq!(ask(&mut core, 12, 3), (Found::Miss, vec![range(0, 4)]));
    assert_eq!(ask(&mut core, 0, 4), (Found::Miss, vec![range(8, 2)]));
}
