//! `paper`: the measurements of "Wimpy nodes with 10GbE: leveraging one-sided operations in soft-RDMA to boost memcached", section 4.
//! A thousand pairs are written; then they are read at the highest rate, and what counts is the server's CPU.

use std::process::ExitCode;

use crate::{Mix, Sizes, Traffic};
use clap::Args;

use super::Failure;
use super::flags::{Common, Loop, Output, each_size, whole};
use super::session::{Go, Session};

#[derive(Debug, Args)]
#[command(mut_arg("keys", |arg| arg.default_value("1000")), mut_arg("duration", |arg| arg.default_value("3s")), after_help = "\
The server has to run on this host, or its CPU time cannot be seen. Give both CPUs of their own: `taskset -c 0 memcached`
and --pin 1. For the paper's lower clock, give the server a smaller share of its CPU (cgroup's cpu.max).

All keys are to be there: 1,000 values of 100 KB take more than a server's usual 64 MB; `memcached -m 256` has room.

Examples:
  rdmakv-bench paper 127.0.0.1:11211 --pin 1
  rdmakv-bench paper 127.0.0.1:11211 127.0.0.1:22122 --rounds 5 --html paper.html   two, in turn")]
pub(super) struct Paper {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    pattern: Loop,
    /// Bytes of a value, one size after the other
    #[arg(long, default_value = "1k,10k,100k", value_name = "LIST", value_delimiter = ',', value_parser = each_size,
          help_heading = "Keys and values")]
    sizes: Vec<Sizes>,
    /// How often all of it is done; servers take turns
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = whole::<u32, 10_000>, help_heading = "Load")]
    rounds: u32,
    #[command(flatten)]
    output: Output,
}

impl Paper {
    pub(super) fn act(&self) -> Result<ExitCode, Failure> {
        let mut session = Session::begin("paper", "GETs at the highest rate", &self.output)?;
        'all: for round in 1..=self.rounds {
            for size in &self.sizes {
                for server in self.common.servers() {
                    let mut plan = self.common.plan(server, session.interrupt());
                    self.pattern.apply(&mut plan);
                    plan.sizes = size.clone();
                    plan.must_hit = true;
                    plan.traffic = Traffic::Mix(Mix::sets(0.0));
                    let name = if self.rounds > 1 { format!("{size} #{round}") } else { size.to_string() };
                    if session.stage(&name, &plan)? == Go::Home {
                        break 'all;
                    }
                }
            }
        }
        session.finish()
    }
}
