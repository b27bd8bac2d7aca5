//! The plan of a request: what it overlaps, what it lacks, whether that fits, and what gives way.
//!
//! A plan is made from a [`View`] and changes nothing. `room.rs` and `register.rs` carry it out.

use super::capacity::Total;
use super::holders::{Request, Sharing};
use super::outcome::Found;
use super::view::View;
use crate::access::Access;
use crate::cost::Linear;
use crate::coverage;
use crate::grid::{Cutter, Grid};
use crate::policy::{Granule, Keeps, Matching, Need, Overlap, Scheme};
use crate::range::PageRange;
use crate::regions::{RegionId, RegionState};
use crate::widen::{WIDEST, Widener};
pub(super) use plan::{Piece, Plan, Reason};

mod one_key;
mod plan;
mod widening;

/// Decides by the scheme. Owns the plan of the request at hand.
pub(super) struct Planner {
    scheme: Scheme,
    plan: Plan,
    /// None where registrations are exact.
    widener: Option<Box<Widener>>,
}

impl Planner {
    pub(super) fn new(scheme: Scheme, widener: Option<Widener>) -> Self {
        Self { scheme, plan: Plan::default(), widener: widener.map(Box::new) }
    }

    pub(super) fn scheme(&self) -> &Scheme {
        &self.scheme
    }

    /// Returns the plan that was made last.
    #[inline]
    pub(super) fn plan(&self) -> &Plan {
        &self.plan
    }

    // ---- Requests that need no plan ------------------------------------------------------------------

    /// Returns how much has to leave before there is room for the request as one more region.
    #[inline(always)]
    pub(super) fn need_lone(view: View<'_>, request: &Request) -> Need {
        view.capacity.shortfall(Total { pages: request.range.pages(), regions: 1 }, Total::default())
    }

    /// Returns whether the request overlaps nothing and becomes one region, once so much has left.
    #[inline(always)]
    pub(super) fn is_lone(&self, view: View<'_>, request: &Request, need: Need) -> bool {
        let &Request { range, access, sharing, .. } = request;
        let pages = range.pages();
        let stays = match self.scheme.keeps {
            Keeps::Nothing => false,
            Keeps::UntilEvicted => view.capacity.allows(Total { pages, regions: 1 }),
            Keeps::Forever => need.is_met(),
        };
        let is_one = pages <= view.capacity.region_pages() && self.scheme.granule == Granule::Region;
        if view.capacity.has_slices() && !view.capacity.cutter(request.blocks).keeps_whole(range) {
            return false;
        }
        // What may be widened needs a plan.
        let may_widen = self.widener.is_some() && request.mapping != range;
        if !stays || !is_one || sharing == Sharing::Nothing || may_widen {
            return false;
        }
        !view.lookup.has_overlap(access.class(), range, view.regions)
    }

    // ---- What a request overlaps and lacks -----------------------------------------------------------

    /// Returns the pages that are looked for: those asked for, rounded out to what the scheme registers.
    pub(super) fn wanted(&self, request: &Request) -> PageRange {
        match self.scheme.granule {
            Granule::Bucket(pages) => request.range.rounded_out(pages),
            Granule::Region | Granule::Page => request.range,
        }
    }

    /// Begins a plan: finds the regions that overlap the pages wanted for the request, or the one that serves it.
    pub(super) fn begin(&mut self, view: View<'_>, request: &Request, wanted: PageRange) {
        self.plan.clear();
        if view.has_one_key() {
            one_key::survey(view, request, &mut self.plan);
        } else {
            find_overlaps(view, request, wanted, &mut self.plan.overlaps);
        }
    }

    /// Completes the plan: the regions that serve the request, those that give way, and the pieces that are missing.
    #[inline]
    pub(super) fn complete(&mut self, view: View<'_>, request: &Request, wanted: PageRange) -> Found {
        if !view.has_one_key() {
            self.piece_together(view, request, wanted);
        }
        self.plan.found
    }

