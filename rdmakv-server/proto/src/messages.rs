//! The messages between client and server, byte by byte.
//!
//! Numbers are little-endian. A message is cut into *fragments*, each at most what the connection carries at once:
//!
//! ```text
//!  0  u32  id      the client's, one for each request; answers repeat it
//!  4  u8   kind    see below
//!  5  u8   flags   1: more of this message follows in the next fragment; 2: over datagrams, a u64 token of a connection ends the bytes
//!  6  u16  zero
//!  8       bytes
//! ```
//!
//! The fragments of a message follow each other; no other message of the same side comes in between. Put together, the bytes are:
//!
//! ```text
//! client
//!   1 HELLO   u16 version, u16 flags (1: the client reads a GET table; 2: over datagrams, it has an address to connect to; 4: a token
//!             follows), u32 zero, u64 token
//!   2 RUN     wish, key; then one command of the text or meta protocol, with its data
//!   3 GET     wish, key
//!   4 PUT     wish, key; then u32 length of the line, u32 number of segments, the segments (24 bytes each), the line of an `ms`
//!             or `set` command without its data: they are read from the segments, in the client's memory. Or an `mx` line and the
//!             bytes of the call, whose piece is read
//!   5 SEEN    for each tag that was read by: u64 address, u32 key, u32 reads. Not answered
//!   7 FAR     a request for far memory
//!
//! server
//!  17 WELCOME u16 version, u16 floor of transfers, u32 incarnation, u32 lease in milliseconds, u32 eager limit: bytes of a value that
//!             travels in a message at most, u64 bytes of the largest item
//!  18 RAN     tag; then what the command answered
//!  19 ITEM    tag; then the item as it lies in memory
//!  20 LARGE   tag; then u64 bytes of the item as it lies in memory: its value is longer than the eager limit
//!  21 NONE    nothing: no such item
//!  22 TAG     tag: of an item that is being written by a transfer
//!  23 REFUSED u8 reason (1 busy, 2 not understood, 3 too large, 4 the client's memory could not be read, 5 not now), then text.
//!             After reason 2 the connection ends
//!  24 TABLE   u64 the time, in nanoseconds of the machine's boot clock, u64 u64 secret, u32 number of segments, u32 zero, the segments: of
//!             the GET table, then of the memory that items are in
//!  25 FAR     the answer to one
//!  26 DEMOTE  nothing: the client is to leave the connection, once nothing of its own is under way there
//!
//! wish, key   u8 1 if a tag is wished for, u8 length of the key, then the key
//! tag         u8 1 if there is one, then, if there is: u64 address, u64 length, u32 key, u32 incarnation
//! segment     u64 address, u64 length, u32 key, u32 zero
//! ```
//!
//! The floor of transfers is in KiB; 0 is the eager limit. A value that is longer, up to the eager limit, goes by a message or by a
//! transfer, as the client chooses: the one that opens a transfer gets one.
//!
//! FAR of either side is a message of [far memory](crate::far::messages). A server that offers none refuses it there.
//!
//! HELLO comes first, and nothing is asked before WELCOME has come. The lease of a tag begins, for the client, when it first sent the
//! request, and lasts as long as WELCOME says.
//!
//! TABLE comes unasked, if it comes, after WELCOME, and where the server asks for a password after the client has said it. It names
//! the [GET table](crate::gets). From then on no answer carries a tag but that to a request for an item that is not listed there.
//!
//! A server may keep its connections for its busiest clients. In replies over datagrams it gives such a client a token, again and again
//! until it is used or another client has its place. The HELLO of a connection has the token. A server answers a token that is over by
//! REFUSED. DEMOTE comes only to clients that had a token; they go on over datagrams.
//!
//! A large item is fetched by a transfer that the client opens as its target. The header of its SYNC is a GET in one fragment, the
//! fragment's start included, and its TAG comes before its DONE. Every other answer comes in place of TAG, and the transfer is refused
//! after it: NONE, there is no such item; ITEM, it is short by now; LARGE, the client's buffer is too small for it, and a transfer into
//! as many bytes as LARGE says may be asked for; REFUSED, too many are on their way.
//!
//! `docs/wire-formats.md` has these tables too, with the order of messages and some of them in bytes; `tests/wire_page.rs` keeps
//! the two together.

