//! The real server on free ports, ended with the test; and how tests talk to it.

// Each test program uses some of it.
#![allow(dead_code)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long anything is waited for: far longer than a busy machine takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The program.
pub(crate) const SERVER: &str = env!("CARGO_BIN_EXE_rdmakv-server");

/// A server that has said where it listens.
pub(crate) struct Server {
    pub(crate) process: Child,
    pub(crate) lines: Vec<String>,
}

impl Server {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::run(Command::new(program()).args(arguments))
    }

    /// Starts it with its standard error at the end of a file.
    pub(crate) fn with_log(arguments: &[&str], log: &Path) -> Self {
        let log = std::fs::File::options().create(true).append(true).open(log).unwrap();
        Self::run(Command::new(program()).args(arguments).stderr(log))
    }

    pub(crate) fn run(command: &mut Command) -> Self {
        let mut process = command.stdout(Stdio::piped()).spawn().expect("the server starts");
        let mut lines = Vec::new();
        // The line about memory is the last one.
        for line in BufReader::new(process.stdout.take().unwrap()).lines() {
            lines.push(line.unwrap());
            if lines.last().unwrap().contains("SIGTERM") {
                break;
            }
        }
        Self { process, lines }
    }

    pub(crate) fn on_a_free_port(more: &[&str]) -> Self {
        Self::start(&[&["-p", "-1", "-l", "127.0.0.1"], more].concat())
    }

    pub(crate) fn address(&self, kind: &str) -> String {
        let start = format!("listening on {kind} ");
        self.lines.iter().find_map(|line| line.strip_prefix(&start)).expect("it says where it listens").to_owned()
    }

    /// Returns the address for clients over a fabric.
    pub(crate) fn fabric(&self, kind: &str) -> String {
        let start = format!("listening on {kind}:");
        let found = self.lines.iter().find_map(|line| line.strip_prefix(&start));
        format!("{kind}:{}", found.expect("it says where it listens"))
    }

    pub(crate) fn connect(&self) -> TcpStream {
        to(&self.address("tcp"))
    }

    pub(crate) fn signal(&self, signal: &str) {
        assert!(
            Command::new("sh")
                .args(["-c", &format!("kill {signal} {}", self.process.id())])
                .status()
                .unwrap()
                .success()
        );
    }

    /// Stops it, and waits until each of its threads has stopped.
    pub(crate) fn stop(&self) {
        self.signal("-STOP");
        let tasks = format!("/proc/{}/task", self.process.id());
        let has_stopped = |task: std::fs::DirEntry| {
            let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            // The state is behind the name, which may have anything in it.
            stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('T'))
        };
        soon("that the server has stopped", || std::fs::read_dir(&tasks).unwrap().flatten().all(has_stopped));
    }

    pub(crate) fn stat(&self, name: &str) -> u64 {
        stat(&mut self.connect(), name)
    }

    /// Returns the numbers that `stats` has under this name.
    pub(crate) fn stats(&self, of: &str) -> std::collections::HashMap<String, String> {
        let mut stream = self.connect();
        stream.write_all(format!("stats {of}\r\nquit\r\n").as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let pair =
            |line: &str| line.strip_prefix("STAT ")?.split_once(' ').map(|(name, value)| (name.into(), value.into()));
        text.lines().filter_map(pair).collect()
    }

    /// Returns the status and the answer's body.
    pub(crate) fn http(&self, path: &str) -> (u16, String) {
        let mut stream = to(&self.address("http"));
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").expect("an answer has a head");
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }
}

/// Elsewhere than where it was built, as in a guest of the lab, the program is said to be somewhere else.
fn program() -> std::ffi::OsString {
    std::env::var_os("RDMAKV_SERVER").unwrap_or_else(|| SERVER.into())
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns a connection on which nothing is waited for without end.
pub(crate) fn to(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

pub(crate) fn stat(stream: &mut (impl Read + Write), name: &str) -> u64 {
    stream.write_all(b"stats\r\nquit\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("STAT ")?.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name}")).trim().parse().unwrap()
}

pub(crate) fn ask(stream: &mut (impl Read + Write), request: &[u8], answer: &[u8]) {
    stream.write_all(request).unwrap();
    let mut got = vec![0; answer.len()];
    stream.read_exact(&mut got).unwrap();
    assert!(got == answer, "{:?}", String::from_utf8_lossy(&got[..got.len().min(200)]));
}

/// Waits until it is so.
pub(crate) fn soon(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "{what} does not come about");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Returns a server that finds these sockets open, as systemd would have it.
pub(crate) fn activated(sockets: [OwnedFd; 2], names: &str, environment: &[(&str, &str)], flags: &[&str]) -> Command {
    let [one, two] = sockets;
    let mut command = Command::new("sh");
    command
        .args(["-c", "export LISTEN_PID=$$ LISTEN_FDS=2; exec \"$@\" 3<&0 4<&2 </dev/null 2>/dev/null", "sh", SERVER])
        .args(flags)
        .env("LISTEN_FDNAMES", names)
        .envs(environment.iter().copied())
        .stdin(Stdio::from(one))
        .stderr(Stdio::from(two));
    command
}
