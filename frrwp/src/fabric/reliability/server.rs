//! The server's side: records of clients, requests that come in parts, and which of them are executed.

use super::cookie::Secret;
use super::limits::{KEPT_REPLY, Lack, MILLISECOND, OPEN, Permits, Pool, SECOND, ServerLimits, Shares, UNASKED};
use super::outbox::Outbox;
use super::parts::Assembly;
use super::records::{Passed, Record, Records, bits};
use super::replies::{Kept, Place, Replies, Reply};
use super::sender::{Answered, Sender};
use super::wire::{Body, Datagram, HELLO, List, Part, RESET, RETRY, Refused, flags};
use crate::fabric::traits::Peer;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// Bytes that are counted for what a kept reply takes beside its bytes.
const REPLY_OVERHEAD: usize = 96;
/// Bytes of a reply's reservation.
const RESERVED: usize = KEPT_REPLY + REPLY_OVERHEAD;
/// Bytes that are counted for what an unfinished request takes beside its bytes.
const ASSEMBLY_OVERHEAD: usize = 192;
/// The most parts that a HAVE grants beyond those that are there.
const GRANTED: u16 = 64;
/// The time without a new part or grant after which an unfinished request is dropped. Its client begins anew, in the room of
/// others that were.
const UNFINISHED: u64 = 2 * SECOND;
/// Silence of a client after which its replies make room for those of others.
const SILENT: u64 = 5 * SECOND;
/// How long the reply of a read is kept after its parts were last asked for, and after its execution at the longest.
const READ_REPLY: u64 = SECOND;
/// A read's reply that was asked for this lately is still being sent. Another host's mutation does not take its place.
const FRESH: u64 = 100 * MILLISECOND;
const LONGEST_READ_REPLY: u64 = 30 * SECOND;
/// How long the record of a client stays that has left: longer than a cookie's life.
const LEFT: u64 = 20 * SECOND;
/// Kept replies that are looked at to make room for one.
const LOOKS: usize = 32;
const SWEEP: u64 = 250 * MILLISECOND;

/// Whether a request may change something.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RequestKind {
    /// It changes nothing: it may be executed again.
    Read,
    /// It changes something: it is executed at most once.
    Mutation,
    /// A mutation whose reply may be longer than 1 KiB. Room for a reply of the longest is taken before it is executed.
    LongMutation,
}

impl RequestKind {
    /// Returns whether it may change something.
    pub fn is_mutation(self) -> bool {
        self != Self::Read
    }
}

/// A request that was begun. It goes to [`Server::complete`], once.
#[must_use = "a request that is not completed has no reply, and takes a place of its client for good"]
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Work {
    slot: u32,
    client: u64,
    request: u64,
    kind: RequestKind,
    execution: u32,
    host: u64,
    clock: u32,
    received: u64,
}

impl Work {
    /// Returns the client's id.
    pub fn client(&self) -> u64 {
        self.client
    }

    /// Returns the number of the request.
    pub fn request(&self) -> u64 {
        self.request
    }
}

/// A request to execute.
#[derive(Debug)]
pub struct Request<'a> {
    /// The name under which its reply comes back.
    pub work: Work,
    /// Its bytes.
    pub message: &'a [u8],
}

/// Counts of a server's thread.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
#[non_exhaustive]
pub struct ServerCounters {
    /// Datagrams that came.
    pub received: u64,
    /// Datagrams that make no sense, or whose sum is wrong.
    pub malformed: u64,
    /// Requests that were begun.
    pub executed: u64,
    /// Parts of requests that came again.
    pub duplicate: u64,
    /// Datagrams of requests whose replies are not wanted any more.
    pub stale: u64,
    /// RESETs that were sent.
    pub reset: u64,
    /// RETRYs that were sent.
    pub retry: u64,
    /// HELLOs with a cookie that is not valid.
    pub bad_cookie: u64,
    /// Requests that were refused because there was no room.
    pub busy: u64,
    /// Mutations that were asked again after their reply was dropped.
    pub reply_gone: u64,
    /// Clients that were refused because there was no room.
    pub full: u64,
    /// Datagrams that were not sent, because too many waited for the driver.
    pub unsent: u64,
}

