//! Why an operation on files failed: an errno, and a sentence for people.

use std::fmt;

use rdmakv_client::Error as ClientError;
use rdmakv_proto::files::{FilesError, Key};
use rustix::io::Errno;

use crate::store::Refusal;

/// An operation on files that failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Error {
    errno: Errno,
    why: String,
    may_pass: bool,
    is_of_backing: bool,
}

/// The result of an operation on files.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Returns an error with this reason: `operation object: cause: remedy`.
    pub(crate) fn new(errno: Errno, why: impl Into<String>) -> Self {
        Self { errno, why: why.into(), may_pass: false, is_of_backing: false }
    }

    /// Returns an error that may pass by itself: the operation is tried again for a while.
    pub(crate) fn passing(errno: Errno, why: impl Into<String>) -> Self {
        Self { may_pass: true, ..Self::new(errno, why) }
    }

    /// Returns the error of a client's operation on a key.
    pub(crate) fn of_client(error: &ClientError) -> Self {
        let why = error.to_string();
        match error {
            ClientError::Refused { said, .. } if said.contains("out of memory") => Self::passing(Errno::NOSPC, why),
            ClientError::Refused { said, .. } if said.contains("too large") => {
                Self::new(Errno::FBIG, format!("{why}: start the servers with a larger -I, or use a smaller --chunk"))
            }
            ClientError::Memory { .. } => Self::new(Errno::NOMEM, why),
            _ => Self::new(Errno::IO, why),
        }
    }

    /// Returns the error of a change that was refused.
    pub(crate) fn of_refusal(refusal: Refusal, key: &Key) -> Self {
        let (errno, cause) = match refusal {
            Refusal::NotFound => (Errno::NOENT, "there is no such name"),
            Refusal::Exists => (Errno::EXIST, "the name is taken"),
            Refusal::NotEmpty => (Errno::NOTEMPTY, "the directory has names"),
            Refusal::IsDirectory => (Errno::ISDIR, "it is a directory"),
            Refusal::Invalid => (Errno::INVAL, "the inode cannot have this change"),
            Refusal::Busy => (Errno::BUSY, "another mount writes it: close the file there"),
            Refusal::Full => (Errno::NOSPC, "the directory has no room for the name: use several directories"),
            Refusal::OtherDirectory => (Errno::XDEV, "this version renames files within one directory: copy it"),
            Refusal::Lost => (Errno::IO, "another mount took over: mount again"),
            Refusal::Contended => (Errno::IO, "others changed it each time: try again"),
            Refusal::Broken => (Errno::IO, "its value cannot be read: restore it from the backing directory"),
            Refusal::Superseded => (Errno::IO, "a later generation is there: try again"),
        };
        Self::new(errno, format!("change {key}: {cause}"))
    }

    /// Returns the error of a value that cannot be read.
    pub(crate) fn of_value(error: &FilesError, key: &Key) -> Self {
        Self::new(Errno::IO, format!("read {key}: {error}"))
    }

    /// Returns the error of an operation on the backing directory.
    pub(crate) fn of_backing(errno: Errno, operation: &str, object: impl fmt::Display) -> Self {
        let why = format!("{operation} {object}: {errno}: see the backing directory");
        Self { is_of_backing: true, ..Self::new(errno, why) }
    }

    /// Returns the errno.
    pub fn errno(&self) -> Errno {
        self.errno
    }

    /// Returns whether the backing directory failed, and not the cluster.
    pub(crate) fn is_of_backing(&self) -> bool {
        self.is_of_backing
    }

    /// Returns whether it may pass by itself.
    pub(crate) fn may_pass(&self) -> bool {
        self.may_pass
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for Error {}

impl From<Error> for std::io::Error {
    fn from(error: Error) -> Self {
        Self::from_raw_os_error(error.errno.raw_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmakv_client::{About, Operation};
    use rdmakv_proto::files::Ino;

    #[test]
    fn refusals_have_the_errno_of_their_comment() {
        let key = Key::Inode(Ino(7));
        for (refusal, errno) in [
            (Refusal::NotFound, Errno::NOENT),
            (Refusal::Busy, Errno::BUSY),
            (Refusal::OtherDirectory, Errno::XDEV),
            (Refusal::Lost, Errno::IO),
            (Refusal::Full, Errno::NOSPC),
        ] {
            assert_eq!(Error::of_refusal(refusal, &key).errno(), errno);
        }
    }

    #[test]
    fn only_a_full_cluster_passes() {
        let about = About { operation: Operation::Set, key: b"c/1/1/0".into(), server: "s".into() };
        let refused = |said: &str| ClientError::Refused { about: about.clone(), said: said.into() };
        let full = Error::of_client(&refused("SERVER_ERROR out of memory storing object"));
        assert!(full.may_pass() && full.errno() == Errno::NOSPC);
        let large = Error::of_client(&refused("SERVER_ERROR object too large for cache"));
        assert!(!large.may_pass() && large.errno() == Errno::FBIG && large.to_string().contains("-I"), "{large}");
        let unknown = Error::of_client(&ClientError::OutcomeUnknown { about, why: "lost".into() });
        assert!(!unknown.may_pass() && unknown.errno() == Errno::IO);
    }
}
