//! When caches shrink because memory is short, and when they grow again.
//!
//! Pinned pages cannot be reclaimed. So caches keep less while the system, or the control group of the process, is short of
//! memory. A look at the counters finds that it is, if threads stalled for memory for [`STALL`] within [`WINDOW`], or the group
//! was above its `memory.high`. Each such look takes an eighth off, down to an eighth. A quiet [`QUIET`] gives a sixteenth back.
//!
//! Pure: the time is an argument.

use std::collections::VecDeque;
use std::time::Duration;

/// The whole, in sixteenths.
pub(crate) const WHOLE: u64 = 16;
/// The least that caches keep, and what one look takes off.
const LEAST: u64 = 2;
const STEP: u64 = 2;

/// The stall within a window that counts as pressure.
pub(super) const STALL: Duration = Duration::from_millis(150);
pub(super) const WINDOW: Duration = Duration::from_secs(2);
/// The time without pressure after which a part is given back.
const QUIET: Duration = Duration::from_secs(10);

/// The counters of memory pressure at a moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    /// When, from some beginning on.
    pub(super) at: Duration,
    /// How long some thread was stalled for memory, in all, if that is known.
    pub(super) stalled: Option<Duration>,
    /// How often the group was above `memory.high`, if it has that.
    pub(super) high: Option<u64>,
    /// Whether the kernel's trigger fired since the last look: threads stalled for [`STALL`] within [`WINDOW`].
    pub(super) has_fired: bool,
}

/// The part that caches keep. Owns the last samples.
#[derive(Debug)]
pub(super) struct Shrinker {
    sixteenths: u64,
    /// Stalls within a window, and not yet answered.
    stalls: VecDeque<(Duration, Duration)>,
    high: Option<u64>,
    /// When there was pressure, or a part was given back.
    changed: Duration,
}

impl Shrinker {
    pub(super) fn new() -> Self {
        Self { sixteenths: WHOLE, stalls: VecDeque::new(), high: None, changed: Duration::ZERO }
    }

    /// Takes a look. Returns the sixteenths that caches keep from now on.
    pub(super) fn look(&mut self, sample: Sample) -> u64 {
        let Sample { at, .. } = sample;
        if self.is_stalled(sample) | self.is_high(sample) {
            self.sixteenths = self.sixteenths.saturating_sub(STEP).max(LEAST);
            self.changed = at;
        } else if self.sixteenths < WHOLE && at.saturating_sub(self.changed) >= QUIET {
            self.sixteenths += 1;
            self.changed = at;
        }
        self.sixteenths
    }

    /// Returns whether threads stalled for long within a window. A stall is answered once.
    fn is_stalled(&mut self, Sample { at, stalled, has_fired, .. }: Sample) -> bool {
        let Some(stalled) = stalled else { return has_fired };
        while self.stalls.front().is_some_and(|&(then, _)| at.saturating_sub(then) > WINDOW) {
            self.stalls.pop_front();
        }
        let is_long =
            has_fired || self.stalls.front().is_some_and(|&(_, before)| stalled.saturating_sub(before) >= STALL);
        if is_long {
            self.stalls.clear();
        }
        self.stalls.push_back((at, stalled));
        is_long
    }

    /// Returns whether the group was above its limit since the last look.
    fn is_high(&mut self, Sample { high, .. }: Sample) -> bool {
        let before = std::mem::replace(&mut self.high, high);
        matches!((before, high), (Some(before), Some(now)) if now > before)
    }
}

#[cfg(test)]
mod tests {
    use super::super::PERIOD;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fired_trigger_counts_once() {
        let mut world = World::new();
        let mut fire = |has_fired, stalled| {
            world.now.has_fired = has_fired;
            world.look(Duration::from_millis(stalled), 0)
        };
        // The stall that fired it is not counted again by the counters.
        assert_eq!((fire(true, 160), fire(false, 0), fire(false, 0)), (14, 14, 14));
        assert_eq!((fire(false, 160), fire(true, 0)), (12, 10));
        let mut shrinker = Shrinker::new();
        let fired = Sample { at: Duration::ZERO, stalled: None, high: None, has_fired: true };
        assert_eq!(shrinker.look(fired), 14, "the counter cannot be read");
    }

