//! `latency`: the micro-benchmarks of the survey (section 5.1): SETs, GETs and both; blocking, and with a window of
//! requests under way, as a client has that does not wait for each.

use std::process::ExitCode;

use crate::{Mix, Sizes, Target, Traffic};
use clap::{Args, ValueEnum};

use super::Failure;
use super::flags::{Chosen, Common, Output, each_size, mix};
use super::session::{Go, Session};

#[derive(Debug, Args)]
#[command(mut_arg("keys", |arg| arg.default_value("1000")), mut_arg("connections", |arg| arg.default_value("1")),
    mut_arg("duration", |arg| arg.default_value("1s")), mut_arg("warm_up", |arg| arg.default_value("200ms")), after_help = "\
A window of 1 is a client that waits for each answer; with a larger one, latencies have the time in the queue in them, and the
rate shows what overlap gains.

All keys are to be there: 1,000 values of 512 KB take a server that was started with -m 1024, as `memcached -m 1024`.

Examples:
  rdmakv-bench latency 127.0.0.1:11211
  rdmakv-bench latency unix:/run/kv.sock --sizes 64,4k,512k --windows 1,8,64 --ops get")]
pub(super) struct Latency {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    chosen: Chosen,
    /// Bytes of a value, one size after the other
    #[arg(long, default_value = "64,1k,8k,64k,512k", value_name = "LIST", value_delimiter = ',', value_parser = each_size,
          help_heading = "Keys and values")]
    sizes: Vec<Sizes>,
    /// Which of set, get and mixed [default: all, over UDP get]
    #[arg(long, value_delimiter = ',', value_enum, value_name = "LIST", help_heading = "Load")]
    ops: Vec<Ops>,
    /// GETs to SETs of mixed
    #[arg(short = 'm', long, value_name = "GETS:SETS", default_value = "1:1", value_parser = mix, help_heading = "Load")]
    mix: f64,
    /// Requests under way: 1 waits for each answer
    #[arg(long, default_value = "1,32", value_name = "LIST", value_delimiter = ',', help_heading = "Load")]
    windows: Vec<usize>,
    #[command(flatten)]
    output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Ops {
    Set,
    Get,
    Mixed,
}

impl Latency {
    pub(super) fn act(&self) -> Result<ExitCode, Failure> {
        let mut session = Session::begin("latency", "Latencies", &self.output)?;
        'all: for server in self.common.servers() {
            let udp = matches!(server, Target::Udp(_));
            let ops: &[Ops] = match self.ops.as_slice() {
                [] if udp => &[Ops::Get],
                [] => &[Ops::Set, Ops::Get, Ops::Mixed],
                some => some,
            };
            for size in &self.sizes {
                let mut loaded = false;
                for &op in ops {
                    for &window in &self.windows {
                        let mut plan = self.common.plan(server, session.interrupt());
                        plan.choice = self.chosen.choice;
                        plan.sizes = size.clone();
                        plan.must_hit = true;
                        plan.depth = window;
                        let (word, sets) = match op {
                            Ops::Set => ("set", 1.0),
                            Ops::Get => ("get", 0.0),
                            Ops::Mixed => ("mixed", self.mix),
                        };
                        plan.traffic = Traffic::Mix(Mix::sets(sets));
                        plan.load = !loaded && op != Ops::Set;
                        loaded |= plan.load;
                        let how = if window == 1 { "blocking".into() } else { format!("window {window}") };
                        let (group, name) = (format!("{word}, {how}"), format!("{word} {size} {how}"));
                        if session.stage_of((&group, &size.to_string()), &name, &plan)? == Go::Home {
                            break 'all;
                        }
                    }
                }
            }
        }
        session.finish()
    }
}