/// The version spoken here.
pub const VERSION: u16 = 1;
/// Bytes before a fragment's own.
pub const FRAGMENT: usize = 8;
const MORE: u8 = 1;
pub(crate) const TOKEN: u8 = 2;
/// The place of a fragment's flags.
pub(crate) const FLAGS: usize = 5;
/// The flags of a HELLO.
const TABLE: u16 = 1;
const MAY_CONNECT: u16 = 2;
const HAS_TOKEN: u16 = 4;

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[expect(missing_docs, reason = "the module's table says what they are")]
pub enum Kind {
    Hello = 1,
    Run = 2,
    Get = 3,
    Put = 4,
    Seen = 5,
    Far = 7,
    Welcome = 17,
    Ran = 18,
    Item = 19,
    Large = 20,
    None = 21,
    Tag = 22,
    Refused = 23,
    Table = 24,
    FarAnswer = 25,
    Demote = 26,
}

impl Kind {
    /// Returns the kind that this byte means.
    pub fn of(byte: u8) -> Option<Self> {
        use Kind::{
            Demote, Far, FarAnswer, Get, Hello, Item, Large, None, Put, Ran, Refused, Run, Seen, Table, Tag, Welcome,
        };
        let all =
            [Hello, Run, Get, Put, Seen, Far, Welcome, Ran, Item, Large, None, Tag, Refused, Table, FarAnswer, Demote];
        all.into_iter().find(|&kind| kind as u8 == byte)
    }
}

/// A peer's message makes no sense: the connection is of no use any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a senseless message: {0}: run the same version at both ends")]
pub struct Malformed(pub &'static str);

/// Memory of the other side, as a fabric names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteSegment {
    /// The start.
    pub address: u64,
    /// Its length in bytes.
    pub length: u64,
    /// The key that permits access to it.
    pub key: u32,
}

/// Lets a client read an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// The place of the item, and the key that opens it to the client. Its length is what the client may read.
    pub segment: RemoteSegment,
    /// Which incarnation of the server it is of.
    pub incarnation: u32,
}

