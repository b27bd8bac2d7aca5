//! Which region covers a page: the look-up that every hit begins with.
//!
//! Regions never overlap here, so a page belongs to one region at most. The address space is cut
//! into blocks of 2^10 pages (4 MiB). A hash table finds a block's *entry*, and an entry says which
//! regions touch its block, in the cheapest form that can:
//!
//! * nothing: no region touches it;
//! * a region: only this one does;
//! * a *leaf*: up to eight do, sorted by where they start;
//! * a *fork*: more do, and sixteen sub-blocks have an entry each.
//!
//! Below a block lie sub-blocks of 2^6 and 2^2 pages; four pages hold four regions at most, so a leaf
//! always suffices there. Leaves and forks are 64-byte lines in one arena. A look-up touches one line
//! of the hash table, one or two lines of the arena (three where regions are small and dense), and then
//! the region itself: it finds a *candidate*, the only region that can hold the page, and compares
//! ranges. A region costs what it touches: a place in the hash table for each 4 MiB, or less.
//!
//! A region that touches more than [`GIANT_BLOCKS`] blocks (8 GiB), or lies beyond 2^54 bytes, where no
//! user's memory is, stands in an ordered map instead; look-ups consult it last, and only when there is
//! such a region.
//!
//! One owner changes the index; an [`IndexReader`] finds candidates in it at the same time, on any
//! thread and without waiting. It may read a line half changed or used again for another block, so its answer
//! is a guess: the reader must hold the region and compare ranges before it believes it, and ask the
//! owner when the guess was wrong.

use crate::range::PageRange;
use crate::regions::{RegionId, Regions};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

mod blocks;
mod published;

use blocks::{BLOCKS_END, Blocks, BlocksReader};
use published::{Editions, Published};

/// log2 of the pages in a block.
const BLOCK_BITS: u32 = 10;
/// log2 of the children of a fork.
const FORK_BITS: u32 = 4;
const LEAF_REGIONS: usize = 8;
/// A fork in which no more regions are seen at a glance than this becomes a leaf again. Well below
/// [`LEAF_REGIONS`], so that a region that comes and goes does not rebuild it each time.
const REJOIN_REGIONS: usize = 4;
const GIANT_BLOCKS: u64 = 2048;

/// What touches a block or sub-block. The low two bits tell the kind, the others the region or line.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Entry(u32);

enum Kind {
    Nothing,
    Region(RegionId),
    Leaf(u32),
    Fork(u32),
}

impl Entry {
    const NOTHING: Self = Self(0);
    const LEAF: u32 = 2;
    const FORK: u32 = 3;

    fn region(id: RegionId) -> Self {
        assert!(id.raw() < 1 << 30, "the index names at most 2^30 regions");
        Self(id.raw() << 2 | 1)
    }

    fn leaf(line: u32) -> Self {
        Self(line << 2 | Self::LEAF)
    }

    fn fork(line: u32) -> Self {
        Self(line << 2 | Self::FORK)
    }

    #[inline]
    fn is_leaf(self) -> bool {
        self.0 & 3 == Self::LEAF
    }

    #[inline]
    fn is_fork(self) -> bool {
        self.0 & 3 == Self::FORK
    }

    fn kind(self) -> Kind {
        match self.0 & 3 {
            Self::LEAF => Kind::Leaf(self.0 >> 2),
            Self::FORK => Kind::Fork(self.0 >> 2),
            _ => RegionId::from_raw(self.0 >> 2).map_or(Kind::Nothing, Kind::Region),
        }
    }
}

/// A leaf or a fork, taken out of the arena.
///
/// Fork: sixteen entries. Leaf: words 1 to 8 hold regions in the order of their addresses, words 12 to
/// 15 eight 16-bit lanes with the page, relative to the block, from which each covers it. Word 0 is no
/// region: what lies before the first.
#[derive(Clone, Copy)]
struct Line([u32; 16]);

/// A leaf or a fork in the arena: the words of [`Line`], two and two.
#[repr(align(64))]
struct Stored([AtomicU64; 8]);

impl Stored {
    fn new(line: Line) -> Self {
        Self(std::array::from_fn(|pair| AtomicU64::new(line.pair(pair))))
    }

