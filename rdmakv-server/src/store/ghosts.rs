//! Who left lately: fingerprints of evicted keys, four bytes each.
//!
//! A table without chains: a later ghost overwrites an earlier one in its place. Each class has a clock that ticks
//! eight times while as many items leave it as its main queue holds; a ghost is believed for eight ticks.

/// The table and the classes' clocks.
#[derive(Debug)]
pub(super) struct Ghosts {
    slots: Vec<u32>,
    clocks: Vec<(u16, u64)>,
}

const TICKS: u16 = 8;

impl Ghosts {
    pub(super) fn new(classes: usize) -> Self {
        // Clocks start past the ticks, so that an empty slot is too old.
        Self { slots: Vec::new(), clocks: vec![(TICKS + 1, 0); classes] }
    }

    pub(super) fn bytes(&self) -> usize {
        self.slots.len() * 4
    }

    /// The key with this hash left the class, whose main queue holds `main`; `items` are stored in all.
    pub(super) fn add(&mut self, class: usize, hash: u64, main: u64, items: usize) {
        let wanted = items.next_power_of_two().max(1024);
        if wanted > self.slots.len() {
            self.slots = vec![0; wanted];
        }
        let (clock, left) = &mut self.clocks[class];
        *left += 1;
        if *left > main / u64::from(TICKS) {
            *left = 0;
            *clock = clock.wrapping_add(1);
        }
        let at = hash as usize & (self.slots.len() - 1);
        self.slots[at] = (hash >> 32) as u32 & 0xffff_0000 | u32::from(*clock);
    }

    /// Whether the key left lately; it is forgotten.
    pub(super) fn recall(&mut self, class: usize, hash: u64) -> bool {
        if self.slots.is_empty() {
            return false;
        }
        let at = hash as usize & (self.slots.len() - 1);
        let slot = self.slots[at];
        let same = slot & 0xffff_0000 == (hash >> 32) as u32 & 0xffff_0000;
        let young = self.clocks[class].0.wrapping_sub(slot as u16) <= TICKS;
        if same && young {
            self.slots[at] = u32::from(self.clocks[class].0.wrapping_sub(TICKS + 1));
        }
        same && young
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ghost_is_recalled_once_and_only_for_a_while() {
        let hash = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut ghosts = Ghosts::new(1);
        assert!(!ghosts.recall(0, hash(1)));
        ghosts.add(0, hash(1), 80, 1000);
        assert!(ghosts.recall(0, hash(1)));
        assert!(!ghosts.recall(0, hash(1)));
        ghosts.add(0, hash(2), 80, 1000);
        for n in 100..300 {
            ghosts.add(0, hash(n), 80, 1000);
        }
        assert!(!ghosts.recall(0, hash(2)));
    }
}
