//! One server: the ways to it, and what is to be done there.
//!
//! An operation goes by the fabric while that stands, else over a socket, else it waits until one of them comes up or all have failed.
//! When a connection is lost, what had been sent by it divides: reads are done again, and mutations, of which nobody knows whether they
//! were done, end with that.

use super::address::{Fabric, ServerAddress, Socket};
use super::answer::{Answer, is_store};
use super::command::line;
use super::common::Common;
use super::error::{About, Error};
use super::fabric::domains::Connected;
use super::fabric::link::Link;
use super::fabric::replies::Elsewhere;
use super::ops::{Name, On, Op};
use super::stream::{self, Lost, Stream};
use super::tags::Tags;
use super::value::Value;
use super::way::Way;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How often a read is sent before it is given up.
const ATTEMPTS: u8 = 4;

/// A server.
pub(super) struct Server {
    /// As it was given.
    pub(super) text: String,
    fabrics: Vec<Fabric>,
    sockets: Vec<Socket>,
    fabric: Way<Link, Connected>,
    stream: Way<Stream, Stream>,
    /// Which fabric the attempt is for, or the connection.
    by: usize,
    /// Failures of the fabric before it came up, until it has been greeted.
    young: u32,
    /// When the last attempt at the fabric began.
    fabric_begun: Option<Instant>,
    /// Whether the fabric was up once.
    was_up: bool,
    tags: Tags,
    /// What waits for a way.
    queue: VecDeque<Name>,
    /// What the last failure said.
    why: String,
}

impl Server {
    pub(super) fn new(address: &ServerAddress, tags: usize) -> Self {
        Self {
            text: address.to_string(),
            fabrics: address.fabrics().to_vec(),
            sockets: address.sockets().to_vec(),
            fabric: Way::new(),
            stream: Way::new(),
            by: 0,
            young: 0,
            fabric_begun: None,
            was_up: false,
            tags: Tags::new(tags),
            queue: VecDeque::new(),
            why: "none is up yet".to_owned(),
        }
    }

    /// The value, if it is to be had one-sidedly.
    #[inline]
    pub(super) fn get_now(&mut self, common: &mut Common, key: &[u8]) -> Option<Value> {
        let Way::Up(link) = &mut self.fabric else { return None };
        link.get_now(common, &mut self.tags, key)
    }

    /// Begins an operation.
    pub(super) fn issue(&mut self, common: &mut Common, name: Name) {
        if let Some(op) = common.ops.get(name)
            && !op.operation.is_read()
        {
            // What comes after it, by whatever way, finds what it leaves.
            if op.operation.has_key() { self.tags.forget(&op.key) } else { self.tags.forget_tags() }
        }
        self.queue.push_back(name);
        self.progress(common);
    }

    /// Whether what is asked from now on may wait until it leaves together. A connection that is made meanwhile holds nothing.
    pub(super) fn hold(&mut self, requests: bool) {
        if let Way::Up(link) = &mut self.fabric {
            link.hold(requests);
        }
    }

    /// Does what can be done now.
    pub(super) fn progress(&mut self, common: &mut Common) {
        self.progress_fabric(common);
        self.connect_fabric(common);
        self.progress_stream(common);
        self.connect_stream(common);
        self.dispatch(common);
    }

    fn progress_fabric(&mut self, common: &mut Common) {
        let Way::Up(link) = &mut self.fabric else { return };
        let mut elsewhere = Vec::new();
        link.progress(common, &mut self.tags, &self.text, &mut elsewhere);
        for Elsewhere { op: name, busy } in elsewhere {
            if let Some(op) = common.ops.unanswered(name) {
                // Nothing of it is under way any more, so that its end is not the connection's.
                op.on = On::Queue;
                // Where there is no other way, what the server is too busy for is asked again, as long as there is time.
                op.only_stream &= !(busy && self.sockets.is_empty());
                self.queue.push_back(name);
            }
        }
        if link.is_ready() {
            (self.young, self.was_up) = (0, true);
        } else if !link.is_greeted() && link.born.elapsed() > common.patience.connect {
            link.give_up("the server did not say that it is there");
        }
        if let Some(why) = link.broken() {
            let why = why.to_owned();
            self.lose_fabric(common, why, None);
        }
    }

    /// Sees that there is a connection over a fabric, or that one is tried for when it is time.
    fn connect_fabric(&mut self, common: &mut Common) {
        if self.fabrics.is_empty() {
            return;
        }
        let (within, fabrics, by) = (common.patience.connect, &self.fabrics, &mut self.by);
        let (memory, begun) = (&mut common.fabrics, &mut self.fabric_begun);
        self.fabric.begin(&common.patience, |failures| {
            *by = failures as usize % fabrics.len();
            *begun = Some(Instant::now());
            memory.attempt(&fabrics[*by], within)
        });
        let outcome = self.fabric.outcome();
        let Some(outcome) = outcome else { return };
        match outcome.and_then(|connected| connected(&mut common.fabrics)) {
            Ok(end) => {
                self.young = self.fabric.failures() + 1;
                self.fabric = Way::Up(Link::new(end, self.fabrics[self.by].counts_reads(), common.login.clone()));
            }
            Err(why) => {
                self.why = why;
                self.fabric.fail(&common.patience);
                common.counters.failed_connections += 1;
            }
        }
    }

