//! A request that no region serves: the plan is made, room is made, and what is missing becomes regions.

use super::contents::Contents;
use super::holders::{Holders, Request, Sharing};
use super::outcome::{Found, Part};
use super::planner::Planner;
use super::view::View;
use super::{AllInUse, register, room};
use crate::policy::{Keeps, Need, Policy};
use crate::range::PageRange;
use crate::regions::RegionId;

/// Answers a request that overlaps nothing, and that nothing serves: it needs no plan. `None`, and nothing is done or counted,
/// for any other. `may_be_served`: a region with other rights may contain it.
#[inline]
pub(super) fn answer_lone<P: Policy>(
    contents: &mut Contents<P>,
    planner: &mut Planner,
    request: &Request,
    may_be_served: bool,
    holders: &mut impl Holders,
) -> Option<Result<(), AllInUse>> {
    let view = contents.view();
    let need = Planner::need_lone(view, request);
    if !planner.is_lone(view, request, need) || may_be_served && is_served_otherwise(view, request) {
        return None;
    }
    Some(make_lone(contents, planner, request, need, holders))
}

/// Makes the region of a request that overlaps nothing, once so much has left.
#[inline]
fn make_lone<P: Policy>(
    contents: &mut Contents<P>,
    planner: &mut Planner,
    request: &Request,
    need: Need,
    holders: &mut impl Holders,
) -> Result<(), AllInUse> {
    let &Request { range, access, .. } = request;
    learn_lone(contents, planner, request);
    contents.record_mut().start(Found::Miss);
    room::make_lone(contents, range, need, holders)?;
    let region = Some(register::admit_lone(contents, request));
    contents.record_mut().push(Part::Gap { region, range, access });
    Ok(())
}

/// Makes the region of a request that overlaps nothing, if nothing has to leave for it. `None`, and nothing is done or
/// counted, for any other request.
pub(super) fn hold_lone<P: Policy>(
    contents: &mut Contents<P>,
    planner: &mut Planner,
    request: &Request,
) -> Option<RegionId> {
    let view = contents.view();
    let need = Planner::need_lone(view, request);
    if !need.is_met() || !planner.is_lone(view, request, need) || is_served_otherwise(view, request) {
        return None;
    }
    learn_lone(contents, planner, request);
    Some(register::admit_lone(contents, request))
}

/// Returns whether a request that overlaps nothing of its own class is served by a region of the other.
#[inline]
fn is_served_otherwise(view: View<'_>, request: &Request) -> bool {
    let may_share = request.access.class() == 0 && request.sharing == Sharing::All;
    let has_others = !view.lookup.is_empty(1) || view.lookup.has_replacements();
    may_share && has_others && view.find_for(request).is_some()
}

#[inline]
fn count_lone<P: Policy>(contents: &mut Contents<P>, request: &Request) {
    if !request.again {
        contents.record_mut().count_miss(Found::Miss, 0, request.range.pages());
    }
}

/// As [`count_lone`], and learns from it.
#[inline]
fn learn_lone<P: Policy>(contents: &mut Contents<P>, planner: &mut Planner, request: &Request) {
    count_lone(contents, request);
    if !request.again {
        planner.observe(request.range);
    }
}

/// Answers any request.
pub(super) fn answer_by_plan<P: Policy>(
    contents: &mut Contents<P>,
    planner: &mut Planner,
    request: &Request,
    holders: &mut impl Holders,
) -> Result<(), AllInUse> {
    if request.sharing == Sharing::Nothing {
        count_lone(contents, request);
        return register::admit_aside(contents, planner, request, holders);
    }
    let found = survey(contents, planner, request, planner.wanted(request));
    if !request.again {
        count(contents, planner, request.range);
        planner.observe(request.range);
    }
    planner.widen(contents.view(), request);
    execute(contents, planner, request, found, holders)
}

/// Answers a request for the span of a group, whose members are counted as requests of their own.
pub(super) fn answer_group<P: Policy>(
    contents: &mut Contents<P>,
    planner: &mut Planner,
    request: &Request,
    members: &[PageRange],
    holders: &mut impl Holders,
) -> Result<(), AllInUse> {
    for &range in members {
        survey(contents, planner, &Request { range, ..*request }, range);
        count(contents, planner, range);
    }
    let found = survey(contents, planner, request, request.range);
    if contents.view().has_one_key() {
        // Its neighbours would add to the cost of the holes.
        planner.keep_to(request.range);
    }
    execute(contents, planner, request, found, holders)
}

/// Counts what is missing of a request that is refused before it is planned. False, and nothing is counted, if nothing is
/// missing.
pub(super) fn refuse_missing<P: Policy>(
    contents: &mut Contents<P>,
    planner: &mut Planner,
    request: &Request,
    members: &[PageRange],
) -> bool {
    planner.peek(contents.view(), request);
    let missing = !planner.plan().is_served();
    if missing && !request.again {
        let whole = [request.range];
        for &range in if members.is_empty() { &whole[..] } else { members } {
            planner.peek(contents.view(), &Request { range, ..*request });
            count(contents, planner, range);
        }
    }
    missing
}

