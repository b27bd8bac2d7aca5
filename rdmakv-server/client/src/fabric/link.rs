//! A connection to a server over a fabric: requests, and the effects of the server's replies on the operations that asked for them.
//!
//! Items with known tags are not asked for but read (`reads.rs`). The server is asked by a message, or for a large item by a transfer
//! that the message goes with (`requests.rs`). The lease of a tag counts from the first sending of the request that brought it, by a
//! clock that runs through suspend.

use super::channel::Channel;
use super::items;
use super::parts::{Begun, Parts};
use super::reads::{Got, Reads};
use super::requests::{Asked, Landing, NotConnected, Requests};
use super::table::Table;
use crate::answer::{self, Answer, Stored, is_store};
use crate::common::Common;
use crate::end::End;
use crate::error::{Error, Operation};
use crate::fragment_tags::Place;
use crate::ops::{Name, On};
use crate::slots::Slot;
use crate::tags::{Leased, Tags};
use crate::value::{Bytes, Source, Value};
use frrwp::engine::Event;
use frrwp::fabric::reliability::Departure;
use rdmakv_proto::clock;
use rdmakv_proto::item::HEADER;
use rdmakv_proto::messages::{Assembly, Kind, Refusal, Reply, Request, Tag, VERSION, Wishes};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A connection.
pub(crate) struct Link {
    /// Dropped first: the memory that its end was lent is in the parts below.
    channel: Channel,
    requests: Requests,
    reads: Reads,
    parts: Parts,
    /// The message to send before anything else.
    login: Option<Vec<u8>>,
    greeted: bool,
    /// Whether the server wants the connection back.
    demoted: bool,
    /// When the server was greeted, by the boot clock.
    greeted_at: u64,
    born: Instant,
    /// When something came last, or a read was done.
    heard_at: Instant,
    assembly: Assembly,
    heard: Vec<u8>,
}

/// An operation that was not carried out, and whether that is only for now.
pub(crate) struct Elsewhere {
    pub(crate) op: Name,
    pub(crate) busy: bool,
}

/// Operations that are open, and whether anything of each was sent.
type Open = Vec<(Name, bool)>;

/// A server's words that make no sense, or an end of the connection.
type Broken = String;

impl Link {
    /// Returns a connection that was just made. The server is greeted.
    pub(crate) fn new(end: Box<dyn End>, counts_reads: bool, login: Option<Vec<u8>>, wishes: Wishes) -> Self {
        let mut channel = Channel::new(end);
        let kind = Request::hello_with(&mut channel.message, wishes);
        // Read before the greeting leaves: a server that runs first answers with a later time.
        let greeted_at = clock::boot();
        channel.send(0, kind);
        Self {
            channel,
            requests: Requests::default(),
            reads: Reads::new(counts_reads),
            parts: Parts::default(),
            login,
            greeted: false,
            demoted: false,
            greeted_at,
            born: Instant::now(),
            heard_at: Instant::now(),
            assembly: Assembly::default(),
            heard: Vec::new(),
        }
    }

    fn log_in(&mut self, login: &[u8]) {
        self.channel.message.clear();
        let kind = Request::run(&mut self.channel.message, false, b"login", &[login]);
        self.channel.send(0, kind);
    }

    /// Returns whether the server has answered the greeting, and the connection is of use.
    pub(crate) fn is_ready(&self) -> bool {
        self.greeted && self.channel.broken().is_none()
    }

    /// Returns whether the server has answered the greeting.
    pub(crate) fn is_greeted(&self) -> bool {
        self.greeted
    }

    /// Returns whether the server wants the connection back.
    pub(crate) fn is_demoted(&self) -> bool {
        self.demoted
    }

    /// Takes the token by which the server offers a connection, where one came.
    pub(crate) fn take_token(&mut self) -> Option<u64> {
        self.channel.end().take_token()
    }

    /// Returns how long ago the connection was made.
    pub(crate) fn age(&self) -> Duration {
        self.born.elapsed()
    }

    /// Returns when something came last, or a read was done.
    pub(crate) fn heard_at(&self) -> Instant {
        self.heard_at
    }

    /// Notes why it is of no use any more.
    pub(crate) fn give_up(&mut self, why: &str) {
        self.channel.give_up(|| why.to_owned());
    }

