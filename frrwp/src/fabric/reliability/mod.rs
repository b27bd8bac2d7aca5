//! Reliable messages over unreliable datagrams, as state machines: requests of many clients, and their replies.
//!
//! A [`Client`] and a [`Server`] take datagrams, calls and the time. They answer with datagrams to send, requests to execute
//! and results. They hold no socket, clock or thread, so the same code is explored, simulated and shipped. Messages are
//! bytes that this module does not look at; only `classify` tells it which of them are mutations.
//!
//! **The client drives all recovery.** Only clients have timers, and a server sends nothing but answers. An idle client
//! costs the server a record of 104 bytes and its place in a table.
//!
//! # The path of a request
//!
//! ```text
//!   client                                       server
//!     │ ── HELLO, nonce ────────────────────────► │  keeps nothing
//!     │ ◄─────────────────────── RETRY, cookie ── │  shorter than the HELLO
//!     │ ── HELLO, nonce, cookie ────────────────► │  makes a record, once for this cookie
//!     │ ◄────────────────────────── ADMIT, id ─── │
//!     │ ── PART, request 1 ─────────────────────► │  executes it
//!     │ ◄────────────────── PART, its reply ───── │  keeps the reply if it is a mutation's
//!     │ ── PART, request 2, floor 2 ────────────► │  drops the reply of request 1
//! ```
//!
//! 1. [`Client::call`] takes a message. It waits while an earlier one on its key is unanswered, if either is a mutation.
//! 2. Its parts are sent as the window allows. A HAVE answers every eighth, and those that ask for one. It tells which parts
//!    are there, and up to which the server takes more: it reserves memory for those alone.
//! 3. [`Server::receive`] returns the whole request, and [`Server::complete`] takes its reply. Requests are executed in any
//!    order.
//! 4. The server sends the first 8 parts of the reply. The client asks for others, and for lost ones, by WANT.
//! 5. [`Client::next_event`] returns the reply. The floor, which each request carries, lets the server forget it.
//!
//! # Exactly once
//!
//! A record has a floor F and a bit for each of the requests from F to F + 63.
//!
//! | a part of request n comes | the server |
//! | --- | --- |
//! | n < F, or n ≥ F + 64 | drops it: below F the client has its reply, or has reported its outcome as unknown. F never falls |
//! | not done and not begun | executes it when it is whole; sets the bit of a mutation and keeps its reply |
//! | being executed | drops it |
//! | a mutation that is done | sends the kept reply again, or refuses (*reply gone*); never executes it again |
//! | a read that was answered | executes it again, under a new number of execution; a client never mixes parts of two |
//!
//! Room for the reply of a mutation is taken before the mutation is executed. Without room the request is refused (*busy*),
//! nothing has happened, and the client asks again under the same number. A mutation whose reply may be long has room for the longest.
//!
//! # What the sender of datagrams can do
//!
//! A sender has to show that it receives at its address. Before, it costs no memory and gets no answer that is longer than its
//! datagram. To forge a client's datagram takes its id, 64 bits that only the server, the client and the path between them know.
//! All memory is bounded, and hosts have [shares](ServerLimits) of it. A peer on the path can read and forge everything.
#![deny(unsafe_code)]

mod calls;
mod client;
mod cookie;
mod departure;
mod down;
mod limits;
mod open;
mod order;
mod outbox;
mod parts;
mod records;
mod replies;
mod sender;
mod server;
#[cfg(test)]
mod tests;
mod window;
pub mod wire;

pub use calls::{CallError, ClientCounters, Event, Failure};
pub use client::Client;
pub use cookie::Secret;
pub use departure::Departure;
pub use limits::{ClientLimits, Format, ServerLimits};
pub use order::Scope;
pub use outbox::Outbox;
#[cfg(any(test, rdmakv_fault_injection))]
pub use server::ServerFault;
pub use server::{Request, RequestKind, Server, ServerCounters, Work};
