//! This side's end of a conversation over datagrams: the messages of a link, delivered one by one.
//!
//! There is no connection, and yet this end can be lost. It is when the server does not know this client any more. A silent server is found
//! out by the time-outs of operations. A request of unknown outcome ends alone.
#![expect(unsafe_code, reason = "the trait of an end has unsafe functions")]

use super::end::End;
use frrwp::engine::{Event, OpenError};
use frrwp::fabric::datagram::{UdpAddress, UdpPort};
use frrwp::fabric::reliability::wire::{Body, Cookie, Datagram};
use frrwp::fabric::reliability::{self as reliable, CallError, ClientLimits, Failure, RequestKind, Scope};
use frrwp::fabric::{DatagramPort, Peer};
use frrwp::handshake::{Refusal as NoTransfer, SendError, Tag};
use mrrc::RangeError;
use mrrc::cache::AcquireError;
use rdmakv_proto::datagrams::{About, effect, take_token};
use rdmakv_proto::messages::{self, Assembly, Refusal, RemoteSegment, Reply};
use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hasher};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// The most bytes of a request: more than any datagrams carry, so that the others are refused and not cut off.
const MOST: usize = 2 << 20;

/// Silence after which the server may have forgotten this client, in nanoseconds: half of the time that it takes. A request that is sent then
/// could have an unknown outcome, so a new client is made first.
const SILENCE: u64 = 300_000_000_000;

/// The wait before a host's addresses are asked again; it doubles. And that for an answer of each.
const ASK_AGAIN: Duration = Duration::from_millis(50);
const LOOK: u64 = 1_000_000;

/// Datagrams that are taken at a time: more than a socket keeps. A flood of strangers' holds up no time-outs.
const TURN: usize = 8192;

/// The id of a greeting, and of a login.
const GREETING: u32 = 0;

/// The shortest time-out of a datagram over a device, in nanoseconds.
#[cfg(any(feature = "verbs", feature = "verbs-linked"))]
const DEVICE_TIMEOUT: u64 = 1_000_000;

/// A client of one server, and its socket or queue pair.
pub(crate) struct Datagrams {
    client: reliable::Client,
    port: Box<dyn DatagramPort + Send>,
    /// The message that is being put together.
    assembly: Assembly,
    /// The id of each call's message.
    ids: HashMap<u64, u32>,
    /// Replies that were not taken.
    heard: VecDeque<Vec<u8>>,
    events: VecDeque<Event>,
    /// The ids of requests that ended without an answer, and whether the server may have carried them out.
    unanswered: Vec<(u32, bool)>,
    /// The last token that a reply had.
    token: Option<u64>,
    /// Silence after which no request is taken.
    silence: u64,
    /// Whether a message found no room.
    is_blocked: bool,
    /// Why it is of no use any more.
    broken: Option<String>,
}

impl Datagrams {
    /// Opens a socket to the server at this address. `call_time` is how long a request may take. Nothing is sent yet.
    pub(crate) fn open(to: &str, within: Duration, call_time: Duration) -> Result<Self, String> {
        let address: UdpAddress = to.parse().map_err(|error: frrwp::fabric::datagram::UdpError| error.to_string())?;
        let limits = limits(call_time);
        let servers = address.resolve(within).map_err(|error| error.to_string())?;
        let server = *servers.first().ok_or_else(|| format!("{to}: the host has no address"))?;
        let answering = if servers.len() > 1 { first_to_answer(&servers, limits, within)? } else { None };
        let server = answering.unwrap_or(server);
        let port = UdpPort::connect(server, limits.format.datagram).map_err(|error| error.to_string())?;
        Self::of(limits, Box::new(port), Peer::from(server))
    }

