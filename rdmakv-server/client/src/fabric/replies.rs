//! A server's replies, and their effects on the operations that asked for them.

use super::items;
use super::link::{Asked, Landing, Link};
use super::table::Table;
use crate::answer::{self, Answer, Stored, is_store};
use crate::common::Common;
use crate::error::{Error, Operation};
use crate::ops::Name;
use crate::tags::{Leased, Tags};
use crate::value::{Bytes, Source, Value};
use frrwp::engine::Event;
use rdmakv_proto::item::HEADER;
use rdmakv_proto::messages::{Kind, Refusal, Reply, Tag, VERSION};

/// An operation that was not carried out, and whether that is only for now.
pub(crate) struct Elsewhere {
    pub(crate) op: Name,
    pub(crate) busy: bool,
}

/// A server's words that make no sense, or an end of the connection.
type Broken = String;

impl Link {
    /// Does what can be done now. Operations to be tried by another transport are put into `elsewhere`.
    pub(crate) fn progress(
        &mut self,
        common: &mut Common,
        tags: &mut Tags,
        server: &str,
        elsewhere: &mut Vec<Elsewhere>,
    ) {
        self.end.progress();
        let mut heard = false;
        while let Some(event) = self.events.pop_front().or_else(|| self.end.next_event()) {
            heard = true;
            if let Err(broken) = self.happened(event, common, tags, server, elsewhere) {
                self.broken.get_or_insert(broken);
            }
        }
        if heard {
            self.heard_at = std::time::Instant::now();
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
            Event::ReadCompleted { id, succeeded } => {
                self.fetched(id, succeeded, common, tags);
                self.get_held(common, tags);
                Ok(())
            }
            Event::Completed { tag, result } => {
                if let Some(landing) = self.landings.remove(&tag) {
                    self.landed(landing, result.ok(), common, tags);
                }
                Ok(())
            }
            Event::Writable => {
                self.say();
                Ok(())
            }
            // A client is not asked.
            Event::Requested { tag, .. } => {
                self.end.refuse(tag);
                Ok(())
            }
            Event::PeerTooOld { spoken } => Err(format!("the server speaks version {spoken} of the wire, which is too old")),
            // A message that was not sent is missing from what the server puts together.
            Event::Expired(expired) if matches!(expired.operation, frrwp::handshake::Operation::Message(_)) => {
                Err(expired.to_string())
            }
            Event::Closed { why: Some(why) } => Err(format!("the connection was closed: {why}")),
            Event::Closed { why: None } if self.welcome.is_none() => Err(
                "the server closed the connection before it was set up: see whether it runs, and whether it is at its limit on connections (--fabric-connections)".to_owned(),
            ),
            Event::Closed { why: None } => Err("the server closed the connection, or has gone".to_owned()),
            _ => Ok(()),
        }
    }

    fn fetched(&mut self, id: u64, succeeded: bool, common: &mut Common, tags: &mut Tags) {
        let Some(at) = self.fetches.iter().position(|fetching| fetching.id == id) else { return };
        let Some(fetching) = self.fetches.remove(at) else { return };
        let Some(name) = fetching.op else { return };
        let Some(op) = common.ops.unanswered(name) else { return };
        let key = std::mem::take(&mut op.key);
        let value = self.believe(&mut common.counters, tags, fetching, succeeded, &key);
        if let Some(op) = common.ops.unanswered(name) {
            op.key = key;
        }
        match value {
            Some(value) => common.end(name, Ok(Answer::Value(Some(value)))),
            None => self.ask(common, tags, name),
        }
    }

    /// A transfer has ended.
    fn landed(&mut self, landing: Landing, bytes: Option<u64>, common: &mut Common, tags: &mut Tags) {
        let Landing { id, op: name, buffer } = landing;
        // Where it was answered by a message, that is gone already.
        if self.asked.remove(&id).is_none() {
            return;
        }
        let incarnation = self.welcome.map_or(0, |welcome| welcome.incarnation);
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
        let most = self.largest().max(1 << 20) + 4096;
        if self.end.heard(&mut heard) {
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
            Reply::Welcome(welcome) if self.welcome.is_none() => {
                if welcome.version != VERSION {
                    return Err(format!(
                        "the server speaks version {}, and this client version {VERSION}",
                        welcome.version
                    ));
                }
                self.lease = u64::from(welcome.lease_ms) * 1_000_000;
                self.welcome = Some(welcome);
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
            self.table = table.map(Box::new);
            return Ok(());
        }
        // The tag of what a transfer brings, before its end.
        if let Reply::Tag(tag) = reply {
            if let Some(asked) = self.asked.get(&id)
                && let Some(op) = common.ops.get(asked.op)
            {
                learn(tags, &op.key, self.leased(tag, op.first_sent), None);
            }
            return Ok(());
        }
        // The answer to an operation that has ended is dropped.
        let Some(Asked { op: name, landing, .. }) = self.asked.remove(&id) else { return Ok(()) };
        let Some(op) = common.ops.unanswered(name) else { return Ok(()) };
        match reply {
            Reply::Ran { tag, answer } => {
                let operation = op.operation;
                let Ok(Ok((answer, _))) = answer::take(operation, answer, self.largest().max(16 << 20)) else {
                    return Err(nonsense(common, name, server, "what a command answered"));
                };
                if !op.key.is_empty() {
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
                let incarnation = self.welcome.map_or(0, |welcome| welcome.incarnation);
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
            Reply::Refused { why, text } => {
                // Nothing was done. Another way may be open; if not, it is as the server says.
                tags.forget(&op.key);
                op.refused = Some(text.to_owned());
                op.only_stream = true;
                common.counters.refused += 1;
                if matches!(why, Refusal::TooLarge) && op.operation == Operation::Get && !op.no_transfer {
                    (op.no_transfer, op.only_stream) = (true, false);
                    self.run(common, tags, name);
                } else {
                    elsewhere.push(Elsewhere { op: name, busy: why == Refusal::Busy });
                }
            }
            Reply::Welcome(_) | Reply::Tag(_) | Reply::Table(_) => {
                return Err(nonsense(common, name, server, "another answer than there can be"));
            }
        }
        Ok(())
    }

    /// An item is too large for a message: it is read by its tag, or comes by a transfer, or else in the answer to a command.
    fn large(&mut self, common: &mut Common, tags: &mut Tags, name: Name, size: usize, was_landing: bool) {
        if self.read_by_tag(common, tags, name) {
            return;
        }
        let may = common.ops.get(name).is_some_and(|op| !op.no_transfer);
        // A transfer that was too small is tried once more, with what is known now.
        if may && size <= self.largest() + HEADER + rdmakv_proto::item::KEY_MAX && self.ask_into(common, name, size) {
            if was_landing && let Some(op) = common.ops.unanswered(name) {
                op.no_transfer = true;
            }
            return;
        }
        self.run(common, tags, name);
    }

    fn leased(&self, tag: Option<Tag>, first_sent: u64) -> Option<Leased> {
        tag.map(|tag| Leased { tag, until: first_sent.saturating_add(self.lease) })
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
