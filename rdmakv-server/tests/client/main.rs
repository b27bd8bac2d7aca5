//! The client against servers over sockets.

mod by_hand;
#[path = "../common/mod.rs"]
mod common;
mod cost;
mod fabric_faults;
mod faults;
mod futures;
mod one_sided;
mod operations;
mod real;
