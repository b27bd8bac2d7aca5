//! One thread: datagrams come, requests are carried out one after the other, replies go.
//!
//! A fault of the server's own while a request is carried out ends all records of the thread, and nothing else. Its clients are told so
//! and begin anew. No mutation is executed twice by that: its outcome is unknown.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use frrwp::fabric::DatagramPort;
use frrwp::fabric::reliability::{RequestKind, Secret, Server, ServerCounters, Work};

use super::DatagramState;
use super::execute::Executor;
use super::rates::Rates;
use crate::fabric::hybrid::Reports;
use crate::log;
use crate::metrics::{add, count};
use crate::session::{is_accepting, is_stopping};
use rdmakv_proto::clock;
use rdmakv_proto::datagrams::{append_token, effect};

/// Datagrams that are taken before replies leave.
const TURN: usize = 64;
/// The longest sleep, in nanoseconds: then the thread looks whether the server ends, and drops what time ends.
const LOOK: u64 = 100_000_000;
/// How long the thread takes what has come, at most, when the server finishes, in nanoseconds.
const LAST: u64 = 100_000_000;
/// Bytes of a reply from which on it is kept as it is, and not copied, in case it is lost.
const LONG: usize = 1024;
/// Memory that is kept from one message to the next.
const KEPT: usize = 16 << 10;

/// Returns whether a request may be executed twice, and if not, whether its answer may be long.
fn classify(message: &[u8]) -> RequestKind {
    let effect = effect(message);
    match (effect.is_read, effect.is_long) {
        (true, _) => RequestKind::Read,
        (false, false) => RequestKind::Mutation,
        (false, true) => RequestKind::LongMutation,
    }
}

/// Serves until the server ends.
pub(super) fn run(state: &Arc<DatagramState>, port: &mut impl DatagramPort, number: usize, seat: usize) {
    loop {
        // With another secret, so that no datagram of before makes a record that existed again.
        let mut thread = Thread::new(state, number, seat);
        let served = catch_unwind(AssertUnwindSafe(|| thread.serve(port)));
        thread.end();
        match served {
            Ok(()) => return,
            Err(_) => {
                count(&state.counts.faults);
                log::print(format_args!(
                    "{}: a fault of the server's made the clients of a thread begin anew; please report it",
                    state.terms.name
                ));
            }
        }
    }
}

/// Puts the fault in that was chosen.
#[cfg(rdmakv_fault_injection)]
fn with_fault(mut server: Server<Vec<u8>>) -> Server<Vec<u8>> {
    use frrwp::fabric::reliability::ServerFault;
    use rdmakv_proto::faults::{Fault, injected};
    for (fault, of) in [
        (Fault::NoReplies, ServerFault::NoReplies),
        (Fault::FloorBack, ServerFault::FloorBack),
        (Fault::NoExecuting, ServerFault::NoExecuting),
    ] {
        if injected(fault) {
            server.inject(of);
        }
    }
    server
}

/// Returns whether replies wait until all that came is executed. So a request may come again while it counts as being executed.
#[cfg(rdmakv_fault_injection)]
fn executes_slowly() -> bool {
    rdmakv_proto::faults::injected(rdmakv_proto::faults::Fault::NoExecuting)
}

#[cfg(not(rdmakv_fault_injection))]
fn executes_slowly() -> bool {
    false
}

#[cfg(not(rdmakv_fault_injection))]
fn with_fault(server: Server<Vec<u8>>) -> Server<Vec<u8>> {
    server
}

/// The records of a thread's clients.
struct Thread<'f> {
    state: &'f DatagramState,
    server: Server<Vec<u8>>,
    executor: Executor<'f>,
    message: Vec<u8>,
    reply: Vec<u8>,
    /// Requests whose replies wait, as if they took long.
    slow: Vec<(Work, Vec<u8>)>,
    /// The counts that were published.
    published: ServerCounters,
    clients: u64,
    /// Datagrams that were sent.
    sent: u64,
    /// When it was seen that the server finishes.
    finishes: Option<u64>,
    /// The requests of busy clients since the last ranking.
    rates: Rates,
    reports: Reports,
    /// The tokens of clients that are offered a connection, and how often they had changed when they were copied.
    offers: HashMap<u64, u64>,
    offers_seen: u64,
}

impl<'f> Thread<'f> {
    fn new(state: &'f DatagramState, number: usize, seat: usize) -> Self {
        let thread = u8::try_from(number).unwrap_or(u8::MAX);
        let server =
            with_fault(Server::new(state.terms.limits, Secret::new(rand::random()), rand::random(), thread, classify));
        Self {
            state,
            server,
            executor: Executor::new(state, seat),
            message: Vec::new(),
            reply: Vec::new(),
            slow: Vec::new(),
            published: ServerCounters::default(),
            clients: 0,
            sent: 0,
            finishes: None,
            rates: Rates::default(),
            reports: Reports::default(),
            offers: HashMap::default(),
            offers_seen: 0,
        }
    }

