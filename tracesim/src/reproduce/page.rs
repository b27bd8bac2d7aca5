//! The study as a page: the claims first, then the figures that they are read from.

use super::claim::{Claim, Kind, Verdict, summary};
use super::figures::{Found, POLICIES, charged};
use super::handshake::{LATENCIES, PAGES, Warmth, claimed_share};
use super::latency::{Latencies, find};
use super::logs::Compared;
use super::machine::{MESSAGES, Machine, TABLE_1};
use crate::calibrate::Calibration;
use crate::report::chart::{Bars, Group, Lines, Look, Point, Scale, Series, Unit};
use crate::report::provenance::Provenance;
use crate::report::{
    COINCIDENCE, Page, bars_figure, bytes, grouped, key, lines_figure, percent, table, unbroken, wide_figure,
};
use crate::row::{DeregCost, Row};
use maud::{Markup, html};

/// Everything that is shown.
#[derive(Clone, Debug)]
pub struct Study {
    /// The claims and their results.
    pub claims: Vec<Claim>,
    /// HTTPD and Cello92.
    pub found: [Found; 2],
    /// Figure 1 and Table 1.
    pub machine: Machine,
    /// Section 8.
    pub latencies: Latencies,
    /// The real traces.
    pub logs: Vec<Compared>,
    /// A caution about the whole; empty if there is none.
    pub caution: String,
}

const NO_CACHE: usize = 0;
const INFINITE: usize = 1;
const BOUND: usize = 2;
const FIRST_POLICY: usize = 3;

/// Returns the page.
pub fn page(study: &Study, provenance: Provenance) -> Page {
    Page {
        title: "The MRRC study, reproduced".into(),
        lead: html! {
            p {
                "What Ou, He and Han report in " cite { "An efficient design for fast memory registration in RDMA" } " (2009), "
                "beside what this code finds. No copy of either trace is public, so both are generated from what is published of "
                "them. Costs are the paper's: " (study.found[0].cost) " for " i { "p" } " pages."
            }
            p class="note" { (COINCIDENCE) }
            @if !study.caution.is_empty() { p { strong { (study.caution) } } }
        },
        body: html! {
            section class="study" id="claims" {
                h2 { "Claims" }
                p { (summary(&study.claims)) ". What counts as holding stands beside each." }
                p class="note" {
                    "How near a figure must come follows from how the paper words it: a fifth where it says \"about\" or gives 10 %, \
                     five points of the round \"up to 70 %\", one point or one percent where it gives digits."
                }
                (claims(&study.claims, Kind::Finding, "The paper and this code"))
                (claims(&study.claims, Kind::Input, "The workloads, generated to be as the paper describes them"))
            }
            @for found in &study.found { (workload(found)) }
            (machine(&study.machine))
            (handshake(&study.latencies))
            @if !study.logs.is_empty() { (logs(&study.logs)) }
            section class="study" id="calibration" {
                h2 { "The generated workloads" }
                p { "What was asked of each generator, from the paper and from what is published of the traces, and what its requests have." }
                div class="tables" { @for found in &study.found { (checks(found)) } }
            }
        },
        keys: FIRST_POLICY + POLICIES.len().max(LATENCIES.len()),
        provenance,
    }
}

fn claims(claims: &[Claim], kind: Kind, title: &str) -> Markup {
    let class = |verdict| match verdict {
        Verdict::Holds => "holds",
        Verdict::DoesNotHold => "fails",
        Verdict::NotMeasured => "open",
    };
    let rows = html! {
        @for claim in claims.iter().filter(|claim| claim.kind == kind) {
            tr {
                td class="place" { (claim.place) }
                td class="claim" { (unbroken(&claim.claim)) @if !claim.note.is_empty() { div class="note" { (unbroken(&claim.note)) } } }
                td data-label="the paper" { (unbroken(&claim.paper)) }
                td data-label="holds if" { (unbroken(&claim.rule)) }
                td class="here" data-label="here" { (unbroken(&claim.here)) }
                td class={ "verdict " (class(claim.verdict)) } { (claim.verdict.text()) }
            }
        }
    };
    html! {
        div class="card" {
            h3 { (title) }
            // Where there is no room for columns each claim is a block, with its verdict at the top.
            table class="claims" {
                thead {
                    tr {
                        th { "in the paper" } th { "claim" } th { "the paper" } th { "holds if" }
                        th class="here" { "here" } th { "verdict" }
                    }
                }
                tbody { (rows) }
            }
        }
    }
}

