//! The blocks with their forks and leaves, and the owner's changes to them.
//!
//! Regions come and go, leaves are split and joined, and forks come and go with them.

use super::arena::{Line, Stock};
use super::blocks::Blocks;
use super::fork::{Entry, Group, Kind, Level, MOST_LINES};
use super::leaf::Leaf;
use super::lines::{Lines, Zeroed};
use super::lookup::IndexReader;
use super::published::{Edition, Editions};
use super::{Part, TOP, block_numbers};
use crate::regions::{RegionId, Regions};
use std::sync::Arc;

/// Two halves of a group are joined if so few regions touch them. Well below what a leaf holds, so that a
/// region that comes and goes does not split and join each time.
const JOINED_REGIONS: usize = 4;
/// Looked at when one half has come down to this, which is seldom enough and often enough.
const THIN_REGIONS: usize = 1;

/// A region that comes or goes, in one of the blocks that it touches.
struct Touch<'a> {
    id: RegionId,
    part: Part,
    block: u64,
    regions: &'a Regions,
}

impl Touch<'_> {
    /// Returns the part of the block that another region covers.
    fn part_of(&self, id: RegionId) -> Part {
        Part::of(self.regions.get(id).range(), self.block)
    }
}

/// The regions of an index by their blocks, short of giants.
pub(super) struct Tree {
    now: Edition,
    /// Blocks that have an entry.
    blocks: usize,
    forks: Stock,
    leaves: Stock,
    readers: Option<Arc<Editions>>,
}

impl Tree {
    pub(super) fn new() -> Self {
        Self {
            now: Edition { blocks: Blocks::new(Blocks::SMALLEST), forks: Lines::zeroed(0), leaves: Lines::zeroed(0) },
            blocks: 0,
            forks: Stock::new(),
            leaves: Stock::new(),
            readers: None,
        }
    }

    /// Returns the arrays that look-ups read.
    #[inline(always)]
    pub(super) fn arrays(&self) -> &Edition {
        &self.now
    }

    /// Returns the number of blocks that have an entry.
    #[inline]
    pub(super) fn blocks(&self) -> usize {
        self.blocks
    }

    #[inline]
    pub(super) fn leaf(&self, leaf: u32) -> &Leaf {
        &self.now.leaves[leaf as usize]
    }

    #[inline]
    fn child(&self, fork: u32, child: usize) -> Entry {
        self.now.forks[fork as usize].child(child)
    }

    /// From now on others may look for candidates at any time.
    pub(super) fn share(&mut self) -> IndexReader {
        let now = &self.now;
        IndexReader::new(self.readers.get_or_insert_with(|| Arc::new(Editions::new(now.clone()))).clone())
    }

    /// Returns the bytes allocated.
    pub(super) fn memory(&self) -> usize {
        self.readers.as_ref().map_or_else(|| self.now.memory_beside(None), |readers| readers.memory())
    }

    /// Returns the forks and leaves in use.
    #[cfg(test)]
    pub(super) fn lines_taken(&self) -> (usize, usize) {
        (self.forks.taken(&self.now.forks), self.leaves.taken(&self.now.leaves))
    }

    /// Adds a region; it must overlap none that is in the index.
    #[inline]
    pub(super) fn insert(&mut self, id: RegionId, regions: &Regions) {
        let range = regions.get(id).range();
        let (mut block, last) = block_numbers(range).into_inner();
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

    /// Returns the entry of a block or group once the region is added; none if it is a leaf without room.
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

    /// Returns a leaf with another region and this one.
    fn pair(&mut self, other_part: Part, other: RegionId, touch: &Touch) -> Entry {
        let number = self.new_leaf();
        self.leaf(number).begin_with((other_part, other), (touch.part, touch.id));
        Entry::leaf(number)
    }

    /// Returns a fork in the place of a full leaf, with the region added.
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

    /// Returns the entry for what is in a leaf: the leaf itself, or where it holds less than two regions what saves it.
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
    pub(super) fn remove(&mut self, id: RegionId, regions: &Regions) {
        let range = regions.get(id).range();
        let (mut block, last) = block_numbers(range).into_inner();
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

    /// Returns the entry of a block or group once the region is taken out.
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

    /// Returns the entry for what two entries say, if that is little and takes no other leaf.
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

    fn grown<T: Line + Zeroed>(&self, lines: &Lines<T>) -> Lines<T> {
        // Old editions stay for readers: all together they have a third of what the newest has in use. What it does not use takes
        // no memory.
        let more = if self.readers.is_some() { (3 * lines.len()).max(8) } else { lines.len() / 8 + 64 };
        let more = more.min(MOST_LINES as usize - lines.len());
        assert!(more > 0, "at most 2^30 lines");
        lines.grown(more)
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
