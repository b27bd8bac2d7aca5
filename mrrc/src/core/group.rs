//! Requests of several ranges, and when they become one registration.
//!
//! A scheme that groups (optimistic group registration) takes the ranges of one request that no region
//! serves, in address order, and joins neighbours as long as registering the hole between them costs less
//! than the calls that it saves, and the holes stay a small share of the group.

use super::{AllInUse, Ask, Core, Leavers, NobodyElse, Outcome, Segment};
use crate::policy::{Matching, Policy};
use crate::range::PageRange;
use crate::regions::RegionId;

impl<P: Policy> Core<P> {
    /// Takes a request of several ranges. `answer` hears the outcome of each range, or of each group with
    /// the range that spans it; what lies between the members of a group was not asked for.
    ///
    /// What is answered for one range is held until the list is done, so that no range makes room at
    /// another's cost; a range or group that finds no room does not stop the others. What is returned
    /// was replaced by a later range of the same list, and is to be deregistered at the end.
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
        while let [first, ..] = *rest {
            let (members, others) = rest.split_at(self.group_len(rest));
            rest = others;
            if let [_] = members {
                answer(first, self.request(first));
            } else {
                let span = members.iter().fold(first, |span, &member| span.hull(member));
                answer(span, self.request_group(span, members));
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
        held.extend(self.outcome.segments().iter().filter_map(Segment::region));
        held[first..].iter().for_each(|&id| self.hold(id));
    }

    /// How many of the ranges, which are in address order, form a group.
    fn group_len(&self, ranges: &[PageRange]) -> usize {
        let saved = self.cost.register(0) + self.cost.deregister(0);
        let hole_page = self.cost.reg_page + self.cost.dereg_page;
        let mut span = ranges[0];
        let mut holes = 0;
        let mut len = 1;
        for &next in &ranges[1..] {
            let hole = next.start().saturating_sub(span.end());
            let joined = span.hull(next);
            let share = (holes + hole) as f64 / joined.pages() as f64;
            if hole as f64 * hole_page >= saved
                || share > self.group_extra
                || joined.pages() > self.capacity.min(self.max_region_pages)
            {
                break;
            }
            span = joined;
            holes += hole;
            len += 1;
        }
        len
    }

    /// Each member is a request of its own for the counters; what is registered is the span.
    fn request_group(&mut self, span: PageRange, members: &[PageRange]) -> Result<&Outcome, AllInUse> {
        let mut plan = std::mem::take(&mut self.plan);
        for &member in members {
            self.survey(&Ask::new(member), member, &mut plan);
            self.classify(member, &plan);
        }
        let ask = Ask::new(span);
        let found = self.survey(&ask, span, &mut plan);
        let result = self.execute(&ask, found, &mut plan, &mut NobodyElse);
        self.plan = plan;
        result.map(|()| &self.outcome)
    }
}
