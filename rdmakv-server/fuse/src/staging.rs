//! An agent's folder on the backing, and the changes of names that lead through it.
//!
//! ```text
//! .rdmakv/new/N   the folder of the Nth agent: a later one removes it, so an earlier agent changes no name any more
//! ```
//!
//! All changes go through the folder's descriptor. Once the folder is removed, nothing can be linked or renamed into it or out of it.

use std::os::fd::OwnedFd;

use rdmakv_proto::files::{Generation, Ino, Inode, Kind, State, Time};
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, RawDir, Timespec, Timestamps, UTIME_OMIT, chmodat, chownat, fchmod, fchown, fstat,
    fsync, ftruncate, futimens, linkat, mkdirat, openat, renameat, statat, symlinkat, unlinkat, utimensat,
};
use rustix::fs::{Gid, SeekFrom, Uid, seek};
use rustix::io::{Errno, pread, pwrite};

use crate::backing::{Backing, data_name, spill_name};
use crate::error::{Error, Result};
use crate::finish::{Disk, DiskAnswer, Staging};

/// Directories below each other at most, of those that are removed.
const DEPTH: usize = 512;

/// The name in the folder of what is to be removed.
const GONE: &str = "gone";

/// The name in the folder of the copy of a torn file.
const TORN: &str = "torn";

/// The folder of an agent that publishes.
#[derive(Debug)]
pub(crate) struct Folder {
    all: OwnedFd,
    own: OwnedFd,
    number: u32,
}

type Done = std::result::Result<u64, Errno>;

impl Folder {
    /// Makes the folder of a new agent, and removes those of all earlier ones.
    ///
    /// # Errors
    ///
    /// The backing fails.
    pub(crate) fn take(backing: &Backing) -> Result<Self> {
        let failed = |errno| Error::of_backing(errno, "make folder in", backing.path().join(".rdmakv/new").display());
        let all = backing.staging().map_err(failed)?;
        let mut staging = Staging::begin(latest(&all).map_err(failed)? + 1);
        let mut own = None;
        loop {
            match staging {
                Staging::Making(number) => {
                    // Another agent may make it at the same time. Confirming tells.
                    own = match mkdirat(&all, number.to_string(), Mode::RWXU) {
                        Ok(()) => Some(directory(&all, number.to_string().as_bytes()).map_err(failed)?),
                        Err(Errno::EXIST) => None,
                        Err(errno) => return Err(failed(errno)),
                    };
                    staging.done(number);
                }
                Staging::Confirming(number) => {
                    let latest = latest(&all).map_err(failed)?;
                    let is_own = own.is_some() && latest == number;
                    staging.done(if is_own { number } else { latest.saturating_add(1) });
                }
                Staging::Fencing(number) => {
                    remove_below(&all, number).map_err(failed)?;
                    staging.done(number);
                }
                Staging::Ready(number) => {
                    return own.map(|own| Self { all, own, number }).ok_or_else(|| failed(Errno::EXIST));
                }
            }
        }
    }

    /// Returns whether a later agent removed the folder.
    pub(crate) fn is_gone(&self) -> bool {
        let number = |stat: rustix::fs::Stat| (stat.st_dev, stat.st_ino);
        let there = statat(&self.all, self.number.to_string(), AtFlags::SYMLINK_NOFOLLOW).map(number);
        match (there, fstat(&self.own).map(number)) {
            (Ok(there), Ok(own)) => there != own,
            (Err(Errno::NOENT), _) => true,
            // The backing fails, and tells nothing.
            _ => false,
        }
    }

    /// Makes a change of a directory's names. Of an inode without a name its caller removes the data files.
    ///
    /// # Errors
    ///
    /// The backing fails.
    pub(crate) fn change(
        &self,
        backing: &Backing,
        (parent, name): (&OwnedFd, &[u8]),
        disk: &Disk,
    ) -> std::result::Result<DiskAnswer, Errno> {
        let done = match disk {
            Disk::Create(ino, generation) => backing.data_file(*ino, *generation).map(|_| 0),
            Disk::Link(ino, generation) => self.link(backing, *ino, *generation),
            Disk::Make(ino, inode) => self.make(parent, name, *ino, inode),
            Disk::Finish(ino, inode) => self.finish(parent, name, *ino, inode),
            Disk::Show(ino, name) => self.show(parent, name, *ino),
            Disk::Hide(name) => self.hide(parent, name),
            Disk::Drop(ino, below) => {
                let below = below.map_or(0, |generation| generation.0);
                backing.drop_data(*ino, 0..below).map(|()| 0).map_err(|error| error.errno())
            }
        };
        match done {
            Ok(number) => Ok(DiskAnswer::Done(number)),
            Err(_) if self.is_gone() => Ok(DiskAnswer::Fenced),
            Err(errno) => Err(errno),
        }
    }

