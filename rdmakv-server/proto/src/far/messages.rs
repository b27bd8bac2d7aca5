//! The messages of far memory: the bodies of the kinds FAR of a [fabric connection](crate::messages).
//!
//! Numbers are little-endian:
//!
//! ```text
//! client 7 FAR
//!  0  u8   verb      see below
//!  1       zero, 3 bytes
//!  4  u32  region    counts within the memory
//!  8  u64  memory    drawn by the client that made it
//! 16  u32  epoch     of the region
//! 20       by verb
//!       1 OFFER  nothing: asks how much there is room for
//!       2 TAKE   u32 regions, from `region` on, u32 regions of the memory or 0, u64 milliseconds, u64 owner, secret, name, source:
//!                takes them. With a source they are copies, not live yet. The secret is zero where the server draws it
//!       3 TAGS   u8 1 of a move, which has the server note the pages that it writes from now on; 0 of the owner's accesses;
//!                2 by another server, which reads: then the token. It needs no login
//!       4 BATCH  a batch of reads and writes. `region` is the number of the lane, by which it has its worker
//!       5 RENEW  u64 milliseconds
//!       6 LIST   u64 owner, secret, name: attaches the connection to a memory of that name, or to `memory`, and lists
//!                regions from `region` on
//!       7 FREEZE u64 server that has the copy: ends writes
//!       8 PULL   u8 1 the last one, u32 bytes of marks, marks: reads pages from the source again
//!       9 COMMIT nothing: the copy is live
//!      10 THAW   nothing: a frozen region is live again, in this later epoch
//!      11 DROP   u64 server that has the region now, or 0: forgets what is here of `epoch` or an earlier one
//!      12 MAP    u32 number of the map, u32 runs, u32 servers, the runs (u32 first region, u32 regions, u32 epoch, u32 zero, u64
//!                server), the servers (u64 server, token, address)
//!      13 RUN    u64 request, u32 procedure, then, so far: u32 hops, u32 bytes read, u32 microseconds, u32 bytes of reply; u16
//!                length, arguments. `region` is the number of the lane
//!      14 CODE   u32 bytes of the module, u32 first byte of this part, name, then the part: stores a module of the login
//!      15 END    nothing: the memory ends
//!      16 MODULES nothing: lists the login's modules
//!      17 FORGET name: removes a module of the login
//!
//! server 25 FAR
//!  0  u8   verb      of the request
//!  1  u8   refusal   0 none  1 no room  2 unknown  3 taken  4 stale  5 in another state  6 unable  7 the source is gone
//!                of modules: 8 the server runs none  9 the login has too many  10 too long  11 malformed  12 no step
//!                13 an import unknown here  14 a start function  15 too much memory  16 compiling took too long  17 no such module
//!  2       zero, 2 bytes
//!  4  u32  region
//!  8  u64  memory
//! 16  u32  epoch     of the region here, after the request
//! 20       after a refusal: u32 regions that there is room for. Otherwise by verb
//!       1 OFFER  u64 server, u64 bytes of a region, u64 longest milliseconds, u32 regions, u32 workers
//!       2 TAKE   secret
//!       3 TAGS   token, segments to read by, segments to write by
//!       4 BATCH  the batch of the replies
//!       5 RENEW  u64 milliseconds that are left
//!       6 LIST   u64 server, u64 milliseconds that are left, u32 entries, u8 sum of 1 if more follow and 2 if the memory's regions are
//!                counted, 3 bytes zero, then u32 regions of the memory if they are, the entries (u32 region, u32 epoch, u8 state,
//!                7 bytes zero, u64 other server or 0). States: 1 live, 2 live before its map came, 3 copying, 4 frozen, 5 moved
//!       7 FREEZE u32 bytes of marks, marks: pages that the server wrote
//!       8 PULL   u32 CRC32C of the region after the last one, otherwise 0
//!       9 COMMIT segments to read by, segments to write by: none where each connection asks for its own by TAGS
//!      13 RUN    u64 request, u8 status (0 done  1 hops  2 bytes  3 time  4 full  5 elsewhere  6 failed  7 frozen
//!                8 fuel  9 trap), 3 bytes zero, u32 bytes read, u32 microseconds, both so far, u64 at, u16 length, the arguments
//!                by which it goes on, u16 length, the reply
//!      14 CODE   u32 bytes that have come: once these are all, the module can be run
//!      16 MODULES u32 modules, then u32 bytes, name of each
//!      32 NOTICE u64 milliseconds until the server stops. Not asked for: its message has number 0, and it is about all memories
//!      others    nothing
//!
//! secret, token 16 bytes; name, address: u8 length, then the bytes
//! marks         a bit a page of 4 KiB, the lowest bit of a byte first
//! segments      u32 number, then u64 address, u64 length, u32 key, u32 zero of each
//! source        u8 1 if there is one, then, if there is: u64 server, token, address
//! ```
//!
//! Each request may be sent again: it has the same outcome as once. A *server* is named by a number that each run of one draws, so that
//! a restarted server is another one.

