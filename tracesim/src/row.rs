//! One result: a policy at a capacity on a trace.

use crate::replayer::Replayed;
use mrrc_core::cost::Linear;
use serde::{Deserialize, Serialize};

pub use crate::replayer::DeregCost;

/// One result, with the fields and the order of `--json`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Row {
    /// The trace's name.
    pub trace: String,
    /// The policy's name.
    pub policy: String,
    /// Pages that may be registered at once.
    pub capacity_pages: u64,
    /// The resorting section's share of the capacity.
    pub resort: f64,
    /// A batch's share of the capacity.
    pub evict: f64,
    /// Requests.
    pub requests: u64,
    /// Requests that were a cached region.
    pub exact: u64,
    /// Requests inside one.
    pub subset: u64,
    /// Requests that several cover.
    pub covered: u64,
    /// Requests of which some is cached.
    pub partial: u64,
    /// Requests of which nothing is.
    pub miss: u64,
    /// Requests registered for themselves alone.
    pub bypass: u64,
    /// Registrations.
    pub regs: u64,
    /// Pages registered.
    pub reg_pages: u64,
    /// Regions deregistered.
    pub deregs: u64,
    /// Pages deregistered.
    pub dereg_pages: u64,
    /// Deregistration operations.
    pub dereg_batches: u64,
    /// Pages asked for.
    pub pages: u64,
    /// Pages asked for that were cached.
    pub hit_pages: u64,
    /// `exact + subset + covered`.
    pub hits: u64,
    /// `hits / requests`.
    pub hit_ratio: f64,
    /// `hit_pages / pages`.
    pub page_hit_ratio: f64,
    /// Microseconds of registrations.
    pub reg_us: f64,
    /// Microseconds of deregistrations.
    pub dereg_us: f64,
    /// Both.
    pub total_us: f64,
    /// The cost that no cache of this capacity goes below; none where the bound does not hold.
    pub lower_bound_us: Option<f64>,
    /// Processes of the trace, where there are several: each has a cache of that capacity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<usize>,
    /// Requests that found everything in use. They are in the costs, as what they cost without a cache. None stands for 0 where no
    /// other result beside this one has any: see [`level`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<u64>,
}

/// The parts of a row besides counts.
#[derive(Clone, PartialEq, Debug)]
pub struct Label<'a> {
    /// The trace's name.
    pub trace: &'a str,
    /// The policy's.
    pub policy: &'a str,
    /// Pages.
    pub capacity_pages: u64,
    /// The resorting section's share.
    pub resort: f64,
    /// A batch's.
    pub evict: f64,
}

impl Row {
    /// Returns a row of the counts, with their price.
    pub fn new(label: &Label<'_>, replayed: &Replayed, cost: &Linear, dereg: DeregCost) -> Self {
        let c = &replayed.counters;
        let cost = replayed.cost(cost, dereg);
        Self {
            trace: label.trace.to_owned(),
            policy: label.policy.to_owned(),
            capacity_pages: label.capacity_pages,
            resort: label.resort,
            evict: label.evict,
            requests: c.requests,
            exact: c.exact,
            subset: c.subset,
            covered: c.covered,
            partial: c.partial,
            miss: c.miss,
            bypass: c.bypass,
            regs: c.regs,
            reg_pages: c.reg_pages,
            deregs: c.deregs,
            dereg_pages: c.dereg_pages,
            dereg_batches: c.dereg_batches,
            pages: c.pages,
            hit_pages: c.hit_pages,
            hits: c.hits(),
            hit_ratio: c.hit_ratio(),
            page_hit_ratio: c.page_hit_ratio(),
            reg_us: cost.reg_us,
            dereg_us: cost.dereg_us,
            total_us: cost.total_us(),
            lower_bound_us: None,
            processes: None,
            refused: Some(c.all_in_use).filter(|&refused| refused > 0),
        }
    }
}

/// Results that stand in one table have the same columns: either all say how many requests were refused, or of how many processes
/// they are, or none does.
pub fn level(rows: &mut [Row]) {
    if rows.iter().any(|row| row.processes.is_some()) {
        rows.iter_mut().for_each(|row| _ = row.processes.get_or_insert(1));
    }
    if rows.iter().any(|row| row.refused.is_some()) {
        rows.iter_mut().for_each(|row| _ = row.refused.get_or_insert(0));
    }
}