/// A request that is not whole, or whose execution uses its bytes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Incoming {
    /// The number of the request.
    request: u64,
    assembly: Assembly,
    /// Tells assemblies of the same request apart.
    number: u32,
    granted: u16,
    taken: usize,
    /// When a new part came, or more was granted.
    heard: u64,
}

/// Faults that tests inject.
#[cfg(any(test, rdmakv_fault_injection))]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ServerFault {
    /// It forgets that a mutation was executed.
    NoReplies,
    /// It lets the floor fall.
    FloorBack,
    /// It begins a request again that is being executed.
    NoExecuting,
}

/// One thread's side of a server. `R` refers to a value that a reply contains.
#[derive(Clone, Debug)]
pub struct Server<R> {
    limits: ServerLimits,
    secret: Secret,
    incarnation: u64,
    thread: u8,
    classify: fn(&[u8]) -> RequestKind,
    records: Records,
    shares: Shares,
    /// By the key of their place.
    incoming: FxHashMap<u64, Incoming>,
    replies: Replies<R>,
    /// Clients that left, and when.
    leaving: VecDeque<(u64, u64)>,
    retries: Permits,
    resets: Permits,
    executions: u32,
    swept: u64,
    sender: Sender,
    counters: ServerCounters,
    #[cfg(any(test, rdmakv_fault_injection))]
    fault: Option<ServerFault>,
}

impl<R: AsRef<[u8]>> Server<R> {
    /// Returns a server's thread without clients. `classify` tells mutations by their message.
    pub fn new(
        limits: ServerLimits,
        secret: Secret,
        incarnation: u64,
        thread: u8,
        classify: fn(&[u8]) -> RequestKind,
    ) -> Self {
        let limits = ServerLimits { idle: limits.idle.max(60 * SECOND), ..limits };
        Self {
            limits,
            secret,
            incarnation,
            thread,
            classify,
            records: Records::new(),
            shares: Shares::new(&limits),
            incoming: FxHashMap::default(),
            replies: Replies::new(),
            leaving: VecDeque::new(),
            retries: Permits::new(limits.unknown_rate),
            resets: Permits::new(limits.unknown_rate),
            executions: 0,
            swept: 0,
            sender: Sender { format: limits.format, is_pressed: false, outbox: Outbox::default() },
            counters: ServerCounters::default(),
            #[cfg(any(test, rdmakv_fault_injection))]
            fault: None,
        }
    }

    /// Injects a fault.
    #[cfg(any(test, rdmakv_fault_injection))]
    pub fn inject(&mut self, fault: ServerFault) {
        self.fault = Some(fault);
    }

    /// Returns the datagrams to send.
    pub fn outbox(&mut self) -> &mut Outbox {
        &mut self.sender.outbox
    }

    /// Returns the counts.
    pub fn counters(&self) -> ServerCounters {
        ServerCounters { unsent: self.sender.outbox.lost(), ..self.counters }
    }

    /// Returns how many clients are known.
    pub fn clients(&self) -> usize {
        self.records.len()
    }

    /// Returns how many replies are kept.
    pub fn kept_replies(&self) -> usize {
        self.replies.len()
    }

    /// Returns whether nothing is kept for clients but their records.
    #[cfg(test)]
    pub(super) fn has_taken_nothing(&self) -> bool {
        self.shares.has_clients_alone()
    }

    /// Returns how many requests are not whole, or are being executed from several parts.
    pub fn unfinished(&self) -> usize {
        self.incoming.len()
    }

    /// Asks clients to slow down, as long as this is true.
    pub fn set_pressed(&mut self, is_pressed: bool) {
        self.sender.is_pressed = is_pressed;
    }

