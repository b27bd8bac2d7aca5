//! How a comparison looks: for each trace the total cost and the hit ratio of every policy at every capacity.

use super::table::{Side, ms, or_dash, pages, percent, table};
use mrrc::cost::Linear;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use tracesim::row::{DeregCost, Row};
use tracesim::shard::Described;

/// Results with the numbers of their cells, in order.
pub(super) fn report(study: &Described, rows: &[(usize, Row)]) -> String {
    let mut text = String::new();
    let mut by_trace: BTreeMap<usize, Vec<(usize, &Row)>> = BTreeMap::new();
    for (cell, row) in rows {
        by_trace.entry(cell / study.cells_each).or_default().push((cell % study.cells_each, row));
    }
    let [reg_page, reg_call, dereg_page, dereg_call] = study.cost;
    let cost = Linear { reg_page, reg_call, dereg_page, dereg_call };
    let by = if study.dereg == DeregCost::Region { ", each region by itself" } else { "" };
    for rows in by_trace.into_values() {
        let one = OneTrace::of(study, &rows);
        if !text.is_empty() {
            text.push('\n');
        }
        text += &one.heading();
        // Writing into a string does not fail.
        let _ = writeln!(text, "{cost}{by}\n");
        text += &one.matrix("total ms", |row| ms(row.total_us), true);
        text.push('\n');
        text += &one.matrix("hits", |row| percent(row.hit_ratio), false);
    }
    text
}

/// The results on a trace.
struct OneTrace<'a> {
    study: &'a Described,
    no_cache: Option<&'a Row>,
    infinite: Option<&'a Row>,
    /// By policy, the cheapest first, a result for each capacity.
    policies: Vec<(&'a str, Vec<Option<&'a Row>>)>,
    any: Option<&'a Row>,
}

impl<'a> OneTrace<'a> {
    fn of(study: &'a Described, rows: &[(usize, &'a Row)]) -> Self {
        let find = |cell: usize| rows.iter().find(|(at, _)| *at == cell).map(|(_, row)| *row);
        let lines = study.cells_each.saturating_sub(study.policies.len() * study.capacities.len());
        let results = |(at, name): (usize, &'a String)| {
            let cell = |capacity| find(lines + capacity * study.policies.len() + at);
            (name.as_str(), (0..study.capacities.len()).map(cell).collect::<Vec<_>>())
        };
        let mut policies: Vec<_> = study.policies.iter().enumerate().map(results).collect();
        policies.sort_by(|(_, a), (_, b)| mean(a).total_cmp(&mean(b)));
        let line = |at| if lines == 2 { find(at) } else { None };
        Self { study, no_cache: line(0), infinite: line(1), policies, any: rows.first().map(|(_, row)| *row) }
    }

    fn heading(&self) -> String {
        let Some(row) = self.any else { return String::new() };
        let footprint = self.infinite.map(|row| format!(", footprint {}", pages(row.capacity_pages)));
        format!("{}: {} requests for {} pages{}\n", row.trace, row.requests, row.pages, footprint.unwrap_or_default())
    }

    /// Policies down, capacities across, and the lines that any of them is measured by below.
    fn matrix(&self, what: &str, show: impl Fn(&Row) -> String, bound: bool) -> String {
        let at = |capacity: usize| self.policies.iter().filter_map(move |(_, rows)| rows[capacity]);
        let label = |(capacity, text): (usize, &String)| match at(capacity).next() {
            Some(row) => format!("{text}\n{}p", row.capacity_pages),
            None => text.clone(),
        };
        let labels = self.study.capacities.iter().enumerate().map(label);
        let header: Vec<String> = std::iter::once(what.to_owned()).chain(labels).collect();
        let header: Vec<&str> = header.iter().map(String::as_str).collect();
        let line = |name: &str, cell: &dyn Fn(usize) -> Option<String>| {
            let cells = (0..self.study.capacities.len()).map(|capacity| or_dash(cell(capacity)));
            std::iter::once(name.to_owned()).chain(cells).collect::<Vec<_>>()
        };
        let mut rows: Vec<_> =
            self.policies.iter().map(|(name, rows)| line(name, &|capacity| rows[capacity].map(&show))).collect();
        let lowest = |capacity| at(capacity).find_map(|row| row.lower_bound_us).map(ms);
        if bound {
            rows.push(line("(lower bound)", &lowest));
        }
        rows.push(line("(infinite cache)", &|_| self.infinite.map(&show)));
        rows.push(line("(no cache)", &|_| self.no_cache.map(&show)));
        table(&[Side::Left, Side::Right], &header, rows)
    }
}

/// The geometric mean of the costs; what has none stands last.
fn mean(rows: &[Option<&Row>]) -> f64 {
    let costs: Option<Vec<f64>> = rows.iter().map(|row| row.map(|row| row.total_us.max(1e-3).ln())).collect();
    match costs {
        Some(logarithms) if !logarithms.is_empty() => (logarithms.iter().sum::<f64>() / logarithms.len() as f64).exp(),
        _ => f64::INFINITY,
    }
}
