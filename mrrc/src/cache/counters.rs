//! The counters of a cache: always on, and exact once the threads that acquire have stopped.

use crate::core::Counters;
use crate::registrar::Registrar;
use crate::state::shared::Shared;
use crate::units::Count;
use std::fmt;
use std::time::Duration;

/// Everything that a cache has counted since it was made.
///
/// In the table, `registered` are registrations that came about. Beside them are the calls of the registrar
/// ([`CacheCounters::attempts`]) and how many of those failed, finally or to be tried again.
///
/// Hits are counted by each thread for itself, and everything else under the lock. The sums are exact whenever
/// no thread is inside a call. Displayed as a small table, which may change; programs read the fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct CacheCounters {
    /// The requests and decisions, as the simulator counts them. `deregs` counts regions that left; they may
    /// not be deregistered yet.
    pub decisions: Counters,
    /// Calls of the registrar to register, those that failed included; and requests that its probe refused.
    pub attempts: u64,
    /// Registrations that were tried again because the system was out of something.
    pub retries: u64,
    /// Requests that registered more pages than they asked for, [widened](crate::cache::Builder::widen).
    pub widened: u64,
    /// Pages that these registered beyond what they asked for.
    pub widened_pages: u64,
    /// Requests whose widened registration failed, or found no room or no monitor: they were registered as they are.
    pub widened_failed: u64,
    /// Requests that waited: until what another thread was registering was registered, or, if the cache
    /// [waits for room](crate::cache::Builder::capacity_timeout), until leases of others ended. Each counts once, however often
    /// it looked and for whatever it waited. Waiting for a batch that another thread deregisters does not count.
    pub waits: u64,
    /// Regions registered for one lease only, because no monitor watches such memory, or none vouches for what was borrowed.
    pub unwatched: u64,
    /// Regions registered for one lease only, because pages there were just discarded, or a change of them was announced.
    pub discarded: u64,
    /// Regions registered for one lease only, because memory changed while they were registered.
    pub changed_in_flight: u64,
    /// Changes of memory that monitors reported.
    pub changes: u64,
    /// Regions that ended because no lease had them for [too long](crate::cache::Builder::max_unheld). They count as invalidated, too.
    pub expired: u64,
    /// Regions proposed to leave that turned out to be held.
    pub recalled: u64,
    /// Heavy barriers: one for each batch that is proposed to leave, replaced or invalidated, and one to arrange that
    /// leases report their end.
    pub barriers: u64,
    /// Looks through the leases of all threads for regions that leave when their leases end.
    pub sweeps: u64,
    /// Batches handed to the registrar.
    pub dereg_batches: u64,
    /// Regions that were deregistered.
    pub deregistered: u64,
    /// Deregistrations that failed: those regions are tried again.
    pub failed_deregs: u64,
    /// Requests refused because what had left could not be deregistered and took the room
    /// ([`AcquireError::DeregistrationFailed`](crate::AcquireError::DeregistrationFailed)).
    pub refused_dereg_failed: u64,
    /// [Windows](crate::registrar::windows) that were bound.
    pub windows: u64,
    /// Windows that could not be bound or unbound.
    pub windows_failed: u64,
    /// The most pages that were ever registered at once.
    pub peak_pages: u64,
    /// The most regions that were ever registered at once.
    pub peak_regions: u64,
    /// The most [dead pins](Usage::dead_pages) that there ever were at once, in pages.
    pub peak_dead_pages: u64,
    /// The longest time for which pins were dead, those that are dead now included. It ends with their deregistration.
    pub longest_dead: Duration,
}

/// The current registrations. Displayed as a small table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Usage {
    /// Pages registered, being registered, being deregistered, or refused by the registrar. Never above the capacity.
    pub pages: u64,
    /// Regions, counted likewise.
    pub regions: u64,
    /// Regions that left and wait to be deregistered.
    pub leaving: u64,
    /// Regions that could not be deregistered.
    pub refused: u64,
    /// Held regions that are looked at again: retired, or registered for a lease.
    pub retired: u64,
    /// Dead pins, in pages: still registered although the memory was unmapped, moved or discarded, and in no lease. The
    /// [background](crate::cache::Builder::background) deregisters them within 100 ms. From 64 MiB on misses help, so there are seldom
    /// more. One change can leave more at once, and a registrar may refuse to take regions back.
    pub dead_pages: u64,
    /// The capacity in pages.
    pub capacity_pages: u64,
    /// The capacity in regions.
    pub capacity_regions: u64,
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
        let aside = self.unwatched + self.discarded + self.changed_in_flight;
        let mut lines = vec![
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
                    Count(self.refused_dereg_failed, "requests")
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
        if self.widened + self.widened_failed > 0 {
            let pages = Count(self.widened_pages, "pages");
            let note = format!("misses, by {pages}; {} failed, and were registered exactly", self.widened_failed);
            lines.insert(4, ("widened", self.widened, note));
        }
        if self.windows + self.windows_failed > 0 {
            let note = format!("bound for peers; {} could not be bound or unbound", self.windows_failed);
            lines.push(("windows", self.windows, note));
        }
        table(f, &lines)
    }
}

