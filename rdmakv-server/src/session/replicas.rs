//! The resilient keys of a shard: a member of the cluster, the replicas of its keys, and their pieces in the store.

use super::Shards;
use super::adoption::Adoption;
use crate::metrics::ClusterGauges;
use crate::store::{self, Pieces, Refused};
use crc_fast::{CrcAlgorithm, checksum};
use indexmap::IndexMap;
use rdmakv_cluster::config::{Config, Epoch};
use rdmakv_cluster::member::{CallId, Chunks, Member, Replica, Standing};
use rdmakv_cluster::messages::{
    Answer, Call, Chunk, Condition, Form, Piece, Refusal, Reply, Request, Select, Stored, Version, WriteId,
};
use rdmakv_cluster::wire::{About, Arguments, Entry};
use rdmakv_proto::clock;

/// Bytes of a page of keys after which no other key is added.
pub(super) const PAGE: usize = 48 << 10;

/// Keys that are looked at for a page under one lock: those whose part is computed, and those at which a look is enough.
const LISTED: (usize, usize) = (250, 10_000);

/// Clean chunks of files that are evicted for one piece at most. Those of other sizes make room for it once a page of theirs is empty.
const EVICTIONS: u32 = 256;

/// Leased ones among these, whose memory is free only once their leases end, and those that are passed over for others.
const LEASED: u32 = 4;
const PASSED: u32 = 4096;

/// The clean chunks of files that were evicted for one piece, which found no memory.
#[derive(Debug, Default)]
pub(super) struct Eviction {
    evicted: u32,
    leased: u32,
    passed: u32,
    /// The last chunk that was looked at.
    last: Option<u64>,
}

/// Whether a clean chunk was evicted.
enum Evicted {
    Yes,
    /// Its key is being written.
    NotNow,
    /// Its policy keeps clean chunks.
    Never,
}

/// The replicas of one shard.
#[derive(Debug)]
pub(super) struct Replicas {
    /// None before the cluster is known.
    member: Option<Member>,
    /// A key that is removed leaves its place to the last one. So keys go down only, and an agent that reads them downward misses none.
    keys: IndexMap<Box<[u8]>, Replica>,
    pub(super) pieces: Pieces,
    unsettled: Unsettled,
    /// Seconds that clocks of servers may be apart.
    clock_skew: u64,
}

impl Replicas {
    pub(super) fn new(clock_skew: u64) -> Self {
        Self {
            member: None,
            keys: IndexMap::new(),
            pieces: Pieces::default(),
            unsettled: Unsettled::default(),
            clock_skew,
        }
    }

    /// Returns the replica of a key.
    pub(super) fn get(&self, key: &[u8]) -> Option<&Replica> {
        self.keys.get(key)
    }

    /// Returns how many keys have replicas.
    pub(super) fn length(&self) -> usize {
        self.keys.len()
    }

    /// Returns whether it has no key, and knows no fate.
    pub(super) fn has_nothing(&self) -> bool {
        self.keys.is_empty() && self.member.as_ref().is_none_or(|member| member.fates().is_empty())
    }

    /// Returns whether a value has expired.
    pub(super) fn is_over(&self, stored: Option<&Stored>, now: u64) -> bool {
        is_over(stored, &self.pieces, now)
    }

    /// Adds its part to a server's state.
    pub(super) fn count(&self, gauges: &mut ClusterGauges) {
        gauges.keys += self.keys.len() as u64;
        gauges.pending += self.unsettled.pending;
        gauges.ambiguous += self.unsettled.ambiguous;
        gauges.staged_bytes += self.member.as_ref().map_or(0, Member::staged_bytes);
        let (pieces, bytes) = self.pieces.size();
        gauges.pieces = (gauges.pieces.0 + pieces as u64, gauges.pieces.1 + bytes);
    }

    /// Drops all.
    pub(super) fn clear(&mut self, (shards, at): (&Shards, usize)) {
        self.pieces.clear(&mut shards.at(at), clock::now());
        (self.member, self.keys, self.unsettled) = (None, IndexMap::new(), Unsettled::default());
    }

    /// Begins to take its keys into an epoch of this cluster.
    pub(super) fn begin_epoch(&mut self, (shards, at): (&Shards, usize), config: &Config) {
        // Another server may be the primary now. Where this one still is, clients ask once more.
        self.pieces.cover(&mut shards.at(at));
        self.member.get_or_insert_with(|| Member::new(config.uuid()));
        self.unsettled = Unsettled::default();
    }

