//! One server: the ways to it, and what is to be done there.
//!
//! An operation goes by the fabric while that stands, else over a socket, else it waits until one of them comes up or all have failed.
//! When a connection is lost, what had been sent by it divides: reads are done again, and mutations, of which nobody knows whether they
//! were done, end with that.

use super::address::{ServerAddress, Socket};
use super::answer::{Answer, is_store};
use super::command::line;
use super::error::{About, Error, Operation};
use super::ops::{Name, On, Op};
use super::rest::Rest;
use super::stream::{self, Lost, Stream};
use super::way::Way;
use std::collections::VecDeque;
use std::time::Duration;

/// How often a read is sent before it is given up.
const ATTEMPTS: u8 = 4;

/// A server.
pub(super) struct Server {
    /// As it was given.
    pub(super) text: String,
    sockets: Vec<Socket>,
    stream: Way<Stream, Stream>,
    /// What waits for a way.
    queue: VecDeque<Name>,
    /// What the last failure said.
    why: String,
}

impl Server {
    pub(super) fn new(address: &ServerAddress) -> Self {
        Self {
            text: address.to_string(),
            sockets: address.sockets().to_vec(),
            stream: Way::new(),
            queue: VecDeque::new(),
            why: "none was tried yet".to_owned(),
        }
    }

    /// Begins an operation.
    pub(super) fn issue(&mut self, rest: &mut Rest, name: Name) {
        self.queue.push_back(name);
        self.progress(rest);
    }

    /// Does what can be done now.
    pub(super) fn progress(&mut self, rest: &mut Rest) {
        self.progress_stream(rest);
        self.connect_stream(rest);
        self.dispatch(rest);
    }

    fn progress_stream(&mut self, rest: &mut Rest) {
        let Some(stream) = self.stream.up() else { return };
        let (ops, counters) = (&mut rest.ops, &mut rest.counters);
        let result = stream.progress(|name, answer| {
            let answer = match answer {
                Answer::Refused(said) => match ops.about(name, &self.text) {
                    Some(about) => Err(Error::Refused { about, said }),
                    None => return,
                },
                answer => Ok(answer),
            };
            counters.answered(&answer);
            ops.end(name, answer);
        });
        if let Err(lost) = result {
            self.lose_stream(rest, &lost, None);
        }
    }

    /// Sees that there is a connection, if one is needed.
    fn connect_stream(&mut self, rest: &mut Rest) {
        if !self.queue.is_empty() && !self.sockets.is_empty() {
            let within = rest.patience.connect;
            let sockets = &self.sockets;
            self.stream.begin(&rest.patience, |failures| {
                let to = sockets[failures as usize % sockets.len()].clone();
                Box::new(move || stream::connect(&to, within))
            });
        }
        match self.stream.outcome() {
            Some(Ok(stream)) => self.stream = Way::Up(stream),
            Some(Err(why)) => {
                self.why = why;
                self.stream.fail(&rest.patience);
                rest.counters.failed_connections += 1;
            }
            None => {}
        }
    }

    /// Sends what waits, if there is a way.
    fn dispatch(&mut self, rest: &mut Rest) {
        while let Some(name) = self.queue.pop_front() {
            // What has run out of time meanwhile has its end.
            if rest.ops.unanswered(name).is_none() {
                continue;
            }
            if self.stream.up().is_some() {
                self.send_by_stream(rest, name);
            } else if self.stream.is_connecting() {
                self.queue.push_front(name);
                return;
            } else {
                let why = self.why.clone();
                self.end(rest, name, |about| Error::Unreachable { about, why });
            }
        }
        // What was sent just now leaves just now.
        self.progress_stream(rest);
    }

    fn send_by_stream(&mut self, rest: &mut Rest, name: Name) {
        let (Some(stream), Some(op)) = (self.stream.up(), rest.ops.unanswered(name)) else { return };
        op.on = On::Stream;
        op.attempts += 1;
        stream.send(name, op.operation, |into| write(op, into));
    }

