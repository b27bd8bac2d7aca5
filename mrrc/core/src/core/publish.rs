//! Publishing the regions that were registered, under a [hard limit](super::Core::limit_hard).
//!
//! A gap is a region from the start: registering, held once, and found by look-ups, so that others wait for it and do not
//! register it again. The policy has it when it is published. Where a cached region is in the way (it is short of rights, it
//! is to be merged, or too many would overlap), the new one stands apart from the published ones: the old one serves hits
//! until the new one is published, and stays if that fails. One region that is being registered never replaces another: a
//! request that needs its place waits for it.

use super::contents::Contents;
use super::holders::Holders;
use super::planner::{Plan, Planner};
use crate::policy::Policy;
use crate::regions::RegionId;

/// Caches the regions, and retires what is in their way.
#[inline]
pub(super) fn publish<P: Policy>(
    contents: &mut Contents<P>,
    planner: &mut Planner,
    ids: &[RegionId],
    holders: &mut impl Holders,
) {
    if contents.view().has_one_key() {
        ids.iter().for_each(|&id| displace_layers(contents, planner, id, holders));
    } else if contents.view().lookup.has_replacements() {
        displace(contents, planner, ids, holders);
    }
    ids.iter().for_each(|&id| contents.publish(id));
}

/// Retires what is in the way of regions that are about to be published, and puts them among the published ones. The
/// holders are asked once for all.
#[inline(never)]
fn displace<P: Policy>(
    contents: &mut Contents<P>,
    planner: &mut Planner,
    ids: &[RegionId],
    holders: &mut impl Holders,
) {
    planner.find_displaced(contents.view(), ids);
    retire_displaced(contents, planner.plan(), holders);
    ids.iter().for_each(|&id| contents.move_into_place(id));
}

/// The same where regions may overlap.
#[inline(never)]
fn displace_layers<P: Policy>(
    contents: &mut Contents<P>,
    planner: &mut Planner,
    id: RegionId,
    holders: &mut impl Holders,
) {
    planner.find_displaced_layers(contents.view(), id);
    retire_displaced(contents, planner.plan(), holders);
    contents.move_into_place(id);
}

/// Retires the regions that the plan replaces.
fn retire_displaced<P: Policy>(contents: &mut Contents<P>, plan: &Plan, holders: &mut impl Holders) {
    if plan.replaced().is_empty() {
        return;
    }
    contents.unpublish(plan.replaced(), holders);
    for (nth, &id) in plan.replaced().iter().enumerate() {
        contents.record_mut().count_replaced(plan.reason(nth));
        contents.retire(id);
    }
    contents.record_mut().close_batch();
}
