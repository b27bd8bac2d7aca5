//! A mount: the file system at a directory, until it is unmounted or the process is told to end.

use std::io::{self, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use fuser::{Config, MountOption, Session, SessionACL, SessionUnmounter};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::error::{Error, Result};
use crate::fuse::Served;
use crate::library::Files;
use crate::life::spawn;

/// The kernel's device.
const DEVICE: &str = "/dev/fuse";

/// Requests of programs that are served at once.
const THREADS: usize = 16;

/// How long the kernel has to end a mount that nothing uses any more.
const UNUSED: Duration = Duration::from_secs(2);

/// An end of the mount, or of the wait that follows.
enum Event {
    /// It was unmounted, or the kernel's device failed.
    Unmounted(io::Result<()>),
    /// A signal asks for it.
    Asked,
    /// The wait for the backing directory is over: how many files are left, and whether an agent works.
    Drained(Result<(usize, bool)>),
}

/// Checks that a file system can be mounted at a directory. Nothing is changed.
///
/// # Errors
///
/// The directory is absent or has names, or the machine has no FUSE.
pub(crate) fn check(at: &Path) -> Result<()> {
    let shown = at.display();
    if let Err(error) = std::fs::metadata(DEVICE) {
        let why = format!("mount {shown}: {DEVICE}: {error}: load the kernel's module by `modprobe fuse`");
        return Err(Error::new(errno_of(&error), why));
    }
    let mut names = match std::fs::read_dir(at) {
        Ok(names) => names,
        Err(error) if error.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()) => {
            let why = format!("mount {shown}: the process of an earlier mount died: run `fusermount3 -u {shown}`");
            return Err(Error::new(Errno::NOTCONN, why));
        }
        Err(error) => {
            let why = format!("mount {shown}: {error}: make the directory, or name another");
            return Err(Error::new(errno_of(&error), why));
        }
    };
    if names.next().is_some() {
        let why = format!("mount {shown}: the directory has names, which the mount would hide: use an empty one");
        return Err(Error::new(Errno::NOTEMPTY, why));
    }
    Ok(())
}

/// The ways in which a mount may serve.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct How {
    /// All changes are refused.
    pub(crate) is_read_only: bool,
    /// The end waits for the backing directory.
    pub(crate) settles: bool,
}

/// Mounts files at a directory, and serves until they are unmounted or a signal ends the process. `mounted` runs once programs may use it.
///
/// # Errors
///
/// The kernel refuses the mount; at the end, bytes of a file that was open could not be stored.
pub(crate) fn serve(files: &Files, at: &Path, how: How, mounted: impl FnOnce()) -> Result<()> {
    let mut options = vec![
        MountOption::FSName("rdmakv".to_owned()),
        MountOption::Subtype("rdmakv".to_owned()),
        MountOption::DefaultPermissions,
        MountOption::NoAtime,
    ];
    options.extend(how.is_read_only.then_some(MountOption::RO));
    let mut config = Config::default();
    config.mount_options = options;
    // Other users' mounts need `user_allow_other` in /etc/fuse.conf.
    config.acl = if rustix::process::geteuid().is_root() { SessionACL::All } else { SessionACL::Owner };
    config.n_threads = Some(THREADS);
    let (tell, events) = channel();
    watch_signals(tell.clone())?;
    let mut session = Session::new(Served::new(files.clone())?, at, &config).map_err(|error| refused(at, &error))?;
    let unmounter = session.unmount_callable();
    let ended = tell.clone();
    let serve = move || {
        // It is waited for, but not after a signal.
        let _ = ended.send(Event::Unmounted(session.run()));
    };
    let thread = std::thread::Builder::new().name("rdmakv-mount".to_owned()).spawn(serve);
    thread.map_err(|error| Error::new(Errno::AGAIN, format!("start thread: {error}: allow more threads")))?;
    mounted();
    let served = wait(files, at, &events, unmounter);
    let ended = files.end();
    if how.settles && !how.is_read_only && ended.is_ok() {
        settle(files, at, (tell, &events))?;
    }
    served.and(ended)
}

