//! Files in the memory of a resilient cluster, by path, without a kernel.
//!
//! [`Files`] is one mount: a process, or several threads of it, that shares open files. Its operations answer as those of a file
//! system do, with the errno of [`Error::errno`].
//!
//! ```no_run
//! use rdmakv_client::Cluster;
//! use rdmakv_fuse::{Files, How, Settings};
//!
//! let files = Files::mount(&Cluster::new("http://10.0.0.1:2379"), "/lustre/run7".as_ref(), Settings::default())?;
//! let mut file = files.open("checkpoint", How::new().write().create())?;
//! file.write_at(0, b"state")?;
//! file.close()?; // the bytes survive lost servers from here on
//! files.settle(std::time::Duration::from_secs(600))?; // and the loss of all from here on
//! # Ok::<(), rdmakv_fuse::Error>(())
//! ```

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rdmakv_client::{Cluster as Address, Options};
use rdmakv_cluster::config::{Config, Policy};
use rdmakv_cluster::etcd::{Endpoint, Etcd, Store};
use rdmakv_proto::files::{Ino, Inode, Key, Kind, MountId};
use rustix::io::Errno;

use crate::backing::{Backing, Owner};
use crate::buffers::Read;
use crate::cluster::Cluster;
use crate::directory::Noted;
use crate::error::{Error, Result};
use crate::life::{Life, spawn};
use crate::node::Stores;
use crate::spill::Room;
use crate::volume::{Change, Listed, New, Volume, make_root, number};
use crate::walk::{Undrained, has_drained};

/// How long a mount's key lives after it was touched, each 5 s. A mount that could not touch it for 15 s changes nothing more.
const LIFE: Duration = Duration::from_secs(30);

/// The remedy of a mount that may seem dead.
const MOUNT_AGAIN: &str = "mount again";

/// How often files are looked at that are to be stored or frozen.
const TICK: Duration = Duration::from_millis(200);

/// How long an operation waits for a directory that another mount holds.
const BUSY: Duration = Duration::from_secs(5);

/// How often a write that waits looks at most whether files are being drained.
const DRAINS: Duration = Duration::from_secs(5);

/// Periods of looks after which a look is too old to show progress by the next one.
const RECENT: u32 = 12;

/// The first pause of the end of a mount between two looks at the files that are being drained. It doubles up to [`DRAINS`], as each look
/// reads all directories.
#[cfg(feature = "mount")]
const LOOK: Duration = Duration::from_millis(500);

/// Pauses of an operation that waits, at first and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// How long etcd has for an answer.
const ANSWER: Duration = Duration::from_secs(5);

/// When a sync, or the close of a file that was written, returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Fsync {
    /// Once the bytes survive lost servers.
    #[default]
    Memory,
    /// Once the backing directory shows the file. A write after a sync copies the whole file into its next generation.
    Backing,
}

/// How a mount behaves.
///
/// Fields may be added in a minor release: name those that you set, and write `..Default::default()` for the others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Bytes of a chunk of new files, a power of two from 64 KiB to 8 MiB. None is 256 KiB, or 128 KiB for each data fragment if chunks are in
    /// fragments. Servers need a larger `-I` for more than 1 MiB.
    pub chunk: Option<u64>,
    /// How long after its last close a file is frozen: 1 s. Reopened before, it needs no new generation.
    pub settle: Duration,
    /// Bytes that each open file has in buffers at most: 64 MiB.
    pub buffered: u64,
    /// How long a write waits for room while no file is drained, before it fails with `ENOSPC`: 2 minutes.
    pub full: Duration,
    /// How long servers refuse all chunks before chunks of open files go to the backing directory at once: 1 s.
    pub spill: Duration,
    /// When syncs return.
    pub fsync: Fsync,
    /// The bounds of the client.
    pub client: Options,
}

impl Default for Settings {
    fn default() -> Self {
        let client = Options { transfer_memory: 128 << 20, value_memory: 128 << 20, ..Options::default() };
        let (settle, full, spill) = (Duration::from_secs(1), Duration::from_secs(120), Duration::from_secs(1));
        Self { chunk: None, settle, buffered: 64 << 20, full, spill, fsync: Fsync::Memory, client }
    }
}

