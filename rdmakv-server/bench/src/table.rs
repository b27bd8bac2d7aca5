//! Reports and sweeps as text.

use std::fmt::Write;

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};

use crate::remarks::{self, on_one_cpu, shared_cpu};
use crate::report::{Report, Summary};
use crate::sweep::{Stage, Sweep};

/// Returns the report as a few lines of text.
pub fn render(report: &Report) -> String {
    let mut text = String::new();
    let loop_kind = match (&report.schedule, report.depth) {
        (Some(kept), None) => {
            kept.wanted.map_or("open loop".into(), |wanted| format!("open loop, {wanted:.0} requests a second"))
        }
        (_, depth) => format!("closed loop, depth {}", depth.unwrap_or(1)),
    };
    let (threads, connections) = (report.threads, report.connections);
    let _ = writeln!(
        text,
        "{} ({}), {threads} thread(s), {connections} connections, {loop_kind}",
        report.target, report.protocol
    );
    let _ = writeln!(text, "{}; keys {}, values of {} bytes", report.traffic, report.keys, report.sizes);
    let _ = writeln!(
        text,
        "{:.0} operations a second: {} in {:.2} s ({} hits, {} misses, {} stored), {:.1} MB/s",
        report.rate,
        report.operations,
        report.seconds,
        report.hits,
        report.misses,
        report.stored,
        report.megabytes()
    );
    let rows = report.latencies.iter().map(|(kind, summary)| row(kind.name(), summary));
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(["us", "mean", "p50", "p90", "p99", "p99.9", "p99.99", "max"].map(Cell::new));
    table.add_rows(rows);
    for (at, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        column.set_cell_alignment(if at == 0 { CellAlignment::Left } else { CellAlignment::Right });
    }
    let _ = writeln!(text, "{}", table.trim_fmt());
    let own = &report.generator;
    let _ = writeln!(
        text,
        "generator: {:.0} ns of CPU an operation ({:.0} user, {:.0} system), {:.0} % busy; {:.2} reads, {:.2} writes, {:.2} waits",
        own.user_ns + own.system_ns,
        own.user_ns,
        own.system_ns,
        100.0 * own.busy,
        own.reads,
        own.writes,
        own.waits
    );
    match &report.server {
        Some(server) => {
            let (name, pid) = (&server.name, server.pid);
            let _ = writeln!(
                text,
                "server:    {:.0} ns of CPU an operation ({:.0} user, {:.0} system), {:.2} CPUs; {name}, process {pid}",
                server.ns(),
                server.user_ns,
                server.system_ns,
                server.cpus
            );
        }
        None => text.push_str("server:    its process is not to be seen from here, nor its CPU\n"),
    }
    if let Some(kept) = &report.schedule {
        let _ = writeln!(
            text,
            "schedule:  {:.0} started a second; late by {:.1} us (median), {:.1} us (p99), {:.1} us (max)",
            kept.started, kept.late_p50, kept.late_p99, kept.late_max
        );
    }
    if report.wrong_values == Some(0) {
        text.push_str("values:    each was what it should be\n");
    }
    let shared = shared_cpu(report).map(|share| on_one_cpu(&format!("{:.0}", 100.0 * share)));
    for note in remarks::of_run(report).into_iter().chain(shared) {
        let _ = writeln!(text, "note:      {note}");
    }
    text
}

fn row(name: &str, summary: &Summary) -> Vec<String> {
    let figures = [summary.mean, summary.p50, summary.p90, summary.p99, summary.p999, summary.p9999, summary.max];
    std::iter::once(name.into()).chain(figures.into_iter().map(|figure| format!("{figure:.1}"))).collect()
}

/// For people: a run as [`render`] shows it, several as a table and what is to be said of them.
pub fn table(sweep: &Sweep) -> String {
    if let [only] = &sweep.stages[..] {
        return render(&only.report);
    }
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    let servers = sweep.has_servers();
    let mut header = vec!["", "server"];
    header.extend(["ops/s", "MB/s", "us:", "mean", "p50", "p99", "p99.9", "max"]);
    header.extend(["srv us/op", "user", "system", "CPUs", "generator"]);
    let sources = sweep.stages.iter().any(|stage| stage.report.sources.is_some());
    header.extend(sources.then_some("one-sided"));
    if !servers {
        header.remove(1);
    }
    table.set_header(header.iter().map(|text| Cell::new(*text)));
    for stage in &sweep.stages {
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
    if let Some(first) = sweep.stages.first() {
        let report = &first.report;
        let (threads, connections) = (report.threads, report.connections);
        if !servers {
            text += &format!("{} ", report.target);
        }
        text += &format!("({}), {threads} thread(s), {connections} connections\n", report.protocol);
    }
    text += &format!("{}\n", table.trim_fmt());
    for (whose, note) in remarks::of_sweep(sweep) {
        text += &format!("{whose}: {note}\n");
    }
    if let Some(why) = &sweep.failed {
        text += &format!("FAILED: {why}\n");
    }
    text
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
            row.extend(report.sources.map(|sources| format!("{:.1} %", 100.0 * sources.one_sided_share())));
        }
        rows.push(row);
    }
    if rows.is_empty() {
        rows.push(vec![stage.name.clone()]);
    }
    rows
}
