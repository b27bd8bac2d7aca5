//! The file by which a server that offers RDMA devices tells the next one what it may have left behind.
//!
//! A device reads memory by itself, and no rule says that it stops before the ports of a killed server are free. Over `shm` and `iwarp` there
//! is such a rule, and no file: the kernel marks the shared memory of a process that dies before it closes the process's sockets, and over
//! `iwarp` the process itself reads.
//!
//! Its place depends on the user and the port alone, on nothing of the environment.
//!
//! Its order: [`begin`](IncarnationFile::begin) takes the file, which shows that the predecessor is gone, and reads what it said. No client is served
//! before [`wait`](IncarnationFile::wait) is over. [`serve`](IncarnationFile::serve) then writes that this server may expose something. Until then the file
//! has the predecessor's record (of a first server: that nothing was exposed), so that a server that is killed while it waits makes the next one wait as
//! long. [`end`](IncarnationFile::end) comes when every item that was leased is dead.
//!
//! The lock is the system's (`flock`) and ends with the process, however that ends.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::time::{ClockId, clock_gettime};

use super::predecessor::{IncarnationRecord, LENGTH, Predecessor};

/// Why there is no file.
#[derive(Debug, thiserror::Error)]
pub enum IncarnationError {
    /// The system did not let us.
    #[error(
        "{doing} {path}: {source}; it has to be in a directory of this user's: see that /dev/shm is a tmpfs, or start without verbs: and -e"
    )]
    System {
        /// The operation.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// It is another's.
    #[error("{path} is not a file of this user's alone: remove it, or start without verbs: and -e")]
    Foreign {
        /// The file, or its directory.
        path: PathBuf,
    },
    /// Another server has it.
    #[error("{path}: another server of this name runs: end it, or use another port")]
    Taken {
        /// The file.
        path: PathBuf,
    },
    /// Leases of the predecessor may be left.
    #[error("{path}: leases of the server before may last for another {left:?}: serve later")]
    TooEarly {
        /// The file.
        path: PathBuf,
        /// How long.
        left: Duration,
    },
}

/// The file, ours as long as this lives.
#[derive(Debug)]
pub struct IncarnationFile {
    path: PathBuf,
    file: File,
    predecessor: Predecessor,
    record: IncarnationRecord,
    /// By a clock that is never set and that runs while the machine sleeps.
    begun: Duration,
    made: bool,
    serves: bool,
}

fn clock() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(now.tv_sec.max(0).cast_unsigned(), now.tv_nsec as u32)
}

fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The folder in which every process of the machine finds the same files: no mount of a login, of cron or of
/// `PrivateTmp` hides it.
const BASE: &str = "/dev/shm";

/// Returns the place of the file of the server with this name: in a directory of the user's below `/dev/shm`.
pub fn place(name: &str) -> PathBuf {
    own_directory(Path::new(BASE)).join(format!("{name}.life"))
}

fn read_record(file: &File) -> Predecessor {
    // One byte more than there should be, so that a longer file is seen to be one.
    let mut bytes = [0; LENGTH + 1];
    match read_all(file, &mut bytes) {
        Ok(read) => Predecessor::of_bytes(&bytes[..read]),
        Err(_) => Predecessor::Unreadable,
    }
}

fn own_directory(base: &Path) -> PathBuf {
    base.join(format!("rdmakv-{}", user()))
}

/// Makes the directory of a file if need be, and checks that it is this user's alone.
fn make_directory(own: &Path) -> Result<(), IncarnationError> {
    match DirBuilder::new().mode(0o700).create(own) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(IncarnationError::System { doing: "making", path: own.to_owned(), source: error });
        }
        _ => {}
    }
    // It has to be ours, whatever made it, and writable by no other user.
    let found = std::fs::symlink_metadata(own);
    let ours = found.is_ok_and(|found| found.is_dir() && found.uid() == user() && found.mode() & 0o022 == 0);
    if ours { Ok(()) } else { Err(IncarnationError::Foreign { path: own.to_owned() }) }
}

impl IncarnationFile {
    /// Takes the file, or makes it. `lease` is D of this server, `random` any number.
    ///
    /// # Errors
    ///
    /// [`IncarnationError`]: without the file nothing may be exposed.
    pub fn begin(path: &Path, lease: Duration, random: u32) -> Result<Self, IncarnationError> {
        path.parent().map_or(Ok(()), make_directory)?;
        let (file, made) = take(path)?;
        let predecessor = if made { Predecessor::None } else { read_record(&file) };
        let record = IncarnationRecord { incarnation: predecessor.next_incarnation(random), lease, clean: made };
        let mut own = Self { path: path.to_owned(), file, predecessor, record, begun: clock(), made, serves: false };
        if made {
            // A server that fails before it serves leaves nothing that would have to be waited for, and its record
            // shows that.
            own.write()?;
            own.record.clean = false;
        }
        Ok(own)
    }

