//! `reproduce`: the paper's study again.

use super::calibrate::{self, Registering};
use super::failure::{Failure, note};
use super::interrupt;
use super::output::Output;
use super::progress::Progress;
use super::report::origin_of;
use super::run::run;
use super::source::{self, failed};
use super::table::{Side, percent, table};
use crate::calibrate::copying::copy_us;
use crate::footprint::Footprint;
use crate::policies::PolicyEntry;
use crate::report::provenance::{Origin, Provenance, Source};
use crate::reproduce::claim::{Claim, Kind, Verdict, summary};
use crate::reproduce::figures::{self, Found, Sizes};
use crate::reproduce::latency::{self, Latencies};
use crate::reproduce::logs::{self, Compared};
use crate::reproduce::machine::{self, MESSAGES, Machine};
use crate::reproduce::page::{self, Study as Shown};
use crate::reproduce::workload::{Scale, Subject, subjects};
use crate::row::DeregCost;
use crate::shard::checksum;
use crate::simulate::Recency;
use crate::sizes::Capacity;
use crate::sweep::Sweep;
use mrrc_core::Config;
use mrrc_core::cost::Linear;
use std::path::{Path, PathBuf};
use traces::generate::{Checks, Generator};
use traces::{Event, ReadOptions, Reader, Summary, Trace, TraceError};

/// Run the paper's study, and report which of its claims hold
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Reproduce {
    /// A sixteenth of everything: shows in seconds that it works, not what it finds
    #[arg(long)]
    quick: bool,
    /// The page to write, or the directory to write reproduce.html to
    #[arg(short, long, value_name = "FILE.html|DIR", default_value = "reproduce.html")]
    out: PathBuf,
    /// Real traces, each file of the directory that is one [default: ../shared/traces, if it is there and --quick is not
    /// given]
    #[arg(long, value_name = "DIR")]
    logs: Option<PathBuf>,
    /// Print the claims as JSON, one object a line
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  tracesim reproduce                      the study, and reproduce.html with its plots
  tracesim reproduce --quick --out /tmp   seconds, for a first look
  tracesim reproduce --logs traces/       with the comparison on traces of your own

Both workloads of the paper (HTTPD, Cello92) are generated from what it publishes of them; the
caches are mrrc's own code; costs are the paper's. What counts as holding stands beside each
claim. A claim that does not hold is no failure of the command.";

/// The usual folder of real traces, beside this repository.
const USUAL_LOGS: &str = "../shared/traces";

/// Measurements of each size, for the part that is measured.
const ROUNDS: u32 = 1000;
const QUICK_ROUNDS: u32 = 50;

impl Reproduce {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let file = if self.out.is_dir() { self.out.join("reproduce.html") } else { self.out.clone() };
        if file.as_os_str() == "-" {
            return Err(Failure::usage(
                "the page is a file, as the claims go to standard output: give --out reproduce.html",
            ));
        }
        let logs = self.logs()?;
        let mut out = Output::open(Some(&file), &logs)?;
        let scale = if self.quick { Scale::Sixteenth } else { Scale::Whole };
        let mut origins = Vec::new();
        let [httpd, cello] = subjects(scale).map_err(failed)?;
        let httpd = study(httpd, &mut origins)?;
        let cello = study(cello, &mut origins)?;
        let caution = if self.quick {
            "--quick: a sixteenth of everything, the claimed sizes too. It shows that the study works; what it finds, it finds whole."
        } else {
            ""
        };
        let mut claims = figures::claims(&httpd, &cello);
        let mut compared = Vec::new();
        let measured = self.measure(&logs, &mut claims, &mut compared, &mut origins);
        // The claims do not go with a page that cannot be written, nor with what was interrupted.
        let printed = match &measured {
            Ok(_) | Err(Failure::Interrupted) => self.print(&claims, &compared, caution),
            Err(_) => Ok(()),
        };
        let (machine, latencies) = measured?;
        let shown =
            Shown { claims, found: [httpd, cello], machine, latencies, logs: compared, caution: caution.to_owned() };
        let arguments = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
        let html = page::page(&shown, Provenance::of_command(arguments, origins)).render();
        out.write(|out| out.write_all(html.as_bytes()))?;
        out.finish()?;
        note(&format!("plots and figures in {}", file.display()));
        printed
    }

    /// Measures the parts that do not come from the workloads: this machine, both ends of a transfer, and the real
    /// traces.
    fn measure(
        &self,
        logs: &[PathBuf],
        claims: &mut Vec<Claim>,
        compared: &mut Vec<Compared>,
        origins: &mut Vec<Origin>,
    ) -> Result<(Machine, Latencies), Failure> {
        let machine = measure(if self.quick { QUICK_ROUNDS } else { ROUNDS })?;
        claims.extend(machine::claims(&machine));
        let latencies = latency::run();
        claims.extend(latency::claims(&latencies));
        for log in logs {
            compared.extend(compare(log, origins)?);
        }
        Ok((machine, latencies))
    }

    fn print(&self, claims: &[Claim], compared: &[Compared], caution: &str) -> Result<(), Failure> {
        let printed = if self.json { json(claims)? } else { text(claims, compared, caution) };
        let mut standard = Output::open(None, &[])?;
        standard.write(|out| out.write_all(printed.as_bytes()))?;
        standard.finish()
    }

    /// Returns the real traces, by name.
    fn logs(&self) -> Result<Vec<PathBuf>, Failure> {
        let usual = Path::new(USUAL_LOGS);
        let folder = match &self.logs {
            Some(folder) => folder,
            None if !self.quick && usual.is_dir() => usual,
            None => return Ok(Vec::new()),
        };
        let refused =
            |error| Failure::work(format_args!("{}: read: {error}; give a directory of traces", folder.display()));
        let mut files = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(refused)? {
            let path = entry.map_err(refused)?.path();
            // The page of an earlier run may lie there.
            if path.is_file() && path.extension() != Some("html".as_ref()) {
                files.push(path);
            }
        }
        files.sort();
        Ok(files)
    }
}

