//! Ranges of pages in memory of fixed size: insertion takes a time that grows with the logarithm of their number, and
//! allocates nothing.
//!
//! A monitor's thread keeps changes, and the cache remembers discards, where nothing may be allocated. A list of a few
//! places that becomes "everything" when it is full would invalidate the whole cache after a burst. So there is room for
//! more ranges than a burst has, in memory that the system gives when it is first written to. If they are too many all the
//! same, the new one is drawn together with its nearer neighbour: more pages are covered than were inserted, never fewer,
//! and [`Ranges::is_exact`] tells.
//!
//! The ranges are a treap: a binary tree by first page, and a heap by a random priority, so that its height is some
//! multiple of the logarithm whatever the order of insertion.

use crate::range::PageRange;

/// No node.
const NIL: u32 = u32::MAX;

/// Ranges that do not overlap, each with a value. Two that touch have different values.
#[derive(Debug)]
pub(crate) struct Ranges<V> {
    nodes: Vec<Node<V>>,
    /// The most nodes; the vector never grows beyond its first allocation.
    most: usize,
    root: u32,
    /// The first node that is used no more; linked by `left`.
    free: u32,
    length: usize,
    random: u32,
    exact: bool,
}

#[derive(Clone, Copy, Debug)]
struct Node<V> {
    start: u64,
    end: u64,
    value: V,
    priority: u32,
    left: u32,
    right: u32,
}

