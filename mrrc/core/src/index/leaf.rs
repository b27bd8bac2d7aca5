//! A leaf: up to eight regions of a block in one line, in the order of their addresses.
//!
//! A lane of sixteen bits says from which page of the block a region covers it, another up to which.
//! Four lanes are a word, and are compared at once: a lane plus the page, which is added to all of them, has its top
//! bit set if the region starts at or before the page, and no sum carries into the next lane. A lane of
//! 0 is no region's and stays below.

use super::LAST_PAGE;
use super::Part;
use super::arena::Line;
use crate::regions::RegionId;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

pub(super) const LEAF_REGIONS: usize = 8;

/// A page in each lane of a word, when multiplied.
const ONES: u64 = 0x0001_0001_0001_0001;
const TOPS: u64 = 0x8000_8000_8000_8000;

/// See the [module](self).
#[repr(C, align(64))]
#[derive(Default)]
pub(super) struct Leaf {
    /// The first pages, in ascending order: in a lane 2^15 less the page.
    firsts: [AtomicU64; 2],
    /// The last pages likewise, counted from the block's end.
    lasts: [AtomicU64; 2],
    /// The names; that of the n-th region, counted from 1, is number n modulo 8.
    names: [AtomicU32; LEAF_REGIONS],
}

type Lanes = [AtomicU64; 2];

/// In the lowest bit of a lane: whether it reaches the page.
#[inline(always)]
fn reaching(lanes: &AtomicU64, page: u64) -> u64 {
    (page * ONES).wrapping_add(lanes.load(Relaxed)) >> 15 & ONES
}

/// Returns the number of lanes that reach the page.
#[inline(always)]
fn count_reaching(lanes: &Lanes, page: u64) -> u64 {
    (reaching(&lanes[0], page) + reaching(&lanes[1], page)).wrapping_mul(ONES) >> 48
}

fn lane_of(page: u64) -> u64 {
    0x8000 - page
}

fn lane(lanes: &Lanes, at: usize) -> u64 {
    lanes[at / 4].load(Relaxed) >> (at % 4 * 16) & 0xffff
}

/// Puts a lane in at a place; those behind move up, and the last one, which is free, falls out.
fn insert_lane(lanes: &Lanes, at: usize, lane: u64) {
    let insert = |word: u64, at: usize, lane: u64| {
        let below = (1 << (at * 16)) - 1;
        word & below | lane << (at * 16) | (word & !below) << 16
    };
    let high = lanes[1].load(Relaxed);
    if at >= 4 {
        lanes[1].store(insert(high, at - 4, lane), Relaxed);
    } else {
        let low = lanes[0].load(Relaxed);
        lanes[1].store(high << 16 | low >> 48, Relaxed);
        lanes[0].store(insert(low, at, lane), Relaxed);
    }
}

/// Takes a lane out; those behind move down.
fn remove_lane(lanes: &Lanes, at: usize) {
    let remove = |word: u64, at: usize| {
        let below = (1 << (at * 16)) - 1;
        word & below | word >> 16 & !below
    };
    let high = lanes[1].load(Relaxed);
    if at >= 4 {
        lanes[1].store(remove(high, at - 4), Relaxed);
    } else {
        let low = lanes[0].load(Relaxed);
        lanes[0].store(remove(low, at) | high << 48, Relaxed);
        lanes[1].store(high >> 16, Relaxed);
    }
}

impl Leaf {
    /// Returns the name of the last region that starts at or before the page of the block, and where none does a
    /// wrong one or 0.
    #[inline(always)]
    pub(super) fn guess(&self, page: u64) -> u32 {
        self.names[count_reaching(&self.firsts, page) as usize % LEAF_REGIONS].load(Relaxed)
    }

    /// Returns the name of the n-th region, counted from 1.
    #[inline(always)]
    fn name(&self, n: usize) -> Option<RegionId> {
        RegionId::from_raw(self.names[n % LEAF_REGIONS].load(Relaxed))
    }

    /// Returns whether there are no more regions than so many, less than eight.
    pub(super) fn has_at_most(&self, regions: usize) -> bool {
        lane(&self.firsts, regions) == 0
    }

    pub(super) fn len(&self) -> usize {
        count_reaching(&self.firsts, LAST_PAGE) as usize
    }

    pub(super) fn is_full(&self) -> bool {
        !self.has_at_most(LEAF_REGIONS - 1)
    }

    pub(super) fn has(&self, id: RegionId) -> bool {
        self.names.iter().any(|name| name.load(Relaxed) == id.raw())
    }