    /// Returns the record of the server before.
    pub fn predecessor(&self) -> Predecessor {
        self.predecessor
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Which incarnation of the server this is; every header and every tag carries it.
    pub fn incarnation(&self) -> u32 {
        self.record.incarnation
    }

    /// Returns how long from now on no client may be served.
    pub fn wait(&self) -> Duration {
        if self.serves { Duration::ZERO } else { (self.begun + self.predecessor.wait()).saturating_sub(clock()) }
    }

    /// Writes that something may be exposed from now on.
    ///
    /// # Errors
    ///
    /// [`IncarnationError::TooEarly`]; or the file cannot be written, and then nothing may be.
    pub fn serve(&mut self) -> Result<(), IncarnationError> {
        let left = self.wait();
        if !left.is_zero() {
            return Err(IncarnationError::TooEarly { path: self.path.clone(), left });
        }
        self.write()?;
        self.serves = true;
        Ok(())
    }

    /// Now and then: a cleaner of directories may have removed the file, and then it is written again. A successor would
    /// take it that nothing was exposed.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub fn tick(&mut self) -> Result<(), IncarnationError> {
        if !self.serves || is_at(&self.file, &self.path) {
            return Ok(());
        }
        // The directory may have gone with it.
        self.path.parent().map_or(Ok(()), make_directory)?;
        self.file = take(&self.path)?.0;
        self.write()
    }

    /// The end: everything that was leased is dead, so the next server need not wait.
    ///
    /// # Errors
    ///
    /// The file cannot be written: the next server waits.
    pub fn end(mut self) -> Result<(), IncarnationError> {
        // A server that never served leaves its predecessor's record.
        if self.serves {
            self.record.clean = true;
            // It may have been removed since the last look.
            self.tick()?;
            self.write()?;
        }
        Ok(())
    }

    fn write(&self) -> Result<(), IncarnationError> {
        let written =
            self.file.write_all_at(&self.record.to_bytes(), 0).and_then(|()| self.file.set_len(LENGTH as u64));
        written.map_err(|source| IncarnationError::System { doing: "writing", path: self.path.clone(), source })
    }
}

impl Drop for IncarnationFile {
    fn drop(&mut self) {
        // Its incarnation would be taken for that of a server that served.
        if self.made && !self.serves && is_at(&self.file, &self.path) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Returns whether the path still leads to the file.
fn is_at(file: &File, path: &Path) -> bool {
    let (there, own) = (std::fs::symlink_metadata(path), file.metadata());
    matches!((&there, &own), (Ok(there), Ok(own)) if (there.dev(), there.ino()) == (own.dev(), own.ino()))
}

/// Opens and locks; returns whether it was not there before.
fn take(path: &Path) -> Result<(File, bool), IncarnationError> {
    let failed = |doing, source| IncarnationError::System { doing, path: path.to_owned(), source };
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK);
    let (file, made) = match options.clone().create_new(true).open(path) {
        Ok(file) => (file, true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            (options.open(path).map_err(|source| failed("opening", source))?, false)
        }
        Err(source) => return Err(failed("making", source)),
    };
    let found = file.metadata().map_err(|source| failed("looking at", source))?;
    if !found.is_file() || found.uid() != user() || found.mode() & 0o022 != 0 {
        return Err(IncarnationError::Foreign { path: path.to_owned() });
    }
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        // A server that never served removed it meanwhile.
        Ok(()) if !is_at(&file, path) => Err(IncarnationError::Taken { path: path.to_owned() }),
        Ok(()) => Ok((file, made)),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(IncarnationError::Taken { path: path.to_owned() }),
        Err(source) => Err(failed("locking", source.into())),
    }
}

