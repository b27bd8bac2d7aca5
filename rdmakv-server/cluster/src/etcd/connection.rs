//! A connection to one endpoint. All waits have an end.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use super::endpoint::Endpoint;
use super::http::Answer;

/// The bytes that one read takes.
const READ: usize = 16 << 10;

#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Failed {
    /// The request was not sent, so it has no effect.
    NotSent(String),
    /// The request may have been received.
    Lost(String),
}

impl Connection {
    /// Connects. The look-up of a host's name waits as long as the system does; numeric addresses need none.
    pub(super) fn open(endpoint: &Endpoint, deadline: Instant) -> Result<Self, String> {
        let addresses = endpoint.address.to_socket_addrs().map_err(|error| cause(&error))?;
        let mut last = "the host has no address".to_owned();
        for address in addresses.take(8) {
            let Some(left) = left(deadline) else { break };
            match TcpStream::connect_timeout(&address, left) {
                Ok(stream) => {
                    // A refusal to set it costs time only.
                    let _ = stream.set_nodelay(true);
                    return Ok(Self { stream });
                }
                Err(error) => last = cause(&error),
            }
        }
        Err(last)
    }

    /// Returns whether the peer has neither closed the connection nor sent anything since the last answer.
    pub(super) fn is_idle(&self) -> bool {
        let mut byte = [0];
        let looked = self.stream.set_nonblocking(true).and_then(|()| self.stream.peek(&mut byte));
        let blocked = looked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        blocked && self.stream.set_nonblocking(false).is_ok()
    }

    /// Sends a request. Without its end the server does nothing.
    pub(super) fn send(&mut self, head: &str, body: &str, deadline: Instant) -> Result<(), Failed> {
        let not_sent = |error: io::Error| Failed::NotSent(cause(&error));
        let request = [head.as_bytes(), body.as_bytes()].concat();
        let mut rest = &request[..];
        while !rest.is_empty() {
            let Some(left) = left(deadline) else { return Err(Failed::NotSent("no time is left to send".to_owned())) };
            self.stream.set_write_timeout(Some(left)).map_err(not_sent)?;
            match self.stream.write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted => {}
                    // The end may have gone out with the part that failed.
                    _ => return Err(Failed::Lost(cause(&error))),
                },
            }
        }
        Ok(())
    }

    /// Reads until the answer is done.
    pub(super) fn receive(&mut self, deadline: Instant) -> Result<Answer, Failed> {
        let mut answer = Answer::default();
        while !answer.is_done() {
            if !self.more(&mut answer, deadline)? {
                return Err(Failed::Lost("no answer in time".to_owned()));
            }
        }
        Ok(answer)
    }

    /// Reads some more of an answer. Returns false if the time is over first.
    pub(super) fn more(&mut self, answer: &mut Answer, deadline: Instant) -> Result<bool, Failed> {
        let Some(left) = left(deadline) else { return Ok(false) };
        let lost = |error: io::Error| Failed::Lost(cause(&error));
        self.stream.set_read_timeout(Some(left)).map_err(lost)?;
        let mut bytes = [0; READ];
        match self.stream.read(&mut bytes) {
            Ok(0) => Err(Failed::Lost("the connection was closed".to_owned())),
            Ok(count) => {
                answer.push(&bytes[..count]).map_err(|error| Failed::Lost(error.to_string()))?;
                Ok(true)
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Ok(false),
                io::ErrorKind::Interrupted => Ok(true),
                _ => Err(lost(error)),
            },
        }
    }
}

/// Returns the time to the deadline; None if it is over.
fn left(deadline: Instant) -> Option<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    // The system takes zero for no limit, and rounds microseconds.
    (left >= Duration::from_millis(1)).then_some(left)
}

/// Returns the reason without the system's number.
fn cause(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => "no answer in time".to_owned(),
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => "the connection was closed".to_owned(),
        _ => error.to_string(),
    }
}
