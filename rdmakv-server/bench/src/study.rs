//! Several runs of one command, and what they say together.

use std::time::Duration;

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;

use crate::report::{Report, Summary};
use crate::run::Second;
use crate::tally::Kind;

/// A second of a run, kept.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Moment {
    /// When it ended, in seconds since the run began.
    pub at: f64,
    /// How long it was, in seconds: the last one is shorter.
    pub length: f64,
    /// Whether it is in the time that counts.
    pub counts: bool,
    /// Answers a second.
    pub rate: f64,
    /// Latencies in it, in microseconds, of what takes longest to say all: the first kind that there is.
    pub p50: Option<f64>,
    /// One in a hundred.
    pub p99: Option<f64>,
    /// The worst.
    pub max: Option<f64>,
    /// CPUs that the server kept busy in user space.
    pub user: Option<f64>,
    /// And in the kernel.
    pub system: Option<f64>,
}

impl Moment {
    /// Returns the time of a second that began at `before`, in a run that counts from `warm_up` on.
    pub fn of(second: &Second<'_>, before: Duration, warm_up: Duration) -> Self {
        let length = second.at.saturating_sub(before).as_secs_f64().max(1e-9);
        let latencies = Kind::ALL.into_iter().find_map(|kind| second.latencies.of(kind));
        let at = |quantile: f64| latencies.map(|latencies| latencies.value_at_quantile(quantile) as f64 / 1e3);
        Self {
            at: second.at.as_secs_f64(),
            length,
            counts: before >= warm_up,
            rate: second.answers as f64 / length,
            p50: at(0.5),
            p99: at(0.99),
            max: at(1.0),
            user: second.server.map(|(user, _)| user / 1e9 / length),
            system: second.server.map(|(_, system)| system / 1e9 / length),
        }
    }
}

/// One of the runs.
#[derive(Clone, Debug, Serialize)]
pub struct Stage {
    /// Runs of one group are shown together.
    #[serde(skip)]
    pub group: String,
    /// Its label among the others of its group, if that is shorter than its name.
    #[serde(skip)]
    pub short: String,
    /// Its label among the others; empty if there is but one for a server.
    pub name: String,
    /// The report.
    pub report: Report,
    /// Each second of it.
    pub moments: Vec<Moment>,
}

impl Stage {
    /// Returns its name within its group.
    pub(crate) fn short(&self, with_server: bool) -> String {
        match (self.short.is_empty(), with_server) {
            (true, _) => self.label(with_server),
            (false, false) => self.short.clone(),
            (false, true) => format!("{}, {}", self.short, self.report.target),
        }
    }

    /// Returns its name where the servers' names are not beside it.
    pub fn label(&self, with_server: bool) -> String {
        match (self.name.is_empty(), with_server) {
            (true, _) => self.report.target.clone(),
            (false, false) => self.name.clone(),
            (false, true) => format!("{}, {}", self.name, self.report.target),
        }
    }
}

/// All of them.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Study {
    /// The command's name.
    pub command: String,
    /// The whole of it, as a shell takes it.
    pub command_line: String,
    /// The subject.
    #[serde(skip)]
    pub title: String,
    /// The runs, in their order.
    pub stages: Vec<Stage>,
    /// Why a run could not begin, after which there were no more.
    pub failed: Option<String>,
}

impl Study {
    /// One without runs.
    pub fn new(command: &str, title: &str, arguments: impl IntoIterator<Item = String>) -> Self {
        // A null byte cannot be in an argument.
        let quoted = arguments.into_iter().map(|word| shlex::try_quote(&word).map(Into::into).unwrap_or(word));
        let command_line = std::iter::once("rdmakv-bench".to_owned()).chain(quoted).collect::<Vec<_>>().join(" ");
        Self { command: command.into(), command_line, title: title.into(), stages: Vec::new(), failed: None }
    }

    /// Returns whether runs went to more than one server.
    pub fn has_servers(&self) -> bool {
        self.stages.windows(2).any(|pair| pair[0].report.target != pair[1].report.target)
    }