    /// The connection is of no use any more. What ran out of time, if something did, ends with that.
    fn lose_stream(&mut self, rest: &mut Rest, lost: &Lost, late: Option<Name>) {
        let Way::Up(_) = &self.stream else { return };
        rest.counters.lost_connections += 1;
        let mut before = Way::new();
        std::mem::swap(&mut before, &mut self.stream);
        let Way::Up(stream) = before else { return };
        self.why = lost.to_string();
        let why = self.why.clone();
        let nonsense = match lost {
            Lost::Nonsense(what) => Some(*what),
            _ => None,
        };
        for (at, (name, sent)) in stream.into_waiting().enumerate() {
            if Some(name) == late {
                continue;
            }
            // The first one is whose answer it was.
            match nonsense.filter(|_| at == 0) {
                Some(what) if rest.ops.get(name).is_some_and(|op| op.operation.is_read()) => {
                    self.end(rest, name, |about| Error::Nonsense { about, what });
                }
                _ => self.was_lost(rest, name, sent, &why),
            }
        }
    }

    /// The connection that it was sent by is gone.
    fn was_lost(&mut self, rest: &mut Rest, name: Name, sent: bool, why: &str) {
        let Some(op) = rest.ops.unanswered(name) else { return };
        let why = why.to_owned();
        if sent && !op.operation.is_read() {
            self.end(rest, name, |about| Error::OutcomeUnknown { about, why });
        } else if op.attempts >= ATTEMPTS {
            self.end(rest, name, |about| Error::Unreachable { about, why });
        } else {
            op.on = On::Queue;
            self.queue.push_back(name);
        }
    }

    fn end(&self, rest: &mut Rest, name: Name, error: impl FnOnce(About) -> Error) {
        if let Some(about) = rest.ops.about(name, &self.text) {
            rest.counters.errors += 1;
            rest.ops.end(name, Err(error(about)));
        }
    }

    /// An operation has run out of time: what it was sent by goes with it, as nobody knows what comes there next.
    pub(super) fn expire(&mut self, rest: &mut Rest, name: Name) {
        let Some(op) = rest.ops.unanswered(name) else { return };
        let (on, is_read, after) = (op.on, op.operation.is_read(), rest.timeout);
        rest.counters.timeouts += 1;
        let why = format!("no answer within {} ms", after.as_millis());
        match on {
            On::Queue => {
                let why = format!("{} (waited for {} ms)", self.why, after.as_millis());
                self.end(rest, name, |about| Error::Unreachable { about, why });
            }
            _ if is_read => self.end(rest, name, |about| Error::TimedOut { about, after }),
            _ => self.end(rest, name, |about| Error::OutcomeUnknown { about, why: why.clone() }),
        }
        match on {
            On::Stream => {
                let late = std::io::Error::new(std::io::ErrorKind::TimedOut, why);
                self.lose_stream(rest, &Lost::System(late), Some(name));
            }
            On::Fabric | On::Queue => {}
        }
    }

    /// Sleeps until something may have happened to an operation there, or so long.
    pub(super) fn wait(&mut self, on: On, longest: Duration) {
        match (on, &mut self.stream) {
            (_, Way::Up(stream)) if stream.is_busy() => stream.wait(longest),
            (_, way) if way.is_connecting() => way.wait(longest),
            _ => std::thread::sleep(longest.min(Duration::from_millis(1))),
        }
    }

    /// Whether something there is waited for.
    pub(super) fn is_busy(&mut self) -> bool {
        !self.queue.is_empty() || self.stream.up().is_some_and(|stream| stream.is_busy())
    }
}

/// The request as it goes over a socket.
fn write(op: &Op, into: &mut Vec<u8>) {
    let data = op.data.bytes();
    line(op.operation, &op.key, &op.arguments, data.len(), into);
    if is_store(op.operation) {
        into.extend_from_slice(data);
        into.extend_from_slice(b"\r\n");
    }
}

impl Operation {
    /// Whether it is of one key.
    pub(super) fn has_key(self) -> bool {
        !matches!(self, Self::Stats | Self::Version | Self::Flush)
    }
}
