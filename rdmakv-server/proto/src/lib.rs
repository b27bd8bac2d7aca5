//! The common ground of rdmakv's server and clients: layouts in memory, commands and messages in bytes, lease times and key
//! placement.
//!
//! * In memory: an [item], which one-sided readers check, and the [GET table](gets), in which clients on the same machine look keys up.
//! * In bytes: memcached's [commands], and the [messages] of a fabric connection; values up to the [eager] limit travel in messages.
//!   Over [datagrams] requests may come twice.
//! * In time: how long a [lease] lasts, and the [clock] that both sides count it by.
//! * In rings: the [batches](far::batch) of far memory.
//! * In files: the keys and values of the [burst buffer](files).
//! * [placement] maps keys to servers, and [faults] are injected to test the checkers.
//!
//! This crate does no input or output and depends on no other crate of ours. It is public for rdmakv's own crates, and may change with
//! any release; what goes over the wire has [versions of its own](messages::VERSION).

pub mod clock;
pub mod commands;
pub mod datagrams;
pub mod eager;
pub mod far;
#[doc(hidden)]
pub mod faults;
pub mod files;
pub mod gets;
pub mod horizon;
pub mod item;
pub mod lease;
pub mod messages;
pub mod placement;
mod sums;
