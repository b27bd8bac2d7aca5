//! The bytes of calls and replies, as they travel between clients, servers and agents.
//!
//! A call goes with its key by the line `mx KEY BODYLEN CALLLEN [b]`, then a body of BODYLEN bytes, then `\r\n`. The first CALLLEN bytes of
//! the body are the call, and the rest is the piece, if the call has one. The answer is `MX BODYLEN REPLYLEN`, and a body of the same form.
//! With `b` the key is base64. Some calls, as [`Call::Fates`], are for no key, and any key will do.
//!
//! Numbers are little-endian. Bytes that are not named are zero, and so are those of a part that is absent. Each message has one encoding,
//! and a decoder refuses all others. It refuses a call that is for a version of a later epoch than its own, too; a condition may have any.
//!
//! ```text
//! call
//!    0 u8  version: 1      1 u8 kind       4 u32 epoch     8 u128 cluster; then, by kind, from 24:
//!    1 STAGE    id, piece
//!    2 ORDER    id, u64 lowest, u8 condition (0 always, 1 absent, 2 present, 3 version), u8 change (1 put, 2 staged, 3 compute), 6 zero,
//!               u64 version of the condition, piece of a put, arguments of a compute
//!    3 SEAL     id, u64 version, u64 base, piece or none
//!    4 PUBLISH  id, u64 version
//!    5 NOTE     id, u64 version, u64 lowest
//!    6 RESOLVE  id
//!    7 REFUSE   id
//!    8 READ
//!    9 SURVEY
//!   10 LIST     u64 version
//!   11 REPAIR   id, u64 version, piece
//!   12 FATES    u32 count, u32 zero, then for each: id, fate
//!   13 FORGET   u64 version
//!   14 FETCH    u64 version
//!   15 FATES AFTER  u32 shard, u8 1 if one is known, 3 zero, id
//!   16 KEYS     u32 shard, u8 which (1 primary, 2 unsettled), 3 zero, u64 below
//!   17 REPORT   u8 1 if all is done, 7 zero, u64 keys left, u64 keys done, u64 bytes sent, u64 keys lost, u64 keys with too few fragments,
//!               u64 keys that a server did not take, u64 milliseconds since the epoch began
//!   18 FREEZE   u64 inode, u64 generation, u64 size, u8 log2 of a chunk's bytes, u8 zero, u16 runs, u32 zero,
//!               then for each run: u32 first chunk, u32 count
//!   19 PERSISTED  the same
//!   20 CARRY    the same, then u64 inode of the data file
//!   21 LOCATE
//!
//! reply
//!    0 u8  version: 1      1 u8 kind       2 u8 1 if the call was for a write     4 u32 epoch     8 id; then, by kind, from 24:
//!    1 other epoch   2 not serving   3 fenced   4 busy   5 staged   8 lacks   11 refused   12 unknown   13 taken
//!    6 ORDERED  u64 version, u64 base, the computed piece or none
//!    7 SEALED   u64 version
//!    9 HELP     stored, u64 base
//!   10 DONE     fate: 1, 2 or 4
//!   14 REPAIRED u64 version
//!   15 VALUE    u8 1 if there is one, 7 zero, stored
//!   16 HAS      u8 1 if it has the version, u8 index, 6 zero
//!   17 FATES    u8 1 if there is such a shard, 7 zero, u32 count, u32 zero, then for each: id, fate
//!   18 KEYS     u32 shard, u8 1 if there are more, 3 zero, u64 below, u64 keys left
//!   19 CARRIED  u32 count, u32 zero, then so many u64: a bit for each chunk of the call
//!
//! id         16 bytes: u64 client, u64 sequence
//! piece      32 bytes: u8 form (0 none, 1 copy, 2 fragment, 3 tombstone), u8 k, u8 index, u8 zero, u32 CRC32C of the whole value,
//!            u64 length of the whole value, u64 expiry in Unix seconds (0 is never), u32 the client's flags,
//!            u8 marks (2 final), 3 zero
//! arguments  24 bytes: u8 1 incr, 2 decr, 3 append, 4 prepend; u8 1 if an absent value begins as the initial one; 6 zero;
//!            u64 delta, u64 initial value
//! fate       16 bytes: u8 1 stored, 2 declined, 3 refused, 4 flushed; u8 why it was declined (1 not stored, 2 exists, 3 invalid, 4 no memory,
//!            5 too large, 6 final); 6 zero; u64 version
//! entry      40 bytes and the key: u8 length of the key, u8 what (1 value, 2 tombstone, 3 next, 4 staged, 5 next of a backup), 6 zero, id,
//!            u64 version, u64 length of the whole value
//! stored     64 bytes: id, u64 version, u32 epoch confirmed, u8 1 if it is staged, 3 zero, piece
//! ```
//!
//! Bytes that follow a message in its body:
//!
//! ```text
//! STAGE, REPAIR, ORDER with put, SEAL with a piece     the piece
//! ORDER with append or prepend                         the bytes to add
//! ORDERED with a computed piece                        that piece
//! HELP                                                 the piece, unless it is staged
//! VALUE as the answer to READ or FETCH                 the piece; SURVEY and LOCATE are answered without
//! KEYS                                                 entries
//! busy as the answer to FREEZE                         entries of writes of these chunks that are under way: as many as a page has
//! all others                                           none
//! ```
//!
//! An ORDER never waits at the server, or it would block its connection. While another write of the key is pending the answer is HELP: the
//! client completes that write, and sends its own again.
//!
//! The number of a chunk is its driver's and does not travel: decoders give [`Chunk`]`(0)` and [`Change::Compute`]`(0)`.