    fn serve(&mut self, port: &mut impl DatagramPort) {
        loop {
            let mut came = 0;
            while came < TURN && self.take(port) {
                came += 1;
            }
            for (work, reply) in std::mem::take(&mut self.slow) {
                self.complete(port.now(), work, reply);
            }
            self.server.set_pressed(port.is_pressed());
            self.send(port);
            let now = port.now();
            if came == 0 {
                self.server.sweep(now);
            }
            self.rank();
            self.publish();
            let shared = &self.state.shared;
            if port.has_ended() {
                log::print(format_args!(
                    "{}: the device is going away: its clients take other ways, and none comes back before the server is started again",
                    self.state.terms.name
                ));
                return;
            }
            if is_stopping(shared) || self.has_finished(came, now) {
                // Replies leave before the port is free for another server.
                port.wait(Some(now));
                return;
            }
            port.wait(Some(now + LOOK));
            self.executor.wake();
        }
    }

    /// Returns whether the server finishes, and what had come by then is answered. Its clients go on with the server that takes the port.
    fn has_finished(&mut self, came: usize, now: u64) -> bool {
        if is_accepting(&self.state.shared) {
            return false;
        }
        let since = *self.finishes.get_or_insert(now);
        came == 0 || now > since + LAST
    }

    /// Takes a datagram, and carries out the request that it makes whole. Returns whether there was one.
    fn take(&mut self, port: &mut impl DatagramPort) -> bool {
        let now = port.now();
        let Some((from, bytes)) = port.poll() else { return false };
        let Some(request) = self.server.receive(now, from, bytes) else { return true };
        self.message.clear();
        self.message.extend_from_slice(request.message);
        let work = request.work;
        let before = self.server.note(&work);
        let mut after = self.executor.execute(&self.message, before, &mut self.reply);
        if self.state.hybrid.is_some() && self.executor.may_be_offered(after) {
            let client = work.client();
            after = self.rates.count((client, from.host()), after, clock::nanos());
            if let Some(token) = self.offers.get(&client) {
                append_token(&mut self.reply, *token);
            }
        }
        if after != before {
            self.server.set_note(&work, after);
        }
        let reply = std::mem::take(&mut self.reply);
        match executes_slowly() {
            true => self.slow.push((work, reply)),
            false => self.complete(port.now(), work, reply),
        }
        if self.message.capacity() > KEPT {
            self.message = Vec::new();
        }
        true
    }

    fn complete(&mut self, now: u64, work: Work, mut reply: Vec<u8>) {
        if reply.len() > LONG {
            reply.shrink_to_fit();
            self.server.complete(now, work, b"", Some(reply));
        } else {
            self.server.complete(now, work, &reply, None);
            // Its memory serves the next one.
            self.reply = reply;
        }
    }

    /// Reports the requests of busy clients, and learns which of them are offered a connection.
    fn rank(&mut self) {
        let Some(hybrid) = &self.state.hybrid else { return };
        let now = clock::nanos();
        if self.reports.is_due(now) {
            hybrid.rank(self.rates.drain(), now, &self.state.datagrams);
        }
        hybrid.copy_offers(&mut self.offers_seen, &mut self.offers);
    }

    fn send(&mut self, port: &mut impl DatagramPort) {
        let mut failed = None;
        for (to, bytes) in self.server.outbox().iter() {
            self.sent += 1;
            if let Err(error) = port.send(to, bytes) {
                failed = Some(error);
            }
        }
        self.server.outbox().clear();
        if let Some(error) = failed {
            self.state.shared.log.warn(format_args!("{}: sending datagrams: {error}", self.state.terms.name));
        }
    }

    fn publish(&mut self) {
        let (now, before) = (self.server.counters(), self.published);
        let clients = self.server.clients() as u64;
        if now == before && clients == self.clients {
            return;
        }
        let counts = &self.state.datagrams;
        for (counter, now, before) in [
            (&counts.received, now.received, before.received),
            (&counts.malformed, now.malformed, before.malformed),
            (&counts.executed, now.executed, before.executed),
            (&counts.duplicate, now.duplicate, before.duplicate),
            (&counts.stale, now.stale, before.stale),
            (&counts.reset, now.reset, before.reset),
            (&counts.retry, now.retry, before.retry),
            (&counts.bad_cookie, now.bad_cookie, before.bad_cookie),
            (&counts.busy, now.busy, before.busy),
            (&counts.reply_gone, now.reply_gone, before.reply_gone),
            (&counts.full, now.full, before.full),
            (&counts.unsent, now.unsent, before.unsent),
        ] {
            add(counter, now - before);
        }
        add(&counts.sent, std::mem::take(&mut self.sent));
        self.published = now;
        let more = clients.wrapping_sub(self.clients);
        self.state.clients.fetch_add(more, Relaxed);
        self.clients = clients;
        self.executor.publish();
    }

    /// The clients of the thread have gone.
    fn end(&mut self) {
        self.state.clients.fetch_sub(self.clients, Relaxed);
        self.clients = 0;
    }
}
