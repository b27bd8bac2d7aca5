//! `bursty`: blocks of many chunks and silence between them (the survey, section 5.4): checkpoints of simulations, and files that pass
//! through a burst buffer.

use std::process::ExitCode;
use std::time::Duration;

use crate::plan::DEPTH_MAX;
use crate::{Bursts, Plan, Sizes, Traffic};
use clap::Args;

use super::Failure;
use super::flags::{Common, Output, mix, time, whole};
use super::session::{Go, Session};

#[derive(Debug, Args)]
#[command(mut_arg("connections", |arg| arg.default_value("4")), mut_arg("warm_up", |arg| arg.default_value("0s")),
    mut_arg("keys", |arg| arg.hide(true)), after_help = "\
Each connection is a process of a parallel program with blocks of its own. Without --mix it does as programs with checkpoints do:
in the first stage all write a block each --period, together; in the second they read them back without a pause, as after a restart.
With --mix each block is read or written by chance.

Examples:
  rdmakv-bench bursty 127.0.0.1:11211                        4 processes, 4 MB each second, then a restart
  rdmakv-bench bursty 127.0.0.1:11211 -c 16 --block 16m --chunk 512k --period 5s -T 30
  rdmakv-bench bursty unix:/run/kv.sock -m 3:1 --period 0 --pause 50ms")]
pub(super) struct Bursty {
    #[command(flatten)]
    common: Common,
    /// Bytes of a block: a whole number of chunks
    #[arg(long, default_value = "4m", value_name = "BYTES", value_parser = bytes, help_heading = "Blocks")]
    block: usize,
    /// Bytes of a chunk, which is a value
    #[arg(long, default_value = "256k", value_name = "BYTES", value_parser = bytes, help_heading = "Blocks")]
    chunk: usize,
    /// Blocks of each connection; after the last comes the first again
    #[arg(long, default_value_t = 2, value_name = "N", value_parser = whole::<u64, 1_000_000_000>, help_heading = "Blocks")]
    blocks: u64,
    /// From the beginning of a block to that of the next; 0 for one after the other
    #[arg(long, default_value = "1s", value_name = "TIME", value_parser = time, help_heading = "Blocks")]
    period: Duration,
    /// From the end of a block to the next, where there is no period
    #[arg(long, default_value = "0s", value_name = "TIME", value_parser = time, help_heading = "Blocks")]
    pause: Duration,
    /// Chunks under way on each connection
    #[arg(short = 'd', long, default_value_t = 8, value_name = "N", value_parser = whole::<usize, { DEPTH_MAX as u64 }>, help_heading = "Blocks")]
    depth: usize,
    /// Blocks read to blocks written
    #[arg(short = 'm', long, value_name = "GETS:SETS", value_parser = mix, help_heading = "Blocks")]
    mix: Option<f64>,
    /// Connections begin one after the other over a period, not together
    #[arg(long, help_heading = "Blocks")]
    staggered: bool,
    #[command(flatten)]
    output: Output,
}

fn bytes(text: &str) -> Result<usize, String> {
    let sizes: Sizes = text.parse()?;
    Ok(sizes.most())
}

impl Bursty {
    pub(super) fn act(&self) -> Result<ExitCode, Failure> {
        let mut session = Session::begin("bursty", "Blocks in bursts", &self.output)?;
        let period = (!self.period.is_zero()).then_some(self.period);
        let usual = Bursts {
            block: self.block,
            chunk: self.chunk,
            blocks: self.blocks,
            reads: 0.0,
            period,
            pause: self.pause,
            staggered: self.staggered,
        };
        let restart = Bursts { reads: 1.0, period: None, pause: Duration::ZERO, ..usual.clone() };
        let stages = match self.mix {
            Some(sets) => vec![("mixed", Bursts { reads: 1.0 - sets, ..usual }, true)],
            None => vec![("checkpoint", usual.clone(), false), ("restart", restart, false)],
        };
        'all: for server in self.common.servers() {
            for (name, bursts, load) in &stages {
                let mut plan: Plan = self.common.plan(server, session.interrupt());
                plan.keys = (plan.connections as u64).saturating_mul(bursts.blocks).saturating_mul(bursts.chunks());
                plan.sizes = self.chunk.to_string().parse().map_err(Failure::usage)?;
                plan.depth = self.depth;
                plan.load = *load;
                plan.traffic = Traffic::Bursts(bursts.clone());
                // The blocks read back were written, if there was time for each block; to find nothing is no reading.
                let blocks = u32::try_from(self.blocks).unwrap_or(u32::MAX);
                let all = period.unwrap_or_default().saturating_mul(blocks);
                plan.must_hit = *name == "restart" && all <= plan.duration;
                if session.stage(name, &plan)? == Go::Home {
                    break 'all;
                }
            }
        }
        session.finish()
    }
}
