//! Messages between clients, servers and agents: calls and their replies.
//!
//! They hold no bytes and no key. A [`Piece`] names bytes that travel with the message. The sender's driver reads them from its chunk, and
//! the receiver's puts them into one of its own. The key travels beside the call, too. Every call has the cluster and the epoch.

use crate::codec::FRAGMENT_UNIT;
pub use crate::ids::{Epoch, ServerId, Version, WriteId};

/// A driver's name for the bytes of one value or fragment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Chunk(pub u64);

/// The part of a value that a piece is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Form {
    /// The whole value.
    Copy,
    /// One fragment.
    Fragment {
        /// Fragments that make the value.
        k: u8,
        /// Which of them it is.
        index: u8,
    },
    /// No value: the key was deleted.
    Tombstone,
}

/// Bytes of a value, and the facts of its envelope.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Piece {
    /// The bytes.
    pub chunk: Chunk,
    /// The part of the value that they are.
    pub form: Form,
    /// The length of the whole value.
    pub length: u64,
    /// The CRC of the whole value.
    pub sum: u32,
}

impl Piece {
    /// Returns whether it is a part of the value only.
    pub fn is_fragment(&self) -> bool {
        matches!(self.form, Form::Fragment { .. })
    }

    /// Returns the most bytes that it has: the last fragments of a value may have fewer.
    pub fn bytes(&self) -> u64 {
        match self.form {
            Form::Copy => self.length,
            Form::Fragment { k, .. } => {
                let unit = FRAGMENT_UNIT as u64;
                self.length.div_ceil(u64::from(k.max(1))).div_ceil(unit).saturating_mul(unit)
            }
            Form::Tombstone => 0,
        }
    }
}

/// A piece as a server keeps it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Stored {
    /// The write that made it.
    pub id: WriteId,
    /// Its version.
    pub version: Version,
    /// The last epoch in which the key's primary confirmed it.
    pub confirmed: Epoch,
    /// The piece.
    pub piece: Piece,
    /// Its bytes came before the write was ordered. Otherwise each message that completes the write carries them.
    pub is_staged: bool,
}

impl Stored {
    /// Returns whether it is a value, and no tombstone.
    pub fn is_value(&self) -> bool {
        self.piece.form != Form::Tombstone
    }
}

/// A write that was ordered and not yet published, as its primary tells it. Any client can complete it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Pending {
    /// The write.
    pub stored: Stored,
    /// The version that it follows.
    pub base: Version,
}

/// The state that a key needs for a write to happen.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Condition {
    /// Anything: set.
    Always,
    /// Absent: add.
    Absent,
    /// Present: replace, delete, append, incr.
    Present,
    /// Of this version: cas.
    Version(Version),
}

/// How a write gets its bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Change {
    /// They come with the order.
    Put(Piece),
    /// They are staged at all members.
    Staged,
    /// The primary computes them of the value that it has: incr, append. The number is the driver's for the arguments.
    Compute(u64),
}

/// A call to a server, for one key.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Request {
    /// The cluster.
    pub cluster: u128,
    /// The epoch of the caller.
    pub epoch: Epoch,
    /// The call.
    pub call: Call,
}

/// Which keys of a server are asked for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Select {
    /// Those whose primary it is.
    Primary,
    /// Those with something that an agent may have to end: a write, a staged piece, a tombstone or an expired value.
    Unsettled,
}

/// A place among the keys of a server. Those that are there all the time are at it or below until they were reported.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Place {
    /// The shard.
    pub shard: u32,
    /// The keys of this shard that were not reported are below it.
    pub below: u64,
}

impl Place {
    /// The begin: nothing was reported.
    pub const FIRST: Self = Self { shard: 0, below: u64::MAX };
}

/// The progress of the repair of a server's keys in one epoch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Report {
    /// All keys have all their pieces, and all servers know the fates.
    pub is_done: bool,
    /// Keys that are to be looked at, or worked on.
    pub left: u64,
    /// Keys that have all their pieces.
    pub keys: u64,
    /// Bytes that were sent for them.
    pub bytes: u64,
    /// Keys whose values are lost: too few of their fragments are left.
    pub lost: u64,
    /// Keys whose values have fewer fragments than their policy wants: the cluster has too few servers.
    pub short: u64,
    /// Keys that a server did not take.
    pub refused: u64,
    /// Milliseconds since the agent learned of the epoch.
    pub millis: u64,
}