use crate::ids::{Epoch, MAX_EPOCH, MAX_SERVERS, Version, WriteId};
use crate::messages::{
    Answer, Call, Change, Chunk, Condition, Fate, Form, Frozen, MAX_CARRIED, MAX_RUNS, Pending, Piece, Place, Refusal,
    Reply, Report, Request, Select, Stored, Verdict,
};

/// The version of these layouts.
pub const VERSION: u8 = 1;

/// Bytes before those of a call's or a reply's kind.
pub const HEADER: usize = 24;

pub use crate::fates::MAX_FATES;

/// Bytes of a call at most: those of [`Call::Fates`] with [`MAX_FATES`].
pub const MAX_CALL: usize = HEADER + 8 + MAX_FATES * FATE;

/// Bytes of a reply at most: those of [`Answer::Fates`] with [`MAX_FATES`].
pub const MAX_REPLY: usize = HEADER + 16 + MAX_FATES * FATE;

/// Chunks of a file at most.
const MAX_CHUNKS: u64 = 1 << 17;

/// Bytes of a write's number with its fate.
const FATE: usize = 32;

/// Why bytes are no message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// Another version of the layouts.
    #[error("read message: its layout has version {0} and not {VERSION}: run the same release on servers and clients")]
    Version(u8),
    /// The message ends before its last field.
    #[error("read message: it ends too early: send all of it")]
    Short,
    /// Bytes follow the last field.
    #[error("read message: bytes follow its end: send its length with the line")]
    Long,
    /// A field has a value that it cannot have.
    #[error("read message: its {0} is none: see the table of layouts")]
    Field(&'static str),
}

/// The facts of a value that travel with its piece.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Attributes {
    /// The client's flags.
    pub flags: u32,
    /// When it ends, in Unix seconds; 0 is never.
    pub expiry: u64,
    /// It never changes: it is a chunk of a file's frozen generation. A server believes that only of a repair.
    pub is_final: bool,
    /// It is final, and the backing directory has it, so it may be evicted. A server believes that only of a repair.
    pub is_clean: bool,
}

/// The arguments of a write that the primary computes. The result has the attributes of the value before; an initial value has none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Arguments {
    /// Adds to a decimal number. It wraps at 2⁶⁴.
    Increment {
        /// The number to add.
        by: u64,
        /// The value of a key that is absent; without one the write is declined.
        initial: Option<u64>,
    },
    /// Subtracts from a decimal number, down to 0.
    Decrement {
        /// The number to subtract.
        by: u64,
        /// The value of a key that is absent; without one the write is declined.
        initial: Option<u64>,
    },
    /// Adds the bytes that follow the call after the value.
    Append,
    /// Adds the bytes that follow the call before the value.
    Prepend,
}

/// A call as it travels.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct RequestFrame {
    /// The call.
    pub request: Request,
    /// The attributes of its piece. Without a piece they do not travel.
    pub attributes: Attributes,
    /// The arguments of [`Change::Compute`].
    pub arguments: Option<Arguments>,
}

/// A reply as it travels.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ReplyFrame {
    /// The reply.
    pub reply: Reply,
    /// The attributes of its piece. Without a piece they do not travel.
    pub attributes: Attributes,
}

impl RequestFrame {
    /// Returns a call without attributes and arguments.
    pub fn new(request: Request) -> Self {
        Self { request, attributes: Attributes::default(), arguments: None }
    }

