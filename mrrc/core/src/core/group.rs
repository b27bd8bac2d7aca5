//! Requests of several ranges, and when they become one registration.
//!
//! A scheme that groups (optimistic group registration) takes the ranges of one request that no region
//! serves, in address order. It joins neighbours as long as registering the hole between them costs less
//! than the calls that it saves, and the holes stay a small share of the group.

use crate::cost::Linear;
use crate::range::PageRange;

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