    /// Returns why it is of no use any more, if it is not.
    pub(crate) fn broken(&self) -> Option<&str> {
        self.channel.broken()
    }

    /// Returns whether something is waited for.
    pub(crate) fn is_busy(&self) -> bool {
        self.requests.is_busy() || self.reads.is_busy() || !self.parts.is_empty() || !self.greeted
    }

    /// Returns what this client does next if it has a better path.
    pub(crate) fn departure(&self) -> Departure {
        Departure::next(self.is_busy(), self.channel.is_settled())
    }

    /// Returns whether anything of an operation that is open here may have left.
    pub(crate) fn was_sent(&self, name: Name) -> bool {
        self.requests.id_of(name).is_none_or(|id| self.channel.was_sent(id))
    }

    /// Ends an operation's request, which has no answer. Returns whether all others go on; else nothing has changed.
    pub(crate) fn cancel(&mut self, name: Name) -> bool {
        let Some(id) = self.requests.id_of(name) else { return false };
        let is_ended = self.channel.cancel(id);
        if is_ended {
            self.requests.remove(id);
        }
        is_ended
    }

    /// Returns how many bytes are registered here.
    pub(crate) fn registered(&self) -> u64 {
        self.channel.registered()
    }

    /// Lets requests wait from now on until they leave together, or ends that.
    pub(crate) fn hold(&mut self, requests: bool) {
        self.channel.end().cork(requests);
    }

    pub(crate) fn wait(&mut self, longest: Duration) {
        self.channel.wait(longest);
    }

    // ---- Requests ------------------------------------------------------------------------------------

    /// Begins an operation.
    pub(crate) fn issue(&mut self, common: &mut Common, tags: &mut Tags, name: Name) -> Result<(), NotConnected> {
        let Some(op) = common.ops.unanswered(name) else { return Ok(()) };
        (op.on, op.attempts) = (On::Fabric, op.attempts.saturating_add(1));
        if op.operation == Operation::Get {
            self.get(common, tags, name);
            return Ok(());
        }
        let stores = is_store(op.operation);
        self.reads.tell_if_due(&mut self.channel, tags, clock::boot());
        if stores {
            self.requests.store(&mut self.channel, common, tags, name)
        } else {
            self.requests.run(&mut self.channel, common, tags, name);
            Ok(())
        }
    }

    /// Gets an item, one-sidedly if possible.
    fn get(&mut self, common: &mut Common, tags: &mut Tags, name: Name) {
        if let Got::NotHere = self.reads.get(&mut self.channel, common, tags, name) {
            self.ask(common, tags, name);
        }
    }

    /// Asks for an item.
    fn ask(&mut self, common: &mut Common, tags: &mut Tags, name: Name) {
        if common.ops.unanswered(name).is_some() {
            let now = clock::boot();
            self.reads.tell_if_due(&mut self.channel, tags, now);
            self.requests.ask(&mut self.channel, common, tags, name, now);
        }
    }

    /// Returns the value, read one-sidedly while the caller waits. None if that is not possible.
    #[inline]
    pub(crate) fn get_now(
        &mut self,
        common: &mut Common,
        tags: &mut Tags,
        (key, may_be_listed): (&[u8], bool),
    ) -> Option<Value> {
        self.reads.get_now(&mut self.channel, common, tags, (key, may_be_listed))
    }

    /// Reads a fragment to its place in a slot, by a tag whose lease is not over.
    pub(crate) fn read_part(&mut self, leased: &Leased, slot: &Arc<Slot>, to: &Place) -> Begun {
        self.parts.read(&mut self.channel, leased, slot, to)
    }

    // ---- Replies -------------------------------------------------------------------------------------

    /// Does what can be done now. Operations to be tried by another transport are put into `elsewhere`.
    pub(crate) fn progress(
        &mut self,
        common: &mut Common,
        tags: &mut Tags,
        server: &str,
        elsewhere: &mut Vec<Elsewhere>,
    ) {
        self.channel.end().progress();
        let mut heard = false;
        while let Some(event) = self.channel.next_event() {
            heard = true;
            if let Err(broken) = self.happened(event, common, tags, server, elsewhere) {
                self.channel.give_up(|| broken);
            }
        }
        while let Some((id, may_be_done)) = self.channel.end().take_unanswered() {
            self.end_unanswered((id, may_be_done), common, server);
        }
        self.channel.look_at_end();
        if heard {
            self.heard_at = std::time::Instant::now();
        }
    }

