//! The table of `docs/algorithm.md`, line by line.

use mrrc_core::policy::PolicyKind;
use mrrc_core::{Config, Core, Found, PageRange};

/// Returns the request's outcome, and the ranges that left for it.
fn ask(core: &mut Core, start: u64, pages: u64) -> (Found, Vec<PageRange>) {
    let outcome = core.request(range(start, pages)).unwrap();
    (outcome.found(), outcome.batches().flatten().map(|leaving| leaving.range).collect())
}

fn range(start: u64, pages: u64) -> PageRange {
    PageRange::new(start, pages).unwrap()
}

#[test]
fn large_region_leaves_before_older_small() {
    let mut core = Core::new(&Config { policy: PolicyKind::Mrrc, ..Config::new(8) }).unwrap();
    assert_eq!(ask(&mut core, 0, 4), (Found::Miss, vec![]));
    assert_eq!(ask(&mut core, 8, 2), (Found::Miss, vec![]));
    assert_eq!(ask(&mut core, 1, 2), (Found::Subset, vec![]));
    assert_eq!(ask(&mut core, 12, 3), (Found::Miss, vec![range(0, 4)]));
    assert_eq!(ask(&mut core, 0, 4), (Found::Miss, vec![range(8, 2)]));
}
