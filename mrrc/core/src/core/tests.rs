use super::*;
use crate::policy::PolicyKind;

fn core(capacity: u64) -> Core {
    let mut core = Core::new(&Config { policy: PolicyKind::Mrrc, ..Config::new(capacity) }).unwrap();
    core.limit_hard();
    core
}

fn request(start: u64, pages: u64, access: Access) -> Request {
    Request { access, ..Request::new(PageRange::new(start, pages).unwrap()) }
}

/// Registers what one region serves.
fn cache(core: &mut Core, request: &Request) {
    let id = core.request_with(request, &mut NoHolders).unwrap().parts()[0].region().unwrap();
    _ = core.publish(&[id], &mut NoHolders);
}

#[test]
fn the_answer_and_the_counts_are_those_of_any_miss() {
    use PolicyKind::{Gdsf, Mrrc, PinDown, Probation, Sieve};
    for policy in [PinDown, Sieve, Gdsf, Mrrc, Probation] {
        let core = || Core::new(&Config { policy, max_regions: Some(12), ..Config::new(64) }).unwrap();
        let (mut quick, mut slow) = (core(), core());
        for nth in 0..200 {
            // While there is room, and then in the place of one, of several, or of a batch.
            let request = Request { again: nth % 5 == 2, ..request(20 * nth, 1 + 7 * nth % 15, Access::LOCAL) };
            quick.request_with(&request, &mut NoHolders).unwrap();
            miss::answer_by_plan(&mut slow.contents, &mut slow.planner, &request, &mut NoHolders).unwrap();
            assert_eq!(quick.outcome().parts(), slow.outcome().parts(), "{policy}: {nth}");
            assert!(quick.outcome().parts()[0].region().is_some());
            assert!(quick.outcome().batches().eq(slow.outcome().batches()), "{policy}: {nth}");
            assert_eq!((quick.counters(), quick.used_pages()), (slow.counters(), slow.used_pages()));
        }
        assert!(quick.counters().deregs > 100 && quick.used_regions() <= 12);
    }
}

#[test]
fn region_that_lacks_a_right_may_have_to_leave() {
    let config = Config { policy: PolicyKind::Mrrc, max_regions: Some(20), ..Config::new(1000) };
    let mut core = Core::new(&config).unwrap();
    core.limit_hard();
    cache(&mut core, &request(105, 2, Access::LOCAL_READ));
    (0..17).for_each(|nth| cache(&mut core, &request(200 + 20 * nth, 1, Access::LOCAL)));
    // The gap before it, its pages with both rights, and the gap after it: three where two are free.
    let wanted = request(100, 10, Access::LOCAL);
    assert!(core.may_evict_for(&wanted));
    core.request_with(&wanted, &mut NoHolders).unwrap();
    assert_eq!(core.counters().deregs, 1);
}

#[test]
fn refused_group_counts_each_member_by_itself() {
    let (cached, missing) = (PageRange::new(8, 4).unwrap(), PageRange::new(100, 8).unwrap());
    for members in [[cached, missing], [missing, cached]] {
        let mut core = core(64);
        cache(&mut core, &request(8, 4, Access::LOCAL));
        let before = core.counters();
        assert!(core.refuse_missing(&request(8, 100, Access::LOCAL), &members));
        let after = core.counters();
        assert_eq!((after.covered - before.covered, after.miss - before.miss), (1, 1));
        assert_eq!(after.hit_pages - before.hit_pages, 4);
    }
}

#[test]
fn all_in_use_is_refused_without_eviction() {
    let mut core = core(16);
    for start in [0, 20] {
        let outcome = core.request_with(&request(start, 8, Access::LOCAL), &mut NoHolders).unwrap();
        let id = outcome.parts()[0].region().unwrap();
        core.hold(id);
    }
    let refused = core.request_with(&request(40, 9, Access::LOCAL), &mut NoHolders).unwrap_err();
    assert_eq!((refused.missing_pages, refused.in_use_pages, refused.in_use_regions), (9, 16, 2));
    assert_eq!((core.counters().all_in_use, core.counters().miss, core.used_pages()), (1, 3, 16));
}

#[test]
fn what_is_held_from_the_start_is_released_once() {
    let mut core = core(64);
    let id = core.request_lone(&request(8, 8, Access::LOCAL)).unwrap();
    assert_eq!((core.held_pages(), core.used_pages()), (8, 8));
    _ = core.publish(&[id], &mut NoHolders);
    assert_eq!((core.held_pages(), core.find(PageRange::new(9, 2).unwrap())), (0, Some(id)));
}

#[test]
fn all_that_is_not_so_simple_is_left_as_it_was() {
    let mut core = core(32);
    let remote = Access::LOCAL | Access::REMOTE_READ;
    for request in [request(8, 8, Access::LOCAL), request(100, 8, remote)] {
        let id = core.request_lone(&request).unwrap();
        _ = core.publish(&[id], &mut NoHolders);
    }
    let before = core.counters();
    for (why, request) in [
        ("there", request(8, 8, Access::LOCAL)),
        ("overlapped", request(15, 2, Access::LOCAL)),
        ("served by the other class", request(101, 2, Access::LOCAL)),
        ("too large for the room", request(200, 17, Access::LOCAL)),
        ("nobody else's", Request { sharing: Sharing::Nothing, ..request(200, 2, Access::LOCAL) }),
    ] {
        assert_eq!(core.request_lone(&request), None, "{why}");
    }
    assert_eq!((core.counters(), core.used_pages(), core.held_pages()), (before, 16, 0));
    assert!(core.request_lone(&request(99, 1, remote)).is_some());
    assert!(core.request_lone(&request(100, 9, Access::LOCAL)).is_some(), "it is no overlap in its own class");
}
