//! The part of this server in a cluster: its membership, and what it keeps of resilient keys.
//!
//! A driver (`net/membership.rs`) does the input and output of the membership. Calls come from sessions. Each shard of the stores has one
//! member with the [replicas](Replicas) of its keys. Values are pieces in the store's chunks, which no plain command finds.
//!
//! Locks: that of a shard here, then that of the membership, then that of the shard's store. A call holds the first until its reply is
//! written, so a key adopts an epoch between two calls.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use super::Shards;
use super::adoption::{self, Adoption, Step};
use super::carry::{Order, Orders};
use super::files::{self, Admission, FileChunks};
use super::replicas::{Eviction, PAGE, Replicas, entries, sum};
use super::room::Room;
use crate::metrics::{ClusterCounts, ClusterGauges, FileCounts, add, count};
use crate::store::{Handle, Reserve, Reserved, Store};
use rdmakv_cluster::codec::piece_length;
use rdmakv_cluster::config::{Config, Epoch, Incarnation, Policy};
use rdmakv_cluster::member::{Replica, Role};
use rdmakv_cluster::membership::{Action, Identity, Membership, Mismatch, Part};
use rdmakv_cluster::messages::{
    Answer, Call, Change, Chunk, Form, Frozen, Piece, Place, Refusal, Reply, Report, Request, Select, Stored, Verdict,
};
use rdmakv_cluster::wire::{Arguments, Attributes, ReplyFrame, RequestFrame, WireError, carries_piece};
use rdmakv_cluster::writer::CARRIED;
use rdmakv_proto::clock;

/// Bytes beside the memory for items, for pieces of writes that were ordered and not staged.
const RESERVE: usize = 4 << 20;

/// The part of this server in a cluster.
#[derive(Debug)]
pub struct Cluster {
    membership: Mutex<Membership>,
    /// The configuration that was adopted last, which decides whether a key is resilient.
    policies: RwLock<Option<Arc<Config>>>,
    /// The configuration that this run adopted last.
    adopted: Mutex<Option<Arc<Config>>>,
    /// The way of the keys into it, while some are not there.
    adoption: Mutex<Option<Adoption>>,
    shards: Box<[Mutex<Replicas>]>,
    /// The last report of this server's agent, and its epoch.
    report: Mutex<(Epoch, Report)>,
    /// Values that it found lost in the last epoch in which some were, and that epoch.
    lost: Mutex<(u64, u32)>,
    counts: ClusterCounts,
    /// For pieces of ordered writes where the store has no room.
    reserve: Arc<Reserve>,
    files: FileChunks,
    /// Chunks that this server is to write to the backing directory, if it has one.
    orders: Orders,
    has_backing: bool,
}

/// Why a call has no reply: the line that answers it.
pub(super) type NoReply = &'static str;

/// The answer to plain commands on resilient keys.
pub(super) const RESILIENT: NoReply = "SERVER_ERROR resilient key: use rdmakv --etcd";
/// The answer of a primary to a `get` while it has no right.
const NO_RIGHT: NoReply = "SERVER_ERROR no right to answer for resilient keys now: see etcd";
/// The answer of a primary to a `get` until the right of the one before has ended, and while keys are taken into an epoch.
const NOT_YET: NoReply = "SERVER_ERROR resilient key not served yet: try again";

/// A value that a plain client reads.
pub(super) struct Value<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) flags: u32,
    pub(super) version: u64,
}

/// Whether a plain command may have a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keeping {
    /// The key has no policy: it is this server's alone.
    Plain,
    /// The key has a policy.
    Resilient,
    /// No configuration was adopted yet.
    Unknown,
}

impl Cluster {
    /// Returns the part of a run that has not joined its cluster yet, for so many shards.
    pub fn new(identity: Identity, run: Incarnation, shards: usize) -> Self {
        let clock_skew = Duration::from_nanos(identity.clock_skew).as_secs_f64().ceil() as u64;
        Self {
            membership: Mutex::new(Membership::new(identity, run)),
            policies: RwLock::default(),
            adopted: Mutex::default(),
            adoption: Mutex::default(),
            shards: (0..shards).map(|_| Mutex::new(Replicas::new(clock_skew))).collect(),
            report: Mutex::default(),
            lost: Mutex::default(),
            counts: ClusterCounts::default(),
            reserve: Arc::new(Reserve::new(RESERVE)),
            files: FileChunks::default(),
            orders: Orders::default(),
            has_backing: false,
        }
    }

