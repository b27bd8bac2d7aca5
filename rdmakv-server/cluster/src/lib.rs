//! Keys that survive their servers, as state machines.
//!
//! This crate decides, and does no input or output: it has no sockets, clock or threads, and no randomness of its own. The one
//! exception is [`etcd`], a blocking client.
//!
//! * [`codec`]: fragments of a value, any k of which make it.
//! * [`config`]: the servers and policies of one epoch, and the changes that make the next one.
//! * [`detector`]: which servers are suspected, and which are to be removed.
//! * [`etcd`]: the store of configurations.
//! * [`facts`]: the keys of a cluster in etcd, and what servers write about themselves and each other.
//! * [`json`]: configurations as etcd keeps them.
//! * [`placement`]: which servers have a key, and which of them orders its writes.
//! * [`rights`]: when a server may answer, and how long a new primary waits.
//! * [`messages`]: the calls between clients, servers and agents, and the answers.
//! * [`wire`]: the bytes of calls and answers.
//! * [`membership`]: how a server joins, renews its right, adopts epochs, and removes others.
//! * [`member`]: a server's part in each write. [`fates`]: which writes ended, and which never happen.
//! * [`writer`] and [`helper`]: a client's part in a write, and the completion of another's. [`reader`]: its part in a read.
//! * [`repair`]: an agent's part, which brings each member what it lacks.
//!
//! It is public for rdmakv's own crates, and may change with any release.

pub mod codec;
pub mod config;
pub mod detector;
#[cfg(test)]
mod detector_tests;
#[cfg(test)]
mod dice;
pub mod etcd;
pub mod facts;
pub mod fates;
mod faults;
pub mod helper;
mod ids;
pub mod json;
mod kernel;
pub mod member;
#[cfg(test)]
mod member_tests;
pub mod membership;
#[cfg(test)]
mod membership_tests;
pub mod messages;
#[cfg(test)]
mod model;
#[cfg(test)]
mod model_tests;
pub mod placement;
pub mod reader;
pub mod repair;
pub mod rights;
#[cfg(test)]
mod rights_tests;
mod ring;
mod room;
#[cfg(test)]
mod schedules;
mod text;
pub mod wire;
pub mod writer;
