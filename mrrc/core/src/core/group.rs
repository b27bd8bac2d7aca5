//! Requests of several ranges, and when they become one registration.
//!
//! A scheme that groups (optimistic group registration) takes the ranges of one request that no region
//! serves, in address order. It joins neighbours as long as registering the hole between them costs less
//! than the calls that it saves, and the holes stay a small share of the group.

use super::{AllInUse, Core, Holders, Leavers, NoHolders, Outcome, Part, Request};
use crate::cost::Linear;
use crate::policy::{Matching, Policy};
use crate::range::PageRange;
use crate::regions::RegionId;

impl<P: Policy> Core<P> {
    /// Takes a request of several ranges. `answer` hears the outcome of each range, or of each group with
    /// the range that spans it; what lies between the members of a group was not asked for.
    ///
    /// The answer for one range is held until the list is done, so that no range makes room at
    /// another's cost. A range or group that finds no room does not stop the others. The returned
    /// regions were replaced by a later range of the same list, and are to be deregistered at the
    /// end.
    pub fn request_list(
        &mut self,
        asked: &[PageRange],
        mut answer: impl FnMut(PageRange, Result<&Outcome, AllInUse>),
    ) -> &Leavers {
        let mut held = Vec::new();
        let mut missed = Vec::new();
        // A region that spans a group serves no member that is matched exactly.
        let groups = self.scheme.groups && self.scheme.matching == Matching::Contain;
        for &range in asked {
            if groups && self.find(range).is_none() {
                missed.push(range);
            } else {
                answer(range, self.request(range));
                self.hold_answer(&mut held);
            }
        }
        missed.sort_unstable();
        let mut rest = &missed[..];
        let most_pages = self.capacity.limit().pages.min(self.capacity.region_pages());
        while let [first, ..] = *rest {
            let (members, others) = rest.split_at(group_len(rest, &self.cost, self.group_extra, most_pages));
            rest = others;
            if let [_] = members {
                answer(first, self.request(first));
            } else {
                let span = members.iter().fold(first, |span, &member| span.hull(member));
                answer(span, self.request_span(span, members));
            }
            self.hold_answer(&mut held);
        }
        self.outcome.leaving_mut().clear();
        for id in held {
            self.let_lease_go(id);
        }
        self.close_batch();
        self.outcome.leaving_mut()
    }

    fn hold_answer(&mut self, held: &mut Vec<RegionId>) {
        let first = held.len();
        held.extend(self.outcome.parts().iter().filter_map(Part::region));
        held[first..].iter().for_each(|&id| self.hold(id));
    }

    fn request_span(&mut self, span: PageRange, members: &[PageRange]) -> Result<&Outcome, AllInUse> {
        self.request_group(&Request::new(span), members, &mut NoHolders)
    }

    /// Asks for the span of a group. Each member is a request of its own for the counters; what is registered is
    /// the span.
    pub fn request_group(
        &mut self,
        request: &Request,
        members: &[PageRange],
        holders: &mut impl Holders,
    ) -> Result<&Outcome, AllInUse> {
        let mut plan = std::mem::take(&mut self.plan);
        for &range in members {
            self.survey(&Request { range, ..*request }, range, &mut plan);
            self.classify(range, &plan);
        }
        let found = self.survey(request, request.range, &mut plan);
        if self.has_one_key() {
            self.keep_to_span(request, &mut plan);
        }
        let result = self.execute(request, found, &mut plan, holders);
        self.plan = plan;
        result.map(|()| &self.outcome)
    }
}

/// How many of the ranges, which are in address order, form a group: joined as long as the holes cost less than
/// the calls that they save, are at most this share of the group, and the group has at most so many pages.
pub fn group_len(ranges: &[PageRange], costs: &Linear, most_extra: f64, most_pages: u64) -> usize {
    let [first, others @ ..] = ranges else { return 0 };
    let saved = costs.register(0) + costs.deregister(0);
    let hole_page = costs.reg_page + costs.dereg_page;
    let mut span = *first;
    let mut holes = 0;
    let mut len = 1;
    for &next in others {
        let hole = next.start().saturating_sub(span.end());
        let joined = span.hull(next);
        let share = (holes + hole) as f64 / joined.pages() as f64;
        if hole as f64 * hole_page >= saved || share > most_extra || joined.pages() > most_pages {
            break;
        }
        span = joined;
        holes += hole;
        len += 1;
    }
    len
}
