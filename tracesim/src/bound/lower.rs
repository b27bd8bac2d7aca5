//! The lower bound of the cost of any cache. The argument is in the [module](super) above.

use super::knapsack::{Items, Knapsack};
use super::living::Living;
use crate::last_use::LastUse;
use mrrc_core::PageRange;
use mrrc_core::cost::Linear;
use smallvec::SmallVec;
use std::sync::atomic::{AtomicBool, Ordering};
use traces::{Kind, Process, Trace};

/// Returns the least that serving a trace can cost, in microseconds, at each capacity, in pages: every process has a
/// cache of that capacity. See the [module](super) for the policies that it holds for.
pub fn lower(trace: &Trace, capacities_pages: &[u64], costs: &Linear) -> Vec<f64> {
    lower_until(trace, capacities_pages, costs, &NEVER).unwrap_or_default()
}

/// Returns the same as [`lower`], or none soon after `stop` was set.
pub fn lower_until(trace: &Trace, capacities_pages: &[u64], costs: &Linear, stop: &AtomicBool) -> Option<Vec<f64>> {
    // Many policies have the same capacities.
    let mut distinct = capacities_pages.to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    let mut totals = vec![0.0; distinct.len()];
    for process in &trace.processes {
        let bounds = Bound::until(process, costs, stop)?.at(&distinct);
        totals.iter_mut().zip(bounds).for_each(|(total, bound)| *total += bound);
    }
    let total = |capacity| distinct.binary_search(capacity).map_or(0.0, |at| totals[at]);
    Some(capacities_pages.iter().map(total).collect())
}

/// Is not set.
pub(super) static NEVER: AtomicBool = AtomicBool::new(false);

/// Steps whose last uses are looked up at once, before they are used. Between them it may be stopped.
const AHEAD: usize = 64;

/// Everything about a process that any capacity needs.
pub(super) struct Bound {
    /// The cost of finding nothing, ever, and deregistering everything.
    no_cache: f64,
    saved: Knapsack,
    living: Living,
    /// The most pages that can be registered when the trace ends.
    last_pages: u64,
    dereg_page: f64,
}

impl Bound {
    /// Returns none soon after `stop` was set.
    pub(super) fn until(process: &Process, costs: &Linear, stop: &AtomicBool) -> Option<Self> {
        let asks = |kind| matches!(kind, Kind::Request | Kind::Acquire);
        let mut items = Items::default();
        let mut living = Living::new(process.steps.iter().filter(|step| asks(step.kind())).count() as u64);
        let mut uses: LastUse<u64> = LastUse::default();
        let mut found: Found = SmallVec::new();
        let (mut now, mut pages, mut new_pages, mut holds) = (0, 0.0, 0, false);
        for (at, step) in process.steps.iter().enumerate() {
            if at.is_multiple_of(AHEAD) {
                if stop.load(Ordering::Relaxed) {
                    return None;
                }
                let next = process.steps.range(at..process.steps.len().min(at + AHEAD));
                uses.prepare(next.map(|step| step.range()));
            }
            let range = step.range();
            match step.kind() {
                Kind::Invalidate => {
                    uses.take(range, |_, _| {});
                    continue;
                }
                Kind::Release => continue,
                Kind::Acquire => holds = true,
                Kind::Request => {}
            }
            let new = waits_of(range, now, &mut uses, &mut living, &mut found);
            add_items(&mut found, new == 0, costs, &mut items);
            new_pages += new;
            pages += range.pages() as f64;
            now += 1;
        }
        Some(Self {
            no_cache: (costs.reg_page + costs.dereg_page) * pages + costs.reg_call * now as f64,
            saved: items.sorted(),
            living,
            // A range that was invalidated while in use may still be registered, beside its replacement.
            last_pages: if holds { new_pages } else { uses.pages() },
            dereg_page: costs.dereg_page,
        })
    }

    /// Returns the saving of holding one page for one more request, in a cache of this capacity.
    pub(super) fn price_at(&self, capacity: u64) -> f64 {
        self.saved.price_at(self.living.usable(capacity))
    }

    /// Returns the bound at each of these capacities.
    fn at(&self, capacities: &[u64]) -> Vec<f64> {
        let bound = |(&capacity, usable): (&u64, f64)| {
            let never_deregistered = self.dereg_page * self.last_pages.min(capacity) as f64;
            self.no_cache - self.saved.value_in(usable) - never_deregistered
        };
        capacities.iter().zip(self.living.usable_by(capacities)).map(bound).collect()
    }
}

/// Runs of pages of one request: how many, and how many requests ago they were last used.
type Found = SmallVec<[(u64, u64); 8]>;

/// Uses the pages at this time. Leaves what was used before in `found`; the pages that were not, it counts.
#[inline]
fn waits_of(range: PageRange, now: u64, uses: &mut LastUse<u64>, living: &mut Living, found: &mut Found) -> u64 {
    let mut new_pages = 0;
    found.clear();
    uses.put(range, now, |pages, before| match before {
        Some(before) => {
            living.wait(pages, before, now);
            found.push((pages, now - before));
        }
        None => new_pages += pages,
    });
    new_pages
}

/// Adds what finding each run saves. The call is saved only if all are found: the runs of the least density share it,
/// as many as it lifts to one level.
#[inline]
fn add_items(found: &mut Found, is_all: bool, costs: &Linear, items: &mut Items) {
    let page = costs.reg_page + costs.dereg_page;
    if !is_all {
        found.iter().for_each(|&(pages, age)| items.add(page * pages as f64, pages as f64 * age as f64));
        return;
    }
    found.sort_unstable_by_key(|&(_, age)| std::cmp::Reverse(age));
    let (mut value, mut volume) = (costs.reg_call, 0.0);
    let mut runs = found.iter().map(|&(pages, age)| (page * pages as f64, pages as f64 * age as f64)).peekable();
    while let Some((more, room)) = runs.next_if(|(more, room)| volume == 0.0 || more * volume < value * room) {
        value += more;
        volume += room;
    }
    items.add(value, volume);
    runs.for_each(|(value, volume)| items.add(value, volume));
}

#[cfg(test)]
mod tests {
    use super::*;
    use mrrc_core::Access;
    use traces::Step;

    #[test]
    fn a_stopped_bound_is_none() {
        let step = |page: u64| Step::new(Kind::Request, PageRange::new(page % 300, 1).unwrap(), Access::LOCAL, false);
        let steps: Vec<Step> = (0..5000).map(step).collect();
        let trace = Trace { processes: vec![Process { steps: steps.into() }], ..Trace::default() };
        let [go, stop] = [false, true].map(AtomicBool::new);
        let until = |stop| lower_until(&trace, &[10, 20], &Linear::PAPER, stop);
        assert_eq!(until(&go), Some(lower(&trace, &[10, 20], &Linear::PAPER)));
        assert_eq!(until(&stop), None);
    }
}
