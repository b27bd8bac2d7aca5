//! The patience of a request.

use crate::effective::EffectiveSettings;
use crate::error::{AcquireError, Obstacle};
use crate::range::PageRange;
use crate::state::stats::Stats;
use std::time::Duration;

/// The causes of a wait. The time of the caller or the registrar is not waiting.
#[derive(Clone, Copy)]
pub(super) enum Cause {
    /// Leases of others have everything.
    Leases,
    /// Other threads register or deregister, or it deregisters for itself.
    Others,
    /// Memory is freed for the next try.
    Freeing,
}

/// The time that a request has waited, by its cause. Owns these times.
#[derive(Default)]
pub(super) struct Waits {
    times: [Duration; 3],
    is_counted: bool,
}

impl Waits {
    pub(super) fn add(&mut self, cause: Cause, took: Duration) {
        self.times[cause as usize] += took;
    }

    pub(super) fn waited(&self, cause: Cause) -> Duration {
        self.times[cause as usize]
    }

    /// Returns how much longer the request waits.
    pub(super) fn left(&self, cause: Cause, settings: &EffectiveSettings) -> Duration {
        let others = settings.wait_timeout.saturating_sub(self.waited(Cause::Others));
        match cause {
            Cause::Leases => settings.capacity_timeout.saturating_sub(self.waited(cause)),
            Cause::Others => others,
            Cause::Freeing => others.saturating_sub(self.waited(cause)),
        }
    }

    /// Returns how much longer the request waits for others, or works for them.
    ///
    /// # Errors
    /// That is over; the error names the obstacle.
    pub(super) fn left_for_others(
        &self,
        settings: &EffectiveSettings,
        range: PageRange,
        obstacle: impl FnOnce() -> Obstacle,
    ) -> Result<Duration, AcquireError> {
        let left = self.left(Cause::Others, settings);
        if left.is_zero() {
            let waited = self.waited(Cause::Others);
            return Err(AcquireError::TimedOut { range, waited, obstacle: obstacle() });
        }
        Ok(left)
    }

    /// Counts the time of freeing, which is over, as one for others.
    pub(super) fn end_freeing(&mut self) {
        let took = std::mem::take(&mut self.times[Cause::Freeing as usize]);
        self.add(Cause::Others, took);
    }

    /// Begins anew, for a request that is planned from the beginning.
    pub(super) fn restart(&mut self) {
        self.times = Default::default();
    }

    /// Counts the request as one that waited: once, however often it looks and whatever it waits for.
    pub(super) fn count(&mut self, stats: &mut Stats) {
        stats.waits += u64::from(!std::mem::replace(&mut self.is_counted, true));
    }
}
