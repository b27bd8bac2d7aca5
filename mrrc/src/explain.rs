//! Why a request would hit or miss: to find out where the time goes.
//!
//! An explanation is a look at the state. It decides and counts nothing: no region moves up, no change that a monitor
//! left is dealt with, nothing is evicted. But it asks the registrar whether it could register what is missing, and the
//! monitor, which may begin to watch the mapping for a moment. Its answer is true at that moment, and may be out of
//! date at the next.

use crate::access::Access;
use crate::driver;
use crate::error::{self, Unusable};
use crate::footprint::Footprint;
use crate::hit::HitTables;
use crate::invalidation::{Unwatched, Watch};
use crate::lease::needs_local_write;
use crate::policy::Matching;
use crate::range::{PageRange, RangeError};
use crate::regions::RegionId;
use crate::registrar::Registrar;
use crate::state::shared::Shared;
use crate::state::{CacheState, Entry};
use crate::units::{Amounts, Count};
use std::fmt;
use std::time::Duration;

/// The findings of [`Cache::explain`](crate::Cache::explain), a sentence for each.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Explanation {
    findings: Vec<Finding>,
}

/// One reason.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Finding {
    /// One region serves the request.
    #[error("a hit: {region} is registered with {access} and contains it")]
    Hit {
        /// The region.
        region: PageRange,
        /// Its rights.
        access: Access,
    },
    /// A region serves a part of the request.
    #[error("{part} is registered, as part of {region}")]
    Covered {
        /// The pages of the request that it serves.
        part: PageRange,
        /// The region.
        region: PageRange,
    },
    /// No region has these pages.
    #[error("{part} is not registered")]
    Missing {
        /// The pages.
        part: PageRange,
    },
    /// The cache follows memory pressure, and keeps such a part of the most that it had since then.
    #[error("memory pressure, of which {by} tells: the cache keeps {sixteenths} sixteenths of what it has")]
    Pressure {
        /// How it hears of pressure.
        by: &'static str,
        /// The sixteenths that it keeps.
        sixteenths: u64,
    },
    /// A region has these pages, with too few rights: they are registered anew.
    #[error("{part} is registered as part of {region} without {lacking}, and is registered anew for that")]
    Lacking {
        /// The pages of the request.
        part: PageRange,
        /// The region.
        region: PageRange,
        /// The rights that are missing.
        lacking: Access,
    },
    /// Another thread is registering these pages: the request waits for that.
    #[error("{part} is being registered by another request, which this one would wait for")]
    UnderWay {
        /// The pages of the request.
        part: PageRange,
    },
    /// Memory changed under a region, which is not used again.
    #[error("{part} was registered and has changed since: the registration is not used again")]
    Stale {
        /// The pages of the request.
        part: PageRange,
    },
    /// Pages were discarded here a moment ago.
    #[error("nothing is cached in {part} for another {left:?}, because pages were discarded there")]
    Discarded {
        /// The pages of the request.
        part: PageRange,
        /// For so long.
        left: Duration,
    },
    /// The monitor would not hear of changes here.
    #[error("{}", match why {
        Unwatched::Unmapped => format!("{part} is not mapped, at least in part: there is nothing to register"),
        Unwatched::File | Unwatched::NoAccess => format!("{part} is registered for one lease at a time, if the registrar takes it at all: {why}"),
        _ => format!("{part} is registered for one lease at a time, because changes would not be heard of: {why}"),
    })]
    Unwatched {
        /// The pages of the request.
        part: PageRange,
        /// The reason.
        why: Unwatched,
    },
    /// A change of memory is being dealt with: no request is served without the cache's lock meanwhile.
    #[error("a change of memory is being dealt with, and every request waits for that")]
    Changing,
    /// The policy keeps nothing.
    #[error("the cache keeps nothing by its policy: every request is registered")]
    NothingKept,
    /// The program said that the memory is about to change.
    #[error(
        "{part} is about to be changed by the program (`Cache::begin_change`): until that is done it is registered for one lease at a time"
    )]
    Announced {
        /// The pages of the request that would be registered.
        part: PageRange,
    },
    /// A window over the bytes gives peers their rights.
    #[error("a memory window over exactly these bytes gives peers {rights}, until the lease ends")]
    Window {
        /// The rights of peers.
        rights: Access,
    },
    /// A window lets peers write only where this side may.
    #[error("it is refused: peers may write ({rights}) only where this side may: ask for local-write too")]
    NeedsLocalWrite {
        /// The rights of peers.
        rights: Access,
    },
    /// No window can be bound.
    #[error("it is refused: no memory window can be bound: {why}: make a new cache over a domain that is opened anew")]
    NoWindow {
        /// The reason.
        why: String,
    },
    /// The missing pages take the place of others.
    #[error("what is missing takes the place of others: {} would leave first", Amounts { pages: *pages, regions: *regions })]
    NoRoom {
        /// Pages that have to leave.
        pages: u64,
        /// Regions that have to leave.
        regions: u64,
    },
    /// The regions that could make room are in use.
    #[error(
        "it is refused unless leases end: it lacks {}, and too much of the rest is in use to make room for it",
        Amounts { pages: *pages, regions: *regions }
    )]
    AllInUse {
        /// Pages that are missing after all has left that can.
        pages: u64,
        /// Regions likewise.
        regions: u64,
    },
    /// Evicted regions could not be deregistered, and take the room.
    #[error(
        "it is refused unless it helps to try again: {} of {} left the cache and could not be deregistered ({why}), and take \
         the room",
        Count(*regions, "regions"),
        Count(*pages, "pages")
    )]
    DeregistrationFailed {
        /// Their pages.
        pages: u64,
        /// Their number.
        regions: u64,
        /// The registrar's name, and what it said when it last refused.
        why: String,
    },
    /// The registrar says that it would fail.
    #[error("it is refused: {part} cannot be registered: {why}")]
    NotRegistrable {
        /// The pages of the request that would be registered.
        part: PageRange,
        /// The registrar's message, and the remedy.
        why: String,
    },
    /// The request alone is more than there may be.
    #[error("it is refused: it takes {}, and {limit} is the limit", Count(*needed, unit))]
    TooLarge {
        /// How much it needs.
        needed: u64,
        /// How much there may be.
        limit: u64,
        /// Of what.
        unit: &'static str,
    },
    /// The registrar does not grant such rights.
    #[error("it is refused: the registrar does not grant {lacking}")]
    NotGranted {
        /// The rights that it does not grant.
        lacking: Access,
    },
    /// The buffer is no range of memory.
    #[error("it is refused: {0}")]
    Range(RangeError),
    /// The cache is of no use.
    #[error("it is refused: {0}")]
    Unusable(Unusable),
}

