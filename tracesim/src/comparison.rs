//! The results of a comparison, trace by trace: each policy at each capacity, the cheapest first.

use crate::row::Row;
use crate::shard::Described;
use std::collections::BTreeMap;

/// The results on a trace.
#[derive(Clone, Debug)]
pub struct OneTrace<'a> {
    /// Its place in [`Described::traces`].
    pub trace: usize,
    /// The compared study.
    pub study: &'a Described,
    /// No cache.
    pub no_cache: Option<&'a Row>,
    /// A cache in which everything stays.
    pub infinite: Option<&'a Row>,
    /// By policy, the cheapest first, a result for each capacity.
    pub policies: Vec<(&'a str, Vec<Option<&'a Row>>)>,
    /// Any of them.
    pub any: Option<&'a Row>,
}

impl<'a> OneTrace<'a> {
    /// Returns the traces of which there are results, from results with the numbers of their cells.
    pub fn all(study: &'a Described, rows: &'a [(usize, Row)]) -> Vec<Self> {
        let mut by_trace: BTreeMap<usize, Vec<(usize, &Row)>> = BTreeMap::new();
        for (cell, row) in rows {
            by_trace.entry(cell / study.cells_each).or_default().push((cell % study.cells_each, row));
        }
        by_trace.into_iter().map(|(trace, rows)| Self::of(study, trace, &rows)).collect()
    }

    fn of(study: &'a Described, trace: usize, rows: &[(usize, &'a Row)]) -> Self {
        let find = |cell: usize| rows.iter().find(|(at, _)| *at == cell).map(|(_, row)| *row);
        let lines = study.cells_each.saturating_sub(study.policies.len() * study.capacities.len());
        let results = |(at, name): (usize, &'a String)| {
            let cell = |capacity| find(lines + capacity * study.policies.len() + at);
            (name.as_str(), (0..study.capacities.len()).map(cell).collect::<Vec<_>>())
        };
        let mut policies: Vec<_> = study.policies.iter().enumerate().map(results).collect();
        policies.sort_by(|(_, a), (_, b)| mean(a).total_cmp(&mean(b)));
        let line = |at| if lines == 2 { find(at) } else { None };
        Self { trace, study, no_cache: line(0), infinite: line(1), policies, any: rows.first().map(|(_, row)| *row) }
    }

    /// Returns the results at the capacity of that place.
    pub fn at(&self, capacity: usize) -> impl Iterator<Item = &'a Row> + use<'a, '_> {
        self.policies.iter().filter_map(move |(_, rows)| rows[capacity])
    }

    /// Returns the pages of the capacity of that place, if there is a result.
    pub fn pages(&self, capacity: usize) -> Option<u64> {
        self.at(capacity).next().map(|row| row.capacity_pages)
    }

    /// Returns the cost that no cache of the capacity of that place goes below.
    pub fn lower_bound_us(&self, capacity: usize) -> Option<f64> {
        self.at(capacity).find_map(|row| row.lower_bound_us)
    }
}

/// Returns the geometric mean of the costs; what has none stands last.
pub fn mean(rows: &[Option<&Row>]) -> f64 {
    let costs: Option<Vec<f64>> = rows.iter().map(|row| row.map(cost)).collect();
    costs.and_then(|costs| geometric(&costs)).unwrap_or(f64::INFINITY)
}

/// Returns the cost by which a result is compared: never zero, because ratios have no place for it.
fn cost(row: &Row) -> f64 {
    row.total_us.max(1e-3)
}

fn geometric(values: &[f64]) -> Option<f64> {
    let logarithms: f64 = values.iter().map(|value| value.ln()).sum();
    (!values.is_empty()).then(|| (logarithms / values.len() as f64).exp())
}

/// More over the cheapest than this is more than a policy for all purposes may cost anywhere.
pub const CLOSE: f64 = 1.03;

/// A policy over all traces and capacities, which count alike.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Overall<'a> {
    /// Its name.
    pub policy: &'a str,
    /// Traces times capacities.
    pub cells: usize,
    /// The geometric mean of its costs, as a multiple of the lowest one of a policy.
    pub mean: f64,
    /// Its costs as multiples of the lower bound: the geometric mean and the most. None where there is no bound.
    pub over_bound: Option<(f64, f64)>,
    /// Whether the bound holds for it. It registers pages that no request names otherwise, and can fall below it.
    pub is_bounded: bool,
    /// Its cost where it is worst, as a multiple of the cheapest policy's there.
    pub over_cheapest: f64,
    /// The cells in which it costs no more than [`CLOSE`] times the cheapest.
    pub close: usize,
}

