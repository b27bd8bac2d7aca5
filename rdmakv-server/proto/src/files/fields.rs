//! Fields of a value, read and written one after the other.

use super::{FilesError, Kind, VERSION};

/// A value that is read.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Begins after the version, which it checks.
    pub(super) fn new(bytes: &'a [u8]) -> Result<Self, FilesError> {
        match bytes.split_first() {
            Some((&VERSION, rest)) => Ok(Self { rest }),
            Some((&version, _)) => Err(FilesError::Version(version)),
            None => Err(FilesError::Short),
        }
    }

    pub(super) fn bytes(&mut self, length: usize) -> Result<&'a [u8], FilesError> {
        let (bytes, rest) = self.rest.split_at_checked(length).ok_or(FilesError::Short)?;
        self.rest = rest;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], FilesError> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(N)?);
        Ok(array)
    }

    pub(super) fn u8(&mut self) -> Result<u8, FilesError> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(super) fn u16(&mut self) -> Result<u16, FilesError> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, FilesError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, FilesError> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn kind(&mut self) -> Result<Kind, FilesError> {
        match self.u8()? {
            1 => Ok(Kind::File),
            2 => Ok(Kind::Directory),
            3 => Ok(Kind::Link),
            _ => Err(FilesError::Field("kind")),
        }
    }

    pub(super) fn zeros(&mut self, length: usize) -> Result<(), FilesError> {
        let is_zero = self.bytes(length)?.iter().all(|&byte| byte == 0);
        if is_zero { Ok(()) } else { Err(FilesError::Field("unused bytes")) }
    }

    pub(super) fn end(self) -> Result<(), FilesError> {
        if self.rest.is_empty() { Ok(()) } else { Err(FilesError::Long) }
    }
}

/// Returns the number of a kind.
pub(super) fn kind(kind: Kind) -> u8 {
    match kind {
        Kind::File => 1,
        Kind::Directory => 2,
        Kind::Link => 3,
    }
}

/// Checks a condition on a field.
pub(super) fn check(holds: bool, field: &'static str) -> Result<(), FilesError> {
    if holds { Ok(()) } else { Err(FilesError::Field(field)) }
}
