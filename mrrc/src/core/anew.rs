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

#[cfg(test)]
mod tests {
    use super::super::NobodyElse;
    use super::*;
    use crate::access::Access;
    use crate::config::Config;
    use crate::range::PageRange;

    fn core(capacity: u64) -> Core {
        let mut core = Config::new(capacity).build().unwrap();
        core.limit_hard();
        core
    }

    fn ask(start: u64, pages: u64, access: Access) -> Ask {
        Ask { access, ..Ask::new(PageRange::new(start, pages).unwrap()) }
    }

    #[test]
    fn the_answer_and_the_counts_are_those_of_any_miss() {
        let (mut quick, mut slow) = (core(64), core(64));
        for (start, again) in [(0, false), (40, false), (20, true)] {
            let ask = Ask { again, ..ask(start, 7, Access::LOCAL) };
            let id = quick.ask_anew(&ask).unwrap();
            let mut plan = std::mem::take(&mut slow.plan);
            slow.plan_and_execute(&ask, &mut plan, &mut NobodyElse).unwrap();
            slow.plan = plan;
            assert_eq!(quick.outcome().segments(), slow.outcome().segments());
            assert_eq!(quick.outcome().segments()[0].region(), Some(id));
            assert_eq!((quick.counters(), quick.used_pages()), (slow.counters(), slow.used_pages()));
        }
    }

    #[test]
    fn what_is_held_from_the_start_is_released_once() {
        let mut core = core(64);
        let id = core.hold_anew(&ask(8, 8, Access::LOCAL)).unwrap();
        assert_eq!((core.held_pages(), core.used_pages()), (8, 8));
        core.settle(id);
        assert_eq!((core.held_pages(), core.find(PageRange::new(9, 2).unwrap())), (0, Some(id)));
    }

    #[test]
    fn all_that_is_not_so_simple_is_left_as_it_was() {
        let mut core = core(32);
        let remote = Access::LOCAL | Access::REMOTE_READ;
        core.ask(&ask(8, 8, Access::LOCAL), &mut NobodyElse).unwrap();
        core.ask(&ask(100, 8, remote), &mut NobodyElse).unwrap();
        let before = core.counters();
        for (why, ask) in [
            ("there", ask(8, 8, Access::LOCAL)),
            ("overlapped", ask(15, 2, Access::LOCAL)),
            ("served by the other class", ask(101, 2, Access::LOCAL)),
            ("too large for the room", ask(200, 17, Access::LOCAL)),
            ("nobody else's", Ask { sharing: Sharing::Nothing, ..ask(200, 2, Access::LOCAL) }),
        ] {
            assert_eq!(core.hold_anew(&ask), None, "{why}");
        }
        assert_eq!((core.counters(), core.used_pages(), core.held_pages()), (before, 16, 0));
        assert!(core.hold_anew(&ask(99, 1, remote)).is_some());
        assert!(core.hold_anew(&ask(100, 9, Access::LOCAL)).is_some(), "it is no overlap in its own class");
    }
}