/// Events between two reports of how far it is.
const REPORT: u64 = 1 << 14;

/// A generator that ends when the command is interrupted, and stays with its owner.
struct Watched<'a> {
    events: &'a mut dyn Generator,
    progress: &'a Progress,
    seen: u64,
}

impl Iterator for Watched<'_> {
    type Item = Result<Event, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.seen += 1;
        if self.seen.is_multiple_of(REPORT) {
            self.progress.step(REPORT);
            if interrupt::came() {
                let error = std::io::ErrorKind::Interrupted.into();
                return Some(Err(TraceError::Io { file: "workload".into(), doing: "generate", error }));
            }
        }
        self.events.next()
    }
}

impl Reader for Watched<'_> {
    fn summary(&self) -> &Summary {
        self.events.summary()
    }
}

/// Generates a workload and replays it.
fn study(subject: Subject, origins: &mut Vec<Origin>) -> Result<Found, Failure> {
    let progress = Progress::of(&format!("generating {}", subject.name), subject.workload.requests());
    let mut events = subject.workload.generate().map_err(failed)?;
    let trace = Trace::load(subject.name, Watched { events: &mut *events, progress: &progress, seen: 0 }, false)
        .map_err(failed)?;
    let checks: Checks = events.checks();
    drop(progress);
    let footprint = Footprint::of(&trace);
    let base = Config { cost: Linear::PAPER, ..Config::new(1) };
    let sweep = Sweep {
        policies: named(&figures::POLICIES)?,
        capacities: subject.sizes(),
        lines: true,
        base,
        dereg: DeregCost::Batch,
        recency: Recency::Exact,
        bound: true,
    };
    let finished = run(&sweep, &trace, &footprint, &sweep.cells())?;
    if interrupt::came() {
        return Err(Failure::Interrupted);
    }
    let checksum = checksum(&trace);
    let source = Source::of_workload(&subject.workload);
    origins.push(Origin { trace: subject.name.to_owned(), source, steps: checksum.clone() });
    let rows = finished.into_iter().flatten().map(|finished| finished.row).collect();
    let (sizes, footprint_pages) = (Sizes::of(&trace), footprint.pages);
    Ok(Found { subject, checks, sizes, checksum, footprint_pages, rows, cost: Linear::PAPER })
}

/// Measures this machine's registrations and copies. That it refuses to register is a finding.
fn measure(rounds: u32) -> Result<Machine, Failure> {
    let calibration = match calibrate::measure(Registering::IoUring, None, rounds) {
        Ok(calibration) => Ok(calibration),
        Err(Failure::Work(why)) => Err(why),
        Err(other) => return Err(other),
    };
    let us = copy_us(&MESSAGES, rounds).map_err(|error| Failure::work(format_args!("copying: {error}")))?;
    Ok(Machine { calibration, copies: MESSAGES.into_iter().zip(us).collect() })
}