    /// Returns the driver's word about a client: 0 at first.
    pub fn note(&self, work: &Work) -> u64 {
        self.record_of(work).map_or(0, |record| record.note)
    }

    /// Changes the driver's word about a client.
    pub fn set_note(&mut self, work: &Work, note: u64) {
        if let Some(record) = self.records.get_mut(work.slot).filter(|record| record.id == work.client) {
            record.note = note;
        }
    }

    fn record_of(&self, work: &Work) -> Option<&Record> {
        self.records.get(work.slot).filter(|record| record.id == work.client)
    }

    /// Takes a datagram. Returns the request that is to be executed, if it made one whole.
    pub fn receive<'a>(&'a mut self, now: u64, from: Peer, bytes: &'a [u8]) -> Option<Request<'a>> {
        self.counters.received += 1;
        if now >= self.swept + SWEEP {
            self.sweep(now);
        }
        let Some(datagram) = Datagram::decode(bytes, self.limits.format.check) else {
            self.counters.malformed += 1;
            return None;
        };
        match datagram.body {
            Body::Hello(_) => {
                self.hello(now, from, &datagram);
                return None;
            }
            Body::Part(_) if datagram.flags & flags::REPLY != 0 => return None,
            Body::Part(_) | Body::Want(_) | Body::Ping | Body::Bye => {}
            // Those that only a server sends.
            _ => return None,
        }
        let Some(slot) = self.records.find(datagram.client) else {
            if bytes.len() >= RESET && datagram.body != Body::Bye && self.resets.take(now) {
                self.counters.reset += 1;
                let body = Body::Reset { incarnation: self.incarnation };
                self.send(from, &datagram, body);
            }
            return None;
        };
        let record = self.records.get(slot)?;
        if record.left {
            return None;
        }
        if record.peer != from {
            self.retry(now, from, &datagram, bytes.len());
            return None;
        }
        self.records.touch(slot, now);
        let floor = datagram.request.checked_sub(u64::from(datagram.floor))?;
        self.raise(slot, floor);
        match datagram.body {
            Body::Part(part) => return self.part(now, slot, &datagram, part),
            Body::Want(want) => self.want(now, slot, &datagram, want),
            Body::Ping => {
                let request = self.records.get(slot)?.floor;
                self.send(from, &Datagram { request, ..datagram }, Body::Pong);
            }
            Body::Bye => {
                self.release(slot);
                // Another client takes its place at once.
                let host = self.secret.host(from);
                let is_remembered = self.shares.take(Pool::Left, host, 1);
                if is_remembered {
                    self.shares.give(Pool::Clients, host, 1);
                }
                let record = self.records.get_mut(slot)?;
                (record.left, record.has_place, record.heard) = (true, !is_remembered, now);
                self.leaving.push_back((now + LEFT, datagram.client));
            }
            _ => {}
        }
        None
    }

    /// The address is validated before anything is kept.
    fn hello(&mut self, now: u64, from: Peer, hello: &Datagram<'_>) {
        let Body::Hello(cookie) = hello.body else { return };
        let nonce = hello.request;
        if !self.secret.is_valid(cookie, from, hello.client, nonce, now) {
            self.counters.bad_cookie += u64::from(cookie != super::wire::Cookie::default());
            self.retry(now, from, hello, HELLO);
            return;
        }
        let id = match hello.client {
            0 => self.secret.id(from, nonce, cookie.time, self.thread),
            id => id,
        };
        match self.records.find(id) {
            Some(slot) => {
                let Some(record) = self.records.get(slot).filter(|record| !record.left) else { return };
                if hello.client == 0 && record.peer != from {
                    return;
                }
                self.move_to(slot, from);
                self.records.touch(slot, now);
            }
            None if hello.client != 0 => {
                if self.resets.take(now) {
                    self.counters.reset += 1;
                    self.send(from, hello, Body::Reset { incarnation: self.incarnation });
                }
                return;
            }
            None => {
                if !self.shares.take(Pool::Clients, self.secret.host(from), 1) {
                    self.counters.full += 1;
                    self.send(from, hello, Body::Refused { execution: 0, why: Refused::Full });
                    return;
                }
                self.records.insert(id, from, now);
            }
        }
        let idle = u32::try_from(self.limits.idle / MILLISECOND).unwrap_or(u32::MAX);
        let body = Body::Admit { incarnation: self.incarnation, idle, window: UNASKED };
        self.send(from, &Datagram { client: id, ..*hello }, body);
    }