    /// Plans a request that may be a hit.
    pub(super) fn peek(&mut self, view: View<'_>, request: &Request) {
        if request.sharing == Sharing::Nothing {
            self.plan.clear();
            self.plan.found = Found::Miss;
            self.plan.hit_pages = 0;
            self.plan.cut_whole(request.range, request.access, view.capacity.cutter(request.blocks));
        } else if view.find_for(request).is_some() {
            // It lacks nothing.
            self.plan.clear();
            self.plan.found = Found::Covered;
            self.plan.hit_pages = request.range.pages();
        } else {
            let wanted = self.wanted(request);
            self.begin(view, request, wanted);
            self.complete(view, request, wanted);
        }
    }

    /// Finds the parts that serve the request, those that give way and those that are missing, from all that overlap
    /// it.
    #[inline(always)]
    fn piece_together(&mut self, view: View<'_>, request: &Request, wanted: PageRange) {
        let Self { scheme, plan, .. } = self;
        if plan.overlaps.is_empty() {
            plan.hit_pages = 0;
            plan.gaps.push(wanted);
            cut_pieces(scheme, view, request, plan);
            plan.found = Found::Miss;
            return;
        }
        let pages_in = |ids: &[RegionId]| {
            let parts = ids.iter().filter_map(|&id| view.regions.get(id).range().intersection(request.range));
            parts.map(PageRange::pages).sum()
        };
        // Regions that grant too little give way, page by page.
        plan.overlaps.retain(|&id| {
            let serves = view.regions.get(id).access().contains(request.access);
            if !serves {
                plan.replaced.push(id);
            }
            serves
        });
        plan.short = plan.replaced.len();
        plan.hit_pages = pages_in(&plan.overlaps);
        for &id in &plan.overlaps {
            plan.overlap_total.add(view.regions.pages(id));
        }
        if plan.overlaps.is_empty() {
            plan.gaps.push(wanted);
        } else {
            let covered = plan.overlaps.iter().map(|&id| view.regions.get(id).range());
            coverage::gaps(wanted, covered, &mut plan.gaps);
        }
        cut_pieces(scheme, view, request, plan);
        plan.found = if plan.is_served() { Found::Covered } else { Found::Partial };
    }

    // ---- Widening ------------------------------------------------------------------------------------

    /// Learns from a request, by how much to widen.
    #[inline(always)]
    pub(super) fn observe(&mut self, range: PageRange) {
        if let Some(widener) = &mut self.widener {
            widener.observe(range);
        }
    }

    /// Learns that memory changed. Regions that look-ups still find there leave.
    #[inline]
    pub(super) fn forget(&mut self, view: View<'_>, range: PageRange) {
        if let Some(widener) = &mut self.widener {
            let mut lost: Option<PageRange> = None;
            view.lookup.for_each_overlap(range, view.regions, |id| {
                let region = view.regions.get(id).range();
                lost = Some(lost.map_or(region, |lost| lost.hull(region)));
            });
            widener.forget(range, lost);
        }
    }

    /// Learns that a widened registration for this range failed.
    pub(super) fn refuse_widening(&mut self, range: PageRange) {
        if let Some(widener) = &mut self.widener {
            widener.refuse(range);
        }
    }

    /// Learns that what is around this range cannot be registered just now.
    pub(super) fn pause_widening(&mut self, range: PageRange) {
        if let Some(widener) = &mut self.widener {
            widener.pause(range);
        }
    }

    /// Learns whether pages around this range can be registered with it.
    pub(super) fn look_around(&mut self, range: PageRange, found: bool) {
        if let Some(widener) = &mut self.widener {
            widener.look(range, found);
        }
    }

    /// Has misses that are close to each other grow, where it widens.
    pub(super) fn begin_growth(&mut self) {
        if let Some(widener) = &mut self.widener {
            widener.begin_growth();
        }
    }

