//! Values as they are handed out: where they were read to, without another copy.

use super::slots::Slot;
use std::fmt;
use std::ops::Deref;

/// How a value came here.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Source {
    /// Read from the server's memory, without its CPU.
    OneSided,
    /// In a message over a fabric.
    Message,
    /// Written into this side's memory by the server.
    Transfer,
    /// Over a socket.
    Socket,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OneSided => "one-sided read",
            Self::Message => "message over the fabric",
            Self::Transfer => "transfer over the fabric",
            Self::Socket => "socket",
        })
    }
}

/// A value: its bytes, and what was stored with them.
///
/// The bytes lie where they were read to. Those that came one-sidedly are in memory that the client reads into: values that are kept
/// for long fill it, and then others come by other ways. Copy what is to be kept ([`Value::into_vec`]).
pub struct Value {
    bytes: Bytes,
    at: u32,
    len: u32,
    flags: u32,
    version: u64,
    source: Source,
}

pub(super) enum Bytes {
    Slot(Slot),
    Heap(Vec<u8>),
}

impl Bytes {
    fn all(&self) -> &[u8] {
        match self {
            Self::Slot(slot) => slot.bytes(),
            Self::Heap(vec) => vec,
        }
    }
}

impl Value {
    /// So many bytes at an offset of these.
    pub(super) fn new(bytes: Bytes, at: usize, len: usize, (flags, version): (u32, u64), source: Source) -> Self {
        debug_assert!(at + len <= bytes.all().len());
        Self { bytes, at: at as u32, len: len as u32, flags, version, source }
    }

    /// The same, that came in another way.
    pub(super) fn from(self, source: Source) -> Self {
        Self { source, ..self }
    }

    /// Returns the flags that were stored with it.
    pub fn flags(&self) -> u32 {
        self.flags
    }

    /// Its version, for [`Client::cas`](super::Client::cas).
    pub fn version(&self) -> u64 {
        self.version
    }

    /// How it came here.
    pub fn source(&self) -> Source {
        self.source
    }

    /// Returns the bytes as a vector; without a copy if they came that way.
    pub fn into_vec(self) -> Vec<u8> {
        match self.bytes {
            Bytes::Heap(mut vec) => {
                vec.truncate((self.at + self.len) as usize);
                vec.drain(..self.at as usize);
                vec
            }
            Bytes::Slot(_) => self.to_vec(),
        }
    }
}

impl Deref for Value {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.bytes.all()[self.at as usize..(self.at + self.len) as usize]
    }
}

impl AsRef<[u8]> for Value {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl PartialEq<[u8]> for Value {
    fn eq(&self, other: &[u8]) -> bool {
        **self == *other
    }
}

impl<const N: usize> PartialEq<[u8; N]> for Value {
    fn eq(&self, other: &[u8; N]) -> bool {
        **self == *other
    }
}

impl<const N: usize> PartialEq<&[u8; N]> for Value {
    fn eq(&self, other: &&[u8; N]) -> bool {
        **self == **other
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Value(\"")?;
        write!(f, "{}", self[..self.len().min(64)].escape_ascii())?;
        let more = if self.len() > 64 { "…" } else { "" };
        write!(f, "{more}\", {} bytes, version {}, {})", self.len(), self.version, self.source)
    }
}
