//! Widening of a plan: its first and its last piece grow into free pages of the mapping.

use super::{Found, Piece, Plan, Request, Sharing, View};
use crate::range::PageRange;
use crate::widen::{Overlap, Widener};

/// Returns whether a request may be widened at all.
pub(super) fn may_widen(widener: &Widener, request: &Request) -> bool {
    request.sharing != Sharing::Nothing && widener.allows(request.access)
}

/// Widens the ends of a plan where that was seen to pay, if all of it still fits. Only a plan that registers its gaps, or one where
/// each request is answered by one region.
pub(super) fn widen(widener: &mut Widener, view: View<'_>, request: &Request, plan: &mut Plan) {
    if plan.aside || request.mapping == request.range || !may_widen(widener, request) {
        return;
    }
    if view.has_one_key() {
        widen_one(widener, view, request, plan);
        return;
    }
    if plan.whole || plan.gaps.len() != plan.pieces.len() || !plan.replaced.is_empty() {
        return;
    }
    // Gaps between regions of the request have no free neighbours.
    let ends = [0, plan.pieces.len().saturating_sub(1)];
    for &at in &ends[..plan.pieces.len().min(2)] {
        let Some(exact) = plan.pieces.get(at).map(|piece| piece.range) else { return };
        let Some(within) = request.mapping.intersection(widener.reach(exact, room_to_grow(view))) else { return };
        if !within.contains(exact) || within == exact {
            continue;
        }
        let wide = widener.widen(exact, free_around(exact, within, view, plan, at, Overlap::default()));
        set_range(view, request, plan, at, wide);
    }
}

/// Widens the one region of a plan. As a block only a request that overlaps nothing.
fn widen_one(widener: &mut Widener, view: View<'_>, request: &Request, plan: &mut Plan) {
    let [Piece { range: exact, .. }] = plan.pieces[..] else { return };
    let room = room_to_grow(view);
    let Some(within) = request.mapping.intersection(widener.reach(exact, room)) else { return };
    if !within.contains(exact) || within == exact {
        return;
    }
    let overlaps_nothing = plan.found == Found::Miss && exact == request.range;
    // A trace does not tell where mappings end.
    let is_known = request.mapping != PageRange::EVERYTHING;
    let wide = if overlaps_nothing {
        widener.widen(exact, free_around(exact, within, view, plan, 0, Overlap::default()))
    } else {
        exact
    };
    let grown = if is_known {
        widener.grow(exact, free_around(exact, within, view, plan, 0, widener.overlap(exact)), room)
    } else {
        exact
    };
    let wide = if grown.pages() > wide.pages() && grown.pages() <= room { grown } else { wide };
    set_range(view, request, plan, 0, wide);
    widener.widened(exact, plan.pieces[0].range);
}

/// Returns the pages that growth can take: half of the capacity, without all that is registered.
pub(super) fn room_to_grow(view: View<'_>) -> u64 {
    (view.capacity.limit().pages / 2).saturating_sub(view.capacity.used().pages)
}

/// Sets the range of a piece, if that and all else still fits.
fn set_range(view: View<'_>, request: &Request, plan: &mut Plan, at: usize, wide: PageRange) {
    let cutter = view.capacity.cutter(request.blocks);
    let exact = plan.pieces[at].range;
    let more = wide.pages() - exact.pages();
    plan.piece_total.pages += more;
    if more > 0 && cutter.keeps_whole(wide) && view.capacity.allows(plan.total()) {
        plan.pieces[at].range = wide;
        plan.widened += more;
    } else {
        plan.piece_total.pages -= more;
    }
}

/// Takes widening back: the pieces are the gaps again.
pub(super) fn narrow(plan: &mut Plan) {
    debug_assert_eq!(plan.pieces.len(), plan.gaps.len(), "each gap is a piece");
    for (piece, &gap) in plan.pieces.iter_mut().zip(&plan.gaps) {
        piece.range = gap;
    }
    plan.piece_total.pages -= std::mem::take(&mut plan.widened);
}