    /// Sets the share of the memory that chunks of files may take which are not on the backing directory, in percent.
    #[must_use]
    pub fn with_dirty_limit(mut self, percent: u8) -> Self {
        self.files.set_dirty_limit(percent);
        self
    }

    /// Has agents order chunks for the backing directory: a thread carries out the [orders](Self::orders).
    #[must_use]
    pub(crate) fn with_backing(mut self) -> Self {
        self.has_backing = true;
        self
    }

    /// Returns the chunks that this server is to write to the backing directory.
    pub(crate) fn orders(&self) -> &Orders {
        &self.orders
    }

    /// Returns the counts of chunks of files.
    pub fn file_counts(&self) -> &FileCounts {
        self.files.counts()
    }

    /// Returns memory for a piece of so many bytes that finds no chunk, if it may be one of an ordered write.
    pub(super) fn reserve(&self, bytes: usize) -> Option<Reserved> {
        if bytes > CARRIED { None } else { self.reserve.take(bytes) }
    }

    /// Returns the membership, locked. It is held for a computation only.
    pub fn membership(&self) -> MutexGuard<'_, Membership> {
        self.membership.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the counts.
    pub fn counts(&self) -> &ClusterCounts {
        &self.counts
    }

    /// Returns the next work of the membership for its driver. Work on the keys is done already, but for [`Self::adopt_more`].
    pub fn next(&self, shards: &Shards, now: u64) -> Option<Action> {
        let mut membership = self.membership();
        let action = membership.next(now)?;
        drop(membership);
        match &action {
            Action::Adopt => self.begin_adoption(),
            Action::Hold => self.hold(shards),
            Action::Empty | Action::Leave => self.empty(shards),
            _ => {}
        }
        Some(action)
    }

    /// Returns whether a key is resilient.
    pub(super) fn keeping(&self, key: &[u8]) -> Keeping {
        let policies = self.policies.read().unwrap_or_else(PoisonError::into_inner);
        match policies.as_deref().map(|config| config.policy(key)) {
            None => Keeping::Unknown,
            Some(Policy::None) => Keeping::Plain,
            Some(_) => Keeping::Resilient,
        }
    }

