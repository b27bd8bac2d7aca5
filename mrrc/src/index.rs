//! Which region covers a page: the look-up that every hit begins with.
//!
//! Regions never overlap here, so a page belongs to one region at most. The address space is cut
//! into blocks of 2^8 pages (1 MiB). A hash table finds a block's *entry*, and an entry says which
//! regions touch it, in the cheapest form that can: nothing, one region, a *leaf* of up to eight, or a
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
//! A leaf knows what its regions cover of the *block*, whatever its group is, so a look-up treats all leaves
//! alike, and splitting and joining need no look at a region. Leaves and forks are lines of 64 bytes in an
//! arena each. A look-up touches one line of the hash table, one or two lines of the arenas (three where regions are
//! small and dense), and then the region itself: it finds a *candidate*, the only region that can hold the page, and
//! compares ranges. A region costs a place of eight bytes for each MiB that it touches, and a share of a leaf
//! where it begins and ends.
//!
//! Blocks of that size are a compromise. Larger ones take less memory where regions are large, but a fork stands between
//! the table and the leaf wherever regions of 64 KiB lie close together: one more line to wait for on each hit.
//!
//! A region that touches more than [`GIANT_BLOCKS`] blocks (8 GiB), or lies beyond 2^52 bytes, where no
//! user's memory is, stands in an ordered map instead; look-ups consult it last, and only when there is
//! such a region.
//!
//! One owner changes the index; an [`IndexReader`] finds candidates in it at the same time, on any
//! thread and without waiting. It may read a line half changed or used again for another block, so its answer
//! is a guess: a region may be missed while lines on the way to it change, and the name found may be one that no
//! region has. The reader must hold the region and compare ranges before it believes it, and ask the
//! owner when the guess was wrong. Taking a region out allocates nothing.

use crate::range::PageRange;
use crate::regions::{RegionId, Regions};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

mod arena;
mod blocks;
mod fork;
mod leaf;
mod published;

use arena::{Line, Stock};
use blocks::{BLOCKS_END, Blocks};
use fork::{Entry, FORK_BITS, Fork, Group, Kind, Level, MOST_LINES};
use leaf::Leaf;
use published::{Edition, Editions, Lines};

/// log2 of the pages in a block.
const BLOCK_BITS: u32 = 8;
/// The last page of a block, counted from its first.
const LAST_PAGE: u64 = (1 << BLOCK_BITS) - 1;
/// The children of a block's fork.
const TOP: Level = Level { start: 0, bits: BLOCK_BITS - FORK_BITS };
/// Two halves of a group are joined if so few regions touch them. Well below what a leaf holds, so that a
/// region that comes and goes does not split and join each time.
const JOINED_REGIONS: usize = 4;
/// Looked at when one half has come down to this, which is seldom enough and often enough.
const THIN_REGIONS: usize = 1;
const GIANT_BLOCKS: u64 = 8192;

/// What a range covers of a block: the first and last page, counted from the block's first.
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

/// A region that comes or goes, in one of the blocks that it touches.
struct Touch<'a> {
    id: RegionId,
    part: Part,
    block: u64,
    regions: &'a Regions,
}

impl Touch<'_> {
    /// What another region covers of the block.
    fn part_of(&self, id: RegionId) -> Part {
        Part::of(self.regions.get(id).range(), self.block)
    }
}

/// The address index of one domain's regions.
pub(crate) struct Index {
    now: Edition,
    /// Blocks that have an entry.
    blocks: usize,
    forks: Stock,
    leaves: Stock,
    /// Regions of more than [`GIANT_BLOCKS`] blocks, or beyond [`BLOCKS_END`], by their first page.
    giants: BTreeMap<u64, RegionId>,
    readers: Option<Arc<Editions>>,
}

/// Finds candidates while the owner changes the index.
pub(crate) struct IndexReader(Arc<Editions>);

impl IndexReader {
    /// A region that may hold the page: the only one that can, unless the index is just changing or
    /// the region is a giant.
    #[inline(always)]
    pub(crate) fn candidate(&self, page: u64) -> Option<RegionId> {
        RegionId::from_raw(self.guess(page))
    }

