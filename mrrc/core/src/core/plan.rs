//! The plan of a request that is no hit: overlaps, gaps, and whether they fit.

use super::{Core, Found, Request, Sharing, Total};
use crate::access::Access;
use crate::coverage;
use crate::policy::{Granule, Keeps, Need, Overlap, Policy};
use crate::range::PageRange;
use crate::regions::RegionId;

/// The parts of a request that is no hit. Kept to use its buffers again.
#[derive(Default)]
pub(super) struct Plan {
    /// Cached regions that serve parts of the request, in address order.
    pub(super) overlaps: Vec<RegionId>,
    /// Cached regions that overlap the request and give way: merged, or short of rights.
    pub(super) replaced: Vec<RegionId>,
    /// How many of these are short of rights.
    pub(super) short: usize,
    /// The parts without a region.
    pub(super) gaps: Vec<PageRange>,
    /// The ranges that become a region each: the gaps, cut to size, or a hull.
    pub(super) pieces: Vec<Piece>,
    /// The result of the look-up.
    pub(super) found: Found,
    pub(super) hit_pages: u64,
    /// The overlapping regions that stay, and the pieces, added up.
    pub(super) overlap_total: Total,
    pub(super) piece_total: Total,
    /// How many of what gives way, the last of them, do so because too many regions would overlap.
    pub(super) crowded: usize,
    /// Whether the pieces replace what they overlap whole.
    pub(super) whole: bool,
    /// Whether one region cannot have what the pages have now and need: it is registered for the request alone.
    pub(super) aside: bool,
}

/// A range to register as one region.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    pub(super) range: PageRange,
    pub(super) access: Access,
}

impl Plan {
    pub(super) fn clear(&mut self) {
        self.overlaps.clear();
        self.replaced.clear();
        self.short = 0;
        self.crowded = 0;
        self.gaps.clear();
        self.pieces.clear();
        self.overlap_total = Total::default();
        self.piece_total = Total::default();
        self.whole = false;
        self.aside = false;
    }

    /// Returns whether nothing is to be registered.
    pub(super) fn is_served(&self) -> bool {
        self.pieces.is_empty() && !self.aside
    }

    /// The overlapping regions that stay, and the pieces.
    fn total(&self) -> Total {
        let (stay, new) = (self.overlap_total, self.piece_total);
        Total { pages: stay.pages + new.pages, regions: stay.regions + new.regions }
    }

    fn overlaps_any(&self) -> bool {
        !self.overlaps.is_empty() || !self.replaced.is_empty()
    }

    /// One piece is registered.
    pub(super) fn set_piece(&mut self, piece: Piece) {
        self.whole = true;
        self.pieces.clear();
        self.pieces.push(piece);
        self.piece_total = Total::default();
        self.piece_total.add(piece.range.pages());
        self.short = 0;
    }

    /// One piece takes the place of all that the request overlaps.
    fn replace_all(&mut self, piece: Piece) {
        self.whole = true;
        self.replaced.append(&mut self.overlaps);
        self.overlap_total = Total::default();
        self.pieces.clear();
        self.pieces.push(piece);
        self.piece_total = Total::default();
        self.piece_total.add(piece.range.pages());
    }
}

impl<P: Policy> Core<P> {
    /// Finds what overlaps the request and what is missing of the pages wanted for it, and moves the
    /// overlapping regions to the top.
    pub(super) fn survey(&mut self, request: &Request, wanted: PageRange, plan: &mut Plan) -> Found {
        if self.has_one_key() {
            return self.survey_one(request, plan);
        }
        plan.clear();
        self.find_overlaps(request, wanted, &mut plan.overlaps);
        for &id in &plan.overlaps {
            self.touch(id);
        }
        self.piece_together(request, wanted, plan)
    }

    /// Finds the parts that serve the request, those that give way and those that are missing, from all that overlap
    /// it.
    #[inline(always)]
    fn piece_together(&self, request: &Request, wanted: PageRange, plan: &mut Plan) -> Found {
        if plan.overlaps.is_empty() {
            plan.hit_pages = 0;
            plan.gaps.push(wanted);
            self.cut_pieces(request, plan);
            plan.found = Found::Miss;
            return Found::Miss;
        }
        let pages_in = |ids: &[RegionId]| {
            let parts = ids.iter().filter_map(|&id| self.regions.get(id).range().intersection(request.range));
            parts.map(PageRange::pages).sum()
        };
        // Regions that grant too little give way, page by page.
        plan.overlaps.retain(|&id| {
            let serves = self.regions.get(id).access().contains(request.access);
            if !serves {
                plan.replaced.push(id);
            }
            serves
        });
        plan.short = plan.replaced.len();
        plan.hit_pages = pages_in(&plan.overlaps);
        for &id in &plan.overlaps {
            plan.overlap_total.add(self.regions.pages(id));
        }
        if plan.overlaps.is_empty() {
            plan.gaps.push(wanted);
        } else {
            let covered = plan.overlaps.iter().map(|&id| self.regions.get(id).range());
            coverage::gaps(wanted, covered, &mut plan.gaps);
        }
        self.cut_pieces(request, plan);
        let found = if plan.is_served() { Found::Covered } else { Found::Partial };
        plan.found = found;
        found
    }