/// A generation of a file that never changes any more, with its chunks.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Frozen {
    /// The file's inode.
    pub ino: u64,
    /// Its generation.
    pub generation: u64,
    /// Bytes of the file.
    pub size: u64,
    /// Binary logarithm of a chunk's bytes.
    pub chunk_bits: u8,
    /// The chunks that there are of this generation: the first of consecutive ones, and how many they are. At most [`MAX_RUNS`].
    pub runs: Vec<(u32, u32)>,
}

/// Runs of a generation's chunks at most.
pub const MAX_RUNS: usize = 256;

/// Chunks that one [`Call::Carry`] names at most.
pub const MAX_CARRIED: usize = 4096;

/// The work that a call asks for.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Call {
    /// Keep a piece for a write to come.
    Stage {
        /// The write.
        id: WriteId,
        /// Its piece for this member.
        piece: Piece,
    },
    /// Decide a write and its place in the order. To the primary.
    Order {
        /// The write.
        id: WriteId,
        /// The lowest write of the client whose outcome it may still ask for.
        lowest: u64,
        /// The state that the key needs.
        condition: Condition,
        /// The bytes.
        change: Change,
    },
    /// Keep an ordered write as the next value.
    Seal {
        /// The write.
        id: WriteId,
        /// Its version.
        version: Version,
        /// The version before: it is published.
        base: Version,
        /// The bytes, unless they are staged.
        piece: Option<Piece>,
    },
    /// Make a write visible that all others have sealed. To the primary.
    Publish {
        /// The write.
        id: WriteId,
        /// Its version.
        version: Version,
    },
    /// Learn that a write is published.
    Note {
        /// The write.
        id: WriteId,
        /// Its version.
        version: Version,
        /// The lowest write of the client whose outcome it may still ask for; 0 if another completed the write, which does not know.
        lowest: u64,
    },
    /// Report what became of a write. If nothing did, it never happens. To the primary.
    Resolve {
        /// The write.
        id: WriteId,
    },
    /// Never let a write happen that the primary of this epoch refused.
    Refuse {
        /// The write.
        id: WriteId,
    },
    /// Report the value. To the primary.
    Read,
    /// Report the published value for its repair, when no write from an earlier epoch is left. To the primary.
    Survey,
    /// Compare with what the primary has, and drop what it does not.
    List {
        /// The version at the primary: [`Version::ABSENT`] without one.
        version: Version,
    },
    /// Keep a published value that this member lacks.
    Repair {
        /// The write that made it.
        id: WriteId,
        /// Its version.
        version: Version,
        /// The bytes.
        piece: Piece,
    },
    /// Report the piece of a version, published or not. To any member: what is published is the primary's to say.
    Fetch {
        /// The version. [`Version::ABSENT`] stands for the newest fragment, whichever version it is of.
        version: Version,
    },
    /// Report the newest fragment, without its bytes: the caller reads them one-sidedly. To any member.
    Locate,
    /// Learn the fates of writes, after all keys were repaired. For no key.
    Fates(Vec<(WriteId, Fate)>),
    /// Report the next fates of writes that this server knows. For no key.
    FatesAfter {
        /// The shard that has them.
        shard: u32,
        /// The last one that is known.
        after: Option<WriteId>,
    },
    /// Report the next keys of this server. For no key.
    Keys {
        /// Which of them.
        select: Select,
        /// The place to go on from.
        from: Place,
    },
    /// Take the report of this server's agent. For no key.
    Report(Report),
    /// Refuse changes of the chunks of a file's generation from now on. While writes of them are under way, the answer is busy, and entries
    /// of these come with it. For no key.
    Freeze(Frozen),
    /// Learn that the backing directory shows a frozen generation. For no key.
    Persisted(Frozen),
    /// Write chunks of a frozen generation to its data file in the backing directory: those that this server orders the writes of, and
    /// has whole. For no key.
    Carry {
        /// The number of the data file's inode there.
        file: u64,
        /// The generation. Its runs are those that are to be written, of at most [`MAX_CARRIED`] chunks.
        frozen: Frozen,
    },
    /// Forget a tombstone. To the others first, and to the primary last.
    Forget {
        /// Its version.
        version: Version,
    },
}

