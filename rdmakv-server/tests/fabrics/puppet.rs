//! A client of this package in a process of its own, that does what it is told in lines: it can be killed, and all that it has be counted.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rdmakv_client::{Client, Error, Options};

use super::common::PATIENCE;

const SERVER: &str = "RDMAKV_TEST_PUPPET";
const START: &str = "> ";

/// Returns a value that is known by its length and this.
fn value(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 + at / 255 + seed) as u8).collect()
}

/// The process.
pub(crate) struct Puppet {
    process: Child,
    told: ChildStdin,
    says: Receiver<String>,
}

impl Puppet {
    /// Returns a client of this server; with or without tags.
    pub(crate) fn new(server: &str, one_sided: bool) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "puppet::what_it_does", "--nocapture", "--include-ignored"])
            .env(SERVER, format!("{one_sided} {server}"))
            .stdout(Stdio::piped())
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let (say, says) = channel();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if let Some((_, line)) = line.split_once(START) {
                    let _ = say.send(line.to_owned());
                }
            }
        });
        let told = process.stdin.take().unwrap();
        Self { process, told, says }
    }

    /// Has it begin something.
    pub(crate) fn begin(&mut self, order: &str) {
        writeln!(self.told, "{order}").unwrap();
    }

    /// Returns the result.
    pub(crate) fn end(&mut self) -> String {
        self.says.recv_timeout(PATIENCE).expect("a client's operation ends in its time")
    }

    pub(crate) fn ask(&mut self, order: &str) -> String {
        self.begin(order);
        self.end()
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Files that it has open, and mappings of files that have no name.
    pub(crate) fn has(&self) -> (usize, usize) {
        let process = self.process.id();
        let files = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap().count();
        let maps = std::fs::read_to_string(format!("/proc/{process}/maps")).unwrap();
        (files, maps.lines().filter(|line| line.contains("/memfd:")).count())
    }
}

impl Drop for Puppet {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn said(error: &Error) -> &'static str {
    match error {
        Error::TimedOut { .. } => "timed out",
        Error::Unreachable { .. } => "unreachable",
        Error::OutcomeUnknown { .. } => "unknown",
        _ => "another error",
    }
}

#[test]
#[ignore = "is run by tests that want a client in a process of its own"]
fn what_it_does() {
    let Ok(server) = std::env::var(SERVER) else { return };
    let (one_sided, server) = server.split_once(' ').unwrap();
    let options = Options {
        timeout: Duration::from_secs(10),
        back_off: (Duration::from_millis(10), Duration::from_millis(50)),
        one_sided: one_sided == "true",
        ..Options::default()
    };
    let mut client = Client::with_options([server], options).unwrap();
    for order in std::io::stdin().lines().map_while(Result::ok) {
        let words: Vec<&str> = order.split(' ').collect();
        let number = |at: usize| words[at].parse::<usize>().unwrap();
        let outcome = match words[0] {
            "set" => match client.set(words[1], value(number(2), number(3)), ()) {
                Ok(stored) if stored.is_stored() => "stored".to_owned(),
                Ok(stored) => format!("{stored:?}"),
                Err(error) => said(&error).to_owned(),
            },
            "get" => match client.get(words[1]) {
                Ok(Some(got)) => {
                    let seed = (0..16).find(|&seed| got[..] == value(got.len(), seed)[..]);
                    let seed = seed.map_or("torn".to_owned(), |seed| seed.to_string());
                    format!("{} {seed} {:?}", got.len(), got.source())
                }
                Ok(None) => "none".to_owned(),
                Err(error) => said(&error).to_owned(),
            },
            // Operations that are open, and bytes that are registered.
            _ => format!("{} {}", client.open(), client.registered()),
        };
        println!("\n{START}{outcome}");
    }
}
