//! `hybrid`: a cache that does not hold everything, before a database (the survey, section 5.2). The database is asked once,
//! for the cost of a miss; in the run no request waits for it.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::{Mix, Penalty, Traffic};
use clap::{Args, Subcommand};

use super::Failure;
use super::flags::{Chosen, Common, Loop, Output, Valued, time};
use super::session::{Go, Session};
use super::study::Study;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, mut_arg("size", |arg| arg.default_value("32k")), after_help = "\
Keys are written, as many as the server keeps; then they are read, and what is missed is written again. Latencies are the cache's
own; GET+PENALTY adds to each miss what the database would have taken: --penalty, or a time drawn from those that were
measured before the run.

Examples:
  rdmakv-bench hybrid 127.0.0.1:11211 -k 20000 --penalty 95ms              the survey's case
  rdmakv-bench hybrid study                                                servers with flash and without
  rdmakv-bench hybrid 127.0.0.1:11211 --choice latest --penalty-of-file /var/lib/db/table
  rdmakv-bench hybrid 127.0.0.1:11211 --penalty-by 'mysql -e \"select * from t where k = 1\" db'")]
pub(super) struct Hybrid {
    #[command(subcommand)]
    study: Option<Inner>,
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    pattern: Loop,
    #[command(flatten)]
    chosen: Chosen,
    #[command(flatten)]
    valued: Valued,
    /// Cost of a miss
    #[arg(long, default_value = "95ms", value_name = "TIME", value_parser = time, help_heading = "Database")]
    penalty: Duration,
    /// Measure it: read values of this file, at drawn places, past the system's cache
    #[arg(long, value_name = "FILE", conflicts_with = "penalty", help_heading = "Database")]
    penalty_of_file: Option<PathBuf>,
    /// Measure it: run this by the shell; the time of starting a command is taken off
    #[arg(long, value_name = "COMMAND", conflicts_with_all = ["penalty", "penalty_of_file"], help_heading = "Database")]
    penalty_by: Option<String>,
    /// Do not write what was missed
    #[arg(long, help_heading = "Database")]
    no_fill: bool,
    /// Do not write the keys before
    #[arg(long, help_heading = "Keys and values")]
    no_load: bool,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Subcommand)]
enum Inner {
    /// Starts rdmakv-server with flash, memcached, and memcached with extstore, and compares what misses cost
    Study(Box<Study>),
}

impl Hybrid {
    pub(super) fn act(&self) -> Result<ExitCode, Failure> {
        if let Some(Inner::Study(study)) = &self.study {
            return study.act();
        }
        let mut session = Session::begin("hybrid", "A cache before a database", &self.output)?;
        let penalty = match (&self.penalty_of_file, &self.penalty_by) {
            (Some(path), _) => Penalty::of_file(path, self.valued.size.most()),
            (_, Some(command)) => Penalty::of_command(command),
            (None, None) => Ok(Penalty::of(self.penalty)),
        }
        .map_err(Failure::work)?;
        session.tell(&format!("a miss costs {:.3} ms ({})", penalty.mean().as_secs_f64() * 1e3, penalty.about()));
        for server in self.common.servers() {
            let mut plan = self.common.plan(server, session.interrupt());
            self.pattern.apply(&mut plan);
            plan.choice = self.chosen.choice;
            plan.sizes = self.valued.size.clone();
            plan.load = !self.no_load;
            plan.penalty = Some(penalty.clone());
            plan.traffic = Traffic::Mix(Mix { reads: 1.0, fill: !self.no_fill, ..Mix::default() });
            if session.stage("", &plan)? == Go::Home {
                break;
            }
        }
        session.finish()
    }
}
