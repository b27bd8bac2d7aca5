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

use super::plan::{Piece, Plan};
use super::{AllInUse, Core, Found, Holders, Lookup, Part, Request};
use crate::coverage;
use crate::policy::{Granule, Keeps, Matching, Overlap, Policy};
use crate::range::PageRange;
use crate::regions::RegionId;

/// A region is registered with neighbours if it has at most so many times the pages asked for.
const MOST_GROWTH: u64 = 2;

impl<P: Policy> Core<P> {
    /// From now on the capacity is a [hard limit](Core::limit_hard), and each request is answered by one region, whatever
    /// [`Request::max_segments`] says: cached regions may overlap. Before the first request. A policy that registers other ranges than those asked for
    /// (pages, buckets, unions) or matches them exactly goes on as before.
    pub fn use_one_key(&mut self) {
        self.limit_hard();
        let is_plain = self.scheme.matching == Matching::Contain
            && self.scheme.granule == Granule::Region
            && self.scheme.overlap == Overlap::Split;
        if is_plain {
            debug_assert!(self.regions.is_empty(), "before the first request");
            self.lookup = Lookup::in_layers();
        }
    }

    /// Returns whether each request is answered by one region, and regions may overlap.
    #[inline]
    pub fn has_one_key(&self) -> bool {
        self.lookup.layers(0).is_some()
    }

    /// Returns the plan of a request that found no region. Changes nothing but the plan.
    pub(super) fn plan_one(&self, request: &Request, plan: &mut Plan) -> Found {
        let &Request { range, access, .. } = request;
        plan.clear();
        if let Some(id) = self.find_granting(access.class(), range, access) {
            plan.overlaps.push(id);
            plan.overlap_total.add(self.regions.pages(id));
            plan.hit_pages = range.pages();
            plan.found = Found::Covered;
            return plan.found;
        }
        self.find_overlaps(request, range, &mut plan.overlaps);
        let facts = |&id: &RegionId| (self.regions.get(id).range(), self.regions.get(id).access());
        let overlaps = plan.overlaps.iter().map(facts);
        plan.found = if plan.overlaps.is_empty() { Found::Miss } else { Found::Partial };
        let serving = overlaps.clone().filter(|(_, has)| has.contains(access)).map(|(region, _)| region);
        coverage::gaps(range, serving, &mut plan.gaps);
        plan.hit_pages = range.pages() - plan.gaps.iter().map(|gap| gap.pages()).sum::<u64>();
        plan.gaps.clear();
        let containing = overlaps.clone().filter(|(region, _)| region.contains(range));
        let access = containing.fold(access, |all, (_, has)| all | has);
        let alike = overlaps.filter(|&(_, has)| has == access).map(|(region, _)| region);
        let longest = range
            .pages()
            .saturating_mul(MOST_GROWTH)
            .min(self.capacity.region_pages())
            .min(self.capacity.limit().pages);
        let range = hull(range, alike, longest);
        plan.overlaps.clear();
        plan.set_piece(Piece { range, access });
        plan.found
    }

    /// The same, and the region that serves the request moves to the top.
    pub(super) fn survey_one(&mut self, request: &Request, plan: &mut Plan) -> Found {
        let found = self.plan_one(request, plan);
        plan.overlaps.iter().for_each(|&id| self.touch(id));
        found
    }

    /// Makes room for the region of the plan, and registers it.
    pub(super) fn execute_one(
        &mut self,
        request: &Request,
        found: Found,
        plan: &mut Plan,
        holders: &mut impl Holders,
    ) -> Result<(), AllInUse> {
        self.outcome.start(found);
        let Some(&Piece { range, access }) = plan.pieces.first() else {
            self.add_parts(request.range, plan, false);
            return Ok(());
        };
        let mut in_the_way = self.make_room_for_one(request, plan, holders);
        if in_the_way.is_err() && range != request.range {
            // With its neighbours it finds no room; by itself it may.
            self.counters.all_in_use -= 1;
            plan.set_piece(Piece { range: request.range, access });
            in_the_way = self.make_room_for_one(request, plan, holders);
        }
        match in_the_way? {
            Some(region) => self.outcome.push(Part::Registering { region, range: request.range }),
            None => self.admit(request.range, plan),
        }
        Ok(())
    }

    /// Makes room, unless a region that is being registered is in the way: that one is returned.
    fn make_room_for_one(
        &mut self,
        request: &Request,
        plan: &mut Plan,
        holders: &mut impl Holders,
    ) -> Result<Option<RegionId>, AllInUse> {
        if self.scheme.keeps == Keeps::Forever && !self.need(plan).is_met() {
            return Err(self.refuse(request.range, self.need(plan)));
        }
        self.find_replaced(plan);
        let in_the_way = self.in_the_way(plan);
        if in_the_way.is_none() {
            self.make_room(request.range, plan, holders)?;
        }
        Ok(in_the_way)
    }

    /// Finds the regions that give way to the region of the plan: those that it covers, if there is no room for both, and
    /// those that overlap it too deep.
    fn find_replaced(&self, plan: &mut Plan) {
        let [piece] = plan.pieces[..] else { return };
        let Some(layers) = self.lookup.layers(piece.access.class()) else { return };
        let Plan { replaced, .. } = plan;
        replaced.clear();
        let fits_beside = self.fits_beside(plan);
        let Plan { replaced, short, .. } = plan;
        if !fits_beside {
            layers.overlaps(piece.range, &self.regions, replaced);
            replaced.retain(|&id| self.is_covered(id, piece));
            // Those that are short of rights come first.
            replaced.sort_by_key(|&id| self.regions.get(id).access() == piece.access);
            *short = replaced.partition_point(|&id| self.regions.get(id).access() != piece.access);
        }
        plan.crowded = plan.replaced.len();
        let leaves = |id| !fits_beside && self.is_covered(id, piece);
        layers.crowded_out(piece.range, &self.regions, leaves, &mut plan.replaced);
        plan.crowded = plan.replaced.len() - plan.crowded;
    }

    /// Returns whether a region has no page and no right that is not the piece's.
    pub(super) fn is_covered(&self, id: RegionId, piece: Piece) -> bool {
        let region = self.regions.get(id);
        piece.range.contains(region.range()) && piece.access.contains(region.access())
    }

    /// Keeps a region that spans a group as it is: its neighbours would add to the cost of the holes.
    pub(super) fn keep_to_span(&self, request: &Request, plan: &mut Plan) {
        if let [Piece { access, .. }] = plan.pieces[..] {
            plan.set_piece(Piece { range: request.range, access });
        }
    }
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