    /// Returns the regions and what they cover of the block.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Part, RegionId)> {
        (0..LEAF_REGIONS).map_while(|at| {
            let first = 0x8000 - lane(&self.firsts, at);
            let last = LAST_PAGE.wrapping_sub(0x8000 - lane(&self.lasts, at));
            (first <= LAST_PAGE).then_some(Part { first, last }).zip(self.name(at + 1))
        })
    }

    /// The regions that overlap a part of the block.
    #[inline]
    pub(super) fn for_each_overlap(&self, part: Part, mut found: impl FnMut(RegionId)) {
        for half in 0..2 {
            let mut both = self.overlapping(half, part);
            while both != 0 {
                let at = half * 4 + both.trailing_zeros() as usize / 16;
                self.name(at + 1).into_iter().for_each(&mut found);
                both &= both - 1;
            }
        }
    }

    /// Returns whether a region overlaps a part of the block.
    #[inline]
    pub(super) fn has_overlap(&self, part: Part) -> bool {
        self.overlapping(0, part) | self.overlapping(1, part) != 0
    }

    /// Returns the top bits of those lanes in a half whose regions overlap a part of the block.
    #[inline(always)]
    fn overlapping(&self, half: usize, part: Part) -> u64 {
        let starts = (part.last * ONES).wrapping_add(self.firsts[half].load(Relaxed));
        let ends = ((LAST_PAGE - part.first) * ONES).wrapping_add(self.lasts[half].load(Relaxed));
        starts & ends & TOPS
    }

    /// Puts two regions into an empty leaf.
    #[inline]
    pub(super) fn begin_with(&self, one: (Part, RegionId), other: (Part, RegionId)) {
        let [(a, a_id), (b, b_id)] = if one.0.first < other.0.first { [one, other] } else { [other, one] };
        for (n, id) in [(1, a_id), (2, b_id)] {
            self.names[n].store(id.raw(), Relaxed);
        }
        self.firsts[0].store(lane_of(a.first) | lane_of(b.first) << 16, Relaxed);
        self.lasts[0].store(lane_of(LAST_PAGE - a.last) | lane_of(LAST_PAGE - b.last) << 16, Relaxed);
    }

    /// Puts a region in; false if there is no room.
    #[inline]
    pub(super) fn insert(&self, part: Part, id: RegionId) -> bool {
        if self.is_full() {
            return false;
        }
        let at = count_reaching(&self.firsts, part.first) as usize;
        let mut name = id.raw();
        for n in at + 1..=LEAF_REGIONS {
            let slot = &self.names[n % LEAF_REGIONS];
            let next = slot.load(Relaxed);
            slot.store(name, Relaxed);
            if next == 0 {
                break;
            }
            name = next;
        }
        insert_lane(&self.firsts, at, lane_of(part.first));
        insert_lane(&self.lasts, at, lane_of(LAST_PAGE - part.last));
        true
    }

    /// Takes out the region that covers this part.
    #[inline]
    pub(super) fn remove(&self, part: Part, id: RegionId) {
        let n = count_reaching(&self.firsts, part.first) as usize;
        if n == 0 || self.name(n) != Some(id) {
            debug_assert!(false, "{id:?} is in the leaf");
            return;
        }
        remove_lane(&self.firsts, n - 1);
        remove_lane(&self.lasts, n - 1);
        for n in n..LEAF_REGIONS {
            let next = self.names[(n + 1) % LEAF_REGIONS].load(Relaxed);
            self.names[n].store(next, Relaxed);
            if next == 0 {
                return;
            }
        }
        self.names[0].store(0, Relaxed);
    }

    /// Takes out the regions that start at or behind a page other than 0.
    pub(super) fn cut(&self, page: u64) {
        let kept = count_reaching(&self.firsts, page - 1) as usize;
        for at in (kept..LEAF_REGIONS).rev() {
            remove_lane(&self.firsts, at);
            remove_lane(&self.lasts, at);
            self.names[(at + 1) % LEAF_REGIONS].store(0, Relaxed);
        }
    }
}

impl Line for Leaf {
    fn copy_of(&self) -> Self {
        let lanes = |lanes: &Lanes| lanes.each_ref().map(|word| AtomicU64::new(word.load(Relaxed)));
        let names = self.names.each_ref().map(|name| AtomicU32::new(name.load(Relaxed)));
        Self { firsts: lanes(&self.firsts), lasts: lanes(&self.lasts), names }
    }

    fn clear(&self) {
        self.firsts.iter().chain(&self.lasts).for_each(|word| word.store(0, Relaxed));
        self.names.iter().for_each(|name| name.store(0, Relaxed));
    }

    /// In a word that look-ups do not read.
    fn link(&self) -> u32 {
        self.lasts[0].load(Relaxed) as u32
    }

    fn set_link(&self, next: u32) {
        self.lasts[0].store(u64::from(next), Relaxed);
    }
}