/// A message that a client sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the module's table says what they are")]
pub enum Request<'a> {
    Hello { version: u16, wishes: Wishes },
    Run { wish: bool, key: &'a [u8], command: &'a [u8] },
    Get { wish: bool, key: &'a [u8] },
    Put { wish: bool, key: &'a [u8], line: &'a [u8], segments: Segments<'a> },
    Seen(Seen<'a>),
    Far(&'a [u8]),
}

/// The wishes of a client in its HELLO.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// It reads a GET table.
    pub table: bool,
    /// Over datagrams: it connects when it gets a token.
    pub may_connect: bool,
    /// The token that it got over datagrams.
    pub token: Option<u64>,
}

/// A message that a server sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the module's table says what they are")]
pub enum Reply<'a> {
    Welcome(Welcome),
    Ran { tag: Option<Tag>, answer: &'a [u8] },
    Item { tag: Option<Tag>, image: &'a [u8] },
    Large { tag: Option<Tag>, size: u64 },
    None,
    Tag(Option<Tag>),
    Refused { why: Refusal, text: &'a str },
    Table(Table<'a>),
    Far(&'a [u8]),
    Demote,
}

/// The place of the [GET table](crate::gets), and the memory that its places are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table<'a> {
    /// By the server's boot clock: a client on the same machine, with the same clock, finds it between its question and the answer.
    pub now: u64,
    /// The secret of the hash function.
    pub secret: [u64; 2],
    /// The table, then the arenas in the order of places.
    pub segments: Segments<'a>,
}

/// The server's first message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Of the wire.
    pub version: u16,
    /// Which incarnation of the server it is.
    pub incarnation: u32,
    /// How long a tag may be read by, in milliseconds.
    pub lease_ms: u32,
    /// Values up to so many bytes travel in messages.
    pub eager: u32,
    /// Longer values may go by transfers: `eager`, or fewer whole KiB.
    pub transfers_from: u32,
    /// Bytes of an item at most.
    pub largest: u64,
}

/// Why a request was not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Refusal {
    /// Too much at once.
    Busy = 1,
    /// It makes no sense.
    NotUnderstood = 2,
    /// It is longer than is taken.
    TooLarge = 3,
    /// The client's memory could not be read.
    Unreadable = 4,
    /// The server is not ready, or stops.
    NotNow = 5,
}

/// Segments, where they lie in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segments<'a>(&'a [u8]);

/// Reads by tag, where they lie in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen<'a>(&'a [u8]);

const SEGMENT: usize = 24;
const SEEN: usize = 16;
/// Segments of a PUT at most.
pub const SEGMENTS: usize = 4096;

impl<'a> Segments<'a> {
    /// These, written one after the other to `into`.
    pub fn write(segments: &[RemoteSegment], into: &'a mut Vec<u8>) -> Self {
        put_segments(into, segments);
        Self(into)
    }

    /// Takes so many of the fields of a message.
    pub(crate) fn take(fields: &mut Fields<'a>, count: usize) -> Result<Self, Malformed> {
        if count > SEGMENTS {
            return Err(Malformed("too many segments"));
        }
        fields.take(count * SEGMENT).map(Self)
    }

    /// Returns the bytes of the segments.
    pub(crate) fn bytes(self) -> &'a [u8] {
        self.0
    }

    /// One after the other.
    pub fn iter(self) -> impl ExactSizeIterator<Item = RemoteSegment> + 'a {
        self.0.chunks_exact(SEGMENT).map(|bytes| {
            let mut fields = Fields(bytes);
            RemoteSegment {
                address: fields.u64().unwrap_or_default(),
                length: fields.u64().unwrap_or_default(),
                key: fields.u32().unwrap_or_default(),
            }
        })
    }
}

impl<'a> Seen<'a> {
    /// Address and key of the tag, and how often it was read by.
    pub fn iter(self) -> impl ExactSizeIterator<Item = (u64, u32, u32)> + 'a {
        self.0.chunks_exact(SEEN).map(|bytes| {
            let mut fields = Fields(bytes);
            (fields.u64().unwrap_or_default(), fields.u32().unwrap_or_default(), fields.u32().unwrap_or_default())
        })
    }
}

/// The fields of a message, taken from its start on.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

const SHORT: Malformed = Malformed("it ends too soon");

impl<'a> Fields<'a> {
    pub(crate) fn take(&mut self, bytes: usize) -> Result<&'a [u8], Malformed> {
        let (first, rest) = self.0.split_at_checked(bytes).ok_or(SHORT)?;
        self.0 = rest;
        Ok(first)
    }
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (first, rest) = self.0.split_first_chunk().ok_or(SHORT)?;
        self.0 = rest;
        Ok(*first)
    }
    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(u8::from_le_bytes(self.array()?))
    }
    pub(crate) fn u16(&mut self) -> Result<u16, Malformed> {
        Ok(u16::from_le_bytes(self.array()?))
    }
    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array()?))
    }
    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array()?))
    }
    pub(crate) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }
    pub(crate) fn end(&self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed("bytes are left over")) }
    }
    pub(crate) fn yes(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed("neither yes nor no")),
        }
    }
    fn wish_and_key(&mut self) -> Result<(bool, &'a [u8]), Malformed> {
        let wish = self.yes()?;
        let length = usize::from(self.u8()?);
        Ok((wish, self.take(length)?))
    }
    fn tag(&mut self) -> Result<Option<Tag>, Malformed> {
        if !self.yes()? {
            return Ok(None);
        }
        let segment = RemoteSegment { address: self.u64()?, length: self.u64()?, key: self.u32()? };
        Ok(Some(Tag { segment, incarnation: self.u32()? }))
    }
}