    /// Returns the pages around a request that widening may take. None where the request is registered as it is.
    pub(super) fn reach(&self, view: View<'_>, request: &Request) -> Option<PageRange> {
        let widener = self.widener.as_ref().filter(|widener| widening::may_widen(widener, request))?;
        Some(widener.reach(request.range, widening::room_to_grow(view))).filter(|&reach| reach != request.range)
    }

    /// Forgets by how much the last plan was widened.
    #[inline]
    pub(super) fn begin_request(&mut self) {
        self.plan.widened = 0;
    }

    pub(super) fn set_costs(&mut self, costs: &Linear) {
        if let Some(widener) = &mut self.widener {
            widener.set_costs(costs);
        }
    }

    /// Returns the bytes that widening takes.
    pub(super) fn memory(&self) -> usize {
        self.widener.as_ref().map_or(0, |widener| widener.memory())
    }

    /// Widens the pieces at the ends of the plan, where that was seen to pay and all still fits.
    pub(super) fn widen(&mut self, view: View<'_>, request: &Request) {
        if let Some(widener) = &mut self.widener {
            widening::widen(widener, view, request, &mut self.plan);
        }
    }

    /// Takes widening back: the pieces are the gaps again.
    pub(super) fn narrow(&mut self) {
        widening::narrow(&mut self.plan);
    }

    // ---- Changes of the plan -------------------------------------------------------------------------

    /// Replaces overlapped regions by pieces that do not fit beside them, where the limit is hard. Where their
    /// rights differ they stay, and the request gets regions of its own.
    pub(super) fn take_over(&mut self, view: View<'_>, request: &Request) {
        take_over(view, request, &mut self.plan);
    }

    /// Plans the request as regions of its own, which no other request shares.
    pub(super) fn set_aside(&mut self, view: View<'_>, request: &Request) -> Found {
        let found = if self.plan.aside { self.plan.found } else { Found::Miss };
        self.plan.clear();
        self.plan.cut_whole(request.range, request.access, view.capacity.cutter(request.blocks));
        found
    }

    /// Plans what is missing for this request alone: it is registered as it is.
    pub(super) fn bypass(&mut self, asked: PageRange) {
        let plan = &mut self.plan;
        // Nothing gives way to what is not kept.
        let whole = [asked];
        let ranges = if plan.whole { &whole[..] } else { &plan.gaps[..] };
        let access = plan.pieces.first().map_or(Access::LOCAL_READ, |piece| piece.access);
        plan.pieces.clear();
        plan.pieces.extend(ranges.iter().map(|&range| Piece { range, access }));
        plan.piece_total.pages = plan.pieces.iter().map(|piece| piece.range.pages()).sum();
    }

    /// Plans the request without its neighbours, with the rights of the plan, where it is answered by one region.
    pub(super) fn keep_to(&mut self, range: PageRange) {
        if let [Piece { access, .. }] = self.plan.pieces[..] {
            self.plan.set_piece(Piece { range, access });
        }
    }

    /// Finds the regions that give way to the region of the plan, where each request is answered by one region.
    pub(super) fn find_replaced(&mut self, view: View<'_>) {
        one_key::find_replaced(view, &mut self.plan);
    }

    /// Plans the publishing of regions: finds the published ones in the way of those that are replacements.
    pub(super) fn find_displaced(&mut self, view: View<'_>, ids: &[RegionId]) {
        let plan = &mut self.plan;
        plan.clear();
        let replacements = ids.iter().copied().filter(|&id| view.lookup.is_replacement(id, view.regions));
        replacements.for_each(|id| view.lookup.displaced(id, view.regions, &mut plan.overlaps));
        // A region can be in the way of several.
        plan.overlaps.sort_unstable();
        plan.overlaps.dedup();
        plan.overlaps.retain(|&old| {
            let region = view.regions.get(old);
            let new = view.lookup.replacement_near(region.access().class(), region.range(), view.regions);
            let is_short = new.is_some_and(|new| !region.access().contains(view.regions.get(new).access()));
            if is_short {
                plan.replaced.push(old);
            }
            !is_short
        });
        plan.short = plan.replaced.len();
        plan.replaced.append(&mut plan.overlaps);
    }

