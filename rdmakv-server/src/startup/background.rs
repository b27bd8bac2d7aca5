//! `-d`: the server goes into the background, and the command that started it learns whether it serves.
//!
//! The process splits before it has threads. The parent waits until the child serves or has ended, so that what is wrong is
//! said where it can be read, and a script that starts the server may connect when the command returns. The working
//! directory stays: files named relative to it are read again later.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};

use rustix::process::{WaitOptions, setsid, waitpid};

/// The child's side.
#[derive(Debug)]
pub(super) struct Background {
    /// Told when the server serves.
    parent: File,
}

/// Splits; returns in the child only, which is a session of its own.
///
/// # Errors
///
/// No pipe, no process.
pub(super) fn enter() -> io::Result<Background> {
    let (ours, theirs) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    #[expect(unsafe_code, reason = "fork")]
    // SAFETY: there is one thread, so the child has all there is.
    let child = unsafe { libc::fork() };
    if child < 0 {
        return Err(io::Error::last_os_error());
    }
    if child > 0 {
        drop(theirs);
        let serves = File::from(ours).read(&mut [0]).is_ok_and(|read| read == 1);
        if serves {
            std::process::exit(0);
        }
        let ended = rustix::process::Pid::from_raw(child).and_then(|pid| waitpid(Some(pid), WaitOptions::empty()).ok());
        let status = ended.flatten().and_then(|(_, status)| status.exit_status());
        std::process::exit(status.unwrap_or(1));
    }
    drop(ours);
    setsid()?;
    Ok(Background { parent: theirs.into() })
}

impl Background {
    /// The server serves: the terminal is let go, except for errors if these were asked for.
    ///
    /// # Errors
    ///
    /// There is no `/dev/null`.
    pub(super) fn serves(mut self, keep_errors: bool) -> io::Result<()> {
        let nothing = OpenOptions::new().read(true).write(true).open("/dev/null")?;
        rustix::stdio::dup2_stdin(&nothing)?;
        rustix::stdio::dup2_stdout(&nothing)?;
        if !keep_errors {
            rustix::stdio::dup2_stderr(&nothing)?;
        }
        // A parent that is gone does not wait.
        let _ = self.parent.write_all(b"!");
        Ok(())
    }
}
