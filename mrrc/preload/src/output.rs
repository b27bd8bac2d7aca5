//! The destination of the summary.

use crate::settings::Target;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;

/// How a file can be made that cannot be.
pub(crate) const REMEDY: &str = "name a file in a directory that is there and that the program may write to";

/// The open destination of a summary.
///
/// It is opened at the start: many programs close their files before they end, and an error is reported early.
pub(crate) struct SummaryFile {
    file: File,
    /// Device and inode. A program that closes all its files closes this one as well, and may have opened another by this number.
    identity: (u64, u64),
}

impl SummaryFile {
    /// # Errors
    /// A line that says what is wrong.
    pub(crate) fn open(target: &Target) -> Result<Self, String> {
        match target {
            Target::Stderr => io::stderr().as_fd().try_clone_to_owned().map(File::from),
            // Processes of one program may end at once: each adds its own in one piece.
            Target::File(path) => File::options().create(true).append(true).open(path),
        }
        .and_then(|file| Ok(Self { identity: identity(&file)?, file }))
        .map_err(|error| match target {
            Target::Stderr => format!("MRRC_PRELOAD_SUMMARY: no standard error: {error}"),
            Target::File(path) => format!("MRRC_PRELOAD_SUMMARY={}: {error}: {REMEDY}", path.display()),
        })
    }

    /// Writes a summary, in one piece.
    ///
    /// # Errors
    /// The system's, or that the program has closed the file.
    pub(crate) fn write(&self, text: &str) -> io::Result<()> {
        if identity(&self.file)? != self.identity {
            return Err(io::ErrorKind::NotFound.into());
        }
        (&self.file).write_all(text.as_bytes())
    }
}

fn identity(file: &File) -> io::Result<(u64, u64)> {
    let known = file.metadata()?;
    Ok((known.dev(), known.ino()))
}