/// Returns a workload: Figures 9 to 12.
fn workload(found: &Found) -> Markup {
    let name = found.subject.name;
    let id = |plot: &str| format!("{plot}-{}", name.to_lowercase());
    let reference = bytes(found.subject.capacities[found.subject.reference]);
    let hits = lines(found, "hit ratio", Unit::Share, &|row| row.hit_ratio, &[NO_CACHE, INFINITE]);
    let base = |by| found.row("mrrc", found.subject.reference).map_or(1.0, |row| found.total_us(row, by));
    let cost = |by: DeregCost| {
        let references = if by == DeregCost::Batch { &[NO_CACHE, INFINITE, BOUND][..] } else { &[NO_CACHE, INFINITE] };
        let label = format!("times MRRC at {reference}");
        let base = base(by);
        lines(found, &label, Unit::Number, &|row| found.total_us(row, by) / base, references).with_bound(found, base)
    };
    let gain = |by: DeregCost| {
        let none = found.no_cache().map_or(1.0, |row| found.total_us(row, by));
        lines(found, "below no cache", Unit::Share, &|row| 1.0 - found.total_us(row, by) / none, &[])
    };
    let both = [DeregCost::Batch, DeregCost::Region];
    html! {
        section class="study" id=(name.to_lowercase()) {
            h2 { (name) }
            dl class="facts" {
                div { dt { "requests" } dd { (grouped(found.sizes.requests)) } }
                div { dt { "footprint" } dd { (grouped(found.footprint_pages)) " pages, " (bytes(found.footprint_pages)) } }
                div { dt { "generated as" } dd { code { (found.subject.workload) } } }
            }
            (legend())
            div class="plots" {
                (bars_figure(&id("fig9"), "Fig. 9: request sizes",
                    "Requests by their pages, rounded down to powers of two as in the paper.", &sizes(found)))
                (lines_figure(&id("fig10"), "Fig. 10: hit ratio", "Requests of which every page was registered.", &hits.0))
                @for by in both {
                    @let plot = if by == DeregCost::Batch { "fig11-batch" } else { "fig11-region" };
                    (lines_figure(&id(plot), &format!("Fig. 11: cost, {}", charged(by)),
                        &format!("Registering and deregistering; MRRC at {reference} is 1."), &cost(by).0))
                }
                @for by in both {
                    @let plot = if by == DeregCost::Batch { "fig12-batch" } else { "fig12-region" };
                    (lines_figure(&id(plot), &format!("Fig. 12: improvement over no cache, {}", charged(by)),
                        "By what share the cost is below that of registering at each request.", &gain(by).0))
                }
            }
            div class="tables" { (figures(found)) }
        }
    }
}

fn look(number: usize) -> Look {
    Look::Hue(number)
}

fn legend() -> Markup {
    let policies = POLICIES.iter().enumerate().map(|(at, policy)| (FIRST_POLICY + at, *policy, look(at)));
    key(policies.chain([
        (NO_CACHE, "no cache", Look::NoCache),
        (INFINITE, "infinite cache", Look::Infinite),
        (BOUND, "lower bound of cost", Look::Bound),
    ]))
}

/// Lines that may get a bound.
struct Drawn(Lines);

