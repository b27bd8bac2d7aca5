//! The file system as the kernel asks for it: each request is an operation of the mount's volume.
//!
//! **Caches.** The kernel asks for names and attributes each time, because other mounts may change them. It keeps the bytes of a file
//! from one opening to the next if the file is the same generation, size and time. Writes come at once, not later (write-through), so
//! programs of one mount see each other's bytes as in any file system. A file that is opened for appending has no such cache, because its
//! end is known here only.
//!
//! **Threads.** Several serve requests. One lock is held for the operation, and not while an operation waits for another mount or for room. One
//! that waits for room keeps no thread either: it goes to [`Waiting`].

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenAccMode, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use rdmakv_proto::files::{Ino, Inode, Kind, MAX_NAME, Time};
use rustix::fs::OFlags;

use crate::error::{Error, Result};
use crate::library::{Files, Waits};
use crate::life::spawn;
use crate::volume::{Change, Listed, New, Volume, now, time};
use crate::waiting::Waiting;

/// How long the kernel may use names and attributes without asking.
const NOT_AT_ALL: Duration = Duration::ZERO;

/// The only generation of each inode's number: numbers are never used again.
const ONLY: Generation = Generation(0);

/// Bytes of a write at most. Larger ones of programs come in parts.
const LARGEST_WRITE: u32 = 1 << 20;

/// Requests of the kernel's own at once: reading ahead, and mapped pages on their way out.
const BACKGROUND: u16 = 64;

/// Bytes that programs are advised to read and write at once.
const BLOCK: u32 = 128 << 10;

/// Files of which it is known what the kernel has cached, at most.
const VIEWS: usize = 65_536;

/// A mount's answers to the kernel.
#[derive(Debug)]
pub(crate) struct Served {
    files: Files,
    listings: Mutex<HashMap<u64, Arc<Listing>>>,
    next_listing: AtomicU64,
    views: Arc<Views>,
    waiting: Arc<Waiting>,
    waiter: Option<JoinHandle<()>>,
}

/// The bytes of files that the kernel may have cached.
#[derive(Debug, Default)]
struct Views(Mutex<HashMap<Ino, View>>);

/// The names of an open directory, as they were at its opening or rewinding.
#[derive(Debug)]
struct Listing {
    parent: Ino,
    names: Vec<Listed>,
}

/// The bytes of a file that the kernel may have cached: those of a generation, size and two times. Programs set the first time only.
type View = (u64, u64, Time, Time);

impl Served {
    /// Returns the answers of a mount.
    ///
    /// # Errors
    ///
    /// The system has no more threads.
    pub(crate) fn new(files: Files) -> Result<Self> {
        let waiting = Arc::<Waiting>::default();
        let served = Arc::clone(&waiting);
        let waiter = Some(spawn("rdmakv-waits", move || served.serve())?);
        let (listings, next_listing) = (Mutex::default(), AtomicU64::new(1));
        Ok(Self { files, listings, next_listing, views: Arc::default(), waiting, waiter })
    }

    /// Does an operation, which may have to wait for room, and answers.
    fn answer<T>(
        &self,
        mut operation: impl FnMut(&mut Volume) -> Result<T> + Send + 'static,
        answer: impl FnOnce(Result<T>) + Send + 'static,
    ) {
        let waits = self.files.waits();
        match self.files.attempt(&waits, &mut operation) {
            Some(outcome) => answer(outcome),
            None => self.wait(waits, operation, answer),
        }
    }

    /// Answers an operation that has to wait, once it is done.
    fn wait<T>(
        &self,
        waits: Waits,
        mut operation: impl FnMut(&mut Volume) -> Result<T> + Send + 'static,
        answer: impl FnOnce(Result<T>) + Send + 'static,
    ) {
        let (files, mut answer) = (self.files.clone(), Some(answer));
        self.waiting.add(Box::new(move || {
            let Some(outcome) = files.attempt(&waits, &mut operation) else { return false };
            if let Some(answer) = answer.take() {
                answer(outcome);
            }
            true
        }));
    }