use super::modules::{self, Modules};
use crate::messages::{Fields, Malformed, RemoteSegment, Segments};

/// Bytes of marks at most: pages of a region of 1 GiB, a bit each.
pub const MARKS_MAX: usize = (1 << 30) / 4096 / 8;
/// Segments of a region at most, for reads and for writes each: 1 GiB in parts of 2 MiB.
pub const SEGMENTS_MAX: usize = 512;
/// Runs of a MAP at most. Larger maps go in several.
pub const RUNS_MAX: usize = 2048;
/// Servers of a MAP at most.
pub const SERVERS_MAX: usize = 64;
/// Entries of a LIST's answer at most.
pub const ENTRIES_MAX: usize = 2048;
/// Bytes of a procedure's arguments at most.
pub const ARGUMENTS_MAX: usize = 256;
/// Bytes of a procedure's reply at most.
pub const REPLY_MAX: usize = 4096;
/// Bytes of a part of a module at most.
pub const PART_MAX: usize = 64 << 10;

/// A secret that opens a memory.
pub type Secret = [u8; 16];
/// A token by which one server reads from another.
pub type Token = [u8; 16];

/// A client's message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request<'a> {
    /// The memory.
    pub memory: u64,
    /// The region in it.
    pub region: u32,
    /// The epoch of the region.
    pub epoch: u32,
    /// The verb.
    pub verb: Verb<'a>,
}

/// The verb of a request, with its body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the module's table says what they are")]
pub enum Verb<'a> {
    Offer,
    Take { regions: u32, of: u32, millis: u64, owner: u64, secret: Secret, name: &'a [u8], source: Option<Source<'a>> },
    Tags { moves: bool },
    Batch { batch: &'a [u8] },
    Renew { millis: u64 },
    List { owner: u64, secret: Secret, name: &'a [u8] },
    Freeze { to: u64 },
    Pull { is_last: bool, marks: &'a [u8] },
    Commit,
    Thaw,
    Drop { to: u64 },
    Map { number: u32, runs: Runs<'a>, servers: Servers<'a> },
    Run(Run<'a>),
    Code { length: u32, at: u32, name: &'a [u8], part: &'a [u8] },
    End,
    TagsByToken { token: Token },
    Modules,
    Forget { name: &'a [u8] },
}

/// The server that a copy is read from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Source<'a> {
    /// The server.
    pub server: u64,
    /// The token that it gave.
    pub token: Token,
    /// Its address, at most 255 bytes.
    pub address: &'a [u8],
}

/// A [procedure](super::procedures) to be run, or to be gone on with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run<'a> {
    /// The client's number of the request.
    pub request: u64,
    /// The procedure.
    pub procedure: u32,
    /// Hops so far, from one server to another.
    pub hops: u32,
    /// Bytes that were read so far.
    pub bytes: u32,
    /// Microseconds so far.
    pub micros: u32,
    /// Bytes of reply so far.
    pub replied: u32,
    /// Arguments, at most [`ARGUMENTS_MAX`] bytes.
    pub arguments: &'a [u8],
}

/// Regions of one epoch on one server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegionRun {
    /// The first.
    pub first: u32,
    /// How many.
    pub regions: u32,
    /// Their epoch.
    pub epoch: u32,
    /// Their server.
    pub server: u64,
}

/// Runs of regions, as they lie in a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Runs<'a>(&'a [u8]);

/// Servers of a map, as they lie in a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Servers<'a>(&'a [u8]);

/// Entries of a list, as they lie in a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Entries<'a>(&'a [u8]);

/// The state of a region at a server.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum State {
    /// Reads and writes go there, and no other server is live in an earlier epoch.
    Live = 1,
    /// It was committed, and its map has not come: the server before it may have been thawed.
    Committed = 2,
    /// It is being copied from the other server.
    Copying = 3,
    /// Writes have ended, because the other server takes over.
    Frozen = 4,
    /// The other server has it.
    Moved = 5,
}

/// A region at a server.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Entry {
    /// The region.
    pub region: u32,
    /// Its epoch.
    pub epoch: u32,
    /// Its state.
    pub state: State,
    /// The other server, or 0.
    pub other: u64,
}