fn lines(found: &Found, label: &str, unit: Unit, value: &dyn Fn(&Row) -> f64, references: &[usize]) -> Drawn {
    let capacities = &found.subject.capacities;
    let mut series = Vec::new();
    for &number in references {
        let (row, name, look) = match number {
            NO_CACHE => (found.no_cache(), "no cache", Look::NoCache),
            INFINITE => (found.infinite(), "infinite", Look::Infinite),
            _ => continue,
        };
        if let Some(row) = row {
            let points = vec![Point { x: 1.0, y: value(row), title: String::new() }];
            series.push(Series { key: number, name: name.into(), look, points });
        }
    }
    let bounded = references.contains(&BOUND);
    if bounded {
        series.push(Series { key: BOUND, name: "bound".into(), look: Look::Bound, points: Vec::new() });
    }
    for (at, policy) in POLICIES.iter().enumerate().rev() {
        let point = |capacity: usize| {
            let row = found.row(policy, capacity)?;
            let y = value(row);
            let shown = if unit == Unit::Share { percent(y) } else { format!("{y:.3}") };
            Some(Point {
                x: row.capacity_pages as f64,
                y,
                title: format!("{policy}, {}: {shown}", bytes(row.capacity_pages)),
            })
        };
        let points = (0..capacities.len()).filter_map(point).collect();
        series.push(Series { key: FIRST_POLICY + at, name: policy.to_string(), look: look(at), points });
    }
    let values = series.iter().flat_map(|series| series.points.iter().map(|point| point.y));
    let y = Scale::from_zero(label, values, unit);
    let title = format!("{}: {label} against capacity", found.subject.name);
    Drawn(Lines { title, x: Scale::capacities(capacities, Some(found.footprint_pages)), y, clipped: false, series })
}

impl Drawn {
    /// With the points of the bound, over a base.
    fn with_bound(mut self, found: &Found, base: f64) -> Self {
        let point = |capacity: usize| {
            let row = found.row("mrrc", capacity)?;
            let y = row.lower_bound_us? / base;
            Some(Point { x: row.capacity_pages as f64, y, title: format!("lower bound: {y:.3}") })
        };
        let points: Vec<Point> = (0..found.subject.capacities.len()).filter_map(point).collect();
        if let Some(bound) = self.0.series.iter_mut().find(|series| series.key == BOUND) {
            bound.points = points;
        }
        self
    }
}

fn sizes(found: &Found) -> Bars {
    let values: Vec<f64> = (0..found.sizes.by_power.len()).map(|power| found.sizes.share(power)).collect();
    let name = |power: usize| (1u64 << power).to_string();
    Bars {
        title: format!("{}: requests by size", found.subject.name),
        label: "pages of a request".into(),
        categories: (0..values.len()).map(name).collect(),
        y: Scale::from_zero("of requests", values.iter().copied(), Unit::Share),
        groups: vec![Group { name: "requests".into(), look: Look::Hue(0), values }],
        show: percent,
    }
}

/// Returns the figures behind the plots.
fn figures(found: &Found) -> Markup {
    let header = html! {
        th { "policy" } th class="word" { "figure" }
        @for &pages in &found.subject.capacities { th { (bytes(pages)) } }
    };
    let cells = |policy: &str, show: &dyn Fn(&Row) -> String| {
        html! {
            @for capacity in 0..found.subject.capacities.len() {
                td { (found.row(policy, capacity).map_or("–".into(), show)) }
            }
        }
    };
    let ms = |row: &Row, by| grouped((found.total_us(row, by) / 1000.0).round() as u64);
    let rows = html! {
        @for policy in POLICIES {
            tr { td { (policy) } td class="word" { "hit ratio" } (cells(policy, &|row| percent(row.hit_ratio))) }
            tr { td {} td class="word" { "ms, " (charged(DeregCost::Batch)) } (cells(policy, &|row| ms(row, DeregCost::Batch))) }
            tr { td {} td class="word" { "ms, " (charged(DeregCost::Region)) } (cells(policy, &|row| ms(row, DeregCost::Region))) }
        }
    };
    let none = found.no_cache().map_or(String::new(), |row| format!("No cache: {} ms.", ms(row, DeregCost::Batch)));
    table("Figures", &none, &header, &rows)
}

