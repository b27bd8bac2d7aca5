//! The page of `compare`: for each trace, hits and cost against capacity, what is asked for, and the figures.

use super::chart::{Bars, Group, Lines, Look, Point, Scale, Series, Unit};
use super::page::{COINCIDENCE, bars_figure, key, lines_figure, table, wide_figure};
use super::{Page, bytes, grouped, milliseconds, percent, provenance::Provenance};
use crate::comparison::{CLOSE, OneTrace, Overall, mean};
use crate::info::{Distance, Info, Size};
use crate::row::{DeregCost, Row};
use crate::shard::Described;
use maud::{Markup, html};
use mrrc_core::cost::Linear;
use std::collections::BTreeMap;

/// Returns the page of a comparison: its results with the numbers of their cells, and what its traces are like, as far as
/// that is known, by their places.
pub fn page(study: &Described, rows: &[(usize, Row)], infos: &BTreeMap<usize, Info>, provenance: Provenance) -> Page {
    let traces = OneTrace::all(study, rows);
    let cast = Cast::of(&traces);
    let [reg_page, reg_call, dereg_page, dereg_call] = study.cost;
    let cost = Linear { reg_page, reg_call, dereg_page, dereg_call };
    let by = match study.dereg {
        DeregCost::Batch => "deregistrations are charged by the batch",
        DeregCost::Region => "each region is charged for its own deregistration",
    };
    let title = match &study.traces[..] {
        [one] => format!("Registration caches on {one}"),
        many => format!("Registration caches on {} traces", many.len()),
    };
    Page {
        title,
        lead: html! {
            p {
                "What each policy would have cost at each capacity: " (cost) " for " i { "p" } " pages; " (by) "."
            }
            p class="note" {
                "Point at a name or a line and it stands out in all plots of its trace. " (COINCIDENCE)
            }
        },
        body: html! {
            @if traces.len() > 1 { (together(&Overall::all(&traces))) }
            @for one in &traces { (section(one, &cast, infos.get(&one.trace))) }
        },
        keys: FIRST_POLICY + study.policies.len(),
        provenance,
    }
}

/// Keys of the lines beside the policies.
const NO_CACHE: usize = 0;
const INFINITE: usize = 1;
const BOUND: usize = 2;
/// The policies' come after them.
const FIRST_POLICY: usize = 3;

/// The look of each policy, alike in all sections: some policies stand out.
struct Cast<'a>(BTreeMap<&'a str, (usize, Look)>);

