//! Which region covers a page: the look-up that every hit begins with (`lookup`), what overlaps a range (here), and how
//! regions come and go (`tree`).
//!
//! Regions never overlap here, so a page belongs to one region at most. The address space is cut into
//! blocks of 2^8 pages (1 MiB). A hash table finds a block's *entry*, and an entry names the regions
//! that touch it, in the cheapest form that can: nothing, one region, a *leaf* of up to eight, or a
//! *fork* with an entry for each sixteenth of the block.
//!
//! ```text
//! hash table          fork: 16 children of 16 pages
//! block → entry ────→ ┌─┬─┬─┬─┬─┬─┬─┬─┬─┬─┬─┬─┬─┬─┬─┬─┐
//!                     │A│A│A│A│A│A│A│A│B│B│C│↓│r│r│r│r│
//!                     └─┴─┴─┴─┴─┴─┴─┴─┴─┴─┴─┴─┴─┴─┴─┴─┘
//!          leaf A, of eight children   B   C │  └ region r alone touches the last four
//!                                            └ fork: 16 children of a page
//! ```
//!
//! Neighbours share: a *group* of two, four, eight or all children has one entry and, where it takes a leaf,
//! one leaf. A leaf that overflows is split, with its group, in halves, and when its group is a single child, that
//! child gets a fork. A page holds one region, so there are two levels of forks. When
//! two halves of a group have few regions left they are joined again, and a fork that is all one group gives way to
//! that group's entry.
//!
//! A leaf knows what its regions cover of the *block*, whatever its group is, so a look-up treats all leaves alike,
//! and splitting and joining need no look at a region. Leaves and forks are lines of 64 bytes in an arena each. A
//! look-up touches one line of the hash table, one or two lines of the arenas (three where regions are small and
//! dense), and then the region itself. It finds a *candidate*, the only region that can hold the page, and compares
//! ranges. A region costs a place of eight bytes for each MiB that it touches, and a share of a leaf where it begins
//! and ends.
//!
//! Blocks of that size are a compromise. Larger ones take less memory where regions are large, but a fork stands between
//! the table and the leaf wherever regions of 64 KiB lie close together: one more line to wait for on each hit.
//!
//! A region that touches more than [`GIANT_BLOCKS`] blocks (8 GiB), or lies beyond 2^52 bytes, where no
//! user's memory is, stands in an ordered map instead. Look-ups consult it last, and only when there is
//! such a region.
//!
//! One owner changes the index; an [`IndexReader`] finds candidates in it at the same time, on any thread and
//! without waiting. It may read a line half changed or used again for another block, so its answer is a guess. A
//! region may be missed while lines on the way to it change, and the name found may be one that no region has.
//! The reader must hold the region and compare ranges before it believes it, and ask the owner when the guess
//! was wrong. Taking a region out allocates nothing.

use crate::range::PageRange;
use crate::regions::{RegionId, Regions};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

mod arena;
mod blocks;
mod fork;
mod layers;
mod leaf;
mod lines;
mod lookup;
mod published;
#[cfg(test)]
mod tests;
mod tree;

pub(crate) use layers::Layers;
pub use lookup::IndexReader;

use blocks::BLOCKS_END;
use fork::{Entry, FORK_BITS, Kind, Level};
use tree::Tree;

/// log2 of the pages in a block.
const BLOCK_BITS: u32 = 8;
/// The last page of a block, counted from its first.
const LAST_PAGE: u64 = (1 << BLOCK_BITS) - 1;
/// The children of a block's fork.
const TOP: Level = Level { start: 0, bits: BLOCK_BITS - FORK_BITS };
const GIANT_BLOCKS: u64 = 8192;

/// The part of a block that a range covers: the first and last page, counted from the block's first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    first: u64,
    last: u64,
}

impl Part {
    /// The range is within one block.
    #[inline]
    fn within(range: PageRange) -> Self {
        Self { first: range.start() & LAST_PAGE, last: (range.end() - 1) & LAST_PAGE }
    }