/// Figure 1 and Table 1.
fn machine(machine: &Machine) -> Markup {
    html! {
        section class="study" id="machine" {
            h2 { "This machine" }
            @match &machine.calibration {
                Err(why) => p { "Registrations were not measured: " (why) },
                Ok(calibration) => {
                    p {
                        "Measured here, now: " (calibration.registrar) " registers and deregisters resident memory, medians of "
                        (grouped(calibration.rounds.into())) ". There is no RDMA card in it: copying by the processor stands for the \
                         transfer. With " code { "--cost " (calibration.as_option()) } " replays cost what they would cost here."
                    }
                    div class="plots" {
                        (lines_figure("fig1", "Fig. 1: registering beside moving the bytes", "Copying 1 KB is 1.",
                            &messages(machine)))
                        (lines_figure("calibration-fit", "Registering and deregistering", "Medians, and the lines fitted to them.",
                            &fitted(calibration)))
                    }
                    div class="tables" { (table_1(calibration)) }
                }
            }
        }
    }
}

fn messages(machine: &Machine) -> Lines {
    let unit = machine.copies.first().map_or(1.0, |(_, us)| if *us > 0.0 { *us } else { 1.0 });
    let over = |us: f64| us / unit;
    let kb = |bytes: usize| bytes as f64 / 1024.0;
    let point = |message: usize, us: f64, what: &str| Point {
        x: kb(message),
        y: over(us),
        title: format!("{what}, {} KB: {us:.3} µs", message / 1024),
    };
    let registers = MESSAGES.iter().filter_map(|&m| Some(point(m, machine.register_us(m)?, "register"))).collect();
    let copies = machine.copies.iter().map(|&(m, us)| point(m, us, "copy")).collect();
    let series = vec![
        Series { key: FIRST_POLICY + 1, name: "copy".into(), look: Look::Hue(1), points: copies },
        Series { key: FIRST_POLICY, name: "register".into(), look: Look::Hue(0), points: registers },
    ];
    let values = series.iter().flat_map(|s: &Series| s.points.iter().map(|p| p.y));
    let y = Scale::from_zero("times a copy of 1 KB", values, Unit::Number);
    let x = Scale::powers("message, KB", &MESSAGES.map(kb));
    Lines { title: "Registering and copying against message size".into(), x, y, clipped: false, series }
}

fn fitted(calibration: &Calibration) -> Lines {
    let sizes: Vec<f64> = calibration.sizes.iter().map(|m| m.pages as f64).filter(|pages| *pages <= 64.0).collect();
    let most = sizes.iter().copied().fold(1.0, f64::max);
    let mut series = Vec::new();
    for (number, name, line) in [(0, "register", &calibration.register), (1, "deregister", &calibration.deregister)] {
        let time = |m: &crate::calibrate::Measured| if number == 0 { m.register_us } else { m.deregister_us };
        let points = calibration.sizes.iter().filter(|m| m.pages as f64 <= most).map(|m| Point {
            x: m.pages as f64,
            y: time(m),
            title: format!(
                "{name}, {} pages: {:.3} µs, the line says {:.3}",
                m.pages,
                time(m),
                line.at(m.pages as f64)
            ),
        });
        let fit = sizes.iter().map(|&x| Point { x, y: line.at(x), title: String::new() });
        series.push(Series { key: BOUND, name: String::new(), look: Look::Bound, points: fit.collect() });
        series.push(Series {
            key: FIRST_POLICY + number,
            name: name.into(),
            look: Look::Hue(number),
            points: points.collect(),
        });
    }
    let values = series.iter().flat_map(|s: &Series| s.points.iter().map(|p| p.y));
    let y = Scale::from_zero("microseconds", values, Unit::Number);
    Lines { title: "Measured costs and the fit".into(), x: Scale::powers("pages", &sizes), y, clipped: false, series }
}