impl<V: Copy + PartialEq> Ranges<V> {
    /// With room for so many ranges, three at least.
    pub(crate) fn with_room_for(most: usize) -> Self {
        let most = most.clamp(3, NIL as usize - 1);
        let nodes = Vec::with_capacity(most);
        Self { nodes, most, root: NIL, free: NIL, length: 0, random: 0x9e37_79b9, exact: true }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.root == NIL
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// How many ranges can be inserted for certain before neighbours are drawn together.
    pub(crate) fn room(&self) -> usize {
        (self.most - self.length) / 2
    }

    /// Returns whether no range covers more than was inserted since the last [`Ranges::clear`].
    pub(crate) fn is_exact(&self) -> bool {
        self.exact
    }

    pub(crate) fn clear(&mut self) {
        self.nodes.clear();
        (self.root, self.free, self.length, self.exact) = (NIL, NIL, 0, true);
    }

    /// The pages have this value from now on, whatever they had before.
    pub(crate) fn insert(&mut self, range: PageRange, value: V) {
        // It takes a node, and another if it lies within one that has another value.
        let range = if self.room() == 0 { self.widened(range) } else { range };
        let (mut start, mut end) = (range.start(), range.end());
        let (before, rest) = self.split(self.root, start);
        let (within, mut after) = self.split(rest, end);
        let mut tail = None;
        // Only the last of those that begin before it can reach into it.
        let mut before = before;
        if let Some(last) = self.last(before) {
            let Node { start: first, end: last_end, value: old, .. } = self.nodes[last as usize];
            if last_end >= start && old == value {
                (start, end) = (first, end.max(last_end));
                let (head, node) = self.split(before, first);
                self.discard(node);
                before = head;
            } else if last_end > start {
                self.nodes[last as usize].end = start;
                tail = (last_end > end).then_some((end, last_end, old));
            }
        }
        if let Some(last) = self.last(within) {
            let Node { end: last_end, value: old, .. } = self.nodes[last as usize];
            if last_end > end {
                if old == value {
                    end = last_end;
                } else {
                    tail = Some((end, last_end, old));
                }
            }
        }
        self.discard(within);
        if tail.is_none()
            && let Some(first) = self.first(after)
        {
            let Node { start: next, end: next_end, value: old, .. } = self.nodes[first as usize];
            if next <= end && old == value {
                let (node, others) = self.split(after, next_end);
                self.discard(node);
                (end, after) = (next_end, others);
            }
        }
        let node = self.node(start, end, value);
        let mut all = self.merge(before, node);
        if let Some((start, end, old)) = tail {
            let node = self.node(start, end, old);
            all = self.merge(all, node);
        }
        self.root = self.merge(all, after);
    }

    /// Shows the ranges that share a page with this one, in the order of their addresses, until that has seen enough.
    pub(crate) fn find_overlap(&self, range: PageRange, mut found: impl FnMut(PageRange, V) -> bool) -> bool {
        self.find(self.root, range, &mut found)
    }

    /// Shows all of them, in the order of their addresses.
    #[cfg(test)]
    pub(crate) fn for_each(&self, mut each: impl FnMut(PageRange, V)) {
        self.find_overlap(PageRange::EVERYTHING, |range, value| {
            each(range, value);
            false
        });
    }

    /// Takes out the first of them.
    pub(crate) fn pop_first(&mut self) -> Option<(PageRange, V)> {
        let first = self.first(self.root)?;
        let Node { start, end, value, .. } = self.nodes[first as usize];
        let (node, rest) = self.split(self.root, end);
        self.discard(node);
        self.root = rest;
        Some((PageRange::between(start, end), value))
    }

    /// Returns the range with all ranges that it touches, or else with its nearer neighbour: what is inserted then needs
    /// no more nodes than become free.
    fn widened(&mut self, range: PageRange) -> PageRange {
        let (mut hull, mut any) = (range, false);
        self.find_overlap(range, |other, _| {
            (hull, any) = (hull.hull(other), true);
            false
        });
        if any {
            self.exact = self.exact && hull == range;
            return hull;
        }
        let (before, rest) = self.split(self.root, hull.start());
        let last = self.last(before).map(|last| self.nodes[last as usize].end);
        let (within, after) = self.split(rest, hull.end());
        let first = self.first(after).map(|first| self.nodes[first as usize].start);
        let all = self.merge(before, within);
        self.root = self.merge(all, after);
        let gap_before = last.map(|end| hull.start() - end);
        let gap_after = first.map(|start| start - hull.end());
        let neighbour = match (gap_before, gap_after) {
            (Some(before), Some(after)) if after < before => first,
            (Some(_), _) => last.map(|end| end - 1),
            (None, _) => first,
        };
        if let Some(page) = neighbour {
            self.find_overlap(PageRange::between(page, page + 1), |other, _| {
                hull = hull.hull(other);
                true
            });
        }
        self.exact = self.exact && hull == range;
        hull
    }

    fn find(&self, at: u32, range: PageRange, found: &mut impl FnMut(PageRange, V) -> bool) -> bool {
        let Some(&Node { start, end, value, left, right, .. }) = self.nodes.get(at as usize) else { return false };
        start > range.start() && self.find(left, range, found)
            || start < range.end() && end > range.start() && found(PageRange::between(start, end), value)
            || end < range.end() && self.find(right, range, found)
    }

    fn first(&self, mut at: u32) -> Option<u32> {
        let mut found = None;
        while let Some(node) = self.nodes.get(at as usize) {
            (found, at) = (Some(at), node.left);
        }
        found
    }

    fn last(&self, mut at: u32) -> Option<u32> {
        let mut found = None;
        while let Some(node) = self.nodes.get(at as usize) {
            (found, at) = (Some(at), node.right);
        }
        found
    }

    /// Returns a tree of one node.
    fn node(&mut self, start: u64, end: u64, value: V) -> u32 {
        // Xorshift: never 0, as it does not begin with 0.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 17;
        self.random ^= self.random << 5;
        let node = Node { start, end, value, priority: self.random, left: NIL, right: NIL };
        self.length += 1;
        match self.nodes.get_mut(self.free as usize) {
            Some(place) => {
                let at = std::mem::replace(&mut self.free, place.left);
                *place = node;
                at
            }
            None => {
                debug_assert!(self.nodes.len() < self.most, "there is room");
                self.nodes.push(node);
                (self.nodes.len() - 1) as u32
            }
        }
    }

    /// The nodes of a tree are used no more.
    fn discard(&mut self, at: u32) {
        let Some(&Node { left, right, .. }) = self.nodes.get(at as usize) else { return };
        self.discard(left);
        self.discard(right);
        self.nodes[at as usize].left = std::mem::replace(&mut self.free, at);
        self.length -= 1;
    }

    /// Returns the ranges that begin before the page, and the others.
    fn split(&mut self, at: u32, page: u64) -> (u32, u32) {
        let Some(&Node { start, left, right, .. }) = self.nodes.get(at as usize) else { return (NIL, NIL) };
        if start < page {
            let (before, after) = self.split(right, page);
            self.nodes[at as usize].right = before;
            (at, after)
        } else {
            let (before, after) = self.split(left, page);
            self.nodes[at as usize].left = after;
            (before, at)
        }
    }

    /// One tree of two, of which the first has the lower pages.
    fn merge(&mut self, low: u32, high: u32) -> u32 {
        let (Some(a), Some(b)) = (self.nodes.get(low as usize), self.nodes.get(high as usize)) else {
            return if low == NIL { high } else { low };
        };
        if a.priority > b.priority {
            self.nodes[low as usize].right = self.merge(a.right, high);
            low
        } else {
            self.nodes[high as usize].left = self.merge(low, b.left);
            high
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn range(start: u64, pages: u64) -> PageRange {
        PageRange::between(start, start + pages)
    }

    fn all(ranges: &Ranges<u8>) -> Vec<(u64, u64, u8)> {
        let mut all = Vec::new();
        ranges.for_each(|range, value| all.push((range.start(), range.end(), value)));
        all
    }

    #[test]
    fn neighbours_of_one_value_become_one() {
        let mut ranges = Ranges::with_room_for(10);
        for start in [10, 14, 12, 30] {
            ranges.insert(range(start, 2), 1);
        }
        ranges.insert(range(32, 2), 2);
        assert_eq!(all(&ranges), [(10, 16, 1), (30, 32, 1), (32, 34, 2)]);
        assert!(ranges.is_exact() && ranges.len() == 3);
    }

    #[test]
    fn a_range_within_another_parts_it() {
        let mut ranges = Ranges::with_room_for(10);
        ranges.insert(range(10, 10), 1);
        ranges.insert(range(12, 2), 2);
        assert_eq!(all(&ranges), [(10, 12, 1), (12, 14, 2), (14, 20, 1)]);
        ranges.insert(range(11, 5), 1);
        assert_eq!(all(&ranges), [(10, 20, 1)]);
    }

    #[test]
    fn the_nearer_neighbour_gives_way_when_it_is_full() {
        let mut ranges = Ranges::with_room_for(5);
        for (start, value) in [(10, 1), (20, 1), (100, 1), (200, 1), (24, 2)] {
            ranges.insert(range(start, 1), value);
        }
        assert!(!ranges.is_exact() && ranges.len() == 4);
        assert!(ranges.find_overlap(range(100, 1), |_, _| true) && ranges.find_overlap(range(24, 1), |_, v| v == 2));
        assert!(!ranges.find_overlap(range(25, 75), |_, _| true), "{ranges:?}");
        ranges.clear();
        assert!(ranges.is_exact() && ranges.is_empty());
    }

    #[test]
    fn a_hundred_thousand_in_order_make_a_low_tree() {
        let mut ranges = Ranges::with_room_for(1 << 17);
        (0..100_000).for_each(|nth| ranges.insert(range(2 * nth, 1), 1));
        fn height(ranges: &Ranges<u8>, at: u32) -> usize {
            ranges
                .nodes
                .get(at as usize)
                .map_or(0, |node| 1 + height(ranges, node.left).max(height(ranges, node.right)))
        }
        // Twice the logarithm is 33; random trees are below 3 times of it.
        assert!((17..80).contains(&height(&ranges, ranges.root)), "{}", height(&ranges, ranges.root));
        assert!((0..100_000).all(|nth| ranges.pop_first() == Some((range(2 * nth, 1), 1))));
        assert_eq!((ranges.pop_first(), ranges.len(), ranges.room()), (None, 0, 1 << 16));
    }

    proptest! {
        /// Against a value for each page.
        #[test]
        fn it_agrees_with_a_naive_model(
            most in 3_usize..40,
            steps in prop::collection::vec((0_u64..100, 1_u64..12, 0_u8..3), 1..120),
        ) {
            let mut ranges = Ranges::with_room_for(most);
            let mut pages = [None; 120];
            for (start, count, value) in steps {
                if value == 2 && count == 1 {
                    let first = pages.iter().position(Option::is_some);
                    let popped = ranges.pop_first();
                    if ranges.is_exact() {
                        prop_assert_eq!(popped.map(|(range, _)| range.start()), first.map(|first| first as u64));
                    }
                    if let Some((range, _)) = popped {
                        pages[range.start() as usize..range.end() as usize].fill(None);
                    }
                    continue;
                }
                ranges.insert(range(start, count), value);
                pages[start as usize..][..count as usize].fill(Some(value));
                let held = all(&ranges);
                prop_assert!(held.len() == ranges.len() && held.len() <= most);
                prop_assert!(ranges.nodes.len() <= most);
                for pair in held.windows(2) {
                    let touch = pair[0].1 == pair[1].0;
                    prop_assert!(pair[0].1 < pair[1].0 || touch && pair[0].2 != pair[1].2);
                }
                for page in 0..120 {
                    let mut found = None;
                    ranges.find_overlap(range(page, 1), |_, value| {
                        found = Some(value);
                        true
                    });
                    if ranges.is_exact() {
                        prop_assert_eq!(found, pages[page as usize]);
                    } else {
                        prop_assert!(found.is_some() || pages[page as usize].is_none());
                    }
                }
                let newest = held.iter().find(|held| held.0 <= start && start + count <= held.1);
                prop_assert_eq!(newest.map(|held| held.2), Some(value));
            }
        }
    }
}