    /// A request has no answer, and may have been carried out or not.
    fn end_unanswered(&mut self, (id, may_be_done): (u32, bool), common: &mut Common, server: &str) {
        const WHY: &str = "the server may have carried it out, and keeps no answer to it any more";
        match self.requests.remove(id).map(|asked| asked.op) {
            Some(name) => {
                if common.ops.unanswered(name).is_some()
                    && let Some(about) = common.ops.about(name, server)
                {
                    let is_read = common.ops.get(name).is_some_and(|op| op.operation.is_read());
                    let error = match is_read || !may_be_done {
                        true => Error::TimedOut { about, after: common.timeout },
                        false => Error::OutcomeUnknown { about, why: WHY.to_owned() },
                    };
                    common.end(name, Err(error));
                }
            }
            None => self.channel.give_up(|| format!("greeting or logging in: {WHY}")),
        }
    }

    fn happened(
        &mut self,
        event: Event,
        common: &mut Common,
        tags: &mut Tags,
        server: &str,
        elsewhere: &mut Vec<Elsewhere>,
    ) -> Result<(), Broken> {
        match event {
            Event::Message => self.hear(common, tags, server, elsewhere),
            Event::ReadCompleted { id, succeeded } if self.parts.ended(id, succeeded) => Ok(()),
            Event::ReadCompleted { id, succeeded } => {
                let end = (id, succeeded);
                if let Some(name) = self.reads.ended(&mut self.channel, common, tags, end) {
                    self.ask(common, tags, name);
                }
                while let Some(name) = self.reads.next_held() {
                    self.get(common, tags, name);
                }
                Ok(())
            }
            Event::Completed { tag, result } => {
                if let Some(landing) = self.requests.landed(tag) {
                    self.landed(landing, result.ok(), common, tags);
                }
                Ok(())
            }
            Event::Writable => {
                self.channel.send_waiting();
                Ok(())
            }
            // A client is not asked.
            Event::Requested { tag, .. } => {
                self.channel.end().refuse(tag);
                Ok(())
            }
            Event::PeerTooOld { spoken } => Err(format!("the server speaks version {spoken} of the wire, which is too old")),
            // A message that was not sent is missing from what the server puts together.
            Event::Expired(expired) if matches!(expired.operation, frrwp::handshake::Operation::Message(_)) => {
                Err(expired.to_string())
            }
            Event::Closed { why: Some(why) } => Err(format!("the connection was closed: {why}")),
            Event::Closed { why: None } if !self.channel.is_welcomed() => Err(
                "the server closed the connection before it was set up: see whether it runs, and whether it is at its limit on connections (--fabric-connections)".to_owned(),
            ),
            Event::Closed { why: None } => Err("the server closed the connection, or has gone".to_owned()),
            _ => Ok(()),
        }
    }

    /// A transfer has ended.
    fn landed(&mut self, landing: Landing, bytes: Option<u64>, common: &mut Common, tags: &mut Tags) {
        let Landing { id, op: name, buffer } = landing;
        // Where it was answered by a message, that is gone already.
        let Some(asked) = self.requests.remove(id) else { return };
        let incarnation = self.channel.incarnation();
        let Some(op) = common.ops.unanswered(name) else { return };
        let length = bytes.map_or(0, |bytes| bytes.min(buffer.len() as u64) as usize);
        // Out of memory that the server may write, into some that it may not, before it is looked at.
        let into = match common.fabrics.slots().and_then(|slots| slots.take(length)) {
            _ if length == 0 => None,
            Some(mut slot) => buffer.read_at(0, slot.bytes_mut()).ok().map(|()| Bytes::Slot(slot)),
            None => {
                let mut vec = vec![0; length];
                buffer.read_at(0, &mut vec).ok().map(|()| Bytes::Heap(vec))
            }
        };
        let value = into.and_then(|bytes| items::given(bytes, &op.key, incarnation, Source::Transfer).ok());
        match value {
            Some(value) => {
                tags.learn_size(&op.key, size(&op.key, &value));
                self.requests.answered(&asked);
                common.end(name, Ok(Answer::Value(Some(value))));
            }
            // By messages then.
            None => {
                op.no_transfer = true;
                self.ask(common, tags, name);
            }
        }
    }

