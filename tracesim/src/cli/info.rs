//! `info`: what a trace is like, before any cache.

use super::failure::Failure;
use super::interrupt;
use super::output::Output;
use super::progress::Progress;
use super::source::Source;
use super::table::{Side, bytes, pages, percent, table};
use crate::footprint::Footprint;
use crate::info::{Distance, Info, Size};
use crate::simulate::{ReplayError, Watch};
use std::path::PathBuf;
use traces::Trace;

/// Show what a trace asks for: requests, footprint, reuse, sizes
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct InfoCommand {
    /// The trace
    trace: PathBuf,
    /// One JSON object
    #[arg(long)]
    json: bool,
    /// Write there instead of to standard output; the file appears when it is whole
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    source: Source,
}

const EXAMPLES: &str = "\
Examples:
  tracesim info requests.csv
  tracesim info --json requests.csv | jq .footprint_pages

Reused are requests of which every page was asked for before: what an infinite cache serves. The
footprint is the number of different pages. A range that was last used less than C pages of other
ranges ago is a hit of an LRU cache of C pages: `tracesim mrc` has that curve.";

impl InfoCommand {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let mut out = Output::open(self.output.as_deref(), std::slice::from_ref(&self.trace))?;
        let (trace, footprint) = self.source.load(&self.trace)?;
        let info = look_at(&trace, &footprint)?;
        out.write(|out| {
            if self.json {
                serde_json::to_writer(&mut *out, &info)?;
                writeln!(out)
            } else {
                out.write_all(shown(&info, &trace.summary.first).as_bytes())
            }
        })?;
        out.finish()
    }
}

/// Returns the description of the trace, with a bar of progress.
pub(super) fn look_at(trace: &Trace, footprint: &Footprint) -> Result<Info, Failure> {
    let progress = Progress::of(&trace.name, trace.processes.iter().map(|p| p.steps.len() as u64).sum());
    let watch = Watch { stop: &interrupt::STOP, replayed: &|steps| progress.step(steps) };
    Info::of(trace, footprint, &watch).map_err(|error| match error {
        ReplayError::Interrupted => Failure::Interrupted,
        error => Failure::work(error),
    })
}

fn shown(info: &Info, first: &[traces::Event]) -> String {
    let share = |part: u64, whole: u64| percent(if whole == 0 { 0.0 } else { part as f64 / whole as f64 });
    let Info { requests, reused, reused_pages, .. } = *info;
    let mut lines = vec![
        ("trace", info.trace.clone()),
        ("read as", format!("{}: {} events, {} lines or records skipped", info.understood, info.events, info.skipped)),
        ("requests", requests.to_string()),
        ("pages asked for", info.pages.to_string()),
        ("footprint", pages(info.footprint_pages)),
        (
            "ranges",
            format!(
                "{}, of which {} ({}) are asked for once",
                info.ranges,
                info.ranges_once,
                share(info.ranges_once, info.ranges)
            ),
        ),
        (
            "reused",
            format!(
                "{reused} requests ({}), {reused_pages} pages ({})",
                share(reused, requests),
                share(reused_pages, info.pages)
            ),
        ),
    ];
    if info.processes > 1 {
        lines.push(("processes", format!("{}, each with an address space and a cache", info.processes)));
    }
    if info.lists > 0 {
        lines.push(("lists", format!("{} requests are for several ranges at once", info.lists)));
    }
    if info.acquires + info.releases + info.invalidations > 0 {
        let text =
            format!("{} acquires, {} releases, {} invalidations", info.acquires, info.releases, info.invalidations);
        lines.push(("recorded", text));
    }
    lines.push(("checksum", info.checksum.clone()));
    let mut text = String::new();
    for (what, value) in lines {
        text += &format!("{:<17}{value}\n", format!("{what}:"));
    }
    for event in first {
        text += &format!("{:<17}{}\n", "first:", shown_event(event));
    }
    text + "\n" + &sizes(&info.sizes, requests) + "\n" + &distances(&info.reuse_distances, requests)
}

/// Returns an event as it was understood.
fn shown_event(event: &traces::Event) -> String {
    use traces::Action::{Acquire, Invalidate, Release, Request};
    let what = match &event.action {
        Request(_) => "request",
        Acquire(_) => "acquire",
        Release(_) => "release",
        Invalidate(_) => "invalidate",
        _ => "something else",
    };
    let spans: Vec<String> = event.action.spans().iter().map(ToString::to_string).collect();
    let time = std::time::Duration::from_nanos(event.time);
    format!("{what} {} at {time:?} by {}.{}", spans.join(" "), event.process, event.client)
}

/// Width of the longest bar.
const BAR: f64 = 40.0;

/// The paper's Figure 9: requests by size.
fn sizes(sizes: &[Size], requests: u64) -> String {
    let name = |size: &Size| match *size {
        Size { from_pages, to_pages, .. } if from_pages == to_pages => to_pages.to_string(),
        Size { from_pages, to_pages, .. } => format!("{from_pages} to {to_pages}"),
    };
    histogram("request, pages", sizes.iter().map(|size| (name(size), size.requests)).collect(), requests)
}

/// How far back the last use of the same range lies.
fn distances(distances: &[Distance], requests: u64) -> String {
    let name = |distance: &Distance| match distance.up_to_pages {
        Some(pages) => format!("{pages} ({})", bytes(pages)),
        None => "first use".into(),
    };
    let rows = distances.iter().map(|distance| (name(distance), distance.requests)).collect();
    histogram("reused within, pages", rows, requests)
}

/// Numbers with their share of all and a bar.
fn histogram(what: &str, rows: Vec<(String, u64)>, all: u64) -> String {
    let most = rows.iter().map(|(_, number)| *number).max().unwrap_or(0).max(1) as f64;
    let line = |(name, number): (String, u64)| {
        let bar = "#".repeat((number as f64 / most * BAR).ceil() as usize);
        vec![name, number.to_string(), percent(number as f64 / all.max(1) as f64), bar]
    };
    let sides = [Side::Left, Side::Right, Side::Right, Side::Left];
    table(&sides, &[what, "requests", "share", ""], rows.into_iter().map(line))
}