/// A server's message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reply<'a> {
    /// The memory.
    pub memory: u64,
    /// The region in it.
    pub region: u32,
    /// The epoch of the region at the server.
    pub epoch: u32,
    /// The answer.
    pub answer: Answer<'a>,
}

/// The answer to a request, or a notice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the module's table says what they are")]
pub enum Answer<'a> {
    Refused { verb: u8, why: Refusal, room: u32 },
    Offer { server: u64, region_bytes: u64, longest_millis: u64, regions: u32, workers: u32 },
    Take { secret: Secret },
    Tags { token: Token, read: Segments<'a>, write: Segments<'a> },
    Batch { replies: &'a [u8] },
    Renew { left_millis: u64 },
    List { server: u64, left_millis: u64, more: bool, total: u32, entries: Entries<'a> },
    Freeze { marks: &'a [u8] },
    Pull { sum: u32 },
    Commit { read: Segments<'a>, write: Segments<'a> },
    Thaw,
    Drop { sum: u32 },
    Map,
    Run(Ran<'a>),
    Code { length: u32 },
    End,
    Notice { millis: u64 },
    Modules { modules: Modules<'a> },
    Forget,
}

/// The reason of a refusal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Refusal {
    /// There is less room than was asked for.
    NoRoom = 1,
    /// There is no such memory or region, or the secret is another.
    Unknown = 2,
    /// Another owner is attached.
    Taken = 3,
    /// A later epoch is here.
    Stale = 4,
    /// The region's state does not allow it.
    State = 5,
    /// This server does not do that.
    Unable = 6,
    /// The server that a copy is read from does not answer.
    SourceGone = 7,
    /// The server runs no modules.
    NoModules = 8,
    /// The login has as many modules as it may.
    ManyModules = 9,
    /// A module has too many bytes.
    LongModule = 10,
    /// A module is malformed, or has more of something than modules may.
    BadModule = 11,
    /// A module exports no function `step` of the right type.
    NoStep = 12,
    /// A module imports something else than the functions `far`.
    UnknownImport = 13,
    /// A module has a start function.
    StartFunction = 14,
    /// A module begins with more memory than it may have.
    MemorySize = 15,
    /// A module was not compiled in time.
    CompileTime = 16,
    /// The login has no such module.
    NoModule = 17,
}

/// How a procedure ended, or where it has to go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ran<'a> {
    /// The client's number of the request.
    pub request: u64,
    /// How it ended here.
    pub status: RunStatus,
    /// Bytes that were read so far.
    pub bytes: u32,
    /// Microseconds so far.
    pub micros: u32,
    /// The address that it found, or at which it goes on.
    pub at: u64,
    /// The arguments by which it goes on; none where it is done.
    pub arguments: &'a [u8],
    /// The reply from here.
    pub reply: &'a [u8],
}

/// How a procedure ended at a server.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum RunStatus {
    /// It is done.
    Done = 0,
    /// It took too many hops.
    Hops = 1,
    /// It read too much.
    Bytes = 2,
    /// It took too long.
    Time = 3,
    /// Its reply is full.
    Full = 4,
    /// The bytes that it needs next are not here.
    Elsewhere = 5,
    /// Bytes that it reads at a time are on two servers, or an address is beyond all.
    Failed = 6,
    /// It would write to a region that is frozen.
    Frozen = 7,
    /// A step of a module took too long.
    Fuel = 8,
    /// A step of a module did what it must not.
    Trap = 9,
}

/// The number of a verb in messages.
pub mod verb {
    #![expect(missing_docs, reason = "the table of the module above says what they are")]
    pub const OFFER: u8 = 1;
    pub const TAKE: u8 = 2;
    pub const TAGS: u8 = 3;
    pub const BATCH: u8 = 4;
    pub const RENEW: u8 = 5;
    pub const LIST: u8 = 6;
    pub const FREEZE: u8 = 7;
    pub const PULL: u8 = 8;
    pub const COMMIT: u8 = 9;
    pub const THAW: u8 = 10;
    pub const DROP: u8 = 11;
    pub const MAP: u8 = 12;
    pub const RUN: u8 = 13;
    pub const CODE: u8 = 14;
    pub const END: u8 = 15;
    pub const MODULES: u8 = 16;
    pub const FORGET: u8 = 17;
    pub const NOTICE: u8 = 32;
}

const RUN_BYTES: usize = 24;
const ENTRY_BYTES: usize = 24;
/// The flags of a list: more regions follow, and the memory's regions are counted.
const LIST_MORE: u8 = 1;
const LIST_TOTAL: u8 = 2;
const LIST_FLAGS: u8 = LIST_MORE | LIST_TOTAL;

/// The fields that only these messages have.
trait FarFields<'a> {
    fn zero(&mut self, bytes: usize) -> Result<(), Malformed>;
    fn text(&mut self) -> Result<&'a [u8], Malformed>;
    fn long(&mut self, most: usize) -> Result<&'a [u8], Malformed>;
    fn short(&mut self, most: usize) -> Result<&'a [u8], Malformed>;
    fn segment(&mut self) -> Result<RemoteSegment, Malformed>;
    fn far_segments(&mut self) -> Result<Segments<'a>, Malformed>;
    fn source(&mut self) -> Result<Option<Source<'a>>, Malformed>;
    fn run(&mut self) -> Result<RegionRun, Malformed>;
    fn entry(&mut self) -> Result<Entry, Malformed>;
}