    fn hear(
        &mut self,
        common: &mut Common,
        tags: &mut Tags,
        server: &str,
        elsewhere: &mut Vec<Elsewhere>,
    ) -> Result<(), Broken> {
        let mut heard = std::mem::take(&mut self.heard);
        let mut assembly = std::mem::take(&mut self.assembly);
        let mut result = Ok(());
        // Some headers and the longest item, or statistics.
        let most = self.channel.largest().max(1 << 20) + 4096;
        if self.channel.end().heard(&mut heard) {
            result = match assembly.take(&heard, most) {
                Ok(Some((id, kind, bytes))) => self.said(id, kind, bytes, common, tags, server, elsewhere),
                Ok(None) => Ok(()),
                Err(malformed) => Err(malformed.to_string()),
            };
        }
        (self.heard, self.assembly) = (heard, assembly);
        result
    }

    #[expect(clippy::too_many_arguments, reason = "a message, and all that it can concern")]
    fn said(
        &mut self,
        id: u32,
        kind: Kind,
        bytes: &[u8],
        common: &mut Common,
        tags: &mut Tags,
        server: &str,
        elsewhere: &mut Vec<Elsewhere>,
    ) -> Result<(), Broken> {
        let reply = Reply::decode(kind, bytes).map_err(|malformed| malformed.to_string())?;
        match reply {
            Reply::Welcome(welcome) if !self.channel.is_welcomed() => {
                if welcome.version != VERSION {
                    return Err(format!(
                        "the server speaks version {}, and this client version {VERSION}",
                        welcome.version
                    ));
                }
                self.channel.welcomed(welcome);
                match self.login.take() {
                    Some(login) => self.log_in(&login),
                    None => self.greeted = true,
                }
                return Ok(());
            }
            Reply::Ran { answer, .. } if id == 0 && !self.greeted => {
                self.greeted = answer == b"STORED\r\n";
                let said = String::from_utf8_lossy(answer);
                return if self.greeted {
                    Ok(())
                } else {
                    Err(format!("logging in: the server says: {}", said.trim_end()))
                };
            }
            Reply::Refused { text, .. } if id == 0 => {
                return Err(format!("the server does not want this client: {text}"));
            }
            _ => {}
        }
        if let Reply::Table(told) = reply {
            let asked = self.greeted_at;
            let table = common.fabrics.slots().and_then(|slots| Table::new(told, asked, slots));
            self.reads.set_table(table);
            return Ok(());
        }
        if reply == Reply::Demote {
            self.demoted = true;
            return Ok(());
        }
        // The tag of what a transfer brings, before its end.
        if let Reply::Tag(tag) = reply {
            if let Some(asked) = self.requests.get(id)
                && let Some(op) = common.ops.get(asked.op)
            {
                learn(tags, &op.key, self.leased(tag, op.first_sent), None);
            }
            return Ok(());
        }
        // The answer to an operation that has ended is dropped.
        let Some(asked) = self.requests.remove(id) else { return Ok(()) };
        let Asked { op: name, landing, .. } = asked;
        let is_part = common.ops.is_part(name);
        let Some(op) = common.ops.unanswered(name) else { return Ok(()) };
        if matches!(reply, Reply::Ran { .. } | Reply::Item { .. }) {
            self.requests.answered(&asked);
        }
        match reply {
            Reply::Ran { tag, answer } => {
                let operation = op.operation;
                let Ok(Ok((answer, _))) = answer::take(operation, answer, self.channel.largest().max(16 << 20)) else {
                    return Err(nonsense(common, name, server, "what a command answered"));
                };
                if op.wishes {
                    op.tag = self.leased(tag, op.first_sent).map(|leased| tags.bind(leased));
                } else if !op.key.is_empty() {
                    let known = match &answer {
                        Answer::Stored(Stored::Yes(_)) if !is_addition(operation) => {
                            Some((HEADER + op.key.len() + op.data.bytes().len()) as u32)
                        }
                        Answer::Value(Some(value)) => Some(size(&op.key, value)),
                        _ => None,
                    };
                    learn(tags, &op.key, self.leased(tag, op.first_sent), known);
                }
                let answer = match answer {
                    Answer::Refused(said) => match common.ops.about(name, server) {
                        Some(about) => Err(Error::Refused { about, said }),
                        None => return Ok(()),
                    },
                    Answer::Value(Some(value)) => Ok(Answer::Value(Some(value.from(Source::Message)))),
                    answer => Ok(answer),
                };
                common.end(name, answer);
            }
            Reply::Item { tag, image } => {
                let incarnation = self.channel.incarnation();
                let given = items::given(Bytes::Heap(image.to_vec()), &op.key, incarnation, Source::Message);
                let Ok(value) = given else {
                    return Err(nonsense(common, name, server, "an item that is not as it should be"));
                };
                learn(tags, &op.key, self.leased(tag, op.first_sent), Some(size(&op.key, &value)));
                common.end(name, Ok(Answer::Value(Some(value))));
            }
            Reply::Large { tag, size } => {
                let size = u32::try_from(size).unwrap_or(u32::MAX);
                learn(tags, &op.key, self.leased(tag, op.first_sent), Some(size));
                self.large(common, tags, name, size as usize, landing);
            }
            Reply::None => {
                tags.forget(&op.key);
                common.end(name, Ok(Answer::Value(None)));
            }
            // A value that is not here as a whole. The operation that this is a part of asks all that have it.
            Reply::Refused { text, .. } if is_part && op.operation == Operation::Get => {
                let said = text.to_owned();
                common.counters.refused += 1;
                if let Some(about) = common.ops.about(name, server) {
                    tags.forget(&about.key);
                    common.end(name, Err(Error::Refused { about, said }));
                }
            }
            Reply::Refused { why, text } => {
                // Nothing was done. Another way may be open; if not, it is as the server says.
                tags.forget(&op.key);
                op.refused = Some(text.to_owned());
                op.only_stream = true;
                common.counters.refused += 1;
                if matches!(why, Refusal::TooLarge) && op.operation == Operation::Get && !op.no_transfer {
                    (op.no_transfer, op.only_stream) = (true, false);
                    self.requests.run(&mut self.channel, common, tags, name);
                } else {
                    elsewhere.push(Elsewhere { op: name, busy: why == Refusal::Busy });
                }
            }
            Reply::Welcome(_) | Reply::Tag(_) | Reply::Table(_) | Reply::Far(_) | Reply::Demote => {
                return Err(nonsense(common, name, server, "another answer than there can be"));
            }
        }
        Ok(())
    }

