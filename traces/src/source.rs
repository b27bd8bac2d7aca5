//! The source of the bytes: a file, standard input, or any reader.
//!
//! Objects are laid out by their largest size, so some formats are read twice. A file is opened again for that. A source
//! that can be read only once (a pipe, standard input) is kept as it came, compressed where it is: 16 MiB in memory, more
//! in an unnamed temporary file that goes away with the process.

use std::fs::File;
use std::io::{self, Cursor, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tempfile::SpooledTempFile;

/// Bytes as stored that are looked at to find out the format.
pub(crate) const HEAD: u64 = 512 << 10;

const IN_MEMORY: usize = 16 << 20;

/// A source of bytes, as they are stored.
pub(crate) struct Source {
    name: PathBuf,
    kind: Kind,
}

enum Kind {
    /// Can be opened as often as one likes.
    File,
    /// Can be read once: its beginning, read already, and what follows; nothing after that.
    Once(Option<(Vec<u8>, Box<dyn Read + Send>)>),
    /// Kept. Locked by the reader.
    Kept(Arc<Mutex<SpooledTempFile>>),
}

impl Source {
    /// Returns a path, or `-` for standard input.
    pub(crate) fn at(path: &Path) -> io::Result<Self> {
        if path == Path::new("-") {
            return Self::of("-", Box::new(io::stdin()));
        }
        let file = File::open(path)?;
        let about = file.metadata()?;
        if about.is_dir() {
            return Err(io::Error::from(io::ErrorKind::IsADirectory));
        }
        if about.is_file() {
            return Ok(Self { name: path.into(), kind: Kind::File });
        }
        Self::of(path, Box::new(file))
    }

    /// Makes a source of bytes that can be read once.
    pub(crate) fn of(name: impl Into<PathBuf>, mut rest: Box<dyn Read + Send>) -> io::Result<Self> {
        let mut head = Vec::new();
        rest.by_ref().take(HEAD).read_to_end(&mut head)?;
        Ok(Self { name: name.into(), kind: Kind::Once(Some((head, rest))) })
    }

    pub(crate) fn name(&self) -> &Path {
        &self.name
    }

    /// Returns the first bytes as stored, and whether they are all.
    pub(crate) fn head(&self) -> io::Result<(Vec<u8>, bool)> {
        let head = match &self.kind {
            Kind::File => {
                let mut head = Vec::new();
                File::open(&self.name)?.take(HEAD).read_to_end(&mut head)?;
                head
            }
            Kind::Once(once) => once.as_ref().map(|(head, _)| head.clone()).unwrap_or_default(),
            Kind::Kept(kept) => {
                let mut head = Vec::new();
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.seek(SeekFrom::Start(0))?;
                kept.by_ref().take(HEAD).read_to_end(&mut head)?;
                head
            }
        };
        let all = (head.len() as u64) < HEAD;
        Ok((head, all))
    }

    /// Sees to it that [`Source::read`] can be called again.
    pub(crate) fn keep(&mut self) -> io::Result<()> {
        if let Kind::Once(once) = &mut self.kind
            && let Some((head, mut rest)) = once.take()
        {
            let mut kept = SpooledTempFile::new(IN_MEMORY);
            io::copy(&mut Cursor::new(head).chain(&mut rest), &mut kept)?;
            self.kind = Kind::Kept(Arc::new(Mutex::new(kept)));
        }
        Ok(())
    }

    /// All bytes from the first.
    pub(crate) fn read(&mut self) -> io::Result<Box<dyn Read + Send>> {
        Ok(match &mut self.kind {
            Kind::File => Box::new(File::open(&self.name)?),
            Kind::Once(once) => match once.take() {
                Some((head, rest)) => Box::new(Cursor::new(head).chain(rest)),
                None => return Err(io::Error::other("it can be read only once")),
            },
            Kind::Kept(kept) => Box::new(Kept { kept: Arc::clone(kept), at: 0 }),
        })
    }
}

/// A reading with a position of its own: a thread that reads ahead may still be at an earlier one.
struct Kept {
    kept: Arc<Mutex<SpooledTempFile>>,
    at: u64,
}

impl Read for Kept {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.seek(SeekFrom::Start(self.at))?;
        let length = kept.read(buffer)?;
        self.at += length as u64;
        Ok(length)
    }
}
