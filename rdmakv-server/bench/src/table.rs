//! A report for people.

use std::fmt::Write;

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};

use crate::report::{Report, Summary};

/// The report as a few lines of text.
pub fn render(report: &Report) -> String {
    let mut text = String::new();
    let loop_kind = match (&report.schedule, report.depth) {
        (Some(kept), _) => format!("open loop, {:.0} requests a second", kept.wanted),
        (None, depth) => format!("closed loop, depth {}", depth.unwrap_or(1)),
    };
    let (threads, connections) = (report.threads, report.connections);
    let _ = writeln!(
        text,
        "{} ({}), {threads} thread(s), {connections} connections, {loop_kind}",
        report.target, report.protocol
    );
    let _ = writeln!(text, "keys {}, values of {} bytes", report.keys, report.sizes);
    let _ = writeln!(
        text,
        "{:.0} operations a second: {} in {:.2} s ({} hits, {} misses, {} stored)",
        report.rate, report.operations, report.seconds, report.hits, report.misses, report.stored
    );
    let rows = [("GET", report.gets), ("SET", report.sets)];
    let rows = rows.into_iter().filter_map(|(name, summary)| Some(row(name, &summary?)));
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
    if report.errors > 0 {
        let first = report.first_error.as_deref().unwrap_or_default();
        let _ = writeln!(text, "errors:    {} requests were refused, the first with: {first}", report.errors);
    }
    if report.lost > 0 {
        let _ = writeln!(text, "lost:      {} datagrams were not answered", report.lost);
    }
    match report.wrong_values {
        Some(0) => text.push_str("values:    each was what it should be\n"),
        Some(wrong) => {
            let _ = writeln!(text, "WRONG:     {wrong} values were not what was written");
        }
        None => {}
    }
    for why in &report.invalid_because {
        let _ = writeln!(text, "INVALID:   {why}");
    }
    if let Some(why) = &report.ended_early {
        let _ = writeln!(text, "ENDED:     after {:.2} s that count: {why}", report.seconds);
    }
    text
}

fn row(name: &str, summary: &Summary) -> Vec<String> {
    let figures = [summary.mean, summary.p50, summary.p90, summary.p99, summary.p999, summary.p9999, summary.max];
    std::iter::once(name.into()).chain(figures.into_iter().map(|figure| format!("{figure:.1}"))).collect()
}
