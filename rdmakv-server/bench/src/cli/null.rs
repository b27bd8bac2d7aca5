//! `null-server`.

use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

use crate::Sizes;
use crate::null::Null;
use clap::Args;

use super::Failure;
use super::session::raise_descriptors;

#[derive(Debug, Args)]
#[command(after_help = "\
Give it a CPU of its own: left alone, the system puts two that wake each other on one, and each has half of it.

Examples:
  rdmakv-bench null-server 127.0.0.1:22122 --pin 0           in one terminal
  rdmakv-bench run 127.0.0.1:22122 --pin 1                 in another: what generator, sockets and system can do")]
pub(super) struct NullServer {
    /// Address to listen on: HOST:PORT (0 is a free one), udp:HOST:PORT, unix:PATH
    #[arg(default_value = "127.0.0.1:0")]
    listen: String,
    /// Bytes of a value, as the generator has them
    #[arg(short = 's', long, default_value = "1024", value_name = "BYTES")]
    size: Sizes,
    /// Stay on this CPU
    #[arg(long, value_name = "CPU")]
    pin: Option<usize>,
    /// Look for requests again and again instead of sleeping: then no wake-up is needed
    #[arg(long)]
    spin: bool,
}

impl NullServer {
    pub(super) fn act(&self) -> Result<ExitCode, Failure> {
        let null = Null::bind(&self.listen, &self.size).map_err(Failure::work)?.spinning(self.spin);
        if let Some(cpu) = self.pin {
            crate::pin(cpu).map_err(Failure::usage)?;
        }
        raise_descriptors();
        println!("listening on {}", null.target());
        match null.serve(&AtomicBool::new(false)) {
            Ok(()) => Ok(ExitCode::SUCCESS),
            Err(error) => Err(Failure::work(format!("serving: {error}"))),
        }
    }
}