/// A file system in the memory of a cluster, drained to a directory.
///
/// It may be cloned and used by several threads. The last clone gives up its directories when it is dropped; call [`Files::settle`]
/// before, to have all bytes in the backing directory.
#[derive(Clone, Debug)]
pub struct Files(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    volume: Mutex<Volume>,
    life: Arc<Life>,
    /// How long a write waits while no file is drained.
    full: Duration,
    progress: Mutex<Progress>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// How a file is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct How {
    writes: bool,
    creates: bool,
    is_new: bool,
    truncates: bool,
    mode: Option<u16>,
}

impl How {
    /// Opens an existing file for reading.
    pub fn new() -> Self {
        Self::default()
    }

    /// For writing, too.
    pub fn write(self) -> Self {
        Self { writes: true, ..self }
    }

    /// Makes the file if it is absent.
    pub fn create(self) -> Self {
        Self { creates: true, ..self }
    }

    /// Makes the file; `EEXIST` if there is one.
    pub fn create_new(self) -> Self {
        Self { creates: true, is_new: true, ..self }
    }

    /// Drops the file's bytes.
    pub fn truncate(self) -> Self {
        Self { truncates: true, ..self }
    }

    /// Permissions of a new file: 0644, unless set.
    pub fn mode(self, mode: u16) -> Self {
        Self { mode: Some(mode & 0o7777), ..self }
    }
}

impl Files {
    /// Mounts the file system of a cluster, with its backing directory. The first mount makes it.
    ///
    /// # Errors
    ///
    /// Etcd or the cluster does not answer, its policies would lose bytes, or the directory belongs to another cluster.
    pub fn mount(cluster: &Address, backing: &Path, settings: Settings) -> Result<Self> {
        let is_chunk = |bytes: u64| bytes.is_power_of_two() && (1 << 16..=1 << 23).contains(&bytes);
        if let Some(bytes) = settings.chunk.filter(|&bytes| !is_chunk(bytes)) {
            let why = format!("use chunks of {bytes} bytes: use a power of two from 65536 to 8388608");
            return Err(Error::new(Errno::INVAL, why));
        }
        let config = read_config(cluster)?;
        check_policies(&config)?;
        let chunk = settings.chunk.unwrap_or_else(|| chunk_for(config.policy(b"c/1")));
        let mount = MountId(number());
        let mut keeper = Cluster::open(cluster, settings.client.clone())?;
        let backing = open_backing(&mut keeper, cluster, backing, &config)?;
        let Some((life, version)) = Life::begin(&mut keeper, mount, LIFE)? else {
            return Err(Error::new(Errno::EXIST, format!("make {}: it is taken: mount again", Key::Mount(mount))));
        };
        let life = Arc::new(life);
        let (full, room) = (settings.full, Room::new(settings.spill));
        let opened = Cluster::open(cluster, settings.client)?;
        let stores = Stores { cluster: opened, backing, mount, buffered: settings.buffered, room };
        let bits = chunk.trailing_zeros() as u8;
        let volume = Volume::new(stores, bits, (settings.settle, settings.fsync == Fsync::Backing));
        let (volume, threads) = (Mutex::new(volume), Mutex::new(Vec::new()));
        let progress = Mutex::default();
        let shared = Arc::new(Shared { volume, life: Arc::clone(&life), full, progress, threads });
        let (weak, other) = (Arc::downgrade(&shared), Arc::clone(&life));
        // Storing may wait for lost servers. The mount's key is touched meanwhile.
        let tick = move || while other.waits(TICK) && weak.upgrade().is_some_and(|shared| shared.tick()) {};
        let this = Self(shared);
        lock(&this.0.threads).push(spawn("rdmakv-files", tick)?);
        lock(&this.0.threads).push(spawn("rdmakv-life", move || life.keep(&mut keeper, version))?);
        Ok(this)
    }