    fn load(&self) -> Line {
        let mut words = [0; 16];
        for (pair, word) in self.0.iter().enumerate() {
            let word = word.load(Relaxed);
            words[2 * pair] = word as u32;
            words[2 * pair + 1] = (word >> 32) as u32;
        }
        Line(words)
    }

    fn store(&self, line: Line) {
        for (pair, word) in self.0.iter().enumerate() {
            word.store(line.pair(pair), Relaxed);
        }
    }

    /// One of the sixteen words; only the low four bits of the number count.
    #[inline(always)]
    fn word(&self, at: u64) -> u32 {
        (self.0[at as usize >> 1 & 7].load(Relaxed) >> (32 * (at & 1))) as u32
    }

    /// The entry of a fork's child; only the low four bits of the number count.
    #[inline(always)]
    fn entry(&self, child: u64) -> Entry {
        Entry(self.word(child))
    }

    /// The last region of a leaf that starts at or before the page, if any does. Eight lanes are compared
    /// at once: the guard bit of a lane survives the subtraction if the page is not smaller, and the
    /// number of those that do leads to the region.
    #[inline(always)]
    fn candidate(&self, relative: u64) -> Option<RegionId> {
        let page = (relative | 0x8000).wrapping_mul(LANES);
        let low = (page.wrapping_sub(self.0[6].load(Relaxed)) & LANE_TOPS) >> 15;
        let high = (page.wrapping_sub(self.0[7].load(Relaxed)) & LANE_TOPS) >> 15;
        let reached = (low + high).wrapping_mul(LANES) >> 48;
        RegionId::from_raw(self.word(reached))
    }
}

const FIRST_REGION: usize = 1;
const FIRST_LANES: usize = 12;
/// A lane that holds no region: above every relative page.
const NO_LANE: u64 = 0x7fff;
const LANES: u64 = 0x0001_0001_0001_0001;
const LANE_TOPS: u64 = 0x8000_8000_8000_8000;

impl Line {
    const EMPTY_LEAF: Self = {
        let no_lanes = (NO_LANE | NO_LANE << 16) as u32;
        let mut words = [0; 16];
        let mut i = FIRST_LANES;
        while i < 16 {
            words[i] = no_lanes;
            i += 1;
        }
        Self(words)
    };

    /// Two words, as they are stored.
    fn pair(&self, pair: usize) -> u64 {
        u64::from(self.0[2 * pair]) | u64::from(self.0[2 * pair + 1]) << 32
    }

    fn leaf_regions(&self) -> impl Iterator<Item = RegionId> {
        self.0[FIRST_REGION..FIRST_REGION + LEAF_REGIONS].iter().map_while(|&raw| RegionId::from_raw(raw))
    }

    /// The regions of a leaf: lanes that hold none become the only ones with a top bit.
    fn leaf_len(&self) -> usize {
        let free = |pair: usize| ((self.pair(pair) + LANES) & LANE_TOPS).count_ones();
        LEAF_REGIONS - (free(6) + free(7)) as usize
    }

    fn set_lane(&mut self, lane: usize, relative: u64) {
        let shift = 16 * (lane % 2);
        let word = &mut self.0[FIRST_LANES + lane / 2];
        *word = *word & !(0xffff << shift) | (relative as u32) << shift;
    }

    fn lane(&self, lane: usize) -> u64 {
        u64::from(self.0[FIRST_LANES + lane / 2] >> (16 * (lane % 2)) & 0xffff)
    }

    /// Puts a region into a leaf that has room.
    fn insert(&mut self, relative: u64, id: RegionId) {
        let mut at = self.leaf_len();
        debug_assert!(at < LEAF_REGIONS);
        while at > 0 && self.lane(at - 1) > relative {
            self.set_lane(at, self.lane(at - 1));
            self.0[FIRST_REGION + at] = self.0[FIRST_REGION + at - 1];
            at -= 1;
        }
        self.set_lane(at, relative);
        self.0[FIRST_REGION + at] = id.raw();
    }

    /// Takes a region out of a leaf; returns how many are left.
    fn remove(&mut self, id: RegionId) -> usize {
        let count = self.leaf_len();
        let Some(at) = self.leaf_regions().position(|other| other == id) else {
            debug_assert!(false, "{id:?} is in the leaf");
            return count;
        };
        for next in at + 1..count {
            self.set_lane(next - 1, self.lane(next));
            self.0[FIRST_REGION + next - 1] = self.0[FIRST_REGION + next];
        }
        self.set_lane(count - 1, NO_LANE);
        self.0[FIRST_REGION + count - 1] = 0;
        count - 1
    }

