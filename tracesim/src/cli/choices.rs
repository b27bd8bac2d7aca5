//! What a cache is told: the options that `replay` and `compare` share.

use super::failure::{Failure, note};
use crate::row::DeregCost;
use crate::simulate::Recency;
use crate::sizes::Capacity;
use crate::study::Study;
use clap::ValueEnum;
use mrrc::Config;
use mrrc::cost::Linear;
use mrrc::policy::{Matching, Overlap, PolicyKind};

/// What every cache is told.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Caches")]
pub(crate) struct Choices {
    /// Share of the capacity that the resorting section is filled up to
    #[arg(long, value_name = "0..1", default_value_t = 0.5)]
    resort: f64,
    /// Share of the capacity that leaves at a time
    #[arg(long, value_name = "0..1", default_value_t = 0.1)]
    evict: f64,
    /// What becomes of regions that a request overlaps [default: as the policy has it]
    #[arg(long, value_name = "RULE")]
    overlap: Option<OverlapRule>,
    /// Which cached region serves a request [default: as the policy has it]
    #[arg(long = "match", value_name = "RULE")]
    matching: Option<MatchRule>,
    /// What registrations cost: paper, fmr, io-uring, or a,b,a',b' in microseconds (a page, a registration, a page's
    /// deregistration, a batch)
    #[arg(long, value_name = "MODEL", default_value = "paper", value_parser = cost)]
    cost: Linear,
    /// What is charged b' when regions are deregistered; region is the paper's formula (1)
    #[arg(long, value_name = "BY", default_value = "batch")]
    dereg_cost: DeregBy,
    /// When the policy hears of hits: at once, or before room is made, as in the cache of many threads
    #[arg(long, value_name = "WHEN", default_value = "exact")]
    recency: RecencyKind,
    /// Leave out the lower bound, which takes time and memory on long traces
    #[arg(long)]
    no_bound: bool,
    /// Regions that may be registered at once [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max_regions: Option<u64>,
    /// Pages of a region; what is longer is cut [default: no limit]
    #[arg(long, value_name = "PAGES", value_parser = clap::value_parser!(u64).range(1..))]
    max_region_pages: Option<u64>,
    /// Pages of firehose's buckets
    #[arg(long, value_name = "PAGES", default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..))]
    bucket_pages: u64,
    /// Entries of lazy's table
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u64).range(1..))]
    table_entries: u64,
    /// Entries that libfabric caches
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(1..))]
    cache_entries: u64,
    /// Share of a group's pages that nobody asked for, at most (ogr)
    #[arg(long, value_name = "0..1", default_value_t = 0.25)]
    group_extra: f64,
    /// References back that lru-k looks
    #[arg(long, value_name = "K", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    lru_k: u32,
}

/// More microseconds than this, over eleven days, is a slip; sums of what is far more would not be numbers.
const MOST_US: f64 = 1e12;

/// What registrations cost, in microseconds that can be added up.
pub(super) fn cost(text: &str) -> Result<Linear, String> {
    let cost: Linear = text.parse().map_err(|error: mrrc::cost::CostError| error.to_string())?;
    let Linear { reg_page, reg_call, dereg_page, dereg_call } = cost;
    if [reg_page, reg_call, dereg_page, dereg_call].iter().all(|us| *us <= MOST_US) {
        Ok(cost)
    } else {
        Err(format!("cost model `{text}`: more than {MOST_US:e} microseconds: give a,b,a',b' in microseconds"))
    }
}

/// What becomes of regions that a request overlaps.
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
    Folded,
}

/// Policies as the command line names them.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Who {
    /// All of them.
    All,
    /// One.
    One(PolicyKind),
}

impl std::str::FromStr for Who {
    type Err = mrrc::ConfigError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        if name == "all" { Ok(Self::All) } else { name.parse().map(Self::One) }
    }
}

impl Choices {
    /// A study of these policies. One that cannot be configured so is left out, with a note, unless it was named.
    pub(crate) fn study(&self, who: &[Who], capacities: &[Capacity], lines: bool) -> Result<Study, Failure> {
        let mut study = Study {
            policies: Vec::new(),
            capacities: capacities.to_vec(),
            lines,
            base: self.config(),
            dereg: match self.dereg_cost {
                DeregBy::Batch => DeregCost::Batch,
                DeregBy::Region => DeregCost::Region,
            },
            recency: match self.recency {
                RecencyKind::Exact => Recency::Exact,
                RecencyKind::Folded => Recency::Folded,
            },
            bound: !self.no_bound,
        };
        for who in who {
            let (named, policies) = match who {
                Who::One(policy) => (true, std::slice::from_ref(policy)),
                Who::All => (false, PolicyKind::ALL),
            };
            for &policy in policies {
                // It is a line of its own there.
                let is_line = lines && policy == PolicyKind::None;
                if is_line || study.policies.contains(&policy) {
                    continue;
                }
                let one = Study { policies: vec![policy], ..study.clone() };
                match one.check() {
                    Ok(()) => study.policies.push(policy),
                    Err((_, error)) if named || !matches!(error, mrrc::ConfigError::Granule) => {
                        return Err(Failure::usage(format_args!("policy {policy}: {error}")));
                    }
                    Err((_, error)) => note(&format!("{policy} is left out: {error}")),
                }
            }
        }
        Ok(study)
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
            ..Config::new(1)
        }
    }
}
