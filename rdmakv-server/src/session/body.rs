//! The data of a request: from the line that announces it until all of it is there.

use super::cluster::Cluster;
use super::replicas::Eviction;
use super::room::Room;
use super::{COPIED, Context, Recalled, Shards, watch};
use crate::store::{ChunkWriter, Found, Mode, Outcome, Refused, Terms};
use rdmakv_proto::commands::binary::Header;

/// The reply to an item's data, in the protocol of its request.
#[derive(Debug)]
pub(super) enum Reply {
    Text { quiet: bool },
    Meta { flags: Vec<u8>, key: Vec<u8>, quiet: bool },
    Binary { header: Header },
}

/// The request that a name and a password came with.
#[derive(Debug)]
pub(super) enum LoginRequest {
    Set { quiet: bool },
    Sasl { header: Header },
}

/// The piece of a call is larger than items may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct TooLarge;

/// The destination of data that arrives another way than the bytes before it.
#[derive(Debug)]
pub(crate) enum Rest<'a> {
    Memory(&'a mut [u8]),
    /// Memory that is registered nowhere.
    Apart,
    /// There is no memory for so many bytes. They need not come.
    Skipped(usize),
}

/// The destination of data.
#[derive(Debug)]
enum Destination {
    Item {
        writer: ChunkWriter,
        shard: usize,
        terms: Terms,
        reply: Reply,
    },
    /// A call to this server as a member of a cluster: its bytes, then those of its piece.
    Call {
        key: Box<[u8]>,
        call: Vec<u8>,
        call_len: usize,
        writer: Room,
        shard: usize,
    },
    /// A name and a password, which do not reach the store.
    Login {
        bytes: Vec<u8>,
        request: LoginRequest,
    },
}

/// Data of a request, as much of it as has come.
#[derive(Debug)]
pub(super) struct Body {
    destination: Destination,
    got: usize,
    len: usize,
    /// Whether "\r\n" follows it, as in the text protocol.
    ended: bool,
}

/// An item without room: the data that follows is skipped.
#[derive(Clone, Copy, Debug)]
pub(super) struct NoRoom {
    pub(super) refused: Refused,
    /// Bytes of the data.
    pub(super) follows: usize,
}

/// A body that is complete.
#[derive(Debug)]
pub(super) enum Done {
    /// The item was stored, or not.
    Stored { reply: Reply, mode: Mode, outcome: Outcome, size: usize },
    /// The data had no proper end, and nothing was stored.
    BadData { quiet: bool },
    /// A call, and the memory with its piece.
    Call { key: Box<[u8]>, call: Vec<u8>, writer: Room, shard: usize },
    /// A name and a password. `good` says whether they had a proper end.
    Login { bytes: Vec<u8>, request: LoginRequest, good: bool },
}

/// Returns the command by the name that events have for it.
fn command(terms: &Terms) -> &'static str {
    match terms.mode {
        Mode::Set if terms.cas.is_some() => "cas",
        Mode::Set => "set",
        Mode::Add => "add",
        Mode::Replace => "replace",
        Mode::Append => "append",
        Mode::Prepend => "prepend",
    }
}

impl Body {
    /// Returns an empty body for a name and a password.
    pub(super) fn of_login(len: usize, request: LoginRequest) -> Self {
        let ended = matches!(request, LoginRequest::Set { .. });
        Self { destination: Destination::Login { bytes: Vec::new(), request }, got: 0, len, ended }
    }

    /// Returns an empty body for a call, which is its first `call_len` bytes. A chunk takes the others, or else the reserve. Clean chunks of
    /// files go if there is no memory.
    ///
    /// # Errors
    ///
    /// The piece is larger than items may be.
    pub(super) fn of_call(
        cluster: &Cluster,
        key: &[u8],
        (len, call_len): (usize, usize),
        cx: &Context<'_>,
    ) -> Result<Self, TooLarge> {
        let shard = cx.shared.shards.of(key);
        let piece = len - call_len;
        let mut eviction = Eviction::default();
        let writer = loop {
            let chunk = || cx.shared.shards.at(shard).reserve(key, piece, 0, 0, cx.now);
            match (piece > 0).then(chunk).transpose() {
                Ok(writer) => break writer.map_or(Room::None, Room::Chunk),
                Err(Refused::NoMemory) if cluster.make_room(&cx.shared.shards, key, cx.now, &mut eviction) => {}
                Err(Refused::NoMemory) => break cluster.reserve(piece).map_or(Room::Skipped, Room::Reserve),
                Err(Refused::TooLarge) => return Err(TooLarge),
            }
        };
        let destination = Destination::Call { key: key.into(), call: Vec::new(), call_len, writer, shard };
        Ok(Self { destination, got: 0, len, ended: true })
    }