impl Explanation {
    /// Returns whether the request would be served by what is registered.
    pub fn is_hit(&self) -> bool {
        let serves =
            |finding: &_| matches!(finding, Finding::Hit { .. } | Finding::Covered { .. } | Finding::Window { .. });
        self.findings.iter().all(serves)
    }

    /// All that was found.
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }
}

/// A line for each finding.
impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, finding) in self.findings.iter().enumerate() {
            f.write_str(if nth == 0 { "" } else { "\n" })?;
            fmt::Display::fmt(finding, f)?;
        }
        Ok(())
    }
}

/// Why a request for this memory would hit or miss right now. The rights are complete.
pub(crate) fn explain<R: Registrar>(shared: &Shared<R>, address: usize, length: usize, access: Access) -> Explanation {
    let findings = match PageRange::of_bytes(address as u64, length as u64) {
        Ok(range) => find_reasons(shared, range.rounded_out(shared.settings.unit), access),
        Err(error) => vec![Finding::Range(error)],
    };
    Explanation { findings }
}

/// Returns the findings of a request: those of its regions, and what windows add to them.
fn find_reasons<R: Registrar>(shared: &Shared<R>, range: PageRange, access: Access) -> Vec<Finding> {
    // First: locks may have been held at the fork, those of the registrar's windows too.
    if shared.tables.gate.is_forked() {
        return vec![Finding::Unusable(Unusable::Forked)];
    }
    let lacking = access.difference(shared.settings.rights);
    if !lacking.is_empty() {
        return vec![Finding::NotGranted { lacking }];
    }
    let (of_regions, rights) = shared.settings.divided(access);
    if needs_local_write(of_regions, rights) {
        return vec![Finding::NeedsLocalWrite { rights }];
    }
    let mut findings = find_in_regions(shared, range, of_regions, rights);
    if rights.is_empty() || findings.iter().any(Finding::is_refusal) {
        return findings;
    }
    if let Some(why) = shared.windows.as_ref().and_then(|windows| windows.trouble()) {
        return vec![Finding::NoWindow { why }];
    }
    findings.push(Finding::Window { rights });
    findings
}

