//! What a request that is no hit comes to: overlaps, gaps, and whether they fit.

use super::{Core, Found, Lookup, Total};
use crate::coverage;
use crate::policy::{Granule, Keeps, Need, Overlap, Policy};
use crate::range::PageRange;
use crate::regions::RegionId;

/// What a request that is no hit is made of. Kept to use its buffers again.
#[derive(Default)]
pub(super) struct Plan {
    /// Cached regions that overlap the request, in address order.
    pub(super) overlaps: Vec<RegionId>,
    /// What no region covers.
    pub(super) gaps: Vec<PageRange>,
    /// What becomes a region each: the gaps, cut to size, or a hull.
    pub(super) pieces: Vec<PageRange>,
    /// The overlapping regions and the pieces, added up.
    pub(super) overlap_total: Total,
    pub(super) piece_total: Total,
    /// Whether the overlapping regions give way.
    pub(super) replaces: bool,
}

impl Plan {
    pub(super) fn found(&self) -> Found {
        match (self.pieces.is_empty(), self.overlaps.is_empty()) {
            (true, _) => Found::Covered,
            (false, true) => Found::Miss,
            (false, false) => Found::Partial,
        }
    }
}

impl<P: Policy> Core<P> {
    /// Finds what overlaps the request and what is missing of the pages wanted for it, and moves the
    /// overlapping regions to the top.
    pub(super) fn survey(&mut self, asked: PageRange, wanted: PageRange, plan: &mut Plan) -> Found {
        plan.overlaps.clear();
        plan.gaps.clear();
        plan.pieces.clear();
        plan.overlap_total = Total::default();
        plan.piece_total = Total::default();
        plan.replaces = false;
        match &self.lookup {
            Lookup::Contain(index) => index.overlaps(wanted, &self.regions, &mut plan.overlaps),
            // What is longer than a region can be was cut when it was registered: the parts are looked up.
            Lookup::Exact(regions) => {
                let longest = self.max_region_pages;
                if wanted.pages() / longest <= regions.len() as u64 {
                    plan.overlaps.extend(wanted.pieces(longest).filter_map(|part| regions.get(&part)));
                } else {
                    let is_part = |part: &PageRange| wanted.is_piece(*part, longest);
                    plan.overlaps.extend(regions.iter().filter(|(range, _)| is_part(range)).map(|(_, &id)| id));
                    plan.overlaps.sort_unstable_by_key(|&id| self.regions.get(id).range());
                }
            }
        }
        for &id in &plan.overlaps {
            plan.overlap_total.add(self.regions.pages(id));
            self.touch(id);
        }
        if plan.overlaps.is_empty() {
            plan.gaps.push(wanted);
        } else {
            let covered = plan.overlaps.iter().map(|&id| self.regions.get(id).range());
            coverage::gaps(wanted, covered, &mut plan.gaps);
        }
        self.cut_pieces(asked, plan);
        plan.found()
    }

    /// Counts a request that was surveyed.
    pub(super) fn classify(&mut self, asked: PageRange, plan: &Plan) {
        let parts = plan.overlaps.iter().filter_map(|&id| self.regions.get(id).range().intersection(asked));
        self.counters.missed(plan.found(), parts.map(PageRange::pages).sum(), asked.pages());
    }

    fn cut_pieces(&self, asked: PageRange, plan: &mut Plan) {
        if self.scheme.overlap != Overlap::Split && !plan.overlaps.is_empty() {
            let hull = plan.overlaps.iter().fold(asked, |hull, &id| hull.hull(self.regions.get(id).range()));
            let whole = if self.scheme.overlap == Overlap::Merge { hull } else { asked };
            // What one region cannot hold is split after all: merging it again and again is no use.
            if whole.pages() <= self.max_region_pages {
                plan.replaces = true;
                plan.pieces.push(whole);
                plan.piece_total.add(whole.pages());
                return;
            }
        }
        let longest = match self.scheme.granule {
            Granule::Region => self.max_region_pages,
            Granule::Page => 1,
            Granule::Bucket(pages) => pages,
        };
        plan.piece_total = Total {
            pages: plan.gaps.iter().map(|gap| gap.pages()).sum(),
            regions: plan.gaps.iter().map(|gap| gap.pages().div_ceil(longest)).sum(),
        };
        // What cannot be cached is not cut: there is no bound on the number of its pieces.
        let cacheable = plan.overlap_total.pages + plan.piece_total.pages <= self.capacity
            && plan.overlap_total.regions + plan.piece_total.regions <= self.max_regions
            && self.scheme.keeps != Keeps::Nothing;
        for gap in &plan.gaps {
            if gap.pages() <= longest || !cacheable {
                plan.pieces.push(*gap);
            } else {
                plan.pieces.extend(gap.pieces(longest));
            }
        }
    }

    /// Whether the request can be cached beside all that it overlaps.
    pub(super) fn fits(&self, plan: &Plan) -> bool {
        let kept_pages = if plan.replaces { 0 } else { plan.overlap_total.pages };
        let has_room = self.scheme.keeps != Keeps::Forever || self.need(plan).is_met();
        has_room && kept_pages + plan.piece_total.pages <= self.capacity
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
        if plan.replaces {
            let leaving = plan.overlaps.iter().map(|&id| self.regions.get(id)).filter(|region| !region.in_use());
            leaving.for_each(|region| total.add(region.pages()));
        }
        total
    }
}
