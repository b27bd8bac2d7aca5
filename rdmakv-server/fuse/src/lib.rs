//! A burst buffer: files in the memory of a resilient cluster, drained to a directory.
//!
//! [`Files`] is the file system as a library (feature `library`, which is on by default). [`Agent`] carries closed files to the backing directory, and
//! is the command `rdmakv-fuse agent` (feature `cli`). The command `rdmakv-fuse mount` mounts the file system by FUSE (feature `mount`). Under all
//! are state machines that decide, without sockets, clock or threads. Keys and values are [`rdmakv_proto::files`].
//!
//! * [`store`]: changes of one key by `cas`, which may be repeated.
//! * [`inode`]: the states of a file and its generations: open, closed, frozen, persisted; what a mount's death does.
//! * [`names`]: a directory's names as sequences of such changes, and the lease of the mount that makes them.
//! * [`finish`]: how a frozen generation reaches the backing, and is shown there under its name.
//! * [`map`]: which generation has each chunk of a file.
//! * [`ranges`]: which bytes of a chunk a mount has in a buffer, and which of them are to be sent.
//!
//! # From programs to keys
//!
//! A mount drives these, and the library does the same without a kernel. Each row is in the order in which keys are written.
//!
//! | operation | machines | keys |
//! | --- | --- | --- |
//! | lookup, stat, readdir | [`names::look_up`] | reads `n/`, `i/`; a name that is not known is looked up on the backing |
//! | first change in a directory | [`names::Acquire`] | `d/`, all sixteen `n/`; `EBUSY` after 5 s |
//! | create, mkdir, symlink | [`names::Held::create`] | `i/`, for a directory `d/`, then `n/` |
//! | unlink, rmdir, rename | [`names::Held`] | `d/` for rename and rmdir, `n/`, `i/` |
//! | open for writing | [`inode::Edit::Open`] | `i/`: a generation is reserved |
//! | first write or truncate | [`names::Held::mark`], a copy of the file, [`inode::Edit::Begin`] | `n/`, `c/`, then `i/` |
//! | write, read | [`ranges::Buffered`], [`map::Map`] | `c/`, when a chunk is full, and after 1 s |
//! | fsync | [`inode::Edit::Sync`] | all `c/` that are dirty, then `i/` |
//! | last close | the same, closed; after 1 s [`inode::Edit::Settle`] | `c/`, then `i/` |
//! | chmod, chown, utimens | [`inode::Edit::Attributes`], then [`names::Held::mark`] | `i/`, `n/` |
//!
//! A server asks [`finish::Finals`] before it takes a chunk, and adds to them at FREEZE (`Call::Freeze` of `rdmakv-cluster`).
//!
//! # From keys to the backing
//!
//! The agent goes through all names again and again, and runs a [`finish::Publication`] for each that is new or a whiteout. It freezes a
//! generation at all servers, and has those that have the directory write their chunks to `.rdmakv/data/INO.GEN` (`Call::Carry`). It reads the
//! others with the client, and writes them by [`finish::Draining`]. **One agent works for a cluster**, the one that began last. It removes the folders of all earlier ones, as [`finish::Staging`] has it.
//!
//! # Rules for drivers
//!
//! * A mount draws [`Ino`](rdmakv_proto::files::Ino) and [`MountId`](rdmakv_proto::files::MountId) at random, and never uses one again. When
//!   its key expired it writes nothing more, and a new mount has another number.
//! * A mount that could not touch its key for 15 s ends its operations with `EIO`.
//! * A request whose outcome is not known is answered with [`store::Answer::Unknown`]. The machine reads the key again.
//! * The first mount of a file system makes `i/1`, `n/1/…` as needed, and `d/1` with a default [`Directory`](rdmakv_proto::files::Directory).
//! * A file that is only on the backing gets a link `.rdmakv/data/INO.0` before its inode is made, persisted and without a map. Chunks that
//!   a persisted file's map lacks are read from there.
//! * Map and size of a file are at most [`MAX_RUNS`](rdmakv_proto::files::MAX_RUNS) runs and
//!   [`MAX_CHUNKS`](rdmakv_proto::files::MAX_CHUNKS) chunks: beyond the first, holes are filled; beyond the second, `EFBIG`.
//!
//! # Not here yet
//!
//! * Servers write whole chunks only: those in fragments (`code:K+M`) go through the agent.
//! * Inodes that never got a name are not swept. They take some hundred bytes each.
//! * Files that others put on the backing are replaced by a publication. The page's `RENAME_EXCHANGE` belongs into its driver.
//! * Open files are not drained, and a file that is written again and again without a pause is not persisted.

#[cfg(feature = "library")]
mod agent;
#[cfg(feature = "library")]
mod backing;
#[cfg(feature = "library")]
mod buffers;
#[cfg(feature = "library")]
mod clean;
#[cfg(feature = "cli")]
pub mod cli;
#[cfg(feature = "library")]
mod cluster;
#[cfg(test)]
mod dice;
#[cfg(feature = "library")]
mod directory;
#[cfg(feature = "library")]
mod disk_error;
#[cfg(feature = "library")]
mod drain;
#[cfg(feature = "library")]
mod error;
mod faults;
pub mod finish;
#[cfg(test)]
mod fixtures;
#[cfg(feature = "mount")]
mod fuse;
pub mod inode;
#[cfg(feature = "library")]
mod library;
#[cfg(feature = "library")]
mod life;
pub mod map;
#[cfg(test)]
mod model;
#[cfg(test)]
mod model_tests;
#[cfg(feature = "mount")]
mod mount;
pub mod names;
#[cfg(test)]
mod names_tests;
#[cfg(feature = "library")]
mod node;
#[cfg(feature = "library")]
mod orders;
#[cfg(feature = "library")]
mod persist;
#[cfg(feature = "library")]
mod random;
pub mod ranges;
#[cfg(feature = "library")]
mod spill;
#[cfg(feature = "library")]
mod staging;
#[cfg(feature = "library")]
mod status;
pub mod store;
#[cfg(feature = "library")]
mod sweep;
#[cfg(feature = "library")]
mod unnamed;
#[cfg(feature = "library")]
mod volume;
#[cfg(feature = "mount")]
mod waiting;
#[cfg(feature = "library")]
mod walk;
#[cfg(feature = "library")]
mod writing;

#[cfg(feature = "library")]
pub use agent::{Agent, Round};
#[cfg(feature = "library")]
pub use disk_error::DiskError;
#[cfg(feature = "library")]
pub use error::{Error, Result};
#[cfg(feature = "library")]
pub use library::{File, Files, Fsync, How, Settings};
#[cfg(feature = "library")]
pub use status::Status;
#[cfg(feature = "library")]
pub use sweep::Swept;
#[cfg(feature = "library")]
pub use volume::Listed;