    /// Opens a file.
    ///
    /// # Errors
    ///
    /// `ENOENT`, `EEXIST`, `EISDIR`, `ENOTDIR`; `EBUSY`: another mount writes it, or holds its directory.
    pub fn open(&self, path: impl AsRef<[u8]>, how: How) -> Result<File> {
        let (directory, name) = self.parent(path.as_ref())?;
        let new = New { mode: how.mode.unwrap_or(0o644), ..new(Kind::File, &[]) };
        let handle = self.0.run(|volume| {
            let ino = match volume.look_up(directory, &name) {
                Ok((_, _)) if how.is_new => {
                    let why = format!("make {}: the name is taken", name.escape_ascii());
                    return Err(Error::new(Errno::EXIST, why));
                }
                Ok((ino, inode)) => {
                    check_file(&inode, &name)?;
                    ino
                }
                Err(error) if error.errno() == Errno::NOENT && how.creates => {
                    volume.create(directory, &name, &new, how.writes)?.0
                }
                Err(error) => return Err(error),
            };
            if how.truncates {
                volume.set_attributes(ino, &Change { size: Some(0), ..Change::default() })?;
            }
            volume.open_file(ino, how.writes)
        })?;
        Ok(File { files: self.clone(), handle: Some(handle) })
    }

    /// Returns the inode of a path.
    ///
    /// # Errors
    ///
    /// `ENOENT`, `ENOTDIR`.
    pub fn look_up(&self, path: impl AsRef<[u8]>) -> Result<(Ino, Inode)> {
        let mut at = (Ino::ROOT, None);
        for name in names(path.as_ref()) {
            let (ino, inode) = self.0.run(|volume| volume.look_up(at.0, name))?;
            at = (ino, Some(inode));
        }
        match at.1 {
            Some(inode) => Ok((at.0, inode)),
            None => Ok((at.0, self.0.run(|volume| volume.attributes(Ino::ROOT))?)),
        }
    }

    /// Makes a directory.
    ///
    /// # Errors
    ///
    /// `EEXIST`, `ENOENT`, `EBUSY`.
    pub fn mkdir(&self, path: impl AsRef<[u8]>) -> Result<()> {
        let (directory, name) = self.parent(path.as_ref())?;
        let new = New { mode: 0o755, ..new(Kind::Directory, &[]) };
        self.0.run(|volume| volume.create(directory, &name, &new, false)).map(|_| ())
    }

    /// Makes a symbolic link. Operations of the library follow none.
    ///
    /// # Errors
    ///
    /// As [`Files::mkdir`].
    pub fn symlink(&self, target: impl AsRef<[u8]>, path: impl AsRef<[u8]>) -> Result<()> {
        let (directory, name) = self.parent(path.as_ref())?;
        let new = New { mode: 0o777, ..new(Kind::Link, target.as_ref()) };
        self.0.run(|volume| volume.create(directory, &name, &new, false)).map(|_| ())
    }

