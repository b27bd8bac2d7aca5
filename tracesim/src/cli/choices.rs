//! The options of a cache that `replay` and `compare` share.

use super::failure::{Failure, note};
use super::whole::whole;
use crate::policies::{PolicyEntry, UnknownPolicy, find};
use crate::row::DeregCost;
use crate::simulate::Recency;
use crate::sizes::Capacity;
use crate::sweep::Sweep;
use clap::ValueEnum;
use mrrc_core::cost::Linear;
use mrrc_core::policy::{Matching, Overlap, PolicyKind};
use mrrc_core::{Config, ConfigError};

/// The options of every cache.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Caches")]
pub(crate) struct Choices {
    /// Share of the capacity that the resorting section is filled up to
    #[arg(long, value_name = "0..1", default_value_t = 0.5)]
    resort: f64,
    /// Share of the capacity that leaves at a time
    #[arg(long, value_name = "0..1", default_value_t = 0.1)]
    evict: f64,
    /// Treatment of regions that a request overlaps [default: as the policy has it]
    #[arg(long, value_name = "RULE")]
    overlap: Option<OverlapRule>,
    /// Which cached region serves a request [default: as the policy has it]
    #[arg(long = "match", value_name = "RULE")]
    matching: Option<MatchRule>,
    /// Cost of registrations: paper, fmr, io-uring, or a,b,a',b' in microseconds (a page, a registration, a page's
    /// deregistration, a batch)
    #[arg(long, value_name = "MODEL", default_value = "paper", allow_hyphen_values = true, value_parser = cost)]
    cost: Linear,
    /// Unit that is charged b' when regions are deregistered; region is the paper's formula (1)
    #[arg(long, value_name = "BY", default_value = "batch")]
    dereg_cost: DeregBy,
    /// When the policy hears of hits: at once, or before room is made, as in the cache of many threads
    #[arg(long, value_name = "WHEN", default_value = "exact")]
    recency: RecencyKind,
    /// Leave out the lower bound, which takes time and memory on long traces
    #[arg(long)]
    no_bound: bool,
    /// Regions that may be registered at once [default: no limit]
    #[arg(long, value_name = "N", value_parser = whole::<u64>(1..=u64::MAX))]
    max_regions: Option<u64>,
    /// Pages of a region; what is longer is cut [default: no limit]
    #[arg(long, value_name = "PAGES", value_parser = whole::<u64>(1..=u64::MAX))]
    max_region_pages: Option<u64>,
    /// Pages of firehose's buckets
    #[arg(long, value_name = "PAGES", default_value_t = 16, value_parser = whole::<u64>(1..=u64::MAX))]
    bucket_pages: u64,
    /// Entries of lazy's table
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = whole::<u64>(1..=u64::MAX))]
    table_entries: u64,
    /// Entries that libfabric caches
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = whole::<u64>(1..=u64::MAX))]
    cache_entries: u64,
    /// Largest share of a group's pages without a request (ogr)
    #[arg(long, value_name = "0..1", default_value_t = 0.25)]
    group_extra: f64,
    /// References back that lru-k looks
    #[arg(long, value_name = "K", default_value_t = 2, value_parser = whole::<u32>(1..=u64::from(u32::MAX)))]
    lru_k: u32,
    /// Register more than requested where that was seen to pay; policy widening does so by itself
    ///
    /// As MRRC_WIDEN=on in a cache. Results are named POLICY+widen. A policy that cannot is refused: those that cache pages, buckets
    /// or groups, that keep all or nothing, or that do not split at overlaps. Requests that give rights to peers are not widened,
    /// nor traces without addresses. A trace does not tell where mappings end: a cache widens less there.
    #[arg(long)]
    widen: bool,
}

/// More microseconds than this, over eleven days, is a slip; sums of what is far more would not be numbers.
const MOST_US: f64 = 1e12;

/// Parses the cost of registrations, in microseconds that can be added up.
pub(super) fn cost(text: &str) -> Result<Linear, String> {
    let cost: Linear = text.parse().map_err(|error: mrrc_core::cost::CostError| error.to_string())?;
    let Linear { reg_page, reg_call, dereg_page, dereg_call } = cost;
    if [reg_page, reg_call, dereg_page, dereg_call].iter().all(|us| *us <= MOST_US) {
        Ok(cost)
    } else {
        Err(format!("cost model `{text}`: more than {MOST_US:e} microseconds: give a,b,a',b' in microseconds"))
    }
}