impl Finding {
    /// Whether the request would get no lease.
    fn is_refusal(&self) -> bool {
        matches!(
            self,
            Self::AllInUse { .. }
                | Self::DeregistrationFailed { .. }
                | Self::NotRegistrable { .. }
                | Self::TooLarge { .. }
                | Self::NotGranted { .. }
                | Self::NeedsLocalWrite { .. }
                | Self::NoWindow { .. }
                | Self::Range(_)
                | Self::Unusable(_)
        )
    }
}

/// Returns the findings of a request for regions with these rights, and windows with those of peers.
fn find_in_regions<R: Registrar>(shared: &Shared<R>, range: PageRange, access: Access, peers: Access) -> Vec<Finding> {
    let settings = &shared.settings;
    if let Some((needed, limit, unit)) = settings.excess(range, None) {
        return vec![Finding::TooLarge { needed, limit, unit }];
    }
    let mut findings = Vec::new();
    let room;
    let (parts, gaps) = match shared.look() {
        Ok((state, settled)) => {
            if !settled {
                findings.push(Finding::Changing);
            }
            let seen = Seen::of(&state, range, access);
            if let Some(hit) = seen.hit {
                findings.push(hit);
                return findings;
            }
            let discarded = state.changes.discarded(range).into_iter();
            findings.extend(discarded.map(|(part, left)| Finding::Discarded { part, left }));
            let announced = seen.gaps.iter().filter(|&&gap| state.changes.is_changing(gap));
            findings.extend(announced.map(|&part| Finding::Announced { part }));
            room = seen.room(&state, &shared.tables, settings.capacity, shared.registrar.name());
            (seen.parts, seen.gaps)
        }
        Err(unusable) => return vec![Finding::Unusable(unusable)],
    };
    findings.splice(0..0, parts.into_iter().map(|(_, finding)| finding));
    if !gaps.is_empty() && !settings.caches {
        findings.push(Finding::NothingKept);
    }
    // With no lock held.
    for &part in &gaps {
        if let Err(error) = shared.registrar.examine(part, access | peers) {
            let remedy = error::hint(&error, shared.registrar.name(), part, access);
            // It makes no room, and no monitor watches it.
            findings.retain(|finding| !matches!(finding, Finding::NothingKept));
            findings.push(Finding::NotRegistrable { part, why: format!("{error}{remedy}") });
            return findings;
        }
    }
    findings.extend(room);
    if let Some(pressure) = settings.pressure.as_ref().filter(|_| !gaps.is_empty()) {
        findings.push(Finding::Pressure { by: pressure.source(), sixteenths: pressure.sixteenths() });
    }
    for part in gaps {
        match shared.monitor.watch(part) {
            Watch::Watched => shared.monitor.unwatch(part),
            Watch::Unwatched(why) => findings.push(Finding::Unwatched { part, why }),
        }
    }
    findings
}

/// The state of a range.
struct Seen {
    hit: Option<Finding>,
    /// In the order of their addresses.
    parts: Vec<(u64, Finding)>,
    /// The ranges to register.
    gaps: Vec<PageRange>,
    /// The regions that would give way to that.
    replaced: Footprint,
    /// Regions that the request uses or takes the place of, so that they cannot leave for it, in the order of their names.
    concerned: Vec<RegionId>,
}

