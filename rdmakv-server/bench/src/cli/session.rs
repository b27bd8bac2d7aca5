//! The run of a command's plans: one after the other, with progress, and a report at the end.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime};

use crate::{Histograms, Kind, Moment, Plan, Second, Stage, Sweep, run_watched};
use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};

use super::Failure;
use super::flags::Output;

/// A command at work.
pub(super) struct Session<'a> {
    output: &'a Output,
    sweep: Sweep,
    interrupt: Arc<AtomicBool>,
    begin: Instant,
    /// Tag, when, and the histogram, of each second; written in the end, as the format has one start for all.
    logged: Vec<(String, Duration, hdrhistogram::Histogram<u64>)>,
}

/// Whether there is any sense in going on.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Go {
    On,
    Home,
}

impl<'a> Session<'a> {
    /// Makes ready; files that cannot be written are heard of now and not in the end.
    pub(super) fn begin(command: &str, title: &str, output: &'a Output) -> Result<Self, Failure> {
        for (flag, path) in [("--log", &output.log), ("--html", &output.html)] {
            if let Some(path) = path {
                File::create(path).map_err(|error| Failure::work(format!("{flag} {}: {error}", path.display())))?;
            }
        }
        raise_descriptors();
        let interrupt = Arc::new(AtomicBool::new(false));
        let heard = Arc::clone(&interrupt);
        // The second time, the wait ends at once.
        let _ = ctrlc::set_handler(move || {
            if heard.swap(true, Relaxed) {
                std::process::exit(130);
            }
        });
        let sweep = Sweep::new(command, title, std::env::args().skip(1));
        Ok(Self { output, sweep, interrupt, begin: Instant::now(), logged: Vec::new() })
    }

    /// Returns the flag that ends runs early.
    pub(super) fn interrupt(&self) -> &Arc<AtomicBool> {
        &self.interrupt
    }

    /// Prints a message, unless the run is quiet.
    pub(super) fn tell(&self, what: &str) {
        if !self.output.quiet {
            eprintln!("{what}");
        }
    }

    /// Runs a plan. A fault of it is the caller's error; a failure is part of the result.
    pub(super) fn stage(&mut self, name: &str, plan: &Plan) -> Result<Go, Failure> {
        self.stage_of(("", ""), name, plan)
    }

    /// The same, of a group that is shown together, where it has a shorter name.
    pub(super) fn stage_of(&mut self, (group, short): (&str, &str), name: &str, plan: &Plan) -> Result<Go, Failure> {
        plan.check().map_err(Failure::usage)?;
        let loads = if plan.load { format!(" (writing {} keys first)", plan.keys) } else { String::new() };
        self.tell(&format!("{}{name}, {}{loads}", if name.is_empty() { "run" } else { "" }, plan.target));
        let (mut moments, quiet) = (Vec::new(), self.output.quiet);
        let mut before = Duration::ZERO;
        let (log, offset) = (self.output.log.is_some(), self.begin.elapsed());
        let logged = &mut self.logged;
        let done = run_watched(plan, |second| {
            if !quiet {
                show(second);
            }
            moments.push(Moment::of(second, before, plan.warm_up));
            if log {
                for (kind, histogram) in present(second.latencies) {
                    let tag = if name.is_empty() { kind.name().to_owned() } else { format!("{name}/{}", kind.name()) };
                    logged.push((tag.replace([' ', ','], "_"), offset + before, histogram.clone()));
                }
            }
            before = second.at;
        });
        match done {
            Ok(report) => {
                let go = if report.ended_early.is_some() { Go::Home } else { Go::On };
                self.sweep.stages.push(Stage {
                    group: group.to_owned(),
                    short: short.to_owned(),
                    name: name.to_owned(),
                    report,
                    moments,
                });
                Ok(go)
            }
            Err(wrong) => {
                self.sweep.failed = Some(wrong);
                Ok(Go::Home)
            }
        }
    }

    /// Prints and writes all there is.
    pub(super) fn finish(self) -> Result<ExitCode, Failure> {
        let Self { output, sweep, logged, .. } = self;
        if !sweep.stages.is_empty() {
            let text = if output.json { sweep.json() } else { crate::table(&sweep) };
            // A reader that does not read to the end wants no more.
            let _ = std::io::stdout().write_all(text.as_bytes());
            if let Some(path) = &output.html {
                std::fs::write(path, crate::html(&sweep))
                    .map_err(|error| Failure::work(format!("--html {}: {error}", path.display())))?;
            }
            if let Some(path) = &output.log {
                write_log(path, &logged, &sweep)
                    .map_err(|error| Failure::work(format!("--log {}: {error}", path.display())))?;
            }
        }
        match sweep.why_not_good() {
            None => Ok(ExitCode::SUCCESS),
            Some(why) => Err(Failure::work(why)),
        }
    }
}

fn present(latencies: &Histograms) -> impl Iterator<Item = (Kind, &hdrhistogram::Histogram<u64>)> {
    Kind::ALL.into_iter().filter_map(|kind| Some((kind, latencies.of(kind)?)))
}

fn write_log(
    path: &Path,
    logged: &[(String, Duration, hdrhistogram::Histogram<u64>)],
    sweep: &Sweep,
) -> Result<(), String> {
    let mut file = BufWriter::new(File::create(path).map_err(|error| error.to_string())?);
    let mut serializer = V2DeflateSerializer::new();
    let mut builder = IntervalLogWriterBuilder::new();
    builder.add_comment(&format!("{}, latencies in nanoseconds", sweep.command_line));
    builder.with_start_time(SystemTime::now() - logged.last().map_or(Duration::ZERO, |(_, at, _)| *at));
    let mut log = builder.begin_log_with(&mut file, &mut serializer).map_err(|error| error.to_string())?;
    for (tag, at, histogram) in logged {
        log.write_histogram(histogram, *at, Duration::from_secs(1), Tag::new(tag))
            .map_err(|error| format!("{error:?}"))?;
    }
    drop(log);
    file.flush().map_err(|error| error.to_string())
}

fn show(second: &Second<'_>) {
    let mut line = format!("{:>4.0} s  {:>9} answers", second.at.as_secs_f64(), second.answers);
    for (kind, latencies) in present(second.latencies).filter(|(kind, _)| *kind != Kind::WithPenalty) {
        let at = |quantile| latencies.value_at_quantile(quantile) as f64 / 1e3;
        line += &format!("  {} p50 {:.0} us, p99 {:.0} us, max {:.0} us", kind.name(), at(0.5), at(0.99), at(1.0));
    }
    if second.misses > 0 {
        line += &format!("  {} misses", second.misses);
    }
    if second.failures > 0 {
        line += &format!("  {} FAILED", second.failures);
    }
    eprintln!("{line}");
}

/// As many descriptors as the system lets us have.
pub(super) fn raise_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}
