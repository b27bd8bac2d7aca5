//! This side's end of a conversation over datagrams: the messages of a link, delivered one by one.
//!
//! There is no connection, and yet this end can be lost. It is when the server does not know this client any more, or a request has an
//! unknown outcome. A silent server is found out by the time-outs of operations.
#![expect(unsafe_code, reason = "the trait of an end has unsafe functions")]

use super::end::End;
use frrwp::engine::{Event, OpenError};
use frrwp::fabric::datagram::{UdpAddress, UdpPort};
use frrwp::fabric::reliability::{self as reliable, CallError, ClientLimits, Failure, RequestKind, Scope};
use frrwp::fabric::{DatagramPort, Peer};
use frrwp::handshake::{Refusal as NoTransfer, SendError, Tag};
use mrrc::RangeError;
use mrrc::cache::AcquireError;
use rdmakv_proto::datagrams::{About, effect};
use rdmakv_proto::messages::{self, Assembly, Refusal, RemoteSegment, Reply};
use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hasher};
use std::time::Duration;

/// The most bytes of a request: more than any datagrams carry, so that the others are refused and not cut off.
const MOST: usize = 2 << 20;

/// A client of one server, and its socket.
pub(crate) struct Datagrams {
    client: reliable::Client,
    port: UdpPort,
    /// The message that is being put together.
    assembly: Assembly,
    /// The id of each call's message.
    ids: HashMap<u64, u32>,
    /// Replies that were not taken.
    heard: VecDeque<Vec<u8>>,
    events: VecDeque<Event>,
    /// Whether a message found no room.
    is_blocked: bool,
    /// Why it is of no use any more.
    broken: Option<String>,
}

impl Datagrams {
    /// Opens a socket to the server at this address. `call_time` is how long a request may take. Nothing is sent yet.
    pub(crate) fn open(to: &str, within: Duration, call_time: Duration) -> Result<Self, String> {
        let address: UdpAddress = to.parse().map_err(|error: frrwp::fabric::datagram::UdpError| error.to_string())?;
        let limits = ClientLimits {
            call_time: u64::try_from(call_time.as_nanos()).unwrap_or(u64::MAX),
            ..ClientLimits::default()
        };
        let servers = address.resolve(within).map_err(|error| error.to_string())?;
        let server = servers.first().ok_or_else(|| format!("{to}: the host has no address"))?;
        let port = UdpPort::connect(*server, limits.format.datagram).map_err(|error| error.to_string())?;
        Ok(Self {
            client: reliable::Client::new(limits, Peer::from(*server), seed()?),
            port,
            assembly: Assembly::default(),
            ids: HashMap::new(),
            heard: VecDeque::new(),
            events: VecDeque::new(),
            is_blocked: false,
            broken: None,
        })
    }

    fn call(&mut self, message: Vec<u8>) -> Result<(), SendError> {
        let effect = effect(&message);
        let kind = if effect.is_read { RequestKind::Read } else { RequestKind::Mutation };
        let scope = match effect.about {
            About::Key(key) => Scope::Key(hash(key)),
            About::All => Scope::All,
        };
        let id = messages::fragment(&message).map_or(0, |(id, ..)| id);
        match self.client.call(self.port.now(), kind, scope, message) {
            Ok(call) => {
                self.ids.insert(call, id);
                self.send();
            }
            Err(error @ CallError::TooLarge { .. }) => self.refuse_call(id, Refusal::TooLarge, &error.to_string()),
            Err(CallError::Full { .. } | CallError::Closed) => return Err(SendError::Full),
        }
        Ok(())
    }

    /// Answers a request in the place of the server: it was not carried out, or may be carried out again.
    fn refuse_call(&mut self, id: u32, why: Refusal, text: &str) {
        let mut bytes = Vec::new();
        let kind = Reply::Refused { why, text }.encode(&mut bytes);
        let mut message = Vec::new();
        messages::start(&mut message, id, kind, false);
        message.extend(bytes);
        self.hear(message);
    }

    fn hear(&mut self, message: Vec<u8>) {
        self.heard.push_back(message);
        self.events.push_back(Event::Message);
    }

    fn send(&mut self) {
        for (to, bytes) in self.client.outbox().iter() {
            if let Err(error) = self.port.send(to, bytes) {
                self.broken.get_or_insert_with(|| error.to_string());
            }
        }
        self.client.outbox().clear();
    }