/// The treatment of regions that a request overlaps.
#[derive(ValueEnum, Clone, Copy, Debug)]
enum OverlapRule {
    /// They stay, and the gaps between them are registered
    Split,
    /// They leave, and their union with the request is registered
    Merge,
    /// They leave, and the request is registered
    Whole,
}

/// Which cached region serves a request.
#[derive(ValueEnum, Clone, Copy, Debug)]
enum MatchRule {
    /// One that contains it
    Contain,
    /// One of the same start and length
    Exact,
}

#[derive(ValueEnum, Clone, Copy, Debug)]
enum DeregBy {
    /// Each batch
    Batch,
    /// Each region
    Region,
}

#[derive(ValueEnum, Clone, Copy, Debug)]
enum RecencyKind {
    /// At once
    Exact,
    /// Before room is made, in the order of slots
    Deferred,
}

/// Policies as the command line names them.
#[derive(Clone, Debug)]
pub(crate) struct Chosen {
    /// Whether one was named; all of them otherwise.
    pub(crate) is_named: bool,
    /// In their order.
    pub(crate) policies: Vec<PolicyEntry>,
}

/// Returns a parser of policies: one of these, or `all`.
pub(crate) fn chosen_of(
    known: Vec<PolicyEntry>,
) -> impl Fn(&str) -> Result<Chosen, UnknownPolicy> + Clone + Send + Sync + 'static {
    move |name| {
        if name == "all" {
            return Ok(Chosen { is_named: false, policies: known.clone() });
        }
        find(&known, name).map(|policy| Chosen { is_named: true, policies: vec![policy] })
    }
}

impl Choices {
    /// Returns a sweep of these policies. One that cannot be configured so is left out, with a note, unless it was
    /// named.
    pub(crate) fn sweep(&self, chosen: &[Chosen], capacities: &[Capacity], lines: bool) -> Result<Sweep, Failure> {
        let mut different: Vec<Capacity> = Vec::new();
        for capacity in capacities {
            if different.iter().any(|other| other.is_same(capacity)) {
                note(&format!("capacity {capacity} is named twice: it is taken once"));
            } else {
                different.push(capacity.clone());
            }
        }
        let mut sweep = Sweep {
            policies: Vec::new(),
            capacities: different,
            lines,
            base: self.config(),
            dereg: match self.dereg_cost {
                DeregBy::Batch => DeregCost::Batch,
                DeregBy::Region => DeregCost::Region,
            },
            recency: match self.recency {
                RecencyKind::Exact => Recency::Exact,
                RecencyKind::Deferred => Recency::Deferred,
            },
            bound: !self.no_bound,
        };
        let is_none = |policy: &PolicyEntry| policy.name() == PolicyKind::None.name();
        for Chosen { is_named, policies } in chosen {
            for policy in policies {
                // Having no cache is a line of its own there.
                if lines && is_none(policy) || sweep.policies.contains(policy) {
                    continue;
                }
                let one = Sweep { policies: vec![policy.clone()], ..sweep.clone() };
                match one.check() {
                    Ok(()) => sweep.policies.push(policy.clone()),
                    Err((_, error)) if *is_named || !matches!(error, ConfigError::Granule | ConfigError::Widen) => {
                        return Err(Failure::usage(format_args!("policy {policy}: {error}")));
                    }
                    Err((_, error)) => note(&format!("{policy} is left out: {error}")),
                }
            }
        }
        Ok(sweep)
    }

    /// Returns whether the user asked for widening: by the option, or by the name of a policy.
    pub(crate) fn asks_to_widen(&self, chosen: &[Chosen]) -> bool {
        let base = self.config();
        let names = |chosen: &Chosen| chosen.is_named && chosen.policies.iter().any(|policy| policy.widens(&base));
        self.widen || chosen.iter().any(names)
    }

    fn config(&self) -> Config {
        Config {
            resort: self.resort,
            evict: self.evict,
            overlap: self.overlap.map(|rule| match rule {
                OverlapRule::Split => Overlap::Split,
                OverlapRule::Merge => Overlap::Merge,
                OverlapRule::Whole => Overlap::Whole,
            }),
            matching: self.matching.map(|rule| match rule {
                MatchRule::Contain => Matching::Contain,
                MatchRule::Exact => Matching::Exact,
            }),
            cost: self.cost,
            max_regions: self.max_regions,
            max_region_pages: self.max_region_pages,
            bucket_pages: self.bucket_pages,
            table_entries: self.table_entries,
            cache_entries: self.cache_entries,
            group_extra: self.group_extra,
            lru_k: self.lru_k,
            widen: self.widen.then_some(true),
            ..Config::new(1)
        }
    }
}
