//! Admission: which clients get tags when more could use one than there are pages to lease.
//!
//! A lease ties its page for a time that cannot be shortened, so a tag that is not read by again is a loss. First come, first served is a bad
//! choice: most keys that are asked for once are not asked for again soon. Here each page's reads are counted, older ones for less (a read
//! counts for 1/e after eight leases' time), and a page that is not leased yet is admitted if it was read as often as a *threshold* says. The
//! threshold follows what is leased: it rises slowly while the cap is reached, and falls while there is room, so that in the end the pages
//! that are read most often fill the cap. While there is room for all, it is zero and all are admitted.
//!
//! On keys that are chosen independently, by Zipf's law, this comes within some percent of knowing the true popularity of each page
//! (`pin-budget` shows it beside the offline optimum, which knows the future).
//!
//! A tag may take several pages: then what counts is how often its pages are read, for each page that is not leased yet.
//!
//! Pure: no clock, no lock. A slot of the table is eight bytes; pages that meet in one slot are counted together.

/// Reads of one page, or of some that meet here.
#[derive(Clone, Copy, Debug)]
struct Reads {
    /// As of `at`.
    count: f32,
    /// In steps.
    at: u32,
}

impl Reads {
    /// Returns what a slot has. All zero is no read.
    fn of(slot: u64) -> Self {
        Self { count: f32::from_bits((slot >> 32) as u32), at: slot as u32 }
    }
    fn slot(self) -> u64 {
        u64::from(self.count.to_bits()) << 32 | u64::from(self.at)
    }
}

/// Steps of a lease's time: how finely time is counted, and how often the threshold moves.
const STEPS: u64 = 400;
/// Leases' times after which a read counts for 1/e.
const MEMORY: f32 = 8.0;
/// How much of the cap is leased when the threshold begins to rise, and below what share it falls.
const FULL: f64 = 0.998;
const ROOM: f64 = 0.985;
/// The size of a step: a share, and something where there is next to nothing to share.
const SHARE: f32 = 0.01;
const LEAST: f32 = 0.005;
/// Slots of a table at most: 32 MiB.
const MOST_SLOTS: u64 = 1 << 22;

/// Counts pages' reads, and decides.
#[derive(Debug)]
pub struct Admission {
    /// [`Reads`], two to some power of them. Numbers, because zeros of these take no memory before they are written.
    slots: Vec<u64>,
    /// Nanoseconds of a step.
    step: u64,
    threshold: f32,
    /// The last step at which the threshold was looked at.
    moved: u32,
    start: Option<u64>,
}

impl Admission {
    /// For about so many pages, and leases of so many nanoseconds.
    pub fn new(pages: u64, lease: u64) -> Self {
        let slots = pages.clamp(16, MOST_SLOTS).next_power_of_two() as usize;
        let step = (lease / STEPS).max(1);
        Self { slots: vec![0; slots], step, threshold: 0.0, moved: 0, start: None }
    }

    /// Reads that a page needs, as they are counted here, before it is leased.
    pub fn threshold(&self) -> f32 {
        self.threshold
    }

    /// Steps since the first call: time that goes back counts as none.
    fn steps(&mut self, now: u64) -> u32 {
        let start = *self.start.get_or_insert(now);
        u32::try_from(now.saturating_sub(start) / self.step).unwrap_or(u32::MAX)
    }

