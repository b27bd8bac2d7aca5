//! The keys and values of a file system on top of a resilient cluster: the burst buffer.
//!
//! `rdmakv-fuse` reads and writes them.
//!
//! | key | value |
//! | --- | --- |
//! | `c/INO/GEN/INDEX` | a chunk of a generation, as long as was written; zeros follow |
//! | `i/INO` | [`Inode`]: a file, directory or symbolic link |
//! | `n/INO/BUCKET` | [`Bucket`]: a sixteenth of a directory's names, by [`bucket_of`] |
//! | `d/INO` | [`Directory`]: the mount that may change a directory, and a rename in progress |
//! | `p/INO/GEN/SERVER` | [`Ranges`]: bytes of a generation that a server has on disk |
//! | `m/MOUNT` | [`Mount`]: a mount that lives; the key expires |
//!
//! Numbers in keys are hexadecimal without zeros in front, in lower case: each key has one spelling. Numbers in values are
//! little-endian. Each value has one encoding, and a decoder refuses all others. A value has at most [`MAX_VALUE`] bytes.
//!
//! A change of a layout is a new [`VERSION`]: one mount of another version could lose what it does not understand.

mod directory;
mod drain;
mod fields;
mod inode;
mod keys;
mod mount;
mod names;
mod ranges;

pub use directory::{Directory, Rename};
pub use drain::{Draining, Finals, MAX_PERSISTED, Part, Places};
pub use inode::{Inode, MAX_RUNS, MAX_TARGET, Run, State, Time};
pub use keys::Key;
pub use mount::{MAX_HOST, Mount};
pub use names::{BUCKETS, Bucket, Entry, MAX_ENTRIES, MAX_NAME, Standing, bucket_of, is_name};
pub use ranges::{MAX_RANGES, Ranges};

/// The version of all layouts here.
pub const VERSION: u8 = 1;

/// Bytes of a value at most, but for those of chunks: with its key and header it fits into 1 MiB.
pub const MAX_VALUE: usize = (1 << 20) - 4096;

/// Chunks of a file at most: 32 GiB in chunks of 256 KiB. A server goes through all of them at once when they are frozen.
pub const MAX_CHUNKS: u32 = 1 << 17;

/// The number of an inode: 64 random bits, drawn by the mount that creates it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ino(pub u64);

impl Ino {
    /// The root directory.
    pub const ROOT: Self = Self(1);
}

/// The number of one version of a file's bytes, counted from 1. Before the first there are none, in generation 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Generation(pub u64);

/// The number of one mount: random, never 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct MountId(pub u64);

/// The kind of an inode.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    /// A file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
}

/// Why bytes are no value of their key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FilesError {
    /// Another version of the layouts.
    #[error("read value: its layout has version {0} and not {VERSION}: run the same release on all mounts and servers")]
    Version(u8),
    /// The value ends before its last field.
    #[error("read value: it ends too early: restore it from the backing directory")]
    Short,
    /// Bytes follow the last field.
    #[error("read value: bytes follow its end: restore it from the backing directory")]
    Long,
    /// A field has a value that it cannot have.
    #[error("read value: its {0} is none: restore it from the backing directory")]
    Field(&'static str),
}
