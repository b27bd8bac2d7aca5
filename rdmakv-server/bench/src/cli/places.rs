//! Places of checkpoints: directories, and the burst buffer by its library.

use std::fmt::Display;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rdmakv_fuse::{Files, How};

use super::Failure;

/// A place where ranks write files.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place<'a> {
    /// A directory, and whether a rank syncs a file before it closes it.
    Directory(&'a Path, bool),
    Library(&'a Files),
}

/// A file of a rank, read or written from its begin to its end.
#[derive(Debug)]
pub(super) struct Open {
    path: PathBuf,
    file: Kind,
}

#[derive(Debug)]
enum Kind {
    File(File, bool),
    /// With the offset of the next block.
    Library(rdmakv_fuse::File, u64),
}

impl Place<'_> {
    /// Makes a file.
    pub(super) fn create(&self, name: &str) -> Result<Open, Failure> {
        let path = self.path(name);
        let file = match self {
            Self::Directory(_, syncs) => File::create(&path).map(|file| Kind::File(file, *syncs)),
            Self::Library(files) => {
                let file = files.open(name, How::new().write().create().truncate());
                file.map(|file| Kind::Library(file, 0)).map_err(Into::into)
            }
        };
        let file = file.map_err(|error| failed("make", &path, &error))?;
        Ok(Open { path, file })
    }

    /// Opens a file for reading, directly from the disk if so asked, else as a node that has no pages of it.
    pub(super) fn open(&self, name: &str, directly: bool) -> Result<Open, Failure> {
        let path = self.path(name);
        let failed = |error: &dyn Display| failed("open", &path, error);
        let file = match self {
            Self::Directory(..) => {
                let mut options = File::options();
                options.read(true);
                if directly {
                    options.custom_flags(libc::O_DIRECT);
                }
                let file = options.open(&path).map_err(|error| failed(&error))?;
                if !directly {
                    let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
                }
                Kind::File(file, false)
            }
            Self::Library(files) => Kind::Library(files.open(name, How::new()).map_err(|error| failed(&error))?, 0),
        };
        Ok(Open { path, file })
    }

    /// Removes a file.
    pub(super) fn remove(&self, name: &str) -> Result<(), Failure> {
        let path = self.path(name);
        match self {
            Self::Directory(..) => fs::remove_file(&path).map_err(|error| failed("remove", &path, &error)),
            Self::Library(files) => files.unlink(name).map_err(|error| failed("remove", &path, &error)),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        match self {
            Self::Directory(path, _) => path.join(name),
            Self::Library(_) => Path::new("library").join(name),
        }
    }
}

impl Open {
    /// Writes the next block.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        match &mut self.file {
            Kind::File(file, _) => file.write_all(bytes).map_err(|error| failed("write", &self.path, &error)),
            Kind::Library(file, at) => {
                file.write_at(*at, bytes).map_err(|error| failed("write", &self.path, &error))?;
                *at += bytes.len() as u64;
                Ok(())
            }
        }
    }

    /// Reads the next block.
    pub(super) fn read(&mut self, bytes: &mut [u8]) -> Result<(), Failure> {
        match &mut self.file {
            Kind::File(file, _) => file.read_exact(bytes).map_err(|error| failed("read", &self.path, &error)),
            Kind::Library(file, at) => {
                let found = file.read_at(*at, bytes.len() as u64);
                let found = found.map_err(|error| failed("read", &self.path, &error))?;
                if found.len() != bytes.len() {
                    return Err(failed("read", &self.path, &"it is shorter than it was written"));
                }
                bytes.copy_from_slice(&found);
                *at += bytes.len() as u64;
                Ok(())
            }
        }
    }

    /// Closes it.
    pub(super) fn close(self) -> Result<(), Failure> {
        match self.file {
            Kind::File(file, true) => file.sync_all().map_err(|error| failed("sync", &self.path, &error)),
            Kind::File(..) => Ok(()),
            Kind::Library(file, _) => file.close().map_err(|error| failed("close", &self.path, &error)),
        }
    }

    /// Returns its path, for messages.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

/// Returns the failure of an operation on a path.
pub(super) fn failed(operation: &str, path: &Path, error: &dyn Display) -> Failure {
    Failure::work(format!("{operation} {}: {error}", path.display()))
}