    /// The client is at another address. What is kept for it becomes that host's share.
    fn move_to(&mut self, slot: u32, peer: Peer) {
        let Some(record) = self.records.get_mut(slot).filter(|record| record.peer != peer) else { return };
        let old = std::mem::replace(&mut record.peer, peer);
        let [from, to] = [old, peer].map(|peer| self.secret.host(peer));
        self.shares.pass(Pool::Clients, from, to, 1);
        self.shares.pass(Pool::Buffers, from, to, record.buffered as usize);
        for request in bits(record.kept).map(|bit| record.floor + bit) {
            let taken = self.replies.get(Place { slot, request }).map_or([0, 0], |kept| kept.taken);
            self.shares.pass(Pool::Replies, from, to, taken[0]);
            self.shares.pass(Pool::References, from, to, taken[1]);
        }
    }

    fn retry(&mut self, now: u64, from: Peer, datagram: &Datagram<'_>, length: usize) {
        if length >= RETRY && self.retries.take(now) {
            self.counters.retry += 1;
            let cookie = self.secret.cookie(from, datagram.client, datagram.request, now);
            self.send(from, datagram, Body::Retry(cookie));
        }
    }

    /// Sends an answer to a datagram that has just come.
    fn send(&mut self, to: Peer, datagram: &Datagram<'_>, body: Body<'_>) {
        self.sender.send(Answered::now(to, datagram), body, &[]);
    }

    fn raise(&mut self, slot: u32, floor: u64) {
        let Some(record) = self.records.get_mut(slot) else { return };
        #[cfg(any(test, rdmakv_fault_injection))]
        if self.fault == Some(ServerFault::FloorBack) {
            record.lower(floor);
        }
        let passed = record.raise(floor);
        self.drop_passed(slot, passed);
    }

    fn drop_passed(&mut self, slot: u32, passed: Passed) {
        for bit in bits(passed.partial) {
            self.drop_incoming(slot, passed.first + bit);
        }
        for bit in bits(passed.kept) {
            self.drop_reply(Place { slot, request: passed.first + bit });
        }
    }

    fn incoming(&self, place: Place) -> Option<&Incoming> {
        self.incoming.get(&place.key()).filter(|incoming| incoming.request == place.request)
    }

    fn incoming_mut(&mut self, place: Place) -> Option<&mut Incoming> {
        self.incoming.get_mut(&place.key()).filter(|incoming| incoming.request == place.request)
    }

    /// Drops a request that is not whole, or whose bytes nothing needs any more.
    fn drop_incoming(&mut self, slot: u32, request: u64) {
        let place = Place { slot, request };
        if self.incoming(place).is_none() {
            return;
        }
        let Some(incoming) = self.incoming.remove(&place.key()) else { return };
        let Some(record) = self.records.get_mut(slot) else { return };
        record.buffered -= incoming.taken as u32;
        if let Some(bit) = record.bit(request) {
            record.partial &= !bit;
        }
        let host = self.secret.host(record.peer);
        self.shares.give(Pool::Buffers, host, incoming.taken);
    }

    fn drop_reply(&mut self, place: Place) {
        let Some(kept) = self.replies.remove(place) else { return };
        let Some(record) = self.records.get_mut(place.slot) else { return };
        if let Some(bit) = record.bit(place.request) {
            record.kept &= !bit;
        }
        let host = self.secret.host(record.peer);
        self.shares.give(Pool::Replies, host, kept.taken[0]);
        self.shares.give(Pool::References, host, kept.taken[1]);
    }