    /// Removes the name of a file or a link. Programs of this mount that have it open may go on.
    ///
    /// # Errors
    ///
    /// `ENOENT`, `EISDIR`, `EBUSY`.
    pub fn unlink(&self, path: impl AsRef<[u8]>) -> Result<()> {
        let (directory, name) = self.parent(path.as_ref())?;
        self.0.run(|volume| volume.unlink(directory, &name))
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    ///
    /// `ENOENT`, `ENOTDIR`, `ENOTEMPTY`, `EBUSY`.
    pub fn rmdir(&self, path: impl AsRef<[u8]>) -> Result<()> {
        let (directory, name) = self.parent(path.as_ref())?;
        self.0.run(|volume| volume.remove_directory(directory, &name))
    }

    /// Renames a file or a link within its directory, in place of another if there is one.
    ///
    /// # Errors
    ///
    /// `EXDEV`: to another directory, or a directory. `ENOENT`, `EISDIR`, `EBUSY`.
    pub fn rename(&self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) -> Result<()> {
        let (source, target) = (self.parent(from.as_ref())?, self.parent(to.as_ref())?);
        self.0.run(|volume| volume.rename((source.0, &source.1), (target.0, &target.1), true))
    }

    /// Returns the names of a directory, in no order.
    ///
    /// # Errors
    ///
    /// `ENOENT`, `ENOTDIR`.
    pub fn list(&self, path: impl AsRef<[u8]>) -> Result<Vec<Listed>> {
        let (ino, _) = self.look_up(path)?;
        self.0.run(|volume| volume.list(ino))
    }

    /// Freezes closed files, and waits until agents have shown all in the backing directory.
    ///
    /// # Errors
    ///
    /// `ETIMEDOUT`: it names a file that is not there yet. Files that are open are waited for, too.
    pub fn settle(&self, longest: Duration) -> Result<()> {
        let until = Instant::now() + longest;
        loop {
            self.0.run(Volume::settle_all)?;
            let Some(left) = self.0.run(Volume::unsettled)? else { return Ok(()) };
            if Instant::now() >= until {
                let left = left.escape_ascii();
                let why = format!(
                    "settle: the backing does not show {left} yet: close it, and see whether an agent runs for each server"
                );
                return Err(Error::new(Errno::TIMEDOUT, why));
            }
            std::thread::sleep(PAUSE.1);
        }
    }

    /// Stores all that was written, of all open files, so that it survives lost servers.
    ///
    /// # Errors
    ///
    /// As [`File::sync`], for the first file that could not be stored. All others were.
    pub fn sync_all(&self) -> Result<()> {
        self.0.run(Volume::sync_all)
    }

    /// Closes all files whatever has them open, and gives up all directories.
    ///
    /// # Errors
    ///
    /// As [`File::close`], for the first file that could not be stored.
    #[cfg(feature = "mount")]
    pub(crate) fn end(&self) -> Result<()> {
        let synced = self.sync_all();
        let mut volume = lock(&self.0.volume);
        let closed = volume.close_all();
        synced.and(closed).and_then(|()| volume.settle_all()).and_then(|()| volume.release_all())
    }

    /// Waits until the backing directory shows the files that are frozen now, while an agent carries some. `ends` waits for so long, and returns
    /// whether the wait is to end. Returns how many files are left, and whether an agent works.
    ///
    /// # Errors
    ///
    /// The cluster does not serve.
    #[cfg(feature = "mount")]
    pub(crate) fn drain(&self, mut ends: impl FnMut(Duration) -> bool) -> Result<(usize, bool)> {
        let mut left = self.0.run(Volume::undrained)?;
        let (waits, mut progress) = (Waits::begin(self.0.full), Progress::default());
        let mut pause = LOOK;
        while !left.is_empty() {
            let has_agent = self.0.run(Volume::has_agent)?;
            let drained = progress.look(waits.looks_every(), Instant::now(), || Ok(left.clone()));
            if !has_agent || waits.are_over(false, drained) || ends(pause) {
                return Ok((left.len(), has_agent));
            }
            pause = (pause * 2).min(DRAINS);
            let now = self.0.run(Volume::undrained)?;
            // Others go on writing.
            left = now.into_iter().filter(|(file, _)| left.contains_key(file)).collect();
        }
        Ok((0, true))
    }

    /// Runs an operation of the kernel.
    #[cfg(feature = "mount")]
    pub(crate) fn run<T>(&self, operation: impl FnMut(&mut Volume) -> Result<T>) -> Result<T> {
        self.0.run(operation)
    }

    /// Returns what an operation of the kernel has waited for: nothing yet.
    #[cfg(feature = "mount")]
    pub(crate) fn waits(&self) -> Waits {
        Waits::begin(self.0.full)
    }

    /// Tries an operation of the kernel once. None: it has to wait, and is to be tried again with the same `waits`.
    #[cfg(feature = "mount")]
    pub(crate) fn attempt<T>(
        &self,
        waits: &Waits,
        operation: impl FnOnce(&mut Volume) -> Result<T>,
    ) -> Option<Result<T>> {
        self.0.attempt(waits, operation)
    }

    /// Gives up a file whose bytes could not be stored in time.
    #[cfg(feature = "mount")]
    pub(crate) fn abandon(&self, handle: u64) {
        lock(&self.0.volume).abandon(handle);
    }

    /// Closes a file by its handle.
    pub(crate) fn close_handle(&self, handle: u64) -> Result<()> {
        let persisted = self.0.run(|volume| volume.persist_last(handle));
        let closed = self.0.run(|volume| volume.close(handle));
        if closed.is_err() {
            lock(&self.0.volume).abandon(handle);
        }
        persisted.and(closed)
    }

    /// Returns the directory of a path, and the last name.
    fn parent(&self, path: &[u8]) -> Result<(Ino, Vec<u8>)> {
        let mut all: Vec<&[u8]> = names(path).collect();
        let Some(name) = all.pop() else {
            return Err(Error::new(Errno::ISDIR, "use path: it is the root directory: name a file in it"));
        };
        let mut at = Ino::ROOT;
        for name in all {
            let (ino, inode) = self.0.run(|volume| volume.look_up(at, name))?;
            if inode.kind != Kind::Directory {
                let why = format!("use path: {} is no directory", name.escape_ascii());
                return Err(Error::new(Errno::NOTDIR, why));
            }
            at = ino;
        }
        Ok((at, name.to_vec()))
    }
}

/// An operation that waits, for a directory or for room.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waits {
    begun: Instant,
    /// How long it waits while no file is drained.
    full: Duration,
}