    /// Makes the data file of a generation's writer that of the generation, which is frozen. Its chunks in memory are written to it later.
    ///
    /// # Errors
    ///
    /// `ENOENT`: it is gone. Others: the backing fails.
    pub(crate) fn adopt(
        &self,
        backing: &Backing,
        (ino, generation): (Ino, Generation),
        is_torn: bool,
    ) -> std::result::Result<(), Errno> {
        let (data, from, to) = (backing.data(), spill_name(ino, generation), data_name(ino, generation));
        let is_adopted = match statat(data, &to, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => true,
            Err(Errno::NOENT) => false,
            Err(errno) => return Err(errno),
        };
        if !is_adopted && is_torn {
            // Its writer seems dead, and may wake and write on: to the file that it has open.
            let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let source = openat(data, &from, flags, Mode::empty())?;
            let create = flags | OFlags::CREATE | OFlags::TRUNC;
            let copied = copy(&source, &openat(&self.own, TORN, create, Mode::RUSR | Mode::WUSR)?);
            if let Err(errno) = copied {
                // Other files need the room.
                let _ = unlinkat(&self.own, TORN, AtFlags::empty());
                return Err(errno);
            }
            renameat(&self.own, TORN, data, &to)?;
        } else if !is_adopted {
            renameat(data, &from, data, &to)?;
        }
        match unlinkat(data, &from, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => fsync(data),
            Err(errno) => Err(errno),
        }
    }

    fn link(&self, backing: &Backing, ino: Ino, generation: Generation) -> Done {
        let (from, to) = (data_name(ino, generation), staged(ino));
        let link = || linkat(backing.data(), &from, &self.own, &to, AtFlags::empty());
        match link() {
            // It may be of an earlier generation.
            Err(Errno::EXIST) => unlinkat(&self.own, &to, AtFlags::empty()).and_then(|()| link())?,
            linked => linked?,
        }
        Ok(0)
    }

    fn make(&self, parent: &OwnedFd, name: &[u8], ino: Ino, inode: &Inode) -> Done {
        remove(&self.own, staged(ino).as_bytes(), DEPTH)?;
        match inode.kind {
            Kind::Link => symlinkat(inode.target.as_slice(), &self.own, staged(ino))?,
            Kind::Directory if is_shown(parent, name, inode)? => {}
            _ => mkdirat(&self.own, staged(ino), Mode::RWXU)?,
        }
        Ok(0)
    }

    fn finish(&self, parent: &OwnedFd, name: &[u8], ino: Ino, inode: &Inode) -> Done {
        let staged = staged(ino);
        let times = Timestamps { last_access: time_unset(), last_modification: time_of(inode.modified) };
        let (owner, group) = (Uid::from_raw(inode.owner), Gid::from_raw(inode.group));
        if inode.kind == Kind::Link {
            allowed(chownat(&self.own, &staged, Some(owner), Some(group), AtFlags::SYMLINK_NOFOLLOW))?;
            utimensat(&self.own, &staged, &times, AtFlags::SYMLINK_NOFOLLOW)?;
            return Ok(0);
        }
        let file = if inode.kind == Kind::Directory && is_shown(parent, name, inode)? {
            directory(parent, name)?
        } else if inode.kind == Kind::Directory {
            directory(&self.own, staged.as_bytes())?
        } else {
            let file = self.open(&staged)?;
            // One that is persisted has its length. Others may have made it longer on the backing.
            if inode.state == State::Frozen {
                ftruncate(&file, inode.size)?;
            }
            file
        };
        // A change of the owner may take bits of the mode away.
        allowed(fchown(&file, Some(owner), Some(group)))?;
        fchmod(&file, Mode::from_raw_mode(u32::from(inode.mode)))?;
        futimens(&file, &times)?;
        fsync(&file)?;
        Ok(0)
    }

    /// Opens a file in the folder for writing. Its mode may forbid that to the user that owns it.
    fn open(&self, staged: &str) -> std::result::Result<OwnedFd, Errno> {
        let open = || openat(&self.own, staged, OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty());
        match open() {
            Err(Errno::ACCESS) => {
                chmodat(&self.own, staged, Mode::RUSR | Mode::WUSR, AtFlags::empty())?;
                open()
            }
            opened => opened,
        }
    }