    /// How often a fork's entry differs from the one before: where that is often, several regions touch it,
    /// and a closer look at each entry is spared.
    fn runs(&self) -> usize {
        let changed = |child: usize| self.0[child] != 0 && self.0[child] != self.0[child - 1];
        usize::from(self.0[0] != 0) + (1..16).map(|child| usize::from(changed(child))).sum::<usize>()
    }

    fn entry(&self, child: u64) -> Entry {
        Entry(self.0[child as usize])
    }
}

/// A block or sub-block: where it starts and how large it is.
#[derive(Clone, Copy)]
struct Block {
    start: u64,
    bits: u32,
}

impl Block {
    fn of(number: u64) -> Self {
        Self { start: number << BLOCK_BITS, bits: BLOCK_BITS }
    }

    fn last(self) -> u64 {
        self.start + (1 << self.bits) - 1
    }

    /// Where the region starts in this block; 0 if it starts before.
    fn relative(self, range: PageRange) -> u64 {
        range.start().saturating_sub(self.start)
    }

    /// The sub-blocks that a range touches.
    fn children(self, range: PageRange) -> impl Iterator<Item = (u64, Self)> + use<> {
        let bits = self.bits - FORK_BITS;
        let first = self.relative(range) >> bits;
        let last = ((range.end() - 1).min(self.last()) - self.start) >> bits;
        (first..=last).map(move |child| (child, Self { start: self.start + (child << bits), bits }))
    }
}

/// The address index of one domain's regions.
pub(crate) struct Index {
    blocks: Blocks,
    lines: Published<Stored>,
    /// Lines that were ever used, and those of them that are free.
    used_lines: u32,
    free: Vec<u32>,
    /// Regions of more than [`GIANT_BLOCKS`] blocks, or beyond [`BLOCKS_END`], by their first page.
    giants: BTreeMap<u64, RegionId>,
}

/// Finds candidates while the owner changes the index.
pub(crate) struct IndexReader {
    blocks: BlocksReader,
    lines: Arc<Editions<Stored>>,
}

impl IndexReader {
    /// A region that may hold the page: the only one that can, unless the index is just changing or
    /// the region is a giant.
    #[inline(always)]
    pub(crate) fn candidate(&self, page: u64) -> Option<RegionId> {
        // A block that is numbered too high is in no place: nothing is found.
        candidate(self.blocks.get(page >> BLOCK_BITS), page, self.lines.read())
    }
}

/// The only region short of a giant that can cover the page, given its block's entry. Every hit runs
/// through here, so the two levels of forks are written out: shifts by constants, and one way to each end.
/// What a line says may be changing: a number beyond the lines is no line.
#[inline(always)]
fn candidate(mut entry: Entry, page: u64, lines: &[Stored]) -> Option<RegionId> {
    const LEVEL_1: u32 = BLOCK_BITS - FORK_BITS;
    const LEVEL_2: u32 = LEVEL_1 - FORK_BITS;
    let line = |entry: Entry| lines.get(entry.0 as usize >> 2);
    let mut mask = (1 << BLOCK_BITS) - 1;
    if entry.is_fork() {
        entry = line(entry)?.entry(page >> LEVEL_1);
        mask = (1 << LEVEL_1) - 1;
        if entry.is_fork() {
            entry = line(entry)?.entry(page >> LEVEL_2);
            mask = (1 << LEVEL_2) - 1;
        }
    }
    if entry.is_leaf() { line(entry)?.candidate(page & mask) } else { RegionId::from_raw(entry.0 >> 2) }
}

impl Index {
    pub(crate) fn new() -> Self {
        Self {
            blocks: Blocks::new(),
            lines: Published::new(Arc::new([])),
            used_lines: 0,
            free: Vec::new(),
            giants: BTreeMap::new(),
        }
    }

    /// From now on others may look for candidates at any time.
    pub(crate) fn share(&mut self) -> IndexReader {
        IndexReader { blocks: self.blocks.share(), lines: self.lines.share() }
    }

