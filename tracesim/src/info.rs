//! Description of a trace, before any cache.

use crate::footprint::{Footprint, asked_by};
use crate::mrc::{Reuse, Unit, reuse_distances};
use crate::simulate::{Recency, ReplayError, Watch, replay};
use mrrc_core::policy::PolicyKind;
use mrrc_core::{Config, PageRange};
use rustc_hash::FxHashSet;
use serde::Serialize;
use traces::{Kind, Trace};

/// The description of a trace.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Info {
    /// Its name.
    pub trace: String,
    /// How the source was read.
    pub understood: String,
    /// Events read.
    pub events: u64,
    /// Lines or records passed over.
    pub skipped: u64,
    /// Caches and address spaces.
    pub processes: u64,
    /// Ranges asked for.
    pub requests: u64,
    /// Of these, those that stay in use until a release.
    pub acquires: u64,
    /// Releases.
    pub releases: u64,
    /// Ranges invalidated.
    pub invalidations: u64,
    /// Requests for several ranges at once.
    pub lists: u64,
    /// Pages asked for, each as often as it is.
    pub pages: u64,
    /// Different pages asked for.
    pub footprint_pages: u64,
    /// Different ranges asked for.
    pub ranges: u64,
    /// Of these, those that are asked for once.
    pub ranges_once: u64,
    /// Requests for nothing but pages that were asked for before: what an infinite cache serves.
    pub reused: u64,
    /// Pages that were asked for before, each as often as it is asked for again.
    pub reused_pages: u64,
    /// Requests by size.
    pub sizes: Vec<Size>,
    /// Requests by how many pages were used since the same range was, by power of two.
    pub reuse_distances: Vec<Distance>,
    /// XXH64 of the steps, in hexadecimal.
    pub checksum: String,
}

/// Requests of a size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Size {
    /// Pages, at least.
    pub from_pages: u64,
    /// Pages, at most: a power of two.
    pub to_pages: u64,
    /// How many.
    pub requests: u64,
}

/// Requests at a distance from the last use of their range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Distance {
    /// So many pages at most, its own included, and more than in the entry before; none for a first use.
    pub up_to_pages: Option<u64>,
    /// How many.
    pub requests: u64,
}

impl Info {
    /// Looks at all of the trace.
    ///
    /// # Errors
    /// As [`replay`].
    pub fn of(trace: &Trace, footprint: &Footprint, watch: &Watch<'_>) -> Result<Self, ReplayError> {
        let mut of_kind = [0; 4];
        let mut lists = 0;
        let mut by_size = [0; 65];
        let (mut ranges, mut repeated) = (0, 0);
        for process in &trace.processes {
            let mut once: FxHashSet<PageRange> = FxHashSet::default();
            let mut again: FxHashSet<PageRange> = FxHashSet::default();
            for asked in asked_by(process) {
                if !once.insert(asked) {
                    again.insert(asked);
                }
                // 1, 2, 3 to 4, 5 to 8, …
                by_size[asked.pages().next_power_of_two().trailing_zeros() as usize] += 1;
            }
            ranges += once.len() as u64;
            repeated += again.len() as u64;
            let mut goes_on = false;
            for step in &process.steps {
                of_kind[step.kind() as usize] += 1;
                let asks = matches!(step.kind(), Kind::Request | Kind::Acquire);
                lists += u64::from(asks && step.goes_on() && !goes_on);
                goes_on = step.goes_on();
            }
        }
        // An invalidated range has been asked for all the same.
        let everything = Config::new(PageRange::EVERYTHING.pages());
        let found = replay(trace, &PolicyKind::PinDown.into(), &everything, Recency::Exact, Some(watch))?.counters;
        let largest = by_size.iter().rposition(|&requests| requests > 0).unwrap_or(0);
        let size = |(power, &requests): (usize, &u64)| {
            let to_pages = 1 << power;
            Size { from_pages: to_pages / 2 + 1, to_pages, requests }
        };
        let distance = |reuse: &Reuse| Distance { up_to_pages: reuse.up_to_pages, requests: reuse.requests };
        Ok(Self {
            trace: trace.name.clone(),
            understood: trace.summary.understood.clone(),
            events: trace.summary.events,
            skipped: trace.summary.skipped(),
            processes: trace.processes.len() as u64,
            requests: footprint.requests,
            acquires: of_kind[Kind::Acquire as usize],
            releases: of_kind[Kind::Release as usize],
            invalidations: of_kind[Kind::Invalidate as usize],
            lists,
            pages: footprint.requested_pages,
            footprint_pages: footprint.pages,
            ranges,
            ranges_once: ranges - repeated,
            reused: found.hits(),
            reused_pages: found.hit_pages,
            sizes: by_size[..=largest].iter().enumerate().map(size).collect(),
            reuse_distances: reuse_distances(trace, Unit::Region).iter().map(distance).collect(),
            checksum: crate::shard::checksum(trace),
        })
    }
}
