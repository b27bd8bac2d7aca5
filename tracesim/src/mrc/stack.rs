//! The LRU stack: how many pages were used since, for each thing that was used.
//!
//! A use takes the next slot; a Fenwick tree adds up the pages of the slots behind any other. Slots whose pages were all
//! used again are closed up when the slots run out, so memory goes by what is alive and not by the length of the trace.

/// Slots at first.
const FEWEST: usize = 1 << 10;

/// Pages by slot, the most recent last.
pub(super) struct Stack {
    pages: Vec<u64>,
    /// At `i`, the pages of the slots up to `i` whose number shares its higher bits: a Fenwick tree, counted from 1.
    tree: Vec<u64>,
    next: usize,
    total: u64,
}

impl Default for Stack {
    fn default() -> Self {
        Self { pages: vec![0; FEWEST], tree: vec![0; FEWEST + 1], next: 0, total: 0 }
    }
}

impl Stack {
    /// Pages on top, in a slot of their own. A keeper of slots calls [`Stack::close_up`] first if it [is full](Stack::is_full).
    #[inline]
    pub(super) fn push(&mut self, pages: u64) -> u32 {
        let slot = self.next;
        self.next += 1;
        self.pages[slot] = pages;
        self.total += pages;
        let mut at = slot + 1;
        while at < self.tree.len() {
            self.tree[at] += pages;
            at += at & at.wrapping_neg();
        }
        slot as u32
    }

    /// Pages of the slot leave it.
    #[inline]
    pub(super) fn remove(&mut self, slot: u32, pages: u64) {
        self.pages[slot as usize] -= pages;
        self.total -= pages;
        let mut at = slot as usize + 1;
        while at < self.tree.len() {
            self.tree[at] -= pages;
            at += at & at.wrapping_neg();
        }
    }

    /// Pages in this slot and above.
    #[inline]
    pub(super) fn depth(&self, slot: u32) -> u64 {
        let mut below = 0;
        let mut at = slot as usize;
        while at > 0 {
            below += self.tree[at];
            at &= at - 1;
        }
        self.total - below
    }

    pub(super) fn is_full(&self) -> bool {
        self.next == self.pages.len()
    }

    /// Closes up the empty slots, and gives each kept slot its new number.
    #[cold]
    pub(super) fn close_up<'a>(&mut self, kept: impl Iterator<Item = &'a mut u32>) {
        let mut numbers = vec![0; self.next];
        let mut alive = 0;
        for (slot, number) in numbers.iter_mut().enumerate() {
            *number = alive as u32;
            if self.pages[slot] > 0 {
                self.pages[alive] = self.pages[slot];
                alive += 1;
            }
        }
        kept.for_each(|slot| *slot = numbers[*slot as usize]);
        self.next = alive;
        self.pages.truncate(alive);
        self.pages.resize((2 * alive).max(FEWEST), 0);
        self.tree.clear();
        self.tree.push(0);
        self.tree.extend_from_slice(&self.pages);
        for at in 1..self.tree.len() {
            let above = at + (at & at.wrapping_neg());
            if above < self.tree.len() {
                self.tree[above] += self.tree[at];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depths_survive_compaction() {
        let mut stack = Stack::default();
        let mut kept: Vec<(u32, u64)> = Vec::new();
        for i in 0..5_000u64 {
            if stack.is_full() {
                stack.close_up(kept.iter_mut().map(|(slot, _)| slot));
            }
            kept.push((stack.push(1 + i % 7), 1 + i % 7));
            if i % 3 != 0 {
                let (slot, pages) = kept.swap_remove((i * 31 % kept.len() as u64) as usize);
                stack.remove(slot, pages);
            }
            if i % 500 == 0 {
                for &(slot, _) in &kept {
                    let above: u64 = kept.iter().filter(|(other, _)| *other >= slot).map(|(_, pages)| pages).sum();
                    assert_eq!(stack.depth(slot), above);
                }
            }
        }
    }
}