    /// Takes the keys from one place up to another into an epoch.
    ///
    /// The last one is the first: a key that is dropped leaves its place to one that was taken.
    pub(super) fn adopt(&mut self, (shards, at): (&Shards, usize), (from, to): (usize, usize), adoption: &Adoption) {
        let Self { member: Some(member), keys, pieces, unsettled: tally, clock_skew } = self else { return };
        let (now, clock_skew) = (clock::now(), *clock_skew);
        for place in (from..to).rev() {
            let Some((key, replica)) = keys.get_index_mut(place) else { continue };
            let (before, standing, gaps) = adoption.of_key(key);
            let (arguments, is_over, is_frozen) = (None, false, false);
            let mut chunks = Lent { pieces, shards, at, key, now, arguments, is_over, is_frozen, clock_skew };
            // No order waits, so there are no replies.
            let _ = member.adopt(replica, before, &standing, gaps, &mut chunks);
            tally.change((false, false), unsettled(replica));
            if replica.current().is_none() && replica.is_idle() {
                keys.swap_remove_index(place);
            }
        }
    }

    /// Evicts the oldest clean chunks of files until so many bytes of memory are free. Returns how many went, and whether these were enough.
    pub(super) fn evict_clean(&mut self, of: (&Shards, usize), config: &Config, now: u64, bytes: u64) -> (u64, bool) {
        let (before, mut evicted, mut last) = (self.pieces.file_bytes().1, 0, None);
        while before - self.pieces.file_bytes().1 < bytes {
            let Some(number) = self.pieces.next_clean(last) else { return (evicted, false) };
            last = Some(number);
            match self.evict(of, config, now, number) {
                Evicted::Yes => evicted += 1,
                Evicted::NotNow => {}
                Evicted::Never => return (evicted, false),
            }
        }
        (evicted, true)
    }

    /// Evicts one more clean chunk for a piece: the oldest that no client may read by a lease, or one of [`LEASED`] others. Returns whether one
    /// went.
    pub(super) fn evict_for(&mut self, of: (&Shards, usize), config: &Config, now: u64, piece: &mut Eviction) -> bool {
        if piece.evicted >= EVICTIONS {
            return false;
        }
        while piece.passed < PASSED
            && let Some(number) = self.pieces.next_clean(piece.last)
        {
            piece.last = Some(number);
            if self.pieces.is_leased(number) {
                piece.passed += 1;
                continue;
            }
            match self.evict(of, config, now, number) {
                Evicted::Yes => {
                    piece.evicted += 1;
                    return true;
                }
                Evicted::NotNow => {}
                Evicted::Never => return false,
            }
        }
        if piece.leased >= LEASED {
            return false;
        }
        piece.leased += 1;
        self.evict_clean(of, config, now, 1).1
    }

    fn evict(&mut self, (shards, at): (&Shards, usize), config: &Config, now: u64, number: u64) -> Evicted {
        let Self { keys, pieces, .. } = self;
        let Some(key) = pieces.key(number).map(Box::<[u8]>::from) else { return Evicted::NotNow };
        if !config.evicts_clean(&key) {
            return Evicted::Never;
        }
        let is_it =
            |replica: &&mut Replica| replica.current().is_some_and(|current| current.piece.chunk == Chunk(number));
        // One whose key is being written stays for now.
        let Some(piece) = keys.get_mut(&key).filter(is_it).and_then(Replica::evict) else { return Evicted::NotNow };
        pieces.free(&mut shards.at(at), piece.chunk.0, now);
        keys.swap_remove(&key);
        Evicted::Yes
    }

    /// Appends the entries of a page of keys, from one place downward. Looks at a bounded number of them, and returns where it ends.
    pub(super) fn page(
        &self,
        (select, below): (Select, u64),
        now: u64,
        is_primary: impl Fn(&[u8]) -> bool,
        page: &mut Vec<u8>,
    ) -> usize {
        let mut below = usize::try_from(below).unwrap_or(usize::MAX).min(self.keys.len());
        let (mut computed, end) = (0, below.saturating_sub(LISTED.1));
        while below > end && computed < LISTED.0 && page.len() < PAGE {
            below -= 1;
            let Some((key, replica)) = self.keys.get_index(below) else { break };
            let is_over = self.is_over(replica.current(), now);
            let is_settled = replica.is_idle() && replica.current().is_some_and(Stored::is_value);
            if is_settled && !is_over && select == Select::Unsettled {
                continue;
            }
            computed += 1;
            entries(key, replica, select, (is_primary(key), is_over), page);
        }
        below
    }