impl Waits {
    fn begin(full: Duration) -> Self {
        Self { begun: Instant::now(), full }
    }

    /// Returns how often it has to know whether files are being drained.
    fn looks_every(&self) -> Duration {
        DRAINS.min(self.full / 4)
    }

    /// Returns whether it waited for too long. Where there is no room, that is after a time in which no file was drained, as far as is known.
    fn are_over(&self, is_busy: bool, drained: Option<Instant>) -> bool {
        if is_busy {
            return self.begun.elapsed() >= BUSY;
        }
        drained.map_or(self.begun, |drained| drained.max(self.begun)).elapsed() >= self.full
    }
}

/// How far the agent came, as all operations that wait for room see it. A look reads all directories, so they share each.
#[derive(Debug, Default)]
struct Progress {
    looked: Option<Instant>,
    seen: Undrained,
    /// When a look last showed that a file was drained.
    drained: Option<Instant>,
}

impl Progress {
    /// Looks, if the last look is so old. Returns when a look last showed that a file was drained.
    fn look(&mut self, every: Duration, now: Instant, look: impl FnOnce() -> Result<Undrained>) -> Option<Instant> {
        let age = self.looked.map(|looked| now.saturating_duration_since(looked));
        if age.is_none_or(|age| age >= every) {
            let begun = Instant::now();
            // Without an answer there is no progress.
            let left = look().ok();
            let looked = now + begun.elapsed();
            self.looked = Some(looked);
            if let Some(left) = left {
                // While nothing waits there are no looks, and files that were drained then are no progress now.
                if age.is_some_and(|age| age < RECENT * every) && has_drained(&self.seen, &left) {
                    self.drained = Some(looked);
                }
                self.seen = left;
            }
        }
        self.drained
    }
}

