//! A sweep as a page: one HTML file that needs no network, no script and no other file, light or dark as the reader has it.

mod axis;
mod bars;
mod lines;

use std::collections::BTreeSet;

use hdrhistogram::Histogram;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::remarks;
use crate::report::Report;
use crate::sweep::{Moment, Stage, Sweep};
use crate::tally::Kind;
use axis::{Axis, Unit, nines_of};
use bars::{Bar, Bars, Width};
use lines::{Lines, Series};

const STYLE: &str = include_str!("style.css");
/// Lines of one plot at most: as many as there are hues.
const HUES: usize = 8;

/// Returns the sweep as a page of HTML, with curves.
pub fn html(sweep: &Sweep) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="generator" content={ "rdmakv-bench " (env!("CARGO_PKG_VERSION")) };
                title { (sweep.title) }
                // Our own text.
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    h1 { (sweep.title) }
                    (lead(sweep))
                    @if let [only] = &sweep.stages[..] { (facts(&only.report)) }
                    (said(sweep))
                }
                main {
                    @for figures in sections(sweep) { (figures) }
                    h2 { "Figures" }
                    (table(sweep))
                }
                footer {
                    p { "Made by rdmakv-bench " (env!("CARGO_PKG_VERSION")) " with this command:" }
                    pre { (sweep.command_line) }
                    p {
                        "Latencies of an open loop count from when a request was to start. CPU times are the server's process's own, divided \
                         by the operations that ended in the time that counts."
                    }
                }
            }
        }
    };
    page.into_string() + "\n"
}

fn lead(sweep: &Sweep) -> Markup {
    let good = sweep.why_not_good().is_none();
    let servers: BTreeSet<&str> = sweep.stages.iter().map(|stage| stage.report.target.as_str()).collect();
    let first = sweep.stages.first().map(|stage| &stage.report);
    html! {
        p class="lead" {
            @if let Some(report) = first {
                (servers.into_iter().collect::<Vec<_>>().join(", ")) " (" (report.protocol) "), "
                (report.threads) " thread(s), " (report.connections) " connections, "
                @match (report.depth, report.schedule.and_then(|kept| kept.wanted)) {
                    (None, Some(wanted)) => { "open loop, " (Unit::Count.text(wanted)) " requests a second" }
                    (None, None) => { "open loop" }
                    (Some(_), _) => { "closed loop" }
                }
            }
        }
        @if let [only] = &sweep.stages[..] {
            p class="lead" { (only.report.traffic) "; keys: " (only.report.keys) "; values of " (only.report.sizes) " bytes" }
        }
        p class={ "verdict " (if good { "good" } else { "bad" }) } {
            @if good { "Valid: all ran to the end, and schedules were kept." } @else { "Not to be used as it stands: see below." }
        }
    }
}

