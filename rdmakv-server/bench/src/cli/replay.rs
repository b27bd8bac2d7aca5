//! `replay`: what a trace asked for.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use crate::plan::DEPTH_MAX;
use crate::{Recording, Sizes, Traffic};
use clap::Args;
use traces::{BlockSize, Columns, Format, ReadOptions};

use super::Failure;
use super::flags::{Common, Output, whole};
use super::session::{Go, Session};

#[derive(Debug, Args)]
#[command(mut_arg("duration", |arg| arg.default_value("86400s").hide_default_value(true).help("Time after which no more is asked for")),
    mut_arg("warm_up", |arg| arg.default_value("0s")), mut_arg("keys", |arg| arg.hide(true)),
    mut_arg("key_prefix", |arg| arg.default_value("obj")), after_help = "\
TRACE is a file in any format that `traces` reads, also compressed (.gz, .xz, .zst); - is standard input. In logs of web servers,
objects (`time id bytes`), libCacheSim's records (oracleGeneral), application traces and blocks of language models each object is a
key; elsewhere (disks: arc, lirs, spc, msr, blkparse, srt, csv) aligned chunks are, as of a server that caches blocks. Reads become GETs,
and what they miss is written, as by a program that fetches it elsewhere; writes become SETs. With --speed the loop is
open: requests start when they did, whatever the server does, and latencies count from then.

Examples:
  rdmakv-bench replay access.log.gz 127.0.0.1:11211             as fast as it answers: hit ratio and rate
  rdmakv-bench replay cluster.oracleGeneral.zst --speed 100     a hundred times as fast as it was
  rdmakv-bench replay disk.csv --columns time=1,addr=2:sector,len=3,op=4 --chunk 8k --requests 1000000")]
pub(super) struct Replay {
    /// The trace
    trace: PathBuf,
    #[command(flatten)]
    common: Common,
    /// Requests under way on each connection, with --speed max
    #[arg(short = 'd', long, default_value_t = 1, value_name = "N", value_parser = whole::<usize, { DEPTH_MAX as u64 }>, help_heading = "Load")]
    depth: usize,
    /// How much faster than it was, 1 for as it was; max for as fast as it is answered
    #[arg(long, default_value = "max", value_name = "FACTOR", value_parser = speed, help_heading = "Load")]
    speed: Speed,
    /// Do not write what was missed
    #[arg(long, help_heading = "Load")]
    no_fill: bool,
    /// The format of the trace [default: it is detected]
    #[arg(long, value_name = "NAME", help_heading = "Trace")]
    format: Option<Format>,
    /// Which column of a CSV means what, by number from 1 or by name: time=1,addr=2:sector,len=3,op=4
    #[arg(long, value_name = "LIST", help_heading = "Trace")]
    columns: Option<Columns>,
    /// Bytes of a block, where the format counts blocks: 512, 4k, 2MiB or page
    #[arg(long, value_name = "SIZE", help_heading = "Trace")]
    block: Option<BlockSize>,
    /// Bytes of a value at most [default: 1000000 for objects, 4096 for blocks]
    #[arg(long, value_name = "BYTES", help_heading = "Trace")]
    chunk: Option<Sizes>,
    /// Requests at most
    #[arg(long, value_name = "N", help_heading = "Trace")]
    requests: Option<u64>,
    #[command(flatten)]
    output: Output,
}

#[derive(Clone, Copy, Debug)]
enum Speed {
    Max,
    Times(f64),
}

fn speed(text: &str) -> Result<Speed, String> {
    match text.parse::<f64>() {
        _ if text == "max" => Ok(Speed::Max),
        Ok(times) if times.is_finite() && times > 0.0 => Ok(Speed::Times(times)),
        _ => Err("a factor is needed, such as 1 or 60, or max".into()),
    }
}

impl Replay {
    pub(super) fn act(&self) -> Result<ExitCode, Failure> {
        let mut session = Session::begin("replay", "A trace replayed", &self.output)?;
        let options = ReadOptions {
            format: self.format,
            columns: self.columns.clone(),
            block: self.block,
            ..ReadOptions::default()
        };
        let chunk = self.chunk.as_ref().map(|size| size.most() as u64);
        let recording = Recording::open(&self.trace, &options, chunk, self.requests).map_err(Failure::work)?;
        session.tell(&recording.about());
        let recording = Arc::new(recording);
        for server in self.common.servers() {
            let mut plan = self.common.plan(server, session.interrupt());
            plan.keys = recording.keys();
            plan.sizes = recording.sizes();
            plan.depth = self.depth;
            plan.load = false;
            plan.fill = !self.no_fill;
            plan.speed = match self.speed {
                Speed::Max => None,
                Speed::Times(times) => Some(times),
            };
            plan.traffic = Traffic::Replay(Arc::clone(&recording));
            if session.stage("", &plan)? == Go::Home {
                break;
            }
        }
        session.finish()
    }
}