    /// Bytes allocated.
    pub(crate) fn memory(&self) -> usize {
        self.blocks.memory()
            + self.lines.memory()
            + self.free.capacity() * size_of::<u32>()
            + self.giants.len() * 2 * size_of::<(u64, RegionId)>()
    }

    /// The region that contains the whole range.
    #[inline(always)]
    pub(crate) fn find(&self, range: PageRange, regions: &Regions) -> Option<RegionId> {
        if let Some(id) = self.candidate(range.start())
            && regions.covers(id, range)
        {
            return Some(id);
        }
        if self.giants.is_empty() { None } else { self.find_giant(range, regions) }
    }

    #[inline(always)]
    fn candidate(&self, page: u64) -> Option<RegionId> {
        candidate(self.blocks.get(page >> BLOCK_BITS), page, &self.lines)
    }

    fn line(&self, line: u32) -> Line {
        self.lines[line as usize].load()
    }

    fn set_line(&mut self, number: u32, line: Line) {
        self.lines[number as usize].store(line);
    }

    #[cold]
    fn find_giant(&self, range: PageRange, regions: &Regions) -> Option<RegionId> {
        self.giant_at(range.start()).filter(|&id| regions.covers(id, range))
    }

    fn giant_at(&self, page: u64) -> Option<RegionId> {
        self.giants.range(..=page).next_back().map(|(_, &id)| id)
    }

