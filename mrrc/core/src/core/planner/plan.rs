//! The plan of a request that is no hit: what it overlaps, what it lacks, and what is to be registered.

use super::super::capacity::Total;
use super::super::outcome::Found;
use crate::access::Access;
use crate::grid::Cutter;
use crate::range::PageRange;
use crate::regions::RegionId;

/// The parts of a request that is no hit. The planner fills it in, and keeps it to use its buffers again.
#[derive(Default)]
pub(in crate::core) struct Plan {
    /// Cached regions that serve parts of the request, in address order.
    pub(super) overlaps: Vec<RegionId>,
    /// Cached regions that overlap the request and give way: merged, or short of rights.
    pub(super) replaced: Vec<RegionId>,
    /// How many of these are short of rights. They are the first.
    pub(super) short: usize,
    /// How many of them, the last, give way because too many regions would overlap.
    pub(super) crowded: usize,
    /// The parts without a region.
    pub(super) gaps: Vec<PageRange>,
    /// The ranges that become a region each: the gaps, cut to size, or a hull.
    pub(super) pieces: Vec<Piece>,
    /// The result of the look-up.
    pub(super) found: Found,
    pub(super) hit_pages: u64,
    /// The overlapping regions that stay, and the pieces, added up.
    pub(super) overlap_total: Total,
    pub(super) piece_total: Total,
    /// Whether the pieces replace what they overlap whole.
    pub(super) whole: bool,
    /// Whether one region cannot have what the pages have now and need: it is registered for the request alone.
    pub(super) aside: bool,
    /// Pages of the pieces beyond the gaps.
    pub(super) widened: u64,
}

/// A range to register as one region.
#[derive(Clone, Copy)]
pub(in crate::core) struct Piece {
    pub(in crate::core) range: PageRange,
    pub(in crate::core) access: Access,
}

/// Why a region gives way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::core) enum Reason {
    /// It is short of rights.
    Upgraded,
    /// A larger one takes in its pages.
    Merged,
    /// Too many regions would overlap.
    Crowded,
}

impl Plan {
    /// Returns the cached regions that serve parts of the request, in address order.
    pub(in crate::core) fn overlaps(&self) -> &[RegionId] {
        &self.overlaps
    }

    /// Returns the regions that give way.
    pub(in crate::core) fn replaced(&self) -> &[RegionId] {
        &self.replaced
    }

    /// Returns why the nth of the [replaced](Plan::replaced) gives way.
    pub(in crate::core) fn reason(&self, nth: usize) -> Reason {
        if nth >= self.replaced.len() - self.crowded {
            Reason::Crowded
        } else if nth < self.short {
            Reason::Upgraded
        } else {
            Reason::Merged
        }
    }

    /// Returns the ranges that become a region each, in address order.
    pub(in crate::core) fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Returns the pages of all pieces.
    pub(in crate::core) fn piece_pages(&self) -> u64 {
        self.piece_total.pages
    }

    /// Returns the result of the look-up.
    pub(in crate::core) fn found(&self) -> Found {
        self.found
    }

    /// Returns how many pages of the request lie in cached regions.
    pub(in crate::core) fn hit_pages(&self) -> u64 {
        self.hit_pages
    }

    /// Returns whether nothing is to be registered.
    pub(in crate::core) fn is_served(&self) -> bool {
        self.pieces.is_empty() && !self.aside
    }

    /// Returns the pages of the pieces beyond the gaps.
    pub(in crate::core) fn widened(&self) -> u64 {
        self.widened
    }

    /// Returns whether it is registered for the request alone, because one region cannot have all rights.
    pub(in crate::core) fn is_aside(&self) -> bool {
        self.aside
    }

    /// Returns whether the pieces take the place of what they overlap, and span more pages than these.
    pub(in crate::core) fn spans_more_than(&self, pages: u64) -> bool {
        self.whole && self.piece_total.pages > pages
    }

    pub(super) fn clear(&mut self) {
        self.overlaps.clear();
        self.replaced.clear();
        self.short = 0;
        self.crowded = 0;
        self.gaps.clear();
        self.pieces.clear();
        self.overlap_total = Total::default();
        self.piece_total = Total::default();
        self.whole = false;
        self.aside = false;
        self.widened = 0;
    }

    /// Returns the size of the overlapping regions that stay and of the pieces.
    pub(super) fn total(&self) -> Total {
        let (stay, new) = (self.overlap_total, self.piece_total);
        Total { pages: stay.pages + new.pages, regions: stay.regions + new.regions }
    }

    pub(super) fn overlaps_any(&self) -> bool {
        !self.overlaps.is_empty() || !self.replaced.is_empty()
    }

    /// Registers one piece.
    pub(super) fn set_piece(&mut self, piece: Piece) {
        self.whole = true;
        self.pieces.clear();
        self.pieces.push(piece);
        self.piece_total = Total::default();
        self.piece_total.add(piece.range.pages());
        self.widened = 0;
    }

    /// One piece takes the place of all that the request overlaps.
    pub(super) fn replace_all(&mut self, piece: Piece) {
        self.replaced.append(&mut self.overlaps);
        self.overlap_total = Total::default();
        self.set_piece(piece);
    }

    /// Registers the range in as few pieces as it takes.
    pub(super) fn cut_whole(&mut self, range: PageRange, access: Access, cutter: Cutter) {
        self.whole = true;
        self.pieces.clear();
        self.pieces.extend(cutter.cut(range).map(|range| Piece { range, access }));
        self.piece_total = Total { pages: range.pages(), regions: self.pieces.len() as u64 };
    }
}
