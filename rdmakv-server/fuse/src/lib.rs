//! The burst buffer's decisions: files in the memory of a resilient cluster, drained to a directory.
//!
//! **Nothing uses this crate yet.** It decides, and does no input or output: it has no sockets, clock or threads. The keys and values
//! are [`rdmakv_proto::files`].
//!
//! * [`map`]: which generation has each chunk of a file.
//! * [`ranges`]: which bytes of a chunk a mount has in a buffer, and which of them are to be sent.

pub mod map;
pub mod ranges;
