//! The usual miss: a range that nothing overlaps becomes a region, and nobody has to leave.

use super::{Ask, Core, Found, Lookup, Piece, Segment, Sharing};
use crate::policy::{Granule, Keeps, Policy};
use crate::regions::RegionId;

impl<P: Policy> Core<P> {
    /// Answers a request as [`Core::ask`] does, if nothing is there that it could use or overlap, one region serves
    /// it, and there is room. `None`, and nothing is done or counted, for any other.
    #[inline]
    pub(super) fn ask_anew(&mut self, ask: &Ask) -> Option<RegionId> {
        let id = self.add_anew(ask)?;
        let &Ask { range, access, .. } = ask;
        self.outcome.start(Found::Miss);
        self.outcome.push(Segment::Gap { region: Some(id), range, access });
        Some(id)
    }

    /// The same with no other outcome than the region, which is [held](Core::hold).
    pub(crate) fn hold_anew(&mut self, ask: &Ask) -> Option<RegionId> {
        let id = self.add_anew(ask)?;
        self.regions.get(id).set_holds(1);
        self.held.add(ask.range.pages());
        Some(id)
    }

    #[inline]
    fn add_anew(&mut self, ask: &Ask) -> Option<RegionId> {
        let &Ask { range, access, again, sharing, .. } = ask;
        let pages = range.pages();
        let fits = self.used.pages + pages <= self.capacity && self.used.regions < self.max_regions;
        let is_one = pages <= self.max_region_pages && self.scheme.granule == Granule::Region;
        if !fits || !is_one || self.scheme.keeps == Keeps::Nothing || sharing == Sharing::Nothing {
            return None;
        }
        // Of the other class, what contains it may serve it.
        if access.class() == 0 && sharing == Sharing::All && self.find_in(1, range).is_some() {
            return None;
        }
        let Lookup::Contain(index) = &self.lookups[access.class()] else { return None };
        if index.has_overlap(range, &self.regions) {
            return None;
        }
        if !again {
            self.counters.missed(Found::Miss, 0, pages);
        }
        self.counters.regs += 1;
        self.counters.reg_pages = self.counters.reg_pages.saturating_add(pages);
        let id = self.add_region(Piece { range, access });
        self.counters.peak_pages = self.counters.peak_pages.max(self.used.pages);
        Some(id)
    }
}
