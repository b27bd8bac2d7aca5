//! Tests of the two machines together: their rules one by one, every interleaving of a few requests, and many requests on a
//! simulated network.

mod model;
mod rules;
mod simulation;

use super::{Format, RequestKind, Secret, Server, ServerLimits};
use crate::fabric::traits::Peer;
use std::net::SocketAddr;

/// The address of a peer: a host of 10.0.0.0/8, and a port.
fn peer(host: u16, port: u16) -> Peer {
    let [high, low] = host.to_be_bytes();
    Peer::from(SocketAddr::from(([10, 0, high, low], port)))
}

/// The server's address.
fn server_peer() -> Peer {
    peer(0, 1)
}

/// A request of the tests: `kind`, an operation's number, the bytes that its reply is to have, then filling.
fn request(kind: RequestKind, operation: u32, reply: u32, length: usize) -> Vec<u8> {
    let mut message = vec![kind as u8];
    message.extend(operation.to_le_bytes());
    message.extend(reply.to_le_bytes());
    message.resize(length.max(message.len()), 0x5a);
    message
}

fn classify(message: &[u8]) -> RequestKind {
    let all = [RequestKind::Read, RequestKind::Mutation, RequestKind::LongMutation];
    message.first().and_then(|kind| all.get(usize::from(*kind)).copied()).unwrap_or(RequestKind::Read)
}

/// Returns a request's operation, and the bytes that its reply is to have.
fn parse(message: &[u8]) -> (u32, usize) {
    let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|byte| message[at + byte]));
    (word(1), word(5) as usize)
}

/// Returns the reply of an execution: its number and a value, again and again.
fn reply(execution: u32, value: u32, length: usize) -> Vec<u8> {
    let word = [execution.to_le_bytes(), value.to_le_bytes()].concat();
    word.iter().copied().cycle().take(length).collect()
}

/// Returns execution and value of a reply, if all its bytes are of one.
fn parse_reply(message: &[u8]) -> Option<(u32, u32)> {
    let word = |at: usize| Some(u32::from_le_bytes(message.get(at..at + 4)?.try_into().ok()?));
    let (execution, value) = (word(0)?, word(4)?);
    (message == reply(execution, value, message.len())).then_some((execution, value))
}

fn server(limits: ServerLimits, incarnation: u64) -> Server<Vec<u8>> {
    // Each run of a server draws a key of its own.
    Server::new(limits, Secret::new([(6 + incarnation) as u8; 16]), incarnation, 3, classify)
}

/// Short datagrams: a message of 60 bytes has two parts.
fn short() -> Format {
    Format { datagram: 96, check: true }
}
