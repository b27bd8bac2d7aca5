//! System calls of a server, by strace.

use crate::side_by_side::remote::Outcome;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

/// Requests whose system calls are counted.
const COUNTED: usize = 2000;

/// System calls of a request.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Calls(BTreeMap<String, f64>);

impl Calls {
    /// All together.
    pub(super) fn all(&self) -> f64 {
        self.0.values().sum()
    }

    /// Those of one name.
    pub(super) fn of(&self, name: &str) -> f64 {
        self.0.get(name).copied().unwrap_or(0.0)
    }

    /// Each with its name, those of the highest count first.
    pub(super) fn by_name(&self) -> Vec<(&str, f64)> {
        let mut all: Vec<_> = self.0.iter().map(|(name, &count)| (name.as_str(), count)).collect();
        all.sort_by(|one, other| other.1.total_cmp(&one.1));
        all
    }

    /// Of strace's table, so many requests having been made.
    fn of_table(text: &str, requests: usize) -> Option<Self> {
        let mut lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        lines.find(|words| words[..] == ["calls", "syscall"])?;
        let counts = lines.filter_map(|words| match words[..] {
            [count, name] if name != "total" => {
                Some((name.to_owned(), count.parse::<u64>().ok()? as f64 / requests as f64))
            }
            _ => None,
        });
        Some(Self(counts.collect()))
    }
}

/// System calls of a request, where strace is there and may look: of one connection alone, as it depends on nothing else
/// then.
pub(super) fn calls(process: u32, ask: impl FnOnce(usize) -> Outcome<()>) -> Outcome<Option<Calls>> {
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
    // The calls of its other threads meanwhile count too: a call or two for each second.
    Ok(Calls::of_table(&text, COUNTED))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_by_name_and_for_each_request() {
        let table = "strace: Process 7 detached\n    calls syscall\n--------- ----------------\n     4000 sendmsg\n     1000 \
                     epoll_wait\n--------- ----------------\n     5000 total\n";
        let calls = Calls::of_table(table, 2000).unwrap();
        assert_eq!((calls.all(), calls.of("sendmsg"), calls.of("read")), (2.5, 2.0, 0.0));
        assert_eq!(calls.by_name(), [("sendmsg", 2.0), ("epoll_wait", 0.5)]);
        assert_eq!(Calls::of_table("strace: attach: Operation not permitted\n", 2000), None);
    }
}