    fn ended(&mut self, event: reliable::Event) {
        match event {
            reliable::Event::Reply { call, message } => {
                self.ids.remove(&call);
                self.hear(message);
            }
            reliable::Event::Failed { call, why } => {
                let id = self.ids.remove(&call).unwrap_or(0);
                match why {
                    Failure::TooLarge => self.refuse_call(id, Refusal::TooLarge, "datagrams do not carry the answer"),
                    Failure::TimedOut => self.lose("the server did not answer a request in time"),
                    Failure::Unknown => self.lose("the server may have carried out a request, and cannot tell"),
                    Failure::Closed => {}
                }
            }
        }
    }

    fn lose(&mut self, why: &str) {
        self.broken.get_or_insert_with(|| why.to_owned());
    }
}

/// Returns what only this client knows.
fn seed() -> Result<u64, String> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| format!("getrandom: {error}: see whether this process may call it"))?;
    Ok(u64::from_le_bytes(bytes))
}

/// Returns the number by which the calls on a key are put in order. Keys with the same number only wait for each other.
fn hash(key: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(key);
    hasher.finish()
}

impl End for Datagrams {
    fn say(&mut self, bytes: &[u8]) -> Result<(), SendError> {
        // Looked at before the first fragment, so that the others find room.
        let is_full = self.client.unanswered() >= ClientLimits::default().calls;
        if !self.assembly.is_within() && is_full {
            self.is_blocked = true;
            return Err(SendError::Full);
        }
        let whole = match self.assembly.take(bytes, MOST) {
            Ok(None) => return Ok(()),
            Ok(Some((id, kind, bytes))) => {
                let mut message = Vec::with_capacity(messages::FRAGMENT + bytes.len());
                messages::start(&mut message, id, kind, false);
                message.extend_from_slice(bytes);
                message
            }
            Err(_) => return Err(SendError::TooLong { length: MOST }),
        };
        self.call(whole)
    }

    fn heard(&mut self, into: &mut Vec<u8>) -> bool {
        let message = self.heard.pop_front();
        let is_there = message.is_some();
        *into = message.unwrap_or_default();
        is_there
    }

    unsafe fn fetch(&mut self, _: *mut u8, from: RemoteSegment) -> Result<u64, OpenError> {
        Err(OpenError::TooShort { length: 0, wanted: from.length })
    }

    unsafe fn read_now(&mut self, _: *mut u8, _: RemoteSegment) -> Option<bool> {
        None
    }

    unsafe fn read(&mut self, _: *mut u8, _: usize, _: &[u8]) -> Result<Tag, OpenError> {
        Err(OpenError::Refused(NoTransfer::Disconnected))
    }

    unsafe fn offer(
        &mut self,
        _: *const u8,
        _: usize,
        _: &mut Vec<RemoteSegment>,
    ) -> Result<Box<dyn Any + Send>, AcquireError> {
        Err(AcquireError::Range(RangeError::Empty { start: 0 }))
    }

    fn refuse(&mut self, _: Tag) {}

    fn progress(&mut self) {
        let now = self.port.now();
        self.client.tick(now);
        while let Some((from, bytes)) = self.port.poll() {
            self.client.receive(now, from, bytes);
        }
        self.send();
        while let Some(event) = self.client.next_event() {
            self.ended(event);
        }
        if self.client.counters().resets > 0 {
            self.lose(
                "the server does not know this client any more: it was started again, or there was silence for long",
            );
        }
        if self.is_blocked && self.client.unanswered() < ClientLimits::default().calls {
            self.is_blocked = false;
            self.events.push_back(Event::Writable);
        }
    }

    fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn cork(&mut self, _: bool) {}

    fn wait(&mut self, longest: Duration) {
        if !self.events.is_empty() {
            return;
        }
        self.send();
        let now = self.port.now();
        let longest = now.saturating_add(u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX));
        let until = self.client.timer().map_or(longest, |timer| timer.min(longest));
        self.port.wait(Some(until));
    }

    fn registered(&self) -> u64 {
        0
    }

    fn broken(&self) -> Option<&str> {
        self.broken.as_deref()
    }
}

impl Drop for Datagrams {
    fn drop(&mut self) {
        let now = self.port.now();
        self.client.close(now);
        self.send();
        // Whatever is not sent by now is lost, as a datagram may be.
        self.port.wait(Some(now));
    }
}