    fn shard(&self, shard: usize) -> MutexGuard<'_, Replicas> {
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers a call that came over this connection. `call` are its bytes, `room` has the bytes of its piece, unless they were skipped. `reply` gets the reply and the
    /// bytes of its piece.
    pub(super) fn call(
        &self,
        shards: &Shards,
        (key, connection, now): (&[u8], u64, u64),
        (call, room): (&[u8], Room),
        reply: impl FnOnce(&ReplyFrame, &[u8]),
    ) -> Result<(), NoReply> {
        let at = shards.of(key);
        let frame = RequestFrame::decode(call).map_err(|error| match error {
            WireError::Version(_) => "CLIENT_ERROR call of another version",
            _ => "CLIENT_ERROR bad call",
        });
        let was_skipped = matches!(room, Room::Skipped);
        let is_whole = |frame: &RequestFrame| if was_skipped { Ok(()) } else { check(frame, room.bytes()) };
        let frame = match frame.and_then(|frame| is_whole(&frame).map(|()| frame)) {
            Ok(frame) => frame,
            Err(line) => {
                count(&self.counts.malformed);
                room.abandon(shards, at);
                return Err(line);
            }
        };
        count(&self.counts.calls);
        let RequestFrame { mut request, attributes, arguments } = frame;
        if request.call.is_for_no_key() && !matches!(request.call, Call::Fates(_)) {
            room.abandon(shards, at);
            let mut page = Vec::new();
            let made = self.for_agent(shards, (key, now), request, &mut page);
            reply(&ReplyFrame::new(made), &page);
            return Ok(());
        }
        let is_for_all = request.call.is_for_no_key();
        if !is_for_all && self.keeping(key) == Keeping::Plain {
            room.abandon(shards, at);
            return Err("CLIENT_ERROR key without a policy");
        }
        // The reserve is for writes that are ordered. Others can be declined.
        if was_skipped || matches!(room, Room::Reserve(_)) && !matches!(request.call, Call::Seal { .. }) {
            drop(room);
            return self.decline(&request, reply);
        }
        if is_for_all {
            // The fates of a client's writes are known to all shards, because any may have the keys of its writes.
            for other in (0..self.shards.len()).filter(|&other| other != at) {
                let mut shard = self.shard(other);
                let _ = self.take(&mut shard, (shards, other), (key, now), request.clone(), None);
            }
        }

        let mut shard = self.shard(at);
        let in_file = files::chunk(key).and(room.writer()).map(|writer| shards.at(at).memory_of(writer));
        if let (Some(bytes), Some(is_repair)) = (in_file, files::brings(&request.call))
            && !self.admits(shards, at, &mut shard, (key, now), (bytes, is_repair))
        {
            room.abandon(shards, at);
            return self.decline(&request, reply);
        }
        shard.set_connection(connection);
        let of_repair = matches!(request.call, Call::Repair { .. });
        let is_tombstone = request.call.piece().is_some_and(|piece| piece.form == Form::Tombstone);
        let piece = match room {
            Room::Chunk(writer) => Some(shard.pieces.keep(writer, attributes.flags, attributes.expiry)),
            Room::Reserve(bytes) => Some(shard.pieces.keep_apart(Some(bytes), attributes.flags, attributes.expiry)),
            // It needs no memory: without any left keys can be deleted.
            _ if carries_piece(&request.call) && is_tombstone => Some(shard.pieces.keep_apart(None, 0, 0)),
            _ if carries_piece(&request.call) => {
                let empty = (attributes.flags, attributes.expiry);
                let added = shard.pieces.add(&mut shards.at(at), key, [b"", b""], empty, now);
                Some(added.map_err(|_| "SERVER_ERROR out of memory storing object")?)
            }
            _ => None,
        };
        if let (Some(piece), Some(bytes)) = (piece, in_file) {
            shard.pieces.count_file(piece, bytes);
        }
        if let (Some(piece), true) = (piece, of_repair && (attributes.is_final || self.files.is_frozen(key))) {
            shard.pieces.make_final(piece);
            if attributes.is_clean || self.files.is_persisted(key) {
                shard.pieces.make_clean(piece);
            }
        }
        if let (Some(piece), true) = (piece, carries_piece(&request.call)) {
            put_chunk(&mut request.call, Chunk(piece));
        }
        let arguments = arguments.map(|arguments| (arguments, piece));
        let is_read = matches!(request.call, Call::Read | Call::Fetch { .. });
        let stays = self.take(&mut shard, (shards, at), (key, now), request, arguments);
        self.note(&stays.answer);
        // A piece stays where it is the next or the current one, or is staged.
        if let Some(piece) = piece {
            let named = |stored: Option<&Stored>| stored.is_some_and(|stored| stored.piece.chunk == Chunk(piece));
            let replica = shard.get(key);
            let is_kept = stays.answer == Answer::Staged
                || replica.is_some_and(|replica| named(replica.current()) || named(replica.next()));
            if !is_kept {
                shard.pieces.free(&mut shards.at(at), piece, now);
            }
        }
        let (named, carried) = pieces(&stays.answer, is_read);
        let of = |piece: Option<&Piece>| piece.and_then(|piece| shard.pieces.get(piece.chunk.0));
        let is_final = named.is_some_and(|piece| shard.pieces.is_final(piece.chunk.0));
        let is_clean = is_final && named.is_some_and(|piece| shard.pieces.is_clean(piece.chunk.0));
        let attributes = of(named).map(|(_, flags, expiry)| Attributes { flags, expiry, is_final, is_clean });
        let attributes = attributes.unwrap_or_default();
        let bytes = of(carried).map(|(bytes, ..)| bytes).unwrap_or_default();
        reply(&ReplyFrame { attributes, reply: stays.clone() }, bytes);
        Ok(())
    }