    /// Returns an empty body for an item.
    #[inline]
    pub(super) fn of_item(
        key: &[u8],
        (len, flags, exptime): (usize, u32, i64),
        (terms, ended): (Terms, bool),
        cx: &mut Context<'_>,
        reply: Reply,
    ) -> Result<Self, NoRoom> {
        cx.counts.cmd_set += 1;
        cx.shared.prefixes.set(key);
        let shard = cx.shared.shards.of(key);
        let mut store = cx.shared.shards.at(shard);
        match store.reserve(key, len, flags, cx.until(exptime), cx.now) {
            Ok(writer) => {
                Ok(Self { destination: Destination::Item { writer, shard, terms, reply }, got: 0, len, ended })
            }
            Err(refused) => {
                // As memcached: better no value than the one that should have been replaced. `cas` would have replaced
                // only the one that was meant.
                let compared = terms.cas.is_some() && matches!(reply, Reply::Text { .. });
                if terms.mode == Mode::Set && !compared {
                    store.delete(key, None, cx.now);
                }
                if cx.reports_sets() {
                    let (expiry, command) = (cx.until(exptime), command(&terms));
                    let set = watch::Set { key, command, expiry, class: 0, size: len };
                    cx.report_set(Outcome::Refused(refused), &set);
                }
                Err(NoRoom { refused, follows: len + if ended { 2 } else { 0 } })
            }
        }
    }

    /// Returns the memory for the rest of a large value, for direct reads.
    pub(super) fn direct(&mut self) -> Option<&mut [u8]> {
        let (got, len) = (self.got, self.len);
        // The last bytes go the usual way, which also ends the request; of a binary one nothing follows the value, so
        // that its last byte has to be left for that.
        if len.saturating_sub(got) < COPIED {
            return None;
        }
        let end = if self.ended { len } else { len - 1 };
        match &mut self.destination {
            Destination::Item { writer, .. } => Some(&mut writer.value()[got..end]),
            Destination::Call { writer, call_len, .. } if got >= *call_len => {
                writer.bytes_mut().map(|bytes| &mut bytes[got - *call_len..])
            }
            Destination::Call { .. } | Destination::Login { .. } => None,
        }
    }

    /// Counts bytes that were written to that memory.
    pub(super) fn add_direct(&mut self, read: usize) {
        self.got += read;
    }

