//! System calls of a server, by strace.

use crate::side_by_side::far::Outcome;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

/// Requests whose system calls are counted.
const COUNTED: usize = 2000;

/// System calls of a request, where strace is there and may look: of one connection alone, as it depends on nothing else
/// then.
pub(super) fn calls(process: u32, ask: impl FnOnce(usize) -> Outcome<()>) -> Outcome<Option<f64>> {
    let process = process.to_string();
    let strace = Command::new("strace")
        .args(["-f", "-c", "-U", "calls,name", "-p", &process])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut strace) = strace else { return Ok(None) };
    let mut said = BufReader::new(strace.stderr.take().ok_or("strace has no output")?);
    let mut line = String::new();
    // It says so when it has attached; a line that says something else is why it has not.
    said.read_line(&mut line)?;
    if line.contains("attached") {
        ask(COUNTED)?;
    }
    Command::new("sh").args(["-c", &format!("kill -INT {}", strace.id())]).status()?;
    let mut text = String::new();
    said.read_to_string(&mut text)?;
    strace.wait()?;
    // What others of its threads do meanwhile counts too: a call or two for each second.
    let total = text.lines().find_map(|line| line.trim().strip_suffix("total")?.trim().parse::<u64>().ok());
    Ok(total.map(|total| total as f64 / COUNTED as f64))
}
