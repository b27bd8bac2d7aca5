//! The clients: one trait, an implementation for each transport.

pub mod datagrams;
pub mod library;
pub mod text;

use crate::record::Transport;

/// The outcome of a request, as its client has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The value is in the buffer; CAS compares with this.
    Found {
        /// The server's version of the item.
        token: u64,
    },
    /// INCR: the sum.
    Number(u64),
    /// It was done.
    Done,
    /// ADD: there was a value. CAS: there was another.
    Refused,
    /// There was none.
    Absent,
    /// It was not done and will not be: there was no memory, the server was busy, or there was none to ask.
    NotDone,
    /// The connection, the server or the patience ended first.
    Unknown,
    /// The answer makes no sense.
    Nonsense(String),
}

/// A client of one server, with one request at a time.
pub trait Client {
    /// Returns the path.
    fn transport(&self) -> Transport;

    /// Connects if need be; `false` if there is no server. The server's versions from before are worth nothing
    /// if [`connections`](Self::connections) has changed.
    fn is_ready(&mut self) -> bool;

    /// How many connections there were.
    fn connections(&self) -> u64;

    /// Returns the key's value, put into the buffer.
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Outcome;

    /// Returns whether the last GET was answered without the server.
    fn was_one_sided(&self) -> bool {
        false
    }

    /// Sets the value; the expiry is in seconds, 0 for none.
    fn set(&mut self, key: &[u8], value: &[u8], expiry: u8) -> Outcome;

    /// Sets the value if there is none.
    fn add(&mut self, key: &[u8], value: &[u8], expiry: u8) -> Outcome;

    /// Sets the value if the server's version still is this one.
    fn cas(&mut self, key: &[u8], value: &[u8], expiry: u8, token: u64) -> Outcome;

    /// Adds one to a counter.
    fn incr(&mut self, key: &[u8]) -> Outcome;

    /// Deletes the value.
    fn delete(&mut self, key: &[u8]) -> Outcome;

    /// Gives the value another expiry.
    fn touch(&mut self, key: &[u8], expiry: u8) -> Outcome;

    /// Deletes all values.
    fn flush(&mut self) -> Outcome;
}