    pub(super) fn find_overlaps(&self, request: &Request, wanted: PageRange, found: &mut Vec<RegionId>) {
        let longest = self.capacity.region_pages();
        self.lookup.overlaps(request.access.class(), wanted, longest, &self.regions, found);
    }

    /// Counts a request that was surveyed.
    pub(super) fn classify(&mut self, asked: PageRange, plan: &Plan) {
        self.counters.missed(plan.found, plan.hit_pages, asked.pages());
    }

    fn cut_pieces(&self, request: &Request, plan: &mut Plan) {
        if self.scheme.overlap != Overlap::Split && plan.overlaps_any() && self.is_alike(request, plan) {
            let range = if self.scheme.overlap == Overlap::Merge { self.hull(request, plan) } else { request.range };
            // A range that one region cannot hold is split after all: merging it again and again is no use.
            // Parts with different rights count as missing too: as one region they would lose some, or gain
            // unwanted ones.
            if range.pages() <= self.capacity.region_pages() {
                return plan.replace_all(Piece { range, access: request.access });
            }
        }
        self.split(request, plan);
        if plan.overlaps.len() + plan.pieces.len() > request.max_segments {
            self.gather(request, plan);
        }
    }

    /// Returns whether all that the request overlaps has the rights that it asks for, and no others.
    fn is_alike(&self, request: &Request, plan: &Plan) -> bool {
        plan.overlaps.iter().chain(&plan.replaced).all(|&id| self.regions.get(id).access() == request.access)
    }

    /// Returns the request with all that it overlaps.
    fn hull(&self, request: &Request, plan: &Plan) -> PageRange {
        let overlaps = plan.overlaps.iter().chain(&plan.replaced).map(|&id| self.regions.get(id));
        overlaps.fold(request.range, |hull, region| hull.hull(region.range()))
    }

    /// Returns the rights of all pages of a request that was split, if they are the same. One region can have no
    /// others: no page may gain a right by its neighbours' request, or lose one that it had.
    fn common_access(&self, request: &Request, plan: &Plan) -> Option<Access> {
        let stay = plan.overlaps.iter().map(|&id| self.regions.get(id).access());
        let mut all = plan.pieces.iter().map(|piece| piece.access).chain(stay);
        let first = all.next().unwrap_or(request.access);
        all.all(|access| access == first).then_some(first)
    }

    /// Few pieces take the place of all that the request overlaps: one that spans it if it can be, or as few as the
    /// request takes.
    fn gather(&self, request: &Request, plan: &mut Plan) {
        let range = if self.is_alike(request, plan) { self.hull(request, plan) } else { request.range };
        if range != request.range && range.pages() <= self.capacity.region_pages().min(self.capacity.limit().pages) {
            plan.replace_all(Piece { range, access: request.access });
        } else {
            self.take_over(request, plan);
        }
    }

    /// A piece for each gap, or several where it is cut.
    fn split(&self, request: &Request, plan: &mut Plan) {
        let longest = match self.scheme.granule {
            Granule::Region => self.capacity.region_pages(),
            Granule::Page => 1,
            Granule::Bucket(pages) => pages,
        };
        if let [gap] = plan.gaps[..]
            && plan.replaced.is_empty()
            && gap.pages() <= longest
        {
            plan.piece_total.add(gap.pages());
            plan.pieces.push(Piece { range: gap, access: request.access });
            return;
        }
        plan.piece_total = Total {
            pages: plan.gaps.iter().map(|gap| gap.pages()).sum(),
            regions: plan.gaps.iter().map(|gap| gap.pages().div_ceil(longest)).sum(),
        };
        // A range that cannot be cached is not cut: there is no bound on the number of its pieces. Under a hard limit there is
        // one, and each piece is a region of its own, cached or not.
        let is_kept = self.scheme.keeps != Keeps::Nothing || self.capacity.is_hard();
        let cacheable = self.capacity.allows(plan.total()) && is_kept;
        // Gaps and regions are in address order: those behind a gap are looked at once, whatever their number.
        let mut replaced = plan.replaced.iter().map(|&id| self.regions.get(id)).peekable();
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
        if cacheable && plan.pieces.iter().any(|piece| piece.range.pages() > longest) {
            let whole = std::mem::take(&mut plan.pieces);
            let cut = whole.iter().flat_map(|piece| piece.range.pieces(longest).map(|range| Piece { range, ..*piece }));
            plan.pieces.extend(cut);
        }
        if plan.short > 0 && cacheable {
            plan.piece_total.regions = plan.pieces.len() as u64;
        }
    }