    /// Appends the bytes of the call. The bytes of its piece follow them.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let Request { cluster, epoch, call } = &self.request;
        out.extend([VERSION, call_kind(call), 0, 0]);
        out.extend(epoch.0.to_le_bytes());
        out.extend(cluster.to_le_bytes());
        let attributes = &self.attributes;
        if let Some(id) = call.id() {
            put_id(out, id);
        }
        match call {
            Call::Stage { piece, .. } => put_piece(out, Some(piece), attributes),
            Call::Order { lowest, condition, change, .. } => {
                put_u64(out, *lowest);
                let (condition, version) = match condition {
                    Condition::Always => (0, 0),
                    Condition::Absent => (1, 0),
                    Condition::Present => (2, 0),
                    Condition::Version(version) => (3, version.0),
                };
                let (kind, piece, arguments) = match change {
                    Change::Put(piece) => (1, Some(piece), None),
                    Change::Staged => (2, None, None),
                    Change::Compute(_) => (3, None, self.arguments),
                };
                out.extend([condition, kind, 0, 0, 0, 0, 0, 0]);
                put_u64(out, version);
                put_piece(out, piece, attributes);
                put_arguments(out, arguments);
            }
            Call::Seal { version, base, piece, .. } => {
                put_u64(out, version.0);
                put_u64(out, base.0);
                put_piece(out, piece.as_ref(), attributes);
            }
            Call::Note { version, lowest, .. } => {
                put_u64(out, version.0);
                put_u64(out, *lowest);
            }
            Call::Publish { version, .. }
            | Call::List { version }
            | Call::Forget { version }
            | Call::Fetch { version } => put_u64(out, version.0),
            Call::Resolve { .. } | Call::Refuse { .. } | Call::Read | Call::Survey | Call::Locate => {}
            Call::Repair { version, piece, .. } => {
                put_u64(out, version.0);
                put_piece(out, Some(piece), attributes);
            }
            Call::Fates(fates) => put_fates(out, fates),
            Call::FatesAfter { shard, after } => {
                out.extend(shard.to_le_bytes());
                out.extend([u8::from(after.is_some()), 0, 0, 0]);
                put_id(out, after.unwrap_or(NO_ID));
            }
            Call::Keys { select, from } => {
                let which = match select {
                    Select::Primary => 1,
                    Select::Unsettled => 2,
                };
                out.extend(from.shard.to_le_bytes());
                out.extend([which, 0, 0, 0]);
                put_u64(out, from.below);
            }
            Call::Report(report) => {
                out.extend([u8::from(report.is_done), 0, 0, 0, 0, 0, 0, 0]);
                let Report { left, keys, bytes, lost, short, refused, millis, .. } = *report;
                let numbers = [left, keys, bytes, lost, short, refused, millis];
                numbers.into_iter().for_each(|number| put_u64(out, number));
            }
            Call::Freeze(frozen) | Call::Persisted(frozen) => put_frozen(out, frozen),
            Call::Carry { file, frozen } => {
                put_frozen(out, frozen);
                put_u64(out, *file);
            }
        }
    }

    /// Returns the call that the bytes are: all of them.
    ///
    /// # Errors
    ///
    /// They are no call, or one of another version.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut read = Reader(bytes);
        let kind = read.version_and_kind()?;
        read.zeros(2)?;
        let (epoch, cluster) = (read.epoch()?, u128::from_le_bytes(read.array()?));
        let (mut attributes, mut arguments) = (Attributes::default(), None);
        let call = match kind {
            1 => Call::Stage { id: read.id()?, piece: read.piece(&mut attributes)? },
            2 => {
                let (id, lowest) = (read.id()?, read.u64()?);
                let [condition, change] = read.array()?;
                read.zeros(6)?;
                let version = read.u64()?;
                let condition = match (condition, version) {
                    (0, 0) => Condition::Always,
                    (1, 0) => Condition::Absent,
                    (2, 0) => Condition::Present,
                    (3, version) => Condition::Version(Version(version)),
                    _ => return Err(WireError::Field("condition")),
                };
                let piece = read.optional_piece(&mut attributes)?;
                arguments = read.arguments()?;
                let change = match (change, piece, arguments) {
                    (1, Some(piece), None) => Change::Put(piece),
                    (2, None, None) => Change::Staged,
                    (3, None, Some(_)) => Change::Compute(0),
                    _ => return Err(WireError::Field("change")),
                };
                Call::Order { id, lowest, condition, change }
            }
            3 => {
                let (id, version, base) = (read.id()?, read.version_up_to(epoch)?, read.version_up_to(epoch)?);
                Call::Seal { id, version, base, piece: read.optional_piece(&mut attributes)? }
            }
            4 => Call::Publish { id: read.id()?, version: read.version_up_to(epoch)? },
            5 => Call::Note { id: read.id()?, version: read.version_up_to(epoch)?, lowest: read.u64()? },
            6 => Call::Resolve { id: read.id()? },
            7 => Call::Refuse { id: read.id()? },
            8 => Call::Read,
            9 => Call::Survey,
            10 => Call::List { version: read.version_up_to(epoch)? },
            11 => Call::Repair {
                id: read.id()?,
                version: read.version_up_to(epoch)?,
                piece: read.piece(&mut attributes)?,
            },
            12 => Call::Fates(read.fates()?),
            13 => Call::Forget { version: read.version_up_to(epoch)? },
            14 => Call::Fetch { version: read.version_up_to(epoch)? },
            15 => {
                let (shard, is_known) = (read.u32()?, read.flag("mark of a known write")?);
                read.zeros(3)?;
                let after = match (is_known, read.id()?) {
                    (true, id) => Some(id),
                    (false, NO_ID) => None,
                    _ => return Err(WireError::Field("number of a write")),
                };
                Call::FatesAfter { shard, after }
            }
            16 => {
                let (shard, which) = (read.u32()?, read.u8()?);
                let select = match which {
                    1 => Select::Primary,
                    2 => Select::Unsettled,
                    _ => return Err(WireError::Field("selection")),
                };
                read.zeros(3)?;
                Call::Keys { select, from: Place { shard, below: read.u64()? } }
            }
            17 => {
                let is_done = read.flag("mark of an end")?;
                read.zeros(7)?;
                Call::Report(Report {
                    is_done,
                    left: read.u64()?,
                    keys: read.u64()?,
                    bytes: read.u64()?,
                    lost: read.u64()?,
                    short: read.u64()?,
                    refused: read.u64()?,
                    millis: read.u64()?,
                })
            }
            18 => Call::Freeze(read.frozen()?),
            19 => Call::Persisted(read.frozen()?),
            20 => {
                let frozen = read.frozen()?;
                if frozen.runs.iter().map(|run| u64::from(run.1)).sum::<u64>() > MAX_CARRIED as u64 {
                    return Err(WireError::Field("run of chunks"));
                }
                Call::Carry { file: read.u64()?, frozen }
            }
            21 => Call::Locate,
            _ => return Err(WireError::Field("kind of call")),
        };
        read.end()?;
        Ok(Self { request: Request { cluster, epoch, call }, attributes, arguments })
    }
}