    /// An item is too large for a message: it is read by its tag, or comes by a transfer, or else in the answer to a command.
    fn large(&mut self, common: &mut Common, tags: &mut Tags, name: Name, size: usize, was_landing: bool) {
        if self.reads.read_by_tag(&mut self.channel, common, tags, name) {
            return;
        }
        let may = common.ops.get(name).is_some_and(|op| !op.no_transfer);
        // A transfer that was too small is tried once more, with what is known now.
        if may
            && size <= self.channel.largest() + HEADER + rdmakv_proto::item::KEY_MAX
            && self.requests.ask_into(&mut self.channel, common, name, size)
        {
            if was_landing && let Some(op) = common.ops.unanswered(name) {
                op.no_transfer = true;
            }
            return;
        }
        self.requests.run(&mut self.channel, common, tags, name);
    }

    fn leased(&self, tag: Option<Tag>, first_sent: u64) -> Option<Leased> {
        tag.map(|tag| Leased { tag, until: first_sent.saturating_add(self.channel.lease()) })
    }

    // ---- The end -------------------------------------------------------------------------------------

    /// Reports the last reads, before the connection is closed.
    pub(crate) fn tell_last_reads(&mut self, tags: &mut Tags) {
        // As much as there is room for: no reader waits for more.
        if self.is_ready() {
            self.reads.tell_last(&mut self.channel, tags);
        }
    }

    /// Closes the connection. Returns the operations that are open here, and whether anything of them was sent; their memory is free.
    pub(crate) fn close(self) -> Open {
        let open = self.open();
        // Takes the connection down.
        drop(self);
        open
    }