    /// Replaces overlapped regions by pieces that do not fit beside them, where the limit is hard. Where their
    /// rights differ they stay, and the request gets regions of its own.
    pub(super) fn take_over(&self, request: &Request, plan: &mut Plan) {
        let Some(access) = self.common_access(request, plan) else {
            plan.aside = true;
            return;
        };
        plan.replace_all(Piece { range: request.range, access });
        self.cut_whole(request, plan, access);
    }

    /// The request alone, in as few pieces as it takes.
    pub(super) fn cut_whole(&self, request: &Request, plan: &mut Plan, access: Access) {
        plan.whole = true;
        plan.pieces.clear();
        plan.pieces.extend(request.range.pieces(self.capacity.region_pages()).map(|range| Piece { range, access }));
        plan.piece_total = Total { pages: request.range.pages(), regions: plan.pieces.len() as u64 };
    }

    /// Returns the pages that are looked for: those asked for, rounded out to what the scheme registers.
    pub(super) fn wanted(&self, request: &Request) -> PageRange {
        match self.scheme.granule {
            Granule::Bucket(pages) => request.range.rounded_out(pages),
            Granule::Region | Granule::Page => request.range,
        }
    }

    /// Returns whether a region may have to leave before the request is served. A quick guess, which is no only where
    /// none has to.
    pub fn may_evict_for(&self, request: &Request) -> bool {
        let wanted = self.wanted(request);
        let longest = match self.scheme.granule {
            Granule::Region => self.capacity.region_pages(),
            Granule::Page => 1,
            Granule::Bucket(pages) => pages,
        };
        let fits = |pages: u64, regions: u64| self.capacity.fits(Total { pages, regions });
        if self.has_one_key() {
            // At most twice what was asked for, in one region.
            return !fits(wanted.pages().saturating_mul(2).min(longest), 1);
        }
        let pieces = wanted.pages().div_ceil(longest);
        if !fits(wanted.pages(), pieces) {
            return true;
        }
        let merges = self.scheme.overlap == Overlap::Merge || request.max_segments < usize::MAX;
        if !merges && fits(wanted.pages(), wanted.pages()) {
            return false;
        }
        // Overlapping regions may be merged with it, or cut the gap between two pieces.
        let (mut hull, mut overlaps) = (wanted, 0);
        self.for_each_overlap(wanted, |id| {
            hull = hull.hull(self.regions.get(id).range());
            overlaps += 1;
        });
        !fits(if merges { hull.pages() } else { wanted.pages() }, pieces + overlaps)
    }

    /// The request is refused before it was planned, because what is missing of it cannot be registered. Counts it.
    /// False, and nothing is counted, if nothing is missing.
    pub fn refuse_missing(&mut self, request: &Request, members: &[PageRange]) -> bool {
        let mut plan = std::mem::take(&mut self.plan);
        self.peek(request, &mut plan);
        let missing = !plan.is_served();
        if missing && !request.again {
            let whole = [request.range];
            for &range in if members.is_empty() { &whole[..] } else { members } {
                self.peek(&Request { range, ..*request }, &mut plan);
                self.classify(range, &plan);
            }
        }
        self.plan = plan;
        missing
    }

    /// As [`Core::survey`], and moves nothing.
    fn peek(&self, request: &Request, plan: &mut Plan) {
        plan.clear();
        let wanted = self.wanted(request);
        if request.sharing == Sharing::Nothing {
            plan.found = Found::Miss;
            plan.hit_pages = 0;
            self.cut_whole(request, plan, request.access);
        } else if self.find_for(request).is_some() {
            // It lacks nothing.
        } else if self.has_one_key() {
            self.plan_one(request, plan);
        } else {
            self.find_overlaps(request, wanted, &mut plan.overlaps);
            self.piece_together(request, wanted, plan);
        }
    }

    /// Returns whether the request can be cached beside all that it overlaps.
    pub(super) fn fits(&self, plan: &Plan) -> bool {
        let has_room = self.scheme.keeps != Keeps::Forever || self.need(plan).is_met();
        // Where nothing bypasses the limit, regions count too: overlaps stay, so they cannot make room.
        let total = if self.capacity.is_hard() { plan.total() } else { Total { regions: 0, ..plan.total() } };
        has_room && self.capacity.allows(total)
    }

    /// Returns the room to make, beside replaced regions, before the pieces fit.
    pub(super) fn need(&self, plan: &Plan) -> Need {
        self.capacity.shortfall(plan.piece_total, self.replaced(plan))
    }

    /// Returns whether the pieces have room beside what they replace, and no region has to leave.
    pub(super) fn fits_beside(&self, plan: &Plan) -> bool {
        self.capacity.fits(plan.piece_total)
    }

    /// Returns the size of the regions that leave at once because the request replaces them.
    pub(super) fn replaced(&self, plan: &Plan) -> Total {
        let mut total = Total::default();
        let leaving = plan.replaced.iter().map(|&id| self.regions.get(id)).filter(|region| !region.in_use());
        leaving.for_each(|region| total.add(region.pages()));
        total
    }
}