impl ReplyFrame {
    /// Returns a reply without attributes.
    pub fn new(reply: Reply) -> Self {
        Self { reply, attributes: Attributes::default() }
    }

    /// Appends the bytes of the reply. The bytes of its piece follow them.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let Reply { epoch, id, answer } = &self.reply;
        out.extend([VERSION, answer_kind(answer), u8::from(id.is_some()), 0]);
        out.extend(epoch.0.to_le_bytes());
        put_id(out, id.unwrap_or(NO_ID));
        let attributes = &self.attributes;
        match answer {
            Answer::OtherEpoch
            | Answer::NotServing
            | Answer::Fenced
            | Answer::Busy
            | Answer::Staged
            | Answer::Lacks
            | Answer::Refused
            | Answer::Unknown
            | Answer::Taken => {}
            Answer::Ordered { version, base, computed } => {
                put_u64(out, version.0);
                put_u64(out, base.0);
                put_piece(out, computed.as_ref(), attributes);
            }
            Answer::Sealed(version) | Answer::Repaired(version) => put_u64(out, version.0),
            Answer::Help(Pending { stored, base }) => {
                put_stored(out, Some(stored), attributes);
                put_u64(out, base.0);
            }
            Answer::Done(verdict) => put_fate(out, &Fate::Done(*verdict)),
            Answer::Value(value) => {
                out.extend([u8::from(value.is_some()), 0, 0, 0, 0, 0, 0, 0]);
                put_stored(out, value.as_ref(), attributes);
            }
            Answer::Has(index) => out.extend([u8::from(index.is_some()), index.unwrap_or(0), 0, 0, 0, 0, 0, 0]),
            Answer::Fates(fates) => {
                out.extend([u8::from(fates.is_some()), 0, 0, 0, 0, 0, 0, 0]);
                put_fates(out, fates.as_deref().unwrap_or_default());
            }
            Answer::Keys { next, left } => {
                let place = next.unwrap_or(Place { shard: 0, below: 0 });
                out.extend(place.shard.to_le_bytes());
                out.extend([u8::from(next.is_some()), 0, 0, 0]);
                put_u64(out, place.below);
                put_u64(out, *left);
            }
            Answer::Carried(bits) => {
                // A list that is too long is the sender's mistake, and no decoder takes it.
                put_u64(out, bits.len() as u64);
                bits.iter().for_each(|&bits| put_u64(out, bits));
            }
        }
    }

    /// Returns the reply that the bytes are: all of them.
    ///
    /// # Errors
    ///
    /// They are no reply, or one of another version.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut read = Reader(bytes);
        let kind = read.version_and_kind()?;
        let has_id = read.flag("mark of a write")?;
        read.zeros(1)?;
        let (epoch, id) = (read.epoch()?, read.id()?);
        let id = match (has_id, id) {
            (true, id) => Some(id),
            (false, NO_ID) => None,
            _ => return Err(WireError::Field("number of a write")),
        };
        let mut attributes = Attributes::default();
        let answer = match kind {
            1 => Answer::OtherEpoch,
            2 => Answer::NotServing,
            3 => Answer::Fenced,
            4 => Answer::Busy,
            5 => Answer::Staged,
            6 => {
                let (version, base) = (read.version()?, read.version()?);
                Answer::Ordered { version, base, computed: read.optional_piece(&mut attributes)? }
            }
            7 => Answer::Sealed(read.version()?),
            8 => Answer::Lacks,
            9 => {
                let stored = read.stored(&mut attributes)?;
                Answer::Help(Pending { stored, base: read.version()? })
            }
            10 => match read.fate()? {
                Fate::Done(verdict) => Answer::Done(verdict),
                Fate::Refused => return Err(WireError::Field("fate")),
            },
            11 => Answer::Refused,
            12 => Answer::Unknown,
            13 => Answer::Taken,
            14 => Answer::Repaired(read.version()?),
            15 => {
                let is_there = read.flag("mark of a value")?;
                read.zeros(7)?;
                if !is_there {
                    read.zeros(STORED)?;
                }
                Answer::Value(if is_there { Some(read.stored(&mut attributes)?) } else { None })
            }
            16 => {
                let (has, index) = (read.flag("mark of an index")?, read.u8()?);
                read.zeros(6)?;
                match (has, index) {
                    (true, index) => Answer::Has(Some(index)),
                    (false, 0) => Answer::Has(None),
                    _ => return Err(WireError::Field("index")),
                }
            }
            17 => {
                let is_there = read.flag("mark of a shard")?;
                read.zeros(7)?;
                match (is_there, read.fates()?) {
                    (true, fates) => Answer::Fates(Some(fates)),
                    (false, fates) if fates.is_empty() => Answer::Fates(None),
                    _ => return Err(WireError::Field("number of fates")),
                }
            }
            18 => {
                let (shard, goes_on) = (read.u32()?, read.flag("mark of more keys")?);
                read.zeros(3)?;
                let place = Place { shard, below: read.u64()? };
                let next = match (goes_on, place) {
                    (true, place) => Some(place),
                    (false, Place { shard: 0, below: 0 }) => None,
                    _ => return Err(WireError::Field("place")),
                };
                Answer::Keys { next, left: read.u64()? }
            }
            19 => {
                let count = read.u64()?;
                if count > MAX_CARRIED as u64 / 64 {
                    return Err(WireError::Field("number of chunks"));
                }
                Answer::Carried((0..count).map(|_| read.u64()).collect::<Result<_, _>>()?)
            }
            _ => return Err(WireError::Field("kind of answer")),
        };
        read.end()?;
        Ok(Self { reply: Reply { epoch, id, answer }, attributes })
    }
}