    /// Asks the server at this address for its queue pair, and makes one of this side's.
    #[cfg(any(feature = "verbs", feature = "verbs-linked"))]
    pub(crate) fn open_device(to: &str, within: Duration, call_time: Duration) -> Result<Self, String> {
        use frrwp::fabric::verbs::{VerbsError, VerbsUdAddress, VerbsUdPort};
        let address: VerbsUdAddress = to.parse().map_err(|error: VerbsError| error.to_string())?;
        let (port, server) = VerbsUdPort::connect(&address, within).map_err(|error| error.to_string())?;
        // Devices check what they carry by themselves.
        let format = reliable::Format { datagram: port.part(), check: false };
        let limits = ClientLimits { format, least_timeout: DEVICE_TIMEOUT, ..limits(call_time) };
        Self::of(limits, Box::new(port), server)
    }

    fn of(limits: ClientLimits, port: Box<dyn DatagramPort + Send>, server: Peer) -> Result<Self, String> {
        let client = with_fault(reliable::Client::new(limits, server, seed()?));
        Ok(Self {
            client,
            port,
            assembly: Assembly::default(),
            ids: HashMap::new(),
            heard: VecDeque::new(),
            events: VecDeque::new(),
            unanswered: Vec::new(),
            token: None,
            silence: SILENCE,
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

    /// Returns the call of the message of this id, if it has not ended.
    fn call_of(&self, id: u32) -> Option<u64> {
        self.ids.iter().find(|(_, of)| **of == id).map(|(&call, _)| call)
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
            reliable::Event::Reply { call, mut message } => {
                self.ids.remove(&call);
                self.token = take_token(&mut message).or(self.token);
                self.hear(message);
            }
            reliable::Event::Failed { call, why } => {
                // One that was cancelled has no id any more.
                let Some(id) = self.ids.remove(&call) else { return };
                match why {
                    Failure::TooLarge => self.refuse_call(id, Refusal::TooLarge, "datagrams do not carry the answer"),
                    Failure::TimedOut if id == GREETING => self.lose("the server did not answer a greeting in time"),
                    Failure::TimedOut => self.unanswered.push((id, false)),
                    Failure::Unknown => self.unanswered.push((id, true)),
                    Failure::Full => self.lose("the server has no room for another client: see its --datagram-clients"),
                    Failure::Closed => {}
                }
            }
        }
    }

    fn lose(&mut self, why: &str) {
        self.broken.get_or_insert_with(|| why.to_owned());
    }
}

fn limits(call_time: Duration) -> ClientLimits {
    let call_time = u64::try_from(call_time.as_nanos()).unwrap_or(u64::MAX);
    ClientLimits { call_time, ..ClientLimits::default() }
}

/// Says HELLO to all addresses of a host, until one answers. Returns that one. A server keeps nothing of this.
fn first_to_answer(
    servers: &[SocketAddr],
    limits: ClientLimits,
    within: Duration,
) -> Result<Option<SocketAddr>, String> {
    // Addresses of a family that this machine does not have are left out.
    let open = |server: &SocketAddr| Some((*server, UdpPort::connect(*server, limits.format.datagram).ok()?));
    let mut asked: Vec<(SocketAddr, UdpPort)> = servers.iter().filter_map(open).collect();
    let mut hello = Vec::new();
    let (nonce, body) = (seed()?, Body::Hello(Cookie::default()));
    Datagram { client: 0, request: nonce, floor: 0, flags: 0, clock: 0, echo: 0, body }.encode(
        &[],
        limits.format.check,
        &mut hello,
    );
    let (end, mut wait, mut next) = (Instant::now() + within, ASK_AGAIN, Instant::now());
    while Instant::now() < end && !asked.is_empty() {
        if Instant::now() >= next {
            (next, wait) = (Instant::now() + wait, wait * 2);
            // One that cannot be reached now may be reached later.
            asked.iter_mut().for_each(|(server, port)| drop(port.send(Peer::from(*server), &hello)));
        }
        for (server, port) in &mut asked {
            port.wait(Some(port.now() + LOOK));
            while let Some((from, bytes)) = port.poll() {
                let answer = Datagram::decode(bytes, limits.format.check);
                if from == Peer::from(*server) && answer.is_some_and(|answer| answer.request == nonce) {
                    return Ok(Some(*server));
                }
            }
        }
    }
    Ok(None)
}

/// Puts the fault in that was chosen.
#[cfg(rdmakv_fault_injection)]
fn with_fault(mut client: reliable::Client) -> reliable::Client {
    use rdmakv_proto::faults::{Fault, injected};
    if injected(Fault::MixedExecutions) {
        client.mix_executions();
    }
    client
}

#[cfg(not(rdmakv_fault_injection))]
fn with_fault(client: reliable::Client) -> reliable::Client {
    client
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
        // What others send does not show that the server is there.
        let heard = self.client.heard();
        if heard > 0 && self.port.now().saturating_sub(heard) > self.silence {
            return Err(SendError::Disconnected);
        }
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

    unsafe fn put(&mut self, _: *const u8, to: RemoteSegment) -> Result<u64, OpenError> {
        Err(OpenError::TooShort { length: 0, wanted: to.length })
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
        // First what has come: a client that was not run for a while has no time-outs by that.
        let now = self.port.now();
        for _ in 0..TURN {
            let Some((from, bytes)) = self.port.poll() else { break };
            self.client.receive(now, from, bytes);
        }
        self.client.tick(now);
        self.send();
        if self.port.has_ended() {
            self.lose("the device is going away");
        }
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
        if !self.events.is_empty() || !self.unanswered.is_empty() {
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

    fn take_unanswered(&mut self) -> Option<(u32, bool)> {
        self.unanswered.pop()
    }

    fn take_token(&mut self) -> Option<u64> {
        self.token.take()
    }

    fn cancel(&mut self, id: u32) -> bool {
        let Some(call) = self.call_of(id) else { return false };
        self.ids.remove(&call);
        self.client.cancel(self.port.now(), call);
        self.send();
        true
    }

    fn was_sent(&self, id: u32) -> bool {
        self.call_of(id).is_none_or(|call| self.client.was_sent(call))
    }

    fn is_settled(&self) -> bool {
        self.client.is_settled()
    }

    fn give_up(&mut self) -> bool {
        self.ids.clear();
        self.client.cancel_all(self.port.now());
        self.send();
        // What they would wake is gone.
        (self.events, self.heard, self.unanswered) = (VecDeque::new(), VecDeque::new(), Vec::new());
        self.is_blocked = false;
        !self.is_settled()
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

#[cfg(test)]
mod tests {
    use super::*;
    use frrwp::fabric::reliability::{Secret, Server, ServerLimits};
    use rdmakv_proto::messages::Request;

    /// A server that answers each request with NONE.
    fn serve(port: &mut UdpPort, server: &mut Server<Vec<u8>>) {
        port.wait(Some(port.now() + 10_000_000));
        let now = port.now();
        while let Some((from, bytes)) = port.poll() {
            let Some(request) = server.receive(now, from, bytes) else { continue };
            let (id, ..) = messages::fragment(request.message).unwrap();
            let mut reply = Vec::new();
            messages::start(&mut reply, id, messages::Kind::None, false);
            let work = request.work;
            server.complete(now, work, &reply, None);
        }
        server.outbox().iter().for_each(|(to, bytes)| port.send(to, bytes).unwrap());
        server.outbox().clear();
        port.wait(Some(now));
    }

    fn get(id: u32) -> Vec<u8> {
        let (mut message, mut bytes) = (Vec::new(), Vec::new());
        let kind = Request::get(&mut bytes, false, b"k");
        messages::start(&mut message, id, kind, false);
        message.extend(bytes);
        message
    }

    #[test]
    fn long_silence_ends_it_before_a_request() {
        let mut port = UdpPort::listen("127.0.0.1:0".parse().unwrap(), 1, 1400).unwrap().remove(0);
        let to = format!("udp:{}", port.local_address().unwrap());
        let mut server = Server::new(ServerLimits::default(), Secret::new([1; 16]), 1, 0, |_| RequestKind::Read);
        let mut end = Datagrams::open(&to, Duration::from_secs(9), Duration::from_secs(60)).unwrap();
        end.silence = 0;
        end.say(&get(7)).unwrap();
        let mut reply = Vec::new();
        while !end.heard(&mut reply) {
            serve(&mut port, &mut server);
            end.progress();
        }
        assert_eq!(messages::fragment(&reply).unwrap().0, 7);
        let at = end.port.now();
        while end.port.now() == at {}
        assert_eq!(end.say(&get(8)), Err(SendError::Disconnected), "nothing of it is sent");
        assert_eq!(end.client.unanswered(), 0);
        end.silence = SILENCE;
        end.say(&get(9)).unwrap();
    }

    #[test]
    fn answers_that_wait_are_no_time_outs() {
        let mut port = UdpPort::listen("127.0.0.1:0".parse().unwrap(), 1, 1400).unwrap().remove(0);
        let to = format!("udp:{}", port.local_address().unwrap());
        let mut server = Server::new(ServerLimits::default(), Secret::new([1; 16]), 1, 0, |_| RequestKind::Read);
        let mut end = Datagrams::open(&to, Duration::from_secs(9), Duration::from_secs(60)).unwrap();
        let mut reply = Vec::new();
        end.say(&get(1)).unwrap();
        while !end.heard(&mut reply) {
            serve(&mut port, &mut server);
            end.progress();
        }
        let before = end.client.counters();
        while end.next_event().is_some() {}
        end.say(&get(2)).unwrap();
        end.wait(Duration::ZERO);
        let executed = server.counters().executed;
        while server.counters().executed == executed {
            serve(&mut port, &mut server);
        }
        // The answer is in the socket, and the client runs only after its time-out.
        let due = end.client.timer().unwrap();
        while end.port.now() < due {
            std::thread::sleep(Duration::from_millis(1));
        }
        end.progress();
        assert!(end.heard(&mut reply));
        let after = end.client.counters();
        assert_eq!((after.timeouts, after.probes), (before.timeouts, before.probes));
    }

    #[test]
    fn a_request_of_unknown_outcome_ends_alone() {
        use reliable::wire::{Refused, flags};
        let mut port = UdpPort::listen("127.0.0.1:0".parse().unwrap(), 1, 1400).unwrap().remove(0);
        let to = format!("udp:{}", port.local_address().unwrap());
        let mut server = Server::new(ServerLimits::default(), Secret::new([1; 16]), 1, 0, |_| RequestKind::Read);
        let mut end = Datagrams::open(&to, Duration::from_secs(9), Duration::from_secs(60)).unwrap();
        end.say(&get(7)).unwrap();
        end.say(&delete(8)).unwrap();
        let (mut reply, mut unknown) = (Vec::new(), None);
        while unknown.is_none() {
            port.wait(Some(port.now() + 10_000_000));
            let mut gone = None;
            while let Some((from, bytes)) = port.poll() {
                let datagram = Datagram::decode(bytes, true).unwrap();
                if matches!(datagram.body, Body::Part(part) if !effect(part.bytes).is_read) {
                    let body = Body::Refused { execution: 0, why: Refused::ReplyGone };
                    let mut answer = Vec::new();
                    Datagram { flags: flags::REPLY, body, ..datagram }.encode(&[], true, &mut answer);
                    gone = Some((from, answer));
                } else if let Some(request) = server.receive(0, from, bytes) {
                    let (mut reply, work) = (Vec::new(), request.work);
                    messages::start(&mut reply, 7, messages::Kind::None, false);
                    server.complete(0, work, &reply, None);
                }
            }
            server.outbox().iter().for_each(|(to, bytes)| port.send(to, bytes).unwrap());
            server.outbox().clear();
            gone.inspect(|(to, bytes)| port.send(*to, bytes).unwrap());
            port.wait(Some(port.now()));
            end.progress();
            unknown = end.take_unanswered();
        }
        assert_eq!((unknown, end.broken()), (Some((8, true)), None));
        assert_eq!(end.take_unanswered(), None);
        assert!(end.heard(&mut reply) && messages::fragment(&reply).unwrap().0 == 7, "the other has its answer");
        end.say(&get(9)).unwrap();
        while !end.heard(&mut reply) {
            serve(&mut port, &mut server);
            end.progress();
        }
        assert_eq!(messages::fragment(&reply).unwrap().0, 9);
    }

    /// Receives a HELLO, and returns the end of its request.
    fn greet(end: &mut Datagrams, port: &mut UdpPort, server: &mut Server<Vec<u8>>) {
        let mut reply = Vec::new();
        end.say(&get(7)).unwrap();
        while !end.heard(&mut reply) {
            serve(port, server);
            end.progress();
        }
        while end.next_event().is_some() {}
    }

    #[test]
    fn a_cancelled_request_ends_alone() {
        let mut port = UdpPort::listen("127.0.0.1:0".parse().unwrap(), 1, 1400).unwrap().remove(0);
        let to = format!("udp:{}", port.local_address().unwrap());
        let mut server = Server::new(ServerLimits::default(), Secret::new([1; 16]), 1, 0, |_| RequestKind::Mutation);
        let mut end = Datagrams::open(&to, Duration::from_secs(9), Duration::from_secs(60)).unwrap();
        greet(&mut end, &mut port, &mut server);
        end.say(&delete(8)).unwrap();
        assert!(end.cancel(8) && !end.cancel(8));
        assert!(!end.is_settled(), "the server may carry it out still");
        end.say(&get(9)).unwrap();
        let mut reply = Vec::new();
        while !end.heard(&mut reply) {
            serve(&mut port, &mut server);
            end.progress();
        }
        assert_eq!(messages::fragment(&reply).unwrap().0, 9);
        assert_eq!((end.take_unanswered(), end.broken()), (None, None), "its end was told by the caller");
    }

    fn delete(id: u32) -> Vec<u8> {
        let (mut delete, mut bytes) = (Vec::new(), Vec::new());
        let kind = Request::run(&mut bytes, false, b"k", &[b"md k\r\n"]);
        messages::start(&mut delete, id, kind, false);
        delete.extend(bytes);
        delete
    }

    #[test]
    fn a_reset_leaves_unsent_requests_certain() {
        let mut port = UdpPort::listen("127.0.0.1:0".parse().unwrap(), 1, 1400).unwrap().remove(0);
        let to = format!("udp:{}", port.local_address().unwrap());
        let server = |run| {
            Server::new(ServerLimits::default(), Secret::new([run; 16]), u64::from(run), 0, |_| RequestKind::Mutation)
        };
        let mut first = server(1);
        let mut end = Datagrams::open(&to, Duration::from_secs(9), Duration::from_secs(60)).unwrap();
        greet(&mut end, &mut port, &mut first);
        // The second one waits for the first one, which is of the same key.
        end.say(&delete(8)).unwrap();
        end.say(&delete(9)).unwrap();
        assert!(end.was_sent(8) && !end.was_sent(9));
        let mut second = server(2);
        while end.broken().is_none() {
            serve(&mut port, &mut second);
            end.progress();
        }
        assert_eq!((end.take_unanswered(), end.take_unanswered()), (Some((8, true)), None));
        assert!(!end.was_sent(9));
        assert!(!end.give_up(), "no server knows this client, so nothing is carried out");
        assert_eq!((end.client.unanswered(), second.counters().executed), (0, 0));
    }

    /// A port to which nonsense comes without end.
    struct Flooded;

    impl DatagramPort for Flooded {
        fn part(&self) -> usize {
            1400
        }

        fn now(&self) -> u64 {
            1
        }

        fn send(&mut self, _: Peer, _: &[u8]) -> std::io::Result<()> {
            Ok(())
        }

        fn poll(&mut self) -> Option<(Peer, &[u8])> {
            Some((Peer::from(SocketAddr::from(([10, 0, 0, 1], 7))), b"nonsense"))
        }

        fn wait(&mut self, _: Option<u64>) {}
    }

    #[test]
    fn floods_hold_up_no_time_outs() {
        let server = Peer::from(SocketAddr::from(([10, 0, 0, 2], 7)));
        let mut end = Datagrams::of(limits(Duration::from_secs(60)), Box::new(Flooded), server).unwrap();
        end.progress();
        assert_eq!(end.client.counters().malformed, TURN as u64);
    }

    #[test]
    fn others_datagrams_are_no_sign_of_the_server() {
        let mut port = UdpPort::listen("127.0.0.1:0".parse().unwrap(), 1, 1400).unwrap().remove(0);
        let to = format!("udp:{}", port.local_address().unwrap());
        let mut server = Server::new(ServerLimits::default(), Secret::new([1; 16]), 1, 0, |_| RequestKind::Read);
        let mut end = Datagrams::open(&to, Duration::from_secs(9), Duration::from_secs(60)).unwrap();
        greet(&mut end, &mut port, &mut server);
        let heard = end.client.heard();
        // From the server's own address, and not for this client.
        let body = Body::Reset { incarnation: 9 };
        let mut noise = Vec::new();
        Datagram { client: 5, request: 1, floor: 0, flags: 2, clock: 0, echo: 0, body }.encode(&[], true, &mut noise);
        let own = end.client.counters().stale;
        end.say(&get(8)).unwrap();
        end.wait(Duration::ZERO);
        port.wait(Some(port.now() + 1_000_000_000));
        let (client, _) = port.poll().expect("the request");
        port.send(client, &noise).unwrap();
        port.wait(Some(port.now()));
        while end.client.counters().stale == own {
            end.progress();
        }
        assert_eq!(end.client.heard(), heard);
    }

    #[test]
    fn an_address_that_answers_is_taken() {
        let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut port = UdpPort::listen("127.0.0.1:0".parse().unwrap(), 1, 1400).unwrap().remove(0);
        let servers = [silent.local_addr().unwrap(), port.local_address().unwrap()];
        let done = std::sync::atomic::AtomicBool::new(false);
        let answering = std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut server =
                    Server::new(ServerLimits::default(), Secret::new([1; 16]), 1, 0, |_| RequestKind::Read);
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    serve(&mut port, &mut server);
                }
                assert_eq!(server.clients(), 0, "it keeps nothing");
            });
            let limits = limits(Duration::from_secs(9));
            let answering = first_to_answer(&servers, limits, Duration::from_secs(9)).unwrap();
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            answering
        });
        assert_eq!(answering, Some(servers[1]));
        let limits = limits(Duration::from_secs(9));
        assert_eq!(first_to_answer(&servers[..1], limits, Duration::from_millis(20)), Ok(None));
    }

    #[test]
    fn what_datagrams_do_not_carry_is_refused_here() {
        let mut end = Datagrams::open("udp:127.0.0.1:9", Duration::from_secs(9), Duration::from_secs(60)).unwrap();
        let mut message = get(5);
        message.resize((1 << 20) + (200 << 10), 0);
        end.say(&message).unwrap();
        let mut reply = Vec::new();
        assert!(end.heard(&mut reply) && matches!(end.next_event(), Some(Event::Message)));
        let (id, kind, _, bytes) = messages::fragment(&reply).unwrap();
        let refused = Reply::decode(kind, bytes).unwrap();
        assert!(id == 5 && matches!(refused, Reply::Refused { why: Refusal::TooLarge, .. }), "{refused:?}");
    }
}