/// Returns the policies of these names.
fn named(names: &[&str]) -> Result<Vec<PolicyEntry>, Failure> {
    names.iter().map(|name| name.parse()).collect::<Result<_, _>>().map_err(Failure::work)
}

/// Returns the comparison on a real trace; nothing, with a line, if it is none.
fn compare(path: &Path, origins: &mut Vec<Origin>) -> Result<Vec<Compared>, Failure> {
    let name = source::name(path);
    let opened = traces::open(path, &ReadOptions::default());
    let watched = opened.map(|reader| source::Watched::reading(reader, &name));
    let trace = match watched.and_then(|reader| Trace::load(name.clone(), reader, false)) {
        Ok(trace) => trace,
        Err(_) if interrupt::came() => return Err(Failure::Interrupted),
        Err(error) => {
            let text = error.to_string();
            note(&format!("{name} is left out: {}", text.lines().next().unwrap_or_default()));
            return Ok(Vec::new());
        }
    };
    let footprint = Footprint::of(&trace);
    if footprint.requests == 0 {
        note(&format!("{name} is left out: no requests in it"));
        return Ok(Vec::new());
    }
    let capacities: Result<Vec<Capacity>, _> = logs::CAPACITIES.iter().map(|size| size.parse()).collect();
    let sweep = Sweep {
        policies: named(&logs::POLICIES)?,
        capacities: capacities.map_err(Failure::work)?,
        lines: true,
        base: Config { cost: Linear::PAPER, ..Config::new(1) },
        dereg: DeregCost::Batch,
        recency: Recency::Exact,
        bound: false,
    };
    let finished = run(&sweep, &trace, &footprint, &sweep.cells())?;
    if interrupt::came() {
        return Err(Failure::Interrupted);
    }
    origins.push(origin_of(path, &name, checksum(&trace))?);
    let rows: Vec<_> = finished.into_iter().flatten().map(|finished| finished.row).collect();
    Ok(logs::compared(&rows, &sweep.base.cost))
}

fn json(claims: &[Claim]) -> Result<String, Failure> {
    let lines: Result<Vec<String>, _> = claims.iter().map(serde_json::to_string).collect();
    Ok(lines.map_err(Failure::work)?.join("\n") + "\n")
}

fn text(claims: &[Claim], logs: &[Compared], caution: &str) -> String {
    let header = ["", "claim", "the paper", "holds if", "here", "verdict"];
    let row = |claim: &Claim| {
        let verdict = claim.verdict.text();
        let Claim { place, claim, paper, rule, here, .. } = claim.clone();
        vec![place, claim, paper, rule, here, verdict.to_owned()]
    };
    let sides = [Side::Left, Side::Left, Side::Left, Side::Left, Side::Right, Side::Left];
    let of = |kind: Kind| claims.iter().filter(move |claim| claim.kind == kind);
    let mut text = table(&sides, &header, of(Kind::Finding).map(row));
    text += &format!(
        "\nThe workloads, generated to be as the paper describes them:\n\n{}",
        table(&sides, &header, of(Kind::Input).map(row))
    );
    text += &format!("\n{}\n", summary(claims));
    for claim in claims.iter().filter(|claim| claim.verdict != Verdict::Holds && !claim.note.is_empty()) {
        text += &format!("  {}, {}: {}\n", claim.place, claim.claim, claim.note);
    }
    if !logs.is_empty() {
        let header =
            ["real traces", "capacity", "hits MRRC", "pin-down", "points", "cheaper: batch", "region", "than no cache"];
        let row = |log: &Compared| {
            vec![
                log.trace.clone(),
                log.capacity.to_owned(),
                percent(log.hits[0]),
                percent(log.hits[1]),
                format!("{:+.1}", 100.0 * (log.hits[0] - log.hits[1])),
                percent(log.cheaper[0]),
                percent(log.cheaper[1]),
                percent(log.below_no_cache[0]),
            ]
        };
        text += &format!("\n{}", table(&[Side::Left, Side::Right], &header, logs.iter().map(row)));
    }
    if !caution.is_empty() {
        text += &format!("\n{caution}\n");
    }
    text
}
