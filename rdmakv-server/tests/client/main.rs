//! The client against servers over sockets.

#[path = "../common/mod.rs"]
mod common;
mod faults;
mod operations;