impl CacheCounters {
    fn aside(&self) -> String {
        format!(
            "{} unwatched, {} just discarded, {} changed in flight",
            self.unwatched, self.discarded, self.changed_in_flight
        )
    }
}

/// Prints the registrations, the limits, and the regions on their way out.
impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |whole: u64| format!("of {whole}");
        let lines = [
            ("pages", self.pages, of(self.capacity_pages)),
            ("regions", self.regions, of(self.capacity_regions)),
            ("leaving", self.leaving, "wait to be deregistered".into()),
            ("refused", self.refused, "could not be deregistered".into()),
            ("retired", self.retired, "leave when their leases end".into()),
            ("dead", self.dead_pages, "pages whose memory changed, still registered".into()),
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

pub(super) fn counters<R: Registrar>(shared: &Shared<R>) -> CacheCounters {
    let Ok((state, _)) = shared.lock_now() else { return CacheCounters::default() };
    let mut decisions = state.core.counters();
    let ([subset, exact], pages) = shared.tables.blocks.counts();
    decisions.requests += subset + exact;
    decisions.subset += subset;
    decisions.exact += exact;
    decisions.pages = decisions.pages.saturating_add(pages);
    decisions.hit_pages = decisions.hit_pages.saturating_add(pages);
    let stats = &state.stats;
    let (peak_dead_pages, longest_dead) = state.reclaimer.worst_dead();
    let (windows, windows_failed) = shared.windows.as_ref().map_or((0, 0), |windows| windows.counts());
    CacheCounters {
        decisions,
        attempts: stats.attempts,
        retries: stats.retries,
        widened: stats.widened,
        widened_pages: stats.widened_pages,
        widened_failed: stats.widened_failed,
        waits: stats.waits,
        unwatched: stats.unwatched,
        discarded: stats.discarded,
        changed_in_flight: stats.changed_in_flight,
        changes: stats.changes,
        expired: stats.expired,
        recalled: stats.recalled,
        barriers: stats.barriers,
        sweeps: stats.sweeps,
        dereg_batches: stats.batches,
        deregistered: stats.deregistered.regions,
        failed_deregs: stats.failed_deregs,
        refused_dereg_failed: stats.refused_dereg_failed,
        windows,
        windows_failed,
        peak_pages: stats.peak.pages,
        peak_regions: stats.peak.regions,
        peak_dead_pages,
        longest_dead,
    }
}

pub(super) fn unheld_pages<R: Registrar>(shared: &Shared<R>) -> u64 {
    shared.lock_now().map_or(0, |(mut state, _)| state.unheld_pages(&shared.tables))
}

pub(super) fn usage<R: Registrar>(shared: &Shared<R>) -> Usage {
    let Ok((state, _)) = shared.lock_now() else { return Usage::default() };
    let (used, limit) = (state.occupancy.used(), state.occupancy.limit());
    Usage {
        pages: used.pages,
        regions: used.regions,
        leaving: state.reclaimer.pending_regions() as u64,
        refused: state.reclaimer.refused().0.regions,
        retired: state.lease_holds.len() as u64,
        dead_pages: state.reclaimer.dead_pages(),
        capacity_pages: limit.pages,
        capacity_regions: limit.regions,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_shown_as_a_table() {
        let mut decisions = Counters::default();
        (decisions.requests, decisions.pages) = (1200, 2400);
        (decisions.exact, decisions.covered, decisions.miss) = (1000, 80, 120);
        (decisions.regs, decisions.failed) = (121, 1);
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
        assert!(!shown.ends_with('\n') && !shown.contains("widened"));
        let widened = CacheCounters { widened: 7, widened_pages: 300, widened_failed: 1, ..counters }.to_string();
        let line = "widened           7  misses, by 300 pages; 1 failed, and were registered exactly";
        assert_eq!(widened.lines().nth(4), Some(line));
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
