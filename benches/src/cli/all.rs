//! `side-by-side all`: every part, one after the other.
//!
//! Each is this program again, as a user would start it alone: the effects of one part on its process (CPUs, memory) reach
//! no other. It prints its tables itself and saves its rows, of which the JSON and the page are made at the end.

use super::output::{cannot_write, doubts};
use super::{Stop, asked};
use crate::side_by_side::host::Host;
use crate::side_by_side::report;
use crate::side_by_side::results::{Before, Kept, markdown};
use clap::{Args, ValueEnum};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The parts, by the names of their commands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Part {
    Cache,
    Sim,
    Fabric,
    Handshake,
    Kv,
    Resilience,
}

#[derive(Args, Default)]
#[command(after_help = EXAMPLES)]
pub(super) struct All {
    /// Print JSON lines only: the head, then name, ours, peer, unit, ratio. Tables go nowhere
    #[arg(long)]
    json: bool,

    /// As short as can be: whether everything runs, not what it takes
    #[arg(long)]
    quick: bool,

    /// Also write a page of tables to this file, as benches/RESULTS.md is. What it has that is not measured now stays
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,

    /// Only these parts; several with commas
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    only: Vec<Part>,
}

const EXAMPLES: &str = "\
Each part prints its head (the machine, versions of ours and of the peers) and its tables; JSON lines of all follow at the
end, behind one that has the heads. A peer that is not there is left out with a line that says how to install it. No ratio is
given where the rounds of ours and of the peer overlap.

Examples:
  side-by-side                                        everything, a quarter of an hour
  side-by-side all --quick                            whether everything runs, a minute
  side-by-side all --markdown benches/RESULTS.md      and a page of it
  side-by-side all --only fabric,kv --json > figures.jsonl

Exit status: 0 measured, 1 something could not be measured (the rest was), 2 wrong usage.";

pub(super) fn run(all: &All) -> Result<(), Stop> {
    // Before a quarter of an hour is spent on what cannot be kept.
    if let Some(page) = &all.markdown {
        writable(page).map_err(|error| Stop::Measuring(cannot_write(page, &error)))?;
    }
    let folder = tempfile::tempdir().map_err(|error| Stop::Measuring(format!("a temporary folder: {error}")))?;
    let host = Host::look();
    let parts: Vec<Part> = if all.only.is_empty() { Part::value_variants().into() } else { all.only.clone() };
    let (mut kept, mut failed) = (Vec::new(), Vec::new());
    for (nth, part) in parts.iter().enumerate() {
        let name = part.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
        eprintln!("== {name} ({} of {})", nth + 1, parts.len());
        match one(&name, all, &folder.path().join(&name)) {
            Ok(part) => {
                failed.extend((!part.whole).then_some(name));
                kept.push(part);
            }
            Err(error) => {
                eprintln!("side-by-side {name}: {error}");
                failed.push(name);
            }
        }
    }
    let mut out = io::stdout().lock();
    let heads: Vec<_> = kept.iter().map(|part| &part.head).collect();
    serde_json::to_writer(&mut out, &serde_json::json!({ "host": host, "quick": all.quick, "parts": heads }))
        .map_err(io::Error::from)?;
    writeln!(out)?;
    for part in &kept {
        let rows: Vec<_> = part.rows.iter().map(|row| row.row.clone()).collect();
        report::json(&mut out, &rows)?;
    }
    out.flush()?;
    if let Some(page) = &all.markdown {
        write_page(page, all, &host, &kept, &failed).map_err(|error| Stop::Measuring(cannot_write(page, &error)))?;
    }
    match failed.as_slice() {
        [] => Ok(()),
        failed => Err(Stop::Measuring(format!("not measured to their end: {}", failed.join(", ")))),
    }
}

/// Runs one part to its end.
fn one(name: &str, all: &All, file: &Path) -> Result<Kept, String> {
    let mut command = Command::new(std::env::current_exe().map_err(|error| error.to_string())?);
    command.arg(name).arg("--save").arg(file).stdin(Stdio::null());
    if all.quick {
        command.arg("--quick");
    }
    if all.json {
        command.stdout(Stdio::null());
    }
    let status = command.status().map_err(|error| error.to_string())?;
    let text = fs::read(file).map_err(|_| format!("it ended with {status} before it measured anything"))?;
    Kept::read(&String::from_utf8_lossy(&text), status.success())?
        .ok_or_else(|| format!("it ended with {status} before it measured anything"))
}

/// Returns whether the page can be written, and leaves no trace.
fn writable(page: &Path) -> io::Result<()> {
    if page.exists() {
        return fs::File::options().append(true).open(page).map(drop);
    }
    tempfile::tempfile_in(folder_of(page)).map(drop)
}

fn folder_of(page: &Path) -> &Path {
    page.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Writes the page, with what it has now that was not measured. It is whole at any time.
fn write_page(page: &Path, all: &All, host: &Host, kept: &[Kept], failed: &[String]) -> io::Result<()> {
    let is_there = page.exists();
    let page = if is_there { fs::canonicalize(page)? } else { page.to_owned() };
    let is_file = !is_there || fs::metadata(&page)?.is_file();
    let before = if is_there && is_file { Before::of(&fs::read_to_string(&page)?) } else { Before::default() };
    let mut text = Vec::new();
    let command = format!("cargo run --release -p benches --bin {}", asked().replacen(' ', " -- ", 1));
    markdown(&mut text, &command, host, &doubts(all.quick).collect::<Vec<_>>(), kept, failed, &before)?;
    if !is_file {
        return fs::write(page, text);
    }
    let mut new = page.clone().into_os_string();
    new.push(".new");
    let written = fs::write(&new, text).and_then(|()| {
        if is_there {
            fs::set_permissions(&new, fs::metadata(&page)?.permissions())?;
        }
        fs::rename(&new, &page)
    });
    written.inspect_err(|_| _ = fs::remove_file(&new))
}
