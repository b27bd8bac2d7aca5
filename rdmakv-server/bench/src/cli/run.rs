//! `run`: one load, all of it by flags.

use std::process::ExitCode;

use crate::{Mix, Target, Traffic};
use clap::Args;

use super::Failure;
use super::flags::{Chosen, Common, Loop, Output, Valued, mix};
use super::session::{Go, Session};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rdmakv-bench run                                    30 GETs to a SET of 1 KB, 16 connections, 5 s
  rdmakv-bench run host:11211 -c 200 -d 8 -s 10-1k --choice zipf
  rdmakv-bench run host:11211 -r 50000 --pin 1        50,000 a second; latencies from when they were due
  rdmakv-bench run unix:/run/kv.sock udp:127.0.0.1:11211 -m 1:0   two ways to one server
  rdmakv-bench run host:11211 --json -q | jq '.stages[0].report.latencies.get.p99'")]
pub(super) struct Run {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    pattern: Loop,
    #[command(flatten)]
    chosen: Chosen,
    #[command(flatten)]
    valued: Valued,
    /// GETs to SETs, such as 30:1; 1:0 only reads [default: 30:1, over UDP 1:0]
    #[arg(short = 'm', long, value_name = "GETS:SETS", value_parser = mix, help_heading = "Keys and values")]
    mix: Option<f64>,
    /// Do not write the keys before
    #[arg(long, help_heading = "Keys and values")]
    no_load: bool,
    #[command(flatten)]
    output: Output,
}

impl Run {
    pub(super) fn act(&self) -> Result<ExitCode, Failure> {
        let mut session = Session::begin("run", "A run", &self.output)?;
        for server in self.common.servers() {
            let mut plan = self.common.plan(server, session.interrupt());
            self.pattern.apply(&mut plan);
            plan.choice = self.chosen.choice;
            plan.sizes = self.valued.size.clone();
            let sets = self.mix.unwrap_or(if matches!(server, Target::Udp(_)) { 0.0 } else { 1.0 / 31.0 });
            plan.traffic = Traffic::Mix(Mix::sets(sets));
            plan.load = !self.no_load;
            if session.stage("", &plan)? == Go::Home {
                break;
            }
        }
        session.finish()
    }
}
