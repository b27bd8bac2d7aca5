//! One-key mode: each request is answered by one region, and regions may overlap.
//!
//! A request that no region contains registers one region: itself, or its hull with regions of the same rights that it
//! overlaps, as long as that has at most twice its pages. So there are no more registrations than requests, and at most
//! twice the pages, in any sequence.
//!
//! It is registered with the rights asked for and those of the regions that contain it: no page gets a right that it did
//! not have and that was not asked for it. Other regions stay, and overlap the new one, with two exceptions. Those that
//! the new one covers, with their rights at least, retire when it is published, and before if there is
//! no room for both. And where a page would have more than four regions, those of one layer are replaced, the one where they
//! have the fewest pages.

use super::super::holders::Request;
use super::super::outcome::Found;
use super::super::view::View;
use super::plan::{Piece, Plan};
use crate::coverage;
use crate::range::PageRange;
use crate::regions::RegionId;

/// A region is registered with neighbours if it has at most so many times the pages asked for.
const MOST_GROWTH: u64 = 2;

/// Fills in the empty plan of a request that found no region.
pub(super) fn survey(view: View<'_>, request: &Request, plan: &mut Plan) {
    let &Request { range, access, .. } = request;
    if let Some(id) = view.find_granting(access.class(), range, access) {
        plan.overlaps.push(id);
        plan.overlap_total.add(view.regions.pages(id));
        plan.hit_pages = range.pages();
        plan.found = Found::Covered;
        return;
    }
    super::find_overlaps(view, request, range, &mut plan.overlaps);
    let facts = |&id: &RegionId| (view.regions.get(id).range(), view.regions.get(id).access());
    let overlaps = plan.overlaps.iter().map(facts);
    plan.found = if plan.overlaps.is_empty() { Found::Miss } else { Found::Partial };
    let serving = overlaps.clone().filter(|(_, has)| has.contains(access)).map(|(region, _)| region);
    coverage::gaps(range, serving, &mut plan.gaps);
    plan.hit_pages = range.pages() - plan.gaps.iter().map(|gap| gap.pages()).sum::<u64>();
    plan.gaps.clear();
    let containing = overlaps.clone().filter(|(region, _)| region.contains(range));
    let access = containing.fold(access, |all, (_, has)| all | has);
    let alike = overlaps.filter(|&(_, has)| has == access).map(|(region, _)| region);
    let longest =
        range.pages().saturating_mul(MOST_GROWTH).min(view.capacity.region_pages()).min(view.capacity.limit().pages);
    let range = hull(range, alike, longest);
    plan.overlaps.clear();
    plan.set_piece(Piece { range, access });
}

/// Finds the regions that give way to the region of the plan: those that overlap it too deep and, if there is no room for
/// both, those that it covers.
pub(super) fn find_replaced(view: View<'_>, plan: &mut Plan) {
    let [piece] = plan.pieces[..] else { return };
    plan.replaced.clear();
    plan.short = 0;
    let fits_beside = view.capacity.fits(plan.piece_total);
    if !fits_beside {
        find_covered(view, piece, None, plan);
    }
    find_crowded(view, piece, !fits_beside, plan);
}

/// Finds the published regions that leave when a region is published: those that it covers, and those in its way.
pub(super) fn find_displaced(view: View<'_>, id: RegionId, plan: &mut Plan) {
    let region = view.regions.get(id);
    let piece = Piece { range: region.range(), access: region.access() };
    find_covered(view, piece, Some(id), plan);
    if view.lookup.is_replacement(id, view.regions) {
        find_crowded(view, piece, true, plan);
    }
}

/// Appends the regions that a piece covers, those that are short of its rights first.
fn find_covered(view: View<'_>, piece: Piece, except: Option<RegionId>, plan: &mut Plan) {
    let Some(layers) = view.lookup.layers(piece.access.class()) else { return };
    let is_short = |id: RegionId| view.regions.get(id).access() != piece.access;
    layers.overlaps(piece.range, view.regions, &mut plan.replaced);
    plan.replaced.retain(|&id| Some(id) != except && is_covered(view, id, piece));
    plan.replaced.sort_by_key(|&id| !is_short(id));
    plan.short = plan.replaced.partition_point(|&id| is_short(id));
}

/// Appends the regions that overlap a piece too deep. `covered_leave`: those that it covers leave anyway.
fn find_crowded(view: View<'_>, piece: Piece, covered_leave: bool, plan: &mut Plan) {
    let Some(layers) = view.lookup.layers(piece.access.class()) else { return };
    plan.crowded = plan.replaced.len();
    let leaves = |id| covered_leave && is_covered(view, id, piece);
    layers.crowded_out(piece.range, view.regions, leaves, &mut plan.replaced);
    plan.crowded = plan.replaced.len() - plan.crowded;
}

/// Returns whether a region has no page and no right that is not the piece's.
fn is_covered(view: View<'_>, id: RegionId, piece: Piece) -> bool {
    let region = view.regions.get(id);
    piece.range.contains(region.range()) && piece.access.contains(region.access())
}

/// Returns the range with those of the regions, nearest first, with which it has at most so many pages.
fn hull(range: PageRange, regions: impl Iterator<Item = PageRange>, longest: u64) -> PageRange {
    let mut joined: Vec<_> = regions.map(|region| range.hull(region)).collect();
    joined.sort_unstable_by_key(|joined| joined.pages());
    joined.into_iter().fold(range, |hull, joined| {
        let more = hull.hull(joined);
        if more.pages() <= longest { more } else { hull }
    })
}