    /// Returns the slot that counts a page's reads: neighbours far from each other.
    fn slot(&self, page: u64) -> usize {
        let bits = self.slots.len().trailing_zeros();
        (page.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - bits)) as usize
    }

    fn count(&self, page: u64, at: u32) -> f32 {
        let reads = Reads::of(self.slots[self.slot(page)]);
        let age = at.saturating_sub(reads.at) as f32 / STEPS as f32;
        reads.count * (-age / MEMORY).exp()
    }

    /// Pages were read so often, by whatever way.
    pub fn saw(&mut self, pages: impl Iterator<Item = u64>, reads: u64, now: u64) {
        let at = self.steps(now);
        for page in pages {
            let count = self.count(page, at) + reads as f32;
            let slot = self.slot(page);
            let entry = &mut self.slots[slot];
            *entry = Reads { count, at: at.max(Reads::of(*entry).at) }.slot();
        }
    }

    /// Returns whether these pages are worth a lease, of which so many have none yet, while `leased` of `most` pages are
    /// leased.
    pub fn wants(&mut self, pages: impl Iterator<Item = u64>, fresh: u64, leased: u64, most: u64, now: u64) -> bool {
        if fresh == 0 {
            return true;
        }
        let at = self.steps(now);
        let (sum, number) = pages.fold((0.0, 0.0), |(sum, number), page| (sum + self.count(page, at), number + 1.0));
        let worth = sum / f32::max(number, 1.0) / fresh as f32;
        let share = leased as f64 / most.max(1) as f64;
        // Some steps after a pause bring the threshold down to nothing, so that more need not be made up for.
        let steps = at.saturating_sub(self.moved).min(2 * STEPS as u32);
        self.moved = self.moved.max(at);
        // It rises only while it refuses no client, so it is never far above the pages that are read.
        if share >= FULL && steps > 0 && worth >= self.threshold {
            self.threshold += self.threshold * SHARE + LEAST;
        } else if share < ROOM {
            for _ in 0..steps {
                if self.threshold == 0.0 {
                    break;
                }
                self.threshold = (self.threshold * (1.0 - SHARE) - LEAST).max(0.0);
            }
        }
        leased + fresh <= most && worth >= self.threshold
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: u64 = 1_000_000_000;

    #[test]
    fn while_there_is_room_everybody_is_admitted() {
        let mut admission = Admission::new(10, LEASE);
        for page in 0..10 {
            admission.saw(std::iter::once(page), 1, 5);
            assert!(admission.wants(std::iter::once(page), 1, page, 100, 5));
        }
        assert_eq!(admission.threshold(), 0.0);
    }

    #[test]
    fn nobody_is_admitted_past_the_cap() {
        let mut admission = Admission::new(10, LEASE);
        admission.saw(std::iter::once(3), 1_000_000, 0);
        assert!(!admission.wants(std::iter::once(3), 1, 100, 100, 0));
        assert!(admission.wants(std::iter::once(3), 1, 99, 100, 0));
    }

    #[test]
    fn pressure_prefers_often_read_pages() {
        let mut admission = Admission::new(2, LEASE);
        let mut now = 0;
        let mut read = |admission: &mut Admission| {
            now += LEASE / STEPS;
            admission.saw(std::iter::once(0), 10, now);
            admission.saw(std::iter::once(1), 1, now);
            now
        };
        // Page 0 is read ten times as often as page 1, and the cap is reached.
        for _ in 0..100 * STEPS {
            let now = read(&mut admission);
            assert!(!admission.wants(std::iter::once(0), 1, 100, 100, now));
        }
        // A little room: page 0 comes in as soon as the threshold has come down to it, and page 1 does not.
        let admitted = (0..10).any(|_| {
            let now = read(&mut admission);
            assert!(!admission.wants(std::iter::once(1), 1, 98, 100, now));
            admission.wants(std::iter::once(0), 1, 98, 100, now)
        });
        assert!(admitted);
        // A pause: nothing is leased any more.
        let later = read(&mut admission) + 10 * LEASE;
        assert!(admission.wants(std::iter::once(1), 1, 0, 100, later));
    }

    #[test]
    fn old_reads_count_for_less() {
        let mut admission = Admission::new(1, LEASE);
        admission.saw(std::iter::once(0), 100, 0);
        let later = admission.steps(8 * LEASE);
        assert!((admission.count(0, later) - 100.0 / std::f32::consts::E).abs() < 0.1);
    }

    #[test]
    fn unknown_pages_and_backward_clocks_are_harmless() {
        let mut admission = Admission::new(1, 0);
        admission.saw(std::iter::once(7), 1, 100);
        assert!(admission.wants(std::iter::once(7), 1, 0, 1, 50));
        admission.saw(std::iter::once(0), u64::MAX, u64::MAX);
        assert!(admission.wants(std::iter::once(0), 1, 0, 1, 0));
        assert!(!admission.wants(std::iter::once(0), 1, 0, 0, 0));
    }
}
