//! Data on its way to a server.

use super::memory::Sending;
use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

/// Memory of the client's for a value that is to be stored: fabrics take it from there without a copy. From
/// [`Client::buffer`](super::Client::buffer).
pub struct Buffer(pub(super) Sending);

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.bytes()
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.0.bytes_mut()
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.len())
    }
}

/// The data to store, owned by the client until the operation has ended, and given back then.
#[derive(Debug, Default)]
pub enum Data {
    /// Nothing: the operation has no data, or it was not given back.
    #[default]
    None,
    /// Any bytes. Data too large for a message is copied into memory of the client's.
    Vec(Vec<u8>),
    /// Memory of the client's.
    Buffer(Buffer),
}

impl Data {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::None => &[],
            Self::Vec(vec) => vec,
            Self::Buffer(buffer) => buffer,
        }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::None => &mut [],
            Self::Vec(vec) => vec,
            Self::Buffer(buffer) => buffer,
        }
    }
}

impl From<Vec<u8>> for Data {
    fn from(vec: Vec<u8>) -> Self {
        Self::Vec(vec)
    }
}

impl From<&[u8]> for Data {
    fn from(bytes: &[u8]) -> Self {
        Self::Vec(bytes.to_vec())
    }
}

impl From<Buffer> for Data {
    fn from(buffer: Buffer) -> Self {
        Self::Buffer(buffer)
    }
}

/// A part of data that several requests send, such as the copies and the fragments of a value. The data stays as long as one of them may be read.
#[derive(Clone, Debug, Default)]
pub(super) struct Part {
    of: Option<Arc<Data>>,
    range: Range<usize>,
}

impl Part {
    /// Returns these bytes of data, as far as there are so many.
    pub(super) fn of(data: &Arc<Data>, range: Range<usize>) -> Self {
        let end = range.end.min(data.bytes().len());
        Self { of: Some(Arc::clone(data)), range: range.start.min(end)..end }
    }

    /// Returns all bytes of data.
    pub(super) fn whole(data: &Arc<Data>) -> Self {
        Self::of(data, 0..usize::MAX)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.of.as_ref().map_or(&[], |data| &data.bytes()[self.range.clone()])
    }

    /// Returns whether fabrics can take it from where it is.
    pub(super) fn is_lendable(&self) -> bool {
        matches!(self.of.as_deref(), Some(Data::Buffer(_)))
    }
}

impl From<Vec<u8>> for Part {
    fn from(bytes: Vec<u8>) -> Self {
        Self::whole(&Arc::new(bytes.into()))
    }
}