fn put_key(into: &mut Vec<u8>, wish: bool, key: &[u8]) {
    debug_assert!(key.len() <= crate::item::KEY_MAX, "the caller has looked at the key");
    into.push(wish.into());
    into.push(key.len() as u8);
    into.extend_from_slice(key);
}

fn put_segments(into: &mut Vec<u8>, segments: &[RemoteSegment]) {
    for segment in segments {
        into.extend_from_slice(&segment.address.to_le_bytes());
        into.extend_from_slice(&segment.length.to_le_bytes());
        into.extend_from_slice(&segment.key.to_le_bytes());
        into.extend_from_slice(&[0; 4]);
    }
}

fn put_tag(into: &mut Vec<u8>, tag: Option<Tag>) {
    into.push(tag.is_some().into());
    if let Some(Tag { segment, incarnation }) = tag {
        into.extend_from_slice(&segment.address.to_le_bytes());
        into.extend_from_slice(&segment.length.to_le_bytes());
        into.extend_from_slice(&segment.key.to_le_bytes());
        into.extend_from_slice(&incarnation.to_le_bytes());
    }
}

impl<'a> Request<'a> {
    /// Reads a request where it lies.
    ///
    /// # Errors
    ///
    /// [`Malformed`], whatever the bytes; never a panic.
    pub fn decode(kind: Kind, bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut fields = Fields(bytes);
        let request = match kind {
            Kind::Hello => {
                let (version, flags) = (fields.u16()?, fields.u16()?);
                fields.take(4)?;
                let token = if flags & HAS_TOKEN != 0 { Some(fields.u64()?) } else { None };
                let wishes = Wishes { table: flags & TABLE != 0, may_connect: flags & MAY_CONNECT != 0, token };
                Self::Hello { version, wishes }
            }
            Kind::Run => {
                let (wish, key) = fields.wish_and_key()?;
                Self::Run { wish, key, command: fields.rest() }
            }
            Kind::Get => {
                let (wish, key) = fields.wish_and_key()?;
                Self::Get { wish, key }
            }
            Kind::Put => {
                let (wish, key) = fields.wish_and_key()?;
                let (line, segments) = (fields.u32()? as usize, fields.u32()? as usize);
                let segments = Segments::take(&mut fields, segments)?;
                Self::Put { wish, key, segments, line: fields.take(line)? }
            }
            Kind::Seen => {
                let seen = fields.rest();
                if seen.len() % SEEN != 0 {
                    return Err(SHORT);
                }
                Self::Seen(Seen(seen))
            }
            Kind::Far => Self::Far(fields.rest()),
            _ => return Err(Malformed("a server says this, not a client")),
        };
        fields.end()?;
        Ok(request)
    }

