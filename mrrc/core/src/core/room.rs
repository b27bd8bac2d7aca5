//! Making room: the choice of the regions that leave, and what they leave for.

use super::AllInUse;
use super::contents::Contents;
use super::holders::Holders;
use super::planner::{Plan, Planner};
use crate::policy::{Need, Policy};
use crate::range::PageRange;
use crate::regions::{RegionId, RegionState};

/// How often room is made anew for no request when victims turn out to be held.
const EVICT_ROUNDS: u32 = 4;
/// How many marks are told before victims are chosen, and how many victims stay for theirs, at most: the lock is held
/// meanwhile.
const MARKS: u64 = 4096;
/// The number of touches applied for each victim of a large batch: as much work as it is to register again what is used.
/// A fixed number would leave most marks of a large cache untold, and a large batch would take what is used along.
const MARKS_A_VICTIM: u64 = 64;

/// Runs *full* until the pieces of the plan fit; the overlapping regions give way or are no candidates.
pub(super) fn make<P: Policy>(
    contents: &mut Contents<P>,
    planner: &Planner,
    asked: PageRange,
    holders: &mut impl Holders,
) -> Result<(), AllInUse> {
    let plan = planner.plan();
    let replaced = plan.replaced();
    let stays = || replaced.is_empty() || planner.stays_until_published(contents.view());
    if planner.need(contents.view()).is_met() && stays() {
        return Ok(());
    }
    plan.overlaps().iter().for_each(|&id| contents.hold(id));
    contents.unpublish(replaced, holders);
    let need = planner.need(contents.view());
    let can_leave = planner.can_leave(contents.view());
    let mut enough = need.pages <= can_leave.pages && need.regions <= can_leave.regions;
    if enough {
        if !need.is_met() {
            contents.expect(plan.pieces().iter().map(|piece| piece.range));
        }
        // A replaced region is no candidate, and goes only when there is room for what replaces it.
        for &id in replaced {
            if leaves_first(contents, id) {
                contents.detach(id);
            }
        }
        enough = full(contents, need, Some(plan), holders);
    }
    if !enough {
        holders.republish(replaced);
    }
    contents.record_mut().close_batch();
    // Read when the holders are known.
    let in_use = contents.view().capacity.held();
    plan.overlaps().iter().for_each(|&id| contents.unhold(id));
    if enough {
        Ok(())
    } else {
        let error = refuse(contents, asked, need);
        Err(AllInUse { in_use_pages: in_use.pages, in_use_regions: in_use.regions, ..error })
    }
}

/// Makes room for a request that overlaps nothing.
#[inline]
pub(super) fn make_lone<P: Policy>(
    contents: &mut Contents<P>,
    asked: PageRange,
    need: Need,
    holders: &mut impl Holders,
) -> Result<(), AllInUse> {
    if need.is_met() {
        return Ok(());
    }
    let can_leave = contents.view().capacity.unheld();
    if need.pages > can_leave.pages || need.regions > can_leave.regions {
        return Err(refuse(contents, asked, need));
    }
    contents.expect(std::iter::once(asked));
    let enough = if holders.are_none() { full_unshared(contents, need) } else { full(contents, need, None, holders) };
    if enough { Ok(()) } else { Err(refuse(contents, asked, need)) }
}

/// Makes room, for no request, until so much is free or all that is left is in use; none under a policy that keeps
/// regions forever.
pub(super) fn evict<P: Policy>(contents: &mut Contents<P>, need: Need, holders: &mut impl Holders) {
    // A region that turns out to be held is known to be the next time, so that the rest can go.
    for _ in 0..EVICT_ROUNDS {
        let unheld = contents.view().capacity.unheld();
        let free = Need { pages: need.pages.min(unheld.pages), regions: need.regions.min(unheld.regions) };
        if free.is_met() || full(contents, free, None, holders) {
            break;
        }
    }
}

/// Counts and returns the refusal of a request that finds no room, with the figures as they are.
pub(super) fn refuse<P: Policy>(contents: &mut Contents<P>, asked: PageRange, need: Need) -> AllInUse {
    contents.record_mut().count_refusal();
    let in_use = contents.view().capacity.held();
    AllInUse {
        asked,
        missing_pages: need.pages,
        missing_regions: need.regions,
        in_use_pages: in_use.pages,
        in_use_regions: in_use.regions,
    }
}

/// Runs of *full* where no other can hold what leaves, and so much can leave: every proposal goes at once.
#[inline]
fn full_unshared<P: Policy>(contents: &mut Contents<P>, mut need: Need) -> bool {
    let mut idle_runs = 0;
    while !need.is_met() && idle_runs < 2 {
        idle_runs += 1;
        contents.begin_run();
        let mut batch = contents.batch_size(need);
        while !batch.is_met() {
            let Some(id) = contents.victim() else { break };
            let pages = contents.view().regions.pages(id);
            (batch, need) = (batch.less(pages), need.less(pages));
            contents.evict(id);
            idle_runs = 0;
        }
        contents.record_mut().close_batch();
    }
    debug_assert!(need.is_met(), "the policy finds every region that is not in use");
    need.is_met()
}