/// Returns the most important figures of one run.
fn facts(report: &Report) -> Markup {
    let main = report.latencies.iter().next();
    html! {
        dl class="facts" {
            div { dt { "operations a second" } dd { (Unit::Count.text(report.rate)) } }
            div { dt { "traffic" } dd { (Unit::Count.text(report.megabytes())) small { " MB/s" } } }
            @if let Some((kind, summary)) = main {
                div { dt { (kind.name()) " median" } dd { (Unit::Time.text(summary.p50)) } }
                div { dt { (kind.name()) " 99 %" } dd { (Unit::Time.text(summary.p99)) } }
            }
            @if let Some(server) = &report.server {
                div {
                    dt { "server's CPU an operation" }
                    dd {
                        (Unit::Time.text(server.ns() / 1e3))
                        small { " (" (Unit::Time.text(server.user_ns / 1e3)) " user)" }
                    }
                }
            }
            @if report.hits + report.misses > 0 {
                div { dt { "GETs that hit" } dd { (percent(report.hits as f64 / (report.hits + report.misses) as f64)) } }
            }
            @if let Some(kept) = &report.schedule {
                div { dt { "started late, 99 %" } dd { (Unit::Time.text(kept.late_p99)) } }
            }
        }
    }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// Returns the remarks.
fn said(sweep: &Sweep) -> Markup {
    let alone = sweep.stages.len() == 1;
    html! {
        ul class="said" {
            @for (whose, note) in remarks::of_sweep(sweep) {
                @let bad = ["INVALID", "ENDED", "WRONG"].iter().any(|word| note.starts_with(word));
                li class=[bad.then_some("bad")] { @if !alone { b { (whose) ": " } } (note) }
            }
            @if let Some(why) = &sweep.failed { li class="bad" { b { "There were no more runs: " } (why) } }
        }
    }
}

/// Stages that belong in one plot, in groups.
fn sections(sweep: &Sweep) -> Vec<Markup> {
    let mut groups: Vec<(&str, Vec<&Stage>)> = Vec::new();
    for stage in &sweep.stages {
        match groups.iter_mut().find(|(name, _)| *name == stage.group) {
            Some((_, stages)) => stages.push(stage),
            None => groups.push((&stage.group, vec![stage])),
        }
    }
    let servers = sweep.has_servers();
    groups
        .into_iter()
        .map(|(name, stages)| {
            let lines = [
                percentiles(&stages, servers),
                over_time(&stages, servers, Over::Latency),
                over_time(&stages, servers, Over::Rate),
                cpu_over_time(&stages),
            ];
            let mut lines = lines.into_iter().flatten();
            let first = lines.next();
            let lines: Vec<Markup> = lines.collect();
            // One bar plot below all others, or those that there are in the second place.
            let wide = stages.len() == 1 && !lines.is_empty();
            let bars: Vec<Markup> =
                [cpu(&stages, servers, wide), rates(&stages, servers)].into_iter().flatten().collect();
            html! {
                section {
                    @if !name.is_empty() { h2 { (name) } } @else { h2 { "Curves" } }
                    div class="plots" {
                        @if let Some(first) = first { (first) }
                        @if !wide { div class="stack" { @for figure in &bars { (figure) } } }
                        @for figure in lines { (figure) }
                        @if wide { @for figure in &bars { (figure) } }
                    }
                }
            }
        })
        .collect()
}

fn figure(title: &str, note: &str, plot: &Markup) -> Markup {
    framed(title, note, plot, false)
}

fn framed(title: &str, note: &str, plot: &Markup, wide: bool) -> Markup {
    html! { figure class=[wide.then_some("wide")] { figcaption { h3 { (title) } p { (note) } } div class="scroll" { (plot) } } }
}

/// Lines of a plot: each stage's kinds if they are few, else the first kind of each stage.
fn curves<'a>(stages: &[&'a Stage], servers: bool) -> Vec<(String, &'a Histogram<u64>)> {
    let kinds =
        |stage: &'a Stage| Kind::ALL.into_iter().filter_map(|kind| Some((kind, stage.report.histograms.of(kind)?)));
    let all: usize = stages.iter().map(|stage| kinds(stage).count()).sum();
    let alone = stages.len() == 1;
    let name = |stage: &Stage, kind: Kind, many: bool| match (alone, many) {
        (true, _) => kind.name().to_owned(),
        (false, true) => format!("{} {}", stage.short(servers), kind.name()),
        (false, false) => stage.short(servers),
    };
    let several = stages.iter().any(|stage| kinds(stage).count() > 1);
    let taken = stages.iter().flat_map(|stage| {
        let least = if all <= HUES { usize::MAX } else { 1 };
        let many = several && all <= HUES;
        kinds(stage).take(least).map(move |(kind, histogram)| (name(stage, kind, many), histogram))
    });
    taken.take(HUES).collect()
}

fn percentiles(stages: &[&Stage], servers: bool) -> Option<Markup> {
    let curves = curves(stages, servers);
    let count = curves.iter().map(|(_, histogram)| histogram.len()).max()?;
    let series: Vec<Series> = curves
        .iter()
        .enumerate()
        .map(|(hue, (name, histogram))| {
            // Twenty points to each nine, up to the last request there is.
            let nines = (histogram.len() as f64).log10();
            let steps = (nines * 20.0).ceil() as u32;
            let quantile = |step: u32| 1.0 - 10_f64.powf(-f64::from(step) / 20.0_f64);
            let points = (0..=steps).map(quantile).filter(|&quantile| nines_of(quantile) <= nines + 1e-9);
            let points = points.map(|q| (nines_of(q), histogram.value_at_quantile(q) as f64 / 1e3)).collect();
            Series { name: name.clone(), hue, points }
        })
        .collect();
    let values = series.iter().flat_map(|series| series.points.iter().map(|point| point.1));
    let y = Axis::logarithmic("latency", Unit::Time, values);
    let about = "latencies by percentile".to_owned();
    let plot = Lines { about, x: Axis::quantiles(count), y, series, filled: false };
    let left = stages.len().saturating_sub(curves.len());
    let more = if left > 0 { format!("; {left} more runs are in the table") } else { String::new() };
    Some(figure("Latency by percentile", &format!("Each step to the right is ten times as rare{more}"), &plot.draw()))
}