    /// The same for one region, where regions may overlap.
    pub(super) fn find_displaced_layers(&mut self, view: View<'_>, id: RegionId) {
        self.plan.clear();
        one_key::find_displaced(view, id, &mut self.plan);
    }

    // ---- Room ----------------------------------------------------------------------------------------

    /// Returns whether a region may have to leave before the request is served. A quick guess, which is no only where
    /// none has to.
    #[inline]
    pub(super) fn may_evict_for(&self, view: View<'_>, request: &Request) -> bool {
        let wanted = self.wanted(request);
        let cutter = cutter(&self.scheme, view, request);
        let fits = |pages: u64, regions: u64| view.capacity.fits(Total { pages, regions });
        if view.has_one_key() {
            // At most twice what was asked for, in one region.
            let hull = wanted.pages().saturating_mul(2).min(view.capacity.region_pages());
            return !fits(hull.max(self.widest(request, wanted)), 1);
        }
        let pieces = cutter.count(wanted);
        if !fits(self.widest(request, wanted), pieces) {
            return true;
        }
        let merges =
            self.scheme.overlap == Overlap::Merge || request.max_segments < usize::MAX || request.blocks.is_some();
        if !merges && fits(wanted.pages(), wanted.pages()) {
            return false;
        }
        // Overlapping regions may be merged with it. Each may cut a gap in two, and be a piece itself for want of a right.
        let (mut hull, mut overlaps) = (wanted, 0);
        view.lookup.for_each_overlap_in(request.access.class(), wanted, view.regions, |id| {
            hull = hull.hull(view.regions.get(id).range());
            overlaps += 1;
        });
        let most = if merges { hull.pages() } else { wanted.pages() };
        !fits(most.max(self.widest(request, wanted)), pieces + 2 * overlaps)
    }

    /// Returns the pages that a request takes when its ends are widened as far as they can be.
    #[inline]
    fn widest(&self, request: &Request, wanted: PageRange) -> u64 {
        if self.widener.is_none() || request.mapping == request.range {
            return wanted.pages();
        }
        // A block may make room. Growth takes free room only.
        let within = request.mapping.intersection(wanted.rounded_out(WIDEST));
        within.map_or(wanted.pages(), |within| wanted.hull(within).pages())
    }

    /// Returns whether the request can be cached beside all that it overlaps.
    pub(super) fn fits(&self, view: View<'_>) -> bool {
        let has_room = self.scheme.keeps != Keeps::Forever || self.need(view).is_met();
        // Where nothing bypasses the limit, regions count too: overlaps stay, so they cannot make room.
        let total = self.plan.total();
        let total = if view.capacity.is_hard() { total } else { Total { regions: 0, ..total } };
        has_room && view.capacity.allows(total)
    }

    /// Returns the room to make, beside replaced regions, before the pieces fit.
    #[inline]
    pub(super) fn need(&self, view: View<'_>) -> Need {
        view.capacity.shortfall(self.plan.piece_total, view.unheld_total(&self.plan.replaced))
    }

    /// Returns how much can leave besides replaced regions.
    pub(super) fn can_leave(&self, view: View<'_>) -> Need {
        let (unheld, replaced) = (view.capacity.unheld(), view.unheld_total(&self.plan.replaced));
        Need { pages: unheld.pages - replaced.pages, regions: unheld.regions - replaced.regions }
    }

    /// Returns whether both what the plan replaces and what it registers fit, so that the former stays until the
    /// latter is published.
    pub(super) fn stays_until_published(&self, view: View<'_>) -> bool {
        view.capacity.is_hard() && view.capacity.fits(self.plan.piece_total)
    }

