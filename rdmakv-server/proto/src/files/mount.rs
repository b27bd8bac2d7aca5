//! The value of a mount's key.

use super::fields::{Reader, check};
use super::{FilesError, MAX_NAME, VERSION};

/// Bytes of a host's name at most.
pub const MAX_HOST: usize = MAX_NAME;

/// A mount that lives: which process it is, for people.
///
/// ```text
/// 0 u8 version   1 u8 length of the host's name   2 u16 zero   4 u32 process   8 the host's name
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Mount {
    /// The number of its process on that host.
    pub process: u32,
    /// The host's name: at most [`MAX_HOST`] bytes.
    pub host: Vec<u8>,
}

impl Mount {
    /// Returns the value.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION, self.host.len() as u8, 0, 0];
        out.extend(self.process.to_le_bytes());
        out.extend(&self.host);
        out
    }

    /// Reads a value.
    ///
    /// # Errors
    ///
    /// The bytes are no such value.
    pub fn decode(bytes: &[u8]) -> Result<Self, FilesError> {
        let mut reader = Reader::new(bytes)?;
        let length = usize::from(reader.u8()?);
        reader.zeros(2)?;
        let process = reader.u32()?;
        let host = reader.bytes(length)?.to_vec();
        check(!host.contains(&0), "host")?;
        reader.end()?;
        Ok(Self { process, host })
    }
}
