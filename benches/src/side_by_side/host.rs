//! The head of every run: when, what was measured, and on which machine.

use serde::{Deserialize, Serialize};
use std::fs;
use std::process::Command;
use std::thread;
use std::time::SystemTime;

/// When and where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// When it was looked at, in UTC: `2026-01-31T12:00:00Z`.
    pub date: String,
    /// This repository's version and, in a clone of it, its commit.
    pub version: String,
    /// Processor, CPUs and memory.
    pub machine: String,
    /// Kernel and distribution.
    pub system: String,
    /// The other load of the machine.
    pub load: String,
}

impl Host {
    /// This machine, now. Missing facts are left out.
    pub fn look() -> Self {
        let read = |file: &str| fs::read_to_string(file).unwrap_or_default();
        let model = field(&read("/proc/cpuinfo"), "model name", ':').unwrap_or_else(|| std::env::consts::ARCH.into());
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        let memory = field(&read("/proc/meminfo"), "MemTotal", ':')
            .and_then(|kib| kib.trim_end_matches(" kB").parse::<u64>().ok())
            .map_or(String::new(), |kib| format!(", {:.0} GiB", kib as f64 / f64::from(1 << 20)));
        let kernel = read("/proc/sys/kernel/osrelease");
        let distribution = field(&read("/etc/os-release"), "PRETTY_NAME", '=');
        let distribution = distribution.map_or(String::new(), |name| format!(", {}", name.trim_matches('"')));
        let load = read("/proc/loadavg").split(' ').take(3).collect::<Vec<_>>().join(" ");
        Self {
            date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            version: format!("{}{}", env!("CARGO_PKG_VERSION"), commit().map_or(String::new(), |it| format!(", {it}"))),
            machine: format!("{model}, {cpus} CPU{}{memory}", if cpus == 1 { "" } else { "s" }),
            system: format!("Linux {}{distribution}", kernel.trim()),
            load,
        }
    }

    /// For people.
    pub fn lines(&self) -> [String; 2] {
        let Self { date, version, machine, system, load } = self;
        [format!("{date}, version {version}"), format!("{machine}; {system}; load {load} when it began")]
    }
}

/// Returns the text behind a name in a line.
fn field(text: &str, name: &str, between: char) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(between)?.1.trim().to_owned())
}

/// Returns the commit that is checked out where this runs, `+` behind it if files were changed since.
fn commit() -> Option<String> {
    let output = Command::new("git").args(["describe", "--always", "--dirty=+", "--exclude=*"]).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then(|| format!("commit {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_what_stands_behind_its_name() {
        let text = "processor\t: 0\nmodel name\t: Some CPU @ 2: 3 GHz\n";
        assert_eq!(field(text, "model name", ':').as_deref(), Some("Some CPU @ 2: 3 GHz"));
        assert_eq!(field(text, "MemTotal", ':'), None);
    }

    #[test]
    fn the_head_says_when_and_where() {
        let head = Host::look().lines().join("\n");
        for part in ["Z, version 0.", "CPU", "Linux ", "load "] {
            assert!(head.contains(part), "{part} in {head}");
        }
    }
}