    /// Returns a HELLO.
    pub fn hello(into: &mut Vec<u8>, table: bool) -> Kind {
        Self::hello_with(into, Wishes { table, ..Wishes::default() })
    }
    /// Returns a HELLO with these wishes.
    pub fn hello_with(into: &mut Vec<u8>, Wishes { table, may_connect, token }: Wishes) -> Kind {
        let flag = |is_set: bool, flag: u16| if is_set { flag } else { 0 };
        let flags = flag(table, TABLE) | flag(may_connect, MAY_CONNECT) | flag(token.is_some(), HAS_TOKEN);
        into.extend_from_slice(&VERSION.to_le_bytes());
        into.extend_from_slice(&flags.to_le_bytes());
        into.extend_from_slice(&[0; 4]);
        into.extend(token.iter().flat_map(|token| token.to_le_bytes()));
        Kind::Hello
    }
    /// Returns a RUN.
    pub fn run(into: &mut Vec<u8>, wish: bool, key: &[u8], command: &[&[u8]]) -> Kind {
        put_key(into, wish, key);
        for part in command {
            into.extend_from_slice(part);
        }
        Kind::Run
    }
    /// Returns a GET.
    pub fn get(into: &mut Vec<u8>, wish: bool, key: &[u8]) -> Kind {
        put_key(into, wish, key);
        Kind::Get
    }
    /// Returns a PUT, of at most [`SEGMENTS`] segments.
    pub fn put(into: &mut Vec<u8>, wish: bool, key: &[u8], line: &[u8], segments: &[RemoteSegment]) -> Kind {
        debug_assert!(segments.len() <= SEGMENTS, "the caller has looked at their number");
        put_key(into, wish, key);
        into.extend_from_slice(&(line.len() as u32).to_le_bytes());
        into.extend_from_slice(&(segments.len() as u32).to_le_bytes());
        put_segments(into, segments);
        into.extend_from_slice(line);
        Kind::Put
    }
    /// Adds a tag to a SEEN.
    pub fn seen(into: &mut Vec<u8>, address: u64, key: u32, reads: u32) -> Kind {
        into.extend_from_slice(&address.to_le_bytes());
        into.extend_from_slice(&key.to_le_bytes());
        into.extend_from_slice(&reads.to_le_bytes());
        Kind::Seen
    }
}

impl<'a> Reply<'a> {
    /// Reads a reply where it lies.
    ///
    /// # Errors
    ///
    /// [`Malformed`], whatever the bytes; never a panic.
    pub fn decode(kind: Kind, bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut fields = Fields(bytes);
        let reply = match kind {
            Kind::Welcome => {
                let (version, floor) = (fields.u16()?, u32::from(fields.u16()?) << 10);
                let (incarnation, lease_ms, eager) = (fields.u32()?, fields.u32()?, fields.u32()?);
                let transfers_from = if floor == 0 { eager } else { floor.min(eager) };
                Self::Welcome(Welcome { version, incarnation, lease_ms, eager, transfers_from, largest: fields.u64()? })
            }
            Kind::Ran => Self::Ran { tag: fields.tag()?, answer: fields.rest() },
            Kind::Item => Self::Item { tag: fields.tag()?, image: fields.rest() },
            Kind::Large => Self::Large { tag: fields.tag()?, size: fields.u64()? },
            Kind::None => Self::None,
            Kind::Tag => Self::Tag(fields.tag()?),
            Kind::Refused => {
                use Refusal::{Busy, NotNow, NotUnderstood, TooLarge, Unreadable};
                let why = match fields.u8()? {
                    1 => Busy,
                    2 => NotUnderstood,
                    3 => TooLarge,
                    4 => Unreadable,
                    5 => NotNow,
                    _ => return Err(Malformed("an unknown reason")),
                };
                let text = std::str::from_utf8(fields.rest()).map_err(|_| Malformed("a reason that is no text"))?;
                Self::Refused { why, text }
            }
            Kind::Table => {
                let (now, secret) = (fields.u64()?, [fields.u64()?, fields.u64()?]);
                let segments = fields.u32()? as usize;
                fields.u32()?;
                if !(2..=SEGMENTS).contains(&segments) {
                    return Err(Malformed("a table without memory, or with too much"));
                }
                Self::Table(Table { now, secret, segments: Segments(fields.take(segments * SEGMENT)?) })
            }
            Kind::FarAnswer => Self::Far(fields.rest()),
            Kind::Demote => Self::Demote,
            _ => return Err(Malformed("a client says this, not a server")),
        };
        fields.end()?;
        Ok(reply)
    }

