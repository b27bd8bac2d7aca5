//! A server under test: started on a CPU, asked over its socket, looked at from outside, ended.

use super::client::Client;
use super::transport::{Address, Transport};
use crate::pin;
use crate::side_by_side::remote::Outcome;
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// By this name our server is started: this program, called so, is it.
pub const OURS: &str = "rdmakv-server";
/// The peer's program.
const PEER: &str = "memcached";

/// The server's maker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    Ours,
    Peer,
}

/// Both, ours first.
pub(super) const BOTH: [Whose; 2] = [Whose::Ours, Whose::Peer];

/// Returns whether the peer is there, and which it is.
pub(super) fn peer_version() -> Option<String> {
    let output = Command::new(PEER).arg("-V").output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// A running server.
#[derive(Debug)]
pub(super) struct Server {
    child: Child,
    pub(super) address: Address,
}

/// CPU that a process has had, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cpu {
    /// All of it, by the scheduler's clock.
    pub(super) all: u64,
    /// Time in user mode, by the clock's ticks.
    user: u64,
    /// Time in kernel mode, by the same.
    pub(super) system: u64,
}

impl Cpu {
    pub(super) fn since(self, earlier: Self) -> Self {
        let Self { all, user, system } = self;
        Self { all: all - earlier.all, user: user - earlier.user, system: system - earlier.system }
    }

    pub(super) fn user(&self) -> u64 {
        self.user
    }
}

/// How often the threads of a process have left their CPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct Switches {
    /// They waited for something, and were woken.
    pub(super) waited: u64,
    /// They were pushed off by others.
    pub(super) pushed: u64,
}

impl Switches {
    pub(super) fn since(self, earlier: Self) -> Self {
        Self { waited: self.waited - earlier.waited, pushed: self.pushed - earlier.pushed }
    }
}

impl Server {
    /// Starts one on a CPU, over TCP. Both get the same flags, which are memcached's.
    pub(super) fn start(whose: Whose, cpu: usize, flags: &[&str]) -> Outcome<Self> {
        Self::start_over(&Transport::Tcp, whose, cpu, flags)
    }

    /// The same, over any transport.
    pub(super) fn start_over(transport: &Transport, whose: Whose, cpu: usize, flags: &[&str]) -> Outcome<Self> {
        let mut failure = String::new();
        // If another process takes the address meanwhile, the next is tried.
        for attempt in 0..5 {
            let (address, listens) = transport.address(&format!("{whose:?}-{attempt}"))?;
            let mut command = program(whose)?;
            command.args(listens).args(flags);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            let child = pin::on(cpu, move || command.spawn())?;
            let mut server = Self { child, address };
            match server.wait() {
                Ok(()) => return Ok(server),
                Err(error) => failure = error.to_string(),
            }
        }
        Err(format!("{whose:?} did not start: {failure}").into())
    }

    /// The same, at a given address, with flags that have it listen there.
    #[cfg(feature = "bpf")]
    pub(super) fn start_at(whose: Whose, cpu: usize, address: Address, flags: &[String]) -> Outcome<Self> {
        let mut command = program(whose)?;
        command.args(flags).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut server = Self { child: pin::on(cpu, move || command.spawn())?, address };
        server.wait().map_err(|error| format!("{whose:?} did not start: {error}"))?;
        Ok(server)
    }

    fn wait(&mut self) -> Outcome<()> {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(20) {
            if let Some(status) = self.child.try_wait()? {
                return Err(format!("it ended with {status}").into());
            }
            if Client::connect(&self.address).and_then(|mut client| client.stat("pid")).is_ok() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err("it does not answer".into())
    }

    pub(super) fn process(&self) -> u32 {
        self.child.id()
    }

    fn read(&self, file: &str) -> Outcome<String> {
        Ok(fs::read_to_string(format!("/proc/{}/{file}", self.child.id()))?)
    }

    /// Returns its CPU time, of all its threads.
    pub(super) fn cpu(&self) -> Outcome<Cpu> {
        let mut all = 0;
        for task in fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let text = fs::read_to_string(task?.path().join("schedstat"))?;
            all += text.split(' ').next().unwrap_or_default().parse::<u64>()?;
        }
        let text = self.read("stat")?;
        let after_name = text.rsplit(") ").next().unwrap_or_default();
        let ticks = |nth| after_name.split(' ').nth(nth).unwrap_or_default().parse::<u64>();
        Ok(Cpu { all, user: ticks(11)? * TICK, system: ticks(12)? * TICK })
    }

    /// How often its threads have left their CPU.
    pub(super) fn switches(&self) -> Outcome<Switches> {
        let mut switches = Switches { waited: 0, pushed: 0 };
        for task in fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let text = fs::read_to_string(task?.path().join("status"))?;
            let count = |name: &str| -> Outcome<u64> {
                let line = text.lines().find_map(|line| line.strip_prefix(name));
                Ok(line.unwrap_or("0").trim().parse()?)
            };
            switches.waited += count("voluntary_ctxt_switches:")?;
            switches.pushed += count("nonvoluntary_ctxt_switches:")?;
        }
        Ok(switches)
    }

    /// Bytes that it has resident, without the files that are its program.
    pub(super) fn resident(&self) -> Outcome<u64> {
        let text = self.read("status")?;
        let kib = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("0");
            line.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0)
        };
        Ok((kib("RssAnon") + kib("RssShmem") + kib("HugetlbPages")) << 10)
    }
}

fn program(whose: Whose) -> std::io::Result<Command> {
    Ok(match whose {
        Whose::Ours => {
            let mut command = Command::new(std::env::current_exe()?);
            command.arg0(OURS);
            command
        }
        Whose::Peer => {
            let mut command = Command::new(PEER);
            // It refuses to run as root without being told so.
            command.args(["-u", "root"]);
            command
        }
    })
}

/// Nanoseconds of a clock tick: a hundredth of a second on every Linux there is.
const TICK: u64 = 10_000_000;

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