/// Returns the plot of the server's CPU by use.
fn cpu(stages: &[&Stage], servers: bool, wide: bool) -> Option<Markup> {
    let bars: Vec<Bar> = stages
        .iter()
        .filter_map(|stage| {
            let server = stage.report.server.as_ref()?;
            let (user, system) = (server.user_ns / 1e3, server.system_ns / 1e3);
            let name = if stages.len() == 1 { "server".into() } else { stage.short(servers) };
            Some(Bar { name, parts: vec![(0, user), (1, system)], value: Unit::Time.text(user + system) })
        })
        .chain(stages.iter().filter(|_| stages.len() == 1).map(|stage| {
            let own = &stage.report.generator;
            let (user, system) = (own.user_ns / 1e3, own.system_ns / 1e3);
            Bar { name: "generator".into(), parts: vec![(0, user), (1, system)], value: Unit::Time.text(user + system) }
        }))
        .collect();
    if bars.is_empty() {
        return None;
    }
    let x = Axis::from_zero(
        "CPU time an operation",
        Unit::Time,
        bars.iter().map(|bar| bar.parts.iter().map(|part| part.1).sum()),
    );
    let (title, note) = match stages {
        [_] => ("CPU an operation", "What the server and this generator computed for one operation"),
        _ => ("The server's CPU an operation", "In its own code, and in the kernel for it"),
    };
    let plot = Bars { about: title.into(), x, meanings: vec![(0, "user space"), (1, "kernel")], bars };
    // A window shows one of the two.
    let drawn = if wide {
        html! { (plot.draw(Width::Wide)) (plot.draw(Width::Narrow)) }
    } else {
        plot.draw(Width::Usual)
    };
    Some(framed(title, note, &drawn, wide))
}

fn rates(stages: &[&Stage], servers: bool) -> Option<Markup> {
    if stages.len() < 2 {
        return None;
    }
    let bars: Vec<Bar> = stages
        .iter()
        .map(|stage| {
            let rate = stage.report.rate;
            Bar { name: stage.short(servers), parts: vec![(2, rate)], value: Unit::Count.text(rate) }
        })
        .collect();
    let x = Axis::from_zero("operations a second", Unit::Count, bars.iter().map(|bar| bar.parts[0].1));
    let plot = Bars { about: "operations a second".into(), x, meanings: Vec::new(), bars };
    Some(figure("Operations a second", "In the time that counts", &plot.draw(Width::Usual)))
}

#[derive(Clone, Copy)]
enum Over {
    Rate,
    Latency,
}

/// Seconds that count, without the piece that is left in the end.
fn whole(stage: &Stage) -> impl Iterator<Item = &Moment> {
    stage.moments.iter().filter(|moment| moment.counts && moment.length > 0.5)
}

fn over_time(stages: &[&Stage], servers: bool, over: Over) -> Option<Markup> {
    if !stages.iter().any(|stage| whole(stage).count() >= 3) {
        return None;
    }
    let alone = stages.len() == 1;
    let name = |stage: &Stage, what: &str| match (alone, what) {
        (true, what) => what.to_owned(),
        (false, "") => stage.short(servers),
        (false, what) => format!("{} {what}", stage.short(servers)),
    };
    let line = |hue: usize, stage: &Stage, what: &str, value: fn(&Moment) -> Option<f64>| {
        let points: Vec<_> = whole(stage).filter_map(|moment| Some((moment.at, value(moment)?))).collect();
        (!points.is_empty()).then(|| Series { name: name(stage, what), hue, points })
    };
    // A run has the hue here that it has in the other plots.
    let each = |value: fn(&Moment) -> Option<f64>| -> Vec<Series> {
        let some = stages.iter().enumerate().take(HUES);
        some.filter_map(|(hue, stage)| line(hue, stage, "", value)).collect()
    };
    let series: Vec<Series> = match over {
        Over::Rate => each(|moment| Some(moment.rate)),
        Over::Latency if alone => [
            line(0, stages[0], "50 %", |moment| moment.p50),
            line(1, stages[0], "99 %", |moment| moment.p99),
            line(2, stages[0], "worst", |moment| moment.max),
        ]
        .into_iter()
        .flatten()
        .collect(),
        Over::Latency => each(|moment| moment.p99),
    };
    let x = Axis::from_zero(
        "seconds since the run began",
        Unit::Seconds,
        series.iter().flat_map(|series| series.points.iter().map(|point| point.0)),
    );
    let values = || series.iter().flat_map(|series| series.points.iter().map(|point| point.1));
    let (title, note, y) = match over {
        Over::Rate => (
            "Throughput over time",
            "Answers in each second",
            Axis::from_zero("answers a second", Unit::Count, values()),
        ),
        Over::Latency => {
            let note =
                if alone { "Of each second's requests" } else { "99 % of each second's requests took no longer" };
            ("Latency over time", note, Axis::logarithmic("latency", Unit::Time, values()))
        }
    };
    Some(figure(title, note, &Lines { about: title.into(), x, y, series, filled: false }.draw()))
}

