//! `compare`: policies at a range of capacities, on one trace or several.

use super::choices::{Choices, Chosen, chosen_of};
use super::compared::report;
use super::failure::{Failure, note};
use super::form::Form;
use super::info::look_at;
use super::interrupt;
use super::output::Output;
use super::report::{ReportFile, origin};
use super::run::run;
use super::source::{Source, name, present};
use super::whole::whole;
use super::widening;
use crate::policies::builtin;
use crate::report::comparison;
use crate::row::{Row, level};
use crate::shard::{self, Described, Head, Line, Shard};
use crate::sizes::Capacity;
use crate::sweep::{Cell, Sweep};
use std::path::PathBuf;

/// Compare policies at a range of capacities
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES, after_long_help = LONG)]
pub(crate) struct Compare {
    /// The traces, each read once
    #[arg(required_unless_present = "held_out", value_name = "TRACE")]
    traces: Vec<PathBuf>,
    /// Also compare on the workloads by which the default policy is chosen (docs/default-policy.md)
    #[arg(long)]
    held_out: bool,
    /// The policies, with commas, or all
    #[arg(short, long, value_name = "NAME", value_delimiter = ',', default_value = "all", value_parser = chosen_of(builtin()))]
    policy: Vec<Chosen>,
    /// The capacities of each process's cache, with commas: 8192p, 32MiB (or 32M; 32MB is 32,000,000 bytes), or shares of
    /// the footprint
    #[arg(
        short,
        long,
        value_name = "SIZE",
        value_delimiter = ',',
        allow_hyphen_values = true,
        default_value = "1%,2%,5%,10%,20%,30%,40%,50%"
    )]
    capacity: Vec<Capacity>,
    /// Replays at a time [default: as many as there are processors]
    #[arg(long, value_name = "N", value_parser = whole::<u16>(1..=u64::from(u16::MAX)))]
    threads: Option<u16>,
    /// Do the K-th of N shares, for `tracesim merge` to join
    #[arg(long, value_name = "K/N", conflicts_with_all = ["json", "csv"])]
    shard: Option<Shard>,
    /// Write a page with plots as well: one HTML file that needs no other and no network
    #[arg(long, value_name = "FILE.html", conflicts_with = "shard")]
    report: Option<PathBuf>,
    #[command(flatten)]
    choices: Choices,
    #[command(flatten)]
    source: Source,
    #[command(flatten)]
    form: Form,
}

/// The workloads by which the default policy is chosen: nothing was tuned to them.
const HELD_OUT: [&str; 14] = [
    "buffers:pattern=halo,seed=31",
    "buffers:pattern=views,seed=31",
    "buffers:pattern=log,seed=31",
    "buffers:pattern=merge,seed=31",
    "buffers:pattern=graph,seed=31",
    "buffers:pattern=slabs,seed=31",
    "buffers:pattern=log,pages=65536,requests=300000,seed=32",
    "buffers:pattern=merge,pages=4096,requests=100000,seed=32",
    "buffers:pattern=graph,pages=65536,requests=300000,seed=32",
    "buffers:pattern=slabs,pages=4096,requests=100000,seed=32",
    "zipf:objects=5000,pages=64,exponent=1.1,requests=200000,seed=31",
    "httpd:requests=150000,clients=3,seed=31",
    "cello92:requests=100000,client-cache=100MB,skew=0.7,seed=31",
    "cello92:requests=100000,one-page=0.5,seed=32",
];

const EXAMPLES: &str = "\
Examples:
  tracesim compare requests.csv                          every policy, 1 to 50 % of the footprint
  tracesim compare -p mrrc,pindown -c 8MiB,32MiB *.csv   two policies on several traces
  tracesim compare --report page.html requests.csv       with a page of plots
  tracesim compare --csv -o results.csv requests.csv     for a spreadsheet
  tracesim compare --shard 2/8 -o 2.shard *.csv          one of eight shares (see --help)";

const LONG: &str = "\
Examples:
  tracesim compare requests.csv                          every policy, 1 to 50 % of the footprint
  tracesim compare -p mrrc,pindown -c 8MiB,32MiB *.csv   two policies on several traces
  tracesim compare --report page.html requests.csv       with a page of plots
  tracesim compare --csv -o results.csv requests.csv     for a spreadsheet