impl<'a> Overall<'a> {
    /// Returns the policies that have a result in every cell, the cheapest first.
    pub fn all(traces: &[OneTrace<'a>]) -> Vec<Self> {
        let Some(first) = traces.first() else { return Vec::new() };
        let capacities = first.study.capacities.len();
        let cells = traces.len() * capacities;
        let cheapest: Vec<f64> = traces
            .iter()
            .flat_map(|one| (0..capacities).map(|at| one.at(at).map(cost).fold(f64::INFINITY, f64::min)))
            .collect();
        let lowest: Vec<Option<f64>> =
            traces.iter().flat_map(|one| (0..capacities).map(|at| one.lower_bound_us(at))).collect();
        let of = |policy: &'a str| {
            let rows = traces.iter().filter_map(|one| one.policies.iter().find(|(name, _)| *name == policy));
            let rows: Vec<&Row> = rows.flat_map(|(_, rows)| rows.iter().copied().flatten()).collect();
            let costs: Vec<f64> = rows.iter().copied().map(cost).collect();
            let mean = geometric(&costs).filter(|_| rows.len() == cells)?;
            let over =
                |(cost, bound): (&f64, &Option<f64>)| bound.filter(|bound| *bound > 0.0).map(|bound| cost / bound);
            let bounds: Option<Vec<f64>> = costs.iter().zip(&lowest).map(over).collect();
            let over_bound =
                bounds.and_then(|over| geometric(&over).map(|mean| (mean, over.iter().copied().fold(0.0, f64::max))));
            let over: Vec<f64> = costs.iter().zip(&cheapest).map(|(cost, least)| cost / least).collect();
            Some(Self {
                policy,
                cells,
                mean,
                over_bound,
                is_bounded: rows.iter().all(|row| row.lower_bound_us.is_some()),
                over_cheapest: over.iter().copied().fold(1.0, f64::max),
                close: over.iter().filter(|over| **over <= CLOSE).count(),
            })
        };
        let mut all: Vec<Self> = first.policies.iter().filter_map(|(name, _)| of(name)).collect();
        all.sort_by(|a, b| a.mean.total_cmp(&b.mean));
        let lowest = all.first().map_or(1.0, |one| one.mean);
        all.iter_mut().for_each(|one| one.mean /= lowest);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::{DeregCost, Label};

    fn study() -> Described {
        let [traces, policies, capacities] =
            [["t", "u"], ["a", "b"], ["1%", "2%"]].map(|names| names.map(Into::into).into());
        let dereg = DeregCost::Batch;
        Described { traces, policies, capacities, cells_each: 4, cost: [1.0; 4], dereg, choices: String::new() }
    }

    fn row(policy: &str, total_us: f64, lower_bound_us: Option<f64>) -> Row {
        let label = Label { trace: "t", policy, capacity_pages: 1, resort: 0.5, evict: 0.1 };
        let cost = mrrc_core::cost::Linear::PAPER;
        let row = Row::new(&label, &crate::simulate::Replayed::default(), &cost, DeregCost::Batch);
        Row { total_us, lower_bound_us, ..row }
    }

    #[test]
    fn overall_ranks_by_mean_and_worst() {
        // Each trace's rows: a and b at the first capacity, then at the second.
        let costs = [[100.0, 200.0, 102.0, 100.0], [400.0, 100.0, 100.0, 100.0]];
        let cell = |at: usize| {
            let (policy, bound) = if at.is_multiple_of(2) { ("a", Some(50.0)) } else { ("b", None) };
            (at, row(policy, costs[at / 4][at % 4], bound))
        };
        let (study, rows): (_, Vec<_>) = (study(), (0..8).map(cell).collect());
        let all = Overall::all(&OneTrace::all(&study, &rows));
        assert_eq!(all.iter().map(|one| one.policy).collect::<Vec<_>>(), ["b", "a"]);
        let [b, a] = all[..] else { panic!("{all:?}") };
        let mean = (1.0f64 * 1.02 * 4.0 * 1.0).powf(0.25);
        assert_eq!((b.mean, b.cells, b.is_bounded, b.over_cheapest, b.close), (1.0, 4, false, 2.0, 3));
        let (over, most) = b.over_bound.expect("the other's bound is its yardstick");
        assert!((over - 2.0 * 2f64.powf(0.25)).abs() < 1e-9 && most == 4.0, "{b:?}");
        assert!(a.is_bounded);
        assert_eq!((a.cells, a.over_cheapest, a.close), (4, 4.0, 3));
        assert!((a.mean - mean / 2f64.powf(0.25)).abs() < 1e-9, "{a:?}");
        let (over, most) = a.over_bound.expect("it has a bound everywhere");
        assert!((over - 2.0 * mean).abs() < 1e-9 && most == 8.0, "{a:?}");
        let some = Overall::all(&OneTrace::all(&study, &rows[..7]));
        assert_eq!(some.iter().map(|one| one.policy).collect::<Vec<_>>(), ["a"], "b is not finished");
    }
}