    /// Notes the connection that the next call came over.
    pub(super) fn set_connection(&mut self, connection: u64) {
        self.member.iter_mut().for_each(|member| member.set_connection(connection));
    }

    /// Has the member take a call. Returns its reply, and whether the call is of a later epoch.
    pub(super) fn take(
        &mut self,
        (shards, at): (&Shards, usize),
        (key, now): (&[u8], u64),
        (standing, is_frozen): (Option<Standing>, bool),
        mut request: Request,
        arguments: Option<(Arguments, Option<u64>)>,
    ) -> (Reply, bool) {
        let (id, boot) = (request.call.id(), clock::boot());
        let clock_skew = self.clock_skew;
        let Self { member, keys, pieces, unsettled: tally, .. } = self;
        let (Some(standing), Some(member)) = (standing, member) else {
            return (Reply { epoch: Epoch(0), id, answer: Answer::NotServing }, false);
        };
        let mut absent = Replica::default();
        let is_known = keys.contains_key(key);
        let replica = keys.get_mut(key).unwrap_or(&mut absent);
        let before = unsettled(replica);
        let is_over = is_over(replica.current(), pieces, now);
        if let Call::Order { condition, .. } = &mut request.call
            && is_over
        {
            // An expired value counts as absent, but its chunk is still there. So a condition that needs a value becomes one that fails.
            *condition = match *condition {
                Condition::Always | Condition::Absent => Condition::Always,
                Condition::Present | Condition::Version(_) => Condition::Absent,
            };
        }
        if let Call::Forget { version } = request.call
            && is_over
            && replica.current().is_some_and(|current| current.version == version)
        {
            replica.end_value();
        }
        let is_read = matches!(request.call, Call::Read);
        let call_id = CallId(0);
        let mut chunks = Lent { pieces, shards, at, key, now, arguments, is_over, is_frozen, clock_skew };
        let mut replies = member.take(replica, &standing, (call_id, request), boot, &mut chunks);
        if replies.is_empty() {
            // An order never waits here, or it would block its connection: its client completes the write before it.
            replies = member.dismiss(replica, &standing, &mut chunks);
        }
        let needs_epoch = member.needs_epoch(standing.epoch);
        let mut reply = replies
            .into_iter()
            .find(|(of, _)| *of == call_id)
            .map_or(Reply { epoch: standing.epoch, id, answer: Answer::Busy }, |(_, reply)| reply);
        if is_read && is_over && matches!(reply.answer, Answer::Value(_)) {
            reply.answer = Answer::Value(None);
        }
        tally.change(before, unsettled(replica));
        let is_empty = replica.current().is_none() && replica.is_idle();
        match (is_known, is_empty) {
            (false, false) => _ = keys.insert(key.into(), absent),
            (true, true) => _ = keys.swap_remove(key),
            _ => {}
        }
        (reply, needs_epoch)
    }
}

/// Keys whose last write is not known to be published.
#[derive(Clone, Copy, Debug, Default)]
struct Unsettled {
    pending: u64,
    ambiguous: u64,
}

impl Unsettled {
    fn change(&mut self, before: (bool, bool), after: (bool, bool)) {
        self.pending = self.pending + u64::from(after.0) - u64::from(before.0);
        self.ambiguous = self.ambiguous + u64::from(after.1) - u64::from(before.1);
    }
}

/// Returns whether a write is pending, and whether it is ambiguous.
fn unsettled(replica: &Replica) -> (bool, bool) {
    (replica.next().is_some(), replica.is_ambiguous())
}

/// Appends what an agent asked for of one key.
///
/// A value that has expired is as good as a tombstone.
pub(super) fn entries(
    key: &[u8],
    replica: &Replica,
    select: Select,
    (is_primary, is_over): (bool, bool),
    page: &mut Vec<u8>,
) {
    let mut put = |about: About, id: WriteId, version: Version, length: u64| {
        Entry { key: key.to_vec(), about, id, version, length }.encode(page);
    };
    let of = |stored: &Stored| (stored.id, stored.version, stored.piece.length);
    let (current, next) = (replica.current(), replica.next());
    match select {
        Select::Primary => {
            if let Some(stored) = current.or(next).filter(|_| is_primary) {
                let (id, version, length) = of(stored);
                put(About::Value, id, version, length);
            }
        }
        Select::Unsettled => {
            if let Some((id, version, length)) = next.map(of) {
                put(if is_primary { About::Next } else { About::Sealed }, id, version, length);
            }
            let is_absent = |current: &&Stored| is_primary && (is_over || !current.is_value());
            if let Some((id, version, _)) = current.filter(is_absent).map(of) {
                put(About::Tombstone, id, version, 0);
            }
            // Others of this key are told when these are gone.
            replica.staged().take(16).for_each(|id| put(About::Staged, id, Version::ABSENT, 0));
        }
    }
}

