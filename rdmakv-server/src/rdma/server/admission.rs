//! Who gets a tag when there are more who could use one than pages that may be leased.
//!
//! A lease ties its page for a time that nobody can shorten, so a tag that is not read by again is a loss. Who comes first is a
//! bad choice: most keys that are asked for once are not asked for again soon. Here each page's reads are counted, older ones for less (a read
//! counts for 1/e after eight leases' time), and a page that is not leased yet is admitted if it was read as often as a *threshold* says. The
//! threshold follows what is leased: it rises slowly while the cap is reached, and falls while there is room, so that in the end the
//! pages that are read most often fill the cap. While there is room for all, it is zero and everybody is admitted.
//!
//! On keys that are chosen independently, by Zipf's law, this comes within some percent of knowing the true popularity of each page
//! (`pin-budget` shows it beside the offline optimum, which knows the future).
//!
//! Pure: no clock, no lock. A page costs eight bytes.

/// Reads of one page.
#[derive(Clone, Copy, Debug, Default)]
struct Reads {
    /// As of `at`.
    count: f32,
    /// In steps.
    at: u32,
}

/// Steps of a lease's time: how finely time is counted, and how often the threshold moves.
const STEPS: u64 = 400;
/// Leases' times after which a read counts for 1/e.
const MEMORY: f32 = 8.0;
/// How much of the cap is leased when the threshold begins to rise, and below what share it falls.
const FULL: f64 = 0.998;
const ROOM: f64 = 0.985;
/// What a step changes: by a share, and by something where there is next to nothing to share.
const SHARE: f32 = 0.01;
const LEAST: f32 = 0.005;

/// Counts pages' reads, and decides.
#[derive(Debug)]
pub struct Admission {
    pages: Vec<Reads>,
    /// Nanoseconds of a step.
    step: u64,
    threshold: f32,
    /// The last step at which the threshold was looked at.
    moved: u32,
    start: Option<u64>,
}

impl Admission {
    /// For so many pages, and leases of so many nanoseconds.
    pub fn new(pages: usize, lease: u64) -> Self {
        let step = (lease / STEPS).max(1);
        Self { pages: vec![Reads::default(); pages], step, threshold: 0.0, moved: 0, start: None }
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

    fn count(&self, page: usize, at: u32) -> f32 {
        let Some(reads) = self.pages.get(page) else { return 0.0 };
        let age = at.saturating_sub(reads.at) as f32 / STEPS as f32;
        reads.count * (-age / MEMORY).exp()
    }

    /// A page was read so often, by whatever way.
    pub fn saw(&mut self, page: usize, reads: u32, now: u64) {
        let at = self.steps(now);
        let count = self.count(page, at) + reads as f32;
        if let Some(entry) = self.pages.get_mut(page) {
            *entry = Reads { count, at: at.max(entry.at) };
        }
    }

    /// Whether a page that nobody holds a lease of is worth one, while so many of so many pages are leased.
    pub fn wants(&mut self, page: usize, leased: u64, most: u64, now: u64) -> bool {
        let at = self.steps(now);
        let count = self.count(page, at);
        let share = leased as f64 / most.max(1) as f64;
        // Some steps after a pause bring the threshold down to nothing, so that more need not be made up for.
        let steps = at.saturating_sub(self.moved).min(2 * STEPS as u32);
        self.moved = self.moved.max(at);
        // It rises only while it keeps nobody away, so it is never far above what pages are read.
        if share >= FULL && steps > 0 && count >= self.threshold {
            self.threshold += self.threshold * SHARE + LEAST;
        } else if share < ROOM {
            for _ in 0..steps {
                if self.threshold == 0.0 {
                    break;
                }
                self.threshold = (self.threshold * (1.0 - SHARE) - LEAST).max(0.0);
            }
        }
        leased < most && count >= self.threshold
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
            admission.saw(page, 1, 5);
            assert!(admission.wants(page, page as u64, 100, 5));
        }
        assert_eq!(admission.threshold(), 0.0);
    }

    #[test]
    fn nobody_is_admitted_past_the_cap() {
        let mut admission = Admission::new(10, LEASE);
        admission.saw(3, 1_000_000, 0);
        assert!(!admission.wants(3, 100, 100, 0));
        assert!(admission.wants(3, 99, 100, 0));
    }

    #[test]
    fn under_pressure_what_is_read_often_is_preferred_and_afterwards_all_are_welcome() {
        let mut admission = Admission::new(2, LEASE);
        let mut now = 0;
        let mut read = |admission: &mut Admission| {
            now += LEASE / STEPS;
            admission.saw(0, 10, now);
            admission.saw(1, 1, now);
            now
        };
        // Page 0 is read ten times as often as page 1, and the cap is reached.
        for _ in 0..100 * STEPS {
            let now = read(&mut admission);
            assert!(!admission.wants(0, 100, 100, now));
        }
        // A little room: page 0 comes in as soon as the threshold has come down to it, and page 1 does not.
        let admitted = (0..10).any(|_| {
            let now = read(&mut admission);
            assert!(!admission.wants(1, 98, 100, now));
            admission.wants(0, 98, 100, now)
        });
        assert!(admitted);
        // A pause: nothing is leased any more.
        let later = read(&mut admission) + 10 * LEASE;
        assert!(admission.wants(1, 0, 100, later));
    }

    #[test]
    fn old_reads_count_for_less() {
        let mut admission = Admission::new(1, LEASE);
        admission.saw(0, 100, 0);
        let later = admission.steps(8 * LEASE);
        assert!((admission.count(0, later) - 100.0 / std::f32::consts::E).abs() < 0.1);
    }

    #[test]
    fn pages_that_are_not_there_and_clocks_that_go_back_do_no_harm() {
        let mut admission = Admission::new(1, 0);
        admission.saw(7, 1, 100);
        assert!(admission.wants(7, 0, 1, 50));
        admission.saw(0, u32::MAX, u64::MAX);
        assert!(admission.wants(0, 0, 1, 0));
        assert!(!admission.wants(0, 0, 0, 0));
    }
}
