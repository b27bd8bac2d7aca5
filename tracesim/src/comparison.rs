//! The results of a comparison, trace by trace: each policy at each capacity, the cheapest first.

use crate::row::Row;
use crate::shard::Described;
use std::collections::BTreeMap;

/// The results on a trace.
#[derive(Clone, Debug)]
pub struct OneTrace<'a> {
    /// Its place in [`Described::traces`].
    pub trace: usize,
    /// What was compared.
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
    /// The traces of which there are results, from results with the numbers of their cells.
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

    /// The results at the capacity of that place.
    pub fn at(&self, capacity: usize) -> impl Iterator<Item = &'a Row> + use<'a, '_> {
        self.policies.iter().filter_map(move |(_, rows)| rows[capacity])
    }

    /// The pages of the capacity of that place, if there is a result.
    pub fn pages(&self, capacity: usize) -> Option<u64> {
        self.at(capacity).next().map(|row| row.capacity_pages)
    }

    /// What no cache of the capacity of that place goes below.
    pub fn lower_bound_us(&self, capacity: usize) -> Option<f64> {
        self.at(capacity).find_map(|row| row.lower_bound_us)
    }
}

/// The geometric mean of the costs; what has none stands last.
pub fn mean(rows: &[Option<&Row>]) -> f64 {
    let costs: Option<Vec<f64>> = rows.iter().map(|row| row.map(|row| row.total_us.max(1e-3).ln())).collect();
    match costs {
        Some(logarithms) if !logarithms.is_empty() => (logarithms.iter().sum::<f64>() / logarithms.len() as f64).exp(),
        _ => f64::INFINITY,
    }
}