    /// Answers a call of an agent, which is for no key. `page` gets the keys that travel with the reply.
    fn for_agent(&self, shards: &Shards, (key, now): (&[u8], u64), request: Request, page: &mut Vec<u8>) -> Reply {
        if let Call::FatesAfter { shard: at, .. } = request.call
            && let Some(at) = usize::try_from(at).ok().filter(|&at| at < self.shards.len())
        {
            return self.take(&mut self.shard(at), (shards, at), (key, now), request, None);
        }
        let (standing, cluster) = {
            let membership = self.membership();
            (membership.standing(key, clock::boot()), membership.config().map(Config::uuid))
        };
        let Some(standing) = standing.filter(|standing| standing.has_right && cluster == Some(request.cluster)) else {
            return Reply { epoch: Epoch(0), id: None, answer: Answer::NotServing };
        };
        let answer = match request.call {
            _ if standing.epoch != request.epoch => Answer::OtherEpoch,
            Call::Keys { select, from } => self.keys((select, from), now, page),
            Call::Freeze(frozen) => self.freeze(shards, &frozen, page),
            Call::Persisted(frozen) => self.persisted(shards, &frozen),
            Call::Carry { file, frozen } => {
                let order = Order { cluster: request.cluster, epoch: request.epoch, file, frozen };
                // Without a directory it has written nothing.
                let ended = if self.has_backing { self.orders.ask(order) } else { Some(Vec::new()) };
                ended.map_or(Answer::Busy, Answer::Carried)
            }
            Call::Report(report) => {
                *self.report.lock().unwrap_or_else(PoisonError::into_inner) = (standing.epoch, report);
                if report.lost > 0 {
                    *self.lost.lock().unwrap_or_else(PoisonError::into_inner) = (report.lost, standing.epoch.0);
                }
                if report.is_done {
                    self.membership().repaired(standing.epoch);
                }
                Answer::Taken
            }
            _ => Answer::Fates(None),
        };
        Reply { epoch: standing.epoch, id: None, answer }
    }

    /// Refuses changes of a generation's chunks from now on. It is frozen once no write of one is under way here: `page` gets those that are.
    fn freeze(&self, shards: &Shards, frozen: &Frozen, page: &mut Vec<u8>) -> Answer {
        if !self.files.freeze(frozen) {
            return Answer::Busy;
        }
        // Also those that a repair brings later are final: it takes the mark along.
        let mut is_busy = false;
        for (_, key) in files::chunks_of(frozen) {
            let mut shard = self.shard(shards.of(key.as_bytes()));
            let Some(replica) = shard.get(key.as_bytes()) else { continue };
            if replica.next().is_some() {
                is_busy = true;
                if page.len() < PAGE {
                    let is_primary = self.is_primary(key.as_bytes());
                    entries(key.as_bytes(), replica, Select::Unsettled, (is_primary, false), page);
                }
            }
            let current = replica.current().map(|current| current.piece.chunk.0);
            current.into_iter().for_each(|current| shard.pieces.make_final(current));
        }
        if is_busy { Answer::Busy } else { Answer::Taken }
    }

    /// Takes a generation that the backing shows. Its chunks stay final, and are clean: they may be evicted.
    fn persisted(&self, shards: &Shards, frozen: &Frozen) -> Answer {
        self.files.persisted(frozen);
        for (_, key) in files::chunks_of(frozen) {
            let mut shard = self.shard(shards.of(key.as_bytes()));
            if let Some(current) = shard.get(key.as_bytes()).and_then(Replica::current) {
                let number = current.piece.chunk.0;
                shard.pieces.make_final(number);
                shard.pieces.make_clean(number);
            }
        }
        Answer::Taken
    }