    /// Why the command is to end as one that failed, if it is.
    pub fn why_not_good(&self) -> Option<String> {
        let bad = self.stages.iter().find(|stage| !stage.report.is_good());
        self.failed.clone().or_else(|| {
            let report = &bad?.report;
            let why = report.ended_early.iter().chain(&report.invalid_because).next().cloned();
            Some(why.unwrap_or_else(|| "values were not what was written".into()))
        })
    }

    /// As JSON, in one line.
    pub fn json(&self) -> String {
        // Numbers, texts and lists of them can always be written.
        serde_json::to_string(self).unwrap_or_default() + "\n"
    }

    /// As a page of HTML, with curves.
    pub fn html(&self) -> String {
        crate::page::render(self)
    }

    /// Returns the remarks with their runs; those shared by many runs only once.
    pub(crate) fn said(&self) -> Vec<(String, String)> {
        let servers = self.has_servers();
        let mut said = Vec::new();
        let mut shared = Vec::new();
        for stage in &self.stages {
            said.extend(notes(&stage.report).into_iter().map(|note| (stage.label(servers), note)));
            shared.extend(shared_cpu(&stage.report).map(|share| (stage, share)));
        }
        let shares = || shared.iter().map(|(_, share)| 100.0 * share);
        let (least, most) = (shares().fold(f64::MAX, f64::min), shares().fold(0.0, f64::max));
        match &shared[..] {
            [] => {}
            [(stage, share)] => said.push((stage.label(servers), on_one_cpu(&format!("{:.0}", 100.0 * share)))),
            _ if most - least < 0.5 => {
                said.push((of(shared.len(), self.stages.len()), on_one_cpu(&format!("{most:.0}"))));
            }
            _ => {
                said.push((of(shared.len(), self.stages.len()), on_one_cpu(&format!("{least:.0} to {most:.0}"))));
            }
        }
        said
    }

    /// For people: a run as [`render`](crate::render) shows it, several as a table and what is to be said of them.
    pub fn table(&self) -> String {
        if let [only] = &self.stages[..] {
            return crate::render(&only.report);
        }
        let mut table = Table::new();
        table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        let servers = self.has_servers();
        let mut header = vec!["", "server"];
        header.extend(["ops/s", "MB/s", "us:", "mean", "p50", "p99", "p99.9", "max"]);
        header.extend(["srv us/op", "user", "system", "CPUs", "generator"]);
        let ways = self.stages.iter().any(|stage| stage.report.ways.is_some());
        header.extend(ways.then_some("one-sided"));
        if !servers {
            header.remove(1);
        }
        table.set_header(header.iter().map(|text| Cell::new(*text)));
        for stage in &self.stages {
            for row in rows(stage, servers) {
                table.add_row(row);
            }
        }
        let words = if servers { 2 } else { 1 };
        for (at, column) in table.column_iter_mut().enumerate() {
            column.set_padding((0, 2));
            let left = at < words || at == words + 2;
            column.set_cell_alignment(if left { CellAlignment::Left } else { CellAlignment::Right });
        }
        let mut text = String::new();
        if let Some(first) = self.stages.first() {
            let report = &first.report;
            let (threads, connections) = (report.threads, report.connections);
            if !servers {
                text += &format!("{} ", report.target);
            }
            text += &format!("({}), {threads} thread(s), {connections} connections\n", report.protocol);
        }
        text += &format!("{}\n", table.trim_fmt());
        for (whose, note) in self.said() {
            text += &format!("{whose}: {note}\n");
        }
        if let Some(why) = &self.failed {
            text += &format!("FAILED: {why}\n");
        }
        text
    }
}