    /// A system under a simulated clock.
    struct World {
        shrinker: Shrinker,
        now: Sample,
    }

    impl World {
        fn new() -> Self {
            let now =
                Sample { at: Duration::from_secs(100), stalled: Some(Duration::ZERO), high: Some(7), has_fired: false };
            let mut world = Self { shrinker: Shrinker::new(), now };
            world.look(Duration::ZERO, 0);
            world
        }

        /// A period in which threads stalled so long, and the group was above its limit so often.
        fn look(&mut self, stalled: Duration, high: u64) -> u64 {
            self.now.at += PERIOD;
            self.now.stalled = self.now.stalled.map(|before| before + stalled);
            self.now.high = self.now.high.map(|before| before + high);
            self.shrinker.look(self.now)
        }
    }

    const NONE: Duration = Duration::ZERO;
    /// Looks until a part is given back.
    const LOOKS: u32 = (QUIET.as_millis() / PERIOD.as_millis()) as u32;

    #[test]
    fn limit_of_the_group_shrinks_within_5_seconds() {
        let mut world = World::new();
        let steps: Vec<_> = (0..9).map(|_| world.look(NONE, 1)).collect();
        assert_eq!(steps, [14, 12, 10, 8, 6, 4, 2, 2, 2]);
        assert!(PERIOD * 7 <= Duration::from_secs(5));
    }

    #[test]
    fn long_stalls_shrink_and_short_ones_do_not() {
        let mut world = World::new();
        let short = STALL / 5;
        // Four periods of a window together stay below.
        assert!((0..100).all(|_| world.look(short, 0) == WHOLE));
        assert_eq!(world.look(STALL, 0), 14);
        assert_eq!(world.look(NONE, 0), 14, "it is answered once");
        assert_eq!((world.look(STALL / 2, 0), world.look(STALL / 2, 0)), (14, 12), "two periods together");
    }

    #[test]
    fn quiet_gives_a_part_back_each_10_seconds() {
        let mut world = World::new();
        (0..7).for_each(|_| _ = world.look(NONE, 1));
        for given_back in 3..=WHOLE {
            assert!((1..LOOKS).all(|_| world.look(NONE, 0) == given_back - 1));
            assert_eq!(world.look(NONE, 0), given_back);
        }
        assert!((0..2 * LOOKS).all(|_| world.look(NONE, 0) == WHOLE));
        // Pressure begins the time anew.
        world.look(NONE, 1);
        assert!((1..LOOKS).all(|_| world.look(NONE, 0) == 14));
        assert_eq!(world.look(NONE, 1), 12);
        assert!((1..LOOKS).all(|_| world.look(NONE, 0) == 12));
    }

    #[test]
    fn counters_that_come_and_go_are_no_pressure() {
        let mut world = World::new();
        for (stalled, high) in
            [(None, Some(9)), (Some(STALL * 100), None), (None, None), (Some(NONE), Some(1)), (Some(STALL), None)]
        {
            world.now.at += WINDOW * 2;
            let sample = Sample { stalled, high, ..world.now };
            let before = world.shrinker.high;
            let now = world.shrinker.look(sample);
            let is_high = matches!((before, high), (Some(before), Some(high)) if high > before);
            assert_eq!(now < WHOLE, is_high, "{sample:?}");
            world.shrinker.sixteenths = WHOLE;
        }
    }

    proptest! {
        #[test]
        fn part_stays_in_bounds_and_moves_by_steps(looks in prop::collection::vec((0_u64..400, 0_u64..2), 1..300)) {
            let mut world = World::new();
            let mut before = WHOLE;
            for (stalled, high) in looks {
                let now = world.look(Duration::from_millis(stalled), high);
                prop_assert!((LEAST..=WHOLE).contains(&now));
                prop_assert!(now <= before + 1 && now + STEP >= before);
                prop_assert!(high == 0 || now < before || now == LEAST);
                prop_assert!(world.shrinker.stalls.len() <= 5, "memory is bounded");
                before = now;
            }
        }
    }
}
