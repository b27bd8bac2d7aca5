//! The agent of this server: a process of its own, as the server has no client. It ends with the server.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::log;

/// The time between two looks at it.
const LOOK: Duration = Duration::from_millis(100);
/// The pause before it is started again, at first and at most.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// How long it has for its end.
const END: Duration = Duration::from_secs(1);

/// An agent to start.
#[derive(Clone)]
pub(crate) struct Agent {
    /// Its program, if one is named.
    pub(crate) program: Option<String>,
    /// The addresses of etcd, which may have a password.
    pub(crate) etcd: String,
    /// The name of the cluster.
    pub(crate) cluster: String,
    /// The name of the server.
    pub(crate) server: String,
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent").field("program", &self.program).field("server", &self.server).finish_non_exhaustive()
    }
}

impl Agent {
    /// Keeps it running until the server ends.
    pub(super) fn keep(&self, ends: &dyn Fn() -> bool) {
        let (mut pause, mut failing) = (PAUSE.0, false);
        while !ends() {
            let started = Instant::now();
            let child = self.start();
            let has_started = child.is_ok();
            let why = match child {
                Ok(mut child) => {
                    let end = wait(&mut child, ends);
                    if ends() {
                        return stop(child);
                    }
                    // After it worked for long, another failure is a new one.
                    if started.elapsed() > PAUSE.1 {
                        (pause, failing) = (PAUSE.0, false);
                    }
                    format!("ended: {end}")
                }
                Err(error) => format!("cannot be started: {error}"),
            };
            if !std::mem::replace(&mut failing, true) {
                let remedy = if has_started {
                    "it is started again, and keys are not repaired meanwhile: see what it said"
                } else {
                    "keys are not repaired: name rdmakv by --agent, or start `rdmakv agent` yourself (--agent no)"
                };
                log::print(format_args!("cluster: the agent {} {why}: {remedy}", self.program().display()));
            }
            let until = Instant::now() + pause;
            while !ends() && Instant::now() < until {
                std::thread::sleep(LOOK);
            }
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    /// Returns the program: the one that is named, the one beside this program, or that of PATH.
    fn program(&self) -> PathBuf {
        const NAME: &str = "rdmakv";
        if let Some(program) = &self.program {
            return program.into();
        }
        let beside = std::env::current_exe().ok().map(|own| own.with_file_name(NAME));
        beside.filter(|beside| beside.is_file()).unwrap_or_else(|| NAME.into())
    }

    fn start(&self) -> io::Result<Child> {
        // Its standard input ends with this process, however that ends. Its lines go where the server's do.
        let mut command = Command::new(self.program());
        command.args(["--cluster", &self.cluster, "agent", "--until-input-ends", "--", &self.server]);
        command.env("RDMAKV_ETCD", &self.etcd).env_remove("RDMAKV_SERVERS");
        command.env_remove(OsStr::new("NOTIFY_SOCKET")).stdin(Stdio::piped()).stdout(Stdio::null()).spawn()
    }
}

/// Waits until it has ended, or the server ends; returns how it ended.
fn wait(child: &mut Child, ends: &dyn Fn() -> bool) -> String {
    while !ends() {
        match child.try_wait() {
            Ok(None) => std::thread::sleep(LOOK),
            Ok(Some(status)) => return status.to_string(),
            Err(error) => return error.to_string(),
        }
    }
    String::new()
}

/// Ends it: at the end of its input it goes by itself.
fn stop(mut child: Child) {
    drop(child.stdin.take());
    let until = Instant::now() + END;
    while Instant::now() < until && matches!(child.try_wait(), Ok(None)) {
        std::thread::sleep(LOOK / 10);
    }
    // It may have ended meanwhile.
    let _ = child.kill();
    let _ = child.wait();
}