/// Returns a line of the table for each kind of latency, the first with the run's own figures.
fn rows(stage: &Stage, servers: bool) -> Vec<Vec<String>> {
    let report = &stage.report;
    let mut rows = Vec::new();
    for (at, (kind, summary)) in report.latencies.iter().enumerate() {
        let mut row: Vec<String> = Vec::new();
        if at == 0 {
            row.push(stage.name.clone());
            if servers {
                row.push(report.target.clone());
            }
            row.extend([format!("{:.0}", report.rate), format!("{:.1}", report.megabytes())]);
        } else {
            row.resize(if servers { 4 } else { 3 }, String::new());
        }
        row.push(kind.name().into());
        let Summary { mean, p50, p99, p999, max, .. } = *summary;
        row.extend([mean, p50, p99, p999, max].map(|figure| format!("{figure:.1}")));
        if at == 0 {
            match &report.server {
                Some(server) => {
                    row.extend([server.ns(), server.user_ns, server.system_ns].map(|ns| format!("{:.2}", ns / 1e3)));
                    row.push(format!("{:.2}", server.cpus));
                }
                None => row.extend(["-"; 4].map(str::to_owned)),
            }
            row.push(format!("{:.0} %", 100.0 * report.generator.busy));
            row.extend(report.ways.map(|ways| format!("{:.1} %", 100.0 * ways.one_sided_share())));
        }
        rows.push(row);
    }
    if rows.is_empty() {
        rows.push(vec![stage.name.clone()]);
    }
    rows
}

fn of(some: usize, all: usize) -> String {
    if some == all { "all runs".to_owned() } else { format!("{some} of {all} runs") }
}

/// For what share of the time the server computed where the generator did, if that matters.
pub(crate) fn shared_cpu(report: &Report) -> Option<f64> {
    report.server.as_ref().and_then(|server| server.shared).filter(|&shared| shared > 0.05)
}

pub(crate) fn on_one_cpu(percent: &str) -> String {
    format!(
        "{percent} % of the time the server computed on the generator's CPU: give them CPUs of their own (--pin here, \
         taskset there)"
    )
}

/// Returns the remarks on a run's figures; but for [`shared_cpu`], which is often the same of many.
pub(crate) fn notes(report: &Report) -> Vec<String> {
    let mut notes = Vec::new();
    let said = report.invalid_because.iter().any(|why| why.contains("GETs missed"));
    if report.misses > 0 && report.penalty.is_none() && !said {
        notes.push(format!("{} of {} GETs missed", report.misses, report.hits + report.misses));
    }
    if let Some(scanned) = &report.scanned {
        notes.push(format!("scans found {} of {} keys", scanned.found, scanned.sought));
    }
    if let Some(blocks) = &report.bursts {
        notes.push(format!(
            "{} blocks of {} bytes, {:.0} MB/s on a connection while one is under way (median), {} begun late since the one before \
             was not done",
            blocks.done, blocks.bytes, blocks.median_megabytes, blocks.overrun
        ));
    }
    if let Some(cost) = &report.penalty {
        notes.push(format!(
            "{:.1} % of the GETs missed; at {:.0} us each ({}) that is {:.3} s, which no request waited for",
            100.0 * cost.miss_share,
            cost.mean,
            cost.about,
            cost.seconds
        ));
    }
    if let Some(ways) = &report.ways {
        let few = ways.one_sided_share() < 0.5 && ways.messages + ways.transfers > ways.sockets;
        notes.push(format!(
            "{:.1} % of the values were read one-sidedly ({}); {} came in messages, {} by transfers, {} over sockets{}",
            100.0 * ways.one_sided_share(),
            ways.one_sided,
            ways.messages,
            ways.transfers,
            ways.sockets,
            if few { "; the server's stats say why (refused_share, refused_churn, ...)" } else { "" }
        ));
    }
    if report.errors > 0 {
        let first = report.first_error.as_deref().unwrap_or_default();
        notes.push(format!("{} requests were refused, the first with: {first}", report.errors));
    }
    if report.lost > 0 {
        notes.push(format!("{} datagrams were not answered", report.lost));
    }
    if report.is_limited_by_generator() {
        notes.push("the generator's threads had no time left: they may be what limits the rate (-t, --pin)".into());
    }
    match report.wrong_values {
        Some(wrong) if wrong > 0 => notes.push(format!("WRONG: {wrong} values were not what was written")),
        _ => {}
    }
    notes.extend(report.invalid_because.iter().map(|why| format!("INVALID: {why}")));
    if let Some(why) = &report.ended_early {
        notes.push(format!("ENDED after {:.2} s that count: {why}", report.seconds));
    }
    notes
}
