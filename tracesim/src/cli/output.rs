//! The destination of results: standard output, or a file that appears when it is whole.

use super::failure::Failure;
use super::interrupt;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// The destination of results. Made before long work, so that what cannot be written fails at once.
pub(crate) enum Output {
    /// Standard output.
    Standard(BufWriter<io::Stdout>),
    /// A pipe or a device, which cannot be replaced.
    Special(PathBuf, BufWriter<File>),
    /// A file beside the one that it becomes.
    Replace(PathBuf, BufWriter<NamedTempFile>),
}

/// Refuses a file that the command reads, by whatever name: its bytes would be lost.
pub(crate) fn refuse_input(path: &Path, inputs: &[PathBuf]) -> Result<(), Failure> {
    if inputs.iter().any(|input| is_same_file(path, input)) {
        let what = format_args!("{}: this command reads it: name another file for the output", path.display());
        return Err(Failure::usage(what));
    }
    Ok(())
}

/// Returns whether an output and an input are one regular file that is there. Pipes and devices can be read and written.
fn is_same_file(one: &Path, other: &Path) -> bool {
    let other = if other.as_os_str() == "-" { Path::new("/dev/stdin") } else { other };
    let (Ok(one_there), Ok(other_there)) = (one.metadata(), other.metadata()) else { return false };
    if !one_there.is_file() {
        return false;
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        (one_there.dev(), one_there.ino()) == (other_there.dev(), other_there.ino())
    }
    #[cfg(not(unix))]
    {
        other_there.is_file()
            && one.canonicalize().is_ok_and(|one| other.canonicalize().is_ok_and(|other| one == other))
    }
}

impl Output {
    /// Opens the destination. `-` and nothing are standard output. What the command reads is refused.
    pub(crate) fn open(path: Option<&Path>, inputs: &[PathBuf]) -> Result<Self, Failure> {
        let Some(path) = path.filter(|path| path.as_os_str() != "-") else {
            return Ok(Self::Standard(BufWriter::new(io::stdout())));
        };
        refuse_input(path, inputs)?;
        let fail = |error: io::Error| Failure::work(format_args!("{}: write: {error}", path.display()));
        match path.metadata() {
            Ok(there) if there.is_dir() => {
                return Err(Failure::work(format_args!(
                    "{}: write: this is a directory; name a file in it",
                    path.display()
                )));
            }
            Ok(there) if !there.is_file() => {
                let file = File::options().write(true).open(path).map_err(fail)?;
                return Ok(Self::Special(path.to_owned(), BufWriter::new(file)));
            }
            // A file that may not be written must not be replaced either.
            Ok(_) => _ = File::options().write(true).open(path).map_err(fail)?,
            Err(_) => {}
        }
        // A link stays, and what it points at is replaced.
        let to = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let name = to.file_name().unwrap_or(to.as_os_str()).to_string_lossy();
        let mut builder = tempfile::Builder::new();
        let prefix = format!(".{name}.");
        builder.prefix(&prefix).suffix(".part");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            // As any new file; what the process masks is masked.
            builder.permissions(std::fs::Permissions::from_mode(0o666));
        }
        // The name of the temporary file, which these errors have, would only confuse.
        let plain = |error: io::Error| {
            let shown = folder.display();
            let why = match error.kind() {
                _ if folder.exists() && !folder.is_dir() => format!("{shown} is no directory: name another"),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory if !folder.exists() => {
                    format!("there is no directory {shown}: make it")
                }
                // A file of the kernel's own, as in /proc, is reported as missing.
                io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                    format!("no file may be made in {shown}: name another directory")
                }
                _ => return fail(error),
            };
            Failure::work(format_args!("{}: write: {why}", path.display()))
        };
        let file = interrupt::begin(|| builder.tempfile_in(folder), |file| Some(file.path())).map_err(plain)?;
        Ok(Self::Replace(to, BufWriter::new(file)))
    }

    /// Everything was written; a file takes its place. After an interruption what is finished is on standard output.
    pub(crate) fn finish(self) -> Result<(), Failure> {
        match self {
            Self::Standard(mut out) => out.flush().map_err(|error| Failure::writing("standard output", &error)),
            Self::Special(path, mut out) => out.flush().map_err(|error| Failure::writing(path.display(), &error)),
            Self::Replace(path, out) => {
                let file = out.into_inner().map_err(|error| Failure::writing(path.display(), error.error()))?;
                let part = file.path().to_owned();
                let result = file.persist(&path).map_err(|error| Failure::writing(path.display(), &error.error));
                interrupt::finished(&part);
                result.map(|_| ())
            }
        }
    }

    /// Writes finished results to standard output instead of the file: no partial file stays behind.
    pub(crate) fn given_up(self) -> Self {
        match self {
            Self::Replace(_, out) => {
                interrupt::finished(out.get_ref().path());
                drop(out);
                Self::Standard(BufWriter::new(io::stdout()))
            }
            other => other,
        }
    }

    /// Writes, by a closure that need not know where to.
    pub(crate) fn write(&mut self, what: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
        match self {
            Self::Standard(out) => what(out).map_err(|error| Failure::writing("standard output", &error)),
            Self::Special(path, out) => what(out).map_err(|error| Failure::writing(path.display(), &error)),
            Self::Replace(path, out) => what(out).map_err(|error| Failure::writing(path.display(), &error)),
        }
    }
}
