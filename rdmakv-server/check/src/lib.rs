//! Tortures an rdmakv server from many threads and processes, and proves from what they saw that every key was one
//! linearizable register.
//!
//! [`torture`] starts a server and clients, kills them now and then, and hands what they saw to the checker. Each thread
//! writes a [`journal`], which outlives it; [`evidence`] puts the lines of all together, key by key; [`judge`] says
//! whether some order of a key's operations explains all answers. The rules: a key is a register or absent. Eviction and
//! expiry may take a value away at any moment, a restart takes all. A value that was replaced or gone never comes back,
//! and an unanswered operation may take effect at any time, or never.
//!
//! # Beside this crate
//!
//! The server is [`rdmakv-server`]; [`rdmakv-bench`] makes load for it.
//!
//! [`rdmakv-server`]: ../rdmakv_server/index.html
//! [`rdmakv-bench`]: ../rdmakv_bench/index.html

mod addresses;
mod attribution;
pub mod cli;
pub mod client;
pub mod clock;
pub mod cluster;
pub mod evidence;
mod faults;
pub mod history;
pub mod journal;
pub mod judge;
pub mod keys;
pub mod lifetimes;
mod loss;
pub mod place;
mod progress;
pub mod record;
pub mod report;
mod search;
pub mod server;
pub mod torture;
pub mod values;
pub mod violation;
pub mod worker;
mod zones;