/// Returns whether bytes of a piece follow this call. For append and prepend see [`RequestFrame::arguments`].
pub fn carries_piece(call: &Call) -> bool {
    match call {
        Call::Stage { .. } | Call::Repair { .. } => true,
        Call::Order { change, .. } => matches!(change, Change::Put(_)),
        Call::Seal { piece, .. } => piece.is_some(),
        _ => false,
    }
}

/// The bytes of an absent number of a write.
const NO_ID: WriteId = WriteId { client: 0, sequence: 0 };

/// Bytes of a stored piece.
const STORED: usize = 64;

fn call_kind(call: &Call) -> u8 {
    match call {
        Call::Stage { .. } => 1,
        Call::Order { .. } => 2,
        Call::Seal { .. } => 3,
        Call::Publish { .. } => 4,
        Call::Note { .. } => 5,
        Call::Resolve { .. } => 6,
        Call::Refuse { .. } => 7,
        Call::Read => 8,
        Call::Survey => 9,
        Call::List { .. } => 10,
        Call::Repair { .. } => 11,
        Call::Fates(_) => 12,
        Call::Forget { .. } => 13,
        Call::Fetch { .. } => 14,
        Call::FatesAfter { .. } => 15,
        Call::Keys { .. } => 16,
        Call::Report(_) => 17,
        Call::Freeze(_) => 18,
        Call::Persisted(_) => 19,
        Call::Carry { .. } => 20,
        Call::Locate => 21,
    }
}