    /// Appends the regions that overlap the range, in address order.
    pub(crate) fn overlaps(&self, range: PageRange, regions: &Regions, found: &mut Vec<RegionId>) {
        let first = found.len();
        self.for_each_overlap(range, regions, |id| {
            // A region that spans several sub-blocks turns up in each, mostly one after the other.
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
        found.dedup();
    }

    /// Shows the regions that overlap the range, in no order and some of them several times. Allocates nothing.
    pub(crate) fn for_each_overlap(&self, range: PageRange, regions: &Regions, mut found: impl FnMut(RegionId)) {
        let numbers = block_numbers(range);
        // A range of more blocks than there are: look at all blocks that exist instead.
        if numbers.end() - numbers.start() > 2 * self.blocks.len() as u64 {
            for (number, entry) in self.blocks.iter() {
                if numbers.contains(&number) {
                    self.collect(entry, Block::of(number), range, regions, &mut found);
                }
            }
        } else {
            for number in numbers {
                self.collect(self.blocks.get(number), Block::of(number), range, regions, &mut found);
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
        block: Block,
        range: PageRange,
        regions: &Regions,
        found: &mut impl FnMut(RegionId),
    ) {
        let mut take = |id: RegionId| {
            if regions.get(id).range().overlaps(range) {
                found(id);
            }
        };
        match entry.kind() {
            Kind::Nothing => {}
            Kind::Region(id) => take(id),
            Kind::Leaf(line) => self.line(line).leaf_regions().for_each(take),
            Kind::Fork(line) => {
                for (child, sub) in block.children(range) {
                    self.collect(self.lines[line as usize].entry(child), sub, range, regions, found);
                }
            }
        }
    }

    /// Adds a region; it must overlap none that is in the index.
    pub(crate) fn insert(&mut self, id: RegionId, regions: &Regions) {
        let range = regions.get(id).range();
        let numbers = block_numbers(range);
        if is_giant(&numbers) {
            self.giants.insert(range.start(), id);
            return;
        }
        for number in numbers {
            let was = self.blocks.get(number);
            let is = self.add(was, Block::of(number), range, id, regions);
            if is != was {
                self.blocks.set(number, is);
            }
        }
    }

    /// The entry of a block once the region is added.
    fn add(&mut self, entry: Entry, block: Block, range: PageRange, id: RegionId, regions: &Regions) -> Entry {
        match entry.kind() {
            Kind::Nothing => Entry::region(id),
            Kind::Region(other) => {
                let mut leaf = Line::EMPTY_LEAF;
                leaf.insert(block.relative(regions.get(other).range()), other);
                leaf.insert(block.relative(range), id);
                Entry::leaf(self.new_line(leaf))
            }
            Kind::Leaf(line) => {
                let mut leaf = self.line(line);
                if leaf.leaf_len() < LEAF_REGIONS {
                    leaf.insert(block.relative(range), id);
                    self.set_line(line, leaf);
                    return entry;
                }
                self.set_line(line, Line([0; 16]));
                for other in leaf.leaf_regions() {
                    self.add_to_children(line, block, regions.get(other).range(), other, regions);
                }
                self.add_to_children(line, block, range, id, regions);
                Entry::fork(line)
            }
            Kind::Fork(line) => {
                self.add_to_children(line, block, range, id, regions);
                entry
            }
        }
    }

    fn add_to_children(&mut self, line: u32, block: Block, range: PageRange, id: RegionId, regions: &Regions) {
        for (child, sub) in block.children(range) {
            let was = self.lines[line as usize].entry(child);
            let is = self.add(was, sub, range, id, regions);
            if is != was {
                self.set_entry(line, child, is);
            }
        }
    }

    /// Removes a region that is in the index.
    pub(crate) fn remove(&mut self, id: RegionId, regions: &Regions) {
        let range = regions.get(id).range();
        let numbers = block_numbers(range);
        if is_giant(&numbers) {
            self.giants.remove(&range.start());
            return;
        }
        for number in numbers {
            let was = self.blocks.get(number);
            let is = self.take(was, Block::of(number), range, id, regions);
            if is != was {
                self.blocks.set(number, is);
            }
        }
    }

    /// The entry of a block once the region is taken out.
    fn take(&mut self, entry: Entry, block: Block, range: PageRange, id: RegionId, regions: &Regions) -> Entry {
        match entry.kind() {
            Kind::Nothing => entry,
            Kind::Region(_) => Entry::NOTHING,
            Kind::Leaf(line) => {
                let mut leaf = self.line(line);
                let left = leaf.remove(id);
                self.set_line(line, leaf);
                if left > 1 {
                    return entry;
                }
                let last = leaf.leaf_regions().next();
                self.free.push(line);
                last.map_or(Entry::NOTHING, Entry::region)
            }
            Kind::Fork(line) => {
                let mut emptied = false;
                for (child, sub) in block.children(range) {
                    let was = self.lines[line as usize].entry(child);
                    let is = self.take(was, sub, range, id, regions);
                    if is != was {
                        self.set_entry(line, child, is);
                        emptied |= is == Entry::NOTHING;
                    }
                }
                // Looked at when a child is empty, which is seldom enough and often enough.
                if emptied { self.rejoin(line, block, regions).unwrap_or(entry) } else { entry }
            }
        }
    }

    /// The entry that replaces a fork which few regions touch.
    fn rejoin(&mut self, line: u32, block: Block, regions: &Regions) -> Option<Entry> {
        let fork = self.line(line);
        if fork.runs() > REJOIN_REGIONS {
            return None;
        }
        let mut ids = [None; REJOIN_REGIONS];
        let mut count = 0;
        for child in 0..16 {
            let mut take = |id| {
                if count > 0 && ids[count - 1] == Some(id) {
                    return true;
                }
                if count == REJOIN_REGIONS {
                    return false;
                }
                ids[count] = Some(id);
                count += 1;
                true
            };
            let few = match fork.entry(child).kind() {
                Kind::Nothing => true,
                Kind::Region(id) => take(id),
                Kind::Leaf(leaf) => self.line(leaf).leaf_regions().all(take),
                Kind::Fork(_) => false,
            };
            if !few {
                return None;
            }
        }
        for child in 0..16 {
            if let Kind::Leaf(leaf) = fork.entry(child).kind() {
                self.free.push(leaf);
            }
        }
        match ids {
            [None, ..] => {
                self.free.push(line);
                Some(Entry::NOTHING)
            }
            [Some(only), None, ..] => {
                self.free.push(line);
                Some(Entry::region(only))
            }
            _ => {
                let mut leaf = Line::EMPTY_LEAF;
                for id in ids.into_iter().flatten() {
                    leaf.insert(block.relative(regions.get(id).range()), id);
                }
                self.set_line(line, leaf);
                Some(Entry::leaf(line))
            }
        }
    }

    fn set_entry(&mut self, line: u32, child: u64, entry: Entry) {
        let word = &self.lines[line as usize].0[child as usize >> 1];
        let shift = 32 * (child & 1);
        word.store(word.load(Relaxed) & !(0xffff_ffff << shift) | u64::from(entry.0) << shift, Relaxed);
    }

    fn new_line(&mut self, line: Line) -> u32 {
        if let Some(free) = self.free.pop() {
            self.set_line(free, line);
            return free;
        }
        let number = self.used_lines;
        assert!(number < 1 << 30, "at most 2^30 lines");
        if number as usize == self.lines.len() {
            self.grow_lines();
        }
        self.used_lines += 1;
        self.set_line(number, line);
        number
    }

    fn grow_lines(&mut self) {
        let old = self.lines.len();
        // Old editions stay for readers, so growth must be by doubling where there are any.
        let more = if self.lines.is_shared() { old.max(8) } else { old / 8 + 64 };
        let line = |number| self.lines.get(number).map_or(Line([0; 16]), Stored::load);
        let items = (0..old + more).map(|number| Stored::new(line(number))).collect();
        self.lines.replace(items);
    }
}

/// Whether a region stands in the ordered map: it is huge, or so far up that no user's memory is there.
fn is_giant(numbers: &RangeInclusive<u64>) -> bool {
    numbers.end() - numbers.start() >= GIANT_BLOCKS || *numbers.end() >= BLOCKS_END
}

fn block_numbers(range: PageRange) -> RangeInclusive<u64> {
    range.start() >> BLOCK_BITS..=(range.end() - 1) >> BLOCK_BITS
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Ranges of all scales, clustered so that leaves fork and rejoin.
    fn ranges() -> impl Strategy<Value = PageRange> {
        let start = prop_oneof![
            4 => 0u64..256,
            4 => (1u64 << 14) - 64..(1 << 14) + 64,
            2 => 0u64..1 << 18,
            1 => 0u64..1 << 51,
        ];
        let pages = prop_oneof![6 => 1u64..4, 4 => 1u64..64, 2 => 1u64..4096, 1 => 1u64..1 << 20, 1 => 1u64..1 << 40];
        (start, pages).prop_map(|(start, pages)| PageRange::new(start, pages).unwrap())
    }

    fn check(index: &Index, regions: &Regions, model: &BTreeMap<u64, RegionId>, probe: PageRange) {
        let overlapping: Vec<_> =
            model.values().copied().filter(|&id| regions.get(id).range().overlaps(probe)).collect();
        let mut found = Vec::new();
        index.overlaps(probe, regions, &mut found);
        assert_eq!(found, overlapping, "overlaps of {probe:?}");
        let containing = overlapping.into_iter().find(|&id| regions.get(id).range().contains(probe));
        assert_eq!(index.find(probe, regions), containing, "find {probe:?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 300 }))]
        #[test]
        fn finds_what_an_ordered_map_finds(steps in prop::collection::vec((ranges(), any::<bool>()), 1..200)) {
            let mut regions = Regions::new();
            let mut index = Index::new();
            let mut model = BTreeMap::new();
            for (range, removes) in steps {
                let mut found = Vec::new();
                index.overlaps(range, &regions, &mut found);
                if found.is_empty() {
                    let id = regions.insert(range);
                    index.insert(id, &regions);
                    model.insert(range.start(), id);
                } else if removes {
                    for id in found {
                        index.remove(id, &regions);
                        model.remove(&regions.get(id).range().start());
                        regions.remove(id);
                    }
                }
                check(&index, &regions, &model, range);
                check(&index, &regions, &model, PageRange::new(range.start(), 1).unwrap());
                check(&index, &regions, &model, PageRange::new(range.end() - 1, 1).unwrap());
            }
            for id in std::mem::take(&mut model).into_values() {
                index.remove(id, &regions);
                regions.remove(id);
            }
            // Nothing leaks: every line is free again and no block is left.
            prop_assert_eq!(index.free.len(), index.used_lines as usize);
            prop_assert_eq!(index.blocks.len(), 0);
        }
    }

    #[test]
    fn dense_single_pages_stay_small() {
        let mut regions = Regions::new();
        let mut index = Index::new();
        for page in 0..65_536 {
            let id = regions.insert(PageRange::new(page, 1).unwrap());
            index.insert(id, &regions);
        }
        assert!(index.memory() / 65_536 <= 40, "{} bytes a region", index.memory() / 65_536);
        for page in 0..65_536 {
            let probe = PageRange::new(page, 1).unwrap();
            assert_eq!(index.find(probe, &regions).map(|id| regions.get(id).range()), Some(probe));
        }
    }
}