    /// Returns a region that is being registered by another request and has a place that the plan needs.
    pub(super) fn in_the_way(&self, view: View<'_>) -> Option<RegionId> {
        if !view.capacity.is_hard() {
            return None;
        }
        let is_registering = |&&id: &&RegionId| view.regions.get(id).state() == RegionState::Registering;
        if let Some(&id) = self.plan.replaced.iter().find(is_registering) {
            return Some(id);
        }
        if !view.lookup.has_replacements() {
            return None;
        }
        let mut pieces = self.plan.pieces.iter();
        pieces.find_map(|piece| view.lookup.replacement_near(piece.access.class(), piece.range, view.regions))
    }

    /// Returns how many registrations the plan takes. Pages that become regions of their own are registered by runs.
    pub(super) fn registrations(&self, view: View<'_>) -> u64 {
        let longest = match self.scheme.granule {
            Granule::Region | Granule::Page => view.capacity.region_pages(),
            Granule::Bucket(pages) => pages,
        };
        let plan = &self.plan;
        if plan.whole || plan.short > 0 || self.scheme.granule == Granule::Region {
            plan.pieces.iter().map(|piece| piece.range.pages().div_ceil(longest)).sum()
        } else {
            plan.gaps.iter().map(|run| run.pages().div_ceil(longest)).sum()
        }
    }

    /// Returns whether regions may overlap, so that one answers each request: the ranges registered are those asked for.
    pub(super) fn allows_one_key(&self) -> bool {
        self.scheme.matching == Matching::Contain
            && self.scheme.granule == Granule::Region
            && self.scheme.overlap == Overlap::Split
    }
}

fn find_overlaps(view: View<'_>, request: &Request, wanted: PageRange, found: &mut Vec<RegionId>) {
    let longest = view.capacity.region_pages();
    view.lookup.overlaps(request.access.class(), wanted, longest, view.regions, found);
}

/// Returns how gaps are divided into pieces.
fn cutter(scheme: &Scheme, view: View<'_>, request: &Request) -> Cutter {
    match scheme.granule {
        Granule::Region => view.capacity.cutter(request.blocks),
        Granule::Page => Cutter::new(1, None),
        Granule::Bucket(pages) => Cutter::new(pages, None),
    }
}

fn cut_pieces(scheme: &Scheme, view: View<'_>, request: &Request, plan: &mut Plan) {
    if scheme.overlap != Overlap::Split && plan.overlaps_any() && is_alike(view, request, plan) {
        let range = if scheme.overlap == Overlap::Merge { hull(view, request, plan) } else { request.range };
        // A range that one region cannot hold is split after all: merging it again and again is no use.
        // Parts with different rights count as missing too: as one region they would lose some, or gain
        // unwanted ones.
        if range.pages() <= view.capacity.region_pages() {
            return plan.replace_all(Piece { range, access: request.access });
        }
    }
    split(scheme, view, request, plan);
    if let Some(blocks) = request.blocks
        && !is_divided_at(blocks, view, request, plan)
    {
        take_over(view, request, plan);
    }
    if plan.overlaps.len() + plan.pieces.len() > request.max_segments {
        gather(view, request, plan);
    }
}

/// Returns whether all bounds of regions within the request are lines of a grid.
fn is_divided_at(blocks: Grid, view: View<'_>, request: &Request, plan: &Plan) -> bool {
    let stay = plan.overlaps.iter().map(|&id| view.regions.get(id).range());
    let mut parts = stay.chain(plan.pieces.iter().map(|piece| piece.range));
    parts.all(|part| {
        let begins_inside = part.start() > request.range.start();
        let ends_inside = part.end() < request.range.end();
        (!begins_inside || blocks.divides(part.start())) && (!ends_inside || blocks.divides(part.end()))
    })
}

/// Returns whether all that the request overlaps has the rights that it asks for, and no others.
fn is_alike(view: View<'_>, request: &Request, plan: &Plan) -> bool {
    plan.overlaps.iter().chain(&plan.replaced).all(|&id| view.regions.get(id).access() == request.access)
}

/// Returns the request with all that it overlaps.
fn hull(view: View<'_>, request: &Request, plan: &Plan) -> PageRange {
    let overlaps = plan.overlaps.iter().chain(&plan.replaced).map(|&id| view.regions.get(id));
    overlaps.fold(request.range, |hull, region| hull.hull(region.range()))
}

