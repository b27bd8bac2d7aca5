//! What a cache has counted: always on, and exact once the threads that acquire have stopped.

use super::books::Books;
use super::shared::Shared;
use super::tally::Tally;
use crate::core::Counters;
use crate::count::Count;
use crate::registrar::Registrar;
use std::fmt;

/// Everything that a cache has counted since it was made.
///
/// In the table, `registered` are registrations that came about, beside the calls of the registrar
/// ([`CacheCounters::attempts`]) and how many of those failed, finally or to be tried again.
///
/// Hits are counted by each thread for itself, and everything else under the lock. The sums are exact whenever
/// nobody is inside a call. Displayed as a small table, which may change; programs read the fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct CacheCounters {
    /// What was asked for and what was decided, as the simulator counts it. `deregs` counts regions that left;
    /// they may not be deregistered yet.
    pub decisions: Counters,
    /// Calls of the registrar to register, those that failed included; and requests that its probe refused.
    pub attempts: u64,
    /// Registrations that were tried again because the system was out of something.
    pub retries: u64,
    /// Requests that waited: until what another thread was registering was registered, or, if the cache
    /// [waits for room](crate::cache::Builder::wait_for_room), until leases of others ended. Each counts once, however often
    /// it looked and for whatever it waited. Waiting for a batch that another thread deregisters does not count.
    pub waits: u64,
    /// Regions registered for one lease only, because no monitor watches such memory, or none vouches for what was borrowed.
    pub unwatched: u64,
    /// Regions registered for one lease only, because pages there were just discarded, or a change of them was announced.
    pub barred: u64,
    /// Regions registered for one lease only, because memory changed while they were registered.
    pub overtaken: u64,
    /// Changes of memory that monitors reported.
    pub changes: u64,
    /// Regions proposed to leave that somebody turned out to hold.
    pub recalled: u64,
    /// Heavy barriers: one for each batch that is proposed to leave, replaced or invalidated, and one when it is arranged that
    /// leases tell of their end.
    pub barriers: u64,
    /// Looks through the leases of all threads for regions that leave when their leases end.
    pub sweeps: u64,
    /// Batches handed to the registrar.
    pub dereg_batches: u64,
    /// Regions that were deregistered.
    pub deregistered: u64,
    /// Deregistrations that failed: those regions are parked, and tried again.
    pub failed_deregs: u64,
    /// Requests refused because what had left could not be deregistered and took the room
    /// ([`AcquireError::NotTakenBack`](crate::AcquireError::NotTakenBack)).
    pub not_taken_back: u64,
    /// The most pages that were ever registered at once.
    pub peak_pages: u64,
    /// The most regions that were ever registered at once.
    pub peak_regions: u64,
}

/// What is registered at this moment. Displayed as a small table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Usage {
    /// Pages registered, being registered, being deregistered, or parked. Never above the capacity.
    pub pages: u64,
    /// Regions, counted likewise.
    pub regions: u64,
    /// Regions that left and wait to be deregistered.
    pub leaving: u64,
    /// Regions that could not be deregistered.
    pub parked: u64,
    /// Regions that somebody was found to hold and that are looked at again: retired, or registered for a lease.
    pub lent: u64,
    /// The capacity in pages.
    pub capacity_pages: u64,
    /// The capacity in regions.
    pub capacity_regions: u64,
}

impl CacheCounters {
    pub(crate) fn of(decisions: Counters, tally: &Tally) -> Self {
        Self {
            decisions,
            attempts: tally.attempts,
            retries: tally.retries,
            waits: tally.waits,
            unwatched: tally.unwatched,
            barred: tally.barred,
            overtaken: tally.overtaken,
            changes: tally.changes,
            recalled: tally.recalled,
            barriers: tally.barriers,
            sweeps: tally.sweeps,
            dereg_batches: tally.batches,
            deregistered: tally.deregistered.regions,
            failed_deregs: tally.failed_deregs,
            not_taken_back: tally.not_taken_back,
            peak_pages: tally.peak.pages,
            peak_regions: tally.peak.regions,
        }
    }
}

