//! How much one call of the registrar deregisters: a decision without a clock and without threads.
//!
//! A call that deregisters much saves calls; one that takes long keeps back the room that it has freed already. So a batch
//! begins with one region and doubles as long as the calls are quick. It shrinks when a call takes longer than [`TARGET`],
//! unless that is what the call itself takes: then smaller batches would be slower and free nothing earlier. The fixed
//! cost of a call is found out now and then by a batch of one region. Other batches of one region are not timed: they
//! could not be smaller.

use crate::footprint::Footprint;
use std::time::Duration;

/// The target duration of a call. A request that waits for room looks again at least that often.
const TARGET: Duration = Duration::from_millis(2);
/// The most regions of a batch: as many as a call of io_uring takes.
const MOST: usize = 256;
/// The weight of a region beside its pages.
const REGION: u64 = 16;

/// Batches from one of a single region to the next.
const PROBE: u32 = 64;

/// The size of the next batch.
#[derive(Debug)]
pub(crate) struct Pace {
    /// The weight of the next batch.
    weight: u64,
    /// Batches since the last one of a single region.
    since: u32,
    /// The durations of the last two of a single region: the longer one may have been interrupted.
    alone: [Duration; 2],
}

impl Pace {
    pub(crate) fn new() -> Self {
        Self { weight: 0, since: PROBE, alone: [Duration::MAX; 2] }
    }

    /// How many of the regions with these pages, in this order, make the next batch: at least one, if there is any.
    pub(crate) fn choose(&self, pages: impl IntoIterator<Item = u64>) -> usize {
        let mut weight = 0_u64;
        let fits = |&pages: &u64| {
            weight = weight.saturating_add(pages).saturating_add(REGION);
            // The first one in any case.
            weight <= self.weight || weight == pages.saturating_add(REGION)
        };
        let most = if self.since >= PROBE { 1 } else { MOST };
        pages.into_iter().take(most).take_while(fits).count()
    }

    /// Returns whether a batch of this size is to be timed. Not if it is a single region, more is allowed already, and
    /// what such a call takes was found out not long ago: reading the clock costs as much as the rest of a small batch.
    pub(crate) fn wants_time(&self, batch: Footprint) -> bool {
        batch.regions > 1
            || self.since >= PROBE
            || self.alone[1] == Duration::MAX
            || weight(batch).saturating_mul(2) > self.weight
    }

    /// A batch of this size took so long, if it was timed.
    #[inline]
    pub(crate) fn learn(&mut self, batch: Footprint, took: Option<Duration>) {
        self.since = self.since.saturating_add(1);
        if let Some(took) = took {
            self.learn_time(batch, took);
        }
    }

    fn learn_time(&mut self, batch: Footprint, took: Duration) {
        let weight = weight(batch);
        if batch.regions <= 1 {
            (self.since, self.alone) = (0, [took, self.alone[0]]);
        }
        let bound = TARGET.max(self.alone[0].min(self.alone[1]).saturating_mul(2));
        if took > bound {
            let share = bound.as_secs_f64() / took.as_secs_f64();
            self.weight = ((weight as f64 * share) as u64).min(weight / 2);
        } else if took <= bound / 2 && (weight.saturating_mul(2) > self.weight || batch.regions as usize == MOST) {
            self.weight = weight.max(self.weight).saturating_mul(2);
        }
    }
}

fn weight(batch: Footprint) -> u64 {
    batch.pages.saturating_add(batch.regions.saturating_mul(REGION))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Deregisters all of these, with this cost: how long each call took, and how many regions it had.
    fn run(pace: &mut Pace, regions: &[u64], cost: impl Fn(Footprint) -> Duration) -> Vec<(Duration, u64)> {
        let (mut left, mut calls) = (regions, Vec::new());
        while !left.is_empty() {
            let (now, later) = left.split_at(pace.choose(left.iter().copied()));
            let batch = Footprint { pages: now.iter().sum(), regions: now.len() as u64 };
            assert!(batch.regions > 0 && now.len() <= MOST);
            let took = cost(batch);
            pace.learn(batch, pace.wants_time(batch).then_some(took));
            calls.push((took, batch.regions));
            left = later;
        }
        calls
    }

    fn micros(each: u64) -> impl Fn(Footprint) -> Duration {
        move |batch| Duration::from_micros(each) * batch.regions as u32
    }

    #[test]
    fn quick_calls_grow_to_full_batches() {
        let calls = run(&mut Pace::new(), &[1; 10_000], micros(1));
        assert!(calls.len() < 10_000 / MOST + 12, "{}", calls.len());
    }

    #[test]
    fn slow_deregistrations_go_by_few() {
        let calls = run(&mut Pace::new(), &[1; 1000], micros(1000));
        assert!(calls.iter().all(|&(took, _)| took <= TARGET), "{calls:?}");
    }

    #[test]
    fn a_call_that_is_slow_itself_keeps_its_batches() {
        let calls = run(&mut Pace::new(), &[1; 10_000], |_| Duration::from_millis(5));
        assert!(calls.len() < 10_000 / MOST + 12, "{}", calls.len());
    }

    #[test]
    fn one_slow_call_shrinks_the_next_batch() {
        let mut pace = Pace::new();
        run(&mut pace, &[1; 10_000], micros(1));
        let calls = run(&mut pace, &[1; 1000], micros(1000));
        assert!(calls[0].1 > 100 && calls[1].0 <= TARGET, "{calls:?}");
        // And one that is quick again, too.
        let calls = run(&mut pace, &[1; 10_000], micros(1));
        assert!(calls.len() < 10_000 / MOST + 30, "{}", calls.len());
    }

    #[test]
    fn one_in_many_single_regions_is_timed() {
        let (mut pace, mut timed) = (Pace::new(), Vec::new());
        let alone = Footprint { pages: 1, regions: 1 };
        for nth in 0..4 * PROBE {
            if pace.wants_time(alone) {
                timed.push(nth);
            }
            pace.learn(alone, pace.wants_time(alone).then_some(Duration::from_millis(1)));
        }
        assert_eq!(timed, [0, 1, 66, 131, 196]);
        // A larger one weighs more than is allowed: whether it is quick is not known.
        assert!(pace.wants_time(Footprint { pages: 100, regions: 1 }));
    }

    proptest! {
        #[test]
        fn batches_are_short_or_cannot_be_shorter(
            call in 0..3000_u64,
            region in 1..5000_u64,
            page in 0..200_u64,
            regions in prop::collection::vec(1..64_u64, 200..600),
        ) {
            let cost = |batch: Footprint| Duration::from_micros(call + region * batch.regions + page * batch.pages);
            let mut pace = Pace::new();
            let calls = run(&mut pace, &regions, cost);
            // One region of the largest takes so long, and twice that is allowed. A batch may overshoot: it has twice the
            // weight of the last, and what that means in time depends on the regions.
            let alone = cost(Footprint { pages: 64, regions: 1 });
            let most = TARGET.max(alone * 2) * 8;
            for &(took, of) in &calls {
                prop_assert!(took <= most || of == 1, "{took:?} for {of}: {most:?}");
            }
        }
    }
}