    /// Drops all that is kept for a client but its record.
    fn release(&mut self, slot: u32) {
        let Some(record) = self.records.get(slot) else { return };
        self.drop_passed(slot, Passed { first: record.floor, partial: record.partial, kept: record.kept });
    }

    fn part<'a>(&'a mut self, now: u64, slot: u32, datagram: &Datagram<'_>, part: Part<'a>) -> Option<Request<'a>> {
        let record = self.records.get(slot)?;
        let (peer, request) = (record.peer, datagram.request);
        let Some(bit) = record.bit(request) else {
            self.counters.stale += 1;
            return None;
        };
        if record.done & bit != 0 {
            self.counters.duplicate += 1;
            self.repeat(peer, datagram, Place { slot, request });
            return None;
        }
        let executing = record.executing & bit != 0;
        #[cfg(any(test, rdmakv_fault_injection))]
        let executing = executing && self.fault != Some(ServerFault::NoExecuting);
        if executing {
            self.counters.duplicate += 1;
            return None;
        }
        if part.parts == 1 {
            let work = self.begin(now, slot, datagram, (self.classify)(part.bytes))?;
            return Some(Request { work, message: part.bytes });
        }
        if !self.collect(now, slot, datagram, &part) {
            return None;
        }
        let place = Place { slot, request };
        let kind = (self.classify)(self.incoming(place)?.assembly.bytes());
        let Some(work) = self.begin(now, slot, datagram, kind) else {
            self.drop_incoming(slot, request);
            return None;
        };
        Some(Request { work, message: self.incoming(place)?.assembly.bytes() })
    }

    /// Sends the reply of a mutation again.
    fn repeat(&mut self, peer: Peer, datagram: &Datagram<'_>, place: Place) {
        let Some(kept) = self.replies.get(place) else {
            self.counters.reply_gone += 1;
            self.send(peer, datagram, Body::Refused { execution: 0, why: Refused::ReplyGone });
            return;
        };
        let parts = kept.reply.parts(self.limits.format.fragment());
        let answered = Answered::now(peer, datagram);
        self.sender.send_parts(answered, kept.execution, &kept.reply, 0..parts.min(UNASKED));
    }

    /// Begins a request. A mutation has room for its reply first.
    fn begin(&mut self, now: u64, slot: u32, datagram: &Datagram<'_>, kind: RequestKind) -> Option<Work> {
        let record = self.records.get(slot)?;
        let (peer, is_oldest) = (record.peer, record.floor == datagram.request);
        let host = self.secret.host(peer);
        let runs_many = u64::from(record.running) >= OPEN;
        if runs_many || !self.take_reply(now, host, kind, is_oldest) {
            self.counters.busy += 1;
            self.send(peer, datagram, Body::Refused { execution: 0, why: Refused::Busy });
            return None;
        }
        let record = self.records.get_mut(slot)?;
        record.executing |= record.bit(datagram.request)?;
        record.running += 1;
        self.counters.executed += 1;
        Some(Work {
            slot,
            client: datagram.client,
            request: datagram.request,
            kind,
            execution: self.next_execution(),
            host,
            clock: datagram.clock,
            received: now,
        })
    }

    fn next_execution(&mut self) -> u32 {
        self.executions = self.executions.checked_add(1).unwrap_or(1);
        self.executions
    }

    /// Returns the bytes that are taken of each pool before a request is executed: of replies, and of references.
    fn reservation(&self, kind: RequestKind) -> [usize; 2] {
        match kind {
            RequestKind::Read => [0, 0],
            RequestKind::Mutation => [RESERVED, 0],
            RequestKind::LongMutation => [RESERVED, super::wire::MAX_MESSAGE.min(self.limits.references / 2)],
        }
    }

    /// Takes room for the reply of a mutation, if need be of replies to reads, and to clients that are silent.
    ///
    /// The oldest request of a client may have more than its host's share of references. Its floor passes the replies that it has only after
    /// that request, so it could wait for itself.
    fn take_reply(&mut self, now: u64, host: u64, kind: RequestKind, is_oldest: bool) -> bool {
        let [reply, long] = self.reservation(kind);
        if !self.make_room(now, host, 0, |shares| shares.try_take(Pool::Replies, host, reply)) {
            return false;
        }
        let has_room = self.make_room(now, host, 1, |shares| shares.take_reference(host, long, is_oldest));
        if !has_room {
            self.shares.give(Pool::Replies, host, reply);
        }
        has_room
    }

    /// Takes something of a pool (replies 0, references 1) for a host, if need be in the place of replies that are kept. Those of reads go first,
    /// as a read can be executed again. If the host has its share, only its own go. Those of others that are still being sent stay.
    fn make_room(
        &mut self,
        now: u64,
        host: u64,
        pool: usize,
        mut take: impl FnMut(&mut Shares) -> Result<(), Lack>,
    ) -> bool {
        let mut spared = 0;
        while spared < LOOKS {
            let Err(lack) = take(&mut self.shares) else { return true };
            // All of them would be too little.
            if matches!(lack, Lack::Room(short) if short > self.replies.of_reads()[pool]) {
                break;
            }
            let Some(place) = self.replies.next_read() else { break };
            let is_own = || self.records.get(place.slot).is_some_and(|record| self.secret.host(record.peer) == host);
            let is_fresh = || self.replies.ends(place).is_some_and(|ends| ends + FRESH > now + READ_REPLY);
            if lack != Lack::Share && !is_fresh() || is_own() {
                self.drop_reply(place);
            } else {
                self.replies.spare_read(place);
                spared += 1;
            }
        }
        for _ in 0..LOOKS {
            if take(&mut self.shares).is_ok() {
                return true;
            }
            let Some(place) = self.replies.next_mutation() else { continue };
            if self.records.get(place.slot).is_some_and(|record| record.heard + SILENT <= now) {
                self.drop_reply(place);
            }
        }
        false
    }

    fn take_buffer(&mut self, slot: u32, bytes: usize) -> bool {
        let Some(record) = self.records.get_mut(slot) else { return false };
        let host = self.secret.host(record.peer);
        let has_room = record.buffered as usize + bytes <= self.limits.buffers / 8;
        if !has_room || !self.shares.take(Pool::Buffers, host, bytes) {
            return false;
        }
        record.buffered += bytes as u32;
        true
    }

    /// Takes a part of a longer request. Returns whether that is whole now.
    fn collect(&mut self, now: u64, slot: u32, datagram: &Datagram<'_>, part: &Part<'_>) -> bool {
        let place = Place { slot, request: datagram.request };
        let answer_now = datagram.flags & flags::ANSWER_NOW != 0;
        if self.incoming(place).is_none() && !self.open_incoming(now, place, datagram, part) {
            return false;
        }
        let Some(incoming) = self.incoming_mut(place) else { return false };
        let (granted, parts, stride) = (incoming.granted, incoming.assembly.parts(), incoming.assembly.stride());
        let mut is_new = false;
        if part.part < granted {
            is_new = match incoming.assembly.place(part) {
                None => return false,
                Some(is_new) => is_new,
            };
            if is_new {
                incoming.heard = now;
            }
        }
        let is_whole = incoming.assembly.is_whole();
        let (count, first_missing) = (incoming.assembly.have().count(), incoming.assembly.have().first_missing());
        self.counters.duplicate += u64::from(part.part < granted && !is_new);
        if !is_whole && !answer_now && count % UNASKED != 0 {
            return false;
        }
        let upto = parts.min(first_missing.saturating_add(GRANTED));
        for upto in [upto, upto.min(granted.saturating_add(UNASKED))] {
            let more = usize::from(upto.saturating_sub(granted)) * stride;
            if upto > granted && self.take_buffer(slot, more) {
                if let Some(incoming) = self.incoming_mut(place) {
                    incoming.granted = upto;
                    incoming.taken += more;
                    incoming.heard = now;
                }
                break;
            }
        }
        let (Some(incoming), Some(record)) = (self.incoming(place), self.records.get(slot)) else { return false };
        let (list, peer) = (incoming.assembly.list(incoming.granted, incoming.number), record.peer);
        self.send(peer, datagram, Body::Have(list));
        is_whole
    }

    fn open_incoming(&mut self, now: u64, place: Place, datagram: &Datagram<'_>, part: &Part<'_>) -> bool {
        let Some(assembly) = Assembly::of(part) else { return false };
        let granted = part.parts.min(UNASKED);
        let taken = ASSEMBLY_OVERHEAD + usize::from(part.parts / 4) + usize::from(granted) * assembly.stride();
        let Some(peer) = self.records.get(place.slot).map(|record| record.peer) else { return false };
        if !self.take_buffer(place.slot, taken) {
            self.counters.busy += 1;
            self.send(peer, datagram, Body::Refused { execution: 0, why: Refused::Busy });
            return false;
        }
        let (number, request) = (self.next_execution(), place.request);
        self.incoming.insert(place.key(), Incoming { request, assembly, number, granted, taken, heard: now });
        if let Some(record) = self.records.get_mut(place.slot) {
            record.partial |= record.bit(place.request).unwrap_or(0);
        }
        true
    }

    /// Sends parts of a reply that the client lacks.
    fn want(&mut self, now: u64, slot: u32, datagram: &Datagram<'_>, want: List) {
        let place = Place { slot, request: datagram.request };
        let Some(record) = self.records.get(slot) else { return };
        let (peer, Some(bit)) = (record.peer, record.bit(place.request)) else {
            self.counters.stale += 1;
            return;
        };
        self.replies.extend(place, now + READ_REPLY);
        match self.replies.get(place).filter(|kept| kept.execution == want.execution) {
            Some(kept) => {
                let upto = want.upto.min(kept.reply.parts(self.limits.format.fragment()));
                let lacking = (want.next..upto).filter(|part| !want.has(*part)).take(usize::from(GRANTED));
                self.sender.send_parts(Answered::now(peer, datagram), kept.execution, &kept.reply, lacking);
            }
            None if record.executing & bit != 0 => {}
            None => {
                let body = Body::Refused { execution: want.execution, why: Refused::ReplyGone };
                self.send(peer, datagram, body);
            }
        }
    }

    /// Takes the reply of a request: `head`, then the bytes that `body` refers to.
    pub fn complete(&mut self, now: u64, work: Work, head: &[u8], body: Option<R>) {
        let Work { slot, client, request, kind, execution, host, clock, received } = work;
        let is_mutation = kind.is_mutation();
        let reply = Reply { head, body };
        let taken = [head.len() + REPLY_OVERHEAD, reply.body_len()];
        let reserved = self.reservation(kind);
        let mut record = self.records.get_mut(slot).filter(|record| record.id == client);
        if let Some(record) = &mut record {
            record.running = record.running.saturating_sub(1);
        }
        let current =
            record.filter(|record| !record.left).and_then(|record| record.bit(request).map(|bit| (record, bit)));
        let Some((record, bit)) = current else {
            // The client has left, or needs no answer any more.
            self.shares.give(Pool::Replies, host, reserved[0]);
            self.shares.give(Pool::References, host, reserved[1]);
            return;
        };
        record.executing &= !bit;
        if is_mutation {
            record.done |= bit;
        }
        #[cfg(any(test, rdmakv_fault_injection))]
        if self.fault == Some(ServerFault::NoReplies) {
            record.done &= !bit;
        }
        let (peer, is_partial) = (record.peer, record.partial & bit != 0);
        let answered = Answered { to: peer, client, request, clock, held: now.saturating_sub(received) };
        let is_short = reply.len() <= super::wire::MAX_MESSAGE;
        let parts = reply.parts(self.limits.format.fragment());
        let own = self.secret.host(peer);
        let may_keep = is_short && if is_mutation { head.len() <= KEPT_REPLY } else { parts > 1 };
        let keep = self.keep_room([host, own], reserved, if may_keep { taken } else { [0, 0] }) && may_keep;
        if !is_short {
            self.sender.send(answered, Body::Refused { execution: 0, why: Refused::TooLarge }, &[]);
        } else if !is_mutation && !keep && parts > UNASKED {
            // The client could not ask for the rest. It has the read executed again after a while.
            self.counters.busy += 1;
            self.sender.send(answered, Body::Refused { execution: 0, why: Refused::Busy }, &[]);
        } else {
            self.sender.send_parts(answered, execution, &reply, 0..parts.min(UNASKED));
        }
        if is_partial {
            self.drop_incoming(slot, request);
        }
        if !keep {
            return;
        }
        let place = Place { slot, request };
        self.drop_reply(place);
        let ends = (!is_mutation).then_some([now + READ_REPLY, now + LONGEST_READ_REPLY]);
        let kept = Kept { execution, reply: Reply { head: head.into(), body: reply.body }, taken, ends };
        self.replies.keep(place, kept);
        if let Some(record) = self.records.get_mut(slot) {
            record.kept |= bit;
        }
    }

    /// Makes what was reserved as much as is `taken`, for the host where the client is now. Returns whether there is room; else nothing is taken.
    fn keep_room(&mut self, [host, own]: [u64; 2], reserved: [usize; 2], taken: [usize; 2]) -> bool {
        let pools = [Pool::Replies, Pool::References];
        for (at, pool) in pools.into_iter().enumerate() {
            let kept = reserved[at].min(taken[at]);
            self.shares.give(pool, host, reserved[at] - kept);
            self.shares.pass(pool, host, own, kept);
        }
        let more = [0, 1].map(|at| taken[at].saturating_sub(reserved[at]));
        let has_replies = self.shares.take(Pool::Replies, own, more[0]);
        let has_room = has_replies && self.shares.take(Pool::References, own, more[1]);
        if !has_room {
            self.shares.give(Pool::Replies, own, taken[0] - if has_replies { 0 } else { more[0] });
            self.shares.give(Pool::References, own, taken[1] - more[1]);
        }
        has_room
    }

    /// Drops what time ends. [`receive`](Self::receive) does so, too; call this where nothing comes for a second.
    pub fn sweep(&mut self, now: u64) {
        self.swept = now;
        while let Some((slot, record)) = self.records.oldest() {
            if record.heard + self.limits.idle > now {
                break;
            }
            self.forget(slot);
        }
        while let Some(&(ends, client)) = self.leaving.front() {
            if ends > now {
                break;
            }
            self.leaving.pop_front();
            if let Some(slot) = self.records.find(client) {
                self.forget(slot);
            }
        }
        while let Some(place) = self.replies.next_ended(now) {
            self.drop_reply(place);
        }
        let silent: Vec<(u32, u64)> = self
            .incoming
            .iter()
            .filter(|(_, incoming)| incoming.heard + UNFINISHED <= now && !incoming.assembly.is_whole())
            .map(|(key, incoming)| (Place::slot_of(*key), incoming.request))
            .collect();
        for (slot, request) in silent {
            self.drop_incoming(slot, request);
        }
    }

    fn forget(&mut self, slot: u32) {
        self.release(slot);
        if let Some(record) = self.records.get(slot) {
            let pool = if record.has_place { Pool::Clients } else { Pool::Left };
            self.shares.give(pool, self.secret.host(record.peer), 1);
        }
        self.records.remove(slot);
    }
}

/// Of all that decides what happens next. Counts do not.
impl<R: std::hash::Hash> std::hash::Hash for Server<R> {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        let mut incoming: Vec<_> = self.incoming.iter().collect();
        incoming.sort_by_key(|(key, _)| **key);
        (&self.records, &self.shares, incoming, &self.replies, &self.sender).hash(state);
        (self.executions, self.incarnation).hash(state);
    }
}