impl Call {
    /// Returns the write that the call is for, if it is for one.
    pub fn id(&self) -> Option<WriteId> {
        match self {
            Self::Stage { id, .. }
            | Self::Order { id, .. }
            | Self::Seal { id, .. }
            | Self::Publish { id, .. }
            | Self::Note { id, .. }
            | Self::Resolve { id }
            | Self::Refuse { id }
            | Self::Repair { id, .. } => Some(*id),
            Self::Read | Self::Survey | Self::List { .. } | Self::Forget { .. } => None,
            Self::Fetch { .. } | Self::Locate => None,
            Self::Fates(_) | Self::FatesAfter { .. } | Self::Keys { .. } | Self::Report(_) => None,
            Self::Freeze(_) | Self::Persisted(_) | Self::Carry { .. } => None,
        }
    }

    /// Returns whether the call is for the server, and no key.
    pub fn is_for_no_key(&self) -> bool {
        let is_files = matches!(self, Self::Freeze(_) | Self::Persisted(_) | Self::Carry { .. });
        is_files || matches!(self, Self::Fates(_) | Self::FatesAfter { .. } | Self::Keys { .. } | Self::Report(_))
    }

    /// Returns the bytes that travel with the call.
    pub fn piece(&self) -> Option<Piece> {
        match self {
            Self::Stage { piece, .. } | Self::Repair { piece, .. } => Some(*piece),
            Self::Order { change: Change::Put(piece), .. } => Some(*piece),
            Self::Seal { piece, .. } => *piece,
            _ => None,
        }
    }
}

/// The answer to a call.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Reply {
    /// The epoch of the server.
    pub epoch: Epoch,
    /// The write that the call was for, if it was for one.
    pub id: Option<WriteId>,
    /// The answer.
    pub answer: Answer,
}

/// An answer of a server.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Answer {
    /// The call has another epoch than the server: learn the later one, and ask again.
    OtherEpoch,
    /// The server has no right to answer, or does not have the key, or another part in it.
    NotServing,
    /// A new primary waits until its predecessor's right has ended.
    Fenced,
    /// Too many writes wait, too many bytes are staged, a generation is not frozen yet, or chunks are not on disk yet. Ask again later.
    Busy,
    /// The piece is kept.
    Staged,
    /// The write has its place.
    Ordered {
        /// Its version.
        version: Version,
        /// The version before.
        base: Version,
        /// The bytes that the primary computed.
        computed: Option<Piece>,
    },
    /// The write is sealed, or a later one is.
    Sealed(Version),
    /// The bytes of the write are not here.
    Lacks,
    /// Another write, or this one, is pending: complete it, and ask again.
    Help(Pending),
    /// The write has ended before, or has ended now.
    Done(Verdict),
    /// The write never happens here.
    Refused,
    /// No such write is ordered: resolve it.
    Unknown,
    /// The note was taken, or the tombstone forgotten, or the fates kept, or the generation is frozen or forgotten.
    Taken,
    /// The member has this version of the value, or a later one.
    Repaired(Version),
    /// The value, if there is one; for a survey also a tombstone.
    Value(Option<Stored>),
    /// The index of the piece that the member has of the listed version, 0 for a copy; None if it lacks it.
    Has(Option<u8>),
    /// The next fates of a shard, none at its end; None if there is no such shard.
    Fates(Option<Vec<(WriteId, Fate)>>),
    /// A page of keys travels with it.
    Keys {
        /// The place to go on from; None at the end.
        next: Option<Place>,
        /// Keys that were not looked at.
        left: u64,
    },
    /// The chunks of a [`Call::Carry`] that this server wrote, and has synced. Bit I % 64 of number I / 64 stands for the chunk I of the
    /// call, in the order of its runs. Numbers that are left out are 0.
    Carried(Vec<u64>),
}

/// How a write ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Verdict {
    /// It was published as this version.
    Stored(Version),
    /// It changed nothing.
    Declined(Refusal),
    /// It was ordered before a flush, or its client was silent for long and its fate is forgotten. It may have been published before that,
    /// and never is after it.
    Flushed,
}

/// Why a write changed nothing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Refusal {
    /// The key is there, and had to be absent; or is absent, and had to be there.
    NotStored,
    /// The key has another version than the condition.
    Exists,
    /// The value is no number, or the result too large.
    Invalid,
    /// There is no room.
    NoMemory,
    /// The value would be larger than the server takes.
    TooLarge,
    /// The key is a chunk of a file's generation that is frozen.
    Final,
}

/// The fate of a write, as a server knows it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Fate {
    /// It ended.
    Done(Verdict),
    /// It never happens.
    Refused,
}