impl Shared {
    /// Runs an operation, again while what hinders it may pass.
    fn run<T>(&self, mut operation: impl FnMut(&mut Volume) -> Result<T>) -> Result<T> {
        let waits = Waits::begin(self.full);
        let mut pause = PAUSE.0;
        loop {
            if let Some(outcome) = self.attempt(&waits, &mut operation) {
                return outcome;
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    /// Tries an operation once. Returns None if what hinders it may pass, and it has waited for less than it may.
    fn attempt<T>(&self, waits: &Waits, operation: impl FnOnce(&mut Volume) -> Result<T>) -> Option<Result<T>> {
        if let Err(error) = self.life.check(MOUNT_AGAIN) {
            return Some(Err(error));
        }
        let outcome = operation(&mut lock(&self.volume));
        match outcome.as_ref().err().filter(|error| error.may_pass()) {
            // The disk has all that it needs, and takes its time.
            Some(error) if error.errno() == Errno::AGAIN => None,
            Some(error) if !waits.are_over(error.errno() == Errno::BUSY, self.drained(waits, error)) => None,
            _ => Some(outcome),
        }
    }

    /// Returns when a file was drained last, as far as an operation has to know that waits because of an error.
    fn drained(&self, waits: &Waits, error: &Error) -> Option<Instant> {
        let every = waits.looks_every();
        if error.errno() == Errno::BUSY || waits.begun.elapsed() < every {
            return None;
        }
        lock(&self.progress).look(every, Instant::now(), || lock(&self.volume).undrained())
    }

    /// Does what is due. Returns whether the mount goes on.
    fn tick(&self) -> bool {
        if self.life.check(MOUNT_AGAIN).is_ok() {
            // A failure is that of the file's next sync, or is tried again.
            let _ = lock(&self.volume).tick();
        }
        true
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.life.check(MOUNT_AGAIN).is_ok() {
            let volume = self.volume.get_mut().unwrap_or_else(PoisonError::into_inner);
            let _ = volume.settle_all().and_then(|()| volume.release_all());
        }
        self.life.end();
        for thread in self.threads.get_mut().unwrap_or_else(PoisonError::into_inner).drain(..) {
            // The thread itself may have had the last clone for a moment.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

/// An open file. A dropped one is closed, and errors of that are lost: call [`File::close`].
#[derive(Debug)]
pub struct File {
    files: Files,
    handle: Option<u64>,
}

impl File {
    /// Returns bytes at an offset, fewer at the file's end.
    ///
    /// # Errors
    ///
    /// `EIO`: bytes are lost. `ESTALE`: another mount replaced or removed the file.
    pub fn read_at(&self, offset: u64, length: u64) -> Result<Vec<u8>> {
        let handle = self.handle()?;
        self.files.0.run(|volume| volume.read(handle, offset, length)).map(Read::into_vec)
    }

    /// Writes bytes at an offset. They survive lost servers after [`File::sync`] or [`File::close`].
    ///
    /// # Errors
    ///
    /// `ENOSPC`: the cluster was full for 2 minutes, and no file was drained meanwhile. `EFBIG`, `EBADF`, `EIO`.
    pub fn write_at(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        let handle = self.handle()?;
        self.files.0.run(|volume| volume.write(handle, &mut Some(offset), data)).map(|_| ())
    }

    /// Writes bytes at the file's end. Returns where they are.
    ///
    /// # Errors
    ///
    /// As [`File::write_at`].
    pub fn append(&mut self, data: &[u8]) -> Result<u64> {
        let handle = self.handle()?;
        let mut place = None;
        self.files.0.run(|volume| volume.write(handle, &mut place, data))
    }

    /// Sets the file's size. A longer one ends with a hole.
    ///
    /// # Errors
    ///
    /// As [`File::write_at`].
    pub fn truncate(&mut self, size: u64) -> Result<()> {
        let handle = self.handle()?;
        self.files.0.run(|volume| volume.set_size(handle, size))
    }

    /// Stores what was written, so that it survives lost servers. With [`Fsync::Backing`] it survives the loss of all.
    ///
    /// # Errors
    ///
    /// As [`File::write_at`]. With [`Fsync::Backing`] also the errno of the directory, and `ETIMEDOUT`: no file was drained for 2
    /// minutes. The bytes are kept: the next sync may succeed, but for `EIO` after an unknown outcome.
    pub fn sync(&mut self) -> Result<()> {
        let handle = self.handle()?;
        self.files.0.run(|volume| volume.sync(handle, false))
    }

    /// Closes the file. What was written survives lost servers.
    ///
    /// # Errors
    ///
    /// As [`File::sync`]; the file is closed nevertheless.
    pub fn close(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        let Some(handle) = self.handle.take() else { return Ok(()) };
        self.files.close_handle(handle)
    }

    fn handle(&self) -> Result<u64> {
        self.handle.ok_or_else(|| Error::new(Errno::BADF, "use file: it is closed"))
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What a panic left half done is in the cluster, which each operation reads.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn names(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|&byte| byte == b'/').filter(|name| !name.is_empty() && *name != b".")
}

fn new(kind: Kind, target: &[u8]) -> New<'_> {
    let (owner, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    New { kind, mode: 0, owner, group, target }
}

fn check_file(inode: &Inode, name: &[u8]) -> Result<()> {
    let (errno, what) = match inode.kind {
        Kind::File => return Ok(()),
        Kind::Directory => (Errno::ISDIR, "it is a directory"),
        Kind::Link => (Errno::LOOP, "it is a symbolic link"),
    };
    Err(Error::new(errno, format!("open {}: {what}", name.escape_ascii())))
}

/// Returns the bytes of a chunk that suit a policy. Each fragment costs a server the same work whatever its size. Seven of 128 KiB share a
/// page.
fn chunk_for(policy: Policy) -> u64 {
    let data = match policy {
        Policy::Code { data, .. } => u64::from(data),
        Policy::None | Policy::Copies(_) => 2,
    };
    // The next power of two below.
    let most = (data << 17).clamp(256 << 10, 1 << 23);
    1 << most.ilog2()
}

/// Reads the configuration of a cluster.
pub(crate) fn read_config(cluster: &Address) -> Result<Config> {
    let failed = |why: String| Error::new(Errno::IO, why);
    let endpoints = Endpoint::list(&cluster.etcd).map_err(|error| failed(error.to_string()))?;
    let store = Store::new(Etcd::new(endpoints, ANSWER), &cluster.name);
    let view = store.map_err(|error| failed(error.to_string()))?.read().map_err(|error| failed(error.to_string()))?;
    let none = || failed(format!("read cluster {}: there is none: make it by `rdmakv cluster init`", cluster.name));
    view.config().cloned().ok_or_else(none)
}

/// Opens the backing directory of a cluster. One that had none before gets this one, and the root directory.
///
/// # Errors
///
/// The cluster or etcd does not serve, or it is not the cluster's directory.
pub(crate) fn open_backing(cluster: &mut Cluster, address: &Address, path: &Path, config: &Config) -> Result<Backing> {
    let mut noted = Noted::of(address, config.uuid(), ANSWER)?;
    let has_files = cluster.inode(Ino::ROOT)?.is_some();
    let (number, key) = (noted.read()?, noted.key().to_owned());
    let owner = Owner { cluster: config.uuid(), has_files, directory: number, key: &key };
    let backing = Backing::open(path, &owner, |number| noted.claim(number))?;
    make_root(cluster, &backing)?;
    Ok(backing)
}

/// Checks that no key of the file system is lost with one server.
pub(crate) fn check_policies(config: &Config) -> Result<()> {
    for prefix in ["c/", "d/", "i/", "m/", "n/", "p/"] {
        // The shortest key of each.
        if config.policy(format!("{prefix}1").as_bytes()).may_lose() == 0 {
            let more = if prefix == "c/" { ",evict=clean" } else { "" };
            let why = format!(
                "use cluster: keys {prefix}… are on one server each: run `rdmakv cluster policy {prefix} copies:2{more}`"
            );
            return Err(Error::new(Errno::INVAL, why));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmakv_proto::files::Generation;

    #[test]
    fn operations_that_wait_share_each_look() {
        let (begin, every) = (Instant::now(), Duration::from_secs(5));
        let left = |files: &[u64]| files.iter().map(|&ino| ((Ino(ino), Generation(1)), None)).collect::<Undrained>();
        let (mut progress, mut looks) = (Progress::default(), 0);
        // Ten operations at each of these times.
        let mut at = |seconds: u64, files: &[u64]| {
            let now = begin + Duration::from_secs(seconds);
            let look = |looks: &mut i32| {
                *looks += 1;
                Ok(left(files))
            };
            let seen = [(); 10].map(|()| progress.look(every, now, || look(&mut looks)));
            assert!(seen.iter().all(|other| *other == seen[0]));
            (looks, seen[0].map(|drained| (drained - begin).as_secs()))
        };
        assert_eq!(at(0, &[5, 6]), (1, None));
        assert_eq!(at(4, &[6]), (1, None));
        assert_eq!(at(6, &[6]), (2, Some(6)));
        assert_eq!(at(12, &[6]), (3, Some(6)));
        // Nothing waited for a while.
        assert_eq!(at(100, &[7]), (4, Some(6)));
    }

    #[test]
    fn chunks_suit_their_policy() {
        let code = |data| Policy::Code { data, parity: 2 };
        for (policy, kib) in [
            (Policy::Copies(2), 256),
            (code(1), 256),
            (code(3), 256),
            (code(4), 512),
            (code(8), 1024),
            (code(255), 8192),
        ] {
            assert_eq!(chunk_for(policy), kib << 10, "{policy:?}");
        }
    }
}