/// Waits until the backing directory shows what was written. Without an agent, and after another signal, it does not.
///
/// A thread waits, because a cluster that is away keeps it for long. After a signal it is left alone.
///
/// # Errors
///
/// The system has no more threads.
fn settle(files: &Files, at: &Path, (tell, events): (Sender<Event>, &Receiver<Event>)) -> Result<()> {
    let ((ends, ended), other) = (channel::<()>(), files.clone());
    let drain = move || {
        let pauses = |pause| ended.recv_timeout(pause) != Err(RecvTimeoutError::Timeout);
        let left = other.drain(pauses);
        // Before the end is told: the last one to have the files ends their threads.
        drop(other);
        // It is waited for, but not after a signal.
        let _ = tell.send(Event::Drained(left));
    };
    let thread = spawn("rdmakv-settle", drain)?;
    let left = loop {
        match events.recv() {
            Ok(Event::Drained(left)) => {
                break Some(left);
            }
            // The mount's end may be told late.
            Ok(Event::Unmounted(_)) => {}
            Ok(Event::Asked) | Err(_) => break None,
        }
    };
    drop(ends);
    // Where the cluster answers, the mount's key goes now and not 30 s later.
    if left.is_some() || matches!(events.recv_timeout(UNUSED), Ok(Event::Drained(_))) {
        let _ = thread.join();
    }
    let at = at.display();
    let line = match left {
        Some(Ok((0, _))) => return Ok(()),
        Some(Ok((left, true))) => format!("the directory lacks {left} of the files yet: see the messages of the agent"),
        Some(Ok((left, false))) => {
            format!("the directory lacks {left} of the files, and no agent works: start `rdmakv-fuse agent`")
        }
        Some(Err(error)) => error.to_string(),
        None => "a signal ended the wait for the directory: see `rdmakv-fuse files status`".to_owned(),
    };
    // They are in the cluster, so this is no failure of the mount.
    let _ = writeln!(io::stderr(), "rdmakv-fuse: end {at}: {line}");
    Ok(())
}

/// Waits for the end, and brings it about after a signal.
fn wait(files: &Files, at: &Path, events: &Receiver<Event>, mut unmounter: SessionUnmounter) -> Result<()> {
    match events.recv() {
        Ok(Event::Unmounted(Ok(())) | Event::Drained(_)) | Err(_) => return Ok(()),
        Ok(Event::Unmounted(Err(error))) => {
            let why = format!("serve {}: {error}: mount again", at.display());
            return Err(Error::new(errno_of(&error), why));
        }
        Ok(Event::Asked) => {}
    }
    let synced = files.sync_all();
    if unmounter.unmount().is_err() {
        // Programs use it. They keep what they have open until this process ends.
        let _ = rustix::mount::unmount(at, UnmountFlags::DETACH);
    }
    match events.recv_timeout(UNUSED) {
        Ok(Event::Unmounted(_) | Event::Drained(_)) | Err(RecvTimeoutError::Disconnected) => {}
        Ok(Event::Asked) | Err(RecvTimeoutError::Timeout) => {
            let line = "rdmakv-fuse: unmounted while programs use it: files that are open are stored and closed now, and uses of them fail from then on";
            let _ = writeln!(io::stderr(), "{line}");
        }
    }
    synced
}

fn watch_signals(tell: Sender<Event>) -> Result<()> {
    let handler = ctrlc::set_handler(move || {
        let _ = tell.send(Event::Asked);
    });
    handler.map_err(|error| Error::new(Errno::INVAL, format!("watch signals: {error}: mount once for each process")))
}

fn refused(at: &Path, error: &io::Error) -> Error {
    let remedy = match errno_of(error) {
        Errno::PERM => "run as root, or install fusermount3",
        Errno::ACCESS => "run as root, or let this user read and write /dev/fuse",
        Errno::NOENT => "install fusermount3, or run as root",
        Errno::NODEV => "load the kernel's module by `modprobe fuse`",
        _ => "see the kernel's log",
    };
    let why = error.to_string();
    Error::new(errno_of(error), format!("mount {}: {}: {remedy}", at.display(), why.trim_end()))
}

fn errno_of(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_cannot_be_mounted_is_named() {
        if !Path::new(DEVICE).exists() {
            eprintln!("skipped: no {DEVICE} here");
            return;
        }
        let place = tempfile::tempdir().unwrap();
        assert_eq!(check(place.path()), Ok(()));
        std::fs::write(place.path().join("a"), b"").unwrap();
        let full = check(place.path()).unwrap_err();
        assert_eq!(full.errno(), Errno::NOTEMPTY);
        assert!(full.to_string().contains("use an empty one"), "{full}");
        assert_eq!(check(&place.path().join("no")).unwrap_err().errno(), Errno::NOENT);
        assert_eq!(check(&place.path().join("a")).unwrap_err().errno(), Errno::NOTDIR);
    }
}
