//! The real server on free ports, in a process of its own that ends with the test: this test program, run once more.
#![allow(dead_code, reason = "shared by tests")]

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// Arguments of the server, a line each, for the process that is to be one.
const SERVE: &str = "RDMAKV_TEST_SERVES";

/// Becomes the server, where [`Server`] started this process.
#[test]
#[ignore = "the process of a server"]
fn serve() {
    let Ok(arguments) = std::env::var(SERVE) else { return };
    rdmakv_server::startup::main_with(arguments.lines().map(Into::into));
    // The output of the test harness is of no use to a server's client.
    std::process::exit(0);
}

/// A server that has printed where it listens.
pub(crate) struct Server {
    process: Child,
    /// Kept open: the harness writes a line after a minute, and ends where it cannot.
    _output: BufReader<ChildStdout>,
    pub(crate) lines: Vec<String>,
}

impl Server {
    pub(crate) fn on_a_free_port(more: &[&str]) -> Self {
        let arguments = [&["rdmakv-server", "-p", "-1", "-l", "127.0.0.1"], more].concat();
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "server::serve", "--nocapture", "--include-ignored"])
            .env(SERVE, arguments.join("\n"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the server starts");
        let mut lines = Vec::new();
        // The line about memory is the last one.
        let mut output = BufReader::new(process.stdout.take().unwrap());
        for line in output.by_ref().lines() {
            lines.push(line.unwrap());
            if lines.last().unwrap().contains("SIGTERM") {
                break;
            }
        }
        Self { process, _output: output, lines }
    }

    /// Asks it to stop.
    pub(crate) fn terminate(&self) {
        let process = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(process, rustix::process::Signal::TERM).expect("it is there");
    }

    /// Waits for its end. Returns whether it ended well.
    pub(crate) fn wait(&mut self) -> bool {
        self.process.wait().is_ok_and(|status| status.success())
    }

    pub(crate) fn address(&self, kind: &str) -> String {
        let start = format!("listening on {kind} ");
        self.lines.iter().find_map(|line| line.strip_prefix(&start)).expect("it prints where it listens").to_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Waits until it is so.
pub(crate) fn soon(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < until, "{what} does not come about");
        std::thread::sleep(Duration::from_millis(10));
    }
}