fn answer_kind(answer: &Answer) -> u8 {
    match answer {
        Answer::OtherEpoch => 1,
        Answer::NotServing => 2,
        Answer::Fenced => 3,
        Answer::Busy => 4,
        Answer::Staged => 5,
        Answer::Ordered { .. } => 6,
        Answer::Sealed(_) => 7,
        Answer::Lacks => 8,
        Answer::Help(_) => 9,
        Answer::Done(_) => 10,
        Answer::Refused => 11,
        Answer::Unknown => 12,
        Answer::Taken => 13,
        Answer::Repaired(_) => 14,
        Answer::Value(_) => 15,
        Answer::Has(_) => 16,
        Answer::Fates(_) => 17,
        Answer::Keys { .. } => 18,
        Answer::Carried(_) => 19,
    }
}

fn put_u64(out: &mut Vec<u8>, number: u64) {
    out.extend(number.to_le_bytes());
}

fn put_id(out: &mut Vec<u8>, id: WriteId) {
    put_u64(out, id.client);
    put_u64(out, id.sequence);
}

fn put_piece(out: &mut Vec<u8>, piece: Option<&Piece>, attributes: &Attributes) {
    let Some(piece) = piece else { return out.extend([0; 32]) };
    let (form, k, index) = match piece.form {
        Form::Copy => (1, 0, 0),
        Form::Fragment { k, index } => (2, k, index),
        Form::Tombstone => (3, 0, 0),
    };
    out.extend([form, k, index, 0]);
    out.extend(piece.sum.to_le_bytes());
    put_u64(out, piece.length);
    put_u64(out, attributes.expiry);
    out.extend(attributes.flags.to_le_bytes());
    out.extend([u8::from(attributes.is_final) << 1 | u8::from(attributes.is_clean) << 2, 0, 0, 0]);
}

fn put_arguments(out: &mut Vec<u8>, arguments: Option<Arguments>) {
    let (kind, by, initial) = match arguments {
        None => (0, 0, None),
        Some(Arguments::Increment { by, initial }) => (1, by, initial),
        Some(Arguments::Decrement { by, initial }) => (2, by, initial),
        Some(Arguments::Append) => (3, 0, None),
        Some(Arguments::Prepend) => (4, 0, None),
    };
    out.extend([kind, u8::from(initial.is_some()), 0, 0, 0, 0, 0, 0]);
    put_u64(out, by);
    put_u64(out, initial.unwrap_or(0));
}

fn put_fate(out: &mut Vec<u8>, fate: &Fate) {
    let (kind, why, version) = match fate {
        Fate::Done(Verdict::Stored(version)) => (1, 0, version.0),
        Fate::Done(Verdict::Declined(refusal)) => {
            let why = match refusal {
                Refusal::NotStored => 1,
                Refusal::Exists => 2,
                Refusal::Invalid => 3,
                Refusal::NoMemory => 4,
                Refusal::TooLarge => 5,
                Refusal::Final => 6,
            };
            (2, why, 0)
        }
        Fate::Refused => (3, 0, 0),
        Fate::Done(Verdict::Flushed) => (4, 0, 0),
    };
    out.extend([kind, why, 0, 0, 0, 0, 0, 0]);
    put_u64(out, version);
}

fn put_fates(out: &mut Vec<u8>, fates: &[(WriteId, Fate)]) {
    // A list that is too long is the sender's mistake, and no decoder takes it.
    put_u64(out, fates.len() as u64);
    for (id, fate) in fates {
        put_id(out, *id);
        put_fate(out, fate);
    }
}

fn put_frozen(out: &mut Vec<u8>, frozen: &Frozen) {
    // A list that is too long is the sender's mistake, and no decoder takes it.
    let Frozen { ino, generation, size, chunk_bits, runs } = frozen;
    [*ino, *generation, *size].into_iter().for_each(|number| put_u64(out, number));
    out.extend([*chunk_bits, 0]);
    out.extend(u16::try_from(runs.len()).unwrap_or(u16::MAX).to_le_bytes());
    out.extend([0; 4]);
    for (first, count) in runs {
        out.extend(first.to_le_bytes());
        out.extend(count.to_le_bytes());
    }
}

fn put_stored(out: &mut Vec<u8>, stored: Option<&Stored>, attributes: &Attributes) {
    let Some(stored) = stored else { return out.extend([0; STORED]) };
    put_id(out, stored.id);
    put_u64(out, stored.version.0);
    out.extend(stored.confirmed.0.to_le_bytes());
    out.extend([u8::from(stored.is_staged), 0, 0, 0]);
    put_piece(out, Some(&stored.piece), attributes);
}

