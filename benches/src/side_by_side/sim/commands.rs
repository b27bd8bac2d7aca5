//! Whole commands, as users start them.
//!
//! Ours is `tracesim replay --json --no-bound`: its start, reading the trace twice where the format needs it, the footprint, the
//! replay and the output. The peer is a process of Python with libCacheSim: its start, mapping the trace, and the replay.
//! CPU is that of the program and of the kernel for it: one copies the trace, and the other maps it.

use super::{Options, millions};
use crate::peer::libcachesim::{self, Ask, Environment};
use crate::pin;
use crate::side_by_side::figure::Figure;
use crate::side_by_side::report::{Row, Unit};
use mrrc::PAGE;
use std::env;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tracesim::policies::PolicyEntry;

/// The name under which this program is `tracesim`.
pub const TRACESIM: &str = "tracesim";

/// The title of the table.
pub const TITLE: &str = "Whole commands, start and reading included: requests a second of CPU, the kernel's included";

/// The trace that both sides read, and their settings.
pub struct Commands<'a> {
    options: &'a Options,
    file: PathBuf,
    requests: u64,
    capacity_pages: u64,
    peer: Option<&'a Environment>,
}

impl<'a> Commands<'a> {
    pub(super) fn new(
        options: &'a Options,
        file: &Path,
        requests: u64,
        capacity_pages: u64,
        peer: Option<&'a Environment>,
    ) -> Self {
        Self { options, file: file.into(), requests, capacity_pages, peer }
    }

    /// Runs both with this policy, in turns.
    ///
    /// # Errors
    /// The reason why one of them did not end well.
    pub fn measure(&self, policy: &PolicyEntry) -> Result<Row, String> {
        let peer = self.peer.filter(|_| libcachesim::has(policy.name()));
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..self.options.rounds {
            ours.push(self.rate(|| self.ours(policy))?);
            if let Some(environment) = peer {
                theirs.push(self.rate(|| self.theirs(environment, policy))?);
            }
        }
        let peer = Some(theirs).filter(|rates| !rates.is_empty()).map(Figure::highest);
        Ok(Row::new(format!("sim/{policy}/command"), Figure::highest(ours), peer, Unit::Millions))
    }

    /// Returns the requests a second of CPU, the kernel's included, of a child that ends within `run`.
    fn rate(&self, run: impl FnOnce() -> Result<(), String>) -> Result<f64, String> {
        let before = pin::seconds_of_children();
        run()?;
        Ok(millions(self.requests, pin::seconds_of_children() - before))
    }

    fn ours(&self, policy: &PolicyEntry) -> Result<(), String> {
        let program = env::current_exe().map_err(|error| format!("where this program is: {error}"))?;
        let mut command = Command::new(program);
        command.arg0(TRACESIM).args(["replay", "--json", "--no-bound", "--policy", policy.name(), "--capacity"]);
        command.arg(format!("{}p", self.capacity_pages)).arg(&self.file);
        let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{TRACESIM}: {error}"))?;
        if output.status.success() {
            return Ok(());
        }
        Err(format!("{TRACESIM}: {}", String::from_utf8_lossy(&output.stderr).trim()))
    }

    fn theirs(&self, environment: &Environment, policy: &PolicyEntry) -> Result<(), String> {
        let capacity = self.capacity_pages.saturating_mul(PAGE);
        let mut peer = environment.start(&self.file, Some(self.options.cpu))?;
        peer.replay(&Ask { policy: policy.name(), capacity, requests: None }).map(drop)
    }
}
