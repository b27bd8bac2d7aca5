//! A run as people read it: a table of what was done, and each violation with the operations in question.

use std::collections::BTreeMap;
use std::fmt::Write;

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};

use crate::evidence::{Ending, Evidence, Finding, Line};
use crate::history::{NEVER, Value};
use crate::keys::Keys;
use crate::record::{Answer, Request, Transport};
use crate::torture::Run;
use crate::values::{COUNTS, writer};

/// Violations that are shown in full.
const SHOWN: usize = 10;

#[derive(Default)]
struct Row {
    all: u64,
    transports: [u64; Transport::ALL.len()],
    one_sided: u64,
    effective: u64,
    absent: u64,
    refused: u64,
    not_done: u64,
    unknown: u64,
}

/// Returns the report of a run.
pub fn render(run: &Run, keys: Keys) -> String {
    let mut text = String::new();
    table(run, &mut text);
    for finding in run.findings.wrong.iter().take(SHOWN) {
        let _ = writeln!(text);
        violation(&run.evidence, finding, keys, run.began, &mut text);
    }
    if let Some(more) = run.findings.wrong.len().checked_sub(SHOWN).filter(|&more| more > 0) {
        let _ = writeln!(text, "\nand {more} more");
    }
    for &key in &run.findings.undecided {
        let _ = writeln!(text, "undecided: {}: too much was under way together", keys.name(key));
    }
    text
}

fn table(run: &Run, text: &mut String) {
    let mut rows: BTreeMap<usize, (&str, Row)> = BTreeMap::new();
    let mut total = Row::default();
    for record in run.evidence.records() {
        let (place, name) = match record.request {
            Request::Get => (0, "GET"),
            Request::Set(_) => (1, "SET"),
            Request::Add(_) => (2, "ADD"),
            Request::Cas { .. } => (3, "CAS"),
            Request::Incr => (4, "INCR"),
            Request::Delete => (5, "DELETE"),
            Request::Touch => (6, "TOUCH"),
            Request::Flush => (7, "FLUSH"),
        };
        let (_, row) = rows.entry(place).or_insert_with(|| (name, Row::default()));
        for row in [row, &mut total] {
            row.all += 1;
            row.transports[record.transport as usize] += 1;
            row.one_sided += u64::from(record.one_sided);
            *match record.answer {
                Answer::Value(_) | Answer::Done | Answer::Torn(..) => &mut row.effective,
                Answer::Absent => &mut row.absent,
                Answer::Refused => &mut row.refused,
                Answer::NotDone => &mut row.not_done,
                Answer::Unknown => &mut row.unknown,
            } += 1;
        }
    }
    let in_datagrams = total.transports[Transport::Udp as usize];
    let one_sided_share = |row: &Row| format!("{:.1} %", 100.0 * row.one_sided as f64 / row.all.max(1) as f64);
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    let names = [
        "",
        "all",
        "tcp",
        "socket",
        "shm",
        "iwarp",
        "udp",
        "datagrams",
        "hybrid",
        "one-sided",
        "done",
        "absent",
        "refused",
        "not-done",
        "unknown",
    ];
    table.set_header(names.map(Cell::new));
    for (name, row) in rows.values().map(|(name, row)| (*name, row)).chain([("all", &total)]) {
        let counts = row.transports.map(|count| count.to_string());
        let rest = [row.effective, row.absent, row.refused, row.not_done, row.unknown].map(|count| count.to_string());
        let cells = [name.to_owned(), row.all.to_string()].into_iter().chain(counts).chain([one_sided_share(row)]);
        table.add_row(cells.chain(rest));
    }
    for (at, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        column.set_cell_alignment(if at == 0 { CellAlignment::Left } else { CellAlignment::Right });
    }
    let _ = writeln!(text, "{}", table.trim_fmt());
    let ended = |ending| run.restarts.iter().filter(|restart| restart.ending == ending).count();
    let _ = writeln!(
        text,
        "{} restarts ({} after an orderly stop, {} killed while they stopped or started), {} client processes killed, {} items evicted and {} expired as far as servers lived to tell",
        run.restarts.len(),
        ended(Ending::Stopped),
        ended(Ending::Interrupted),
        run.killed,
        run.evicted,
        run.expired
    );
    if run.lost_datagrams > 0 {
        let _ = writeln!(text, "{} datagrams were lost on purpose", run.lost_datagrams);
    }
    if run.moved_clients > 0 {
        let _ = writeln!(text, "{} times a busy client moved to a connection, likewise", run.moved_clients);
    }
    if run.from_flash > 0 {
        let _ =
            writeln!(text, "{} values came back from flash, {} were moved there, likewise", run.from_flash, run.moved);
    }
    if run.in_kernel > 0 {
        let share = 100.0 * run.in_kernel as f64 / in_datagrams.max(1) as f64;
        let _ = writeln!(
            text,
            "{} GETs were answered in the kernel, likewise: {share:.0} % of those in datagrams",
            run.in_kernel
        );
    }
    let mut kinds: BTreeMap<String, u32> = BTreeMap::new();
    run.findings.wrong.iter().for_each(|finding| *kinds.entry(finding.violation.kind.to_string()).or_default() += 1);
    let kinds: Vec<String> = kinds.iter().map(|(kind, count)| format!("{kind}: {count}")).collect();
    let of = if kinds.is_empty() { String::new() } else { format!(" ({})", kinds.join(", ")) };
    let _ = writeln!(
        text,
        "{} operations on {} keys in {:.1} s, judged in {:.1} s: {} violations{of}, {} keys undecided, {} answers without sense",
        total.all,
        run.findings.keys,
        run.worked.as_secs_f64(),
        run.judged.as_secs_f64(),
        run.findings.wrong.len(),
        run.findings.undecided.len(),
        run.evidence.nonsense()
    );
}