fn table_1(calibration: &Calibration) -> Markup {
    let base = calibration.of_pages(1).map_or(1.0, |m| m.register_us);
    let header = html! { th { "KB" } th { "fast, the paper" } th { "ordinary, the paper" } th { (calibration.registrar) ", here" } };
    let rows = html! {
        @for (kb, fast, ordinary) in TABLE_1 {
            @let here = calibration.of_pages(kb / 4).map(|m| m.register_us / base);
            tr { td { (kb) } td { (format!("{fast:.3}")) } td { (format!("{ordinary:.3}")) }
                td { (here.map_or("–".into(), |over| format!("{over:.3}"))) } }
        }
    };
    let note = "The paper's over fast registration of 4 KB in its kernel; here over registering 4 KB.";
    table("Table 1: registration by size", note, &header, &rows)
}

/// Section 8.
fn handshake(latencies: &Latencies) -> Markup {
    html! {
        section class="study" id="handshake" {
            h2 { "Two peers that register at once" }
            @match latencies {
                Err(why) => p { "Not run: " (why) },
                Ok(rows) => {
                    p {
                        "Section 8 by running both processes between two peers on simulated clocks, under the paper's costs: \
                         what the fast process saves of the time until the target has its bytes."
                    }
                    div class="plots" {
                        (lines_figure("latency-cold", "Saved where nothing is registered", "Of the traditional process.",
                            &shares(rows, Warmth::Cold)))
                        (lines_figure("latency-warm", "Saved where both sides are registered", "Only the way through the application.",
                            &shares(rows, Warmth::Warm)))
                    }
                    div class="tables" { (transfers(rows)) }
                }
            }
        }
    }
}

fn network(latency: u64) -> String {
    if latency == 0 { "no latency".into() } else { format!("{} µs a way", latency / 1000) }
}

fn shares(rows: &[super::handshake::Row], warmth: Warmth) -> Lines {
    let mut series: Vec<Series> = LATENCIES
        .iter()
        .enumerate()
        .map(|(number, &latency)| {
            let point = |&pages: &usize| {
                let y = find(rows, pages, latency, warmth)?.share();
                let title = format!("{pages} pages, {}: {}", network(latency), percent(y));
                Some(Point { x: pages as f64, y, title })
            };
            let points = PAGES.iter().filter_map(point).collect();
            Series { key: FIRST_POLICY + number, name: network(latency), look: look(number), points }
        })
        .collect();
    if warmth == Warmth::Cold {
        let claimed = |&pages: &usize| Point { x: pages as f64, y: claimed_share(pages), title: String::new() };
        let points = PAGES.iter().map(claimed).collect();
        series.push(Series { key: BOUND, name: "the paper".into(), look: Look::Bound, points });
    }
    let values = series.iter().flat_map(|s| s.points.iter().map(|p| p.y));
    let y = Scale::from_zero("saved", values, Unit::Share);
    let x = Scale::powers("pages", &PAGES.map(|pages| pages as f64));
    Lines { title: "Latency saved against pages".into(), x, y, clipped: false, series }
}

fn transfers(rows: &[super::handshake::Row]) -> Markup {
    let header = html! {
        th { "registered before" } th class="word" { "network" }
        @for pages in PAGES { th { (pages) (if pages == 1 { " page" } else { " pages" }) } }
    };
    let us = |ns: u64| format!("{:.2}", ns as f64 / 1000.0);
    let cases = [
        (Warmth::Cold, "nothing"),
        (Warmth::WriterWarm, "the writer's"),
        (Warmth::TargetWarm, "the target's"),
        (Warmth::Warm, "both"),
    ];
    let rows = html! {
        @for (warmth, name) in cases {
            @for (at, latency) in LATENCIES.into_iter().enumerate() {
                tr {
                    td { (if at == 0 { name } else { "" }) }
                    td class="word" { (network(latency)) }
                    @for pages in PAGES {
                        td {
                            @match find(rows, pages, latency, warmth) {
                                Some(row) => { (us(row.traditional)) " → " (us(row.frrwp)) },
                                None => "–",
                            }
                        }
                    }
                }
            }
        }
    };
    table("Microseconds, traditional → fast", "", &header, &rows)
}

