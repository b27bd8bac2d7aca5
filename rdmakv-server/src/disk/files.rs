//! Files of a log: made, locked, and known for what they are.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rdmakv_flash::superblock::{Superblock, SuperblockError};
use rustix::fs::{AtFlags, FallocateFlags, FlockOperation, SeekFrom, StatxFlags, fallocate, flock, seek, statx};
use rustix::process::{Resource, getrlimit};

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The system refuses.
    #[error("{doing} {path}: {source}: {}", remedy(source))]
    System {
        /// The operation.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Another server uses it.
    #[error("lock {path}: another server uses it: stop that one or name another file")]
    Locked {
        /// The file.
        path: PathBuf,
    },
    /// It is not one of a log, and not empty.
    #[error("{path}: {source}")]
    Foreign {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: SuperblockError,
    },
    /// It begins with zeros, as an empty one would, and is not empty.
    #[error("open {path}: it begins with zeros and has data behind them: name another file, or remove this one")]
    Zeros {
        /// The file.
        path: PathBuf,
    },
    /// The limit on file sizes of this process is smaller.
    #[error(
        "allocate {path}: the limit on file sizes allows {limit} bytes: raise it (ulimit -f), or give a smaller size"
    )]
    Limit {
        /// The file.
        path: PathBuf,
        /// The limit.
        limit: u64,
    },
    /// No regular file.
    #[error("open {path}: not a regular file: name a file")]
    NoFile {
        /// The file.
        path: PathBuf,
    },
}

/// Returns what a user can do about the system's refusal of a file.
pub(crate) fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "make its directory, or name another one",
        io::ErrorKind::PermissionDenied => "let this user read and write it and its directory, or name another file",
        io::ErrorKind::IsADirectory => "name a file in that directory",
        io::ErrorKind::ReadOnlyFilesystem => "name a file on a file system that can be written",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            "make room, or give a smaller size"
        }
        _ => "name a file on a file system that allows it",
    }
}

/// A file of a log, locked by this process.
#[derive(Debug)]
pub struct FlashFile {
    /// Its name.
    pub path: PathBuf,
    /// The file.
    pub file: File,
    /// The multiple that offsets, lengths and memory of transfers have to be of.
    pub unit: u32,
    /// Whether transfers go by the page cache, because the file system has no direct ones.
    pub is_buffered: bool,
    /// The description that it has, if it is not empty.
    pub superblock: Option<Superblock>,
    /// The same file, by the page cache.
    plain: File,
}

impl FlashFile {
    /// Writes the description of the file, and waits until the device has it.
    ///
    /// # Errors
    ///
    /// Those of the system.
    pub fn describe(&self, superblock: &Superblock) -> io::Result<()> {
        // What was written before is there when the description is.
        self.file.sync_data()?;
        self.plain.write_all_at(&superblock.encode(), 0)?;
        self.plain.sync_data()
    }
}

/// Opens a file of the log, or creates it, and gives it its size. Waits for its lock, `wait` at most: the requests of a
/// killed server hold it until they end.
///
/// # Errors
///
/// [`FileError`]: nothing of the file was changed.
pub fn open(path: &Path, size: u64, wait: Duration) -> Result<FlashFile, FileError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    // Buffered first: a superblock is shorter than what a direct read may need.
    let opened = open_or_make(&options, path);
    let opened = opened.map_err(|source| FileError::System { doing: "open", path: path.to_owned(), source })?;
    take(path, opened, size, wait)
}

/// Opens a file with these options, or makes it; returns whether it was made.
///
/// # Errors
///
/// Those of the system.
pub(crate) fn open_or_make(options: &OpenOptions, path: &Path) -> io::Result<(File, bool)> {
    match options.clone().create_new(true).open(path) {
        // A link may lead to where no file is yet.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            Ok((options.clone().create(true).truncate(false).open(path)?, false))
        }
        made => Ok((made?, true)),
    }
}

/// Returns whether the path leads to this file. Another process may have put another one there since it was opened.
pub(crate) fn is_at(path: &Path, file: &File) -> bool {
    let name = |about: &Metadata| (about.dev(), about.ino());
    let [there, own] = [std::fs::metadata(path), file.metadata()].map(|about| about.as_ref().map(name).ok());
    there.is_some() && there == own
}

/// Removes a file that was made in vain, and that this process has locked, unless another one is at its path.
pub(crate) fn remove_made(path: &Path, file: &File) {
    if is_at(path, file) {
        let _ = std::fs::remove_file(path);
    }
}

