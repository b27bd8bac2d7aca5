//! The usual miss: a range that nothing overlaps becomes a region, and others leave for it if they have to.

use super::{AllInUse, Core, Found, Holders, Part, Piece, Request, Sharing, Total};
use crate::policy::{Granule, Keeps, Need, Policy};
use crate::regions::RegionId;

impl<P: Policy> Core<P> {
    /// Answers a request as [`Core::request_with`] does, if nothing is there that it could use or overlap, and one region
    /// serves it. `None`, and nothing is done or counted, for any other.
    #[inline]
    pub(super) fn request_anew(
        &mut self,
        request: &Request,
        holders: &mut impl Holders,
    ) -> Option<Result<RegionId, AllInUse>> {
        let &Request { range, access, again, .. } = request;
        let need = self.need_anew(request);
        if !self.is_anew(request, need) {
            return None;
        }
        if !again {
            self.counters.missed(Found::Miss, 0, range.pages());
        }
        self.outcome.start(Found::Miss);
        if let Err(error) = self.make_room_anew(range, need, holders) {
            return Some(Err(error));
        }
        let id = self.register_anew(request);
        self.outcome.push(Part::Gap { region: Some(id), range, access });
        Some(Ok(id))
    }

    /// The same where nobody has to leave, with no other outcome than the region, which is held once. Under a [hard limit](Core::limit_hard).
    pub fn hold_anew(&mut self, request: &Request) -> Option<RegionId> {
        let need = self.need_anew(request);
        if !need.is_met() || !self.is_anew(request, need) {
            return None;
        }
        // A region of the other class that contains it may serve it.
        let may_share = request.access.class() == 0 && request.sharing == Sharing::All && !self.lookup.is_empty(1);
        if may_share && self.find_in(1, request.range).is_some() {
            return None;
        }
        if !request.again {
            self.counters.missed(Found::Miss, 0, request.range.pages());
        }
        Some(self.register_anew(request))
    }

    /// Returns how much has to leave before there is room for one more region.
    #[inline]
    fn need_anew(&self, request: &Request) -> Need {
        self.capacity.shortfall(Total { pages: request.range.pages(), regions: 1 }, Total::default())
    }

    /// Returns whether the request overlaps nothing and becomes one region, once this much has left.
    #[inline]
    fn is_anew(&self, request: &Request, need: Need) -> bool {
        let &Request { range, access, sharing, .. } = request;
        let pages = range.pages();
        let stays = match self.scheme.keeps {
            Keeps::Nothing => false,
            Keeps::UntilEvicted => self.capacity.allows(Total { pages, regions: 1 }),
            Keeps::Forever => need.is_met(),
        };
        let is_one = pages <= self.capacity.region_pages() && self.scheme.granule == Granule::Region;
        if !stays || !is_one || sharing == Sharing::Nothing {
            return false;
        }
        !self.lookup.has_overlap(access.class(), range, &self.regions)
    }

    #[inline]
    fn register_anew(&mut self, request: &Request) -> RegionId {
        let &Request { range, access, .. } = request;
        self.counters.regs += 1;
        self.counters.reg_pages = self.counters.reg_pages.saturating_add(range.pages());
        let id = self.add_region_in_place(Piece { range, access }, true);
        self.counters.peak_pages = self.counters.peak_pages.max(self.capacity.used().pages);
        id
    }
}

#[cfg(test)]
mod tests {
    use super::super::NoHolders;
    use super::*;
    use crate::access::Access;
    use crate::config::Config;
    use crate::policy::PolicyKind;
    use crate::range::PageRange;

    fn core(capacity: u64) -> Core {
        let mut core = Core::new(&Config::new(capacity)).unwrap();
        core.limit_hard();
        core
    }

    fn request(start: u64, pages: u64, access: Access) -> Request {
        Request { access, ..Request::new(PageRange::new(start, pages).unwrap()) }
    }

    #[test]
    fn the_answer_and_the_counts_are_those_of_any_miss() {
        use PolicyKind::{Gdsf, Mrrc, PinDown, Probation, Sieve};
        for policy in [PinDown, Sieve, Gdsf, Mrrc, Probation] {
            let core = || Core::new(&Config { policy, max_regions: Some(12), ..Config::new(64) }).unwrap();
            let (mut quick, mut slow) = (core(), core());
            for nth in 0..200 {
                // While there is room, and then in the place of one, of several, or of a batch.
                let request = Request { again: nth % 5 == 2, ..request(20 * nth, 1 + 7 * nth % 15, Access::LOCAL) };
                let id = quick.request_anew(&request, &mut NoHolders).unwrap().unwrap();
                let mut plan = std::mem::take(&mut slow.plan);
                slow.plan_and_execute(&request, &mut plan, &mut NoHolders).unwrap();
                slow.plan = plan;
                assert_eq!(quick.outcome().parts(), slow.outcome().parts(), "{policy}: {nth}");
                assert_eq!(quick.outcome().parts()[0].region(), Some(id));
                assert!(quick.outcome().batches().eq(slow.outcome().batches()), "{policy}: {nth}");
                assert_eq!((quick.counters(), quick.used_pages()), (slow.counters(), slow.used_pages()));
            }
            assert!(quick.counters().deregs > 100 && quick.used_regions() <= 12);
        }
    }

    #[test]
    fn all_in_use_is_refused_without_eviction() {
        let mut core = core(16);
        for start in [0, 20] {
            let id = core.request_anew(&request(start, 8, Access::LOCAL), &mut NoHolders).unwrap().unwrap();
            core.hold(id);
        }
        let refused = core.request_anew(&request(40, 9, Access::LOCAL), &mut NoHolders).unwrap().unwrap_err();
        assert_eq!((refused.missing_pages, refused.in_use_pages, refused.in_use_regions), (9, 16, 2));
        assert_eq!((core.counters().all_in_use, core.counters().miss, core.used_pages()), (1, 3, 16));
    }

    #[test]
    fn what_is_held_from_the_start_is_released_once() {
        let mut core = core(64);
        let id = core.hold_anew(&request(8, 8, Access::LOCAL)).unwrap();
        assert_eq!((core.held_pages(), core.used_pages()), (8, 8));
        _ = core.publish(&[id], &mut NoHolders);
        assert_eq!((core.held_pages(), core.find(PageRange::new(9, 2).unwrap())), (0, Some(id)));
    }

    #[test]
    fn all_that_is_not_so_simple_is_left_as_it_was() {
        let mut core = core(32);
        let remote = Access::LOCAL | Access::REMOTE_READ;
        for request in [request(8, 8, Access::LOCAL), request(100, 8, remote)] {
            let id = core.hold_anew(&request).unwrap();
            _ = core.publish(&[id], &mut NoHolders);
        }
        let before = core.counters();
        for (why, request) in [
            ("there", request(8, 8, Access::LOCAL)),
            ("overlapped", request(15, 2, Access::LOCAL)),
            ("served by the other class", request(101, 2, Access::LOCAL)),
            ("too large for the room", request(200, 17, Access::LOCAL)),
            ("nobody else's", Request { sharing: Sharing::Nothing, ..request(200, 2, Access::LOCAL) }),
        ] {
            assert_eq!(core.hold_anew(&request), None, "{why}");
        }
        assert_eq!((core.counters(), core.used_pages(), core.held_pages()), (before, 16, 0));
        assert!(core.hold_anew(&request(99, 1, remote)).is_some());
        assert!(core.hold_anew(&request(100, 9, Access::LOCAL)).is_some(), "it is no overlap in its own class");
    }
}