/// The subject of an entry of a page of keys.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum About {
    /// The published value.
    Value,
    /// A published tombstone, or a value that has expired, at its primary.
    Tombstone,
    /// A write that the primary has ordered, and not published.
    Next,
    /// A staged piece whose write was not ordered here.
    Staged,
    /// A write that a backup has sealed, and not seen published.
    Sealed,
}

/// A key in a page of keys.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Entry {
    /// The key.
    pub key: Vec<u8>,
    /// The subject.
    pub about: About,
    /// The write.
    pub id: WriteId,
    /// Its version; [`Version::ABSENT`] of a staged piece.
    pub version: Version,
    /// The length of the whole value.
    pub length: u64,
}

/// Bytes of an entry besides its key.
const ENTRY: usize = 40;

impl Entry {
    /// Appends the bytes of the entry. Its key has at most 255 bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let about = match self.about {
            About::Value => 1,
            About::Tombstone => 2,
            About::Next => 3,
            About::Staged => 4,
            About::Sealed => 5,
        };
        let key = &self.key[..self.key.len().min(255)];
        out.extend([key.len() as u8, about, 0, 0, 0, 0, 0, 0]);
        put_id(out, self.id);
        put_u64(out, self.version.0);
        put_u64(out, self.length);
        out.extend(key);
    }

    /// Returns the entries that the bytes are: all of them.
    ///
    /// # Errors
    ///
    /// They are no entries.
    pub fn decode_all(bytes: &[u8]) -> Result<Vec<Self>, WireError> {
        let mut read = Reader(bytes);
        let mut entries = Vec::with_capacity(bytes.len() / ENTRY);
        while read.end().is_err() {
            let [length, about] = read.array()?;
            read.zeros(6)?;
            let about = match about {
                1 => About::Value,
                2 => About::Tombstone,
                3 => About::Next,
                4 => About::Staged,
                5 => About::Sealed,
                _ => return Err(WireError::Field("kind of entry")),
            };
            let (id, version, whole) = (read.id()?, read.version()?, read.u64()?);
            let key = read.bytes(usize::from(length))?.to_vec();
            entries.push(Self { key, about, id, version, length: whole });
        }
        Ok(entries)
    }
}