    fn show(&self, parent: &OwnedFd, name: &[u8], ino: Ino) -> Done {
        let rename = || renameat(&self.own, staged(ino), parent, name);
        match rename() {
            // A directory that is shown stays in its place.
            Err(Errno::NOENT) => {
                let stat = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
                if FileType::from_raw_mode(stat.st_mode) != FileType::Directory || self.is_gone() {
                    return Err(Errno::NOENT);
                }
            }
            // A directory that was removed before the backing followed.
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::ISDIR | Errno::NOTDIR) => {
                self.take_away(parent, name)?;
                rename()?;
            }
            renamed => renamed?,
        }
        // Two names of one inode are not renamed.
        remove(&self.own, staged(ino).as_bytes(), DEPTH)?;
        fsync(parent)?;
        remove(&self.own, GONE.as_bytes(), DEPTH)?;
        Ok(statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?.st_ino)
    }

    fn hide(&self, parent: &OwnedFd, name: &[u8]) -> Done {
        match self.take_away(parent, name) {
            Err(Errno::NOENT) if !self.is_gone() => return Ok(0),
            taken => taken?,
        }
        fsync(parent)?;
        remove(&self.own, GONE.as_bytes(), DEPTH)?;
        Ok(0)
    }

    fn take_away(&self, parent: &OwnedFd, name: &[u8]) -> std::result::Result<(), Errno> {
        remove(&self.own, GONE.as_bytes(), DEPTH)?;
        renameat(parent, name, &self.own, GONE)
    }
}

fn staged(ino: Ino) -> String {
    format!("{:x}", ino.0)
}

/// Returns whether a directory is on the backing under its name.
fn is_shown(parent: &OwnedFd, name: &[u8], inode: &Inode) -> std::result::Result<bool, Errno> {
    match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(inode.backing != 0 && stat.st_ino == inode.backing),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Only root may give files away: others keep them.
fn allowed(outcome: std::result::Result<(), Errno>) -> std::result::Result<(), Errno> {
    match outcome {
        Err(Errno::PERM) if !rustix::process::geteuid().is_root() => Ok(()),
        outcome => outcome,
    }
}

fn time_of(time: Time) -> Timespec {
    Timespec { tv_sec: time.seconds, tv_nsec: time.nanos.into() }
}

fn time_unset() -> Timespec {
    Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT }
}

fn directory(parent: &OwnedFd, name: &[u8]) -> std::result::Result<OwnedFd, Errno> {
    openat(parent, name, OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())
}

/// Returns the names in a directory.
fn names(directory: &OwnedFd) -> std::result::Result<Vec<Vec<u8>>, Errno> {
    // A directory of its own, which begins with the first name.
    let again = openat(directory, ".", OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mut names = Vec::new();
    let mut buffer = Vec::with_capacity(32 << 10);
    let mut entries = RawDir::new(&again, buffer.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(name.to_vec());
        }
    }
    Ok(names)
}

fn number_of(name: &[u8]) -> Option<u32> {
    std::str::from_utf8(name).ok()?.parse().ok()
}

/// Returns the number of the latest folder, or 0 without one.
fn latest(all: &OwnedFd) -> std::result::Result<u32, Errno> {
    Ok(names(all)?.iter().filter_map(|name| number_of(name)).max().unwrap_or(0))
}

/// Copies a file, but for its holes.
fn copy(from: &OwnedFd, to: &OwnedFd) -> std::result::Result<(), Errno> {
    let length = fstat(from)?.st_size as u64;
    let mut at = match seek(from, SeekFrom::Data(0)) {
        Ok(at) => at,
        Err(Errno::NXIO) => length,
        Err(errno) => return Err(errno),
    };
    let mut buffer = vec![0; 1 << 20];
    while at < length {
        let end = seek(from, SeekFrom::Hole(at))?;
        while at < end {
            let most = (end - at).min(buffer.len() as u64) as usize;
            let read = pread(from, &mut buffer[..most], at)?;
            if read == 0 {
                break;
            }
            let mut written = 0;
            while written < read {
                written += pwrite(to, &buffer[written..read], at + written as u64)?;
            }
            at += read as u64;
        }
        at = match seek(from, SeekFrom::Data(end)) {
            Ok(next) => next,
            Err(Errno::NXIO) => break,
            Err(errno) => return Err(errno),
        };
    }
    ftruncate(to, length)?;
    fsync(to)
}

fn remove_below(all: &OwnedFd, number: u32) -> std::result::Result<(), Errno> {
    let earlier = names(all)?.into_iter().filter(|name| number_of(name).is_some_and(|other| other < number));
    earlier.into_iter().try_for_each(|name| remove(all, &name, DEPTH))
}

/// Removes a name with all below it. That it is not there is no error.
fn remove(parent: &OwnedFd, name: &[u8], depth: usize) -> std::result::Result<(), Errno> {
    /// Another agent may add names meanwhile, until its folder is gone.
    const ATTEMPTS: usize = 100;
    match unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(errno) => return Err(errno),
    }
    for _ in 0..ATTEMPTS {
        match unlinkat(parent, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::NOTEMPTY | Errno::EXIST) if depth > 0 => {}
            Err(errno) => return Err(errno),
        }
        let inside = directory(parent, name)?;
        names(&inside)?.iter().try_for_each(|name| remove(&inside, name, depth - 1))?;
    }
    Err(Errno::NOTEMPTY)
}