/// Returns the pages around a piece that neither a region nor another piece has, within a range, and those that it may share.
fn free_around(
    piece: PageRange,
    within: PageRange,
    view: View<'_>,
    plan: &Plan,
    at: usize,
    overlap: Overlap,
) -> PageRange {
    let Overlap { shared, smaller_than } = overlap;
    let (mut start, mut end) = (within.start(), within.end());
    view.lookup.for_each_overlap(within, view.regions, |id| {
        let region = view.regions.get(id).range();
        if region.pages() < smaller_than {
            return;
        }
        if region.start() < piece.start() {
            // One of the other class can share pages with it.
            start = start.max(region.end().min(piece.start()).saturating_sub(shared));
        }
        if region.end() > piece.end() {
            end = end.min(region.start().max(piece.end()).saturating_add(shared));
        }
    });
    if let Some(before) = at.checked_sub(1) {
        start = start.max(plan.pieces[before].range.end());
    }
    if let Some(after) = plan.pieces.get(at + 1) {
        end = end.min(after.range.start());
    }
    PageRange::between(start, end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Access;
    use crate::config::{Config, ConfigError};
    use crate::core::{Core, NoHolders, Part};
    use crate::policy::Overlap;

    fn range(start: u64, end: u64) -> PageRange {
        PageRange::between(start, end)
    }

    /// A core that was asked for many consecutive pages, none of which is cached any more.
    fn taught() -> Core {
        let mut core = Core::new(&Config { widen: Some(true), ..Config::new(1024) }).unwrap();
        (0..20_033).for_each(|page| core.observe(range((1 << 30) + page, (1 << 30) + page + 1)));
        core
    }

    fn registered(core: &mut Core, request: &Request) -> Vec<PageRange> {
        let outcome = core.request_with(request, &mut NoHolders).unwrap();
        let gap = |part: &Part| matches!(part, Part::Gap { .. }).then(|| part.range());
        outcome.parts().iter().filter_map(gap).collect()
    }

    #[test]
    fn widens_between_neighbours_and_in_the_mapping() {
        let mut core = taught();
        let within = |start, end, mapping| Request { mapping, ..Request::new(range(start, end)) };
        assert_eq!(registered(&mut core, &within(70, 71, range(66, 1000))), [range(66, 128)]);
        assert_eq!(registered(&mut core, &within(60, 62, PageRange::EVERYTHING)), [range(0, 64)]);
        // What is left between two regions, and a request that overlaps one.
        assert_eq!(registered(&mut core, &within(64, 65, PageRange::EVERYTHING)), [range(64, 66)]);
        assert_eq!(registered(&mut core, &within(120, 130, PageRange::EVERYTHING)), [range(128, 192)]);
        assert_eq!(core.used_pages(), 192);
        let last = PageRange::EVERYTHING.end();
        assert_eq!(registered(&mut core, &within(last - 2, last - 1, PageRange::EVERYTHING)).len(), 1);
    }

    #[test]
    fn stays_exact_where_it_must() {
        let mut core = taught();
        let exact = Request::new(range(70, 71));
        assert_eq!(registered(&mut core, &exact), [range(70, 71)]);
        let remote = Request { access: Access::LOCAL | Access::REMOTE_READ, mapping: PageRange::EVERYTHING, ..exact };
        assert_eq!(registered(&mut core, &remote), [range(70, 71)]);
        // No room for more, as all else is held.
        let id = core.request(range(2048, 3064)).unwrap().parts()[0].region().unwrap();
        core.hold(id);
        let pages = core.capacity() - core.used_pages();
        let wide = Request { mapping: PageRange::EVERYTHING, ..Request::new(range(5000, 5001)) };
        assert!(pages < 64 && registered(&mut core, &wide).iter().all(|gap| gap.pages() == 1));
        assert_eq!(core.counters().all_in_use, 0);
    }

    #[test]
    fn learns_alike_from_misses_that_others_find() {
        let new = || Core::new(&Config { widen: Some(true), ..Config::new(4096) }).unwrap();
        let (mut own, mut told) = (new(), new());
        for nth in 0..4000 {
            let asked = range(nth * 7 % 1501, nth * 7 % 1501 + 1 + nth % 3);
            own.request(asked).unwrap();
            // The hits of a cache of many threads do not reach the core.
            if told.find(asked).is_none() {
                let request = Request { mapping: PageRange::EVERYTHING, ..Request::new(asked) };
                told.request_with(&request, &mut NoHolders).unwrap();
            }
            assert_eq!(own.used_pages(), told.used_pages());
        }
        let (own, told) = (own.counters(), told.counters());
        assert!(own.regs == told.regs && own.reg_pages == told.reg_pages && own.regs < 1000, "{}", own.regs);
    }

    #[test]
    fn one_key_widens_what_overlaps_nothing() {
        let mut core = taught();
        core.use_one_key();
        let within = |start, end| Request { mapping: range(0, 120), ..Request::new(range(start, end)) };
        let mut ask = |start, end| {
            let gaps = registered(&mut core, &within(start, end));
            let ids: Vec<_> = core.outcome().parts().iter().filter_map(Part::region).collect();
            let widened = core.widened();
            if !gaps.is_empty() {
                core.publish(&ids, &mut NoHolders);
            }
            (gaps, widened)
        };
        assert_eq!(ask(70, 71), (vec![range(64, 120)], 55));
        // A request that overlaps a region grows by what was registered nearby.
        assert_eq!(ask(60, 70), (vec![range(4, 70)], 56));
        assert_eq!(ask(20, 21), (vec![], 0));
        assert_eq!(ask(90, 91), (vec![], 0));
        // None does where the mapping is not known.
        let unknown = Request { mapping: PageRange::EVERYTHING, ..Request::new(range(115, 125)) };
        assert_eq!(registered(&mut core, &unknown), [range(115, 125)]);
    }

    #[test]
    fn changes_between_regions_waste_nothing() {
        let mut core = Core::new(&Config { widen: Some(true), ..Config::new(1 << 16) }).unwrap();
        core.use_one_key();
        let miss = |core: &mut Core, page, mapping| {
            let gaps = registered(core, &Request { mapping, ..Request::new(range(page, page + 4)) });
            let ids: Vec<_> = core.outcome().parts().iter().filter_map(Part::region).collect();
            core.publish(&ids, &mut NoHolders);
            gaps.iter().map(|gap| gap.pages()).sum::<u64>()
        };
        // Two mappings close to each other, and what lies between them.
        let (first, second) = (range(1000, 3000), range(4000, 9000));
        let pages = [(1100, first), (2000, first), (1500, first), (2500, first), (4400, second), (5000, second)]
            .map(|(page, mapping)| miss(&mut core, page, mapping));
        assert!(pages[0] == 4 && pages.iter().sum::<u64>() > 100, "{pages:?}");
        core.invalidate(range(3000, 4000));
        core.invalidate(range(3900, 4000));
        let wide = miss(&mut core, 6000, second);
        assert!(wide > 100, "{wide} after {pages:?}");
        core.invalidate(range(0, 10_000));
        assert_eq!(miss(&mut core, 6000, second), 4, "the area begins anew");
    }

    #[test]
    fn exact_requests_take_the_short_way_and_teach() {
        let mut core = taught();
        core.limit_hard();
        let exact = Request::new(range(70, 71));
        let id = core.request_lone(&exact).expect("it overlaps nothing");
        core.publish(&[id], &mut NoHolders);
        let wide = Request { mapping: range(0, 200), ..Request::new(range(150, 151)) };
        assert_eq!((core.request_lone(&wide), core.reach_of(&wide)), (None, Some(range(128, 192))));
        // Single pages far apart, which the short way registers, teach that it does not pay.
        for nth in 0..20_000 {
            let at = (1 << 40) + nth * 7919;
            let id = core.request_lone(&Request::new(range(at, at + 1))).expect("there is room");
            core.publish(&[id], &mut NoHolders);
            core.invalidate(range(at, at + 1));
        }
        assert_eq!(core.reach_of(&wide), None);
    }

    #[test]
    fn failed_widening_makes_the_context_exact() {
        let mut core = taught();
        let wide = Request { mapping: PageRange::EVERYTHING, ..Request::new(range(150, 151)) };
        let elsewhere = Request { mapping: PageRange::EVERYTHING, ..Request::new(range(1 << 20, (1 << 20) + 1)) };
        assert!(core.reach_of(&wide).is_some());
        core.widening_failed(wide.range);
        assert_eq!(core.reach_of(&wide), None);
        assert!(core.reach_of(&elsewhere).is_some());
        let remote = Request { access: Access::LOCAL | Access::REMOTE_READ, ..elsewhere };
        assert_eq!(core.reach_of(&remote), None);
        assert_eq!(Core::new(&Config::new(64)).unwrap().reach_of(&elsewhere), None);
    }

    #[test]
    fn schemes_that_do_not_split_refuse() {
        let config = Config { widen: Some(true), overlap: Some(Overlap::Merge), ..Config::new(8) };
        assert_eq!(Core::new(&config).err(), Some(ConfigError::Widen));
    }
}