/// Returns the CRC32C of a value.
pub(super) fn sum(bytes: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// Returns whether a value has expired.
fn is_over(current: Option<&Stored>, pieces: &Pieces, now: u64) -> bool {
    let piece = current.filter(|current| current.is_value()).and_then(|current| pieces.get(current.piece.chunk.0));
    piece.is_some_and(|(.., expiry)| expiry != 0 && expiry <= now)
}

/// The chunks of a shard, lent to its member for one call.
struct Lent<'a> {
    pieces: &'a mut Pieces,
    shards: &'a Shards,
    at: usize,
    key: &'a [u8],
    /// Unix seconds.
    now: u64,
    /// Those of a computation, and the piece with the bytes to add.
    arguments: Option<(Arguments, Option<u64>)>,
    /// The value has expired.
    is_over: bool,
    /// The key is a chunk of a generation that is frozen.
    is_frozen: bool,
    /// Seconds that clocks of servers may be apart.
    clock_skew: u64,
}

impl Chunks for Lent<'_> {
    fn is_final(&self, value: Option<&Stored>) -> bool {
        let is_marked = |value: &Stored| value.is_value() && self.pieces.is_final(value.piece.chunk.0);
        self.is_frozen || value.is_some_and(is_marked)
    }

    fn compute(&mut self, value: Option<&Stored>, _: u64) -> Result<Piece, Refusal> {
        let (arguments, added) = self.arguments.ok_or(Refusal::Invalid)?;
        let value = value.filter(|_| !self.is_over);
        if value.is_some_and(|value| value.piece.form != Form::Copy) {
            return Err(Refusal::Invalid);
        }
        let before = value.and_then(|value| self.pieces.get(value.piece.chunk.0));
        let attributes = before.map_or((0, 0), |(_, flags, expiry)| (flags, expiry));
        let old = before.map(|(bytes, ..)| bytes);
        let number = || old.map(|bytes| store::number(bytes).ok_or(Refusal::Invalid)).transpose();
        let mut digits = itoa::Buffer::new();
        let added = added.and_then(|added| self.pieces.get(added)).map(|(bytes, ..)| bytes).unwrap_or_default();
        let parts: [&[u8]; 2] = match arguments {
            Arguments::Increment { by, initial } | Arguments::Decrement { by, initial } => {
                let is_up = matches!(arguments, Arguments::Increment { .. });
                let result = match number()? {
                    Some(number) if is_up => number.wrapping_add(by),
                    Some(number) => number.saturating_sub(by),
                    None => initial.ok_or(Refusal::NotStored)?,
                };
                [digits.format(result).as_bytes(), b""]
            }
            Arguments::Append => [old.ok_or(Refusal::NotStored)?, added],
            Arguments::Prepend => [added, old.ok_or(Refusal::NotStored)?],
        };
        // The pieces that it is made of must not be borrowed while it is kept.
        let bytes = parts.concat();
        let mut store = self.shards.at(self.at);
        let made = self.pieces.add(&mut store, self.key, [&bytes, b""], attributes, self.now);
        let chunk = Chunk(made.map_err(|refused| match refused {
            Refused::NoMemory => Refusal::NoMemory,
            Refused::TooLarge => Refusal::TooLarge,
        })?);
        Ok(Piece { chunk, form: Form::Copy, length: bytes.len() as u64, sum: sum(&bytes) })
    }

    fn publish(&mut self, _: Piece) {
        // It is shown when a client asks for it. The one before was freed, so tags lead to nothing.
    }

    fn end_early(&mut self, piece: Piece) {
        self.pieces.end_early(piece.chunk.0, self.clock_skew);
    }

    fn free(&mut self, piece: Piece) {
        self.pieces.free(&mut self.shards.at(self.at), piece.chunk.0, self.now);
    }
}
