//! libCacheSim, from its Python package in a virtual environment of its own.
//!
//! The environment is made once, in a folder of the caller's; that takes `python3` with its `venv` module, and a package
//! index that pip reaches. `replay.py` runs in it as a process that waits for a line and answers with one, so that its
//! laps can stand between ours.

use serde::{Deserialize, Serialize};
use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The version that figures are compared with.
pub const VERSION: &str = "0.3.5";

const SCRIPT: &str = include_str!("replay.py");

/// Returns whether it has a policy of that name. It knows `pindown` as LRU.
pub fn has(policy: &str) -> bool {
    SCRIPT.contains(&format!("    \"{policy}\": lcs."))
}

/// An environment that has libCacheSim.
#[derive(Clone, Debug)]
pub struct Environment {
    python: PathBuf,
    script: PathBuf,
}

impl Environment {
    /// Finds or makes it in a folder. `PYTHON` names another interpreter than `python3`; `PYTHON=none` does without.
    ///
    /// # Errors
    /// Why there is none, and what to do.
    pub fn prepare(folder: &Path) -> Result<Self, String> {
        let base = env::var_os("PYTHON").filter(|name| !name.is_empty()).unwrap_or_else(|| "python3".into());
        if base == "none" {
            return Err("PYTHON says none".into());
        }
        let home = folder.join(format!("libcachesim-{VERSION}"));
        let environment = Self { python: home.join("bin/python"), script: home.join("replay.py") };
        let wrong = |error| format!("{} cannot be written: {error}", home.display());
        if !environment.works() {
            // Half of one, or one whose interpreter has gone, is in the way.
            let _ = fs::remove_dir_all(&home);
            fs::create_dir_all(folder).map_err(wrong)?;
            run(
                Command::new(&base).args(["-m", "venv"]).arg(&home),
                "a virtual environment",
                "apt-get install python3-venv",
            )?;
            let package = format!("libcachesim=={VERSION}");
            let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--timeout=30", "--retries=1"];
            run(
                Command::new(&environment.python).args(pip).arg(&package),
                &format!("{package} in {}", home.display()),
                "it needs pip and a package index that pip reaches",
            )?;
        }
        fs::write(&environment.script, SCRIPT).map_err(wrong)?;
        Ok(environment)
    }

    fn works(&self) -> bool {
        let code = "import importlib.metadata, libcachesim; print(importlib.metadata.version('libcachesim'))";
        let output = Command::new(&self.python).args(["-c", code]).stderr(Stdio::null()).output();
        output.is_ok_and(|output| output.status.success() && output.stdout.trim_ascii() == VERSION.as_bytes())
    }

    /// How `replay.py` is called for a trace.
    pub fn arguments(&self, trace: &Path) -> [OsString; 3] {
        [&self.python, &self.script, trace].map(|path| path.as_os_str().to_owned())
    }

    /// Returns a process that has opened the trace, on one CPU if it is told which.
    ///
    /// # Errors
    /// That it does not start.
    pub fn start(&self, trace: &Path, cpu: Option<usize>) -> Result<LibCacheSim, String> {
        let [python, rest @ ..] = self.arguments(trace);
        let mut command = Command::new(python);
        command.args(rest).stdin(Stdio::piped()).stdout(Stdio::piped());
        if let Some(cpu) = cpu {
            command.arg("--cpu").arg(cpu.to_string());
        }
        let mut child = command.spawn().map_err(|error| format!("libCacheSim does not start: {error}"))?;
        let pipes = child.stdin.take().zip(child.stdout.take()).ok_or("libCacheSim has no pipes")?;
        Ok(LibCacheSim { child, asks: Some(pipes.0), answers: BufReader::new(pipes.1) })
    }
}

/// Runs it in silence; what it said last if it fails.
fn run(command: &mut Command, what: &str, remedy: &str) -> Result<(), String> {
    let failed = |why: &str| Err(format!("{what} could not be made: {why} ({remedy})"));
    match command.stdin(Stdio::null()).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it did not say why");
            failed(last.trim())
        }
        Err(error) => failed(&format!("{}: {error}", command.get_program().display())),
    }
}

/// A request to the peer.
#[derive(Serialize, Clone, Copy, Debug)]
pub struct Ask {
    /// By our names.
    pub policy: &'static str,
    /// In bytes, as the sizes in the trace.
    pub capacity: u64,
    /// The first so many; none is all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<u64>,
}

/// The peer's answer.
#[derive(Deserialize, Clone, Copy, PartialEq, Debug)]
pub struct Lap {
    /// Replayed.
    pub requests: u64,
    /// Of these.
    pub misses: u64,
    /// User CPU in seconds, of the replay alone.
    pub user_s: f64,
}

/// The process.
pub struct LibCacheSim {
    child: Child,
    /// Closed to end it.
    asks: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl LibCacheSim {
    /// Replays the trace once.
    ///
    /// # Errors
    /// That it died, or what it answered instead.
    pub fn replay(&mut self, ask: &Ask) -> Result<Lap, String> {
        let what = || format!("libCacheSim's {} at {} bytes", ask.policy, ask.capacity);
        let line = serde_json::to_string(ask).map_err(|error| error.to_string())?;
        let asks = self.asks.as_mut().ok_or("libCacheSim was ended")?;
        writeln!(asks, "{line}").map_err(|error| format!("{}: {error}", what()))?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer).map_err(|error| format!("{}: {error}", what()))?;
        serde_json::from_str(&answer).map_err(|_| match answer.trim() {
            "" => format!("{}: its process ended; what it said is above", what()),
            said => format!("{}: it answered {said}", what()),
        })
    }
}

impl Drop for LibCacheSim {
    fn drop(&mut self) {
        self.asks = None;
        let _ = self.child.wait();
    }
}