    /// The range touches the block.
    #[inline]
    fn of(range: PageRange, block: u64) -> Self {
        let start = block << BLOCK_BITS;
        Self { first: range.start().saturating_sub(start), last: (range.end() - 1 - start).min(LAST_PAGE) }
    }
}

/// The address index of one domain's regions.
pub(crate) struct Index {
    tree: Tree,
    /// Regions of more than [`GIANT_BLOCKS`] blocks, or beyond [`BLOCKS_END`], by their first page.
    giants: BTreeMap<u64, RegionId>,
}

impl Index {
    pub(crate) fn new() -> Self {
        Self { tree: Tree::new(), giants: BTreeMap::new() }
    }

    /// Returns whether there is no region.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.tree.blocks() == 0 && self.giants.is_empty()
    }

    /// Adds a region; it must overlap none that is in the index.
    #[inline]
    pub(crate) fn insert(&mut self, id: RegionId, regions: &Regions) {
        let range = regions.get(id).range();
        if is_giant(&block_numbers(range)) {
            self.giants.insert(range.start(), id);
        } else {
            self.tree.insert(id, regions);
        }
    }

    /// Removes a region that is in the index.
    #[inline]
    pub(crate) fn remove(&mut self, id: RegionId, regions: &Regions) {
        let range = regions.get(id).range();
        if is_giant(&block_numbers(range)) {
            self.giants.remove(&range.start());
        } else {
            self.tree.remove(id, regions);
        }
    }

    /// From now on others may look for candidates at any time.
    pub(crate) fn share(&mut self) -> IndexReader {
        self.tree.share()
    }

    /// Bytes allocated.
    pub(crate) fn memory(&self) -> usize {
        self.tree.memory() + self.giants.len() * 2 * size_of::<(u64, RegionId)>()
    }

    /// Returns the region that contains the whole range.
    #[inline(always)]
    pub(crate) fn find(&self, range: PageRange, regions: &Regions) -> Option<RegionId> {
        if let Some(id) = RegionId::from_raw(lookup::guess(self.tree.arrays(), range.start()))
            && regions.covers(id, range)
        {
            return Some(id);
        }
        if self.giants.is_empty() { None } else { self.find_giant(range, regions) }
    }

    #[cold]
    fn find_giant(&self, range: PageRange, regions: &Regions) -> Option<RegionId> {
        self.giant_at(range.start()).filter(|&id| regions.covers(id, range))
    }

    fn giant_at(&self, page: u64) -> Option<RegionId> {
        self.giants.range(..=page).next_back().map(|(_, &id)| id)
    }

    /// Returns the entry that alone says what touches a range, if one does, and what the range covers of its block:
    /// most that comes and goes is settled there. It is no fork.
    #[inline(always)]
    fn only_entry(&self, range: PageRange) -> Option<(Entry, Part)> {
        let block = range.start() >> BLOCK_BITS;
        if (range.end() - 1) >> BLOCK_BITS != block || block >= BLOCKS_END {
            return None;
        }
        let part = Part::within(range);
        let mut entry = self.tree.arrays().blocks.get(block);
        let mut bits = TOP.bits;
        while let Some(fork) = self.tree.arrays().forks.get(entry.fork_number()) {
            let (first, last) = (part.first >> bits, part.last >> bits);
            entry = fork.entry(first);
            // Nothing at both ends says nothing of what is between; a leaf or a region does.
            if entry != fork.entry(last) || entry == Entry::NOTHING && first != last {
                return None;
            }
            // Below the second level there is no fork.
            bits = bits.saturating_sub(FORK_BITS);
        }
        Some((entry, part))
    }

    /// Appends the regions that overlap the range, in address order.
    pub(crate) fn overlaps(&self, range: PageRange, regions: &Regions, found: &mut Vec<RegionId>) {
        let first = found.len();
        self.for_each_overlap(range, regions, |id| {
            // A region that spans several groups turns up in each, mostly one after the other.
            if found[first..].last() != Some(&id) {
                found.push(id);
            }
        });
        if found.len() - first <= 1 {
            return;
        }
        // Short of giants and of walks through the whole table, they come in order.
        let start = |&id: &RegionId| regions.get(id).range().start();
        if !found[first..].is_sorted_by_key(start) {
            found[first..].sort_unstable_by_key(start);
        }
        // Not before them: what is there already can end with the same region.
        let mut kept = first + 1;
        for at in first + 1..found.len() {
            found[kept] = found[at];
            kept += usize::from(found[kept] != found[kept - 1]);
        }
        found.truncate(kept);
    }

    /// Returns whether a region overlaps the range.
    #[inline]
    pub(crate) fn has_overlap(&self, range: PageRange, regions: &Regions) -> bool {
        match self.only_entry(range) {
            Some((entry, part)) if self.giants.is_empty() => match self.tree.arrays().leaves.get(entry.leaf_number()) {
                Some(leaf) => leaf.has_overlap(part),
                None => entry.name().is_some_and(|id| regions.overlaps(id, range)),
            },
            _ => {
                let mut any = false;
                self.for_each_overlap_apart(range, regions, |_| any = true);
                any
            }
        }
    }

    /// Shows the regions that overlap the range, in no order and some of them several times. Allocates nothing.
    #[inline]
    pub(crate) fn for_each_overlap(&self, range: PageRange, regions: &Regions, found: impl FnMut(RegionId)) {
        match self.only_entry(range) {
            Some((entry, part)) if self.giants.is_empty() => match self.tree.arrays().leaves.get(entry.leaf_number()) {
                Some(leaf) => leaf.for_each_overlap(part, found),
                None => entry.name().filter(|&id| regions.overlaps(id, range)).into_iter().for_each(found),
            },
            _ => self.for_each_overlap_apart(range, regions, found),
        }
    }

    /// The same where the range touches several groups.
    fn for_each_overlap_apart(&self, range: PageRange, regions: &Regions, mut found: impl FnMut(RegionId)) {
        let numbers = block_numbers(range);
        let (first, last) = (*numbers.start(), (*numbers.end()).min(BLOCKS_END - 1));
        let mut look = |entry, number| {
            if entry != Entry::NOTHING {
                self.collect(entry, TOP, Part::of(range, number), range, regions, &mut found);
            }
        };
        // A range of more blocks than there are: look at all blocks that exist instead.
        if last.saturating_sub(first) > 2 * self.tree.blocks() as u64 {
            for (number, entry) in self.tree.arrays().blocks.iter().filter(|(number, _)| numbers.contains(number)) {
                look(entry, number);
            }
        } else {
            for number in first..=last {
                look(self.tree.arrays().blocks.get(number), number);
            }
        }
        if !self.giants.is_empty() {
            let before = self.giant_at(range.start()).filter(|&id| regions.get(id).range().overlaps(range));
            before.into_iter().for_each(&mut found);
            self.giants.range(range.start() + 1..range.end()).for_each(|(_, &id)| found(id));
        }
    }

    fn collect(
        &self,
        entry: Entry,
        level: Level,
        part: Part,
        range: PageRange,
        regions: &Regions,
        found: &mut impl FnMut(RegionId),
    ) {
        match entry.kind() {
            Kind::Nothing => {}
            Kind::Region(id) => {
                if regions.get(id).range().overlaps(range) {
                    found(id);
                }
            }
            Kind::Leaf(leaf) => self.tree.leaf(leaf).for_each_overlap(part, found),
            Kind::Fork(fork) => {
                let fork = &self.tree.arrays().forks[fork as usize];
                let (first, last) = level.children(part);
                let mut before = Entry::NOTHING;
                for child in first..=last {
                    let entry = fork.child(child);
                    if entry != before {
                        self.collect(entry, level.below(child), part, range, regions, found);
                        before = entry;
                    }
                }
            }
        }
    }
}

/// Returns whether a region stands in the ordered map: it is huge, or so far up that no user's memory is there.
#[inline]
fn is_giant(numbers: &RangeInclusive<u64>) -> bool {
    numbers.end() - numbers.start() >= GIANT_BLOCKS || *numbers.end() >= BLOCKS_END
}

#[inline]
fn block_numbers(range: PageRange) -> RangeInclusive<u64> {
    range.start() >> BLOCK_BITS..=(range.end() - 1) >> BLOCK_BITS
}