    /// Does the same where operations did not end. Returns this side's end, too, if one of them may still be carried out.
    pub(crate) fn lose(self) -> (Open, Option<Box<dyn End>>) {
        let open = self.open();
        // Before the memory that its end was lent, which is in the other parts.
        let Self { channel, .. } = self;
        (open, channel.close())
    }

    /// Does the same as [`Link::close`] in a child of a fork: the connection is the parent's, and goes on there.
    pub(crate) fn abandon(self) -> Open {
        let open = self.open();
        std::mem::forget(self);
        open
    }

    fn open(&self) -> Open {
        self.requests.open(&self.channel).into_iter().chain(self.reads.open()).collect()
    }
}

/// An operation was answered with something that is no answer to it.
fn nonsense(common: &mut Common, name: Name, server: &str, what: &'static str) -> Broken {
    if let Some(about) = common.ops.about(name, server) {
        let why = format!("the answer makes no sense ({what})");
        common.end(
            name,
            Err(match about.operation.is_read() {
                true => Error::Nonsense { about, what },
                false => Error::OutcomeUnknown { about, why },
            }),
        );
    }
    format!("the server's answer makes no sense ({what})")
}

/// Bytes of the item that a value is of.
fn size(key: &[u8], value: &Value) -> u32 {
    u32::try_from(HEADER + key.len() + value.len()).unwrap_or(u32::MAX)
}

fn learn(tags: &mut Tags, key: &[u8], leased: Option<Leased>, size: Option<u32>) {
    tags.learn(key, leased, size);
}

/// Returns whether what is stored is more than was sent.
fn is_addition(operation: Operation) -> bool {
    debug_assert!(is_store(operation));
    matches!(operation, Operation::Append | Operation::Prepend)
}

#[cfg(test)]
#[expect(unsafe_code, reason = "the trait of an end has unsafe functions")]
mod tests {
    use super::*;
    use frrwp::engine::{Event, OpenError};
    use frrwp::handshake::{self, SendError};
    use mrrc::cache::AcquireError;
    use rdmakv_proto::messages::RemoteSegment;
    use std::any::Any;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// An end of which the server runs and reads its clock before the client runs on.
    struct Preempted(Arc<AtomicU64>);

    impl End for Preempted {
        fn say(&mut self, _: &[u8]) -> Result<(), SendError> {
            std::thread::sleep(Duration::from_millis(2));
            self.0.store(clock::boot(), Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(2));
            Ok(())
        }

        fn heard(&mut self, _: &mut Vec<u8>) -> bool {
            false
        }

        unsafe fn fetch(&mut self, _: *mut u8, _: RemoteSegment) -> Result<u64, OpenError> {
            unreachable!()
        }

        unsafe fn put(&mut self, _: *const u8, _: RemoteSegment) -> Result<u64, OpenError> {
            unreachable!()
        }

        unsafe fn read_now(&mut self, _: *mut u8, _: RemoteSegment) -> Option<bool> {
            None
        }

        unsafe fn read(&mut self, _: *mut u8, _: usize, _: &[u8]) -> Result<handshake::Tag, OpenError> {
            unreachable!()
        }

        unsafe fn offer(
            &mut self,
            _: *const u8,
            _: usize,
            _: &mut Vec<RemoteSegment>,
        ) -> Result<Box<dyn Any + Send>, AcquireError> {
            unreachable!()
        }

        fn refuse(&mut self, _: handshake::Tag) {}

        fn progress(&mut self) {}

        fn next_event(&mut self) -> Option<Event> {
            None
        }

        fn cork(&mut self, _: bool) {}

        fn wait(&mut self, _: Duration) {}

        fn registered(&self) -> u64 {
            0
        }
    }

    #[test]
    fn greeting_is_older_than_its_answer() {
        let answered_at = Arc::new(AtomicU64::new(0));
        let link = Link::new(Box::new(Preempted(answered_at.clone())), false, None, Wishes::default());
        let answered_at = answered_at.load(Ordering::Relaxed);
        // A table of an earlier time is refused as that of another machine.
        assert!((1..=answered_at).contains(&link.greeted_at), "{} {answered_at}", link.greeted_at);
    }
}