    /// Copies a chunk of a frozen generation, if this server may answer with it. Returns whether it did.
    pub(crate) fn copy_final(&self, shards: &Shards, key: &[u8], out: &mut Vec<u8>) -> bool {
        let shard = self.shard(shards.of(key));
        // While a write is under way, the value before it may be marked already.
        let replica = shard.get(key).filter(|replica| replica.next().is_none());
        let Ok(Some(current)) = self.answer(replica, key).and_then(whole) else { return false };
        let piece = shard.pieces.get(current.piece.chunk.0).filter(|_| shard.pieces.is_final(current.piece.chunk.0));
        out.clear();
        piece.inspect(|(bytes, ..)| out.extend_from_slice(bytes)).is_some()
    }

    /// Returns whether a chunk of a file has room beside others. Clean ones make room for it.
    fn admits(
        &self,
        shards: &Shards,
        at: usize,
        shard: &mut Replicas,
        (key, now): (&[u8], u64),
        (bytes, is_repair): (u64, bool),
    ) -> bool {
        let limits = self.files.limits(shards.at(at).memory_for_items());
        let admits = match limits.admit(shard.pieces.file_bytes(), bytes, is_repair) {
            Admission::Fits => true,
            Admission::After(bytes) => self.evict_clean((shards, at), shard, (key, now), bytes) || is_repair,
            Admission::Refused => false,
        };
        if !admits {
            count(&self.files.counts().refused);
        }
        admits
    }

    fn is_primary(&self, key: &[u8]) -> bool {
        self.membership().standing(key, clock::boot()).is_some_and(|standing| standing.role == Role::Primary)
    }

    /// Evicts a clean chunk of a file for a piece that finds no memory. Returns whether one went.
    pub(super) fn make_room(&self, shards: &Shards, key: &[u8], now: u64, piece: &mut Eviction) -> bool {
        let at = shards.of(key);
        let mut shard = self.shard(at);
        let Some(config) = self.policies_for(key) else { return false };
        let is_gone = shard.evict_for((shards, at), &config, now, piece);
        add(&self.files.counts().evicted, u64::from(is_gone));
        is_gone
    }

    /// Evicts the oldest clean chunks of files until so many bytes of memory are free. Returns false if there are too few.
    ///
    /// Each server does this by itself. A client that finds none at the primary, or too few fragments, reads the backing directory.
    fn evict_clean(&self, of: (&Shards, usize), shard: &mut Replicas, (key, now): (&[u8], u64), bytes: u64) -> bool {
        let Some(config) = self.policies_for(key) else { return false };
        let (evicted, is_enough) = shard.evict_clean(of, &config, now, bytes);
        add(&self.files.counts().evicted, evicted);
        is_enough
    }