/// Locks a file that was opened, or made for this, and gives it its size.
fn take(path: &Path, (plain, is_made): (File, bool), size: u64, wait: Duration) -> Result<FlashFile, FileError> {
    let failed = |doing, source: io::Error| FileError::System { doing, path: path.to_owned(), source };
    let about = plain.metadata().map_err(|error| failed("open", error))?;
    if !about.is_file() {
        return Err(FileError::NoFile { path: path.to_owned() });
    }
    let mut direct = OpenOptions::new();
    direct.read(true).write(true).custom_flags(rustix::fs::OFlags::DIRECT.bits() as i32);
    let (file, is_buffered) = match direct.open(path) {
        Ok(file) => (file, false),
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error()) => {
            (plain.try_clone().map_err(|error| failed("open", error))?, true)
        }
        Err(error) => return Err(failed("open", error)),
    };
    let until = Instant::now() + wait;
    while let Err(error) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
        if error != rustix::io::Errno::WOULDBLOCK && error != rustix::io::Errno::INTR {
            return Err(failed("lock", error.into()));
        }
        if Instant::now() >= until {
            return Err(FileError::Locked { path: path.to_owned() });
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    if !is_at(path, &plain) || !is_at(path, &file) {
        return Err(FileError::Locked { path: path.to_owned() });
    }
    // Another server may have filled it before this one had the lock.
    let len = file.metadata().map_err(|error| failed("open", error))?.len();
    let superblock = superblock(&plain).map_err(|error| failed("read", error))?;
    let superblock = match superblock {
        Ok(block) => Some(block),
        Err(SuperblockError::Empty) if has_data(&plain).map_err(|error| failed("look at", error))? => {
            return Err(FileError::Zeros { path: path.to_owned() });
        }
        Err(SuperblockError::Empty) => None,
        Err(source) => return Err(FileError::Foreign { path: path.to_owned(), source }),
    };
    let allocated = match limit_below(size) {
        Some(limit) => Err(FileError::Limit { path: path.to_owned(), limit }),
        None => match fallocate(&file, FallocateFlags::empty(), 0, size) {
            Ok(()) => Ok(()),
            Err(rustix::io::Errno::OPNOTSUPP) => file.set_len(size).map_err(|error| failed("size", error)),
            Err(error) => Err(failed("allocate", error.into())),
        },
    };
    allocated.inspect_err(|_| {
        let _ = file.set_len(len);
        if is_made && superblock.is_none() {
            remove_made(path, &file);
        }
    })?;
    Ok(FlashFile {
        path: path.to_owned(),
        unit: if is_buffered { 512 } else { unit(&file) },
        file,
        is_buffered,
        superblock,
        plain,
    })
}

/// Returns the limit on file sizes, if it is below this size. A write beyond it would end the process, also in a file that is as long.
pub(crate) fn limit_below(size: u64) -> Option<u64> {
    getrlimit(Resource::Fsize).current.filter(|&limit| limit < size)
}

/// Returns whether any byte of the file was ever written. A file whose room was only reserved has none.
pub(crate) fn has_data(file: &File) -> io::Result<bool> {
    if file.metadata()?.len() == 0 {
        return Ok(false);
    }
    match seek(file, SeekFrom::Data(0)) {
        Err(rustix::io::Errno::NXIO) => Ok(false),
        // Some file systems do not know holes: there everything is data.
        Ok(_) | Err(rustix::io::Errno::INVAL) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

fn superblock(file: &File) -> io::Result<Result<Superblock, SuperblockError>> {
    let mut bytes = vec![0; 4096];
    let mut len = 0;
    while len < bytes.len() {
        match file.read_at(&mut bytes[len..], len as u64)? {
            0 => break,
            more => len += more,
        }
    }
    Ok(Superblock::decode(&bytes[..len]))
}

/// Returns the alignment that direct transfers need, 4096 where the system does not tell.
fn unit(file: &File) -> u32 {
    let told = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok();
    let told = told
        .filter(|told| told.stx_dio_mem_align != 0)
        .map(|told| told.stx_dio_mem_align.max(told.stx_dio_offset_align));
    told.filter(|unit| unit.is_power_of_two() && *unit <= 4096).unwrap_or(4096).max(512)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_that_another_server_filled_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        let vast = |made| take(&path, made, 1 << 55, Duration::ZERO).unwrap_err();

        // Made by one server, and locked, described and left by another before the first one has the lock.
        let made = open_or_make(&options, &path).unwrap();
        let other = open(&path, 1 << 20, Duration::ZERO).unwrap();
        let layout =
            Superblock { log: 1, size: 1 << 20, stop: None, segment: 1 << 16, unit: 512, shards: 1, file: 0, files: 1 };
        other.describe(&layout).unwrap();
        drop(other);
        assert!(made.1);
        vast(made);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 1 << 20);

        // Renamed onto the path meanwhile.
        let made = open_or_make(&options, &folder.path().join("made")).unwrap();
        assert!(matches!(vast(made), FileError::Locked { .. }));
        assert!(path.exists());
    }
}