impl<'a> FarFields<'a> for Fields<'a> {
    fn zero(&mut self, bytes: usize) -> Result<(), Malformed> {
        let is_zero = self.take(bytes)?.iter().all(|&byte| byte == 0);
        is_zero.then_some(()).ok_or(Malformed("bytes that have to be zero are not"))
    }
    fn text(&mut self) -> Result<&'a [u8], Malformed> {
        let length = usize::from(self.u8()?);
        self.take(length)
    }
    fn long(&mut self, most: usize) -> Result<&'a [u8], Malformed> {
        let length = self.u32()? as usize;
        if length > most {
            return Err(Malformed("more bytes than a region or a part has"));
        }
        self.take(length)
    }
    fn short(&mut self, most: usize) -> Result<&'a [u8], Malformed> {
        let length = usize::from(self.u16()?);
        if length > most {
            return Err(Malformed("arguments or a reply of a procedure that are too long"));
        }
        self.take(length)
    }
    fn segment(&mut self) -> Result<RemoteSegment, Malformed> {
        let segment = RemoteSegment { address: self.u64()?, length: self.u64()?, key: self.u32()? };
        self.zero(4)?;
        Ok(segment)
    }
    fn far_segments(&mut self) -> Result<Segments<'a>, Malformed> {
        let count = self.u32()? as usize;
        if count > SEGMENTS_MAX {
            return Err(Malformed("too many segments of a region"));
        }
        let before = self.0;
        for _ in 0..count {
            self.segment()?;
        }
        Segments::take(&mut Fields(before), count)
    }
    fn source(&mut self) -> Result<Option<Source<'a>>, Malformed> {
        if !self.yes()? {
            return Ok(None);
        }
        Ok(Some(Source { server: self.u64()?, token: self.array()?, address: self.text()? }))
    }
    fn run(&mut self) -> Result<RegionRun, Malformed> {
        let (first, regions, epoch) = (self.u32()?, self.u32()?, self.u32()?);
        self.zero(4)?;
        if first.checked_add(regions).is_none() {
            return Err(Malformed("a run of regions that has no end"));
        }
        Ok(RegionRun { first, regions, epoch, server: self.u64()? })
    }
    fn entry(&mut self) -> Result<Entry, Malformed> {
        let (region, epoch) = (self.u32()?, self.u32()?);
        let state = match self.u8()? {
            1 => State::Live,
            2 => State::Committed,
            3 => State::Copying,
            4 => State::Frozen,
            5 => State::Moved,
            _ => return Err(Malformed("a state that is none")),
        };
        self.zero(7)?;
        Ok(Entry { region, epoch, state, other: self.u64()? })
    }
}

fn put_text(into: &mut Vec<u8>, text: &[u8]) {
    debug_assert!(text.len() <= 255, "the caller has looked at the length");
    into.push(text.len() as u8);
    into.extend_from_slice(text);
}

fn put_long(into: &mut Vec<u8>, bytes: &[u8]) {
    into.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    into.extend_from_slice(bytes);
}

fn put_short(into: &mut Vec<u8>, bytes: &[u8]) {
    into.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
    into.extend_from_slice(bytes);
}

fn put_u32(into: &mut Vec<u8>, numbers: &[u32]) {
    for number in numbers {
        into.extend_from_slice(&number.to_le_bytes());
    }
}

fn put_u64(into: &mut Vec<u8>, numbers: &[u64]) {
    for number in numbers {
        into.extend_from_slice(&number.to_le_bytes());
    }
}

fn put_segments(into: &mut Vec<u8>, segments: Segments<'_>) {
    put_u32(into, &[segments.iter().len() as u32]);
    into.extend_from_slice(segments.bytes());
}

