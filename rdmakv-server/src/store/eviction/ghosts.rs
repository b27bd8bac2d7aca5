//! The recently evicted: fingerprints of keys, four bytes each.
//!
//! A table of small sets without chains: in a set that is full, a later ghost pushes out the earliest. Each class has a
//! clock that ticks sixteen times while as many items leave it as it holds. A ghost is believed for twice that time.

/// The table and the classes' clocks.
#[derive(Debug)]
pub(super) struct Ghosts {
    sets: Vec<[u32; WAYS]>,
    clocks: Vec<Clock>,
}

#[derive(Clone, Copy, Debug)]
struct Clock {
    now: u16,
    left: u64,
}

/// The knowledge of a key that came back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ghost {
    /// It left the small queue.
    pub(super) small: bool,
    /// How many ticks ago.
    ticks: u16,
}

impl Ghost {
    /// How likely one more page would have kept the item, in a class that has so many.
    pub(super) fn of_a_page(self, pages: u32) -> f32 {
        let a_page = f32::from(TICKS) / pages.max(1) as f32;
        let counted = a_page.ceil();
        if f32::from(self.ticks) < counted { a_page / counted } else { 0.0 }
    }
}

/// Ticks while as many items leave a class as it holds.
const TICKS: u16 = 16;
/// Ticks for which a ghost is believed.
const BELIEVED: u16 = 2 * TICKS;
/// Ghosts in a set.
const WAYS: usize = 4;
const SMALL: u16 = 1 << 15;
const CLOCK: u16 = SMALL - 1;

impl Ghosts {
    pub(super) fn new(classes: usize) -> Self {
        // Clocks start late, so that an empty place is too old.
        Self { sets: Vec::new(), clocks: vec![Clock { now: BELIEVED + 1, left: 0 }; classes] }
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&self.sets[..])
    }

    /// The key with this hash left the class, which holds `queued` items; `items` are stored in all.
    pub(super) fn add(&mut self, class: usize, hash: u64, small: bool, queued: u64, items: usize) {
        let wanted = (items.next_power_of_two() / WAYS / 2).max(256);
        if wanted > self.sets.len() {
            self.sets = vec![[0; WAYS]; wanted];
        }
        let clock = &mut self.clocks[class];
        clock.left += 1;
        if clock.left > queued / u64::from(TICKS) {
            clock.left = 0;
            clock.now = (clock.now + 1) & CLOCK;
        }
        let mark = clock.now | if small { SMALL } else { 0 };
        let set = self.set(hash);
        set.rotate_right(1);
        set[0] = fingerprint(hash) | u32::from(mark);
    }

    /// Returns whether the key left lately; it is forgotten.
    pub(super) fn recall(&mut self, class: usize, hash: u64) -> Option<Ghost> {
        if self.sets.is_empty() {
            return None;
        }
        let now = self.clocks[class].now;
        let too_old = u32::from(now.wrapping_sub(BELIEVED + 1) & CLOCK);
        let slot = self.set(hash).iter_mut().find(|slot| **slot & 0xffff_0000 == fingerprint(hash))?;
        let mark = std::mem::replace(slot, too_old) as u16;
        let ticks = now.wrapping_sub(mark) & CLOCK;
        (ticks <= BELIEVED).then_some(Ghost { small: mark & SMALL != 0, ticks })
    }

    fn set(&mut self, hash: u64) -> &mut [u32; WAYS] {
        let at = hash as usize & (self.sets.len() - 1);
        &mut self.sets[at]
    }
}

fn fingerprint(hash: u64) -> u32 {
    (hash >> 32) as u32 & 0xffff_0000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ghost_is_recalled_once_and_only_for_a_while() {
        let hash = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut ghosts = Ghosts::new(1);
        assert_eq!(ghosts.recall(0, hash(1)), None);
        ghosts.add(0, hash(1), true, 80, 1000);
        ghosts.add(0, hash(2), false, 80, 1000);
        assert_eq!(ghosts.recall(0, hash(1)), Some(Ghost { small: true, ticks: 0 }));
        assert_eq!(ghosts.recall(0, hash(1)), None);
        assert_eq!(ghosts.recall(0, hash(2)), Some(Ghost { small: false, ticks: 0 }));
        ghosts.add(0, hash(2), true, 80, 1000);
        for n in 100..300 {
            ghosts.add(0, hash(n), true, 80, 1000);
        }
        assert_eq!(ghosts.recall(0, hash(2)), None);
    }
}
