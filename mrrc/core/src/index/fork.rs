//! Entries, which say what touches a piece of the address space, and forks, which have sixteen of them.
//!
//! Children of a fork that lie side by side can have the same entry: a *group*, two, four, eight or all of them, from
//! a multiple of that number on. A group is wherever entries are equal: a leaf is in one group only, and two
//! groups that are touched by nothing, or by the same region alone, are one.

use super::Part;
use super::arena::Line;
use crate::regions::RegionId;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The content of a block, or of a group of a fork's children: the name of a region, or the number of a
/// line and its kind in the two highest bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entry(u32);

pub(super) enum Kind {
    Nothing,
    Region(RegionId),
    Leaf(u32),
    Fork(u32),
}

/// Lines of a kind are numbered below this, and so are regions.
pub(super) const MOST_LINES: u32 = 1 << 30;

impl Entry {
    pub(super) const NOTHING: Self = Self(0);
    const LEAF: u32 = 0b10 << 30;
    const FORK: u32 = 0b11 << 30;

    pub(super) fn region(id: RegionId) -> Self {
        debug_assert!(u64::from(id.raw()) <= RegionId::MOST);
        Self(id.raw())
    }

    pub(super) fn leaf(line: u32) -> Self {
        debug_assert!(line < MOST_LINES);
        Self(Self::LEAF | line)
    }

    pub(super) fn fork(line: u32) -> Self {
        debug_assert!(line < MOST_LINES);
        Self(Self::FORK | line)
    }

    #[inline(always)]
    pub(super) fn raw(self) -> u32 {
        self.0
    }

    #[inline(always)]
    pub(super) fn from_raw(raw: u32) -> Self {
        Self(raw)
    }

    /// Returns the number of the leaf; of any other entry a number that is no leaf's.
    #[inline(always)]
    pub(super) fn leaf_number(self) -> usize {
        self.0.wrapping_sub(Self::LEAF) as usize
    }

    /// Returns the number of the fork; of any other entry a number that is no fork's.
    #[inline(always)]
    pub(super) fn fork_number(self) -> usize {
        self.0.wrapping_sub(Self::FORK) as usize
    }

    /// Returns the region, if the entry is one's name; of a leaf or fork a name that no region has.
    #[inline(always)]
    pub(super) fn name(self) -> Option<RegionId> {
        RegionId::from_raw(self.0)
    }

    pub(super) fn is_leaf(self) -> bool {
        self.0 & Self::FORK == Self::LEAF
    }

    #[inline(always)]
    pub(super) fn kind(self) -> Kind {
        match self.0 & Self::FORK {
            Self::LEAF => Kind::Leaf(self.0 & !Self::FORK),
            Self::FORK => Kind::Fork(self.0 & !Self::FORK),
            _ => self.name().map_or(Kind::Nothing, Kind::Region),
        }
    }
}

const _: () = assert!(RegionId::MOST < MOST_LINES as u64);
const _: () = assert!(RegionId::MOST < Entry::LEAF as u64 && MOST_LINES <= Entry::FORK - Entry::LEAF);

/// log2 of the children of a fork.
pub(super) const FORK_BITS: u32 = 4;
pub(super) const CHILDREN: usize = 1 << FORK_BITS;

/// The children of a fork: where they begin in their block, and log2 of the pages of each.
#[derive(Clone, Copy)]
pub(super) struct Level {
    pub(super) start: u64,
    pub(super) bits: u32,
}

impl Level {
    /// Returns the page of the block that a child begins with.
    pub(super) fn start_of(self, child: usize) -> u64 {
        self.start + ((child as u64) << self.bits)
    }

    /// Returns the children of a child.
    pub(super) fn below(self, child: usize) -> Self {
        // Below the second level there is none, and no look-up goes there.
        Self { start: self.start_of(child), bits: self.bits.saturating_sub(FORK_BITS) }
    }

    /// Returns the first and the last child that a part of the block touches; it touches one.
    pub(super) fn children(self, part: Part) -> (usize, usize) {
        let first = part.first.saturating_sub(self.start) >> self.bits;
        let last = (part.last - self.start) >> self.bits;
        (first as usize, (last as usize).min(CHILDREN - 1))
    }
}

/// A group: the first of its children and how many they are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) first: usize,
    pub(super) size: usize,
}

impl Group {
    pub(super) const ALL: Self = Self { first: 0, size: CHILDREN };

    pub(super) fn halves(self) -> [Self; 2] {
        let size = self.size / 2;
        [Self { first: self.first, size }, Self { first: self.first + size, size }]
    }

    /// Returns the half beside this one of the group that holds both.
    pub(super) fn buddy(self) -> Self {
        Self { first: self.first ^ self.size, size: self.size }
    }

    /// Returns the group that holds this one and its buddy.
    pub(super) fn doubled(self) -> Self {
        Self { first: self.first & !self.size, size: self.size * 2 }
    }
}

/// Sixteen entries in one line.
#[repr(align(64))]
#[derive(Default)]
pub(super) struct Fork([AtomicU32; CHILDREN]);

impl Fork {
    /// Returns the entry of a child; only the lowest bits of the number count.
    #[inline(always)]
    pub(super) fn entry(&self, child: u64) -> Entry {
        Entry(self.0[child as usize % CHILDREN].load(Relaxed))
    }

    pub(super) fn child(&self, child: usize) -> Entry {
        self.entry(child as u64)
    }

    /// Returns the group of a child.
    pub(super) fn group(&self, child: usize) -> Group {
        let entry = self.child(child);
        let mut group = Group { first: child, size: 1 };
        // A leaf is in one group only: if a child of the buddy has it, all have.
        let looked_at = |buddy: Group| if entry.is_leaf() { Group { size: 1, ..buddy } } else { buddy };
        while group.size < CHILDREN && self.is_one(looked_at(group.buddy()), entry) {
            group = group.doubled();
        }
        group
    }

    /// Returns whether all these children have this entry.
    pub(super) fn is_one(&self, group: Group, entry: Entry) -> bool {
        self.0[group.first..group.first + group.size].iter().all(|child| child.load(Relaxed) == entry.0)
    }

    pub(super) fn set(&self, group: Group, entry: Entry) {
        self.0[group.first..group.first + group.size].iter().for_each(|child| child.store(entry.0, Relaxed));
    }
}

impl Line for Fork {
    fn copy_of(&self) -> Self {
        Self(self.0.each_ref().map(|child| AtomicU32::new(child.load(Relaxed))))
    }

    fn clear(&self) {
        self.set(Group::ALL, Entry::NOTHING);
    }

    fn link(&self) -> u32 {
        self.0[0].load(Relaxed)
    }

    fn set_link(&self, next: u32) {
        self.0[0].store(next, Relaxed);
    }
}