/// Runs of *full*: batches of victims leave until the need is met, and before them what the plan replaces; or nothing
/// does and all stays.
fn full<P: Policy>(
    contents: &mut Contents<P>,
    mut need: Need,
    plan: Option<&Plan>,
    holders: &mut impl Holders,
) -> bool {
    let mut victims = contents.take_victims();
    // A policy that keeps regions forever has none to propose, for any need.
    let evicts = contents.evicts();
    let mut reprieves = 0;
    if evicts && !need.is_met() {
        reprieves = patience(contents, need);
        contents.apply_touches(reprieves, holders);
    }
    let mut idle_runs = 0;
    let mut met_runs = 0;
    let mut spared = Vec::new();
    let mut any_met = false;
    while evicts && !need.is_met() && idle_runs < 2 {
        let begun = victims.regions.len();
        // Where much is in use, each run proposes twice as much as the last: few questions are asked.
        let more = |much: u64| much.saturating_mul(1 << met_runs);
        let more = Need { pages: more(need.pages), regions: more(need.regions) };
        contents.propose(more, &mut victims.regions);
        // A run can spend itself on setting regions in use aside; the next one does not meet them.
        idle_runs = if victims.regions.len() == begun { idle_runs + 1 } else { 0 };
        contents.unpublish(&victims.regions[begun..], holders);
        let reprieves_before = reprieves;
        // Those that are held return to their place with the last release.
        let held = contents.set_held_aside();
        holders.republish(held);
        let any_held = !held.is_empty();
        // But what leaves is one batch, however much was proposed.
        let mut batch = contents.batch_size(need);
        let mut kept = begun;
        for next in begun..victims.regions.len() {
            if batch.is_met() {
                take_back(contents, &victims.regions[next..], holders);
                break;
            }
            let id = victims.regions[next];
            if contents.view().regions.get(id).in_use() {
                continue;
            }
            let touches = if reprieves > 0 { holders.touches(id) } else { 0 };
            if touches > 0 {
                // Not proposed again as long as there are others.
                reprieves -= 1;
                spared.push((id, touches));
                holders.republish(&[id]);
            } else {
                let pages = contents.view().regions.pages(id);
                (batch, need) = (batch.less(pages), need.less(pages));
                victims.regions[kept] = id;
                kept += 1;
            }
        }
        victims.regions.truncate(kept);
        any_met |= any_held;
        let any_stays = any_held || reprieves < reprieves_before;
        met_runs = (met_runs + u32::from(any_stays)).min(16);
        victims.ends.push(kept);
        if idle_runs == 2 && !spared.is_empty() {
            // There are no others: now those least worth keeping leave.
            spare(contents, &mut spared);
            (reprieves, idle_runs, met_runs) = (0, 0, 0);
        }
    }
    let enough = need.is_met();
    if enough {
        if let Some(plan) = plan {
            retire_replaced(contents, plan, holders);
        }
        let mut begun = 0;
        for &end in &victims.ends {
            victims.regions[begun..end].iter().for_each(|&id| contents.evict(id));
            contents.record_mut().close_batch();
            begun = end;
        }
    } else {
        debug_assert!(any_met || !evicts, "the policy finds every region that is not in use");
        take_back(contents, &victims.regions, holders);
        for &id in plan.map_or(&[][..], Plan::replaced) {
            if contents.view().regions.get(id).state() == RegionState::Retired {
                contents.reattach(id);
            }
        }
    }
    spare(contents, &mut spared);
    contents.return_victims(victims);
    enough
}

/// Returns whether a region that is replaced leaves before its replacement is registered, where both do not fit.
/// Under a hard limit one that leases hold stays until it is displaced: it takes no room that could be had.
fn leaves_first<P: Policy>(contents: &Contents<P>, id: RegionId) -> bool {
    !contents.view().capacity.is_hard() || !contents.view().regions.get(id).in_use()
}

/// Lets detached regions that the plan replaces leave, now or with their last lease; the others stay.
fn retire_replaced<P: Policy>(contents: &mut Contents<P>, plan: &Plan, holders: &mut impl Holders) {
    for (nth, &id) in plan.replaced().iter().enumerate() {
        if contents.view().regions.get(id).state() != RegionState::Retired {
            holders.republish(&[id]);
            continue;
        }
        contents.record_mut().count_replaced(plan.reason(nth));
        contents.leave_now_or_later(id);
    }
}

/// How many marks and reprieves making so much room may cost.
fn patience<P: Policy>(contents: &Contents<P>, need: Need) -> usize {
    let batch = contents.batch_size(need);
    let used = contents.view().capacity.used();
    let pages_a_region = (used.pages / used.regions.max(1)).max(1);
    let victims = batch.pages.div_ceil(pages_a_region).max(batch.regions);
    usize::try_from(victims.saturating_mul(MARKS_A_VICTIM).max(MARKS)).unwrap_or(usize::MAX)
}

/// Takes back the proposed regions that need not leave. Held regions stand aside and stay there.
fn take_back<P: Policy>(contents: &mut Contents<P>, proposed: &[RegionId], holders: &mut impl Holders) {
    // The last that left goes back first: so each finds its place.
    for &id in proposed.iter().rev() {
        if !contents.view().regions.get(id).in_use() {
            contents.reinsert(id);
        }
    }
    holders.republish(proposed);
}

/// Victims that were asked for since it was last told, and how often, move up instead.
fn spare<P: Policy>(contents: &mut Contents<P>, spared: &mut Vec<(RegionId, u32)>) {
    for (id, touches) in spared.drain(..) {
        contents.reinsert(id);
        (0..touches).for_each(|_| contents.touch(id));
    }
}