    fn entry(&self, outcome: Result<(Ino, Inode)>, reply: ReplyEntry) {
        match outcome {
            Ok((ino, inode)) => reply.entry(&NOT_AT_ALL, &attributes(ino, &inode), ONLY),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn make(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        (kind, mode): (Kind, u32),
    ) -> Result<(Ino, Inode)> {
        let new = New { mode: (mode & 0o7777) as u16, ..new(request, kind, &[]) };
        self.files.run(|volume| volume.create(ino(parent), name.as_bytes(), &new, false))
    }

    /// Opens a file that there is.
    fn open_file(&self, ino: Ino, flags: i32) -> Result<(FileHandle, FopenFlags)> {
        let writes = OpenFlags(flags).acc_mode() != OpenAccMode::O_RDONLY;
        let handle = self.files.run(|volume| volume.open_file(ino, writes))?;
        let mut how = FopenFlags::empty();
        match self.files.run(|volume| volume.attributes(ino)) {
            Ok(inode) if self.views.note(ino, &inode) => how |= FopenFlags::FOPEN_KEEP_CACHE,
            _ => {}
        }
        if appends(flags) {
            how = FopenFlags::FOPEN_DIRECT_IO;
        }
        Ok((FileHandle(handle), how))
    }

    /// Makes a file and opens it; one that there is, unless it must be new.
    fn create_file(&self, request: &Request, at: (INodeNo, &OsStr), mode: u32, flags: i32) -> Result<Created> {
        let (parent, name) = (ino(at.0), at.1.as_bytes());
        let new = New { mode: (mode & 0o7777) as u16, ..new(request, Kind::File, &[]) };
        let writes = OpenFlags(flags).acc_mode() != OpenAccMode::O_RDONLY;
        let must_be_new = is_set(flags, OFlags::EXCL);
        let (ino, inode) = self.files.run(|volume| match volume.create(parent, name, &new, writes) {
            Err(error) if error.errno() == rustix::io::Errno::EXIST && !must_be_new => volume.look_up(parent, name),
            outcome => outcome,
        })?;
        if inode.kind != Kind::File {
            let (errno, what) = match inode.kind {
                Kind::Directory => (rustix::io::Errno::ISDIR, "it is a directory"),
                _ => (rustix::io::Errno::EXIST, "it is a link"),
            };
            return Err(Error::new(errno, format!("make {}: {what}", name.escape_ascii())));
        }
        let (handle, how) = self.open_file(ino, flags)?;
        Ok(Created { ino, inode, handle, how })
    }

    /// Lists a directory, for one that a program has open.
    fn list(&self, handle: u64, directory: Ino) -> Result<Arc<Listing>> {
        let listing = self.files.run(|volume| {
            let parent = volume.attributes(directory)?.parent.unwrap_or(Ino::ROOT);
            Ok(Listing { parent, names: volume.list(directory)? })
        })?;
        let listing = Arc::new(listing);
        lock(&self.listings).insert(handle, Arc::clone(&listing));
        Ok(listing)
    }
}

impl Views {
    /// Notes what the kernel has of a file from now on. Returns whether it had the same before.
    fn note(&self, ino: Ino, inode: &Inode) -> bool {
        let view = (inode.generation.0, inode.size, inode.modified, inode.changed);
        let mut views = lock(&self.0);
        if views.len() >= VIEWS {
            views.clear();
        }
        views.insert(ino, view) == Some(view)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.waiting.end();
        self.waiter.take().into_iter().for_each(|thread| drop(thread.join()));
    }
}

/// A file that was made and opened.
struct Created {
    ino: Ino,
    inode: Inode,
    handle: FileHandle,
    how: FopenFlags,
}

impl Filesystem for Served {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Kernels without one of these do without.
        let _ = config.set_max_write(LARGEST_WRITE);
        let _ = config.set_max_background(BACKGROUND);
        let _ = config.add_capabilities(InitFlags::FUSE_PARALLEL_DIROPS);
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.entry(self.files.run(|volume| volume.look_up(ino(parent), name.as_bytes())), reply);
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.files.run(|volume| volume.attributes(ino(number))) {
            Ok(inode) => reply.attr(&NOT_AT_ALL, &attributes(ino(number), &inode)),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        number: INodeNo,
        mode: Option<u32>,
        owner: Option<u32>,
        group: Option<u32>,
        size: Option<u64>,
        _accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _changed: Option<SystemTime>,
        _: Option<FileHandle>,
        _created: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let modified = modified.map(|modified| match modified {
            TimeOrNow::SpecificTime(at) => time(at),
            TimeOrNow::Now => now(),
        });
        let mode = mode.map(|mode| (mode & 0o7777) as u16);
        let change = Change { mode, owner, group, size, modified };
        let ino = ino(number);
        let change = move |volume: &mut Volume| volume.set_attributes(ino, &change);
        self.answer(change, move |outcome| match outcome {
            Ok(inode) => reply.attr(&NOT_AT_ALL, &attributes(ino, &inode)),
            Err(error) => reply.error(errno(&error)),
        });
    }

    fn readlink(&self, _: &Request, number: INodeNo, reply: ReplyData) {
        match self.files.run(|volume| volume.attributes(ino(number))) {
            Ok(inode) if inode.kind == Kind::Link => reply.data(&inode.target),
            Ok(_) => reply.error(Errno::EINVAL),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn mknod(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, _: u32, _: u32, reply: ReplyEntry) {
        let kind = rustix::fs::FileType::from_raw_mode(mode);
        if kind != rustix::fs::FileType::RegularFile {
            return reply.error(Errno::EPERM);
        }
        self.entry(self.make(request, parent, name, (Kind::File, mode)), reply);
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, _: u32, reply: ReplyEntry) {
        self.entry(self.make(request, parent, name, (Kind::Directory, mode)), reply);
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let new = New { mode: 0o777, ..new(request, Kind::Link, target.as_os_str().as_bytes()) };
        self.entry(self.files.run(|volume| volume.create(ino(parent), name.as_bytes(), &new, false)), reply);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        done(self.files.run(|volume| volume.unlink(ino(parent), name.as_bytes())), reply);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        done(self.files.run(|volume| volume.remove_directory(ino(parent), name.as_bytes())), reply);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        other: INodeNo,
        target: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        if !RenameFlags::RENAME_NOREPLACE.contains(flags) {
            return reply.error(Errno::EINVAL);
        }
        let replaces = flags.is_empty();
        let (from, to) = ((ino(parent), name.as_bytes()), (ino(other), target.as_bytes()));
        done(self.files.run(|volume| volume.rename(from, to, replaces)), reply);
    }

    fn link(&self, _: &Request, _: INodeNo, _: INodeNo, _: &OsStr, reply: ReplyEntry) {
        reply.error(Errno::EPERM);
    }

    fn open(&self, _: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.open_file(ino(number), flags.0) {
            Ok((handle, how)) => reply.opened(handle, how),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        match self.create_file(request, (parent, name), mode, flags) {
            Ok(Created { ino, inode, handle, how }) => {
                reply.created(&NOT_AT_ALL, &attributes(ino, &inode), ONLY, handle, how);
            }
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.files.run(|volume| volume.read(handle.0, offset, size.into())) {
            Ok(bytes) => reply.data(&bytes),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        how: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        // Pages that were mapped know their place.
        let at_end = appends(flags.0) && !how.contains(WriteFlags::FUSE_WRITE_CACHE);
        let mut place = (!at_end).then_some(offset);
        let length = data.len() as u32;
        let answer = move |outcome: Result<u64>| match outcome {
            Ok(_) => reply.written(length),
            Err(error) => reply.error(errno(&error)),
        };
        let waits = self.files.waits();
        match self.files.attempt(&waits, |volume| volume.write(handle.0, &mut place, data)) {
            Some(outcome) => answer(outcome),
            None => {
                let data = data.to_vec();
                self.wait(waits, move |volume| volume.write(handle.0, &mut place, &data), answer);
            }
        }
    }

    /// A program closed one of its descriptors: what was written survives lost servers.
    fn flush(&self, _: &Request, number: INodeNo, handle: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        let (ino, views) = (ino(number), Arc::clone(&self.views));
        let flush = move |volume: &mut Volume| {
            let attributes = if volume.flush(handle.0)? { volume.attributes(ino).ok() } else { None };
            Ok(attributes)
        };
        self.answer(flush, move |outcome| {
            if let Ok(Some(inode)) = &outcome {
                // All its changes came through this kernel.
                views.note(ino, inode);
            }
            done(outcome.map(|_| ()), reply);
        });
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        let files = self.files.clone();
        self.answer(
            move |volume| volume.close(handle.0),
            move |outcome| {
                if outcome.is_err() {
                    files.abandon(handle.0);
                }
                done(outcome, reply);
            },
        );
    }

    fn fsync(&self, _: &Request, _: INodeNo, handle: FileHandle, _: bool, reply: ReplyEmpty) {
        self.answer(move |volume| volume.sync(handle.0, false), move |outcome| done(outcome, reply));
    }

    fn opendir(&self, _: &Request, number: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let handle = self.next_listing.fetch_add(1, Ordering::Relaxed);
        match self.list(handle, ino(number)) {
            Ok(_) => reply.opened(FileHandle(handle), FopenFlags::empty()),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn readdir(&self, _: &Request, number: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let known = lock(&self.listings).get(&handle.0).cloned();
        let listing = match known {
            // It was rewound, or is read for the first time.
            _ if offset == 0 => self.list(handle.0, ino(number)),
            Some(listing) => Ok(listing),
            None => return reply.error(Errno::EBADF),
        };
        let listing = match listing {
            Ok(listing) => listing,
            Err(error) => return reply.error(errno(&error)),
        };
        for at in offset..listing.names.len() as u64 + 2 {
            let is_full = match at {
                0 => reply.add(number, 1, FileType::Directory, "."),
                1 => reply.add(INodeNo(listing.parent.0), 2, FileType::Directory, ".."),
                _ => {
                    let listed = &listing.names[at as usize - 2];
                    let known = listed.ino.map_or(UNKNOWN, |ino| INodeNo(ino.0));
                    reply.add(known, at + 1, kind(listed.kind), OsStr::from_bytes(&listed.name))
                }
            };
            if is_full {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(&self, _: &Request, _: INodeNo, handle: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        lock(&self.listings).remove(&handle.0);
        reply.ok();
    }

    /// Changes of names survive lost servers as soon as they are made.
    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        match self.files.run(|volume| volume.space()) {
            Ok(space) => reply.statfs(
                space.f_blocks,
                space.f_bfree,
                space.f_bavail,
                space.f_files,
                space.f_ffree,
                space.f_bsize as u32,
                MAX_NAME as u32,
                space.f_frsize as u32,
            ),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        if mode != 0 {
            return reply.error(Errno::EOPNOTSUPP);
        }
        let end = offset.saturating_add(length);
        self.answer(move |volume| volume.extend(handle.0, end), move |outcome| done(outcome, reply));
    }
}

/// The inode number of a name that has none yet, as libfuse has it.
const UNKNOWN: INodeNo = INodeNo(0xffff_ffff);

fn done(outcome: Result<()>, reply: ReplyEmpty) {
    match outcome {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(&error)),
    }
}

fn errno(error: &Error) -> Errno {
    Errno::from_i32(error.errno().raw_os_error())
}

fn ino(number: INodeNo) -> Ino {
    Ino(number.0)
}

fn is_set(flags: i32, flag: OFlags) -> bool {
    flags as u32 & flag.bits() != 0
}

fn appends(flags: i32) -> bool {
    is_set(flags, OFlags::APPEND) && OpenFlags(flags).acc_mode() != OpenAccMode::O_RDONLY
}

fn new<'a>(request: &Request, kind: Kind, target: &'a [u8]) -> New<'a> {
    New { kind, mode: 0, owner: request.uid(), group: request.gid(), target }
}

fn kind(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
        Kind::Link => FileType::Symlink,
    }
}

/// Returns an inode as the kernel has it. There are no times of reading.
fn attributes(ino: Ino, inode: &Inode) -> FileAttr {
    let modified = system_time(inode.modified);
    FileAttr {
        ino: INodeNo(ino.0),
        size: inode.size,
        blocks: inode.size.div_ceil(512),
        atime: modified,
        mtime: modified,
        ctime: system_time(inode.changed),
        crtime: UNIX_EPOCH,
        kind: kind(inode.kind),
        perm: inode.mode & 0o7777,
        nlink: u32::from(!inode.is_unlinked),
        uid: inode.owner,
        gid: inode.group,
        rdev: 0,
        blksize: BLOCK,
        flags: 0,
    }
}

fn system_time(time: Time) -> SystemTime {
    let seconds = Duration::from_secs(time.seconds.unsigned_abs());
    let whole = if time.seconds < 0 { UNIX_EPOCH.checked_sub(seconds) } else { UNIX_EPOCH.checked_add(seconds) };
    let nanos = Duration::from_nanos(time.nanos.into());
    whole.and_then(|whole| whole.checked_add(nanos)).unwrap_or(UNIX_EPOCH)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_the_kernels_and_back() {
        for (seconds, nanos) in [(0, 0), (5, 7), (-1, 999_999_999), (-86_400, 0), (4_102_444_800, 1)] {
            let at = Time { seconds, nanos };
            assert_eq!(time(system_time(at)), at);
        }
    }

    #[test]
    fn only_writers_append() {
        let flag = |flags: OFlags| flags.bits() as i32;
        assert!(appends(flag(OFlags::APPEND | OFlags::WRONLY)));
        assert!(appends(flag(OFlags::APPEND | OFlags::RDWR)));
        assert!(!appends(flag(OFlags::APPEND)) && !appends(flag(OFlags::RDWR)));
    }
}
