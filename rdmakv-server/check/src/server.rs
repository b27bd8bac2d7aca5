//! The server under torture: a process of its own, which is killed and started anew.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::evidence::Ending;

/// How long an orderly stop may take.
const STOP: Duration = Duration::from_secs(60);

/// Set for a process that is to be the server: this program carries the server within it, so that both are of one build.
const SERVE: &str = "RDMAKV_CHECK_SERVES";

/// Becomes the server, if this process was started as one; ends with the one that started it. The agent that a server starts is this program,
/// too, and ends with its server.
pub fn serve_if_asked() -> Option<std::process::ExitCode> {
    std::env::var_os(SERVE)?;
    if std::env::args().any(|argument| argument == "agent") {
        return Some(rdmakv_client::cli::main());
    }
    end_with_parent();
    Some(rdmakv_server::startup::main())
}

/// This process is killed when the one that started it ends.
pub fn end_with_parent() {
    // Where it cannot be asked for, a process that outlives its run is all there is to lose.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
}

/// A running server.
#[derive(Debug)]
pub struct Server {
    process: Child,
}

impl Server {
    /// Starts one and waits until it serves; what it complains of goes to the log.
    ///
    /// # Errors
    ///
    /// It cannot be started, or ends before it serves.
    pub fn start(
        program: Option<&Path>,
        arguments: &[String],
        environment: &[(&str, &OsStr)],
        log: &File,
    ) -> io::Result<Self> {
        let mut own = Self::spawn(program, arguments, environment, log)?;
        for line in own.process.stdout.take().map(BufReader::new).into_iter().flat_map(BufRead::lines) {
            // Its last line, after those that say where it listens.
            if line?.contains("SIGTERM") {
                return Ok(own);
            }
        }
        let status = own.process.wait()?;
        Err(io::Error::other(format!("the server ended with {status} before it served")))
    }

    /// Starts one, and waits for nothing.
    ///
    /// # Errors
    ///
    /// It cannot be started.
    pub fn spawn(
        program: Option<&Path>,
        arguments: &[String],
        environment: &[(&str, &OsStr)],
        log: &File,
    ) -> io::Result<Self> {
        let mut command = match program {
            Some(program) => Command::new(program),
            None => Command::new(std::env::current_exe()?),
        };
        if program.is_none() {
            command.env(SERVE, "1");
        }
        command.args(arguments).envs(environment.iter().copied());
        let process = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log.try_clone()?).spawn()?;
        Ok(Self { process })
    }

    /// Returns whether it has ended by itself, and how.
    ///
    /// # Errors
    ///
    /// As the system has them.
    pub fn ended(&mut self) -> io::Result<Option<std::process::ExitStatus>> {
        self.process.try_wait()
    }

    /// Kills it; when this returns it can do nothing any more.
    pub fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Lets it stand still for so long.
    ///
    /// # Errors
    ///
    /// It has ended.
    pub fn pause(&mut self, time: Duration) -> io::Result<()> {
        let process = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(process, rustix::process::Signal::STOP)?;
        std::thread::sleep(time);
        Ok(rustix::process::kill_process(process, rustix::process::Signal::CONT)?)
    }

    /// Has it end in order, and waits for that; but kills it after so long, if it is given.
    ///
    /// # Errors
    ///
    /// It does not end as it should.
    pub fn stop(&mut self, kill_after: Option<Duration>) -> io::Result<Ending> {
        let process = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(process, rustix::process::Signal::TERM)?;
        let until = Instant::now() + kill_after.unwrap_or(STOP);
        while Instant::now() < until {
            match self.process.try_wait()? {
                Some(status) if status.success() => return Ok(Ending::Stopped),
                Some(status) => return Err(io::Error::other(format!("the server stopped with {status}"))),
                None => std::thread::sleep(Duration::from_millis(2)),
            }
        }
        if kill_after.is_none() {
            return Err(io::Error::other("the server does not stop"));
        }
        self.kill();
        Ok(Ending::Interrupted)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}