    /// Returns the configuration by which chunks are evicted for a key. None while keys are taken into an epoch: then none goes.
    fn policies_for(&self, key: &[u8]) -> Option<Arc<Config>> {
        self.membership().standing(key, clock::boot())?;
        self.policies.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Appends the entries of a page of keys. Looks at a bounded number of them.
    fn keys(&self, (select, from): (Select, Place), now: u64, page: &mut Vec<u8>) -> Answer {
        let Some(at) = usize::try_from(from.shard).ok().filter(|&at| at < self.shards.len()) else {
            return Answer::Keys { next: None, left: 0 };
        };
        let below = self.shard(at).page((select, from.below), now, |key| self.is_primary(key), page);
        let later = (at + 1..self.shards.len()).map(|at| self.shard(at).length());
        let left = (below + later.sum::<usize>()) as u64;
        let next = match below {
            0 if at + 1 < self.shards.len() => Some(Place { shard: from.shard + 1, ..Place::FIRST }),
            0 => None,
            below => Some(Place { shard: from.shard, below: below as u64 }),
        };
        Answer::Keys { next, left }
    }

    /// Answers a call for whose piece there is no memory. Before a write is ordered, that declines it, and a repair at any time.
    fn decline(&self, request: &Request, reply: impl FnOnce(&ReplyFrame, &[u8])) -> Result<(), NoReply> {
        if !matches!(request.call, Call::Stage { .. } | Call::Order { .. } | Call::Repair { .. }) {
            return Err("SERVER_ERROR out of memory storing object");
        }
        let epoch = self.membership().config().map_or(Epoch(0), Config::epoch);
        let answer = Answer::Done(Verdict::Declined(Refusal::NoMemory));
        reply(&ReplyFrame::new(Reply { epoch, id: request.call.id(), answer }), b"");
        Ok(())
    }

    /// Has the member of a shard take a call, and returns its reply.
    fn take(
        &self,
        shard: &mut Replicas,
        of: (&Shards, usize),
        (key, now): (&[u8], u64),
        request: Request,
        arguments: Option<(Arguments, Option<u64>)>,
    ) -> Reply {
        let standing = self.membership().standing(key, clock::boot());
        let is_frozen = matches!(request.call, Call::Stage { .. } | Call::Order { .. } | Call::Publish { .. })
            && self.files.is_frozen(key);
        let (reply, needs_epoch) = shard.take(of, (key, now), (standing, is_frozen), request, arguments);
        if needs_epoch && let Some(standing) = standing {
            self.membership().needs_epoch(standing.epoch);
        }
        reply
    }

    fn note(&self, answer: &Answer) {
        match answer {
            Answer::Help(_) => count(&self.counts.helped),
            Answer::OtherEpoch => count(&self.counts.other_epochs),
            Answer::NotServing => count(&self.counts.not_serving),
            Answer::Fenced => count(&self.counts.fenced),
            Answer::Done(Verdict::Stored(_)) => count(&self.counts.published),
            _ => {}
        }
    }

    /// Reads a value for a plain client, if this server may answer for the key. `found` gets it, or None.
    pub(super) fn read<T>(
        &self,
        shards: &Shards,
        key: &[u8],
        now: u64,
        found: impl FnOnce(Option<Value<'_>>) -> T,
    ) -> Result<T, NoReply> {
        let shard = self.shard(shards.of(key));
        let Some(current) = whole(self.answer(shard.get(key), key)?)? else { return Ok(found(None)) };
        let piece = shard.pieces.get(current.piece.chunk.0).filter(|&(.., expiry)| expiry == 0 || expiry > now);
        Ok(found(piece.map(|(bytes, flags, _)| Value { bytes, flags, version: current.version.0 })))
    }

    /// Shows the value of a key to a client that asks for it over a fabric, if this server may answer for the key. `found` gets it, or
    /// None, under the store's lock.
    pub(crate) fn show<T>(
        &self,
        shards: &Shards,
        key: &[u8],
        now: u64,
        found: impl FnOnce(&mut Store, Option<Handle>) -> T,
    ) -> Result<T, NoReply> {
        let at = shards.of(key);
        let mut shard = self.shard(at);
        let current = whole(self.answer(shard.get(key), key)?)?.filter(|current| !shard.is_over(Some(current), now));
        let current = current.map(|current| (current.piece.chunk.0, (current.version.0, current.piece.sum)));
        let mut store = shards.at(at);
        let Some((number, about)) = current else { return Ok(found(&mut store, None)) };
        match shard.pieces.show(&mut store, number, about) {
            None => Err("SERVER_ERROR value without a chunk: use rdmakv"),
            shown => Ok(found(&mut store, shown)),
        }
    }

    /// Lets a client read the piece of a key by a tag. A primary lends the one that it may answer with, and a backup its newest fragment.
    /// `found` gets it, or None, under the store's lock.
    pub(crate) fn lend<T>(
        &self,
        shards: &Shards,
        key: &[u8],
        now: u64,
        found: impl FnOnce(&mut Store, Option<Handle>) -> T,
    ) -> Result<T, NoReply> {
        let at = shards.of(key);
        let mut shard = self.shard(at);
        let replica = shard.get(key);
        let role = self.membership().standing(key, clock::boot()).map(|standing| standing.role);
        let is_held = role == Some(Role::Backup);
        let stored = if is_held { replica.and_then(Replica::newest_fragment) } else { self.answer(replica, key)? };
        let stored = stored.filter(|stored| !shard.is_over(Some(stored), now));
        let stored = stored.map(|stored| (stored.piece.chunk.0, (stored.version.0, stored.piece.sum)));
        let mut store = shards.at(at);
        let Some((number, about)) = stored else { return Ok(found(&mut store, None)) };
        let pieces = &mut shard.pieces;
        let lent =
            if is_held { pieces.hold(&mut store, number, about) } else { pieces.show(&mut store, number, about) };
        Ok(found(&mut store, lent))
    }

    /// Returns the value with which this server may answer for a key; None if the key is absent.
    fn answer<'a>(&self, replica: Option<&'a Replica>, key: &[u8]) -> Result<Option<&'a Stored>, NoReply> {
        let standing = self.membership().standing(key, clock::boot()).ok_or(NOT_YET)?;
        match (standing.role, replica) {
            (Role::Backup | Role::Outside, _) => return Err(RESILIENT),
            _ if !standing.has_right => return Err(NO_RIGHT),
            _ if standing.is_fenced => return Err(NOT_YET),
            // Only clients of the cluster can complete its last write.
            (_, Some(replica)) if replica.is_ambiguous() => return Err(RESILIENT),
            _ => {}
        }
        Ok(replica.and_then(Replica::current).filter(|current| current.is_value()))
    }

