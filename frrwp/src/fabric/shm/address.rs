//! Addresses: `shm:/run/user/1000/kv.sock`, or `shm:@name` for a name without a file.

use super::error::ShmError;
use rustix::net::SocketAddrUnix;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The address of a listening process.
///
/// ```
/// use frrwp::fabric::shm::ShmAddress;
///
/// let address: ShmAddress = "shm:/run/kv.sock".parse()?;
/// assert_eq!(address.to_string(), "shm:/run/kv.sock");
/// let error = "tcp:10.0.0.1".parse::<ShmAddress>().unwrap_err();
/// assert!(error.to_string().contains("shm:PATH"));
/// # Ok::<(), frrwp::fabric::shm::ShmError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ShmAddress(Place);

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Place {
    Path(PathBuf),
    Abstract(String),
}

/// Bytes of `sun_path`, less the zero at its end.
const LONGEST: usize = 107;

impl FromStr for ShmAddress {
    type Err = ShmError;

    fn from_str(text: &str) -> Result<Self, ShmError> {
        let refuse = |what| Err(ShmError::Address { text: text.to_owned(), what });
        let Some(place) = text.strip_prefix("shm:") else {
            return refuse("an address of shared memory is shm:PATH, or shm:@NAME for one without a file");
        };
        let place = match place.strip_prefix('@') {
            Some("") => return refuse("the name is missing: shm:@NAME"),
            Some(name) => Place::Abstract(name.to_owned()),
            None if place.is_empty() => return refuse("the path is missing: shm:PATH"),
            None if place.ends_with('/') => return refuse("the path is a directory: name a socket in it"),
            None => Place::Path(place.into()),
        };
        Self(place).checked(text)
    }
}

impl ShmAddress {
    /// Returns a socket file.
    ///
    /// # Errors
    /// [`ShmError::Address`]: a path of more than 107 bytes, or with a zero in it.
    pub fn of_path(path: &Path) -> Result<Self, ShmError> {
        Self(Place::Path(path.to_owned())).checked(&path.to_string_lossy())
    }

    fn checked(self, text: &str) -> Result<Self, ShmError> {
        let refuse = |what| Err(ShmError::Address { text: text.to_owned(), what });
        let bytes = match &self.0 {
            Place::Path(path) => path.as_os_str().as_bytes(),
            Place::Abstract(name) => name.as_bytes(),
        };
        if bytes.is_empty() {
            return refuse("the path is missing: shm:PATH");
        }
        if bytes.contains(&0) {
            return refuse("there is a zero byte in it: take it out");
        }
        if bytes.len() > LONGEST {
            return refuse("a socket's path has 107 bytes at most: choose a shorter one, or shm:@NAME");
        }
        Ok(self)
    }

    /// Returns the socket file, if there is one.
    pub fn path(&self) -> Option<&Path> {
        match &self.0 {
            Place::Path(path) => Some(path),
            Place::Abstract(_) => None,
        }
    }

    pub(super) fn socket(&self) -> rustix::io::Result<SocketAddrUnix> {
        match &self.0 {
            Place::Path(path) => SocketAddrUnix::new(path),
            Place::Abstract(name) => SocketAddrUnix::new_abstract_name(name.as_bytes()),
        }
    }
}

impl fmt::Display for ShmAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Place::Path(path) => write!(f, "shm:{}", path.display()),
            Place::Abstract(name) => write!(f, "shm:@{name}"),
        }
    }
}