    /// The same as a name, which may be 0 or no region's.
    #[inline(always)]
    pub(crate) fn guess(&self, page: u64) -> u32 {
        self.0.read().guess(page)
    }
}

impl Edition {
    /// The only region short of a giant that can cover the page. Every hit runs through here, so the levels
    /// are written out: shifts by constants, and one way to each end. What an entry says may be changing: a
    /// number beyond the lines is no line.
    #[inline(always)]
    fn guess(&self, page: u64) -> u32 {
        let entry = self.blocks.get(page >> BLOCK_BITS);
        match self.leaves.get(entry.leaf_number()) {
            Some(leaf) => leaf.guess(page & LAST_PAGE),
            None => match self.forks.get(entry.fork_number()) {
                Some(fork) => self.guess_below(fork, page),
                // Of a leaf or fork beyond the lines, a number that is no region's.
                None => entry.raw(),
            },
        }
    }

    /// The same in a block that has a fork: called rather than written into every hit, where most blocks have none.
    #[cold]
    #[inline(never)]
    fn guess_below(&self, fork: &Fork, page: u64) -> u32 {
        let mut entry = fork.entry(page >> TOP.bits);
        if let Some(fork) = self.forks.get(entry.fork_number()) {
            entry = fork.entry(page >> (TOP.bits - FORK_BITS));
        }
        self.leaves.get(entry.leaf_number()).map_or(entry.raw(), |leaf| leaf.guess(page & LAST_PAGE))
    }
}

impl Index {
    pub(crate) fn new() -> Self {
        Self {
            now: Edition { blocks: Blocks::new(Blocks::SMALLEST), forks: Lines::empty(), leaves: Lines::empty() },
            blocks: 0,
            forks: Stock::new(),
            leaves: Stock::new(),
            giants: BTreeMap::new(),
            readers: None,
        }
    }

    /// From now on others may look for candidates at any time.
    pub(crate) fn share(&mut self) -> IndexReader {
        let now = &self.now;
        IndexReader(self.readers.get_or_insert_with(|| Arc::new(Editions::new(now.clone()))).clone())
    }

    /// Bytes allocated.
    pub(crate) fn memory(&self) -> usize {
        self.readers.as_ref().map_or_else(|| self.now.memory_beside(None), |readers| readers.memory())
            + self.giants.len() * 2 * size_of::<(u64, RegionId)>()
    }