fn read_all(file: &File, bytes: &mut [u8]) -> io::Result<usize> {
    let mut read = 0;
    while read < bytes.len() {
        match file.read_at(&mut bytes[read..], read as u64)? {
            0 => break,
            more => read += more,
        }
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::store::LONGEST;

    const D: Duration = Duration::from_millis(40);

    fn begin(path: &Path) -> IncarnationFile {
        IncarnationFile::begin(path, D, 77).unwrap()
    }

    #[test]
    fn a_first_server_serves_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = begin(&dir.path().join("a.life"));
        assert_eq!((file.predecessor(), file.wait(), file.incarnation()), (Predecessor::None, Duration::ZERO, 77));
        file.serve().unwrap();
        assert_eq!(std::fs::metadata(dir.path().join("a.life")).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn first_server_that_never_served_causes_no_wait() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.life");
        let first = begin(&path);
        let record = std::fs::read(&path).unwrap();
        drop(first);
        assert!(!path.exists(), "it would be taken for a server's that served");
        // A kill leaves it.
        std::fs::write(&path, record).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        let mut second = begin(&path);
        assert_eq!((second.wait(), second.incarnation()), (Duration::ZERO, 78));
        second.serve().unwrap();
        drop(second);
        assert!(!begin(&path).wait().is_zero(), "this one has served");
    }

    #[test]
    fn who_comes_after_a_killed_server_waits() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.life");
        let mut first = IncarnationFile::begin(&path, LONGEST, 77).unwrap();
        first.serve().unwrap();
        drop(first);
        let mut second = begin(&path);
        assert_eq!(second.incarnation(), 78);
        assert!(matches!(second.serve(), Err(IncarnationError::TooEarly { .. })));
        assert!(second.wait() > LONGEST / 2 && second.wait() <= LONGEST + LONGEST / 8);
        // Killed while it waits: what the first said still stands, though this one's leases would be shorter.
        drop(second);
        let known = Predecessor::Known(IncarnationRecord { incarnation: 77, lease: LONGEST, clean: false });
        assert_eq!(begin(&path).predecessor(), known);
    }

    #[test]
    fn waited_server_serves_and_ends_cleanly() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.life");
        let mut first = begin(&path);
        first.serve().unwrap();
        drop(first);
        let mut second = begin(&path);
        while !second.wait().is_zero() {
            std::thread::sleep(second.wait());
        }
        second.serve().unwrap();
        second.end().unwrap();
        let mut third = begin(&path);
        assert_eq!(third.wait(), Duration::ZERO);
        third.serve().unwrap();
    }

    #[test]
    fn who_never_served_changes_nothing_when_it_ends() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.life");
        let mut first = begin(&path);
        first.serve().unwrap();
        drop(first);
        begin(&path).end().unwrap();
        assert!(matches!(begin(&path).predecessor(), Predecessor::Known(IncarnationRecord { clean: false, .. })));
    }

    #[test]
    fn what_makes_no_sense_is_waited_for_longest() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.life");
        let longer = [&IncarnationRecord { incarnation: 1, lease: D, clean: true }.to_bytes()[..], b"x"].concat();
        for said in [&b""[..], b"clean", &longer] {
            std::fs::write(&path, said).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
            let file = begin(&path);
            assert_eq!(file.predecessor(), Predecessor::Unreadable);
            assert!(file.wait() > Duration::from_secs(60));
        }
    }

    #[test]
    fn two_servers_never_have_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.life");
        let first = begin(&path);
        assert!(matches!(IncarnationFile::begin(&path, D, 1), Err(IncarnationError::Taken { .. })));
        drop(first);
        begin(&path);
    }

    #[test]
    fn a_file_that_others_made_or_may_write_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (path, target) = (dir.path().join("a.life"), dir.path().join("target"));
        std::fs::write(&target, "precious").unwrap();
        std::os::unix::fs::symlink(&target, &path).unwrap();
        assert!(IncarnationFile::begin(&path, D, 1).is_err());
        std::fs::set_permissions(&target, std::fs::Permissions::from_mode(0o666)).unwrap();
        assert!(matches!(IncarnationFile::begin(&target, D, 1), Err(IncarnationError::Foreign { .. })));
        assert_eq!(std::fs::read(&target).unwrap(), b"precious");
        // A directory that others may write to.
        assert!(matches!(
            IncarnationFile::begin(Path::new("/tmp/rdmakv-none.life"), D, 1),
            Err(IncarnationError::Foreign { .. })
        ));
    }

    #[test]
    fn a_file_that_was_cleaned_away_is_written_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.life");
        let mut file = begin(&path);
        file.serve().unwrap();
        std::fs::remove_file(&path).unwrap();
        file.tick().unwrap();
        assert!(matches!(IncarnationFile::begin(&path, D, 1), Err(IncarnationError::Taken { .. })));
        drop(file);
        assert!(matches!(
            begin(&path).predecessor(),
            Predecessor::Known(IncarnationRecord { incarnation: 77, clean: false, .. })
        ));
    }

    #[test]
    fn its_place_is_the_users_own() {
        assert_eq!(place("rdmakv-11211"), Path::new(&format!("/dev/shm/rdmakv-{}/rdmakv-11211.life", user())));
        let dir = tempfile::tempdir().unwrap();
        let own = own_directory(dir.path());
        let path = own.join("rdmakv-11211.life");
        drop(begin(&path));
        assert_eq!(std::fs::metadata(&own).unwrap().mode() & 0o777, 0o700);
        drop(begin(&path));
        std::fs::set_permissions(&own, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(IncarnationFile::begin(&path, D, 1), Err(IncarnationError::Foreign { .. })));
    }
}
