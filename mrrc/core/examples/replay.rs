//! Replays a page trace through every policy and prints what each would have cost.
//!
//! ```text
//! cargo run --release -p mrrc --example replay                  # the sample trace, capacity 512 pages
//! cargo run --release -p mrrc --example replay -- FILE [PAGES]  # a CSV with the header start_page,pages
//! ```

use mrrc_core::cost::Linear;
use mrrc_core::{Config, PageRange};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tracesim_policies::AnyPolicy;

const USAGE: &str = "usage: replay [FILE [PAGES]]\n\n  \
    FILE   a CSV file with the header start_page,pages (default: a sample of 6,000 requests)\n  \
    PAGES  capacity of the cache in pages of 4 KiB (default: 512)\n\n\
    example: replay requests.csv 8192";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|a| a == "--help" || a == "-h") {
        return say(&format!("{USAGE}\n"));
    }
    let sample = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces/data/golden/whole-files.csv");
    let file = arguments.first().map_or_else(sample, PathBuf::from);
    let capacity = match arguments.get(1).map_or(Ok(512), |pages| pages.parse()) {
        Ok(capacity) if arguments.len() <= 2 && !arguments.iter().any(|a| a.starts_with('-')) => capacity,
        _ => {
            return fail(2, &format!("wrong arguments: {}\n\n{USAGE}", arguments.join(" ")));
        }
    };
    match read(&file).and_then(|trace| replay(&file, &trace, capacity)) {
        Ok(table) => say(&table),
        Err(message) => fail(1, &message),
    }
}

/// Prints; a closed pipe means that the reader has seen enough.
fn say(text: &str) -> ExitCode {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => fail(1, &format!("standard output: {error}")),
        _ => ExitCode::SUCCESS,
    }
}

fn fail(code: u8, message: &str) -> ExitCode {
    // An error here could not be reported anywhere.
    let _ = writeln!(std::io::stderr(), "replay: {message}");
    ExitCode::from(code)
}

fn read(file: &Path) -> Result<Vec<PageRange>, String> {
    let at = |line: usize, what: &dyn std::fmt::Display| format!("{}, line {line}: {what}", file.display());
    let text = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let mut lines = text.lines().enumerate();
    if lines.next().map(|(_, header)| header.trim()) != Some("start_page,pages") {
        return Err(at(1, &"expected the header start_page,pages"));
    }
    let mut trace = Vec::new();
    for (number, line) in lines.filter(|(_, line)| !line.trim().is_empty()) {
        let numbers = line.split_once(',').and_then(|(s, p)| Some((s.trim().parse().ok()?, p.trim().parse().ok()?)));
        let (start, pages) = numbers.ok_or_else(|| at(number + 1, &"expected two numbers, start_page,pages"))?;
        trace.push(PageRange::new(start, pages).map_err(|error| at(number + 1, &error))?);
    }
    if trace.is_empty() { Err(at(1, &"no requests")) } else { Ok(trace) }
}

fn replay(file: &Path, trace: &[PageRange], capacity: u64) -> Result<String, String> {
    let cost = Linear::PAPER;
    let mut rows = Vec::new();
    for &policy in AnyPolicy::ALL {
        let mut core = policy.core(&Config::new(capacity)).map_err(|error| error.to_string())?;
        for &asked in trace {
            core.request(asked).map_err(|error| error.to_string())?;
        }
        rows.push((policy, core.counters(), core.counters().cost(&cost).total_us()));
    }
    let no_cache = rows.iter().find(|row| row.0 == AnyPolicy::None).map_or(1.0, |row| row.2);
    rows.sort_by(|a, b| a.2.total_cmp(&b.2));
    let name = file.file_name().unwrap_or(file.as_os_str()).to_string_lossy();
    let mut table = format!("{name}: {} requests, capacity {capacity} pages, {cost}\n\n", trace.len());
    table += "policy          hits page hits     regs  batches    cost ms   of none\n";
    for (policy, counters, us) in rows {
        let (hits, page_hits) = (100.0 * counters.hit_ratio(), 100.0 * counters.page_hit_ratio());
        let (regs, batches) = (counters.regs, counters.dereg_batches);
        let (ms, share) = (us / 1000.0, 100.0 * us / no_cache);
        table +=
            &format!("{policy:<13} {hits:>5.1}% {page_hits:>8.1}% {regs:>8} {batches:>8} {ms:>10.2} {share:>8.1}%\n");
    }
    Ok(table)
}