impl<'a> Runs<'a> {
    /// Writes these one after the other.
    pub fn write(runs: &[RegionRun], into: &'a mut Vec<u8>) -> Self {
        for run in runs {
            put_u32(into, &[run.first, run.regions, run.epoch, 0]);
            put_u64(into, &[run.server]);
        }
        Self(into)
    }

    /// Returns them in order.
    pub fn iter(self) -> impl Iterator<Item = RegionRun> + 'a {
        self.0.chunks_exact(RUN_BYTES).map_while(|bytes| Fields(bytes).run().ok())
    }

    fn take(fields: &mut Fields<'a>, count: usize) -> Result<Self, Malformed> {
        if count > RUNS_MAX {
            return Err(Malformed("too many runs of regions"));
        }
        let bytes = fields.take(count * RUN_BYTES)?;
        bytes.chunks_exact(RUN_BYTES).try_for_each(|bytes| Fields(bytes).run().map(drop))?;
        Ok(Self(bytes))
    }
}

impl<'a> Servers<'a> {
    /// Writes these one after the other.
    pub fn write(servers: &[Source<'_>], into: &'a mut Vec<u8>) -> Self {
        for server in servers {
            put_u64(into, &[server.server]);
            into.extend_from_slice(&server.token);
            put_text(into, server.address);
        }
        Self(into)
    }

    /// Returns them in order.
    pub fn iter(self) -> impl Iterator<Item = Source<'a>> {
        let mut fields = Fields(self.0);
        std::iter::from_fn(move || Self::one(&mut fields).ok())
    }

    fn one(fields: &mut Fields<'a>) -> Result<Source<'a>, Malformed> {
        Ok(Source { server: fields.u64()?, token: fields.array()?, address: fields.text()? })
    }

    fn take(fields: &mut Fields<'a>, count: usize) -> Result<Self, Malformed> {
        if count > SERVERS_MAX {
            return Err(Malformed("too many servers"));
        }
        let all = fields.0;
        for _ in 0..count {
            Self::one(fields)?;
        }
        Ok(Self(&all[..all.len() - fields.0.len()]))
    }
}

impl<'a> Entries<'a> {
    /// Writes these one after the other.
    pub fn write(entries: &[Entry], into: &'a mut Vec<u8>) -> Self {
        for entry in entries {
            put_u32(into, &[entry.region, entry.epoch]);
            into.extend_from_slice(&[entry.state as u8, 0, 0, 0, 0, 0, 0, 0]);
            put_u64(into, &[entry.other]);
        }
        Self(into)
    }

    /// Returns them in order.
    pub fn iter(self) -> impl Iterator<Item = Entry> + 'a {
        self.0.chunks_exact(ENTRY_BYTES).map_while(|bytes| Fields(bytes).entry().ok())
    }

    fn take(fields: &mut Fields<'a>, count: usize) -> Result<Self, Malformed> {
        if count > ENTRIES_MAX {
            return Err(Malformed("too many entries of a list"));
        }
        let bytes = fields.take(count * ENTRY_BYTES)?;
        bytes.chunks_exact(ENTRY_BYTES).try_for_each(|bytes| Fields(bytes).entry().map(drop))?;
        Ok(Self(bytes))
    }
}

impl<'a> Request<'a> {
    /// Reads a request where it lies.
    ///
    /// # Errors
    ///
    /// [`Malformed`], whatever the bytes; never a panic.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut fields = Fields(bytes);
        let number = fields.u8()?;
        fields.zero(3)?;
        let (region, memory, epoch) = (fields.u32()?, fields.u64()?, fields.u32()?);
        let verb = Verb::decode(number, &mut fields)?;
        fields.end()?;
        Ok(Self { memory, region, epoch, verb })
    }

    /// Writes the request. Its name, address and other bytes are within their bounds.
    pub fn encode(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(&[self.verb.number(), 0, 0, 0]);
        put_u32(into, &[self.region]);
        put_u64(into, &[self.memory]);
        put_u32(into, &[self.epoch]);
        self.verb.encode(into);
    }
}