impl Seen {
    fn of<T>(state: &CacheState<T>, range: PageRange, access: Access) -> Self {
        let core = &state.core;
        let mut ids = Vec::new();
        core.for_each_overlap(range, |id| ids.push(id));
        ids.sort_unstable();
        ids.dedup();
        let exact = core.scheme().matching == Matching::Exact;
        // One region serves the request, and what does not stays.
        let one_key = core.has_one_key();
        let mut seen = Self {
            hit: None,
            parts: Vec::new(),
            gaps: Vec::new(),
            replaced: Footprint::default(),
            concerned: Vec::new(),
        };
        let (mut served, mut told) = (Vec::new(), Vec::new());
        for id in ids {
            let (region, has) = core.facts_of(id);
            let Some(part) = region.intersection(range) else { continue };
            if exact && region != range || one_key && !region.contains(range) {
                continue;
            }
            let is_whole = region.contains(range) && has.contains(access);
            if has.class() != access.class() && !(is_whole && has.is_remote()) {
                // Regions of the other class serve whole requests of their owner or none.
                continue;
            }
            let finding = match state.in_flight.entry(id) {
                Entry::Absent => continue,
                entry if entry.is_changed() => Finding::Stale { part },
                _ if !has.contains(access) => {
                    if !one_key {
                        seen.replaced = seen.replaced.plus(Footprint::of([region]));
                    }
                    Finding::Lacking { part, region, lacking: access.difference(has) }
                }
                Entry::Registering { .. } => {
                    served.push(region);
                    Finding::UnderWay { part }
                }
                _ => {
                    served.push(region);
                    if is_whole {
                        seen.hit = Some(Finding::Hit { region, access: has });
                    }
                    Finding::Covered { part, region }
                }
            };
            if !one_key {
                seen.concerned.push(id);
            }
            told.push(part);
            seen.parts.push((part.start(), finding));
        }
        driver::gaps(range, served.iter().copied(), &mut seen.gaps);
        let mut untold = Vec::new();
        driver::gaps(range, told.into_iter(), &mut untold);
        seen.parts.extend(untold.into_iter().map(|part| (part.start(), Finding::Missing { part })));
        seen.parts.sort_by_key(|&(start, _)| start);
        seen
    }

    /// Finds the regions that would have to leave before the gaps fit, besides those that give way to them, and whether
    /// that is possible. Where one has to, it looks at every region.
    fn room<T>(
        &self,
        state: &CacheState<T>,
        tables: &HitTables<T>,
        limit: Footprint,
        registrar: &str,
    ) -> Option<Finding> {
        if self.gaps.is_empty() {
            return None;
        }
        let used = Footprint { pages: state.core.used_pages(), regions: state.core.used_regions() };
        let needed = used.minus(self.replaced).plus(Footprint::of(self.gaps.iter().copied()));
        let missing = needed.minus(limit);
        if missing == Footprint::default() {
            let (Footprint { pages, regions }, why) = state.reclaimer.refused();
            let stuck = regions > 0 && needed.plus(Footprint { pages, regions }).minus(limit) != missing;
            let why = format!("{registrar}: {why}");
            return stuck.then_some(Finding::DeregistrationFailed { pages, regions, why });
        }
        Some(match needed.minus(self.free(state, tables)).minus(limit) {
            Footprint { pages: 0, regions: 0 } => Finding::NoRoom { pages: missing.pages, regions: missing.regions },
            Footprint { pages, regions } => Finding::AllInUse { pages, regions },
        })
    }

    /// Returns the unheld regions that the request does not need.
    fn free<T>(&self, state: &CacheState<T>, tables: &HitTables<T>) -> Footprint {
        let mut names = Vec::new();
        tables.blocks.read(&mut names);
        names.sort_unstable();
        let mut ids: Vec<_> = state.core.cached().collect();
        ids.retain(|&(id, _)| {
            state.in_flight.entry(id).is_registered()
                && self.concerned.binary_search(&id).is_err()
                && names.binary_search(&id.raw()).is_err()
                && !tables.records[id].counted().any()
        });
        Footprint::of(ids.into_iter().map(|(_, range)| range))
    }
}