    fn progress_stream(&mut self, common: &mut Common) {
        let Some(stream) = self.stream.up() else { return };
        let (ops, counters) = (&mut common.ops, &mut common.counters);
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
            self.lose_stream(common, &lost, None);
        }
    }

    /// Sees that there is a connection, if one is needed.
    fn connect_stream(&mut self, common: &mut Common) {
        if !self.queue.is_empty() && !self.sockets.is_empty() && !self.may_wait_for_fabric(common) {
            let within = common.patience.connect;
            let (sockets, login) = (&self.sockets, &common.login);
            self.stream.begin(&common.patience, |failures| {
                let (to, login) = (sockets[failures as usize % sockets.len()].clone(), login.clone());
                Box::new(move || stream::connect(&to, login.as_deref(), within))
            });
        }
        match self.stream.outcome() {
            Some(Ok(stream)) => self.stream = Way::Up(stream),
            Some(Err(why)) => {
                self.why = why;
                self.stream.fail(&common.patience);
                common.counters.failed_connections += 1;
            }
            None => {}
        }
    }

    /// Sends what waits, if there is a way.
    fn dispatch(&mut self, common: &mut Common) {
        while let Some(name) = self.queue.pop_front() {
            // What has run out of time meanwhile has its end.
            if common.ops.unanswered(name).is_none() {
                continue;
            }
            let only_stream = common.ops.get(name).is_some_and(|op| op.only_stream);
            if let Way::Up(link) = &mut self.fabric
                && link.is_ready()
                && !only_stream
            {
                if link.issue(common, &mut self.tags, name).is_err() {
                    self.not_by_fabric(common, name);
                }
            } else if self.stream.up().is_some() {
                self.send_by_stream(common, name);
            } else if self.stream.is_connecting() || (!only_stream && self.is_fabric_to_come()) {
                self.queue.push_front(name);
                break;
            } else if let Some(said) = common.ops.unanswered(name).and_then(|op| op.refused.take()) {
                self.end(common, name, |about| Error::Refused { about, said });
            } else {
                let why = self.why.clone();
                self.end(common, name, |about| Error::Unreachable { about, why });
            }
        }
        self.progress_fabric(common);
        // What was sent just now leaves just now.
        self.progress_stream(common);
    }

    /// Whether the fabric is on its way up.
    fn is_fabric_to_come(&mut self) -> bool {
        self.fabric.is_connecting()
            || self.fabric.up().is_some_and(|link| !link.is_greeted() && link.broken().is_none())
    }

    /// Whether what is queued waits for the fabric though there are sockets: it has not failed yet.
    fn may_wait_for_fabric(&mut self, common: &Common) -> bool {
        let ready = self.fabric.up().is_some_and(|link| link.is_ready());
        let only_stream = self.queue.iter().any(|&name| common.ops.get(name).is_some_and(|op| op.only_stream));
        let is_first = !self.was_up && self.fabric.failures() == 0 && self.young <= 1;
        let is_slow = self.fabric_begun.is_some_and(|begun| begun.elapsed() > common.timeout / 4);
        !only_stream && (ready || (self.is_fabric_to_come() && is_first && !is_slow))
    }

    /// The fabric has no room for it, or cannot do it.
    fn not_by_fabric(&mut self, common: &mut Common, name: Name) {
        if self.sockets.is_empty() {
            let what = "its data is larger than what Options::transfer_memory leaves free".to_owned();
            common.end(name, Err(Error::Memory { why: what }));
        } else if let Some(op) = common.ops.unanswered(name) {
            (op.on, op.only_stream) = (On::Queue, true);
            self.queue.push_back(name);
            self.connect_stream(common);
        }
    }

    /// The connection over the fabric is of no use any more.
    fn lose_fabric(&mut self, common: &mut Common, why: String, late: Option<Name>) {
        let Way::Up(link) = std::mem::replace(&mut self.fabric, Way::new()) else { return };
        common.counters.lost_connections += 1;
        if self.young > 0 {
            self.fabric.fail_young(self.young - 1, &common.patience);
        }
        // Tags are the connection's.
        self.tags.forget_all();
        self.why.clone_from(&why);
        for (name, sent) in link.close() {
            if Some(name) != late {
                self.was_lost(common, name, sent, &why);
            }
        }
    }

    fn send_by_stream(&mut self, common: &mut Common, name: Name) {
        let (Some(stream), Some(op)) = (self.stream.up(), common.ops.unanswered(name)) else { return };
        (op.on, op.attempts) = (On::Stream, op.attempts.saturating_add(1));
        stream.send(name, op.operation, |into| write(op, into));
    }

    /// The connection is of no use any more. What ran out of time, if something did, ends with that.
    fn lose_stream(&mut self, common: &mut Common, lost: &Lost, late: Option<Name>) {
        let Way::Up(_) = &self.stream else { return };
        common.counters.lost_connections += 1;
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
                Some(what) if common.ops.get(name).is_some_and(|op| op.operation.is_read()) => {
                    self.end(common, name, |about| Error::Nonsense { about, what });
                }
                _ => self.was_lost(common, name, sent, &why),
            }
        }
    }

    /// The connection that it was sent by is gone.
    fn was_lost(&mut self, common: &mut Common, name: Name, sent: bool, why: &str) {
        let Some(op) = common.ops.unanswered(name) else { return };
        let why = why.to_owned();
        if sent && !op.operation.is_read() {
            self.end(common, name, |about| Error::OutcomeUnknown { about, why });
        } else if op.attempts >= ATTEMPTS {
            self.end(common, name, |about| Error::Unreachable { about, why });
        } else {
            op.on = On::Queue;
            self.queue.push_back(name);
        }
    }

    fn end(&self, common: &mut Common, name: Name, error: impl FnOnce(About) -> Error) {
        if let Some(about) = common.ops.about(name, &self.text) {
            common.counters.errors += 1;
            common.ops.end(name, Err(error(about)));
        }
    }

    /// An operation has run out of time: what it was sent by goes with it, as nobody knows what comes there next.
    pub(super) fn expire(&mut self, common: &mut Common, name: Name) {
        let Some(op) = common.ops.unanswered(name) else { return };
        let (on, attempts, is_read, after) = (op.on, op.attempts, op.operation.is_read(), common.timeout);
        common.counters.timeouts += 1;
        let why = format!("no answer within {} ms", after.as_millis());
        match on {
            On::Queue if attempts == 0 || !is_read => {
                let why = format!("{} (waited for {} ms)", self.why, after.as_millis());
                self.end(common, name, |about| Error::Unreachable { about, why });
            }
            _ if is_read => self.end(common, name, |about| Error::TimedOut { about, after }),
            _ => self.end(common, name, |about| Error::OutcomeUnknown { about, why: why.clone() }),
        }
        match on {
            On::Stream => {
                let late = std::io::Error::new(std::io::ErrorKind::TimedOut, why);
                self.lose_stream(common, &Lost::System(late), Some(name));
            }
            On::Fabric => self.lose_fabric(common, why, Some(name)),
            On::Queue => {}
        }
    }

    /// Sleeps until something may have happened to an operation there, or so long.
    pub(super) fn wait(&mut self, on: On, longest: Duration) {
        let moment = Duration::from_millis(1);
        match (on, &mut self.fabric, &mut self.stream) {
            // What the fabric does not do waits for a socket.
            (On::Queue, Way::Up(link), stream) if link.is_busy() && stream.is_connecting() => {
                link.wait(longest.min(moment))
            }
            (On::Fabric | On::Queue, Way::Up(link), _) if link.is_busy() => link.wait(longest),
            (On::Stream, _, Way::Up(stream)) if stream.is_busy() => stream.wait(longest),
            // Of two that come up, either.
            (On::Queue, fabric, stream) if fabric.is_connecting() && stream.is_connecting() => {
                fabric.wait(longest.min(moment))
            }
            (On::Queue, fabric, _) if fabric.is_connecting() => fabric.wait(longest),
            (On::Queue, _, stream) if stream.is_connecting() => stream.wait(longest),
            _ => std::thread::sleep(longest.min(moment)),
        }
    }

    /// How many ways there are on which something is waited for.
    pub(super) fn busy(&mut self) -> usize {
        let fabric = self.fabric.up().is_some_and(|link| link.is_busy());
        let stream = self.stream.up().is_some_and(|stream| stream.is_busy());
        usize::from(!self.queue.is_empty()) + usize::from(fabric) + usize::from(stream)
    }

    /// The last words to the server.
    pub(super) fn farewell(&mut self) {
        if let Way::Up(link) = &mut self.fabric {
            link.farewell(&mut self.tags);
        }
    }

    /// The fabric that is in use.
    pub(super) fn fabric_in_use(&self) -> Option<&Fabric> {
        match &self.fabric {
            Way::Up(link) if link.is_ready() => self.fabrics.get(self.by),
            _ => None,
        }
    }

    /// Bytes that are registered for this server alone.
    pub(super) fn registered(&self) -> u64 {
        match &self.fabric {
            Way::Up(link) if self.fabrics[self.by].is_apart() => link.registered(),
            _ => 0,
        }
    }

    /// Keys of which something is known.
    pub(super) fn known(&self) -> usize {
        self.tags.len()
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
