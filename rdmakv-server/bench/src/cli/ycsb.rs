//! `ycsb`: the core workloads of the Yahoo! Cloud Serving Benchmark against a key-value server.
//!
//! A server of memcached's kind keeps whole values under keys without order. So an update writes a whole record, and a scan (E)
//! cannot ask for "the next hundred keys after this one": the client, which knows how keys are numbered, asks for them by name in one
//! request.

use std::process::ExitCode;
use std::time::Duration;

use crate::{Choice, Mix, Plan, Traffic};
use clap::Args;

use super::Failure;
use super::flags::{Common, Loop, Output, Valued};
use super::session::{Go, Session};

#[derive(Debug, Args)]
#[command(mut_arg("keys", |arg| arg.default_value("100000")), mut_arg("size", |arg| arg.default_value("1000")),
    mut_arg("key_len", |arg| arg.default_value("24")), mut_arg("key_prefix", |arg| arg.default_value("user")), after_help = "\
  A  half reads, half updates               zipf      D  95 % reads, 5 % new keys       latest
  B  95 % reads, 5 % updates                zipf      E  95 % scans, 5 % new keys       zipf
  C  reads                                  zipf      F  half reads, half read-modify-write

A read-modify-write is a GET and then a SET of the same key, without a check for writes in between, as in YCSB; it counts
as one operation. memcached has no scans: E reads 1 to --scan keys in a row by one GET that names them all.

Examples:
  rdmakv-bench ycsb a 127.0.0.1:11211
  rdmakv-bench ycsb all unix:/run/kv.sock -k 1000000 -c 64 -t 2 --html ycsb.html
  rdmakv-bench ycsb b,d --choice hotspot:0.1:0.9 -r 20000")]
pub(super) struct Ycsb {
    /// The workloads: a letter, several (a,b,f), or all
    #[arg(value_name = "WORKLOADS")]
    workloads: String,
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    pattern: Loop,
    /// Which keys: uniform, zipf[:SKEW], earliest[:SKEW], latest[:SKEW], hotspot[:PART:SHARE] [default: the workload's]
    #[arg(long, help_heading = "Keys and values")]
    choice: Option<Choice>,
    #[command(flatten)]
    valued: Valued,
    /// Keys of a scan at most
    #[arg(long, default_value_t = 100, value_name = "N", help_heading = "Keys and values")]
    scan: u16,
    /// Do not write the keys before
    #[arg(long, help_heading = "Keys and values")]
    no_load: bool,
    #[command(flatten)]
    output: Output,
}

impl Ycsb {
    pub(super) fn act(&self) -> Result<ExitCode, Failure> {
        let mut workloads = Vec::new();
        let list = if self.workloads == "all" { "a,b,c,f,d,e" } else { &self.workloads };
        for word in list.split(',') {
            let mut letters = word.chars();
            let (Some(letter), None) = (letters.next(), letters.next()) else {
                return Err(unknown(word));
            };
            workloads.push((letter.to_ascii_lowercase(), Mix::ycsb(letter).ok_or_else(|| unknown(word))?));
        }
        let mut session = Session::begin("ycsb", "YCSB", &self.output)?;
        'all: for server in self.common.servers() {
            let mut plan = self.common.plan(server, session.interrupt());
            plan.sizes = self.valued.size.clone();
            plan.load = false;
            let mut loading = plan.clone();
            loading.traffic = Traffic::Load;
            (loading.warm_up, loading.duration) = (Duration::ZERO, Duration::from_secs(86_400));
            self.pattern.apply(&mut plan);
            let mut stages: Vec<(String, Plan)> = Vec::new();
            if !self.no_load {
                stages.push(("load".into(), loading));
            }
            for &(letter, mix) in &workloads {
                let usual = if letter == 'd' { Choice::Latest { skew: 0.99 } } else { Choice::Zipf { skew: 0.99 } };
                let choice = self.choice.unwrap_or(usual);
                let traffic = Traffic::Mix(Mix { scan_most: self.scan, ..mix });
                stages.push((letter.to_ascii_uppercase().to_string(), Plan { choice, traffic, ..plan.clone() }));
            }
            // Impossible ones are reported before the first of them runs.
            stages.iter().try_for_each(|(_, plan)| plan.check()).map_err(Failure::usage)?;
            for (name, plan) in &stages {
                if session.stage(name, plan)? == Go::Home {
                    break 'all;
                }
            }
        }
        session.finish()
    }
}

fn unknown(word: &str) -> Failure {
    Failure::usage(format!("{word:?} is no workload: a to f, several such as a,b,f, or all"))
}