/// Plans the request: finds what overlaps the pages wanted for it and what is missing of them. The overlapping regions
/// move to the top.
fn survey<P: Policy>(contents: &mut Contents<P>, planner: &mut Planner, request: &Request, wanted: PageRange) -> Found {
    planner.begin(contents.view(), request, wanted);
    planner.plan().overlaps().iter().for_each(|&id| contents.touch(id));
    planner.complete(contents.view(), request, wanted)
}

/// Counts a request that was planned.
fn count<P: Policy>(contents: &mut Contents<P>, planner: &Planner, asked: PageRange) {
    let plan = planner.plan();
    contents.record_mut().count_miss(plan.found(), plan.hit_pages(), asked.pages());
}

/// Makes room and registers, or does so for this request alone.
fn execute<P: Policy>(
    contents: &mut Contents<P>,
    planner: &mut Planner,
    request: &Request,
    found: Found,
    holders: &mut impl Holders,
) -> Result<(), AllInUse> {
    let asked = request.range;
    let is_hard = contents.view().capacity.is_hard();
    contents.record_mut().start(found);
    if planner.plan().is_served() {
        register::answer(contents, planner, asked);
        return Ok(());
    }
    if contents.view().has_one_key() {
        return execute_one(contents, planner, request, holders);
    }
    if planner.scheme().keeps == Keeps::Nothing && !is_hard {
        register::bypass(contents, planner, asked);
        return Ok(());
    }
    if !planner.fits(contents.view()) {
        if !is_hard {
            contents.record_mut().bypass();
            register::bypass(contents, planner, asked);
            return Ok(());
        }
        refuse_forever(contents, planner, asked)?;
        planner.take_over(contents.view(), request);
    }
    if planner.plan().is_aside() {
        return register::admit_aside(contents, planner, request, holders);
    }
    if let Some(region) = planner.in_the_way(contents.view()) {
        contents.record_mut().push(Part::Registering { region, range: asked });
        return Ok(());
    }
    let spans_more = is_hard && planner.plan().spans_more_than(asked.pages());
    match room::make(contents, planner, asked, holders) {
        Err(_) if spans_more => {
            // The merged region finds no room; by itself the range may.
            contents.record_mut().take_back_refusal();
            planner.take_over(contents.view(), request);
            if planner.plan().is_aside() {
                return register::admit_aside(contents, planner, request, holders);
            }
            room::make(contents, planner, asked, holders)?;
        }
        Err(_) if planner.plan().widened() > 0 => {
            // The request without its neighbours may find room.
            contents.record_mut().take_back_refusal();
            planner.narrow();
            room::make(contents, planner, asked, holders)?;
        }
        result => result?,
    }
    register::admit(contents, planner, asked);
    Ok(())
}

/// Makes room for the region of the plan, and registers it, where each request is answered by one region.
fn execute_one<P: Policy>(
    contents: &mut Contents<P>,
    planner: &mut Planner,
    request: &Request,
    holders: &mut impl Holders,
) -> Result<(), AllInUse> {
    let asked = request.range;
    let has_neighbours = planner.plan().pieces().iter().any(|piece| piece.range != asked);
    let mut in_the_way = make_room_for_one(contents, planner, asked, holders);
    if in_the_way.is_err() && has_neighbours {
        // With its neighbours it finds no room; by itself it may.
        contents.record_mut().take_back_refusal();
        planner.keep_to(asked);
        in_the_way = make_room_for_one(contents, planner, asked, holders);
    }
    match in_the_way? {
        Some(region) => contents.record_mut().push(Part::Registering { region, range: asked }),
        None => register::admit(contents, planner, asked),
    }
    Ok(())
}

/// Makes room, unless a region that is being registered is in the way: that one is returned.
fn make_room_for_one<P: Policy>(
    contents: &mut Contents<P>,
    planner: &mut Planner,
    asked: PageRange,
    holders: &mut impl Holders,
) -> Result<Option<RegionId>, AllInUse> {
    refuse_forever(contents, planner, asked)?;
    planner.find_replaced(contents.view());
    let in_the_way = planner.in_the_way(contents.view());
    if in_the_way.is_none() {
        room::make(contents, planner, asked, holders)?;
    }
    Ok(in_the_way)
}

/// Refuses what does not fit where nothing is ever evicted, and nothing bypasses the limit.
fn refuse_forever<P: Policy>(contents: &mut Contents<P>, planner: &Planner, asked: PageRange) -> Result<(), AllInUse> {
    if planner.scheme().keeps != Keeps::Forever {
        return Ok(());
    }
    let need = planner.need(contents.view());
    if need.is_met() { Ok(()) } else { Err(room::refuse(contents, asked, need)) }
}
