//! One-key mode: each request is answered by one region, and regions may overlap.
//!
//! A request that no region contains registers one region: itself, or its hull with regions of the same rights that it
//! overlaps, as long as that has at most twice its pages. So there are no more registrations than requests, and at most
//! twice the pages, in any sequence.
//!
//! It is registered with the rights asked for and those of the regions that contain it: no page gets a right that it did
//! not have and that was not asked for it. Other regions stay, and overlap the new one, with two exceptions. Those that
//! the new one covers, with their rights at least, retire when it stands ([`Core::retire_covered`]), and before if there is
//! no room for both. And where a page would have more than four regions, those of one layer give way, the one where they
//! have the fewest pages.

use super::plan::{Piece, Plan};
use super::{AllInUse, Ask, Core, Found, Holders, Leavers, Lookup, Total};
use crate::coverage;
use crate::index::Layers;
use crate::policy::{Granule, Keeps, Matching, Overlap, Policy};
use crate::range::PageRange;
use crate::regions::{RegionId, State};

/// A region is registered with neighbours if it has at most so many times the pages asked for.
const MOST_GROWTH: u64 = 2;

impl<P: Policy> Core<P> {
    /// From now on the capacity is a [hard limit](Core::limit_hard), and each request is answered by one region, whatever
    /// [`Ask::max_segments`] says: cached regions may overlap. Tell the core when a region stands
    /// ([`Core::retire_covered`]). Before the first request. A policy that registers other ranges than those asked for
    /// (pages, buckets, unions) or matches them exactly goes on as before.
    pub fn use_one_key(&mut self) {
        self.limit_hard();
        let is_plain = self.scheme.matching == Matching::Contain
            && self.scheme.granule == Granule::Region
            && self.scheme.overlap == Overlap::Split;
        if is_plain {
            debug_assert!(self.regions.is_empty(), "before the first request");
            self.lookups = [(); 2].map(|()| Lookup::Layers(Box::new(Layers::new())));
        }
    }

    /// Whether each request is answered by one region, and regions may overlap.
    #[inline]
    pub(crate) fn has_one_key(&self) -> bool {
        matches!(self.lookups[0], Lookup::Layers(_))
    }

    /// What a request comes to that no region was found for. Changes nothing but the plan.
    pub(super) fn plan_one(&self, ask: &Ask, plan: &mut Plan) -> Found {
        let &Ask { range, access, .. } = ask;
        plan.clear();
        if let Some(id) = self.find_granting(access.class(), range, access) {
            plan.overlaps.push(id);
            plan.overlap_total.add(self.regions.pages(id));
            plan.hit_pages = range.pages();
            plan.found = Found::Covered;
            return plan.found;
        }
        self.find_overlaps(ask, range, &mut plan.overlaps);
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
        let longest = range.pages().saturating_mul(MOST_GROWTH).min(self.max_region_pages).min(self.capacity);
        let range = hull(range, alike, longest);
        plan.overlaps.clear();
        plan.set_piece(Piece { range, access });
        plan.found
    }

    /// The same, and the region that serves the request moves to the top.
    pub(super) fn survey_one(&mut self, ask: &Ask, plan: &mut Plan) -> Found {
        let found = self.plan_one(ask, plan);
        plan.overlaps.iter().for_each(|&id| self.touch(id));
        found
    }

    /// Makes room for the region of the plan, and registers it.
    pub(super) fn execute_one(
        &mut self,
        ask: &Ask,
        found: Found,
        plan: &mut Plan,
        holders: &mut impl Holders,
    ) -> Result<(), AllInUse> {
        self.outcome.start(found);
        let Some(&Piece { range, access }) = plan.pieces.first() else {
            self.add_parts(ask.range, plan, false);
            return Ok(());
        };
        let mut answer = self.make_room_for_one(ask, plan, holders);
        if answer.is_err() && range != ask.range {
            // With its neighbours it finds no room; by itself it may.
            self.counters.all_in_use -= 1;
            plan.set_piece(Piece { range: ask.range, access });
            answer = self.make_room_for_one(ask, plan, holders);
        }
        answer?;
        self.admit(ask.range, plan);
        Ok(())
    }

    fn make_room_for_one(&mut self, ask: &Ask, plan: &mut Plan, holders: &mut impl Holders) -> Result<(), AllInUse> {
        if self.scheme.keeps == Keeps::Forever && !self.need(plan).is_met() {
            return Err(self.refuse(ask.range, self.need(plan)));
        }
        self.find_replaced(plan);
        self.make_room(ask.range, plan, holders)
    }

    /// What has to give way before the region of the plan is registered: what it covers, if there is no room for both, and
    /// what overlaps it too deep.
    fn find_replaced(&self, plan: &mut Plan) {
        let [piece] = plan.pieces[..] else { return };
        let Lookup::Layers(layers) = &self.lookups[piece.access.class()] else { return };
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

    /// Whether a region has no page and no right that is not the piece's.
    fn is_covered(&self, id: RegionId, piece: Piece) -> bool {
        let region = self.regions.get(id);
        piece.range.contains(region.range()) && piece.access.contains(region.access())
    }

    /// A region stands: those that it covers, with their rights at least, are of no more use and retire. What is returned is
    /// to be deregistered. Does nothing where the core does not [use one key](Core::use_one_key), or the region is not
    /// found any more.
    pub fn retire_covered(&mut self, id: RegionId, holders: &mut impl Holders) -> &Leavers {
        self.outcome.leaving_mut().clear();
        let region = self.regions.get(id);
        let piece = Piece { range: region.range(), access: region.access() };
        let Lookup::Layers(layers) = &self.lookups[piece.access.class()] else { return self.outcome.leaving_mut() };
        if region.state() != State::Cached {
            return self.outcome.leaving_mut();
        }
        let mut covered = std::mem::take(&mut self.plan.overlaps);
        covered.clear();
        layers.overlaps(piece.range, &self.regions, &mut covered);
        covered.retain(|&other| other != id && self.is_covered(other, piece));
        if !covered.is_empty() {
            self.hold_back(&covered, holders);
            for &id in &covered {
                let is_short = self.regions.get(id).access() != piece.access;
                let counter = if is_short { &mut self.counters.upgraded } else { &mut self.counters.merged };
                *counter += 1;
                self.retire(id);
            }
            self.close_batch();
        }
        self.plan.overlaps = covered;
        self.outcome.leaving_mut()
    }

    /// What spans a group is registered as it is: its neighbours would add to what the holes cost already.
    pub(super) fn keep_to_span(&self, ask: &Ask, plan: &mut Plan) {
        if let [Piece { access, .. }] = plan.pieces[..] {
            plan.set_piece(Piece { range: ask.range, access });
        }
    }
}

impl Plan {
    /// One piece is registered.
    fn set_piece(&mut self, piece: Piece) {
        self.whole = true;
        self.pieces.clear();
        self.pieces.push(piece);
        self.piece_total = Total::default();
        self.piece_total.add(piece.range.pages());
        self.short = 0;
    }
}

/// The range with those of the regions, nearest first, with which it has at most so many pages.
fn hull(range: PageRange, regions: impl Iterator<Item = PageRange>, longest: u64) -> PageRange {
    let mut joined: Vec<_> = regions.map(|region| range.hull(region)).collect();
    joined.sort_unstable_by_key(|joined| joined.pages());
    joined.into_iter().fold(range, |hull, joined| {
        let more = hull.hull(joined);
        if more.pages() <= longest { more } else { hull }
    })
}