    /// The region that contains the whole range.
    #[inline(always)]
    pub(crate) fn find(&self, range: PageRange, regions: &Regions) -> Option<RegionId> {
        if let Some(id) = RegionId::from_raw(self.now.guess(range.start()))
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

    /// The entry that alone says what touches a range, if one does, and what the range covers of its block: most that
    /// comes and goes is settled there. It is no fork.
    #[inline(always)]
    fn only_entry(&self, range: PageRange) -> Option<(Entry, Part)> {
        let block = range.start() >> BLOCK_BITS;
        if (range.end() - 1) >> BLOCK_BITS != block || block >= BLOCKS_END {
            return None;
        }
        let part = Part::within(range);
        let mut entry = self.now.blocks.get(block);
        let mut bits = TOP.bits;
        while let Some(fork) = self.now.forks.get(entry.fork_number()) {
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
        found.dedup();
    }

    /// Whether a region overlaps the range.
    #[inline]
    pub(crate) fn has_overlap(&self, range: PageRange, regions: &Regions) -> bool {
        let mut any = false;
        self.for_each_overlap(range, regions, |_| any = true);
        any
    }

    /// Shows the regions that overlap the range, in no order and some of them several times. Allocates nothing.
    #[inline]
    pub(crate) fn for_each_overlap(&self, range: PageRange, regions: &Regions, found: impl FnMut(RegionId)) {
        match self.only_entry(range) {
            Some((entry, part)) if self.giants.is_empty() => match self.now.leaves.get(entry.leaf_number()) {
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
        if last.saturating_sub(first) > 2 * self.blocks as u64 {
            for (number, entry) in self.now.blocks.iter().filter(|(number, _)| numbers.contains(number)) {
                look(entry, number);
            }
        } else {
            for number in first..=last {
                look(self.now.blocks.get(number), number);
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
            Kind::Leaf(leaf) => self.leaf(leaf).for_each_overlap(part, found),
            Kind::Fork(fork) => {
                let fork = &self.now.forks[fork as usize];
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

    /// Adds a region; it must overlap none that is in the index.
    #[inline]
    pub(crate) fn insert(&mut self, id: RegionId, regions: &Regions) {
        let range = regions.get(id).range();
        let numbers = block_numbers(range);
        if is_giant(&numbers) {
            self.giants.insert(range.start(), id);
            return;
        }
        let (mut block, last) = numbers.into_inner();
        loop {
            self.insert_in(&Touch { id, part: Part::of(range, block), block, regions });
            if block == last {
                return;
            }
            block += 1;
        }
    }

    fn insert_in(&mut self, touch: &Touch) {
        let (place, was) = self.now.blocks.find(touch.block);
        let is = self.add(was, TOP, touch).unwrap_or_else(|| self.deepen(was, TOP, touch));
        if is != was {
            self.now.blocks.set(place, touch.block, is);
            if was == Entry::NOTHING {
                self.count_block();
            }
        }
    }

    /// The entry of a block or group once the region is added; none if it is a leaf without room.
    #[inline]
    fn add(&mut self, was: Entry, below: Level, touch: &Touch) -> Option<Entry> {
        match was.kind() {
            Kind::Nothing => Some(Entry::region(touch.id)),
            Kind::Region(other) => Some(self.pair(touch.part_of(other), other, touch)),
            Kind::Leaf(leaf) => self.leaf(leaf).insert(touch.part, touch.id).then_some(was),
            Kind::Fork(fork) => {
                self.add_to_children(fork, below, touch);
                Some(was)
            }
        }
    }

    /// A leaf with another region and this one.
    fn pair(&mut self, other_part: Part, other: RegionId, touch: &Touch) -> Entry {
        let number = self.new_leaf();
        self.leaf(number).begin_with((other_part, other), (touch.part, touch.id));
        Entry::leaf(number)
    }

    /// A fork in the place of a full leaf, with the region added.
    fn deepen(&mut self, full: Entry, level: Level, touch: &Touch) -> Entry {
        let fork = self.new_fork();
        self.now.forks[fork as usize].set(Group::ALL, full);
        self.add_to_children(fork, level, touch);
        Entry::fork(fork)
    }

    fn add_to_children(&mut self, fork: u32, level: Level, touch: &Touch) {
        let (mut child, last) = level.children(touch.part);
        while child <= last {
            let was = self.child(fork, child);
            let is = match self.add(was, level.below(child), touch) {
                Some(is) => is,
                None => {
                    let group = self.now.forks[fork as usize].group(child);
                    if group.size > 1 {
                        self.split(fork, group, level);
                        continue;
                    }
                    self.deepen(was, level.below(child), touch)
                }
            };
            if is != was {
                self.set_group(fork, child, is);
            }
            // No other group can have this entry: the leaf or fork is this one's, and the region was in none.
            child += 1;
            while child <= last && self.child(fork, child) == is {
                child += 1;
            }
        }
    }

    /// Splits a leaf of several children in halves.
    fn split(&mut self, fork: u32, group: Group, level: Level) {
        let Kind::Leaf(left) = self.child(fork, group.first).kind() else { return };
        let right = self.new_leaf();
        let [left_half, right_half] = group.halves();
        let middle = level.start_of(right_half.first);
        for (part, id) in self.leaf(left).iter().filter(|(part, _)| part.last >= middle) {
            self.leaf(right).insert(part, id);
        }
        let entry = self.settle(right);
        self.now.forks[fork as usize].set(right_half, entry);
        self.leaf(left).cut(middle);
        let entry = self.settle(left);
        self.now.forks[fork as usize].set(left_half, entry);
    }

    /// The entry for what is in a leaf: the leaf itself, or where it holds less than two regions what saves it.
    #[inline]
    fn settle(&mut self, number: u32) -> Entry {
        let leaf = self.leaf(number);
        if !leaf.has_at_most(1) {
            return Entry::leaf(number);
        }
        let only = leaf.iter().next();
        self.leaves.give(&self.now.leaves, number);
        only.map_or(Entry::NOTHING, |(_, id)| Entry::region(id))
    }

    /// Removes a region that is in the index.
    #[inline]
    pub(crate) fn remove(&mut self, id: RegionId, regions: &Regions) {
        let range = regions.get(id).range();
        let numbers = block_numbers(range);
        if is_giant(&numbers) {
            self.giants.remove(&range.start());
            return;
        }
        let (mut block, last) = numbers.into_inner();
        loop {
            self.remove_from(&Touch { id, part: Part::of(range, block), block, regions });
            if block == last {
                return;
            }
            block += 1;
        }
    }

    fn remove_from(&mut self, touch: &Touch) {
        let (place, was) = self.now.blocks.find(touch.block);
        let is = self.take(was, TOP, touch);
        if is == was {
        } else if is == Entry::NOTHING {
            self.now.blocks.vacate(place);
            self.count_out_block();
        } else {
            self.now.blocks.set(place, touch.block, is);
        }
    }

    /// The entry of a block or group once the region is taken out.
    #[inline]
    fn take(&mut self, was: Entry, below: Level, touch: &Touch) -> Entry {
        match was.kind() {
            Kind::Nothing => was,
            Kind::Region(_) => Entry::NOTHING,
            Kind::Leaf(leaf) => {
                self.leaf(leaf).remove(touch.part, touch.id);
                self.settle(leaf)
            }
            Kind::Fork(fork) => self.take_from_children(fork, below, touch),
        }
    }

    fn take_from_children(&mut self, fork: u32, level: Level, touch: &Touch) -> Entry {
        let (first, last) = level.children(touch.part);
        let mut child = first;
        let mut thin = false;
        while child <= last {
            let was = self.child(fork, child);
            let is = self.take(was, level.below(child), touch);
            if is != was {
                self.set_group(fork, child, is);
            }
            thin |= is != was || self.is_thin(is);
            // The next group has another entry: the region was in that.
            child += 1;
            while child <= last && self.child(fork, child) == is {
                child += 1;
            }
        }
        // Groups between the first and the last were this region's alone.
        if thin && (self.join(fork, first, touch) || self.join(fork, last, touch)) {
            let whole = self.child(fork, 0);
            self.forks.give(&self.now.forks, fork);
            return whole;
        }
        Entry::fork(fork)
    }

    fn is_thin(&self, entry: Entry) -> bool {
        matches!(entry.kind(), Kind::Leaf(leaf) if self.leaf(leaf).has_at_most(THIN_REGIONS))
    }

    /// Joins the group of a child with its buddy, and what they make with its own, while few regions touch
    /// them. Whether the fork is one group.
    fn join(&mut self, fork: u32, child: usize, touch: &Touch) -> bool {
        loop {
            let children = &self.now.forks[fork as usize];
            let group = children.group(child);
            if group == Group::ALL {
                return true;
            }
            let buddy = group.buddy();
            let (here, there) = (children.child(group.first), children.child(buddy.first));
            if !children.is_one(buddy, there) {
                return false;
            }
            let last_two = group.doubled() == Group::ALL;
            let Some(joined) = self.joined(here, there, last_two, touch) else { return false };
            self.now.forks[fork as usize].set(group.doubled(), joined);
        }
    }

    /// The entry for what two entries say, if that is little and takes no other leaf.
    fn joined(&mut self, a: Entry, b: Entry, last_two: bool, touch: &Touch) -> Option<Entry> {
        match (a.kind(), b.kind()) {
            (Kind::Fork(_), _) | (_, Kind::Fork(_)) => None,
            (Kind::Nothing, Kind::Nothing | Kind::Region(_)) => Some(b),
            (Kind::Region(_), Kind::Nothing) => Some(a),
            // The leaf takes the place of the fork.
            (Kind::Region(one), Kind::Region(other)) => {
                let number = if last_two { self.leaves.take(&self.now.leaves) } else { None }?;
                self.leaf(number).begin_with((touch.part_of(one), one), (touch.part_of(other), other));
                Some(Entry::leaf(number))
            }
            (Kind::Leaf(leaf), Kind::Nothing) => self.leaf(leaf).has_at_most(JOINED_REGIONS).then_some(a),
            (Kind::Nothing, Kind::Leaf(leaf)) => self.leaf(leaf).has_at_most(JOINED_REGIONS).then_some(b),
            (Kind::Leaf(leaf), Kind::Region(id)) => self.absorb(leaf, id, touch).then_some(a),
            (Kind::Region(id), Kind::Leaf(leaf)) => self.absorb(leaf, id, touch).then_some(b),
            (Kind::Leaf(leaf), Kind::Leaf(other)) => {
                let (into, from) = (self.leaf(leaf), self.leaf(other));
                if into.len() + from.len() > JOINED_REGIONS {
                    return None;
                }
                for (part, id) in from.iter() {
                    if !into.has(id) {
                        into.insert(part, id);
                    }
                }
                self.leaves.give(&self.now.leaves, other);
                Some(a)
            }
        }
    }

    /// Puts a region into a leaf, which may have it, unless that makes too many.
    fn absorb(&self, leaf: u32, id: RegionId, touch: &Touch) -> bool {
        let leaf = self.leaf(leaf);
        leaf.has_at_most(JOINED_REGIONS - 1) && (leaf.has(id) || leaf.insert(touch.part_of(id), id))
    }

    #[inline]
    fn leaf(&self, leaf: u32) -> &Leaf {
        &self.now.leaves[leaf as usize]
    }

    #[inline]
    fn child(&self, fork: u32, child: usize) -> Entry {
        self.now.forks[fork as usize].child(child)
    }

    /// Gives the whole group of a child another entry.
    fn set_group(&mut self, fork: u32, child: usize, entry: Entry) {
        let fork = &self.now.forks[fork as usize];
        fork.set(fork.group(child), entry);
    }

    fn new_leaf(&mut self) -> u32 {
        if let Some(leaf) = self.leaves.take(&self.now.leaves) {
            return leaf;
        }
        self.now.leaves = self.grown(&self.now.leaves);
        self.publish();
        self.leaves.take(&self.now.leaves).expect("there is more room now")
    }

    fn new_fork(&mut self) -> u32 {
        if let Some(fork) = self.forks.take(&self.now.forks) {
            return fork;
        }
        self.now.forks = self.grown(&self.now.forks);
        self.publish();
        self.forks.take(&self.now.forks).expect("there is more room now")
    }

    fn grown<T: Line>(&self, lines: &[T]) -> Lines<T> {
        // Old editions stay for readers, so growth must be by doubling where there are any.
        let more = if self.readers.is_some() { lines.len().max(8) } else { lines.len() / 8 + 64 };
        assert!(lines.len() + more <= MOST_LINES as usize, "at most 2^30 lines");
        arena::grown(lines, more).into()
    }

    /// A block got an entry.
    fn count_block(&mut self) {
        self.blocks += 1;
        let places = self.now.blocks.places();
        if self.blocks * 3 > places * 2 && self.now.blocks.can_grow() {
            self.resize_blocks(places * 2);
        }
    }

    /// A block lost its entry.
    fn count_out_block(&mut self) {
        self.blocks -= 1;
        let places = self.now.blocks.places();
        // Readers keep every edition alive: a table that breathes would leave one each time.
        if self.blocks * 8 < places && places > Blocks::SMALLEST && self.readers.is_none() {
            self.resize_blocks(places / 2);
        }
    }

    fn resize_blocks(&mut self, places: usize) {
        self.now.blocks = self.now.blocks.resized(places);
        self.publish();
    }

    /// Shows readers the arrays that are there now.
    fn publish(&self) {
        if let Some(readers) = &self.readers {
            readers.publish(self.now.clone());
        }
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

    /// Forks and leaves in use.
    fn lines_taken(index: &Index) -> (usize, usize) {
        (index.forks.taken(&index.now.forks), index.leaves.taken(&index.now.leaves))
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
        #![proptest_config(if cfg!(miri) { ProptestConfig::with_cases(2) } else { ProptestConfig::default() })]
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
                let around = PageRange::between(range.start().saturating_sub(24), range.end() + 24);
                check(&index, &regions, &model, around);
                check(&index, &regions, &model, PageRange::new(range.start(), 1).unwrap());
                check(&index, &regions, &model, PageRange::new(range.end() - 1, 1).unwrap());
            }
            for id in std::mem::take(&mut model).into_values() {
                index.remove(id, &regions);
                regions.remove(id);
            }
            // Nothing leaks: every line is free again and no block is left.
            prop_assert_eq!(lines_taken(&index), (0, 0));
            prop_assert_eq!(index.blocks, 0);
        }
    }

    /// The same numbers in another order.
    fn shuffled(count: u64) -> impl Iterator<Item = u64> {
        (0..count).map(move |i| i * 40_503 % count)
    }

    fn filled(ranges: impl Iterator<Item = PageRange>) -> (Index, Regions, Vec<RegionId>) {
        let (mut regions, mut index) = (Regions::new(), Index::new());
        let insert = |range| {
            let id = regions.insert(range);
            index.insert(id, &regions);
            id
        };
        let ids = ranges.map(insert).collect();
        (index, regions, ids)
    }

    /// Bytes a region of the lines and places that look-ups read, whatever room the arrays have besides.
    fn density(index: &Index, regions: &Regions) -> usize {
        let (forks, leaves) = lines_taken(index);
        ((forks + leaves) * size_of::<Leaf>() + index.now.blocks.memory()) / regions.len()
    }

    fn check_all_found(index: &Index, regions: &Regions, ids: &[RegionId]) {
        for &id in ids {
            let range = regions.get(id).range();
            for page in [range.start(), range.end() - 1] {
                assert_eq!(index.find(PageRange::new(page, 1).unwrap(), regions), Some(id), "page {page} of {range:?}");
            }
        }
    }

    #[test]
    fn dense_single_pages_stay_small() {
        let (index, regions, ids) = filled((0..65_536).map(|page| PageRange::new(page, 1).unwrap()));
        assert!(index.memory() / ids.len() <= 16, "{} bytes a region", index.memory() / ids.len());
        assert!(density(&index, &regions) <= 12, "{} bytes a region", density(&index, &regions));
        check_all_found(&index, &regions, &ids);
    }

    #[test]
    fn strided_regions_share_leaves() {
        // 64 KiB every 128 KiB, and every 256 KiB: eight and four in a block.
        for (stride, most) in [(32, 10), (64, 20)] {
            let ranges = shuffled(16_384).map(|i| PageRange::new((1 << 30) + i * stride, 16).unwrap());
            let (index, regions, ids) = filled(ranges);
            assert!(density(&index, &regions) <= most, "{} bytes a region", density(&index, &regions));
            assert!(index.memory() / ids.len() <= most + 3, "{} bytes a region", index.memory() / ids.len());
            check_all_found(&index, &regions, &ids);
        }
    }

    #[test]
    fn packed_irregular_regions_share_leaves() {
        // Regions of 1 to 47 pages that touch their neighbours.
        let mut next = 1 << 30;
        let mut ranges: Vec<_> = (0..16_384_u64)
            .map(|i| {
                let range = PageRange::new(next, 1 + i * i % 47).unwrap();
                next = range.end();
                range
            })
            .collect();
        let (index, regions, _) = filled(ranges.iter().copied());
        assert!(density(&index, &regions) <= 20, "{} bytes a region in order", density(&index, &regions));
        ranges = shuffled(16_384).map(|i| ranges[i as usize]).collect();
        let (index, regions, ids) = filled(ranges.into_iter());
        assert!(density(&index, &regions) <= 20, "{} bytes a region", density(&index, &regions));
        check_all_found(&index, &regions, &ids);
    }

    #[test]
    fn a_leaf_splits_in_halves_and_they_join_again() {
        // A block's 32 places for regions of 4 pages.
        let at = |place: u64| PageRange::new(place * 8, 4).unwrap();
        let (mut index, mut regions, mut ids) = filled((0..8).map(at));
        assert_eq!(lines_taken(&index), (0, 1), "eight regions are a leaf");
        ids.push(regions.insert(at(8)));
        index.insert(ids[8], &regions);
        // Halves: eight in the first quarter, one in the second, none in the other half.
        assert_eq!(lines_taken(&index), (1, 1), "the lone ninth takes no leaf");
        for place in 9..32 {
            ids.push(regions.insert(at(place)));
            index.insert(ids[place as usize], &regions);
        }
        assert_eq!(lines_taken(&index), (1, 4), "a leaf for each quarter");
        check_all_found(&index, &regions, &ids);
        let mut remove = |index: &mut Index, place: usize| {
            index.remove(ids[place], &regions);
            regions.remove(ids[place]);
        };
        for quarter in 0..4 {
            (0..4).for_each(|i| remove(&mut index, quarter * 8 + i));
        }
        assert_eq!(lines_taken(&index), (1, 4), "halves with four regions each stay apart");
        for place in [4, 5, 12, 13] {
            remove(&mut index, place);
        }
        assert_eq!(lines_taken(&index), (1, 4), "and two are enough to stay apart");
        remove(&mut index, 6);
        assert_eq!(lines_taken(&index), (1, 3), "one joins the two beside it");
        (20..23).for_each(|place| remove(&mut index, place));
        assert_eq!(lines_taken(&index), (1, 2), "one beside four needs no leaf");
        (28..31).for_each(|place| remove(&mut index, place));
        assert_eq!(lines_taken(&index), (1, 1), "nor does one beside one");
        remove(&mut index, 23);
        assert_eq!(lines_taken(&index), (0, 1), "a fork that is one group gives way to its leaf");
        for place in [7, 14, 15, 31] {
            assert_eq!(index.find(at(place), &regions), Some(ids[place as usize]));
        }
        for place in [7, 14, 15, 31] {
            index.remove(ids[place], &regions);
            regions.remove(ids[place]);
        }
        assert_eq!((lines_taken(&index), index.blocks), ((0, 0), 0));
    }

    #[test]
    fn what_lies_between_two_empty_children_is_found() {
        let (index, regions, ids) = filled((128..137).map(|page| PageRange::new(page, 1).unwrap()));
        let mut found = Vec::new();
        index.overlaps(PageRange::between(112, 160), &regions, &mut found);
        assert_eq!(found, ids);
    }

    #[test]
    fn leaves_that_share_a_region_are_joined_into_one() {
        let at = |place: u64| PageRange::new(place * 8, 4).unwrap();
        // Number 9 lies in both halves of the block.
        let places = [0, 1, 2, 3, 4, 5, 8, 10, 11].map(at);
        let ranges = places.into_iter().chain([PageRange::new(127, 2).unwrap(), at(17)]);
        let (mut index, mut regions, ids) = filled(ranges);
        let mut remove = |index: &mut Index, gone: &[usize]| {
            for &gone in gone {
                index.remove(ids[gone], &regions);
                regions.remove(ids[gone]);
            }
        };
        remove(&mut index, &[0, 1, 2, 3, 4, 7, 8]);
        assert_eq!(lines_taken(&index), (1, 2), "5 alone; 6 and 9; 9 and 10");
        remove(&mut index, &[5]);
        assert_eq!(lines_taken(&index), (0, 1));
        remove(&mut index, &[6, 9]);
        assert_eq!((lines_taken(&index), index.blocks), ((0, 0), 1), "10 alone");
        remove(&mut index, &[10]);
        assert_eq!((lines_taken(&index), index.blocks), ((0, 0), 0));
    }

    #[test]
    fn the_last_region_of_a_fork_needs_no_line() {
        let (mut index, mut regions, ids) = filled((0..9).map(|place| PageRange::new(place * 8, 4).unwrap()));
        for &id in &ids[1..] {
            index.remove(id, &regions);
            regions.remove(id);
        }
        assert_eq!((lines_taken(&index), index.blocks), ((0, 0), 1));
        check_all_found(&index, &regions, &ids[..1]);
    }

    #[test]
    fn readers_see_what_the_owner_grows() {
        let (mut regions, mut index) = (Regions::new(), Index::new());
        let reader = index.share();
        for i in shuffled(if cfg!(miri) { 64 } else { 4_096 }) {
            let id = regions.insert(PageRange::new(i * 32, 16).unwrap());
            index.insert(id, &regions);
            assert_eq!(reader.candidate(i * 32), Some(id));
        }
    }

    #[test]
    fn a_region_over_many_children_leaves_nothing_behind() {
        // One region from the middle of the first child to the middle of the last, between many small ones.
        let small = (0..4).chain(252..256).map(|page| PageRange::new(page, 1).unwrap());
        let (mut index, mut regions, ids) = filled(small.chain([PageRange::new(6, 244).unwrap()]));
        check_all_found(&index, &regions, &ids);
        for (gone, &id) in ids.iter().enumerate().rev() {
            index.remove(id, &regions);
            regions.remove(id);
            check_all_found(&index, &regions, &ids[..gone]);
        }
        assert_eq!((lines_taken(&index), index.blocks), ((0, 0), 0));
    }

    /// What is guaranteed: no panic and no word read outside of the arrays, whatever the owner does meanwhile; a
    /// region in a block that the owner leaves alone is found at every moment, unless the hash table is
    /// changing; every region is found once the owner rests.
    #[test]
    fn a_reader_looks_up_while_the_owner_works() {
        use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
        let rounds = if cfg!(miri) { 20 } else { 2_000 };
        // Everything stands in one block but one region, so that the table does not change.
        let (mut regions, mut index) = (Regions::new(), Index::new());
        let stable = regions.insert(PageRange::new(5 << BLOCK_BITS, 200).unwrap());
        index.insert(stable, &regions);
        let reader = index.share();
        /// Says so also when the owner panics: the reader waits for it.
        struct Done<'a>(&'a AtomicBool);
        impl Drop for Done<'_> {
            fn drop(&mut self) {
                self.0.store(true, SeqCst);
            }
        }
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let owner = Done(&done);
            let looks = scope.spawn(|| {
                let (mut page, mut looks) = (0, 0_u64);
                while !done.load(SeqCst) || looks == 0 {
                    page = (page + 7) % 256;
                    std::hint::black_box(reader.candidate(page));
                    assert_eq!(reader.candidate((5 << BLOCK_BITS) + page % 200), Some(stable));
                    std::hint::black_box(reader.candidate(page << 40 | 0xfff));
                    looks += 1;
                }
                looks
            });
            let mut ids = Vec::new();
            for round in 0..rounds {
                // Small and dense, or large and sparse: forks come and go.
                let pages = 1 << (round % 3);
                for i in shuffled(64) {
                    let id = regions.insert(PageRange::new(i * pages, pages - pages / 4).unwrap());
                    index.insert(id, &regions);
                    ids.push(id);
                }
                for &id in &ids {
                    let page = regions.get(id).range().start();
                    assert_eq!(reader.candidate(page), Some(id), "the owner rests");
                }
                for id in ids.drain(..) {
                    index.remove(id, &regions);
                    regions.remove(id);
                }
            }
            drop(owner);
            assert!(looks.join().unwrap() > 0);
        });
        assert_eq!((lines_taken(&index), index.blocks), ((0, 0), 1));
    }
}
