//! Changes of keys in the cluster, by `cas`: a machine asks, and its driver tells it the answers.

use rdmakv_proto::files::{FilesError, Key};

/// Attempts at one key, before a change gives up.
const ATTEMPTS: u8 = 64;

/// A request to the cluster. Each is one linearizable operation.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Request {
    /// Reads a key.
    Get(Key),
    /// Writes a key, if its version is this one still.
    Cas {
        /// The key.
        key: Key,
        /// The version that was read; None if the key was absent.
        version: Option<u64>,
        /// The new value; None deletes the key.
        value: Option<Vec<u8>>,
    },
}

/// An answer of the cluster.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Answer {
    /// The key has this version and value.
    Found(u64, Vec<u8>),
    /// The key is absent.
    Absent,
    /// It was written.
    Stored,
    /// It has another version, and was not written.
    Conflict,
    /// The outcome is not known: it may have been written, or may still be. The machine reads the key.
    Unknown,
}

/// A reason for which an operation fails.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Refusal {
    /// `ENOENT`: there is no such name.
    NotFound,
    /// `EEXIST`: the name is taken.
    Exists,
    /// `ENOTEMPTY`: the directory has names.
    NotEmpty,
    /// `EISDIR`: it is a directory.
    IsDirectory,
    /// `EINVAL`: the inode cannot have this change.
    Invalid,
    /// `EBUSY`: another mount writes the file or holds the directory.
    Busy,
    /// `ENOSPC`: the directory has no room for the name.
    Full,
    /// `EXDEV`: this version renames files within one directory only, and no directories.
    OtherDirectory,
    /// `EIO`: another mount or an agent took over, because this one seemed dead.
    Lost,
    /// `EIO`: others changed the key again and again.
    Contended,
    /// `EIO`: a value cannot be read.
    Broken,
    /// Nothing for programs: a later generation made this one needless.
    Superseded,
}

impl From<FilesError> for Refusal {
    fn from(_: FilesError) -> Self {
        Self::Broken
    }
}

/// A decision on a value that was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Decision {
    /// It becomes this one.
    Write(Vec<u8>),
    /// The key goes.
    Delete,
    /// Nothing is to be done: the change was made before, or asks for none.
    Already,
}

/// A change of one key.
///
/// It recognizes that it was made, so it may be repeated after an unknown outcome. Numbers of inodes and generations are
/// unique, and tell it from changes of others.
pub trait Change {
    /// Returns the key.
    fn key(&self) -> Key;

    /// Decides on the value; None if the key is absent.
    ///
    /// # Errors
    ///
    /// The reason why the change cannot be made.
    fn decide(&self, value: Option<&[u8]>) -> Result<Decision, Refusal>;
}

/// A change under way: the key is read, then written, again after a conflict.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Update<C> {
    change: C,
    attempts: u8,
}

/// How a machine goes on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Progress {
    /// It needs the answer to this request.
    Ask(Request),
    /// It ended.
    Ended(Result<(), Refusal>),
}

impl<C: Change> Update<C> {
    /// Begins a change, and returns it with its first request.
    pub fn begin(change: C) -> (Self, Request) {
        let request = Request::Get(change.key());
        (Self { change, attempts: 0 }, request)
    }

    /// Returns the change.
    pub fn change(&self) -> &C {
        &self.change
    }

    /// Takes the answer to the last request.
    pub fn take(&mut self, answer: &Answer) -> Progress {
        let key = self.change.key();
        let (version, value) = match answer {
            Answer::Found(version, value) => (Some(*version), Some(value.as_slice())),
            Answer::Absent => (None, None),
            Answer::Stored => return Progress::Ended(Ok(())),
            Answer::Conflict | Answer::Unknown if self.attempts >= ATTEMPTS => {
                return Progress::Ended(Err(Refusal::Contended));
            }
            Answer::Conflict | Answer::Unknown => {
                self.attempts += 1;
                return Progress::Ask(Request::Get(key));
            }
        };
        match self.change.decide(value) {
            Ok(Decision::Write(value)) => Progress::Ask(Request::Cas { key, version, value: Some(value) }),
            Ok(Decision::Delete) if version.is_some() => Progress::Ask(Request::Cas { key, version, value: None }),
            Ok(Decision::Delete | Decision::Already) => Progress::Ended(Ok(())),
            Err(refusal) => Progress::Ended(Err(refusal)),
        }
    }
}
