//! The gaps that cached regions leave in a request.

use crate::range::PageRange;
use rangemap::RangeSet;

/// Appends the parts of what is asked for that no region covers, in address order.
pub fn gaps(asked: PageRange, regions: impl Iterator<Item = PageRange>, gaps: &mut Vec<PageRange>) {
    let covered: RangeSet<u64> = regions.map(|region| region.start()..region.end()).collect();
    gaps.extend(covered.gaps(&(asked.start()..asked.end())).map(|gap| PageRange::between(gap.start, gap.end)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_what_no_region_covers() {
        let range = |start, end| PageRange::between(start, end);
        let gaps_of = |asked, regions: &[PageRange]| {
            let mut found = Vec::new();
            gaps(asked, regions.iter().copied(), &mut found);
            found
        };
        assert_eq!(
            gaps_of(range(10, 30), &[range(0, 12), range(15, 20), range(18, 22), range(40, 50)]),
            [range(12, 15), range(22, 30)]
        );
        assert_eq!(gaps_of(range(10, 30), &[range(10, 20), range(20, 30)]), []);
        assert_eq!(gaps_of(range(3, 4), &[]), [range(3, 4)]);
    }
}
