//! What a request that is no hit comes to: overlaps, gaps, and whether they fit.

use super::{Ask, Core, Found, Lookup, Total};
use crate::access::Access;
use crate::coverage;
use crate::policy::{Granule, Keeps, Need, Overlap, Policy};
use crate::range::PageRange;
use crate::regions::RegionId;

/// What a request that is no hit is made of. Kept to use its buffers again.
#[derive(Default)]
pub(super) struct Plan {
    /// Cached regions that serve parts of the request, in address order.
    pub(super) overlaps: Vec<RegionId>,
    /// Cached regions that overlap the request and give way: merged, or short of rights.
    pub(super) replaced: Vec<RegionId>,
    /// How many of these are short of rights.
    pub(super) short: usize,
    /// What no region covers.
    pub(super) gaps: Vec<PageRange>,
    /// What becomes a region each: the gaps, cut to size, or a hull.
    pub(super) pieces: Vec<Piece>,
    /// What the request found.
    pub(super) found: Found,
    pub(super) hit_pages: u64,
    /// The overlapping regions that stay, and the pieces, added up.
    pub(super) overlap_total: Total,
    pub(super) piece_total: Total,
    /// Whether the pieces replace what they overlap whole.
    pub(super) whole: bool,
}

/// What is registered as one region.
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
        self.gaps.clear();
        self.pieces.clear();
        self.overlap_total = Total::default();
        self.piece_total = Total::default();
        self.whole = false;
    }

    fn overlaps_any(&self) -> bool {
        !self.overlaps.is_empty() || !self.replaced.is_empty()
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
    pub(super) fn survey(&mut self, ask: &Ask, wanted: PageRange, plan: &mut Plan) -> Found {
        plan.clear();
        self.find_overlaps(ask, wanted, &mut plan.overlaps);
        for &id in &plan.overlaps {
            self.touch(id);
        }
        self.piece_together(ask, wanted, plan)
    }

    /// What serves the request, what gives way and what is missing, from all that overlaps it.
    #[inline(always)]
    fn piece_together(&self, ask: &Ask, wanted: PageRange, plan: &mut Plan) -> Found {
        if plan.overlaps.is_empty() {
            plan.hit_pages = 0;
            plan.gaps.push(wanted);
            self.cut_pieces(ask, plan);
            plan.found = Found::Miss;
            return Found::Miss;
        }
        let pages_in = |ids: &[RegionId]| {
            let parts = ids.iter().filter_map(|&id| self.regions.get(id).range().intersection(ask.range));
            parts.map(PageRange::pages).sum()
        };
        // Regions that grant too little give way, page by page.
        plan.overlaps.retain(|&id| {
            let serves = self.regions.get(id).access().contains(ask.access);
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
        self.cut_pieces(ask, plan);
        let found = if plan.pieces.is_empty() { Found::Covered } else { Found::Partial };
        plan.found = found;
        found
    }

    fn find_overlaps(&self, ask: &Ask, wanted: PageRange, found: &mut Vec<RegionId>) {
        match &self.lookups[ask.access.class()] {
            Lookup::Contain(index) => index.overlaps(wanted, &self.regions, found),
            // What is longer than a region can be was cut when it was registered: the parts are looked up.
            Lookup::Exact(regions) => {
                let longest = self.max_region_pages;
                if wanted.pages() / longest <= regions.len() as u64 {
                    found.extend(wanted.pieces(longest).filter_map(|part| regions.get(&part)));
                } else {
                    let is_part = |part: &PageRange| wanted.is_piece(*part, longest);
                    found.extend(regions.iter().filter(|(range, _)| is_part(range)).map(|(_, &id)| id));
                    found.sort_unstable_by_key(|&id| self.regions.get(id).range());
                }
            }
        }
    }

    /// Counts a request that was surveyed.
    pub(super) fn classify(&mut self, asked: PageRange, plan: &Plan) {
        self.counters.missed(plan.found, plan.hit_pages, asked.pages());
    }

    fn cut_pieces(&self, ask: &Ask, plan: &mut Plan) {
        if self.scheme.overlap != Overlap::Split && plan.overlaps_any() {
            let range = if self.scheme.overlap == Overlap::Merge { self.hull(ask, plan) } else { ask.range };
            // What one region cannot hold is split after all: merging it again and again is no use.
            if range.pages() <= self.max_region_pages {
                return plan.replace_all(Piece { range, access: ask.access });
            }
        }
        self.split(ask, plan);
        if plan.overlaps.len() + plan.pieces.len() > ask.max_segments {
            self.gather(ask, plan);
        }
    }

    /// The request with all that it overlaps, or alone where their rights differ: no page may gain one by its
    /// neighbours' request.
    fn hull(&self, ask: &Ask, plan: &Plan) -> PageRange {
        let overlaps = || plan.overlaps.iter().chain(&plan.replaced).map(|&id| self.regions.get(id));
        let alike = overlaps().all(|region| region.access() == ask.access);
        let hull = || overlaps().fold(ask.range, |hull, region| hull.hull(region.range()));
        if alike { hull() } else { ask.range }
    }

    /// Few pieces take the place of all that the request overlaps: one that spans it if it can be, or as few as the
    /// request takes.
    fn gather(&self, ask: &Ask, plan: &mut Plan) {
        let range = self.hull(ask, plan);
        if range.pages() <= self.max_region_pages.min(self.capacity) {
            plan.replace_all(Piece { range, access: ask.access });
        } else {
            self.take_over(ask, plan);
        }
    }

    /// A piece for each gap, or several where it is cut.
    fn split(&self, ask: &Ask, plan: &mut Plan) {
        let longest = match self.scheme.granule {
            Granule::Region => self.max_region_pages,
            Granule::Page => 1,
            Granule::Bucket(pages) => pages,
        };
        if let [gap] = plan.gaps[..]
            && plan.replaced.is_empty()
            && gap.pages() <= longest
        {
            plan.piece_total.add(gap.pages());
            plan.pieces.push(Piece { range: gap, access: ask.access });
            return;
        }
        plan.piece_total = Total {
            pages: plan.gaps.iter().map(|gap| gap.pages()).sum(),
            regions: plan.gaps.iter().map(|gap| gap.pages().div_ceil(longest)).sum(),
        };
        // What cannot be cached is not cut: there is no bound on the number of its pieces.
        let cacheable = plan.overlap_total.pages + plan.piece_total.pages <= self.capacity
            && plan.overlap_total.regions + plan.piece_total.regions <= self.max_regions
            && self.scheme.keeps != Keeps::Nothing;
        for &gap in &plan.gaps {
            let mut rest = Some(gap);
            // Pages of a region that is replaced keep the rights that they had.
            for short in plan.replaced.iter().map(|&id| self.regions.get(id)) {
                let Some(left) = rest else { break };
                let Some(shared) = left.intersection(short.range()) else { continue };
                if left.start() < shared.start() {
                    let range = PageRange::between(left.start(), shared.start());
                    plan.pieces.push(Piece { range, access: ask.access });
                }
                plan.pieces.push(Piece { range: shared, access: ask.access | short.access() });
                rest = (shared.end() < left.end()).then(|| PageRange::between(shared.end(), left.end()));
            }
            plan.pieces.extend(rest.map(|range| Piece { range, access: ask.access }));
        }
        if cacheable && plan.pieces.iter().any(|piece| piece.range.pages() > longest) {
            let whole = std::mem::take(&mut plan.pieces);
            let cut = whole.iter().flat_map(|piece| piece.range.pieces(longest).map(|range| Piece { range, ..*piece }));
            plan.pieces.extend(cut);
        }
        if plan.short > 0 {
            plan.piece_total.regions = plan.pieces.len() as u64;
        }
    }

    /// What does not fit beside the regions that it overlaps takes their place, where the limit is hard.
    pub(super) fn take_over(&self, ask: &Ask, plan: &mut Plan) {
        plan.replace_all(Piece { range: ask.range, access: ask.access });
        if ask.range.pages() > self.max_region_pages {
            plan.pieces.clear();
            let cut = ask.range.pieces(self.max_region_pages);
            plan.pieces.extend(cut.map(|range| Piece { range, access: ask.access }));
            plan.piece_total.regions = plan.pieces.len() as u64;
        }
    }

    /// Whether the request can be cached beside all that it overlaps.
    pub(super) fn fits(&self, plan: &Plan) -> bool {
        let has_room = self.scheme.keeps != Keeps::Forever || self.need(plan).is_met();
        let regions = plan.overlap_total.regions + plan.piece_total.regions;
        // Where nothing bypasses the limit, regions count too: overlaps stay, so they cannot make room.
        let has_places = !self.hard_limit || regions <= self.max_regions;
        has_room && has_places && plan.overlap_total.pages + plan.piece_total.pages <= self.capacity
    }

    /// What has to leave, besides what is replaced, before the pieces fit.
    pub(super) fn need(&self, plan: &Plan) -> Need {
        let replaced = self.replaced(plan);
        let pages = self.used.pages - replaced.pages + plan.piece_total.pages;
        let regions = self.used.regions - replaced.regions + plan.piece_total.regions;
        Need { pages: pages.saturating_sub(self.capacity), regions: regions.saturating_sub(self.max_regions) }
    }

    /// What leaves at once because the request replaces it.
    pub(super) fn replaced(&self, plan: &Plan) -> Total {
        let mut total = Total::default();
        let leaving = plan.replaced.iter().map(|&id| self.regions.get(id)).filter(|region| !region.in_use());
        leaving.for_each(|region| total.add(region.pages()));
        total
    }
}