    /// Returns whether a tag may be granted now that a client may use for so long.
    pub(crate) fn allows_tag(&self, lasting: Duration) -> bool {
        self.membership().allows_tag(clock::boot(), u64::try_from(lasting.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Answers a ping: this run, its epoch, the time since 1970 in nanoseconds, and whether it has a right.
    pub(super) fn ping(&self) -> (Incarnation, Epoch, u128, bool) {
        let membership = self.membership();
        let epoch = membership.config().map_or(Epoch(0), Config::epoch);
        (membership.run(), epoch, clock::since_1970().as_nanos(), membership.is_in_force(clock::boot()))
    }

    /// Begins to take all keys into the epoch that the membership adopted.
    fn begin_adoption(&self) {
        let (config, run) = {
            let membership = self.membership();
            (membership.config().cloned().map(Arc::new), membership.run())
        };
        let Some(config) = config else { return };
        let replaced = self.policies.write().unwrap_or_else(PoisonError::into_inner).replace(config.clone());
        let before = self.adopted.lock().unwrap_or_else(PoisonError::into_inner).replace(config.clone());
        let adoption = Adoption::of(before.as_deref(), replaced, config, run);
        *self.adoption.lock().unwrap_or_else(PoisonError::into_inner) = Some(adoption);
    }

    /// Does the next step of an adoption. Returns whether another one is to follow: the membership goes on between two.
    ///
    /// No call is answered until the last one, so no key comes or goes between two steps.
    pub fn adopt_more(&self, shards: &Shards) -> bool {
        let mut adopting = self.adoption.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(adoption) = &mut *adopting else { return false };
        match *adoption.step() {
            Step::Shard(at) => {
                let mut shard = self.shard(at);
                shard.begin_epoch((shards, at), adoption.config());
                adoption.took(shard.length(), shard.has_nothing(), self.shards.len());
            }
            Step::Keys(at, below) => {
                let mut shard = self.shard(at);
                let left = below.saturating_sub(adoption::KEYS);
                shard.adopt((shards, at), (left, below), adoption);
                adoption.took(left, shard.has_nothing(), self.shards.len());
            }
            Step::Items(..) => adoption.drop_moved(shards),
            Step::Done => {}
        }
        if !matches!(adoption.step(), Step::Done) {
            return true;
        }
        count(&self.counts.adoptions);
        let mut membership = self.membership();
        membership.adopted();
        if adoption.has_nothing() {
            // Without keys and fates there is nothing to repair: no agent is needed for that.
            membership.repaired(adoption.config().epoch());
        }
        *adopting = None;
        false
    }

    /// Waits until no call is answered that began under a right, and covers what tags lead to: no value is read after that.
    fn hold(&self, shards: &Shards) {
        (0..self.shards.len()).for_each(|at| self.shard(at).pieces.cover(&mut shards.at(at)));
        self.membership().held();
    }

    /// Drops all values of resilient keys, and what is known of their writes.
    fn empty(&self, shards: &Shards) {
        for at in 0..self.shards.len() {
            self.shard(at).clear((shards, at));
        }
        self.files.clear();
        // The next configuration is the first of another run. Until then keys are resilient or plain as they were.
        *self.adopted.lock().unwrap_or_else(PoisonError::into_inner) = None;
        count(&self.counts.restarts);
    }

    /// Returns the state at this moment.
    pub fn gauges(&self, shards: &Shards) -> ClusterGauges {
        let mut gauges = ClusterGauges::default();
        {
            let membership = self.membership();
            let config = membership.config();
            gauges.epoch = config.map_or(0, |config| config.epoch().0);
            gauges.is_whole = config.is_some_and(Config::is_whole);
            gauges.servers = config.map_or(0, |config| config.servers().len() as u64);
            let (epoch, report) = *self.report.lock().unwrap_or_else(PoisonError::into_inner);
            gauges.repair = if Some(epoch) == config.map(Config::epoch) { report } else { Report::default() };
            gauges.lost = *self.lost.lock().unwrap_or_else(PoisonError::into_inner);
            gauges.has_right = membership.has_right(clock::boot());
            gauges.etcd = match membership.mismatch() {
                None => "same",
                Some(Mismatch::Gone) => "gone",
                Some(Mismatch::Other(_)) => "other",
                Some(Mismatch::Earlier) => "earlier",
            };
            gauges.part = match membership.part() {
                Part::Unknown => "unknown",
                Part::Outside => "outside",
                Part::Member(state) => state.name(),
                Part::Over => "removed",
                Part::Drained => "drained",
            };
        }
        for at in 0..self.shards.len() {
            let shard = self.shard(at);
            shard.count(&mut gauges);
            let (dirty, clean) = shard.pieces.file_bytes();
            let most = self.files.limits(shards.at(at).memory_for_items()).dirty;
            let files = gauges.files;
            gauges.files = (files.0 + dirty, files.1 + clean, files.2 + most);
        }
        gauges
    }
}

/// Checks that the bytes with a call are those that it announces.
fn check(frame: &RequestFrame, piece: Option<&[u8]>) -> Result<(), NoReply> {
    let call = &frame.request.call;
    let adds = matches!(frame.arguments, Some(Arguments::Append | Arguments::Prepend));
    if piece.is_some() && !carries_piece(call) && !adds {
        return Err("CLIENT_ERROR bytes without a piece");
    }
    let bytes = piece.unwrap_or_default();
    let Some(piece) = call.piece() else { return Ok(()) };
    let is_good = match piece.form {
        Form::Copy => piece.length == bytes.len() as u64 && piece.sum == sum(bytes),
        Form::Fragment { k, index } => usize::try_from(piece.length)
            .is_ok_and(|whole| bytes.len() == piece_length(whole, usize::from(k), usize::from(index))),
        Form::Tombstone => bytes.is_empty(),
    };
    if is_good { Ok(()) } else { Err("CLIENT_ERROR bytes that are not the piece") }
}

fn put_chunk(call: &mut Call, chunk: Chunk) {
    match call {
        Call::Stage { piece, .. } | Call::Repair { piece, .. } => piece.chunk = chunk,
        Call::Order { change: Change::Put(piece), .. } => piece.chunk = chunk,
        Call::Seal { piece: Some(piece), .. } => piece.chunk = chunk,
        _ => {}
    }
}

/// Returns the piece that an answer names, and the one whose bytes go with it.
fn pieces(answer: &Answer, is_read: bool) -> (Option<&Piece>, Option<&Piece>) {
    match answer {
        Answer::Ordered { computed, .. } => (computed.as_ref(), computed.as_ref()),
        Answer::Help(pending) => {
            let stored = &pending.stored;
            (Some(&stored.piece), (!stored.is_staged).then_some(&stored.piece))
        }
        Answer::Value(Some(stored)) => (Some(&stored.piece), is_read.then_some(&stored.piece)),
        _ => (None, None),
    }
}

/// Returns the value of a key, unless this server has a fragment of it only.
fn whole(current: Option<&Stored>) -> Result<Option<&Stored>, NoReply> {
    if current.is_some_and(|current| current.piece.form != Form::Copy) { Err(RESILIENT) } else { Ok(current) }
}
