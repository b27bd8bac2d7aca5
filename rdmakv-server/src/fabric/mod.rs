//! Clients over fabrics: rights to read, their durations, and their cost in registered memory.
//!
//! Public for what is beside this crate, and no part of what [semantic versions](crate) are about.
//!
//! A client asks once, and is told a *tag*: where the item lies in the server's memory, and what lets the client read it there.
//! Until the tag's lease is over it reads the item itself, and the server's CPU has no part in it. It
//! [checks](rdmakv_proto::item::check) the bytes that it reads; the server is asked about whatever is not right.
//!
//! Over shared memory it needs no tag: it looks the item up in the [GET table](rdmakv_proto::gets).
//!
//! Over `udp:` there are `datagrams` only: requests and replies, of any number of clients. With `hybrid` the busiest of them get the
//! connections.
//!
//! One connection of one fabric carries three things, in one order: [*messages*](rdmakv_proto::messages), *transfers* of `frrwp`'s
//! handshake, by which the server writes large values into the client's buffer, and *reads*: the client's of items, and the server's of
//! values that the client wants stored.

pub mod admission;
mod arenas;
mod bell;
mod budget;
mod commands;
mod connection;
mod datagrams;
pub mod far;
mod far_requests;
mod gets;
mod grants;
mod hybrid;
pub mod incarnation;
mod listener;
mod messages;
pub(crate) mod open;
pub(crate) mod options;
mod origin;
pub mod pages;
mod pinned;
pub mod predecessor;
pub mod promotion;
mod providers;
mod puts;
mod reaper;

mod state;
pub mod tags;
mod turns;

pub use datagrams::try_messages;