    /// Takes the bytes before a value or a piece, of which nothing has come, and returns the destination of its bytes.
    pub(super) fn announced(&mut self, first: &[u8]) -> Option<Rest<'_>> {
        let before = match &self.destination {
            Destination::Item { .. } => 0,
            Destination::Call { call_len, .. } => *call_len,
            Destination::Login { .. } => return None,
        };
        if self.got != 0 || first.len() != before {
            return None;
        }
        self.fill(first);
        let left = self.len - before;
        Some(match &mut self.destination {
            Destination::Item { writer, .. } => Rest::Memory(writer.value()),
            Destination::Call { writer, .. } => match writer {
                Room::None => Rest::Memory(&mut []),
                Room::Chunk(writer) => Rest::Memory(writer.value()),
                Room::Reserve(_) => Rest::Apart,
                Room::Skipped => Rest::Skipped(left),
            },
            Destination::Login { .. } => return None,
        })
    }

    /// Takes data; returns how much, and at the end of it whether the end is as it should be.
    pub(super) fn fill(&mut self, rest: &[u8]) -> (usize, Option<bool>) {
        let part = (self.len - self.got).min(rest.len());
        match &mut self.destination {
            Destination::Item { writer, .. } => {
                writer.value()[self.got..self.got + part].copy_from_slice(&rest[..part]);
            }
            Destination::Call { call, call_len, writer, .. } => {
                let of_call = call_len.saturating_sub(self.got).min(part);
                call.extend_from_slice(&rest[..of_call]);
                let at = (self.got + of_call).saturating_sub(*call_len);
                if let Some(bytes) = writer.bytes_mut() {
                    bytes[at..at + part - of_call].copy_from_slice(&rest[of_call..part]);
                }
            }
            Destination::Login { bytes, .. } => bytes.extend_from_slice(&rest[..part]),
        }
        self.got += part;
        if self.got < self.len {
            return (part, None);
        }
        if !self.ended {
            return (part, Some(true));
        }
        match rest.get(part..part + 2) {
            Some(end) => (part + 2, Some(end == b"\r\n")),
            None => (part, None),
        }
    }

    /// Stores the item whose data is complete, or returns the name and the password.
    ///
    /// # Errors
    ///
    /// The body, if the value before has to be read first.
    #[inline]
    pub(super) fn finish(self, good: bool, cx: &mut Context<'_>) -> Result<Done, Box<Self>> {
        let Self { destination, got, len, ended } = self;
        let (writer, shard, terms, reply) = match destination {
            Destination::Login { bytes, request } => return Ok(Done::Login { bytes, request, good }),
            Destination::Call { writer, shard, .. } if !good => {
                writer.abandon(&cx.shared.shards, shard);
                return Ok(Done::BadData { quiet: false });
            }
            Destination::Call { key, call, writer, shard, .. } => return Ok(Done::Call { key, call, writer, shard }),
            Destination::Item { writer, shard, terms, reply } => (writer, shard, terms, reply),
        };
        let mut store = cx.shared.shards.at(shard);
        if !good {
            store.abandon(writer);
            // As memcached: of a meta command this answer comes even if none was wanted.
            return Ok(Done::BadData { quiet: matches!(reply, Reply::Text { quiet: true }) });
        }
        // Where it is not brought back, the store refuses.
        if (terms.cas.is_some() || matches!(terms.mode, Mode::Append | Mode::Prepend))
            && cx.recall(&mut store, shard, writer.key()) == Recalled::Away
        {
            let destination = Destination::Item { writer, shard, terms, reply };
            return Err(Box::new(Self { destination, got, len, ended }));
        }
        cx.report_get(&store, writer.key());
        let (key, expiry) = (cx.reports_sets().then(|| writer.key().to_vec()), writer.expiry());
        // An append adds to the value there.
        let appends = matches!(terms.mode, Mode::Append | Mode::Prepend) && matches!(reply, Reply::Meta { .. });
        let there = match appends.then(|| store.peek(writer.key(), cx.now)) {
            Some(Found::Item { value, .. }) => value,
            _ => 0,
        };
        let outcome = store.publish(writer, terms, cx.now);
        if let Some(key) = key {
            let (class, command) = (store.class_for(key.len(), len), command(&terms));
            cx.report_set(outcome, &watch::Set { key: &key, command, expiry, class, size: len });
        }
        drop(store);
        if terms.cas.is_some() {
            match outcome {
                Outcome::Stored(_) => cx.counts.cas_hits += 1,
                Outcome::Exists => cx.counts.cas_badval += 1,
                Outcome::NotFound => cx.counts.cas_misses += 1,
                _ => {}
            }
        }
        // To memcached, what has nothing to be put to is not stored, whatever version was asked for.
        let outcome = match (outcome, terms.mode) {
            (Outcome::NotFound, Mode::Append | Mode::Prepend) => Outcome::NotStored,
            (Outcome::Stored(version), _) => Outcome::Stored(cx.shown(version)),
            (outcome, _) => outcome,
        };
        Ok(Done::Stored { reply, mode: terms.mode, outcome, size: there + len })
    }

    /// Gives the chunk back to its store.
    pub(super) fn abandon(self, shards: &Shards) {
        match self.destination {
            Destination::Item { writer, shard, .. } => shards.at(shard).abandon(writer),
            Destination::Call { writer, shard, .. } => writer.abandon(shards, shard),
            Destination::Login { .. } => {}
        }
    }
}