fn cpu_over_time(stages: &[&Stage]) -> Option<Markup> {
    let [stage] = stages else { return None };
    let points = |value: fn(f64, f64) -> f64| -> Vec<(f64, f64)> {
        whole(stage).filter_map(|moment| Some((moment.at, value(moment.user?, moment.system?)))).collect()
    };
    let (user, both) = (points(|user, _| user), points(|user, system| user + system));
    if user.len() < 3 {
        return None;
    }
    let x = Axis::from_zero("seconds since the run began", Unit::Seconds, user.iter().map(|point| point.0));
    let y = Axis::from_zero("CPUs", Unit::Count, both.iter().map(|point| point.1));
    let series = vec![
        Series { name: "user space".into(), hue: 0, points: user },
        Series { name: "and kernel".into(), hue: 1, points: both },
    ];
    let plot = Lines { about: "the server's CPUs over time".into(), x, y, series, filled: true };
    Some(figure(
        "The server's CPUs over time",
        "How many it kept busy, in its own code and in the kernel for it",
        &plot.draw(),
    ))
}

fn table(sweep: &Sweep) -> Markup {
    let servers = sweep.has_servers();
    let sources = sweep.stages.iter().any(|stage| stage.report.sources.is_some());
    html! {
        div class="card scroll" {
            table {
                thead {
                    tr {
                        @if sweep.stages.len() > 1 { th class="word" { "run" } }
                        th { "operations" small { "a second" } } th { "MB/s" } th class="word" { "latency of" }
                        th { "requests" }
                        @for name in ["mean", "50 %", "90 %", "99 %", "99.9 %", "worst"] { th { (name) } }
                        th { "server's CPU" small { "an operation" } } th { "user" } th { "kernel" } th { "CPUs" }
                        th { "generator" small { "busy" } }
                        @if sources { th { "one-sided" small { "of the values" } } }
                    }
                }
                tbody { @for stage in &sweep.stages { (rows(stage, servers, sweep.stages.len() > 1)) } }
            }
        }
    }
}

fn rows(stage: &Stage, servers: bool, several: bool) -> Markup {
    let report = &stage.report;
    html! {
        @for (number, (kind, summary)) in report.latencies.iter().enumerate() {
            tr class=[(number > 0).then_some("more")] {
                @if number == 0 {
                    @if several { td class="word" { (stage.label(servers)) } }
                    td { (Unit::Count.text(report.rate)) } td { (format!("{:.1}", report.megabytes())) }
                } @else {
                    @if several { td {} } td {} td {}
                }
                td class="word" { (kind.name()) }
                td { (summary.count) }
                @for figure in [summary.mean, summary.p50, summary.p90, summary.p99, summary.p999, summary.max] {
                    td { (Unit::Time.text(figure)) }
                }
                @if number == 0 {
                    @match &report.server {
                        Some(server) => {
                            td { (Unit::Time.text(server.ns() / 1e3)) } td { (Unit::Time.text(server.user_ns / 1e3)) }
                            td { (Unit::Time.text(server.system_ns / 1e3)) } td { (format!("{:.2}", server.cpus)) }
                        }
                        None => { @for _ in 0..4 { td { "–" } } }
                    }
                    td { (format!("{:.0} %", 100.0 * report.generator.busy)) }
                    @if let Some(sources) = &report.sources { td { (percent(sources.one_sided_share())) } }
                } @else {
                    @for _ in 0..5 { td {} }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