/// Returns the rights of all pages of a request that was split, if they are the same. One region can have no
/// others: no page may gain a right by its neighbours' request, or lose one that it had.
fn common_access(view: View<'_>, request: &Request, plan: &Plan) -> Option<Access> {
    let stay = plan.overlaps.iter().map(|&id| view.regions.get(id).access());
    let mut all = plan.pieces.iter().map(|piece| piece.access).chain(stay);
    let first = all.next().unwrap_or(request.access);
    all.all(|access| access == first).then_some(first)
}

/// Few pieces take the place of all that the request overlaps. One spans it if it can be.
fn gather(view: View<'_>, request: &Request, plan: &mut Plan) {
    let range = if is_alike(view, request, plan) { hull(view, request, plan) } else { request.range };
    let is_one =
        view.capacity.cutter(request.blocks).keeps_whole(range) && range.pages() <= view.capacity.limit().pages;
    if range != request.range && is_one {
        plan.replace_all(Piece { range, access: request.access });
    } else {
        take_over(view, request, plan);
    }
}

fn take_over(view: View<'_>, request: &Request, plan: &mut Plan) {
    let Some(access) = common_access(view, request, plan) else {
        plan.aside = true;
        return;
    };
    plan.replace_all(Piece { range: request.range, access });
    plan.cut_whole(request.range, access, view.capacity.cutter(request.blocks));
}

/// A piece for each gap, or several where it is cut.
fn split(scheme: &Scheme, view: View<'_>, request: &Request, plan: &mut Plan) {
    let cutter = cutter(scheme, view, request);
    if let [gap] = plan.gaps[..]
        && plan.replaced.is_empty()
        && cutter.keeps_whole(gap)
    {
        plan.piece_total.add(gap.pages());
        plan.pieces.push(Piece { range: gap, access: request.access });
        return;
    }
    plan.piece_total = Total {
        pages: plan.gaps.iter().map(|gap| gap.pages()).sum(),
        regions: plan.gaps.iter().map(|&gap| cutter.count(gap)).sum(),
    };
    // A range that cannot be cached is not cut: there is no bound on the number of its pieces. Under a hard limit there is
    // one, and each piece is a region of its own, cached or not.
    let is_kept = scheme.keeps != Keeps::Nothing || view.capacity.is_hard();
    let cacheable = view.capacity.allows(plan.total()) && is_kept;
    // Gaps and regions are in address order: those behind a gap are looked at once, whatever their number.
    let mut replaced = plan.replaced.iter().map(|&id| view.regions.get(id)).peekable();
    for &gap in &plan.gaps {
        let mut start = gap.start();
        // Pages of a region that is replaced keep the rights that they had.
        while let Some(short) = replaced.peek().copied().filter(|short| short.range().start() < gap.end()) {
            if let Some(shared) = short.range().intersection(gap) {
                if start < shared.start() {
                    let range = PageRange::between(start, shared.start());
                    plan.pieces.push(Piece { range, access: request.access });
                }
                plan.pieces.push(Piece { range: shared, access: request.access | short.access() });
                start = shared.end();
            }
            if short.range().end() > gap.end() {
                // The next gap may have pages of it too.
                break;
            }
            replaced.next();
        }
        if start < gap.end() {
            let range = PageRange::between(start, gap.end());
            plan.pieces.push(Piece { range, access: request.access });
        }
    }
    if cacheable && plan.pieces.iter().any(|piece| !cutter.keeps_whole(piece.range)) {
        let whole = std::mem::take(&mut plan.pieces);
        let cut = whole.iter().flat_map(|piece| cutter.cut(piece.range).map(|range| Piece { range, ..*piece }));
        plan.pieces.extend(cut);
    }
    if plan.short > 0 && cacheable {
        plan.piece_total.regions = plan.pieces.len() as u64;
    }
}
