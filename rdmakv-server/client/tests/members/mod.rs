//! The servers' part of the replication protocol, as it ships, over memory of a test.

use std::collections::BTreeMap;

use rdmakv_cluster::member::{CallId, Chunks, Member, Replica, Role, Standing};
use rdmakv_cluster::messages::{Answer, Call, Change, Chunk, Form, Piece, Refusal, Reply, Stored};
use rdmakv_cluster::wire::{Arguments, Attributes, ReplyFrame, RequestFrame};
use rdmakv_proto::item::value_sum;

/// The chunks of a server.
#[derive(Default)]
struct Memory {
    chunks: BTreeMap<Chunk, (Attributes, Vec<u8>)>,
    made: u64,
    computations: Vec<(Arguments, Vec<u8>)>,
}

impl Memory {
    fn keep(&mut self, attributes: Attributes, bytes: Vec<u8>) -> Chunk {
        self.made += 1;
        self.chunks.insert(Chunk(self.made), (attributes, bytes));
        Chunk(self.made)
    }
}

impl Chunks for Memory {
    fn end_early(&mut self, _: Piece) {}

    fn compute(&mut self, value: Option<&Stored>, arguments: u64) -> Result<Piece, Refusal> {
        // A fragment is no number, though its bytes may look like one.
        let value = value.filter(|value| value.piece.form == Form::Copy);
        let (attributes, bytes) =
            value.and_then(|value| self.chunks.get(&value.piece.chunk)).ok_or(Refusal::Invalid)?;
        let (arguments, more) = &self.computations[arguments as usize];
        let number = || std::str::from_utf8(bytes).ok()?.parse::<u64>().ok();
        let bytes = match arguments {
            Arguments::Increment { by, .. } => number().ok_or(Refusal::Invalid)?.wrapping_add(*by).to_string().into(),
            Arguments::Decrement { by, .. } => number().ok_or(Refusal::Invalid)?.saturating_sub(*by).to_string().into(),
            Arguments::Append => [&bytes[..], more].concat(),
            Arguments::Prepend => [&more[..], bytes].concat(),
        };
        let (length, sum) = (bytes.len() as u64, value_sum(&bytes));
        Ok(Piece { chunk: self.keep(*attributes, bytes), form: Form::Copy, length, sum })
    }

    fn publish(&mut self, _: Piece) {}

    fn free(&mut self, piece: Piece) {
        self.chunks.remove(&piece.chunk);
    }
}

/// A reply as it travels, and the call that it is for.
pub(crate) struct Sent {
    pub(crate) call_id: CallId,
    pub(crate) reply: Vec<u8>,
    /// The bytes that follow it.
    pub(crate) bytes: Vec<u8>,
}

/// The values and writes of one server.
pub(crate) struct Kept {
    member: Member,
    replicas: BTreeMap<Vec<u8>, Replica>,
    memory: Memory,
    call_ids: u64,
    /// Orders wait behind others. Servers tell their clients to help at once.
    waits: bool,
}

impl Kept {
    pub(crate) fn new(cluster: u128, waits: bool) -> Self {
        Self { member: Member::new(cluster), replicas: BTreeMap::new(), memory: Memory::default(), call_ids: 0, waits }
    }

    /// Returns whether no write of a key is sealed that is not known to be published.
    #[allow(dead_code, reason = "one of two users looks")]
    pub(crate) fn is_settled(&self, key: &[u8]) -> bool {
        self.replicas.get(key).is_some_and(|replica| replica.current().is_some() && replica.next().is_none())
    }

    /// Changes a byte of a value that was stored, whichever part of it is here.
    #[allow(dead_code, reason = "one of two users does")]
    pub(crate) fn damage(&mut self, key: &[u8]) {
        let stored = self.replicas.get(key).and_then(|replica| replica.next().or(replica.current()));
        let (_, bytes) = self.memory.chunks.get_mut(&stored.unwrap().piece.chunk).unwrap();
        bytes[9] ^= 1;
    }

    #[allow(dead_code, reason = "one of two users knows its keys")]
    pub(crate) fn keys(&self) -> Vec<Vec<u8>> {
        self.replicas.keys().cloned().collect()
    }

    /// Takes a call: the body has `call` bytes of it, and then those of its piece.
    pub(crate) fn serve(
        &mut self,
        key: &[u8],
        (body, call): (&[u8], usize),
        standing: &Standing,
        now: u64,
    ) -> (CallId, Vec<Sent>) {
        let (call, bytes) = body.split_at(call);
        let RequestFrame { mut request, attributes, arguments } = RequestFrame::decode(call).unwrap();
        match &mut request.call {
            Call::Stage { piece, .. }
            | Call::Order { change: Change::Put(piece), .. }
            | Call::Seal { piece: Some(piece), .. } => piece.chunk = self.memory.keep(attributes, bytes.to_vec()),
            Call::Order { change: Change::Compute(number), .. } => {
                *number = self.memory.computations.len() as u64;
                self.memory.computations.push((arguments.unwrap(), bytes.to_vec()));
            }
            _ => {}
        }
        self.call_ids += 1;
        let call_id = CallId(self.call_ids);
        let replica = self.replicas.entry(key.to_vec()).or_default();
        let mut replies = self.member.take(replica, standing, (call_id, request), now, &mut self.memory);
        if replies.is_empty() && !self.waits {
            replies = self.member.dismiss(replica, standing, &mut self.memory);
        }
        (call_id, self.sent(replies))
    }

    /// Takes a key into a later epoch; see [`Member::adopt`].
    pub(crate) fn adopt(&mut self, key: &[u8], before: Role, standing: &Standing, since: (bool, bool)) -> Vec<Sent> {
        let Some(replica) = self.replicas.get_mut(key) else { return Vec::new() };
        let replies = self.member.adopt(replica, before, standing, since, &mut self.memory);
        self.sent(replies)
    }

    /// Answers orders of a key that wait for long.
    pub(crate) fn overdue(&mut self, key: &[u8], standing: &Standing, now: u64) -> Vec<Sent> {
        let Some(replica) = self.replicas.get_mut(key) else { return Vec::new() };
        let replies = self.member.overdue(replica, standing, now, &mut self.memory);
        self.sent(replies)
    }

    fn sent(&self, replies: Vec<(CallId, Reply)>) -> Vec<Sent> {
        let sent = |(call_id, reply): (CallId, Reply)| {
            let piece = match &reply.answer {
                Answer::Ordered { computed, .. } => *computed,
                Answer::Help(pending) if !pending.stored.is_staged => Some(pending.stored.piece),
                Answer::Value(value) => value.as_ref().map(|stored| stored.piece),
                _ => None,
            };
            let kept = piece.and_then(|piece| self.memory.chunks.get(&piece.chunk).cloned());
            let (attributes, bytes) = kept.unwrap_or_default();
            let (mut frame, mut reply) = (ReplyFrame { attributes, ..ReplyFrame::new(reply) }, Vec::new());
            // A deleted key has no attributes.
            if bytes.is_empty() && piece.is_some_and(|piece| piece.form == Form::Tombstone) {
                frame.attributes = Attributes::default();
            }
            frame.encode(&mut reply);
            Sent { call_id, reply, bytes }
        };
        replies.into_iter().map(sent).collect()
    }
}