impl<'a> Cast<'a> {
    /// Returns the paper's two and ours, where they are, and the cheapest others; each of them has its hue.
    fn of(traces: &[OneTrace<'a>]) -> Self {
        let mut scores: BTreeMap<&'a str, f64> = BTreeMap::new();
        for one in traces {
            for (name, rows) in &one.policies {
                *scores.entry(name).or_default() += mean(rows).ln();
            }
        }
        let mut order: Vec<(&str, f64)> = scores.into_iter().collect();
        let rank = |name: &str| PAPERS.iter().position(|known| *known == name).unwrap_or(PAPERS.len());
        order.sort_by(|(a, x), (b, y)| rank(a).cmp(&rank(b)).then(x.total_cmp(y)));
        let look = |number| if number < Look::HUES { Look::Hue(number) } else { Look::Muted };
        let parts = order.into_iter().enumerate();
        Self(parts.map(|(number, (name, _))| (name, (FIRST_POLICY + number, look(number)))).collect())
    }

    fn part(&self, name: &str) -> (usize, Look) {
        self.0.get(name).copied().unwrap_or((FIRST_POLICY, Look::Muted))
    }
}

/// The paper's policy, what it is compared with there, and our own.
const PAPERS: &[&str] = &["mrrc", "pindown", "probation"];

fn section(one: &OneTrace<'_>, cast: &Cast<'_>, info: Option<&Info>) -> Markup {
    let name = one.any.map_or("", |row| row.trace.as_str());
    let id = |plot: &str| format!("{plot}-{}", one.trace);
    let hits = lines(one, cast, HITS, &|row| Some(row.hit_ratio), &percent, false);
    let cost =
        lines(one, cast, "total cost, ms", &|row| Some(row.total_us / 1000.0), &|ms| milliseconds(ms * 1000.0), true);
    let gap = lines(one, cast, GAP, &over_bound, &|times| format!("{times:.2}"), false);
    let bounded = gap.series.iter().any(|series| !series.points.is_empty());
    html! {
        section class="study" id=(id("trace")) {
            h2 { (name) }
            (facts(one, info))
            (legend(one, cast))
            div class="plots" {
                (lines_figure(&id("hits"), "Hit ratio", "Requests of which every page was registered.", &hits))
                (lines_figure(&id("cost"), "Cost", "Of all requests together. Pale lines may leave the plot.", &cost))
                @if bounded {
                    (lines_figure(&id("gap"), "Above the bound", "Cost over the lower bound, without what registers more than is asked for. Pale lines may leave the plot.", &gap))
                }
                @if let Some(info) = info {
                    (bars_figure(&id("sizes"), "Request sizes", "Requests by their pages, by power of two (the paper's Fig. 9).",
                        &sizes(&info.sizes, info.requests)))
                    (wide_figure(&id("reuse"), "Reuse distances",
                        "Requests by the pages used since the same range was: an LRU cache of more serves them.",
                        &distances(&info.reuse_distances, info.requests)))
                }
            }
            div class="tables" {
                (matrix(one, "Total cost, ms", &|row| row.total_us, &milliseconds, true))
                (matrix(one, "Hit ratio, %", &|row| row.hit_ratio, &|ratio| format!("{:.1}", 100.0 * ratio), false))
            }
        }
    }
}

/// Explains the star.
const STARRED: &str = " * registers pages that no request names: the bound of caches that do not is its yardstick, and it may \
    fall below.";

/// Every policy over all traces.
fn together(policies: &[Overall<'_>]) -> Markup {
    let Some(first) = policies.first() else { return html! {} };
    let note = format!(
        "Each of {} cells, a trace at a capacity, counts alike. The mean is geometric, as a multiple of the lowest; at worst is \
         the cell in which a policy is farthest above.{}",
        first.cells,
        if policies.iter().all(|one| one.is_bounded) { "" } else { STARRED }
    );
    let header = html! {
        th { "policy" } th { "mean cost" } th { "times the bound" } th { "at worst" } th { "over the cheapest, at worst" }
        th { "cells within " (percent(CLOSE - 1.0)) }
    };
    let times = |value: Option<f64>| value.map_or("–".into(), |value| format!("{value:.3}"));
    let star = |one: &Overall<'_>| if one.is_bounded { "" } else { "*" };
    let rows = html! {
        @for one in policies {
            tr {
                td { (one.policy) }
                td { (times(Some(one.mean))) }
                td { (star(one)) (times(one.over_bound.map(|(mean, _)| mean))) }
                td { (star(one)) (times(one.over_bound.map(|(_, most)| most))) }
                td { "+" (percent(one.over_cheapest - 1.0)) }
                td { (one.close) }
            }
        }
    };
    html! {
        section class="study" id="all-traces" {
            h2 { "All traces" }
            div class="tables" { (table("Every policy over all traces", &note, &header, &rows)) }
        }
    }
}

fn over_bound(row: &Row) -> Option<f64> {
    row.lower_bound_us.filter(|bound| *bound > 0.0).map(|bound| row.total_us / bound)
}

/// Returns the facts of the trace.
fn facts(one: &OneTrace<'_>, info: Option<&Info>) -> Markup {
    let mut facts: Vec<(&str, String)> = Vec::new();
    if let Some(row) = one.any {
        facts.push(("requests", grouped(row.requests)));
        facts.push(("pages asked for", grouped(row.pages)));
    }
    if let Some(info) = info {
        facts.push(("footprint", format!("{} pages, {}", grouped(info.footprint_pages), bytes(info.footprint_pages))));
        let share = |part: u64, all: u64| percent(part as f64 / all.max(1) as f64);
        facts.push(("different ranges", grouped(info.ranges)));
        facts.push(("of these asked for once", share(info.ranges_once, info.ranges)));
        if info.processes > 1 {
            facts.push(("processes", grouped(info.processes)));
        }
        facts.push(("read as", info.understood.clone()));
    }
    html! { dl class="facts" { @for (what, value) in facts { div { dt { (what) } dd { (value) } } } } }
}

fn legend(one: &OneTrace<'_>, cast: &Cast<'_>) -> Markup {
    let mut parts: Vec<(usize, &str, Look)> =
        one.policies.iter().map(|(name, _)| (cast.part(name).0, *name, cast.part(name).1)).collect();
    parts.sort_by_key(|(number, ..)| *number);
    let lines = [
        one.no_cache.map(|_| (NO_CACHE, "no cache", Look::NoCache)),
        one.infinite.map(|_| (INFINITE, "infinite cache", Look::Infinite)),
        (0..one.study.capacities.len()).any(|capacity| one.lower_bound_us(capacity).is_some()).then_some((
            BOUND,
            "lower bound of cost",
            Look::Bound,
        )),
    ];
    key(parts.into_iter().chain(lines.into_iter().flatten()))
}

/// Returns a value of every policy against capacity, between the lines.
fn lines(
    one: &OneTrace<'_>,
    cast: &Cast<'_>,
    label: &str,
    value: &dyn Fn(&Row) -> Option<f64>,
    show: &dyn Fn(f64) -> String,
    bound: bool,
) -> Lines {
    let capacities = || 0..one.study.capacities.len();
    let footprint = one.infinite.map(|row| row.capacity_pages);
    let x = Scale::capacities(&capacities().filter_map(|capacity| one.pages(capacity)).collect::<Vec<_>>(), footprint);
    let mut series = Vec::new();
    let reference = |key, name: &str, look, row: Option<&Row>| {
        let y = value(row?)?;
        Some(Series { key, name: name.into(), look, points: vec![Point { x: 1.0, y, title: String::new() }] })
    };
    series.extend(reference(NO_CACHE, "no cache", Look::NoCache, one.no_cache.filter(|_| label != GAP)));
    series.extend(reference(INFINITE, "infinite", Look::Infinite, one.infinite.filter(|_| label != GAP)));
    if bound {
        let point = |capacity| {
            let (x, y) = (one.pages(capacity)? as f64, one.lower_bound_us(capacity)? / 1000.0);
            Some(Point { x, y, title: format!("lower bound, {}: {}", one.study.capacities[capacity], show(y)) })
        };
        let points: Vec<Point> = sorted(capacities().filter_map(point).collect());
        series.push(Series { key: BOUND, name: "bound".into(), look: Look::Bound, points });
    }
    let mut policies: Vec<Series> = one
        .policies
        .iter()
        .map(|(name, rows)| {
            let (key, look) = cast.part(name);
            let point = |row: &&Row| {
                let y = value(row)?;
                let title = format!("{name}, {}: {}", bytes(row.capacity_pages), show(y));
                Some(Point { x: row.capacity_pages as f64, y, title })
            };
            let points = sorted(rows.iter().flatten().filter_map(point).collect());
            Series { key, name: (*name).to_owned(), look, points }
        })
        .filter(|series| !series.points.is_empty())
        .collect();
    // The ones that stand out are drawn over the others, the first over all.
    policies.sort_by_key(|series| std::cmp::Reverse(series.key));
    series.extend(policies);
    // A far-off value would leave no room for the differences. Hits are all between 0 and 1.
    let clipped = label != HITS;
    let counts = |series: &&Series| !clipped || series.look != Look::Muted;
    let values = series.iter().filter(counts).flat_map(|series| series.points.iter().map(|point| point.y));
    let unit = if label == HITS { Unit::Share } else { Unit::Number };
    let y = if label == GAP { Scale::around(label, values, unit) } else { Scale::from_zero(label, values, unit) };
    Lines { title: format!("{label} against capacity"), x, y, clipped, series }
}

/// The label of the plot of shares.
const HITS: &str = "hit ratio";
/// The label of the plot in which the bound is 1 and the lines have no place.
const GAP: &str = "times the lower bound";

fn sorted(mut points: Vec<Point>) -> Vec<Point> {
    points.sort_by(|a, b| a.x.total_cmp(&b.x));
    points
}

/// Requests by size.
fn sizes(sizes: &[Size], requests: u64) -> Bars {
    let name = |size: &Size| match *size {
        Size { from_pages, to_pages, .. } if from_pages == to_pages => grouped(to_pages),
        Size { from_pages, to_pages, .. } => format!("{}–{}", grouped(from_pages), grouped(to_pages)),
    };
    let counts = sizes.iter().map(|size| (name(size), size.requests)).collect();
    shares("Requests by size", "pages of a request", counts, requests)
}

/// Requests by how far back the last use of the same range lies.
fn distances(distances: &[Distance], requests: u64) -> Bars {
    let name = |distance: &Distance| distance.up_to_pages.map_or("first use".into(), bytes);
    let counts = distances.iter().map(|distance| (name(distance), distance.requests)).collect();
    shares("Requests by reuse distance", "used again within", counts, requests)
}

/// Shares of all requests.
fn shares(title: &str, label: &str, counts: Vec<(String, u64)>, requests: u64) -> Bars {
    let values: Vec<f64> = counts.iter().map(|(_, count)| *count as f64 / requests.max(1) as f64).collect();
    Bars {
        title: title.into(),
        label: label.into(),
        y: Scale::from_zero("of requests", values.iter().copied(), Unit::Share),
        categories: counts.into_iter().map(|(name, _)| name).collect(),
        groups: vec![Group { name: "requests".into(), look: Look::Hue(0), values }],
        show: percent,
    }
}

/// Policies down, capacities across; the best of each column stands out.
fn matrix(
    one: &OneTrace<'_>,
    title: &str,
    value: &dyn Fn(&Row) -> f64,
    show: &dyn Fn(f64) -> String,
    is_cost: bool,
) -> Markup {
    let capacities = || 0..one.study.capacities.len();
    let best: Vec<Option<f64>> = capacities()
        .map(|capacity| {
            let values = one.at(capacity).map(value);
            if is_cost { values.min_by(f64::total_cmp) } else { values.max_by(f64::total_cmp) }
        })
        .collect();
    let reference = |name: &str, cell: &dyn Fn(usize) -> Option<f64>| {
        html! {
            tr class="reference" {
                td { (name) }
                @for capacity in capacities() { td { (cell(capacity).map_or("–".into(), show)) } }
            }
        }
    };
    let header = html! {
        th { "policy" }
        @for (capacity, text) in one.study.capacities.iter().enumerate() {
            th { (text) @if let Some(pages) = one.pages(capacity) { small { (bytes(pages)) } } }
        }
    };
    let rows = html! {
        @for (name, rows) in &one.policies {
            tr {
                td { (name) }
                @for (row, best) in rows.iter().zip(&best) {
                    @let value = row.map(value);
                    td class=[(value.is_some() && value == *best).then_some("best")] { (value.map_or("–".into(), show)) }
                }
            }
        }
        @if is_cost { (reference("lower bound", &|capacity| one.lower_bound_us(capacity))) }
        (reference("infinite cache", &|_| one.infinite.map(value)))
        (reference("no cache", &|_| one.no_cache.map(value)))
    };
    let note = if is_cost { "The cheapest first, by the geometric mean of the costs." } else { "" };
    table(title, note, &header, &rows)
}
