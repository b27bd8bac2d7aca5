//! The calls of a cluster's client that are under way, and the notes that leave with them.

use super::answer::Answer;
use super::buffer::{Data, Part};
use super::command::Arguments;
use super::common::Common;
use super::error::{Error, Operation as Asked};
use super::ops::{Name, On, Ops};
use super::places::{Hands, Places};
use super::tags::CallTag;
use super::value::Source;
use hashbrown::HashMap;
use rdmakv_cluster::config::ServerId;
use rdmakv_cluster::wire::RequestFrame;
use std::collections::VecDeque;
use std::time::Instant;

/// Nanoseconds for which a note waits for another call to its server while the client works, and how many notes wait.
const NOTE_WAITS: u64 = 5_000_000;
const NOTES: usize = 64;
/// Bytes of most calls.
const CALL: usize = 192;

/// See the module.
#[derive(Default)]
pub(super) struct Calls {
    sent: HashMap<Name, Sent>,
    /// All calls have the same time.
    by_age: VecDeque<(Instant, Name)>,
    /// Notes that leave with the next calls to their servers. Agents end what a client without calls leaves.
    notes: VecDeque<Note>,
}

/// The sender of a call.
#[derive(Clone, Copy)]
pub(super) enum Parent {
    Operation(Name),
    /// A read, which asks the primary as for a plain key first.
    Reader(Name),
    /// A read, which asks where the fragments are first.
    Looker(Name),
    /// A [`Caller`](super::caller::Caller), which has its own numbers for calls.
    Caller(u64),
}

/// A call that was sent.
pub(super) struct Sent {
    pub(super) parent: Parent,
    pub(super) to: ServerId,
    pub(super) round: Option<u32>,
    /// Its reply is to come with a tag of the fragment.
    pub(super) wishes: bool,
}

/// A call that has ended.
pub(super) struct Ended {
    pub(super) sent: Sent,
    pub(super) answer: Result<Answer, Error>,
    /// How the reply came.
    pub(super) source: Source,
    pub(super) tag: Option<CallTag>,
}

/// A call as it is sent.
pub(super) struct Message {
    call: Vec<u8>,
    piece: Part,
}

impl Message {
    pub(super) fn new(frame: &RequestFrame, piece: Part) -> Self {
        let mut call = Vec::with_capacity(CALL);
        frame.encode(&mut call);
        Self { call, piece }
    }
}

/// A note that waits.
struct Note {
    due: u64,
    key: Vec<u8>,
    message: Message,
    sent: Sent,
}

impl Calls {
    pub(super) fn is_empty(&self) -> bool {
        self.sent.is_empty() && self.notes.is_empty()
    }

    /// Returns when the oldest call is given up.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.by_age.front().map(|&(deadline, _)| deadline)
    }

    /// Returns when the first note leaves by itself.
    pub(super) fn note_due(&self) -> Option<u64> {
        self.notes.front().map(|note| note.due)
    }

    /// Returns the oldest call that has no answer yet.
    pub(super) fn oldest(&self, ops: &Ops) -> Option<Name> {
        self.by_age.iter().map(|&(_, call)| call).find(|&call| ops.get(call).is_some() && !ops.is_done(call))
    }

    /// Gives up the calls whose time is over.
    pub(super) fn expire(&mut self, now: Instant, hands: &mut Hands<'_>) {
        while let Some(&(deadline, call)) = self.by_age.front() {
            let server = hands.common.ops.unanswered(call).map(|op| op.server);
            match server {
                Some(_) if deadline > now => break,
                Some(server) => hands.servers[server].expire(hands.common, call),
                None => {}
            }
            self.by_age.pop_front();
        }
    }

    /// Takes those that have ended. They make others.
    pub(super) fn take_ended(&mut self, common: &mut Common) -> Vec<Ended> {
        let ended = common.ops.ended_parts();
        let take = |call| {
            let op = common.ops.get(call);
            let source = if op.is_some_and(|op| op.on == On::Fabric) { Source::Message } else { Source::Socket };
            let tag = op.and_then(|op| op.tag);
            let result = common.ops.take(call);
            let (sent, (answer, _)) = (self.sent.remove(&call)?, result?);
            Some(Ended { sent, answer, source, tag })
        };
        ended.into_iter().filter_map(take).collect()
    }

    /// Sends a call with the bytes that follow it.
    pub(super) fn send(&mut self, key: &[u8], message: Message, at: usize, sent: Sent, hands: &mut Hands<'_>) -> Name {
        let to = sent.to;
        let (with_it, others) = std::mem::take(&mut self.notes).into_iter().partition(|note| note.sent.to == to);
        self.notes = others;
        let with_it: VecDeque<Note> = with_it;
        for Note { key, message, sent, .. } in with_it {
            let call = self.insert_message(&key, message, at, sent, hands.common);
            hands.servers[at].enqueue(hands.common, call);
        }
        let call = self.insert_message(key, message, at, sent, hands.common);
        hands.servers[at].issue(hands.common, call);
        call
    }

    /// Sends a GET of the whole value, as of a plain key.
    pub(super) fn send_get(&mut self, key: &[u8], at: usize, sent: Sent, hands: &mut Hands<'_>) -> Name {
        let get = self.insert((Asked::Get, key), (Arguments::default(), Data::None), at, sent, hands.common);
        hands.servers[at].issue(hands.common, get);
        get
    }

    fn insert_message(&mut self, key: &[u8], message: Message, at: usize, sent: Sent, common: &mut Common) -> Name {
        let Message { call, piece } = message;
        let arguments = Arguments { number: call.len() as u64, ..Arguments::default() };
        let name = self.insert((Asked::Call, key), (arguments, Data::Vec(call)), at, sent, common);
        if let Some(op) = common.ops.get_mut(name) {
            op.piece = piece;
        }
        name
    }

    fn insert(
        &mut self,
        what: (Asked, &[u8]),
        (arguments, data): (Arguments, Data),
        at: usize,
        sent: Sent,
        common: &mut Common,
    ) -> Name {
        let deadline = Instant::now() + common.timeout;
        let call = common.ops.insert_part(what, arguments, data, at, deadline);
        common.ops.get_mut(call).into_iter().for_each(|op| op.wishes = sent.wishes);
        self.sent.insert(call, sent);
        self.by_age.push_back((deadline, call));
        call
    }

    /// Has a note wait for another call to its server. When too many wait, the first one leaves.
    pub(super) fn note(
        &mut self,
        key: Vec<u8>,
        message: Message,
        sent: Sent,
        now: u64,
        places: &Places,
        hands: &mut Hands<'_>,
    ) {
        self.notes.push_back(Note { due: now + NOTE_WAITS, key, message, sent });
        if self.notes.len() > NOTES {
            self.send_first_note(places, hands);
        }
    }

    /// Sends the notes that are due.
    pub(super) fn send_notes(&mut self, until: u64, places: &Places, hands: &mut Hands<'_>) {
        while self.note_due().is_some_and(|due| due <= until) {
            self.send_first_note(places, hands);
        }
    }

    fn send_first_note(&mut self, places: &Places, hands: &mut Hands<'_>) {
        if let Some(Note { key, message, sent, .. }) = self.notes.pop_front()
            && let Some(at) = places.of(sent.to)
        {
            self.send(&key, message, at, sent, hands);
        }
    }

    /// Forgets the notes that wait.
    pub(super) fn drop_notes(&mut self) {
        self.notes.clear();
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}
