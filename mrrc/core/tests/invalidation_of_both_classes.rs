//! The same pages can be registered twice: for this side alone, and with rights for peers. Both go, each once.

use mrrc_core::core::{Core, NoHolders, Request};
use mrrc_core::{Access, Config, PageRange};

#[test]
fn both_classes_are_invalidated_once_each() {
    let mut core = Core::new(&Config::new(1 << 20)).unwrap();
    let remote = Access::LOCAL | Access::REMOTE_WRITE;
    // Some of these span the blocks of the index, of whatever size those are.
    let ranges: Vec<PageRange> = (0..64).map(|nth| PageRange::new(nth * 37 + 250, 20).unwrap()).collect();
    let mut asked = 0;
    for &range in &ranges {
        for access in [Access::LOCAL, remote, Access::LOCAL] {
            let request = Request { access, ..Request::new(range) };
            core.request_with(&request, &mut NoHolders).unwrap();
        }
        // In the other order too: the second class serves the first then.
        asked += 2;
    }
    let registered = core.used_regions();
    assert!(registered > 64 && registered <= asked, "{registered}");
    let mut left: Vec<_> = core.invalidate(PageRange::EVERYTHING).batches().flatten().map(|gone| gone.region).collect();
    assert_eq!(left.len() as u64, registered);
    left.sort();
    left.dedup();
    assert_eq!(left.len() as u64, registered, "a region leaves once");
    assert_eq!((core.used_regions(), core.used_pages()), (0, 0));
}
