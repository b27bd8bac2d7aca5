//! The burst buffer's decisions: files in the memory of a resilient cluster, drained to a directory.
//!
//! **Nothing uses this crate yet.** It decides, and does no input or output: it has no sockets, clock or threads. The keys and values
//! are [`rdmakv_proto::files`].
//!
//! * [`store`]: changes of one key by `cas`, which may be repeated.
//! * [`inode`]: the states of a file and its generations: open, closed, frozen, persisted; what a mount's death does.
//! * [`names`]: a directory's names as sequences of such changes, and the lease of the mount that makes them.
//! * [`finish`]: how a frozen generation reaches the backing, and is shown there under its name.
//! * [`map`]: which generation has each chunk of a file.
//! * [`ranges`]: which bytes of a chunk a mount has in a buffer, and which of them are to be sent.

#[cfg(test)]
mod dice;
mod faults;
pub mod finish;
pub mod inode;
pub mod map;
#[cfg(test)]
mod model;
#[cfg(test)]
mod model_tests;
pub mod names;
#[cfg(test)]
mod names_tests;
pub mod ranges;
pub mod store;