impl<'a> Verb<'a> {
    /// Returns its number in messages.
    pub fn number(&self) -> u8 {
        match self {
            Self::Offer => verb::OFFER,
            Self::Take { .. } => verb::TAKE,
            Self::Tags { .. } => verb::TAGS,
            Self::Batch { .. } => verb::BATCH,
            Self::Renew { .. } => verb::RENEW,
            Self::List { .. } => verb::LIST,
            Self::Freeze { .. } => verb::FREEZE,
            Self::Pull { .. } => verb::PULL,
            Self::Commit => verb::COMMIT,
            Self::Thaw => verb::THAW,
            Self::Drop { .. } => verb::DROP,
            Self::Map { .. } => verb::MAP,
            Self::Run(_) => verb::RUN,
            Self::Code { .. } => verb::CODE,
            Self::End => verb::END,
            Self::TagsByToken { .. } => verb::TAGS,
            Self::Modules => verb::MODULES,
            Self::Forget { .. } => verb::FORGET,
        }
    }

    fn decode(number: u8, fields: &mut Fields<'a>) -> Result<Self, Malformed> {
        Ok(match number {
            verb::OFFER => Self::Offer,
            verb::TAKE => {
                let (regions, of) = (fields.u32()?, fields.u32()?);
                let (millis, owner, secret) = (fields.u64()?, fields.u64()?, fields.array()?);
                Self::Take { regions, of, millis, owner, secret, name: fields.text()?, source: fields.source()? }
            }
            verb::TAGS => match fields.u8()? {
                of @ (0 | 1) => Self::Tags { moves: of == 1 },
                2 => Self::TagsByToken { token: fields.array()? },
                _ => return Err(Malformed("tags of no kind")),
            },
            verb::BATCH => Self::Batch { batch: fields.rest() },
            verb::RENEW => Self::Renew { millis: fields.u64()? },
            verb::LIST => Self::List { owner: fields.u64()?, secret: fields.array()?, name: fields.text()? },
            verb::FREEZE => Self::Freeze { to: fields.u64()? },
            verb::PULL => Self::Pull { is_last: fields.yes()?, marks: fields.long(MARKS_MAX)? },
            verb::COMMIT => Self::Commit,
            verb::THAW => Self::Thaw,
            verb::DROP => Self::Drop { to: fields.u64()? },
            verb::MAP => {
                let (number, runs, servers) = (fields.u32()?, fields.u32()? as usize, fields.u32()? as usize);
                Self::Map { number, runs: Runs::take(fields, runs)?, servers: Servers::take(fields, servers)? }
            }
            verb::RUN => Self::Run(Run::decode(fields)?),
            verb::CODE => {
                let (length, at, name, part) = (fields.u32()?, fields.u32()?, modules::name(fields)?, fields.rest());
                let end = u64::from(at) + part.len() as u64;
                if part.len() > PART_MAX || end > u64::from(length) {
                    return Err(Malformed("a part that does not lie in its module, or is too long"));
                }
                Self::Code { length, at, name, part }
            }
            verb::END => Self::End,
            verb::MODULES => Self::Modules,
            verb::FORGET => Self::Forget { name: modules::name(fields)? },
            _ => return Err(Malformed("a verb that is none")),
        })
    }

    fn encode(&self, into: &mut Vec<u8>) {
        match *self {
            Self::Offer | Self::Commit | Self::Thaw | Self::End | Self::Modules => {}
            Self::Take { regions, of, millis, owner, secret, name, source } => {
                put_u32(into, &[regions, of]);
                put_u64(into, &[millis, owner]);
                into.extend_from_slice(&secret);
                put_text(into, name);
                into.push(source.is_some().into());
                if let Some(source) = source {
                    Servers::write(&[source], into);
                }
            }
            Self::Tags { moves } => into.push(moves.into()),
            Self::TagsByToken { token } => {
                into.push(2);
                into.extend_from_slice(&token);
            }
            Self::Batch { batch } => into.extend_from_slice(batch),
            Self::Renew { millis } => put_u64(into, &[millis]),
            Self::List { owner, secret, name } => {
                put_u64(into, &[owner]);
                into.extend_from_slice(&secret);
                put_text(into, name);
            }
            Self::Freeze { to } | Self::Drop { to } => put_u64(into, &[to]),
            Self::Pull { is_last, marks } => {
                into.push(is_last.into());
                put_long(into, marks);
            }
            Self::Map { number, runs, servers } => {
                put_u32(into, &[number, (runs.0.len() / RUN_BYTES) as u32, servers.iter().count() as u32]);
                into.extend_from_slice(runs.0);
                into.extend_from_slice(servers.0);
            }
            Self::Run(run) => run.encode(into),
            Self::Code { length, at, name, part } => {
                put_u32(into, &[length, at]);
                put_text(into, name);
                into.extend_from_slice(part);
            }
            Self::Forget { name } => put_text(into, name),
        }
    }
}