    /// Writes the reply.
    pub fn encode(&self, into: &mut Vec<u8>) -> Kind {
        match *self {
            Self::Welcome(Welcome { version, incarnation, lease_ms, eager, transfers_from, largest }) => {
                into.extend_from_slice(&version.to_le_bytes());
                let floor = if transfers_from < eager { (transfers_from >> 10) as u16 } else { 0 };
                into.extend_from_slice(&floor.to_le_bytes());
                into.extend_from_slice(&incarnation.to_le_bytes());
                into.extend_from_slice(&lease_ms.to_le_bytes());
                into.extend_from_slice(&eager.to_le_bytes());
                into.extend_from_slice(&largest.to_le_bytes());
                Kind::Welcome
            }
            Self::Ran { tag, answer } => {
                put_tag(into, tag);
                into.extend_from_slice(answer);
                Kind::Ran
            }
            Self::Item { tag, image } => {
                put_tag(into, tag);
                into.extend_from_slice(image);
                Kind::Item
            }
            Self::Large { tag, size } => {
                put_tag(into, tag);
                into.extend_from_slice(&size.to_le_bytes());
                Kind::Large
            }
            Self::None => Kind::None,
            Self::Tag(tag) => {
                put_tag(into, tag);
                Kind::Tag
            }
            Self::Refused { why, text } => {
                into.push(why as u8);
                into.extend_from_slice(text.as_bytes());
                Kind::Refused
            }
            Self::Table(Table { now, secret: [first, second], segments: Segments(segments) }) => {
                for word in [now, first, second, (segments.len() / SEGMENT) as u64] {
                    into.extend_from_slice(&word.to_le_bytes());
                }
                into.extend_from_slice(segments);
                Kind::Table
            }
            Self::Far(answer) => {
                into.extend_from_slice(answer);
                Kind::FarAnswer
            }
            Self::Demote => Kind::Demote,
        }
    }
}

/// Returns a fragment, where it lies: id, kind, whether more follows, and its bytes.
///
/// # Errors
///
/// [`Malformed`], whatever the bytes; never a panic.
pub fn fragment(bytes: &[u8]) -> Result<(u32, Kind, bool, &[u8]), Malformed> {
    let mut fields = Fields(bytes);
    let id = fields.u32()?;
    let kind = Kind::of(fields.u8()?).ok_or(Malformed("an unknown kind"))?;
    let flags = fields.u8()?;
    fields.take(2)?;
    if flags & !MORE != 0 {
        return Err(Malformed("unknown flags"));
    }
    Ok((id, kind, flags & MORE != 0, fields.rest()))
}

/// Writes the start of a fragment.
pub fn start(into: &mut Vec<u8>, id: u32, kind: Kind, more: bool) {
    into.extend_from_slice(&id.to_le_bytes());
    into.extend_from_slice(&[kind as u8, more.into(), 0, 0]);
}

/// A message that was put together: its id, its kind, and its bytes.
pub type Whole<'a> = (u32, Kind, &'a [u8]);

/// Puts a side's fragments together.
#[derive(Debug, Default)]
pub struct Assembly {
    of: Option<(u32, Kind)>,
    bytes: Vec<u8>,
}

impl Assembly {
    /// Returns whether a message has begun and is not whole.
    pub fn is_within(&self) -> bool {
        self.of.is_some()
    }

    /// Takes a fragment; gives the whole message once it is there. At most `most` bytes are kept.
    ///
    /// # Errors
    ///
    /// [`Malformed`]: fragments of two messages among each other, or too many bytes.
    pub fn take<'a>(&'a mut self, bytes: &'a [u8], most: usize) -> Result<Option<Whole<'a>>, Malformed> {
        let (id, kind, more, part) = fragment(bytes)?;
        match self.of {
            None if !more => return Ok(Some((id, kind, part))),
            None => {
                self.bytes.clear();
                self.of = Some((id, kind));
            }
            Some(begun) if begun != (id, kind) => return Err(Malformed("a message within another")),
            Some(_) => {}
        }
        if self.bytes.len() + part.len() > most {
            return Err(Malformed("a longer message than is taken"));
        }
        self.bytes.extend_from_slice(part);
        if more {
            return Ok(None);
        }
        self.of = None;
        Ok(Some((id, kind, &self.bytes)))
    }
}

#[cfg(test)]
mod tests;
