//! How a comparison looks: for each trace the total cost and the hit ratio of every policy at every capacity.

use super::table::{Side, many, ms, or_dash, pages, percent, table};
use crate::comparison::{CLOSE, OneTrace, Overall};
use crate::row::{DeregCost, Row};
use crate::shard::Described;
use mrrc_core::cost::Linear;
use std::fmt::Write as _;

/// Results with the numbers of their cells, in order.
pub(super) fn report(study: &Described, rows: &[(usize, Row)]) -> String {
    let mut text = String::new();
    let [reg_page, reg_call, dereg_page, dereg_call] = study.cost;
    let cost = Linear { reg_page, reg_call, dereg_page, dereg_call };
    let by = if study.dereg == DeregCost::Region { ", each region by itself" } else { "" };
    let traces = OneTrace::all(study, rows);
    for one in &traces {
        if !text.is_empty() {
            text.push('\n');
        }
        text += &heading(one);
        // Writing into a string does not fail.
        let _ = writeln!(text, "{cost}{by}\n");
        text += &matrix(one, "total ms", |row| ms(row.total_us), true);
        text.push('\n');
        text += &matrix(one, "hits", |row| percent(row.hit_ratio), false);
    }
    if traces.len() > 1 {
        text += &together(&Overall::all(&traces));
    }
    text
}

/// Explains the star.
const STARRED: &str = "
* registers pages that no request names. The bound of caches that do not is its yardstick, and it may fall below. Its own bound
  is that of the pages alone: `tracesim bound` with a cost of 0 for calls, as in --cost 0.77,0,0.22,0.
";

/// Every policy over all traces.
fn together(policies: &[Overall<'_>]) -> String {
    let Some(first) = policies.first() else { return String::new() };
    let within = format!("within {:.0}%", 100.0 * (CLOSE - 1.0));
    let header = ["all traces", "mean cost", "times bound", "at worst", "over the cheapest", &within];
    let line = |one: &Overall<'_>| {
        let star = if one.is_bounded { "" } else { "*" };
        let bound =
            |which: fn((f64, f64)) -> f64| or_dash(one.over_bound.map(|both| format!("{star}{:.3}", which(both))));
        vec![
            one.policy.to_owned(),
            format!("{:.3}", one.mean),
            bound(|both| both.0),
            bound(|both| both.1),
            format!("{:+.1}%", 100.0 * (one.over_cheapest - 1.0)),
            format!("{} of {}", one.close, one.cells),
        ]
    };
    let starred = if policies.iter().all(|one| one.is_bounded) { "" } else { STARRED };
    format!(
        "\nEach of {} cells, a trace at a capacity, counts alike: geometric means; then the worst of a policy over the\n\
         cheapest of all in that cell, and in how many it is close to that.\n\n{}{starred}",
        first.cells,
        table(&[Side::Left, Side::Right], &header, policies.iter().map(line))
    )
}

fn heading(one: &OneTrace<'_>) -> String {
    let Some(row) = one.any else { return String::new() };
    let (whose, processes) = match row.processes {
        Some(several) if several > 1 => (" of the largest process", format!(", {several} processes")),
        _ => ("", String::new()),
    };
    let footprint = one.infinite.map(|row| format!(", footprint{whose} {}", pages(row.capacity_pages)));
    let (requests, pages) = (many(row.requests, "request"), many(row.pages, "page"));
    format!("{}: {requests} for {pages}{processes}{}\n", row.trace, footprint.unwrap_or_default())
}

/// Policies down, capacities across, and the lines that any of them is measured by below.
fn matrix(one: &OneTrace<'_>, what: &str, show: impl Fn(&Row) -> String, bound: bool) -> String {
    let label = |(capacity, text): (usize, &String)| match one.pages(capacity) {
        Some(pages) => format!("{text}\n{pages}p"),
        None => text.clone(),
    };
    let labels = one.study.capacities.iter().enumerate().map(label);
    let header: Vec<String> = std::iter::once(what.to_owned()).chain(labels).collect();
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let line = |name: &str, cell: &dyn Fn(usize) -> Option<String>| {
        let cells = (0..one.study.capacities.len()).map(|capacity| or_dash(cell(capacity)));
        std::iter::once(name.to_owned()).chain(cells).collect::<Vec<_>>()
    };
    let mut rows: Vec<_> =
        one.policies.iter().map(|(name, rows)| line(name, &|capacity| rows[capacity].map(&show))).collect();
    let lowest = |capacity| one.lower_bound_us(capacity).map(ms);
    if bound {
        rows.push(line("(lower bound)", &lowest));
    }
    rows.push(line("(infinite cache)", &|_| one.infinite.map(&show)));
    rows.push(line("(no cache)", &|_| one.no_cache.map(&show)));
    table(&[Side::Left, Side::Right], &header, rows)
}