impl<'a> Run<'a> {
    fn decode(fields: &mut Fields<'a>) -> Result<Self, Malformed> {
        let (request, procedure, hops) = (fields.u64()?, fields.u32()?, fields.u32()?);
        let (bytes, micros, replied) = (fields.u32()?, fields.u32()?, fields.u32()?);
        Ok(Self { request, procedure, hops, bytes, micros, replied, arguments: fields.short(ARGUMENTS_MAX)? })
    }

    fn encode(&self, into: &mut Vec<u8>) {
        put_u64(into, &[self.request]);
        put_u32(into, &[self.procedure, self.hops, self.bytes, self.micros, self.replied]);
        put_short(into, self.arguments);
    }
}

impl<'a> Ran<'a> {
    fn decode(fields: &mut Fields<'a>) -> Result<Self, Malformed> {
        let (request, status) = (fields.u64()?, RunStatus::of(fields.u8()?)?);
        fields.zero(3)?;
        let (bytes, micros, at) = (fields.u32()?, fields.u32()?, fields.u64()?);
        let (arguments, reply) = (fields.short(ARGUMENTS_MAX)?, fields.short(REPLY_MAX)?);
        Ok(Self { request, status, bytes, micros, at, arguments, reply })
    }

    fn encode(&self, into: &mut Vec<u8>) {
        put_u64(into, &[self.request]);
        into.extend_from_slice(&[self.status as u8, 0, 0, 0]);
        put_u32(into, &[self.bytes, self.micros]);
        put_u64(into, &[self.at]);
        put_short(into, self.arguments);
        put_short(into, self.reply);
    }
}

impl<'a> Reply<'a> {
    /// Reads a reply where it lies.
    ///
    /// # Errors
    ///
    /// [`Malformed`], whatever the bytes; never a panic.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut fields = Fields(bytes);
        let (number, refusal) = (fields.u8()?, fields.u8()?);
        fields.zero(2)?;
        let (region, memory, epoch) = (fields.u32()?, fields.u64()?, fields.u32()?);
        let answer = match refusal {
            0 => Answer::decode(number, &mut fields)?,
            _ if !(verb::OFFER..=verb::FORGET).contains(&number) => return Err(Malformed("a refusal of no verb")),
            _ => Answer::Refused { verb: number, why: Refusal::of(refusal)?, room: fields.u32()? },
        };
        fields.end()?;
        Ok(Self { memory, region, epoch, answer })
    }

    /// Writes the reply. Its marks, segments and other bytes are within their bounds.
    pub fn encode(&self, into: &mut Vec<u8>) {
        let refusal = if let Answer::Refused { why, .. } = self.answer { why as u8 } else { 0 };
        into.extend_from_slice(&[self.answer.number(), refusal, 0, 0]);
        put_u32(into, &[self.region]);
        put_u64(into, &[self.memory]);
        put_u32(into, &[self.epoch]);
        self.answer.encode(into);
    }
}

impl Refusal {
    fn of(byte: u8) -> Result<Self, Malformed> {
        use Refusal::*;
        let all = [NoRoom, Unknown, Taken, Stale, State, Unable, SourceGone];
        let of_modules = [
            NoModules,
            ManyModules,
            LongModule,
            BadModule,
            NoStep,
            UnknownImport,
            StartFunction,
            MemorySize,
            CompileTime,
            NoModule,
        ];
        all.into_iter().chain(of_modules).find(|&why| why as u8 == byte).ok_or(Malformed("an unknown reason"))
    }
}

impl RunStatus {
    fn of(byte: u8) -> Result<Self, Malformed> {
        use RunStatus::{Bytes, Done, Elsewhere, Failed, Frozen, Fuel, Full, Hops, Time, Trap};
        let all = [Done, Hops, Bytes, Time, Full, Elsewhere, Failed, Frozen, Fuel, Trap];
        all.into_iter().find(|&status| status as u8 == byte).ok_or(Malformed("a status that is none"))
    }
}

impl<'a> Answer<'a> {
    /// Returns the number of the verb that it answers.
    pub fn number(&self) -> u8 {
        match *self {
            Self::Refused { verb, .. } => verb,
            Self::Offer { .. } => verb::OFFER,
            Self::Take { .. } => verb::TAKE,
            Self::Tags { .. } => verb::TAGS,
            Self::Batch { .. } => verb::BATCH,
            Self::Renew { .. } => verb::RENEW,
            Self::List { .. } => verb::LIST,
            Self::Freeze { .. } => verb::FREEZE,
            Self::Pull { .. } => verb::PULL,
            Self::Commit { .. } => verb::COMMIT,
            Self::Thaw => verb::THAW,
            Self::Drop { .. } => verb::DROP,
            Self::Map => verb::MAP,
            Self::Run(_) => verb::RUN,
            Self::Code { .. } => verb::CODE,
            Self::End => verb::END,
            Self::Notice { .. } => verb::NOTICE,
            Self::Modules { .. } => verb::MODULES,
            Self::Forget => verb::FORGET,
        }
    }