Beside the policies stand no cache at all, an infinite cache, and the lower bound. The policies
are sorted by the geometric mean of their costs. In --json and --csv the first two are the
policies none, at 0 pages, and infinite, at the footprint. Requests that find all in use are
charged what they cost without a cache; where there are any, `refused` says how many.

A study that outgrows one machine:
  The same command with --shard K/N, for each K from 1 to N, does the whole of it. The replays are
  dealt out in turn, so every share reads the traces. The shares may run anywhere, at any time and
  more than once; they have nothing in common but the command. `tracesim merge` joins them, and
  says which are missing. README.md has each of these whole.

  GNU parallel:
    parallel tracesim compare --shard {}/8 -o {}.shard traces/*.csv ::: $(seq 8)
    tracesim merge *.shard

  Slurm, as an array (sbatch --array=1-8 job.sh):
    K=$SLURM_ARRAY_TASK_ID
    srun tracesim compare --shard $K/$SLURM_ARRAY_TASK_COUNT -o $K.shard traces/*.csv

  Kubernetes, as an indexed Job (indices begin at 0):
    K=$((JOB_COMPLETION_INDEX + 1))
    tracesim compare --shard $K/8 -o /results/$K.shard /traces/*.csv";

impl Compare {
    pub(crate) fn run(&mut self) -> Result<(), Failure> {
        if self.held_out {
            self.traces.extend(HELD_OUT.map(PathBuf::from));
        }
        let mut different: Vec<PathBuf> = Vec::new();
        for trace in std::mem::take(&mut self.traces) {
            // Standard input is refused below.
            if different.contains(&trace) && trace.as_os_str() != "-" {
                note(&format!("{} is named twice: it is taken once", trace.display()));
            } else {
                different.push(trace);
            }
        }
        self.traces = different;
        let sweep = self.choices.sweep(&self.policy, &self.capacity, true)?;
        if let Some(threads) = self.threads {
            // More than there are replays would only wait.
            let threads = usize::from(threads).min(sweep.cells().len());
            // It was not made before, so this can only fail for lack of threads.
            rayon::ThreadPoolBuilder::new().num_threads(threads).build_global().map_err(Failure::work)?;
        }
        let mut out = self.form.open(&self.traces)?;
        let mut page = self
            .report
            .as_deref()
            .map(|file| ReportFile::open(file, self.form.output.as_deref(), &self.traces))
            .transpose()?;
        let described = self.describe(&sweep);
        let (finished, failure) = self.replay(&sweep, page.as_mut())?;
        let unfinished = interrupt::came() || failure.is_some();
        if unfinished {
            out = out.given_up();
        }
        let done = finished.len();
        let rows: Vec<(usize, Row)> = finished.iter().map(|line| (line.cell, line.row.clone())).collect();
        // A page that cannot be written takes no table along, nor a table the page.
        let printed = self.print(&mut out, &described, finished).and_then(|()| out.finish());
        if let Some(page) = page.filter(|_| !unfinished) {
            let file = page.file.clone();
            page.write(|infos, provenance| comparison::page(&described, &rows, infos, provenance))?;
            note(&format!("report in {}", file.display()));
        }
        printed?;
        match failure {
            Some(failure) => Err(failure),
            None if interrupt::came() => {
                Err(Failure::Unfinished(done, self.share(&sweep).iter().map(|(_, cells)| cells.len()).sum()))
            }
            None => Ok(()),
        }
    }

    /// Returns the results of this share, or of all, up to an interruption or to a trace that failed after others were
    /// finished.
    fn replay(
        &self,
        sweep: &Sweep,
        mut page: Option<&mut ReportFile>,
    ) -> Result<(Vec<Line>, Option<Failure>), Failure> {
        let mine = self.share(sweep);
        present(mine.iter().map(|(at, _)| self.traces[*at].as_path()))?;
        let mut all = Vec::new();
        for (at, cells) in mine {
            let result = self.replay_one(sweep, at, &cells, page.as_deref_mut(), &mut all);
            match result {
                Err(Failure::Interrupted) => break,
                Err(failure) if all.is_empty() => return Err(failure),
                Err(failure) => return Ok((all, Some(failure))),
                Ok(()) if interrupt::came() => break,
                Ok(()) => {}
            }
        }
        Ok((all, None))
    }

    /// Returns the cells that are to be done of each trace, by its place, with their numbers.
    fn share(&self, sweep: &Sweep) -> Vec<(usize, Vec<(usize, Cell)>)> {
        let cells = sweep.cells();
        let takes = |cell: usize| self.shard.is_none_or(|shard| shard.takes(cell));
        let of = |at: usize| {
            let numbered = cells.iter().enumerate().map(|(cell, &what)| (at * cells.len() + cell, what));
            (at, numbered.filter(|(cell, _)| takes(*cell)).collect::<Vec<_>>())
        };
        (0..self.traces.len()).map(of).filter(|(_, cells)| !cells.is_empty()).collect()
    }

    /// Reads a trace and adds the results of its cells.
    fn replay_one(
        &self,
        sweep: &Sweep,
        at: usize,
        cells: &[(usize, Cell)],
        page: Option<&mut ReportFile>,
        all: &mut Vec<Line>,
    ) -> Result<(), Failure> {
        let path = &self.traces[at];
        let (trace, footprint) = self.source.load(path)?;
        widening::tell(sweep, self.choices.asks_to_widen(&self.policy), &trace);
        let checksum = if self.shard.is_some() { shard::checksum(&trace) } else { String::new() };
        let (numbers, mine): (Vec<usize>, Vec<Cell>) = cells.iter().copied().unzip();
        let finished = run(sweep, &trace, &footprint, &mine)?;
        let line = |(cell, finished): (usize, Option<crate::sweep::Finished>)| {
            finished.map(|finished| Line { cell, checksum: checksum.clone(), row: finished.row })
        };
        all.extend(numbers.into_iter().zip(finished).filter_map(line));
        if let Some(page) = page.filter(|_| !interrupt::came()) {
            page.add(at, look_at(&trace, &footprint)?, |steps| origin(path, steps))?;
        }
        Ok(())
    }

    fn print(&self, out: &mut Output, study: &Described, lines: Vec<Line>) -> Result<(), Failure> {
        if let Some(shard) = self.shard {
            let head = Head { tracesim_shard: shard::VERSION, shard, study: study.clone() };
            return out.write(|mut out| shard::write(&mut out, &head, &lines));
        }
        let (numbers, mut rows): (Vec<usize>, Vec<Row>) = lines.into_iter().map(|line| (line.cell, line.row)).unzip();
        level(&mut rows);
        self.form.write(out, &rows, || {
            let numbered: Vec<(usize, Row)> = numbers.into_iter().zip(rows.iter().cloned()).collect();
            report(study, &numbered)
        })
    }

    fn describe(&self, sweep: &Sweep) -> Described {
        let cost = sweep.base.cost;
        Described {
            traces: self.traces.iter().map(|path| name(path)).collect(),
            policies: sweep.policies.iter().map(|policy| policy.label(&sweep.base)).collect(),
            capacities: sweep.capacities.iter().map(ToString::to_string).collect(),
            cells_each: sweep.cells().len(),
            cost: [cost.reg_page, cost.reg_call, cost.dereg_page, cost.dereg_call],
            dereg: sweep.dereg,
            choices: format!("{} {:?} {:?}", env!("CARGO_PKG_VERSION"), sweep.base, sweep.recency),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_out_workloads_can_be_generated() {
        for workload in HELD_OUT {
            let workload: traces::generate::Workload = workload.parse().expect(workload);
            let first = workload.generate().expect("the options go together").next();
            assert!(matches!(first, Some(Ok(_))), "{workload}");
        }
    }

    #[test]
    fn the_rule_lists_what_is_compared() {
        let rule = include_str!("../../../docs/default-policy.md");
        assert!(HELD_OUT.iter().all(|workload| rule.contains(workload)));
    }
}
