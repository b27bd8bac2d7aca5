//! The process at the other end of a connection: this program again, told by its first argument.
//!
//! It is pinned, says in a line where it can be reached, and then answers each line of its input: `cpu` with the nanoseconds
//! of CPU that it has had, `memory` with the KiB that it has resident. It ends with its input, so it does not outlive its
//! parent.

use crate::pin;
use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The argument by which the program is told to be the other end.
pub const FAR: &str = "far-end";

/// The result of the other end's part of a measurement.
pub(super) type Outcome<T> = Result<T, Box<dyn Error>>;

/// The other end, as seen from here.
pub(super) struct Far {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// The address that it printed first.
    pub(super) address: String,
}

impl Far {
    /// Starts it on a CPU.
    pub(super) fn start(cpu: usize, arguments: &[&str]) -> Outcome<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args([FAR, &cpu.to_string()])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = BufReader::new(child.stdout.take().ok_or("the other process has no output")?);
        let input = child.stdin.take();
        let mut far = Self { child, input, output, address: String::new() };
        far.address = far.line()?;
        Ok(far)
    }

    /// Nanoseconds of CPU that it has had.
    pub(super) fn cpu(&mut self) -> Outcome<u64> {
        self.ask("cpu")
    }

    /// KiB that it has resident.
    pub(super) fn memory(&mut self) -> Outcome<u64> {
        self.ask("memory")
    }

    fn ask(&mut self, what: &str) -> Outcome<u64> {
        writeln!(self.input.as_mut().ok_or("the other process has no input")?, "{what}")?;
        Ok(self.line()?.parse()?)
    }

    fn line(&mut self) -> Outcome<String> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            let status = self.child.wait()?;
            return Err(format!("the process at the other end ended early: {status}").into());
        }
        Ok(line.trim_end().to_owned())
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        self.input = None;
        // It ends by itself unless it is stuck, and is not needed any more.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Says where this end can be reached, and answers until its input ends.
pub(super) fn serve(address: &str) -> Outcome<()> {
    println!("{address}");
    answer()
}

/// Answers until its input ends.
pub(super) fn answer() -> Outcome<()> {
    for line in std::io::stdin().lines() {
        match line?.as_str() {
            "cpu" => println!("{}", pin::process_nanos()),
            "memory" => println!("{}", resident()?),
            other => return Err(format!("asked for `{other}`").into()),
        }
    }
    Ok(())
}

/// KiB that this process has resident.
pub(super) fn resident() -> Outcome<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("/proc/self/status has no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}