/// Returns the comparison on real traces.
fn logs(logs: &[Compared]) -> Markup {
    let gains =
        |by: usize| logs.iter().filter(|log| log.capacity == "10%").map(|log| log.cheaper[by]).collect::<Vec<_>>();
    let names = logs.iter().filter(|log| log.capacity == "10%").map(|log| short(&log.trace)).collect();
    let (batch, region) = (gains(0), gains(1));
    let y = Scale::from_zero("cost below the pin-down cache's", batch.iter().chain(&region).copied(), Unit::Share);
    let bars = Bars {
        title: "Cost of MRRC under the pin-down cache's on real traces".into(),
        label: "trace".into(),
        categories: names,
        y,
        groups: vec![
            Group { name: charged(DeregCost::Batch).into(), look: Look::Hue(0), values: batch },
            Group { name: charged(DeregCost::Region).into(), look: Look::Hue(4), values: region },
        ],
        show: percent,
    };
    let header = html! {
        th { "trace" } th { "requests" } th { "capacity" } th { "hits, MRRC" } th { "hits, pin-down" } th { "points" }
        th { "cheaper," small { (charged(DeregCost::Batch)) } } th { "cheaper," small { (charged(DeregCost::Region)) } }
        th { "below no cache," small { (charged(DeregCost::Batch)) } }
    };
    let rows = html! {
        @for log in logs {
            tr {
                td { (log.trace) } td { (grouped(log.requests)) } td { (log.capacity) " = " (bytes(log.pages)) }
                @for hits in log.hits { td { (percent(hits)) } }
                td { (format!("{:+.1}", 100.0 * (log.hits[0] - log.hits[1]))) }
                @for cheaper in log.cheaper { td { (percent(cheaper)) } }
                td { (percent(log.below_no_cache[0])) }
            }
        }
    };
    html! {
        section class="study" id="logs" {
            h2 { "Real traces" }
            p { "The same comparison, MRRC and the pin-down cache by regions, on traces that were recorded. Capacities are shares of each footprint." }
            ul class="legend" {
                li { (crate::report::chart::swatch(Look::Hue(0))) (charged(DeregCost::Batch)) }
                li { (crate::report::chart::swatch(Look::Hue(4))) (charged(DeregCost::Region)) }
            }
            div class="plots" {
                (wide_figure("logs-cost", "Cost of MRRC under the pin-down cache's, at 10 % of the footprint", "", &bars))
            }
            div class="tables" { (table("Figures", "", &header, &rows)) }
        }
    }
}

/// Returns a file's name without what it is packed in.
fn short(name: &str) -> String {
    let stem = name.split_once('.').map_or(name, |(stem, _)| stem);
    let kind = name.strip_prefix(stem).unwrap_or("").trim_start_matches('.').split('.').next().unwrap_or("");
    if stem.chars().count() > 18 || kind.is_empty() {
        stem.chars().take(22).collect()
    } else {
        format!("{stem}.{kind}")
    }
}

fn checks(found: &Found) -> Markup {
    let header = html! { th { "figure" } th { "asked" } th { "measured" } th { "within" } th class="word" { "" } };
    let rows = html! {
        @for check in &found.checks.0 {
            tr {
                td { (check.figure) }
                @for value in [check.asked, check.measured, check.within] { td { (check.unit.show(value)) } }
                td class={ "word " (if check.holds() { "holds" } else { "fails" }) } { (if check.holds() { "met" } else { "off" }) }
            }
        }
    };
    table(found.subject.name, "", &header, &rows)
}