fn violation(evidence: &Evidence, finding: &Finding, keys: Keys, began: u64, text: &mut String) {
    let _ =
        writeln!(text, "VIOLATION {}: {}: {}", keys.name(finding.key), finding.violation.kind, finding.violation.why);
    let is_counter = keys.is_counter(finding.key);
    let mut values: Vec<Value> = Vec::new();
    for (line, letter) in finding.lines.iter().zip('A'..='Z') {
        let at = |moment| time(moment, began);
        match line {
            Line::Did { thread, line, record } => {
                let (what, named) = wording(record.request, record.answer, is_counter);
                values.extend(named);
                let path = if record.one_sided { "one-sided" } else { record.transport.name() };
                let name = name(*thread, *line);
                let _ = writeln!(
                    text,
                    "  {letter}  {:>12} to {:>12} s  {name:<10} {path:<9} {what}",
                    at(record.begin),
                    at(record.end)
                );
            }
            Line::Restarted(restart) => {
                let (begin, end) = (at(restart.begin), at(restart.answered));
                let _ = writeln!(
                    text,
                    "  {letter}  {begin:>12} to {end:>12} s  the server was killed and another one answered"
                );
            }
        }
    }
    values.sort_unstable();
    values.dedup();
    for value in values {
        let version = if is_counter { value >> COUNTS } else { value };
        let source = writer(version).and_then(|(thread, line)| evidence.line(thread, line));
        let known =
            source.filter(|source| matches!(source.request, Request::Set(_) | Request::Add(_) | Request::Cas { .. }));
        match known {
            None => {
                let _ = writeln!(text, "  {}: it was never written", shown(value, is_counter));
            }
            Some(source) if source.key != finding.key => {
                let key = keys.name(source.key);
                let _ = writeln!(text, "  {}: was written to {key}", shown(value, is_counter));
            }
            Some(source) => {
                let is_shown =
                    finding.lines.iter().any(|line| matches!(line, Line::Did { record, .. } if *record == source));
                if !is_shown {
                    let (begin, end) = (time(source.begin, began), time(source.end, began));
                    let _ = writeln!(text, "  {}: was written from {begin} to {end} s", shown(value, is_counter));
                }
            }
        }
    }
}

/// Seconds since the run began.
fn time(at: u64, began: u64) -> String {
    if at == NEVER { "...".into() } else { format!("{:.6}", (at - began) as f64 / 1e9) }
}

/// Returns a thread's line, which is also what its value is called.
fn name(thread: usize, line: usize) -> String {
    format!("{thread}:{line}")
}

fn shown(value: Value, is_counter: bool) -> String {
    let version = if is_counter { value >> COUNTS } else { value };
    let count = if is_counter { format!("+{}", value & ((1 << COUNTS) - 1)) } else { String::new() };
    match writer(version) {
        Some((thread, line)) => format!("value {}{count}", name(thread, line)),
        None => format!("value {value:#x}"),
    }
}

fn wording(request: Request, answer: Answer, is_counter: bool) -> (String, Vec<Value>) {
    let shown = |value| shown(value, is_counter);
    let mut named = Vec::new();
    let asked = match request {
        Request::Get => "GET".into(),
        Request::Set(value) => format!("SET {}", shown(value)),
        Request::Add(value) => format!("ADD {}", shown(value)),
        Request::Cas { from, to } => format!("CAS {} to {}", shown(from), shown(to)),
        Request::Incr => "INCR".into(),
        Request::Delete => "DELETE".into(),
        Request::Touch => "TOUCH".into(),
        Request::Flush => "FLUSH".into(),
    };
    let came = match answer {
        Answer::Unknown => "no answer".into(),
        Answer::Value(value) => {
            named.push(value);
            shown(value)
        }
        Answer::Done => "done".into(),
        Answer::Refused => "there was a value, or another".into(),
        Answer::Absent => "absent".into(),
        Answer::NotDone => "not done".into(),
        Answer::Torn(one, other) if one == other => format!("torn: not as long as {}", shown(one)),
        Answer::Torn(one, other) => {
            named.extend([one, other]);
            format!("torn: words of {} and of {}", shown(one), shown(other))
        }
    };
    (format!("{asked}: {came}"), named)
}