/// The bytes of a message that are not read yet.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, count: usize) -> Result<&'a [u8], WireError> {
        let (bytes, rest) = self.0.split_at_checked(count).ok_or(WireError::Short)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let (array, rest) = self.0.split_first_chunk().ok_or(WireError::Short)?;
        self.0 = rest;
        Ok(*array)
    }

    fn u8(&mut self) -> Result<u8, WireError> {
        self.array().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Result<u32, WireError> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, WireError> {
        self.array().map(u64::from_le_bytes)
    }

    fn zeros(&mut self, count: usize) -> Result<(), WireError> {
        let zeros = self.bytes(count)?;
        if zeros.iter().all(|&byte| byte == 0) { Ok(()) } else { Err(WireError::Field("unused byte")) }
    }

    fn flag(&mut self, name: &'static str) -> Result<bool, WireError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(WireError::Field(name)),
        }
    }

    fn version_and_kind(&mut self) -> Result<u8, WireError> {
        match self.u8()? {
            VERSION => self.u8(),
            version => Err(WireError::Version(version)),
        }
    }

    fn epoch(&mut self) -> Result<Epoch, WireError> {
        let epoch = self.u32()?;
        if epoch <= MAX_EPOCH { Ok(Epoch(epoch)) } else { Err(WireError::Field("epoch")) }
    }

    fn version(&mut self) -> Result<Version, WireError> {
        self.u64().map(Version)
    }

    /// Returns the version of a write that a call of this epoch is for. A later one would be above all that follow it.
    fn version_up_to(&mut self, epoch: Epoch) -> Result<Version, WireError> {
        let version = self.version()?;
        if version.epoch() <= epoch { Ok(version) } else { Err(WireError::Field("version")) }
    }

    fn id(&mut self) -> Result<WriteId, WireError> {
        Ok(WriteId { client: self.u64()?, sequence: self.u64()? })
    }

    fn optional_piece(&mut self, attributes: &mut Attributes) -> Result<Option<Piece>, WireError> {
        let [form, k, index] = self.array()?;
        self.zeros(1)?;
        let (sum, length) = (self.u32()?, self.u64()?);
        let (expiry, flags) = (self.u64()?, self.u32()?);
        let (is_final, is_clean) = match self.u8()? {
            0 => (false, false),
            2 => (true, false),
            6 => (true, true),
            _ => return Err(WireError::Field("marks")),
        };
        let read = Attributes { flags, expiry, is_final, is_clean };
        self.zeros(3)?;
        let form = match (form, k, index) {
            (0, 0, 0) if (sum, length, read) == (0, 0, Attributes::default()) => return Ok(None),
            (1, 0, 0) => Form::Copy,
            (2, k, index) if (1..=MAX_SERVERS as u8).contains(&k) && index < MAX_SERVERS as u8 => {
                Form::Fragment { k, index }
            }
            (3, 0, 0) if length == 0 => Form::Tombstone,
            _ => return Err(WireError::Field("piece")),
        };
        *attributes = read;
        Ok(Some(Piece { chunk: Chunk(0), form, length, sum }))
    }

    fn piece(&mut self, attributes: &mut Attributes) -> Result<Piece, WireError> {
        self.optional_piece(attributes)?.ok_or(WireError::Field("piece"))
    }

    fn arguments(&mut self) -> Result<Option<Arguments>, WireError> {
        let (kind, has_initial) = (self.u8()?, self.flag("mark of an initial value")?);
        self.zeros(6)?;
        let (by, initial) = (self.u64()?, self.u64()?);
        match (kind, has_initial, by, initial) {
            (0, false, 0, 0) => Ok(None),
            (1 | 2, false, _, 0) | (1 | 2, true, ..) => {
                let initial = has_initial.then_some(initial);
                let up = kind == 1;
                Ok(Some(if up { Arguments::Increment { by, initial } } else { Arguments::Decrement { by, initial } }))
            }
            (3, false, 0, 0) => Ok(Some(Arguments::Append)),
            (4, false, 0, 0) => Ok(Some(Arguments::Prepend)),
            _ => Err(WireError::Field("computation")),
        }
    }

    fn fate(&mut self) -> Result<Fate, WireError> {
        let [kind, why] = self.array()?;
        self.zeros(6)?;
        let declined = |refusal| Ok(Fate::Done(Verdict::Declined(refusal)));
        match (kind, why, self.u64()?) {
            (1, 0, version) => Ok(Fate::Done(Verdict::Stored(Version(version)))),
            (2, 1, 0) => declined(Refusal::NotStored),
            (2, 2, 0) => declined(Refusal::Exists),
            (2, 3, 0) => declined(Refusal::Invalid),
            (2, 4, 0) => declined(Refusal::NoMemory),
            (2, 5, 0) => declined(Refusal::TooLarge),
            (2, 6, 0) => declined(Refusal::Final),
            (3, 0, 0) => Ok(Fate::Refused),
            (4, 0, 0) => Ok(Fate::Done(Verdict::Flushed)),
            _ => Err(WireError::Field("fate")),
        }
    }

    fn fates(&mut self) -> Result<Vec<(WriteId, Fate)>, WireError> {
        let count = self.u64()?;
        if count > MAX_FATES as u64 {
            return Err(WireError::Field("number of fates"));
        }
        if self.0.len() < count as usize * FATE {
            return Err(WireError::Short);
        }
        (0..count).map(|_| Ok((self.id()?, self.fate()?))).collect()
    }

    fn frozen(&mut self) -> Result<Frozen, WireError> {
        let (ino, generation, size) = (self.u64()?, self.u64()?, self.u64()?);
        let [chunk_bits, zero] = self.array()?;
        let runs = usize::from(u16::from_le_bytes(self.array()?));
        self.zeros(4)?;
        if zero != 0 || !(16..=23).contains(&chunk_bits) {
            return Err(WireError::Field("size of a chunk"));
        }
        if ino == 0 || generation == 0 || runs > MAX_RUNS {
            return Err(WireError::Field("generation"));
        }
        let runs: Vec<(u32, u32)> =
            (0..runs).map(|_| Ok((self.u32()?, self.u32()?))).collect::<Result<_, WireError>>()?;
        // They follow each other, and all their chunks have bytes of the file.
        let chunks = size.div_ceil(1 << chunk_bits);
        let end = |&(first, count): &(u32, u32)| u64::from(first) + u64::from(count);
        let follow = runs.windows(2).all(|pair| end(&pair[0]) < u64::from(pair[1].0));
        if !follow || runs.iter().any(|run| run.1 == 0 || end(run) > chunks.min(MAX_CHUNKS)) {
            return Err(WireError::Field("run of chunks"));
        }
        Ok(Frozen { ino, generation, size, chunk_bits, runs })
    }

    fn stored(&mut self, attributes: &mut Attributes) -> Result<Stored, WireError> {
        let (id, version, confirmed) = (self.id()?, self.version()?, self.epoch()?);
        let is_staged = self.flag("mark of staged bytes")?;
        self.zeros(3)?;
        Ok(Stored { id, version, confirmed, piece: self.piece(attributes)?, is_staged })
    }

    fn end(&self) -> Result<(), WireError> {
        if self.0.is_empty() { Ok(()) } else { Err(WireError::Long) }
    }
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
