//! The members of a `.tar`, one after the other as they come.
//!
//! `tar` parses the headers; walking through them is done here, as its own iterator borrows the archive and a reader of a
//! trace has to own it.

use crate::ahead::Ahead;
use crate::compress::{self, Plain};
use std::io::{self, Cursor, Read};
use std::sync::{Arc, Mutex, PoisonError};

const BLOCK: usize = 512;

/// Names and extended headers are read into memory up to this size.
const LONGEST_EXTENSION: u64 = 1 << 20;

/// A source in parts: the members of an archive, or the one thing that it is.
pub(crate) enum Members {
    /// No archive, until it has been handed out.
    One(Option<Box<dyn Read + Send>>),
    /// An archive. Locked by the reader, one at a time: this, or the member that it handed out.
    Tar(Arc<Mutex<Tar>>),
}

/// A part of a source.
pub(crate) struct Member {
    /// Its name in the archive.
    pub(crate) name: Option<String>,
    /// Its bytes, decompressed.
    pub(crate) bytes: Box<dyn Read + Send>,
}

impl Members {
    /// Decompresses, and looks whether it is an archive.
    pub(crate) fn of(raw: Box<dyn Read + Send>) -> io::Result<Self> {
        // Members are not read ahead: an archive has one position.
        let mut plain = match compress::plain(raw)? {
            Plain::Stored(bytes) => bytes,
            Plain::Decompressed(bytes) => Box::new(Ahead::new(bytes)),
        };
        let mut head = Vec::with_capacity(BLOCK);
        // An error of now is found again, with its place, when the content is read.
        let failed = plain.by_ref().take(BLOCK as u64).read_to_end(&mut head).err();
        let is_tar = header(&head).is_some();
        let rest: Box<dyn Read + Send> = match failed {
            Some(error) => Box::new(Failed(Some(error))),
            None => plain,
        };
        let whole = Box::new(Cursor::new(head).chain(rest));
        if is_tar {
            return Ok(Self::Tar(Arc::new(Mutex::new(Tar { inner: whole, left: 0, padding: 0 }))));
        }
        Ok(Self::One(Some(whole)))
    }

    pub(crate) fn is_archive(&self) -> bool {
        matches!(self, Self::Tar(_))
    }

    pub(crate) fn next(&mut self) -> io::Result<Option<Member>> {
        let tar = match self {
            Self::One(bytes) => return Ok(bytes.take().map(|bytes| Member { name: None, bytes })),
            Self::Tar(tar) => tar,
        };
        let name = tar.lock().unwrap_or_else(PoisonError::into_inner).next_member()?;
        let Some(name) = name else { return Ok(None) };
        let (Plain::Stored(bytes) | Plain::Decompressed(bytes)) = compress::plain(Box::new(Content(Arc::clone(tar))))?;
        Ok(Some(Member { name: Some(name), bytes }))
    }
}

/// Returns an error to the reader.
struct Failed(Option<io::Error>);

impl Read for Failed {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        self.0.take().map_or(Ok(0), Err)
    }
}

/// The position in an archive.
pub(crate) struct Tar {
    inner: Box<dyn Read + Send>,
    /// Bytes of the current member that are not yet read, and those after it up to the next header.
    left: u64,
    padding: u64,
}

impl Tar {
    /// Goes to the next regular file that is not empty and gives its name; `None` at the end.
    fn next_member(&mut self) -> io::Result<Option<String>> {
        let mut name = None;
        let mut size = None;
        loop {
            self.pass_over()?;
            let mut block = [0; BLOCK];
            self.inner.read_exact(&mut block).map_err(|_| cut("before the mark at its end"))?;
            if block.iter().all(|&byte| byte == 0) {
                return Ok(None);
            }
            let damaged =
                || io::Error::new(io::ErrorKind::InvalidData, "the header of a member of the archive is damaged");
            let header = header(&block).ok_or_else(damaged)?;
            let length = size.take().map_or_else(|| header.entry_size().map_err(|_| damaged()), Ok)?;
            self.left = length;
            self.padding = length.wrapping_neg() % BLOCK as u64;
            let kind = header.entry_type();
            if kind.is_gnu_longname() {
                name = Some(self.extension()?);
            } else if kind.is_pax_local_extensions() {
                let text = self.extension()?;
                for pair in tar::PaxExtensions::new(text.as_bytes()).flatten() {
                    match (pair.key(), pair.value()) {
                        (Ok("path"), Ok(value)) => name = Some(value.into()),
                        (Ok("size"), Ok(value)) => size = Some(value.parse().map_err(|_| damaged())?),
                        _ => {}
                    }
                }
            } else if (kind.is_file() || kind.is_contiguous()) && length > 0 {
                let stated = || String::from_utf8_lossy(&header.path_bytes()).into_owned();
                return Ok(Some(name.take().unwrap_or_else(stated).trim_end_matches('\0').to_string()));
            } else if kind.is_gnu_sparse() {
                let why = "the archive has a sparse member, which is not read";
                return Err(io::Error::new(io::ErrorKind::InvalidData, why));
            } else {
                name = None;
            }
        }
    }

    fn pass_over(&mut self) -> io::Result<()> {
        let rest = self.left + self.padding;
        let passed = io::copy(&mut self.inner.by_ref().take(rest), &mut io::sink())?;
        [self.left, self.padding] = [0, 0];
        if passed < rest { Err(cut("within a member")) } else { Ok(()) }
    }

    fn extension(&mut self) -> io::Result<String> {
        if self.left > LONGEST_EXTENSION {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a name in the archive is longer than 1 MiB"));
        }
        let mut text = Vec::new();
        let read = self.inner.by_ref().take(self.left).read_to_end(&mut text)? as u64;
        if read < self.left {
            return Err(cut("within a name"));
        }
        self.left = 0;
        Ok(String::from_utf8_lossy(&text).trim_end_matches('\0').to_string())
    }
}

/// The bytes of the current member.
struct Content(Arc<Mutex<Tar>>);

impl Read for Content {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut tar = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let most = buffer.len().min(usize::try_from(tar.left).unwrap_or(usize::MAX));
        if most == 0 {
            return Ok(0);
        }
        let read = tar.inner.read(&mut buffer[..most])?;
        if read == 0 {
            return Err(cut("within a member"));
        }
        tar.left -= read as u64;
        Ok(read)
    }
}

fn cut(place: &str) -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, format!("the archive ends {place}"))
}

/// Returns a header whose checksum is right.
fn header(block: &[u8]) -> Option<&tar::Header> {
    let bytes: &[u8; BLOCK] = block.try_into().ok()?;
    let header = tar::Header::from_byte_slice(bytes);
    // The field of the sum itself counts as blanks.
    let sum = bytes.iter().enumerate().map(|(at, &byte)| u32::from(if (148..156).contains(&at) { b' ' } else { byte }));
    let right = bytes[0] != 0 && header.cksum().ok()? == sum.sum::<u32>();
    right.then_some(header)
}