    fn decode(number: u8, fields: &mut Fields<'a>) -> Result<Self, Malformed> {
        Ok(match number {
            verb::OFFER => Self::Offer {
                server: fields.u64()?,
                region_bytes: fields.u64()?,
                longest_millis: fields.u64()?,
                regions: fields.u32()?,
                workers: fields.u32()?,
            },
            verb::TAKE => Self::Take { secret: fields.array()? },
            verb::TAGS => {
                Self::Tags { token: fields.array()?, read: fields.far_segments()?, write: fields.far_segments()? }
            }
            verb::BATCH => Self::Batch { replies: fields.rest() },
            verb::RENEW => Self::Renew { left_millis: fields.u64()? },
            verb::LIST => {
                let (server, left_millis) = (fields.u64()?, fields.u64()?);
                let (count, flags) = (fields.u32()? as usize, fields.u8()?);
                fields.zero(3)?;
                let total = match flags {
                    0..=LIST_MORE => 0,
                    LIST_TOTAL..=LIST_FLAGS => fields.u32()?,
                    _ => return Err(Malformed("flags of a list that are none")),
                };
                if flags & LIST_TOTAL != 0 && total == 0 {
                    return Err(Malformed("a count of no regions"));
                }
                let more = flags & LIST_MORE != 0;
                Self::List { server, left_millis, more, total, entries: Entries::take(fields, count)? }
            }
            verb::FREEZE => Self::Freeze { marks: fields.long(MARKS_MAX)? },
            verb::PULL => Self::Pull { sum: fields.u32()? },
            verb::COMMIT => Self::Commit { read: fields.far_segments()?, write: fields.far_segments()? },
            verb::THAW => Self::Thaw,
            verb::DROP => Self::Drop { sum: fields.u32()? },
            verb::MAP => Self::Map,
            verb::RUN => Self::Run(Ran::decode(fields)?),
            verb::CODE => Self::Code { length: fields.u32()? },
            verb::END => Self::End,
            verb::MODULES => {
                let count = fields.u32()? as usize;
                Self::Modules { modules: Modules::take(fields, count)? }
            }
            verb::FORGET => Self::Forget,
            verb::NOTICE => Self::Notice { millis: fields.u64()? },
            _ => return Err(Malformed("a verb that is none")),
        })
    }

    fn encode(&self, into: &mut Vec<u8>) {
        match *self {
            Self::Thaw | Self::Map | Self::End | Self::Forget => {}
            Self::Refused { room, .. } => put_u32(into, &[room]),
            Self::Offer { server, region_bytes, longest_millis, regions, workers } => {
                put_u64(into, &[server, region_bytes, longest_millis]);
                put_u32(into, &[regions, workers]);
            }
            Self::Take { secret } => into.extend_from_slice(&secret),
            Self::Tags { token, read, write } => {
                into.extend_from_slice(&token);
                put_segments(into, read);
                put_segments(into, write);
            }
            Self::Batch { replies } => into.extend_from_slice(replies),
            Self::Renew { left_millis } => put_u64(into, &[left_millis]),
            Self::List { server, left_millis, more, total, entries } => {
                put_u64(into, &[server, left_millis]);
                put_u32(into, &[(entries.0.len() / ENTRY_BYTES) as u32]);
                let flags = if more { LIST_MORE } else { 0 } | if total > 0 { LIST_TOTAL } else { 0 };
                into.extend_from_slice(&[flags, 0, 0, 0]);
                if total > 0 {
                    put_u32(into, &[total]);
                }
                into.extend_from_slice(entries.0);
            }
            Self::Freeze { marks } => put_long(into, marks),
            Self::Pull { sum } | Self::Drop { sum } => put_u32(into, &[sum]),
            Self::Commit { read, write } => {
                put_segments(into, read);
                put_segments(into, write);
            }
            Self::Run(ran) => ran.encode(into),
            Self::Code { length } => put_u32(into, &[length]),
            Self::Modules { modules } => {
                put_u32(into, &[modules.iter().count() as u32]);
                into.extend_from_slice(modules.bytes());
            }
            Self::Notice { millis } => put_u64(into, &[millis]),
        }
    }
}

#[cfg(test)]
mod tests;