/// A line for each thing that is counted, with its parts or its share beside it. No line ends in a line break.
impl fmt::Display for CacheCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { decisions, .. } = self;
        let Counters { exact, subset, covered, partial, miss, all_in_use, .. } = *decisions;
        let percent = |share: f64| format!("{:.1} %", 100.0 * share);
        // A registration that was tried several times is one, and one that was refused before it was tried is a try.
        let made = decisions.regs.saturating_sub(decisions.failed).min(self.attempts);
        let failed = self.attempts - made;
        let aside = self.unwatched + self.barred + self.overtaken;
        let lines = [
            ("requests", decisions.requests, format!("for {}", Count(decisions.pages, "pages"))),
            (
                "hits",
                decisions.hits(),
                format!("{}: {} in one region, {covered} in several", percent(decisions.hit_ratio()), exact + subset),
            ),
            ("misses", partial + miss, format!("{partial} of them in part; {all_in_use} found all in use")),
            (
                "registered",
                made,
                format!("of {}: {failed} failed, {} of them tried again", Count(self.attempts, "tries"), self.retries),
            ),
            ("for one lease", aside, self.aside()),
            (
                "deregistered",
                self.deregistered,
                format!(
                    "in {}, {} failed; {} refused for that",
                    Count(self.dereg_batches, "batches"),
                    self.failed_deregs,
                    Count(self.not_taken_back, "requests")
                ),
            ),
            (
                "changes",
                self.changes,
                format!(
                    "reported by the monitor; {} invalidated, also by calls",
                    Count(decisions.invalidated, "regions")
                ),
            ),
            ("waits", self.waits, "for others or for room".into()),
            ("peak", self.peak_pages, format!("pages, in {}", Count(self.peak_regions, "regions"))),
        ];
        table(f, &lines)
    }
}

impl CacheCounters {
    fn aside(&self) -> String {
        format!("{} unwatched, {} just discarded, {} overtaken", self.unwatched, self.barred, self.overtaken)
    }
}

/// What is there, of how much there may be, and what is on its way out.
impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |whole: u64| format!("of {whole}");
        let lines = [
            ("pages", self.pages, of(self.capacity_pages)),
            ("regions", self.regions, of(self.capacity_regions)),
            ("leaving", self.leaving, "wait to be deregistered".into()),
            ("parked", self.parked, "could not be deregistered".into()),
            ("lent", self.lent, "leave when their leases end".into()),
        ];
        table(f, &lines)
    }
}

fn table(f: &mut fmt::Formatter<'_>, lines: &[(&str, u64, String)]) -> fmt::Result {
    let names = lines.iter().map(|(name, ..)| name.len()).max().unwrap_or(0);
    let digits = lines.iter().map(|(_, number, _)| number.to_string().len()).max().unwrap_or(0);
    for (nth, (name, number, note)) in lines.iter().enumerate() {
        let end = if nth == 0 { "" } else { "\n" };
        write!(f, "{end}{name:names$}  {number:>digits$}  {note}")?;
    }
    Ok(())
}

impl<R: Registrar> Shared<R> {
    pub(super) fn counters(&self) -> CacheCounters {
        let Ok((books, _)) = self.lock_now() else { return CacheCounters::default() };
        let mut decisions = books.core.counters();
        let ([subset, exact], pages) = self.blocks.counts();
        decisions.requests += subset + exact;
        decisions.subset += subset;
        decisions.exact += exact;
        decisions.pages = decisions.pages.saturating_add(pages);
        decisions.hit_pages = decisions.hit_pages.saturating_add(pages);
        CacheCounters::of(decisions, &books.tally)
    }

    pub(super) fn usage(&self) -> Usage {
        let limit = self.terms.capacity;
        let Ok((books, _)) = self.lock_now() else { return Usage::default() };
        let Books { registered, limbo, parked, lent, .. } = &*books;
        Usage {
            pages: registered.pages,
            regions: registered.regions,
            leaving: limbo.len() as u64,
            parked: parked.len() as u64,
            lent: lent.len() as u64,
            capacity_pages: limit.pages,
            capacity_regions: limit.regions,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_shown_as_a_table() {
        let decisions = Counters {
            requests: 1200,
            exact: 1000,
            covered: 80,
            miss: 120,
            regs: 121,
            failed: 1,
            pages: 2400,
            ..Counters::default()
        };
        let counters =
            CacheCounters { decisions, attempts: 123, retries: 1, peak_pages: 64, ..CacheCounters::default() };
        let shown = counters.to_string();
        let lines: Vec<_> = shown.lines().collect();
        assert_eq!(
            lines[..4],
            [
                "requests       1200  for 2400 pages",
                "hits           1080  90.0 %: 1000 in one region, 80 in several",
                "misses          120  0 of them in part; 0 found all in use",
                "registered      120  of 123 tries: 3 failed, 1 of them tried again",
            ]
        );
        assert!(!shown.ends_with('\n'));
        assert!(CacheCounters::default().to_string().contains("hits           0  0.0 %"));
    }

    #[test]
    fn usage_is_shown_beside_its_limits() {
        let usage = Usage { pages: 12, regions: 3, capacity_pages: 1024, capacity_regions: 64, ..Usage::default() };
        let shown = usage.to_string();
        assert_eq!(shown.lines().next(), Some("pages    12  of 1024"));
        assert_eq!(shown.lines().nth(1), Some("regions   3  of 64"));
    }
}
