//! The client against servers over sockets.

mod by_hand;
#[path = "../common/mod.rs"]
mod common;
mod cost;
mod datagrams;
mod fabric_faults;
mod faults;
mod futures;
mod hybrid;
mod one_sided;
mod operations;
mod real;
mod ways;

use rdmakv_client::{Client, Options};

/// As by default, but for its patience: most of these tests are not about time, and other work may be in their way.
fn patient() -> Options {
    Options { timeout: common::PATIENCE, connect_timeout: common::PATIENCE, ..Options::default() }
}

/// Returns a client that has it.
#[track_caller]
fn client<S: AsRef<str>>(servers: impl IntoIterator<Item = S>) -> Client {
    Client::with_options(servers, patient()).unwrap()
}
